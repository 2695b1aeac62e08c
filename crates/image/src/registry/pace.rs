//! How slow a registry may be. Without a lowest rate, one that sends a byte now and then would keep an import for ever.
//!
//! Only the time counts that was spent waiting for the registry: writing the layers may take as long as it takes.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use saggar_domain::{Code, Problem};

use super::dial::Connection;

/// The lowest rate of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// What may be waited before anything has to come.
    pub grace: Duration,
    pub bytes_per_second: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { grace: Duration::from_secs(30), bytes_per_second: 8 << 10 }
    }
}

impl Pace {
    /// Whether this many bytes are too few for what was waited.
    fn is_too_slow(self, waited: Duration, bytes: u64) -> bool {
        let Some(over) = waited.checked_sub(self.grace) else { return false };
        over.as_micros() * u128::from(self.bytes_per_second) > u128::from(bytes) * 1_000_000
    }
}

/// A connection that fails when it is too slow.
pub(super) struct Paced {
    inner: Box<dyn Connection>,
    pace: Pace,
    waited: Duration,
    bytes: u64,
}

impl Paced {
    pub(super) fn new(inner: Box<dyn Connection>, pace: Pace) -> Self {
        Self { inner, pace, waited: Duration::ZERO, bytes: 0 }
    }
}

impl Read for Paced {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let began = Instant::now();
        let read = self.inner.read(buffer);
        self.waited += began.elapsed();
        self.bytes += read.as_ref().map_or(0, |count| *count as u64);
        if read.is_ok() && self.pace.is_too_slow(self.waited, self.bytes) {
            return Err(io::Error::other(Problem::new(
                Code::Stream,
                format!(
                    "the registry is too slow: {} bytes in {} seconds; the least is {} bytes a second",
                    self.bytes,
                    self.waited.as_secs(),
                    self.pace.bytes_per_second
                ),
                "try again later, or copy the image from another registry",
            )));
        }
        read
    }
}

impl Write for Paced {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.inner.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_too_slow_by_its_average_after_a_grace() {
        let pace = Pace { grace: Duration::from_secs(30), bytes_per_second: 1000 };
        for (seconds, bytes, expected) in [
            (0, 0, false),
            (30, 0, false),
            (31, 0, true),
            (31, 999, true),
            (31, 1000, false),
            (3630, 3_599_999, true),
            (3630, 3_600_000, false),
        ] {
            assert_eq!(pace.is_too_slow(Duration::from_secs(seconds), bytes), expected, "{seconds} {bytes}");
        }
    }
}
