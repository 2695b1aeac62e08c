//! Times by the monotonic clock, which can't be set.
//!
//! Leases use it. It stops while the host is suspended, as every process on the host does, so a lease doesn't expire
//! while its holder sleeps. It restarts at each boot, and means nothing on another host.

use std::time::Duration;

/// Milliseconds of the host's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uptime(u64);

/// Fits a signed 64-bit column.
const MILLIS_MAX: u64 = i64::MAX as u64;

impl Uptime {
    pub const fn from_millis(millis: u64) -> Self {
        Self(if millis < MILLIS_MAX { millis } else { MILLIS_MAX })
    }

    pub fn as_millis(self) -> u64 {
        self.0
    }

    pub fn after(self, span: Duration) -> Self {
        Self::from_millis(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(MILLIS_MAX)))
    }
}
