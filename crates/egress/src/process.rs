//! The process: reads what it needs of the host, gives up its rights, and serves one session, or those of a server.
//!
//! Its standard input is the socket. When a supervisor closes its end, everything of its sandbox ends here and the last decisions are
//! sent. A process with one session ends then.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use rustix::fs::{Mode as FileMode, OFlags, open};
use rustix::net::SendFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use saggar_domain::{Code, Problem};
use saggar_jail::{ServiceIds, confine};
use saggar_supervisor::egress::FromEgress;

use crate::control::{self, Control};
use crate::service::Service;
use crate::setting::Setting;
use crate::tls::{self, Roots};

/// What standard input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The socket of one session. The process ends with it.
    Session,
    /// A listening socket, for many sessions and the server that manages them.
    Service,
}

/// `user` is the id to run as, if the caller is root.
pub fn main(mode: Mode, user: Option<u32>) -> ExitCode {
    match serve(mode, user) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            tell(mode, problem);
            ExitCode::FAILURE
        }
    }
}

/// Tells the process that started this one why it can't serve. If that one is gone, there is no other place to report to.
pub fn tell(mode: Mode, problem: Problem) {
    let told = match mode {
        Mode::Session => serde_json::to_vec(&FromEgress::Failed(problem)).map(|message| {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            rustix::net::send(io::stdin(), &message, flags).map(drop)
        }),
        Mode::Service => {
            serde_json::to_vec(&problem).map(|message| rustix::io::write(rustix::stdio::stdout(), &message).map(drop))
        }
    };
    // As said above.
    let _ = told;
}

fn serve(mode: Mode, user: Option<u32>) -> Result<(), Problem> {
    let owner = rustix::process::geteuid();
    if user.is_none() && owner.is_root() {
        return Err(failed(&"it must not run as root"));
    }
    let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned().map_err(|error| failed(&error))?;
    rustix::io::ioctl_fionbio(&socket, true).map_err(|errno| failed(&errno))?;
    // Before the rights are gone.
    let bundle = tls::host_bundle();
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, FileMode::empty()).map_err(|errno| failed(&errno))?;
    allow_many_files(mode);
    confine(user.map(|id| ServiceIds { uid: id, gid: id })).map_err(|error| {
        let message = format!("the egress process can't be confined: {error}");
        Problem::new(Code::UnsupportedCapability, message, error.help())
    })?;
    // From here on it serves: whoever started it sees the end of its output.
    rustix::stdio::dup2_stdout(&null).map_err(|errno| failed(&errno))?;
    drop(null);
    // A panic ends the connection in which it happens, and is told nowhere: its text may hold what a sandbox sent.
    std::panic::set_hook(Box::new(|_| {}));
    // Its threads are started only now.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    match mode {
        Mode::Session => runtime.worker_threads(WORKERS),
        Mode::Service => &mut runtime,
    };
    let runtime = runtime.enable_all().build().map_err(|error| failed(&error))?;
    let served = runtime.block_on(async {
        let setting = Setting::of_the_host(Roots::from_pem(bundle));
        match mode {
            Mode::Session => {
                let control = Control::new(socket).map_err(|error| failed(&error))?;
                control::converse(control, &setting).await;
            }
            Mode::Service => {
                let service = Service { setting, owner, linger: LINGER };
                service.run(socket).await.map_err(|error| failed(&error))?;
            }
        }
        Ok(())
    });
    // Everything that had to be told is told: the process ends without waiting for its threads.
    runtime.shutdown_background();
    served
}

/// A session may have a thousand connections, each with two sockets. If the limit can't be raised, there can be fewer.
fn allow_many_files(mode: Mode) {
    let limit = getrlimit(Resource::Nofile);
    let many = Rlimit { current: Some(SERVICE_FILES), maximum: Some(SERVICE_FILES) };
    let is_more = limit.maximum.is_some_and(|maximum| maximum < SERVICE_FILES);
    // Only root may raise the maximum.
    if mode == Mode::Service && is_more && setrlimit(Resource::Nofile, many).is_ok() {
        return;
    }
    // As said above.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn failed(why: &dyn std::fmt::Display) -> Problem {
    Problem::new(Code::SetupFailed, format!("the egress process failed: {why}"), "try again")
}

/// One for the session's tasks, and one for bulk transfers beside them. A service has one for each processor.
const WORKERS: usize = 2;
/// The most that the kernel allows by default.
const SERVICE_FILES: u64 = 1 << 20;
/// A service without any connection ends after this.
const LINGER: Duration = Duration::from_secs(60);
