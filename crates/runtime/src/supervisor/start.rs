//! Starting a supervisor.
//!
//! It gets one end of a socket as its standard input, reads there what to hold, and answers once, when the sandbox is there or
//! can't be. From then on it belongs to nobody: it has a session of its own, and whoever started it may die.

use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use saggar_domain::Problem;
use saggar_supervisor::control::{Description, Reply, Start};
use tokio::net::UnixStream;

use super::connection::{Connection, ControlError, Message};
use super::launch::{Launched, Launcher};
use crate::fail_point::pass;

/// How long making a sandbox may take before it is given up.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Why there is no sandbox.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The supervisor said so.
    #[error("refused")]
    Refused(#[source] Problem),
    /// It could not be started.
    #[error("starting a supervisor")]
    Spawn(#[source] std::io::Error),
    /// It went away or fell silent.
    #[error("a supervisor that did not get ready")]
    Lost(#[source] ControlError),
}

/// Starts a supervisor and waits for its sandbox. If this is not ready in time, it is killed, and its sandbox with it.
pub(crate) async fn start(launcher: &dyn Launcher, request: &Start) -> Result<Description, StartError> {
    let (ours, theirs) = StdStream::pair().map_err(StartError::Spawn)?;
    ours.set_nonblocking(true).map_err(StartError::Spawn)?;
    let supervisor = launcher.launch(theirs.into()).map_err(StartError::Spawn)?;
    pass("create/spawned");
    let stream = UnixStream::from_std(ours).map_err(StartError::Spawn)?;
    let outcome = tokio::time::timeout(START_TIMEOUT, get_ready(Connection::over(stream), request)).await;
    let outcome = outcome.unwrap_or(Err(StartError::Lost(ControlError::Timeout)));
    match &outcome {
        Ok(_) => reap_later(supervisor),
        Err(_) => end(supervisor).await,
    }
    outcome
}

async fn get_ready(mut connection: Connection, request: &Start) -> Result<Description, StartError> {
    connection.send(request).await.map_err(StartError::Lost)?;
    pass("create/asked");
    match connection.next().await.map_err(StartError::Lost)? {
        Some(Message::Reply(Reply::Ready(description))) => Ok(*description),
        Some(Message::Reply(Reply::Error(problem))) => Err(StartError::Refused(problem)),
        Some(_) => Err(StartError::Lost(ControlError::Protocol("another answer than `ready`".to_owned()))),
        None => Err(StartError::Lost(ControlError::Gone(std::io::ErrorKind::UnexpectedEof.into()))),
    }
}

/// It lives on without us; if it ends first, its exit is collected.
fn reap_later(mut supervisor: Box<dyn Launched>) {
    tokio::spawn(async move { supervisor.ended().await });
}

async fn end(mut supervisor: Box<dyn Launched>) {
    // Refused, it ends by itself, after it has cleaned up; a silent one is killed.
    if tokio::time::timeout(Duration::from_secs(5), supervisor.ended()).await.is_err() {
        supervisor.kill().await;
    }
}
