//! The service: one process for the sessions of all sandboxes of a server.
//!
//! ```text
//!  supervisor ── open ────▶ session ──┐
//!  supervisor ── open ────▶ session ──┼─ sessions, by sandbox
//!  server ────── manage ──▶ management┘
//! ```
//! Each connection is a task of its own. A panic in one ends that connection, and a panic while a request is served ends the request's
//! connection; neither reaches another session. The process outlives the server that started it, and ends by itself: when no connection
//! is left for a while, and once it was told to retire, with its last session.

mod sessions;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::Uid;
use saggar_domain::{Code, Problem};
use saggar_supervisor::egress::{FromEgress, Open, ToEgress};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::control::{Accepted, Control, Incoming, manage, misused, serve_opened};
use crate::setting::Setting;
pub(crate) use sessions::Sessions;

/// As many sandboxes as a host has ranges of ids for, and a few servers and workers.
const CONNECTIONS_MAX: usize = 4096 + 64;
/// Until a connection says what it is.
const FIRST_MESSAGE: Duration = Duration::from_secs(10);
/// After an error that the next call would meet as well, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

pub struct Service {
    pub setting: Setting,
    /// Who may connect, besides root.
    pub owner: Uid,
    /// How long the process waits for a connection while it has none.
    pub linger: Duration,
}

impl Service {
    /// Serves a listening socket of packets that doesn't block. Returns when the process is to end.
    pub async fn run(self, listener: OwnedFd) -> io::Result<()> {
        let listener = UnixListener::from_std(listener.into())?;
        let sessions = Sessions::default();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                    Ok((socket, _)) if self.is_ours(&socket) => {
                        connections.spawn(attend(Control::over(socket), self.setting.clone(), sessions.clone()));
                    }
                    // Closed without an answer.
                    Ok(_) => {}
                    Err(_) => sleep(PAUSE).await,
                },
                Some(_ended) = connections.join_next() => {}
                () = sleep(self.linger), if connections.is_empty() => return Ok(()),
                () = sessions.until_retired() => return Ok(()),
            }
        }
    }

    fn is_ours(&self, socket: &UnixStream) -> bool {
        socket_peercred(socket).is_ok_and(|peer| peer.uid.is_root() || peer.uid == self.owner)
    }
}

async fn attend(control: Control, setting: Setting, sessions: Sessions) {
    // One that says nothing gets no answer either.
    let Ok(Ok(first)) = timeout(FIRST_MESSAGE, control.receive()).await else { return };
    let attended = match first {
        Incoming::Message(ToEgress::Open(open), files) => serve(&control, *open, files, &setting, &sessions).await,
        Incoming::Message(ToEgress::Manage { v }, _) => manage(&control, v, &sessions, &setting.models).await,
        Incoming::Message(..) => Err(misused("a connection begins with `open` or `manage`")),
        Incoming::End => Ok(()),
    };
    if let Err(problem) = attended {
        // The other side may be gone; then there is no one to tell.
        let _ = control.send(&FromEgress::Failed(problem)).await;
    }
}

async fn serve(
    control: &Control,
    open: Open,
    files: Vec<OwnedFd>,
    setting: &Setting,
    sessions: &Sessions,
) -> Result<(), Problem> {
    let sandbox = open.sandbox_id.clone();
    let accepted = Accepted::begin(open, files, setting).await?;
    let _entry = sessions.enter(sandbox, &accepted.controls).ok_or_else(retired)?;
    serve_opened(control, accepted).await
}

fn retired() -> Problem {
    Problem::new(
        Code::SetupFailed,
        "this egress process is being replaced and takes no new session",
        "connect again: another process has its name by now",
    )
}
