//! Points in time on the clock that counts from boot and continues while the host sleeps, so that deadlines hold.

use std::ops::Add;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Duration);

impl Moment {
    pub(crate) fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        Self(Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
    }

    /// On the same clock.
    pub(crate) fn from_nanos(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }

    /// Zero if `earlier` is in the future.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// Saturates at the end of time.
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }
}

/// The wall clock, in milliseconds since 1970: for display, never for deadlines.
pub(crate) fn wall_ms() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

#[cfg(test)]
impl Moment {
    pub(crate) fn at(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }
}
