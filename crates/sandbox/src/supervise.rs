//! `saggar __supervise`: the process that holds one sandbox, from the request on its standard input until nothing is
//! left.
//!
//! ```text
//!  start read ─▶ detached ─▶ prepared ─▶ jailed ─▶ control socket ─▶ ready told ─▶ held ─▶ cleaned up ─▶ last word ─▶ gone
//! ```
//! It outlives the process that started it. Up to "ready" every exit path reports its reason on the socket it was
//! started with; from there on it reports over its control socket, and at the end in `ended/`. If it is killed it
//! leaves a record, and the reaper does the rest: the sandbox itself dies with it.
//!
//! One process holds one sandbox, because its locks belong to the process.

mod control_socket;
mod start;

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use saggar_domain::{Code, DeadlineAction, NetworkMode, Problem, SandboxId, Spec};
use saggar_jail::cgroup::{Group, Host};
use saggar_jail::{Jailed, Signals};
use saggar_supervisor::control::{Reply, Start};
use saggar_supervisor::egress::{Network, SessionSecrets, Wants};
use saggar_supervisor::{Channel, Hold, Holding};

use crate::allocator::Allocator;
use crate::data::DataDirectory;
use crate::egress::ServiceSocket;
use crate::holdback::hold_back;
use crate::ids::policy_hash;
use crate::plan::Life;
use crate::prepare::{Order, Prepared, clean_up, failed, prepare};
use crate::resolve::{ImageUser, resolve_for};
use crate::run::{keep_held, open_network, without_links};
use crate::templates::{LOCAL_PROJECT, Templates};
use control_socket::ControlSocket;
pub(crate) use control_socket::{control_name, unnamed};
use start::Starter;

/// Drops everything that was inherited from the process that started us.
pub(crate) fn detach() {
    start::detach(IGNORED);
}

pub const SUPERVISE: &str = "__supervise";

/// SIGTERM ends the sandbox in an orderly way; signals from a terminal are meant for others.
const ENDING: &[i32] = &[libc::SIGTERM];
const IGNORED: &[i32] = &[libc::SIGHUP, libc::SIGINT, libc::SIGQUIT];

/// Returns once the sandbox is gone.
pub fn supervise() -> ExitCode {
    let (mut starter, start) = match Starter::receive() {
        Ok(received) => received,
        // There is no connection to report this on.
        Err(_) => return ExitCode::FAILURE,
    };
    detach();
    let outcome = Signals::block(ENDING)
        .map_err(|error| failed("blocking signals", error).error)
        .and_then(|signals| Supervised::make(start?, signals));
    match outcome {
        Ok(supervised) => {
            // If the starter died before it heard of this sandbox, another process may already have recorded that there is none. So
            // the sandbox ends, in the same order as on any SIGTERM. Once the starter has heard, others find the sandbox by its socket.
            if starter.tell(&Reply::Ready(Box::new(supervised.hold.describe()))).is_err() {
                let asked = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
                debug_assert!(asked.is_ok(), "{asked:?}");
            }
            drop(starter);
            Allocator::unmap_kept();
            supervised.hold()
        }
        Err(problem) => {
            // The starter may be gone; then there is nothing to be found.
            let _ = starter.tell(&Reply::Error(problem));
            ExitCode::FAILURE
        }
    }
}

/// A sandbox, and everything that has to be removed after it.
struct Supervised {
    data: DataDirectory,
    sandbox: SandboxId,
    prepared: Prepared,
    socket: ControlSocket,
    hold: Hold,
    /// What a scratch workspace's changes are in.
    layer: Option<OwnedFd>,
}

