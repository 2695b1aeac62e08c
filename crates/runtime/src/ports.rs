//! Ports of a sandbox: a byte stream to a program that listens on its loopback.

use saggar_domain::User;
use saggar_guest::PortPreface;
use saggar_supervisor::control::{Op, Target};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::sandboxes::Sandboxes;

/// Time limit of the connection inside: it goes to a loopback, which succeeds or fails at once.
const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// A connection to a program inside.
#[derive(Debug)]
pub struct OpenPort {
    pub stream: UnixStream,
    /// What the program is to get as `Host`, if the sandbox says so.
    pub host: Option<String>,
}

impl Sandboxes {
    pub async fn connect_port(&self, permit: &Permit) -> Result<OpenPort, Fault> {
        let Action::UsePort(id, port) = permit.action() else { return Err(Fault::WrongPermit) };
        let ingress = self.live(permit.project(), id).await?.ingress();
        if !ingress.allows(*port) {
            return Err(Fault::PortNotAllowed { id: id.clone(), port: *port });
        }
        let host = ingress.host.map(|mask| mask.for_port(*port));
        let mut stream = self.open_stream(permit.project(), id, Target::Port(*port), User::User).await?;
        let mut preface = [0; PortPreface::LEN];
        let read = tokio::time::timeout(CONNECT_TIMEOUT, stream.read_exact(&mut preface)).await;
        let closed = || Fault::PortClosed { id: id.clone(), port: *port };
        read.map_err(|_| closed())?.map_err(|_| closed())?;
        match PortPreface::decode(preface) {
            Ok(PortPreface::Connected) => Ok(OpenPort { stream, host }),
            Ok(PortPreface::Refused(_)) | Err(_) => Err(closed()),
        }
    }

    /// Records traffic on a port as activity, which only the server sees.
    pub async fn touch(&self, permit: &Permit) {
        if let Ok(id) = permit.sandbox() {
            // If the sandbox is gone, so is the traffic.
            let _ = self.question(permit.project(), id, Op::Touch).await;
        }
    }
}
