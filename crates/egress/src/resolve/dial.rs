//! Opens a connection to a destination, if the rules allow it and the address behind it.
//!
//! A name is resolved once per connection; each of its addresses is checked, and only those that passed are dialled. So
//! a name that answers differently the next time, or with a private address among public ones, gains nothing.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use saggar_domain::net::{Destination, Host, HostName, Passage, Refusal, Rules};
use saggar_jail::Rule;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::resolve::race;
use crate::resolve::upstream::{LookupError, Upstream};
use crate::resolve::wildcard::labels_below_wildcard;

/// For resolving and connecting together.
pub const DEADLINE: Duration = Duration::from_secs(15);
/// Labels that a name may have below a wildcard: what is more than this is data, not a host.
const LABELS_MAX: usize = 8;

/// One per session.
#[derive(Debug)]
pub struct Dialer {
    upstream: Upstream,
}

#[derive(Debug)]
pub struct Dialed {
    pub stream: TcpStream,
    pub address: SocketAddr,
}

#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// By the rules. The address is there if it was the reason.
    #[error("{refusal}")]
    Refused { refusal: Box<Refusal>, address: Option<IpAddr> },
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error("connecting to {to}: {source}")]
    Connect { to: Destination, source: io::Error },
    #[error("{to} did not answer within {} s", .within.as_secs())]
    TooLate { to: Destination, within: Duration },
}

impl Dialer {
    pub fn new(upstream: Upstream) -> Self {
        Self { upstream }
    }

    /// Decides about the connection once more, since rules may have changed since the client was let in. Dropping the
    /// future closes what was opened.
    pub async fn dial(&self, to: &Destination, rules: &Rules, within: Duration) -> Result<Dialed, DialError> {
        match rules.connection(to) {
            Passage::Denied(refusal) => return Err(refused(refusal, None)),
            Passage::Inspect | Passage::Tunnel { .. } | Passage::Raw { .. } => {}
        }
        match timeout(within, self.resolve_and_connect(to, rules)).await {
            Ok(dialed) => dialed,
            Err(_elapsed) => Err(DialError::TooLate { to: to.clone(), within }),
        }
    }

    async fn resolve_and_connect(&self, to: &Destination, rules: &Rules) -> Result<Dialed, DialError> {
        let candidates = match &to.host {
            Host::Name(name) => {
                check_name(name, rules)?;
                self.upstream.lookup(name).await?
            }
            Host::V4(address) => vec![IpAddr::V4(*address)],
            Host::V6(address) => vec![IpAddr::V6(*address)],
        };
        let checked = check_addresses(to, &candidates, rules)?;
        let connected = race::connect(&checked, to.port).await;
        let (stream, address) = connected.map_err(|source| DialError::Connect { to: to.clone(), source })?;
        // Requests and answers are small and come in turns; a failure only costs time.
        let _ = stream.set_nodelay(true);
        Ok(Dialed { stream, address })
    }
}

fn check_name(name: &HostName, rules: &Rules) -> Result<(), DialError> {
    if !rules.resolves(name) {
        let message = format!("no rule allows {name} to be looked up");
        return Err(refused(Refusal::new("egress/default", message, "allow the name"), None));
    }
    if labels_below_wildcard(rules, name) > LABELS_MAX {
        let message = format!("{name} has more than {LABELS_MAX} labels below a wildcard, so it may carry data");
        return Err(refused(Refusal::new("egress/wildcard-labels", message, "allow the exact name"), None));
    }
    Ok(())
}

/// The addresses that may be dialled. If none may, the reason why the first may not.
fn check_addresses(to: &Destination, candidates: &[IpAddr], rules: &Rules) -> Result<Vec<IpAddr>, DialError> {
    let mut allowed = Vec::new();
    let mut first_refusal = None;
    for &address in candidates {
        match rules.address(to, address) {
            _ if !Rule::EgressAddresses.is_on() => allowed.push(address),
            Ok(()) => allowed.push(address),
            Err(refusal) => {
                first_refusal.get_or_insert((refusal, address));
            }
        }
    }
    match first_refusal {
        Some((refusal, address)) if allowed.is_empty() => Err(refused(refusal, Some(address))),
        _ => Ok(allowed),
    }
}

fn refused(refusal: Refusal, address: Option<IpAddr>) -> DialError {
    DialError::Refused { refusal: Box::new(refusal), address }
}