impl Supervised {
    fn make(start: Start, signals: Signals) -> Result<Self, Problem> {
        let sandbox = start.sandbox_id;
        let data = DataDirectory::open(Some(&start.data_directory))?;
        let project = start.template_project.as_deref().unwrap_or(LOCAL_PROJECT);
        let (spec, template) = resolve_for(start.spec, || Ok(Templates::new(&data, project)), ImageUser::Ignored)?;
        let host = Host::detect_with_freezer();
        if start.terms.then == DeadlineAction::Pause && host.freezer().is_err() {
            return Err(Problem::new(
                Code::UnsupportedCapability,
                "this host can't freeze a sandbox: no freezable cgroup is available",
                "end it at its deadline instead; `saggar doctor` shows what this host supports",
            ));
        }
        let mut network = match spec.network {
            NetworkMode::Proxied => {
                let source = Box::new(ServiceSocket::in_directory(&data)?);
                let secrets = SessionSecrets::of_server(start.uses_secrets);
                let wants = Wants { questions: false, connections: true };
                Some(Network::begin(source, sandbox.clone(), spec.egress.clone(), secrets, wants)?)
            }
            NetworkMode::None | NetworkMode::Host => None,
        };
        // The operator's own volumes are no default: they belong to no project of a server.
        let volume_project = match &start.volume_project {
            Some(project) => project.as_str(),
            None if spec.volumes.is_empty() => LOCAL_PROJECT,
            None => {
                return Err(Problem::new(
                    Code::InvalidMount,
                    "no project was named for the sandbox's volumes",
                    "use a server and a supervisor of the same version",
                ));
            }
        };
        let order = Order { spec: &spec, life: Life::Held, template, volume_project, hands_over_root: false };
        let mut prepared = prepare(&data, &sandbox, host, order, &mut |_| {}).map_err(|stopped| stopped.error)?;
        let mut group = None;
        let mut socket = None;
        let entered = enter(&data, &sandbox, &mut prepared, &spec, &mut group, &mut socket);
        let entered = entered.and_then(|(mut jailed, channel)| match &mut network {
            // Nothing runs in it before its network has passed its test.
            Some(network) => open_network(network, &mut jailed).map(|()| (jailed, channel)),
            None => Ok((jailed, channel)),
        });
        match (entered, socket) {
            (Ok((mut jailed, channel)), Some((socket, listener))) => {
                let layer = jailed.layer.take();
                let hold = Hold::new(Holding {
                    sandbox_id: sandbox.clone(),
                    policy_hash: policy_hash(&spec).to_string(),
                    spec,
                    unenforced: std::mem::take(&mut prepared.enforcement.unenforced),
                    pid: jailed.pid,
                    pidfd: jailed.pidfd,
                    questions: Some(jailed.listener),
                    channel,
                    group,
                    listener,
                    signals,
                    network,
                    terms: start.terms,
                    is_pooled: start.is_pooled,
                });
                Ok(Self { data, sandbox, prepared, socket, hold, layer })
            }
            (entered, socket) => {
                if let Some((socket, _)) = socket {
                    socket.remove();
                }
                // Whatever isn't removed now is found through the record.
                if group.map_or(Ok(()), Group::remove).is_ok() {
                    clean_up(&data, &sandbox, prepared.record, prepared.placed);
                }
                Err(entered.err().unwrap_or_else(|| failed("creating the control socket", "it was not created").error))
            }
        }
    }

    /// Holds it, and cleans up: the tree, the cgroups, the placeholders, the record; then writes the final report, and
    /// removes the socket last.
    fn hold(self) -> ExitCode {
        let Self { data, sandbox, prepared, socket, hold, layer } = self;
        let mut held = hold.run();
        // Before its record goes: half-kept changes of a record that exists are found.
        if let (Some(scratch), Some(layer), Some(_)) = (&prepared.scratch, &layer, &held.reaped)
            && let Err(problem) = keep_held(&data, &sandbox, scratch, layer)
        {
            held.last_word.error.get_or_insert(problem);
        }
        drop(layer);
        let removed = held.group.take().map_or(Ok(()), Group::remove);
        match removed {
            Ok(()) if held.reaped.is_some() => {
                let is_postponed = prepared.placed.as_ref().is_some_and(|placed| {
                    // The final report's denials are not read yet; only the removal matters.
                    let _ = without_links(placed);
                    let before = &placed.before;
                    hold_back(&data, &sandbox, &placed.workspace, before, placed.started_ns).is_postponed
                });
                // Postponed work is left to the reaper.
                if !is_postponed {
                    clean_up(&data, &sandbox, prepared.record, prepared.placed);
                }
            }
            // Something in there doesn't die, which is already reported. The record stays, so that the reaper tries
            // again.
            Ok(()) => {}
            Err(error) => {
                held.last_word.error.get_or_insert_with(|| {
                    Problem::new(
                        Code::SetupFailed,
                        format!("a cgroup of the sandbox can't be removed: {}", error.kind()),
                        "the reaper tries again",
                    )
                });
            }
        }
        drop(prepared.range);
        // Free before the client hears of the end: it may create another sandbox with an exclusive volume then.
        drop(prepared.volumes);
        let written = data.write_ended(&held.last_word);
        socket.remove();
        held.answer();
        if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Creates the sandbox and its control socket. What was created is in `group` and `socket` even if this fails.
fn enter(
    data: &DataDirectory,
    sandbox: &SandboxId,
    prepared: &mut Prepared,
    spec: &Spec,
    group: &mut Option<Group>,
    socket: &mut Option<(ControlSocket, OwnedFd)>,
) -> Result<(Jailed, Channel), Problem> {
    let (channel, theirs) = Channel::pair().map_err(|error| failed("creating the control channel", error).error)?;
    let listen = || {
        *socket = Some(ControlSocket::listen(data, sandbox)?);
        Ok(())
    };
    let jailed = prepared.enter(spec, theirs, group, listen).map_err(|stopped| stopped.error)?;
    Ok((jailed, channel))
}
