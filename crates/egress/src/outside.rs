//! Connections to servers outside for this program itself: the same resolver, checked dial and strict TLS that sandboxes get.
//!
//! For code that acts on behalf of an agent without being in its sandbox, such as a tool of a run.

mod address;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use saggar_domain::net::{Destination, Refusal, Rules};
use saggar_supervisor::egress::Upstream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};

use crate::resolve::{self, DialError, Dialer};
use crate::tls::{self, Roots, client_configs};

pub use address::{AddressError, HttpAddress, own_networks};

/// A way to servers. Its cache of names is its own.
#[derive(Debug)]
pub struct Outside {
    dialer: Dialer,
    tls: Arc<ClientConfig>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Security {
    Plain,
    Tls,
}

pub struct Connection {
    pub stream: Box<dyn Stream>,
    /// The address that was dialled. The rules allow it.
    pub address: IpAddr,
}

pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// In every case nothing was sent to the server but a TLS handshake.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{refusal}")]
    Refused { refusal: Box<Refusal>, address: Option<IpAddr> },
    /// The server can't be trusted.
    #[error("{0}")]
    Tls(Refusal),
    #[error(transparent)]
    Dial(DialError),
    #[error("{0} did not complete the TLS handshake in time")]
    Handshake(Destination),
}

impl Outside {
    pub fn new(upstream: Upstream, roots: &Roots) -> Result<Self, rustls::Error> {
        let Upstream { servers, hosts, own: _ } = upstream;
        let dialer = Dialer::new(resolve::Upstream::new(servers, hosts));
        Ok(Self { dialer, tls: client_configs(roots)?.http1 })
    }

    /// Connects to an address of `to` that the rules allow. Over TLS it offers HTTP/1.1. Dropping the future closes what was
    /// opened.
    pub async fn connect(
        &self,
        to: &Destination,
        rules: &Rules,
        security: Security,
        within: Duration,
    ) -> Result<Connection, ConnectError> {
        let deadline = Instant::now() + within;
        let dialled = self.dialer.dial(to, rules, within).await.map_err(|error| match error {
            DialError::Refused { refusal, address } => ConnectError::Refused { refusal, address },
            other => ConnectError::Dial(other),
        })?;
        let address = dialled.address.ip();
        let stream: Box<dyn Stream> = match security {
            Security::Plain => Box::new(dialled.stream),
            Security::Tls => match timeout_at(deadline, tls::connect(&self.tls, to, dialled.stream)).await {
                Ok(connected) => Box::new(connected.map_err(ConnectError::Tls)?),
                Err(_elapsed) => return Err(ConnectError::Handshake(to.clone())),
            },
        };
        Ok(Connection { stream, address })
    }
}
