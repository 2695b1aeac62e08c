//! Moments by a clock that nobody can set.
//!
//! Leases are judged by it. It stands still while the host is suspended, as every process on the host does, so a lease does not run out in
//! its holder's sleep. It starts again at each boot, and means nothing on another host.

use std::time::Duration;

/// Milliseconds of the host's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uptime(u64);

/// Fits a signed 64-bit column.
const MILLIS_MAX: u64 = i64::MAX as u64;

impl Uptime {
    /// So many milliseconds by that clock.
    pub const fn from_millis(millis: u64) -> Self {
        Self(if millis < MILLIS_MAX { millis } else { MILLIS_MAX })
    }

    /// Milliseconds by that clock.
    pub fn as_millis(self) -> u64 {
        self.0
    }

    /// A moment later by this much.
    pub fn after(self, span: Duration) -> Self {
        Self::from_millis(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(MILLIS_MAX)))
    }
}
