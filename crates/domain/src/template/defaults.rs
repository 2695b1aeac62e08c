//! What a template says about the programs that run in it. Every value is the image author's, so all are bounded.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::mode::choice;
use crate::path::GuestPath;

/// Maximum number of entries in each list.
const ENTRIES_MAX: usize = 1024;
/// Maximum length of one text: the kernel's own limit for an argument.
const TEXT_LEN_MAX: usize = 128 * 1024 - 1;
/// Maximum length of a user.
const USER_LEN_MAX: usize = 256;

/// Used where a spec says nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Defaults {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<GuestPath>,
    /// A name or number of the template's own users, or `USER:GROUP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ExposedPort>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// A line for a shell: what a server starts in each new sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// A line for a shell: succeeds once what was started is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
}

impl Defaults {
    /// Checks every value.
    pub fn check(self) -> Result<Self, String> {
        for (what, map) in [("environment", &self.env), ("labels", &self.labels)] {
            check_count(what, map.len())?;
            for (name, value) in map {
                check_text(what, name)?;
                check_text(what, value)?;
            }
        }
        if let Some(wrong) = self.env.keys().find(|name| name.is_empty() || name.contains('=')) {
            return Err(format!("the environment has a variable named {wrong:?}"));
        }
        for (what, words) in [("entrypoint", &self.entrypoint), ("command", &self.command)] {
            check_count(what, words.len())?;
            words.iter().try_for_each(|word| check_text(what, word))?;
        }
        check_count("exposed ports", self.ports.len())?;
        for (what, line) in [("start command", &self.start), ("ready command", &self.ready)] {
            line.iter().try_for_each(|line| check_text(what, line))?;
        }
        if let Some(user) = &self.user {
            let is_user = (1..=USER_LEN_MAX).contains(&user.len())
                && user.chars().all(|c| !c.is_control() && !c.is_whitespace() && c != '/');
            if !is_user {
                return Err(format!("{user:?} is not a user"));
            }
        }
        Ok(self)
    }
}

fn check_count(what: &str, count: usize) -> Result<(), String> {
    if count > ENTRIES_MAX {
        Err(format!("the {what} has {count} entries; the maximum is {ENTRIES_MAX}"))
    } else {
        Ok(())
    }
}

fn check_text(what: &str, text: &str) -> Result<(), String> {
    if text.len() > TEXT_LEN_MAX || text.contains('\0') {
        return Err(format!("the {what} has an entry with a NUL byte or more than {TEXT_LEN_MAX} bytes"));
    }
    Ok(())
}

impl<'de> Deserialize<'de> for Defaults {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, default)]
        #[derive(Default)]
        struct Raw {
            env: BTreeMap<String, String>,
            cwd: Option<GuestPath>,
            user: Option<String>,
            entrypoint: Vec<String>,
            command: Vec<String>,
            ports: Vec<ExposedPort>,
            labels: BTreeMap<String, String>,
            start: Option<String>,
            ready: Option<String>,
        }
        let Raw { env, cwd, user, entrypoint, command, ports, labels, start, ready } = Raw::deserialize(deserializer)?;
        let defaults = Self { env, cwd, user, entrypoint, command, ports, labels, start, ready };
        defaults.check().map_err(de::Error::custom)
    }
}

choice!(
    PortProtocol {
        Tcp = "tcp",
        Udp = "udp",
        Sctp = "sctp",
    }
);

/// A port that programs of a template usually listen on: `80/tcp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExposedPort {
    pub port: u16,
    pub protocol: PortProtocol,
}

impl ExposedPort {
    /// Without a protocol it is TCP.
    pub fn parse(text: &str) -> Option<Self> {
        let (port, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| is_number && *port != 0)?;
        Some(Self { port, protocol: PortProtocol::parse(protocol)? })
    }
}

impl fmt::Display for ExposedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.port, self.protocol)
    }
}

impl Serialize for ExposedPort {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ExposedPort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom(format!("{text:?} is not a port such as 80/tcp")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_bounds_are_refused() {
        let text = |json: &str| serde_json::from_str::<Defaults>(json).map_err(|error| error.to_string());
        assert_eq!(text("{}"), Ok(Defaults::default()));
        assert!(text(r#"{"user": "app:1000", "cwd": "/srv", "ports": ["80", "53/udp"], "env": {"A": ""}}"#).is_ok());
        let many = format!(r#"{{"command": [{}"x"]}}"#, r#""x","#.repeat(1024));
        let long = format!(r#"{{"labels": {{"x": "{}"}}}}"#, "x".repeat(TEXT_LEN_MAX + 1));
        for wrong in [
            r#"{"user": ""}"#,
            r#"{"user": "a b"}"#,
            r#"{"user": "../x"}"#,
            r#"{"cwd": "srv"}"#,
            r#"{"env": {"A=B": "x"}}"#,
            r#"{"env": {"": "x"}}"#,
            "{\"env\": {\"A\": \"\\u0000\"}}",
            r#"{"ports": ["0"]}"#,
            r#"{"ports": ["65536/tcp"]}"#,
            r#"{"ports": ["+80/tcp"]}"#,
            r#"{"ports": ["80/icmp"]}"#,
            r#"{"shell": []}"#,
            &many,
            &long,
        ] {
            assert!(text(wrong).is_err(), "{}", &wrong[..wrong.len().min(80)]);
        }
    }
}
