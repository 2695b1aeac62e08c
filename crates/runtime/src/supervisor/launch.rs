//! How supervisors come to be: as processes of this machine, or in a test as something that behaves like one.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;

use saggar_supervisor::egress::BUNDLE_VARIABLE;
use tokio::process::{Child, Command};

/// The helper mode of the binary.
const MODE: &str = "__supervise";
/// What lists of processes show.
const NAME: &str = "saggar";

/// Starts supervisors.
pub trait Launcher: std::fmt::Debug + Send + Sync {
    /// Starts one. It reads from `stdin` what to hold, and answers there once, when the sandbox is there or can't be.
    fn launch(&self, stdin: OwnedFd) -> io::Result<Box<dyn Launched>>;

    /// Whether its supervisors connect to the server's egress process.
    fn needs_egress(&self) -> bool {
        true
    }
}

/// A supervisor that was started, as its parent sees it. Dropped, it lives on.
pub trait Launched: Send {
    /// Waits for its end. May be cancelled, and asked again.
    fn ended(&mut self) -> Waiting<'_>;

    /// Kills it, and waits for its end. One that has ended already is as good.
    fn kill(&mut self) -> Waiting<'_>;
}

/// Something to be waited for.
pub type Waiting<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A program whose mode `__supervise` is a supervisor.
#[derive(Debug)]
pub(crate) struct Program(pub(crate) PathBuf);

impl Launcher for Program {
    fn launch(&self, stdin: OwnedFd) -> io::Result<Box<dyn Launched>> {
        let mut command = Command::new(&self.0);
        command.arg0(NAME).arg(MODE).env_clear();
        // Certificates that programs of a proxied sandbox trust.
        if let Some(bundle) = std::env::var_os(BUNDLE_VARIABLE) {
            command.env(BUNDLE_VARIABLE, bundle);
        }
        let child =
            command.current_dir("/").stdin(Stdio::from(stdin)).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Box::new(child))
    }
}

impl Launched for Child {
    fn ended(&mut self) -> Waiting<'_> {
        Box::pin(async {
            // Its last words say how it ended; this only cleans up the process table.
            let _ = self.wait().await;
        })
    }

    fn kill(&mut self) -> Waiting<'_> {
        Box::pin(async {
            // It may already be dead.
            let _ = Child::kill(self).await;
        })
    }
}
