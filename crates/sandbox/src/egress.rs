//! The network of a proxied sandbox, from its supervisor's side: starts the egress process, opens the session, and
//! hands over the gates.
//!
//! The egress process of a one-shot sandbox is our child. It lives as long as the session: if we are killed, the kernel
//! closes our end, and it ends.

mod self_test;
mod traffic;
mod trust;
mod upstream;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use saggar_domain::net::{EgressDraft, Rules};
use saggar_domain::secret::SecretUse;
use saggar_domain::{Code, Problem, SandboxId, Spec};
use saggar_jail::{Gates, Rule};
use saggar_supervisor::egress::{EGRESS as VERSION, FromEgress, GateCounts, Open, Session, Tape};

use crate::ids::random;
use crate::ranges::Range;
pub(crate) use traffic::Traffic;
pub(crate) use trust::{REPLACED, Trust};
pub use upstream::of_the_host as upstream_of_the_host;

/// The helper mode of the binary.
pub const EGRESS: &str = "__egress";
/// Its first argument if it serves many sandboxes.
pub const EGRESS_SERVICE: &str = "service";

/// Settings of the operator that say which upstream certificates to trust. Nothing else of our environment reaches it.
const PASSED_ON: &[&str] = if cfg!(feature = "mutation") {
    // Names rules to switch off, in a build that can.
    &["SSL_CERT_FILE", "SAGGAR_MUTATE"]
} else {
    &["SSL_CERT_FILE"]
};
/// How long it may take to end after its session did.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// A session with an egress process that exists for one sandbox.
#[derive(Debug)]
pub(crate) struct Egress {
    session: Option<Session>,
    child: Child,
    /// Its user. No sandbox gets an id of this range while it lives.
    _range: Option<Range>,
}

impl Egress {
    /// Starts the process. It gets ready while the caller goes on.
    pub(crate) fn start(sandbox: &SandboxId, spec: &Spec, secrets: &[OwnedFd]) -> Result<Self, Problem> {
        let upstream = upstream::of_the_host()?;
        let (session, theirs) = Session::pair().map_err(|errno| failed(&errno))?;
        let range = user().map_err(|error| failed(&error))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("saggar").arg(EGRESS).args(range.as_ref().map(|range| range.base().to_string()));
        command.env_clear().envs(PASSED_ON.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))));
        let stdin = Stdio::from(File::from(theirs));
        let child = command.current_dir("/").stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.map_err(|error| failed(&error.kind()))?;
        // From here on the child is ended if anything fails.
        let mut started = Self { session: Some(session), child, _range: range };
        let open = Open {
            v: VERSION,
            sandbox_id: sandbox.clone(),
            egress: spec.egress.clone(),
            upstream,
            generation: 0,
            asks: false,
            secrets: spec.secrets.iter().map(|used| used.name.clone()).collect(),
            placeholders: Vec::new(),
        };
        let files: Vec<BorrowedFd<'_>> = secrets.iter().map(AsFd::as_fd).collect();
        started.session()?.open(open, &files)?;
        Ok(started)
    }

    /// Waits until it is ready. Returns what the sandbox has to trust.
    pub(crate) fn trust(&mut self) -> Result<Trust, Problem> {
        self.session()?.certificate().map(Trust::new)
    }

    /// Hands over the recording, if there is one. Returns what is wrong with it, if it can be used nevertheless.
    pub(crate) fn hand_tape(&mut self, tape: Option<&Tape>) -> Result<Option<String>, Problem> {
        tape.map_or(Ok(None), |tape| self.session()?.hand_tape(tape))
    }

    /// The placeholders of secrets, for the environment of programs.
    pub(crate) fn placeholders(&mut self, uses: &[SecretUse]) -> Result<Vec<(String, String)>, Problem> {
        let placeholders = self.session()?.placeholders();
        let pairs = uses.iter().zip(placeholders);
        Ok(pairs.filter_map(|(used, text)| Some((used.env.as_ref()?.to_string(), text.clone()))).collect())
    }

    /// Hands over the gates, and tries whether they keep what they promise. From here on the sandbox has its network.
    pub(crate) fn serve(&mut self, gates: Gates, rules: &EgressDraft) -> Result<(), Problem> {
        let session = self.session()?;
        let Gates { tcp, proxy, dns_udp, dns_tcp, probes } = gates;
        let counts = GateCounts { tcp: tcp.len(), proxy: 1, dns_udp: dns_udp.len(), dns_tcp: dns_tcp.len() };
        let proxy = std::iter::once(&proxy);
        let all: Vec<BorrowedFd<'_>> =
            tcp.iter().chain(proxy).chain(&dns_udp).chain(&dns_tcp).map(AsFd::as_fd).collect();
        session.hand_over(counts, &all)?;
        if !Rule::NetworkSelfTest.is_on() {
            return Ok(());
        }
        self_test::run(session, &Rules::new(rules.clone())?, probes)
    }

    /// Ends the session, and takes its last decisions.
    pub(crate) fn finish(mut self, take: &mut dyn FnMut(FromEgress)) {
        if let Some(session) = self.session.take() {
            session.finish(END_PATIENCE, take);
        }
    }

    /// The session, for the loop that attends the sandbox.
    pub(crate) fn session(&mut self) -> Result<&mut Session, Problem> {
        self.session.as_mut().ok_or_else(|| failed(&"the session is over"))
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        drop(self.session.take());
        let deadline = Instant::now() + END_PATIENCE;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            saggar_jail::pause_briefly();
        }
        // It may have ended just now.
        let _ = self.child.kill();
        let _ = self.child.wait(); // As above.
    }
}

/// As root it gets a user that nothing else has. An ordinary user has only their own.
fn user() -> io::Result<Option<Range>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let random = random().map_err(io::Error::other)?;
    Range::take(u32::from_ne_bytes(random)).map(Some)
}

fn failed(why: &dyn std::fmt::Display) -> Problem {
    Problem::new(
        Code::SetupFailed,
        format!("the egress process can't be started: {why}"),
        "`saggar doctor` shows whether this host can manage a sandbox's network",
    )
}
