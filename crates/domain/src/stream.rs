//! The two output streams of an exec, and places in them.
//!
//! A place is a number of bytes of each stream. It means the same to the supervisor that keeps the output, to the server and to a client
//! that comes back, so that each goes on exactly where it stopped.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::mode::choice;

choice!(
    /// One of the two output streams.
    OutputStream {
        /// Standard output, or the terminal.
        Stdout = "stdout",
        Stderr = "stderr",
    }
);

impl OutputStream {
    /// As descriptors are numbered: 1 or 2.
    pub const fn number(self) -> u8 {
        match self {
            Self::Stdout => 1,
            Self::Stderr => 2,
        }
    }

    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Stdout),
            2 => Some(Self::Stderr),
            _ => None,
        }
    }
}

/// How far both streams have been read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offsets {
    pub stdout: u64,
    pub stderr: u64,
}

impl Offsets {
    /// Reads `12-0`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let read = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        text.split_once('-')
            .and_then(|(stdout, stderr)| Some(Self { stdout: read(stdout)?, stderr: read(stderr)? }))
            .ok_or_else(|| {
                format!("{text:?} is not a place in a stream: write the offsets in stdout and stderr, such as 12-0")
            })
    }

    /// The place with this offset in one of the streams.
    #[must_use]
    pub fn with(self, stream: OutputStream, offset: u64) -> Self {
        match stream {
            OutputStream::Stdout => Self { stdout: offset, ..self },
            OutputStream::Stderr => Self { stderr: offset, ..self },
        }
    }

    /// The place after so many more bytes of one stream were read or passed over.
    #[must_use]
    pub fn after(self, stream: OutputStream, bytes: u64) -> Self {
        match stream {
            OutputStream::Stdout => self.with(stream, self.stdout.saturating_add(bytes)),
            OutputStream::Stderr => self.with(stream, self.stderr.saturating_add(bytes)),
        }
    }
}

impl fmt::Display for Offsets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.stdout, self.stderr)
    }
}

/// Where to begin in an exec's output. As text `start`, `now` or `12-0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Beginning {
    /// With the oldest output that is kept.
    #[default]
    Start,
    /// With what comes from now on.
    Now,
    /// After what has been read.
    Offsets(Offsets),
}

impl Beginning {
    /// Reads `start`, `now` or `12-0`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "start" => Ok(Self::Start),
            "now" => Ok(Self::Now),
            place => Offsets::parse(place).map(Self::Offsets),
        }
    }
}

impl fmt::Display for Beginning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("start"),
            Self::Now => f.write_str("now"),
            Self::Offsets(offsets) => offsets.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_and_prints() {
        let place = Offsets { stdout: 12, stderr: 0 };
        assert_eq!(Offsets::parse("12-0"), Ok(place));
        for text in ["start", "now", "12-0"] {
            assert_eq!(Beginning::parse(text).unwrap().to_string(), text);
        }
        for wrong in ["", "-", "12", "1-2-3", "+1-0", "1--1", " 1-0", "99999999999999999999-0"] {
            assert!(Beginning::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_place_moves_by_what_was_read_or_passed_over() {
        let after = Offsets { stdout: 1, stderr: 2 }.after(OutputStream::Stdout, 3).after(OutputStream::Stderr, 10);
        assert_eq!(after, Offsets { stdout: 4, stderr: 12 });
        assert_eq!(after.after(OutputStream::Stdout, u64::MAX).stdout, u64::MAX);
    }

    #[test]
    fn a_stream_has_the_number_of_its_descriptor() {
        for stream in OutputStream::ALL {
            assert_eq!(OutputStream::from_number(stream.number()), Some(*stream));
        }
        assert_eq!([0, 3].map(OutputStream::from_number), [None, None]);
    }
}
