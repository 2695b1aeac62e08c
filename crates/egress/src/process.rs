//! The process: reads what it needs of the host, gives up its rights, and serves one session.
//!
//! Its standard input is the session's socket. When the supervisor closes its end, everything of the sandbox ends here
//! and the last decisions are sent; then the process ends.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use rustix::net::SendFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use saggar_domain::{Code, Problem};
use saggar_jail::{ServiceIds, confine};
use saggar_supervisor::egress::FromEgress;

use crate::control::{self, Control};
use crate::tls::Roots;

/// Bundles of trusted certificates, in the order of preference.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
const BUNDLE_VARIABLE: &str = "SSL_CERT_FILE";

/// Serves the session on standard input. `user` is the id to run as, if the caller is root.
pub fn main(user: Option<u32>) -> ExitCode {
    match serve(user) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            if let Ok(message) = serde_json::to_vec(&FromEgress::Failed(problem)) {
                // The supervisor may be gone; there is no other place to report to.
                let _ = rustix::net::send(io::stdin(), &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            }
            ExitCode::FAILURE
        }
    }
}

fn serve(user: Option<u32>) -> Result<(), Problem> {
    if user.is_none() && rustix::process::geteuid().is_root() {
        return Err(failed(&"it must not run as root"));
    }
    let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned().map_err(|error| failed(&error))?;
    rustix::io::ioctl_fionbio(&socket, true).map_err(|errno| failed(&errno))?;
    // Before the rights are gone.
    let bundle = trusted();
    allow_many_files();
    confine(user.map(|id| ServiceIds { uid: id, gid: id })).map_err(|error| {
        let message = format!("the egress process can't be confined: {error}");
        Problem::new(Code::UnsupportedCapability, message, error.help())
    })?;
    // Its threads are started only now.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build();
    runtime.map_err(|error| failed(&error))?.block_on(async {
        let control = Control::new(socket).map_err(|error| failed(&error))?;
        control::converse(control, Roots::from_pem(&bundle)).await;
        Ok(())
    })
}

/// A session may have a thousand connections, each with two sockets. If the limit can't be raised, there can be fewer.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    // As said above.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn failed(why: &dyn std::fmt::Display) -> Problem {
    Problem::new(Code::SetupFailed, format!("the egress process failed: {why}"), "try again")
}

/// One for the session's tasks, and one for bulk transfers beside them.
const WORKERS: usize = 2;

/// The certificates that the host trusts. Without any, no server with TLS is trusted.
fn trusted() -> Vec<u8> {
    match std::env::var_os(BUNDLE_VARIABLE) {
        Some(path) => std::fs::read(path).unwrap_or_default(),
        None => BUNDLES.iter().find_map(|path| std::fs::read(path).ok()).unwrap_or_default(),
    }
}
