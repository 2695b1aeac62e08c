//! Connections of sandboxes to models: led to this process, if it has any, by each egress process that it starts or adopts.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use saggar_domain::{Problem, SandboxId};
use saggar_supervisor::egress::{model_sockets, next_model_caller};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::{Link, Service, blocking, failed};
use crate::models::ModelConnection;

/// Connections that wait to be served. More wait in the egress process.
const WAITING_MAX: usize = 64;

impl Service {
    /// Takes them from now on. Processes that are there already are not told; so call it first.
    pub(crate) fn lead_models_here(&self) -> mpsc::Receiver<ModelConnection> {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let is_first = self.inner.models.set(sender).is_ok();
        debug_assert!(is_first, "models are served in one place");
        receiver
    }

    /// Tells a process that models are here, if they are.
    pub(super) async fn lead_models(&self, link: &Arc<Link>) -> Result<(), Problem> {
        let Some(models) = self.inner.models.get() else { return Ok(()) };
        if !link.management().leads_models {
            tracing::warn!("the egress process is of a version without models; its sandboxes can call none");
            return Ok(());
        }
        let (ours, theirs) = model_sockets().map_err(|errno| failed(&errno))?;
        let link = Arc::clone(link);
        blocking(move || link.management().lead_models(theirs.as_fd())).await??;
        let socket = UnixStream::from_std(ours.into()).map_err(|error| failed(&error.kind()))?;
        tokio::spawn(take(socket, models.clone()));
        Ok(())
    }
}

/// Until the egress process is gone, or leads models elsewhere.
async fn take(socket: UnixStream, models: mpsc::Sender<ModelConnection>) {
    // The runtime has no type for sockets of packets, and needs none: only its readiness is waited for.
    let next = || Ok(next_model_caller(socket.as_fd())?.ok_or(Errno::PIPE)?);
    loop {
        let (sandbox, stream): (SandboxId, OwnedFd) = match socket.async_io(Interest::READABLE, next).await {
            Ok(arrived) => arrived,
            // Something that is no connection: it is gone, and the next one may be one.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BADMSG) => continue,
            Err(_) => return,
        };
        let Ok(stream) = UnixStream::from_std(stream.into()) else { continue };
        if models.send((sandbox, stream)).await.is_err() {
            return;
        }
    }
}
