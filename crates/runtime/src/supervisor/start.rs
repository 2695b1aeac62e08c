//! Starts a supervisor.
//!
//! It gets one end of a socket as its stdin, reads there what to hold, and responds once, when the sandbox is ready
//! or can't be created. From then on it is independent: it has its own session, and the process that started it may
//! die.

use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use saggar_domain::Problem;
use saggar_supervisor::control::{Description, Reply, Start};
use tokio::net::UnixStream;

use super::connection::{Connection, ControlError, Message};
use super::launch::{Launched, Launcher};
use crate::fail_point::pass;

/// Time limit of creating a sandbox.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Why there is no sandbox.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The supervisor refused.
    #[error("refused")]
    Refused(#[source] Problem),
    #[error("starting a supervisor")]
    Spawn(#[source] std::io::Error),
    /// It died or did not respond.
    #[error("the supervisor did not become ready")]
    Lost(#[source] ControlError),
}

/// Starts a supervisor and waits for its sandbox. If it isn't ready in time, it is killed together with its sandbox.
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

/// It lives on without us; if it ends first, its exit status is collected.
fn reap_later(mut supervisor: Box<dyn Launched>) {
    tokio::spawn(async move { supervisor.ended().await });
}

async fn end(mut supervisor: Box<dyn Launched>) {
    // After a refusal it cleans up and ends; a silent one is killed.
    if tokio::time::timeout(Duration::from_secs(5), supervisor.ended()).await.is_err() {
        supervisor.kill().await;
    }
}
