//! Connections to a registry and to where it redirects.
//!
//! A registry that the user named may be anywhere, except at an address of a cloud's metadata service. What a registry
//! leads to may be on public addresses alone, unless the registry is on a special address itself: otherwise it could make
//! this host ask its neighbours. The address that is judged is the one that is dialled, so a name can't change in between.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use saggar_domain::net::AddressClass;
use saggar_domain::{Code, Problem};

const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;

/// Makes connections. On behalf of a client of a server, by the rules of its project.
pub trait Dial: Send + Sync {
    fn dial(&self, host: &str, port: u16, reach: Reach) -> Result<Dialled, Problem>;
}

/// What may be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The registry that the user named.
    Named,
    /// Something that the registry leads to.
    Led {
        /// Whether the registry itself is on a special address.
        is_registry_special: bool,
    },
}

pub struct Dialled {
    pub connection: Box<dyn Connection>,
    /// Of the address; `None` for a public one.
    pub class: Option<AddressClass>,
}

pub trait Connection: Read + Write + Send {}

impl<T: Read + Write + Send> Connection for T {}

/// Connects from this host.
#[derive(Clone, Copy, Debug)]
pub struct Direct {
    patience: Duration,
}

impl Direct {
    /// A peer that is silent for so long is given up.
    pub fn new(patience: Duration) -> Self {
        Self { patience }
    }
}

impl Dial for Direct {
    fn dial(&self, host: &str, port: u16, reach: Reach) -> Result<Dialled, Problem> {
        let fail = |why: String| {
            Problem::new(
                Code::Stream,
                format!("{host}:{port} can't be reached: {why}"),
                "check the name and the network, then try again",
            )
        };
        let addresses: Vec<SocketAddr> =
            (host, port).to_socket_addrs().map_err(|error| fail(error.to_string()))?.take(ADDRESSES_MAX).collect();
        let mut failure = fail("it has no address".into());
        for address in addresses {
            let class = match judge(host, address.ip(), reach) {
                Ok(class) => class,
                Err(refusal) => {
                    failure = refusal;
                    continue;
                }
            };
            let connected = TcpStream::connect_timeout(&address, CONNECT_PATIENCE).and_then(|stream| {
                stream.set_read_timeout(Some(self.patience))?;
                stream.set_write_timeout(Some(self.patience))?;
                Ok(stream)
            });
            match connected {
                Ok(stream) => return Ok(Dialled { connection: Box::new(stream), class }),
                Err(error) => failure = fail(error.kind().to_string()),
            }
        }
        Err(failure)
    }
}

/// The class of an address that may be dialled.
fn judge(host: &str, address: IpAddr, reach: Reach) -> Result<Option<AddressClass>, Problem> {
    let class = AddressClass::of(address);
    let is_allowed = match (class, reach) {
        (None, _) => true,
        (Some(AddressClass::Metadata), _) => false,
        (Some(_), Reach::Named) => true,
        (Some(_), Reach::Led { is_registry_special }) => is_registry_special,
    };
    match class {
        Some(class) if !is_allowed => Err(Problem::new(
            Code::InvalidImage,
            format!("the registry leads to {host} at {address}, {}, which is refused", class.describe()),
            "don't use this registry, or copy the image to one of your own; a registry on an internal address may lead to internal addresses",
        )),
        _ => Ok(class),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_leads_to_special_addresses_only_if_it_is_on_one() {
        let public = Reach::Led { is_registry_special: false };
        let special = Reach::Led { is_registry_special: true };
        for (address, named, from_public, from_special) in [
            ("8.8.8.8", true, true, true),
            ("127.0.0.1", true, false, true),
            ("10.1.2.3", true, false, true),
            ("::1", true, false, true),
            ("::ffff:127.0.0.1", true, false, true),
            ("169.254.1.1", true, false, true),
            ("169.254.169.254", false, false, false),
        ] {
            let judged = |reach| judge("a.b", address.parse().unwrap(), reach).is_ok();
            assert_eq!(
                (judged(Reach::Named), judged(public), judged(special)),
                (named, from_public, from_special),
                "{address}"
            );
        }
    }
}
