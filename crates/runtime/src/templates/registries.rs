//! Which registries an import on behalf of a client may reach.
//!
//! The operator lists them as network rules. Every connection is checked by the same parser and the same address check
//! as the network of a sandbox: the registry itself, its token service, and everything that it redirects to. So private
//! addresses, this host and a cloud's metadata service are out of reach in every notation, unless a rule names the
//! address itself.

use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

use saggar_domain::net::{AddressClass, Destination, EgressDraft, Passage, Rule, Rules, Wire, parse_authority};
use saggar_domain::{Code, Problem};
use saggar_image::{Dial, Dialled, Reach};

const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// How long a registry may be silent.
const PATIENCE: Duration = Duration::from_secs(30);
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;

/// A rule of the operator: `HOST`, `HOST:PORT`, `http://HOST:PORT` for a registry without TLS on a loopback address, or
/// a named set such as `@docker`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryRule(Rule);

impl FromStr for RegistryRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rule: Rule = text.parse().map_err(|error: saggar_domain::net::RuleError| error.to_string())?;
        // Connections are checked here, not requests: a rule about methods or paths would allow more than it says.
        let shown = rule.to_string();
        let host = shown.split_once("://").map_or(shown.as_str(), |(_, rest)| rest);
        if !shown.starts_with('@') && (host.contains('/') || shown.contains(' ')) {
            return Err(format!("{text:?} has a path or a method: name a registry by its host and port alone"));
        }
        Ok(Self(rule))
    }
}

impl fmt::Display for RegistryRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Connects to what the rules allow.
#[derive(Clone, Debug)]
pub(super) struct Registries {
    rules: Rules,
}

impl Registries {
    pub(super) fn new(allowed: &[RegistryRule], own: Vec<IpAddr>) -> Result<Self, Problem> {
        let allow = allowed.iter().map(|rule| rule.0.clone()).collect();
        Ok(Self { rules: Rules::new(EgressDraft::of(allow, Vec::new()))?.with_own_addresses(own) })
    }

    /// Fails if the registry that a client named can't be reached.
    pub(super) fn check(&self, host: &str, port: u16) -> Result<Destination, Problem> {
        let to = destination(host, port)?;
        match self.rules.connection(&to) {
            Passage::Denied(_) => Err(denied(&to)),
            Passage::Inspect | Passage::Tunnel { .. } | Passage::Raw { .. } => Ok(to),
        }
    }

    /// Whether the rules say that this registry has no TLS.
    pub(super) fn is_plain(&self, to: &Destination) -> bool {
        self.rules.wire(to) == Wire::Http
    }
}

impl Dial for Registries {
    fn dial(&self, host: &str, port: u16, _reach: Reach) -> Result<Dialled, Problem> {
        let to = self.check(host, port)?;
        let fail = |why: &dyn fmt::Display| {
            Problem::new(Code::Stream, format!("{to} can't be reached: {why}"), "check the name, then try again")
        };
        let addresses: Vec<SocketAddr> =
            (host, port).to_socket_addrs().map_err(|error| fail(&error.kind()))?.take(ADDRESSES_MAX).collect();
        let mut failure = fail(&"it has no address");
        for address in addresses {
            // The checked address is the one that is dialled, so a name can't change in between.
            if self.rules.address(&to, address.ip()).is_err() {
                failure = denied(&to);
                continue;
            }
            let connected = TcpStream::connect_timeout(&address, CONNECT_PATIENCE).and_then(|stream| {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                Ok(stream)
            });
            match connected {
                Ok(stream) => {
                    return Ok(Dialled { connection: Box::new(stream), class: AddressClass::of(address.ip()) });
                }
                Err(error) => failure = fail(&error.kind()),
            }
        }
        Err(failure)
    }
}

fn destination(host: &str, port: u16) -> Result<Destination, Problem> {
    let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    parse_authority(authority.as_bytes(), None).map_err(|error| {
        Problem::new(
            Code::InvalidValue,
            format!("{host:?} is not the host of a registry: {error}"),
            "write it as docker://REGISTRY/REPOSITORY:TAG",
        )
    })
}

/// The same for every reason, so that nothing is learned about the network of the server.
fn denied(to: &Destination) -> Problem {
    Problem::new(
        Code::UnsupportedCapability,
        format!("this server does not fetch images from {to}"),
        "upload the image instead, or ask the operator for the setting `import_registries`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registries(rules: &[&str]) -> Registries {
        let rules: Vec<RegistryRule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        Registries::new(&rules, vec!["203.0.113.9".parse().unwrap()]).unwrap()
    }

    #[test]
    fn only_what_a_rule_names_is_reached() {
        let some = registries(&["ghcr.io", "*.example.com", "127.0.0.1:5000", "@docker"]);
        for (host, port, is_allowed) in [
            ("ghcr.io", 443, true),
            ("GHCR.io", 443, true),
            ("ghcr.io", 5000, false),
            ("registry.example.com", 443, true),
            ("registry-1.docker.io", 443, true),
            ("auth.docker.io", 443, true),
            ("127.0.0.1", 5000, true),
            ("127.0.0.1", 5001, false),
            ("127.1", 5000, false),
            ("2130706433", 5000, false),
            ("0x7f000001", 5000, false),
            ("::ffff:127.0.0.1", 5000, false),
            ("::1", 5000, false),
            ("localhost", 5000, false),
            ("169.254.169.254", 80, false),
            ("10.0.0.1", 443, false),
            ("203.0.113.9", 443, false),
            ("quay.io", 443, false),
        ] {
            assert_eq!(some.check(host, port).is_ok(), is_allowed, "{host}:{port}");
        }
        assert!(registries(&[]).check("ghcr.io", 443).is_err(), "by default nothing is reached");
    }

    #[test]
    fn a_name_that_is_allowed_leads_to_no_special_address() {
        // The name resolves to a loopback address by the hosts file of every machine.
        let some = registries(&["localhost:9"]);
        let problem = some.dial("localhost", 9, Reach::Named).err().expect("it is refused");
        assert_eq!(problem.message, "this server does not fetch images from localhost:9");
    }

    #[test]
    fn rules_about_requests_are_refused() {
        for (text, is_rule) in [
            ("ghcr.io", true),
            ("@docker", true),
            ("http://127.0.0.1:5000", true),
            ("ghcr.io/v2/acme/**", false),
            ("GET ghcr.io", false),
            ("@nothing-such", true),
            ("", false),
        ] {
            assert_eq!(text.parse::<RegistryRule>().is_ok(), is_rule, "{text}");
        }
        assert!(Registries::new(&["@nothing-such".parse().unwrap()], Vec::new()).is_err());
    }

    #[test]
    fn a_registry_without_tls_is_one_that_a_rule_says_so_of() {
        let some = registries(&["http://127.0.0.1:5000", "ghcr.io"]);
        let plain = |host, port| some.is_plain(&some.check(host, port).unwrap());
        assert!(plain("127.0.0.1", 5000));
        assert!(!plain("ghcr.io", 443));
    }
}
