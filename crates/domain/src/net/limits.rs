//! How much a sandbox may use of its network: bytes, connections and requests, altogether and with each host.

use serde::{Deserialize, Serialize};

use crate::problem::{Code, Problem};
use crate::quantity::{ByteSize, Count};
use crate::table::{one_of, only_from_a_table};

/// Connections of a sandbox at once, unless it asks for another number.
pub const CONNECTIONS: u64 = 1024;
/// Connections to one host at once, unless it asks for another number.
pub const CONNECTIONS_PER_HOST: u64 = 512;
/// What can be asked for at most. Each connection takes memory and descriptors of the egress process.
const CONNECTIONS_MAX: u64 = 4096;
const CONNECTIONS_MIN: u64 = 2;
const REQUESTS_MAX: u64 = 1_000_000;

/// What was asked for. Where nothing was, bytes and requests have no limit, and connections the defaults above.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct EgressLimits {
    /// Bytes in both directions, over the sandbox's whole life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<ByteSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_host: Option<ByteSize>,
    /// Connections at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<Count>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_per_host: Option<Count>,
    /// Requests, and connections that pass unread: so many at once, and as many more in each further minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<Count>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute_per_host: Option<Count>,
}

only_from_a_table!(EgressLimits);

/// The most that an operator lets a sandbox ask for, and what it gets if it asks for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressMaxima {
    pub bytes: Option<ByteSize>,
    pub connections: Option<Count>,
    pub requests_per_minute: Option<Count>,
}

impl EgressLimits {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Fails if both give different values for a limit.
    pub fn merge(self, other: Self) -> Result<Self, Problem> {
        Ok(Self {
            bytes: one_of("egress.limits.bytes", self.bytes, other.bytes)?,
            bytes_per_host: one_of("egress.limits.bytes_per_host", self.bytes_per_host, other.bytes_per_host)?,
            connections: one_of("egress.limits.connections", self.connections, other.connections)?,
            connections_per_host: one_of(
                "egress.limits.connections_per_host",
                self.connections_per_host,
                other.connections_per_host,
            )?,
            requests_per_minute: one_of(
                "egress.limits.requests_per_minute",
                self.requests_per_minute,
                other.requests_per_minute,
            )?,
            requests_per_minute_per_host: one_of(
                "egress.limits.requests_per_minute_per_host",
                self.requests_per_minute_per_host,
                other.requests_per_minute_per_host,
            )?,
        })
    }

    /// The lower of both, for each limit.
    pub fn within(self, other: &Self) -> Self {
        Self {
            bytes: lower(self.bytes, other.bytes),
            bytes_per_host: lower(self.bytes_per_host, other.bytes_per_host),
            connections: lower(self.connections, other.connections),
            connections_per_host: lower(self.connections_per_host, other.connections_per_host),
            requests_per_minute: lower(self.requests_per_minute, other.requests_per_minute),
            requests_per_minute_per_host: lower(self.requests_per_minute_per_host, other.requests_per_minute_per_host),
        }
    }

    /// Fills in the operator's maxima where nothing was asked for. More than a maximum is refused.
    pub fn under(self, most: &EgressMaxima) -> Result<Self, Problem> {
        // A maximum above the default is only for those who ask.
        let connections = most.connections.filter(|most| *most < Count::new(CONNECTIONS));
        Ok(Self {
            bytes: under("bytes", self.bytes, most.bytes, most.bytes)?,
            connections: under("connections", self.connections, most.connections, connections)?,
            requests_per_minute: under(
                "requests_per_minute",
                self.requests_per_minute,
                most.requests_per_minute,
                most.requests_per_minute,
            )?,
            ..self
        })
    }

