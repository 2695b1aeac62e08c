//! Signals by name, as on any shell's command line, and who gets one.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::mode::choice;

/// Linux's numbers; the same on every architecture this runs on.
const NAMES: &[(&str, u8)] = &[
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("PWR", 30),
    ("SYS", 31),
];
/// The last real-time signal.
const NUMBER_MAX: u8 = 64;

/// A signal of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(u8);

impl Signal {
    /// Please stop.
    pub const TERM: Self = Self(15);
    /// Stop now.
    pub const KILL: Self = Self(9);
    /// What Ctrl-C sends.
    pub const INT: Self = Self(2);

    pub const fn number(self) -> u8 {
        self.0
    }

    pub fn from_number(number: u8) -> Option<Self> {
        (1..=NUMBER_MAX).contains(&number).then_some(Self(number))
    }

    /// Reads `TERM`, `SIGTERM` or `15`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bare = text.strip_prefix("SIG").unwrap_or(text);
        let by_name = NAMES.iter().find(|(name, _)| *name == bare).map(|(_, number)| Self(*number));
        by_name
            .or_else(|| text.parse().ok().and_then(Self::from_number))
            .ok_or_else(|| format!("{text:?} is not a signal: write a name such as TERM or KILL, or a number up to 64"))
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for Signal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Signal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

choice!(
    /// Who gets a signal.
    #[derive(Default)]
    SignalScope {
        /// Every process that descends from the exec, daemonised ones too.
        #[default]
        Tree = "tree",
        /// The program's own process group.
        Group = "group",
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_read_and_print() {
        for (text, number, name) in
            [("TERM", 15, "TERM"), ("SIGKILL", 9, "KILL"), ("2", 2, "INT"), ("64", 64, "64"), ("SYS", 31, "SYS")]
        {
            let signal = Signal::parse(text).unwrap();
            assert_eq!((signal.number(), signal.to_string().as_str()), (number, name));
        }
        for wrong in ["", "0", "65", "-9", "SIG", "SIG9", "term", "RTMIN"] {
            assert!(Signal::parse(wrong).is_err(), "{wrong}");
        }
    }
}
