//! The way to the models of the server, which programs know as `model.internal`.
//!
//! Each connection is made for one sandbox, and the server is told which. There is no other way: when the server is gone, calls fail
//! until another one has led the way to itself.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use saggar_domain::SandboxId;
use saggar_supervisor::egress::call_models;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Models {
    /// The server's end of it takes connections. Only its readiness is waited for: the runtime has no type for sockets of packets.
    way: Arc<Mutex<Option<Arc<UnixStream>>>>,
}

/// The models, for one sandbox.
#[derive(Clone, Debug)]
pub struct ModelsOf {
    models: Models,
    sandbox: SandboxId,
}

impl Models {
    /// From now on. The socket must not block.
    pub fn lead_to(&self, socket: OwnedFd) -> io::Result<()> {
        let socket = Arc::new(UnixStream::from_std(socket.into())?);
        *self.way.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
        Ok(())
    }

    pub fn of(&self, sandbox: SandboxId) -> ModelsOf {
        ModelsOf { models: self.clone(), sandbox }
    }
}

impl ModelsOf {
    /// A connection to the server. Waits while the server has many to take. May be cancelled at any time.
    pub(crate) async fn connect(&self) -> io::Result<UnixStream> {
        let way = self.models.way.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let way = way.ok_or(io::ErrorKind::NotConnected)?;
        let call = || Ok(call_models(way.as_fd(), &self.sandbox)?);
        let stream = way.async_io(Interest::WRITABLE, call).await?;
        UnixStream::from_std(stream.into())
    }
}
