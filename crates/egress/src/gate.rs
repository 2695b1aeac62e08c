//! The gate: every TCP connection of the sandbox arrives here, whatever address it was meant for.
//!
//! A fake address leads back to the name that it was given for. Any other address is a literal, which only rules for addresses
//! allow. If the original destination can't be told, the connection is closed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use saggar_domain::net::{Destination, Host, Protocol, Refusal};
use tokio::net::{TcpListener, TcpStream};

use crate::http::nowhere;
use crate::link::Link;
use crate::listen;
use crate::names::is_fake;
use crate::passage::{self, Client};
use crate::record::{Asked, Record};
use crate::session::Shared;

/// Where a connection was meant to go before it was redirected.
pub trait OriginalDestination: Send + Sync + 'static {
    fn of(&self, stream: &TcpStream) -> io::Result<SocketAddr>;
}

impl<F: Fn(&TcpStream) -> io::Result<SocketAddr> + Send + Sync + 'static> OriginalDestination for F {
    fn of(&self, stream: &TcpStream) -> io::Result<SocketAddr> {
        self(stream)
    }
}

pub(crate) async fn serve(session: Arc<Shared>, listener: TcpListener, original: impl OriginalDestination) {
    let original = Arc::new(original);
    listen::serve(session, listener, |link, stream, _peer| {
        let original = Arc::clone(&original);
        async move {
            match destination(&link, &stream, &*original) {
                Ok(to) => passage::serve(link, Client::new(stream), to).await,
                Err((to, refusal)) => {
                    Record::new(&link, Arc::new(to), Asked::Connection(Protocol::Tcp)).deny(&refusal);
                }
            }
        }
    })
    .await;
}

fn destination(
    link: &Link,
    stream: &TcpStream,
    original: &impl OriginalDestination,
) -> Result<Destination, (Destination, Refusal)> {
    let literal = |address: SocketAddr| Destination { host: address.ip().to_canonical().into(), port: address.port() };
    let refuse =
        |address, message: &str, help: &str| Err((literal(address), Refusal::new("egress/destination", message, help)));
    let Ok(address) = original.of(stream) else {
        let refusal =
            Refusal::new("egress/destination", "the gate was dialled directly", "dial the destination itself");
        return Err(((*nowhere()).clone(), refusal));
    };
    if address.port() == 0 {
        return refuse(address, "there is no port 0", "use the server's port");
    }
    if !is_fake(address.ip()) {
        return Ok(literal(address));
    }
    match link.session().names.name_of(address.ip()) {
        Some(name) => Ok(Destination { host: Host::Name((*name).clone()), port: address.port() }),
        None => refuse(address, "no name has this address", "look the name up again"),
    }
}