    /// Refuses values that no sandbox can have.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        let bytes = |size: Option<ByteSize>| size.map(ByteSize::bytes);
        let count = |count: Option<Count>| count.map(Count::get);
        for (name, value, least, most) in [
            ("bytes", bytes(self.bytes), 1, u64::MAX),
            ("bytes_per_host", bytes(self.bytes_per_host), 1, u64::MAX),
            // The test of the network at its start opens one connection while the last one is being closed.
            ("connections", count(self.connections), CONNECTIONS_MIN, CONNECTIONS_MAX),
            ("connections_per_host", count(self.connections_per_host), 1, CONNECTIONS_MAX),
            ("requests_per_minute", count(self.requests_per_minute), 1, REQUESTS_MAX),
            ("requests_per_minute_per_host", count(self.requests_per_minute_per_host), 1, REQUESTS_MAX),
        ] {
            match value {
                Some(0) => {
                    return Err(Problem::new(
                        Code::InvalidValue,
                        format!("the network limit {name} is 0, which would allow nothing"),
                        "leave the limit out, or use a network without rules: it allows nothing",
                    ));
                }
                Some(value) if value < least || value > most => {
                    return Err(Problem::new(
                        Code::InvalidValue,
                        format!("the network limit {name} of {value} is out of range"),
                        format!("choose a value from {least} to {most}"),
                    ));
                }
                Some(_) | None => {}
            }
        }
        Ok(())
    }
}

fn lower<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

fn under<T: Ord + std::fmt::Display>(
    name: &str,
    asked: Option<T>,
    most: Option<T>,
    otherwise: Option<T>,
) -> Result<Option<T>, Problem> {
    match (asked, most) {
        (Some(asked), Some(most)) if asked > most => Err(Problem::new(
            Code::InvalidValue,
            format!("the network limit {name} of {asked} is above this server's maximum of {most}"),
            format!("ask for at most {most}, or leave it out; the operator can raise egress_{name}_max"),
        )),
        (Some(asked), _) => Ok(Some(asked)),
        (None, _) => Ok(otherwise),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(json: &str) -> EgressLimits {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn values_that_no_sandbox_can_have_are_refused() {
        for wrong in [
            r#"{"bytes": 0}"#,
            r#"{"bytes_per_host": "0K"}"#,
            r#"{"connections": 0}"#,
            r#"{"connections": 1}"#,
            r#"{"connections": 4097}"#,
            r#"{"connections_per_host": 4097}"#,
            r#"{"requests_per_minute": 0}"#,
            r#"{"requests_per_minute_per_host": 1000001}"#,
        ] {
            assert_eq!(limits(wrong).check().unwrap_err().code, Code::InvalidValue, "{wrong}");
        }
        assert_eq!(limits(r#"{"bytes": 1, "connections": 4096, "requests_per_minute": 1}"#).check(), Ok(()));
        assert!(serde_json::from_str::<EgressLimits>(r#"{"byte": 1}"#).is_err());
    }

    #[test]
    fn an_operators_maximum_is_the_most_and_the_default() {
        let most = EgressMaxima {
            bytes: Some(ByteSize::mebibytes(1)),
            connections: Some(Count::new(8)),
            requests_per_minute: Some(Count::new(60)),
        };
        let filled = r#"{"bytes": "1M", "connections": 8, "requests_per_minute": 60}"#;
        assert_eq!(limits("{}").under(&most), Ok(limits(filled)));
        let less = r#"{"bytes": "1K", "connections": 2, "requests_per_minute": 6, "bytes_per_host": 5}"#;
        assert_eq!(limits(less).under(&most), Ok(limits(less)));
        for (more, named) in [
            (r#"{"bytes": "2M"}"#, "egress_bytes_max"),
            (r#"{"connections": 9}"#, "egress_connections_max"),
            (r#"{"requests_per_minute": 61}"#, "egress_requests_per_minute_max"),
        ] {
            let refused = limits(more).under(&most).unwrap_err();
            assert!(refused.help.contains(named), "{}", refused.help);
        }
        // A maximum above the default raises no default.
        let wide = EgressMaxima { connections: Some(Count::new(4000)), ..EgressMaxima::default() };
        assert_eq!(limits("{}").under(&wide), Ok(EgressLimits::default()));
        assert_eq!(limits(r#"{"connections": 4000}"#).under(&wide), Ok(limits(r#"{"connections": 4000}"#)));
    }

    #[test]
    fn the_lower_one_holds() {
        let both = limits(r#"{"bytes": 10, "connections": 3}"#).within(&limits(r#"{"bytes": 5, "bytes_per_host": 2}"#));
        assert_eq!(both, limits(r#"{"bytes": 5, "bytes_per_host": 2, "connections": 3}"#));
    }
}
