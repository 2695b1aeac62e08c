//! Types of settings: how each is parsed and formatted. Formatting and parsing again gives the same value.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use saggar_domain::net::{Rule, RuleError};
use saggar_domain::{ByteSize, Cpus, TemplateName, Timeout};
use saggar_runtime::runs::HttpRule;
use saggar_runtime::{ModuleName, RegistryRule};

/// Upper bound of every count, beyond any machine.
const COUNT_MAX: usize = 1_000_000;

/// A type that a setting can have.
pub(super) trait Value: Sized {
    fn read(text: &str) -> Result<Self, String>;

    fn show(&self) -> String;
}

impl Value for IpAddr {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| match text.parse::<SocketAddr>() {
            Ok(both) => format!(
                "{text:?} is an address with a port: give them apart, as address {} and port {}",
                both.ip(),
                both.port()
            ),
            Err(_) => format!("{text:?} is not an IP address, such as 127.0.0.1"),
        })
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// A port.
impl Value for u16 {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("{text:?} is not a port: a number up to 65535"))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for bool {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| format!("{text:?} is neither true nor false"))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// A count.
impl Value for usize {
    fn read(text: &str) -> Result<Self, String> {
        let count = text.parse().ok().filter(|count| *count <= COUNT_MAX);
        count.ok_or_else(|| format!("{text:?} is not a whole number up to {COUNT_MAX}"))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Duration {
    fn read(text: &str) -> Result<Self, String> {
        Timeout::parse(text).map(Timeout::duration)
    }

    fn show(&self) -> String {
        Timeout::millis(u64::try_from(self.as_millis()).unwrap_or(u64::MAX)).to_string()
    }
}

impl Value for ByteSize {
    fn read(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for PathBuf {
    fn read(text: &str) -> Result<Self, String> {
        let path = Self::from(text);
        if path.is_absolute() { Ok(path) } else { Err(format!("{text:?} is not an absolute path")) }
    }

    fn show(&self) -> String {
        self.display().to_string()
    }
}

/// Empty if there is none, as it is shown.
impl<V: Value> Value for Option<V> {
    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() { Ok(None) } else { V::read(text).map(Some) }
    }

    fn show(&self) -> String {
        self.as_ref().map(V::show).unwrap_or_default()
    }
}

/// Several values, separated by commas.
impl<V: Value> Value for Vec<V> {
    fn read(text: &str) -> Result<Self, String> {
        text.split(',').map(str::trim).filter(|one| !one.is_empty()).map(V::read).collect()
    }

    fn show(&self) -> String {
        self.iter().map(V::show).collect::<Vec<_>>().join(",")
    }
}

impl Value for TemplateName {
    fn read(text: &str) -> Result<Self, String> {
        Self::parse(text)
            .ok_or_else(|| format!("{text:?} is not the name of a template, such as python or python:3.12"))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for ModuleName {
    fn read(text: &str) -> Result<Self, String> {
        Self::parse(text)
            .ok_or_else(|| format!("{text:?} is not the name of a Python module, such as matplotlib.pyplot"))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Rule {
    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: RuleError| error.to_string())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Cpus {
    fn read(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for RegistryRule {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for HttpRule {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// A choice among a few words.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $crate::settings::value::Value for $name {
            fn read(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(format!("{text:?} is not one of: {}", [$($text),+].join(", "))),
                }
            }

            fn show(&self) -> String {
                match self { $(Self::$variant => $text,)+ }.to_owned()
            }
        }
    };
}

pub(super) use choice;
