//! Circuit breakers: a provider that fails again and again is left alone for a while.
//!
//! ```text
//!  closed ──failures in a row──▶ open ──time──▶ half open ──success──▶ closed
//!                                  ▲               │ (one trial at a time)
//!                                  └────failure────┘
//! ```
//! Reads no clock; `now` is an argument.

use std::time::{Duration, Instant};

/// Failures in a row that open it.
const FAILURES_MAX: u32 = 5;
/// How long it is open the first time; each time in a row doubles it.
const OPEN_FIRST: Duration = Duration::from_secs(5);
const OPEN_MOST: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
pub struct Breaker {
    failures: u32,
    /// How often it was opened in a row.
    openings: u32,
    open_until: Option<Instant>,
    is_tried: bool,
}

impl Breaker {
    /// Whether a call may be made now. If it was open, this call is the trial.
    pub fn admit(&mut self, now: Instant) -> bool {
        match self.open_until {
            None => true,
            Some(until) if now < until => false,
            Some(_) if self.is_tried => false,
            Some(_) => {
                self.is_tried = true;
                true
            }
        }
    }

    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// The call ended without saying anything about the provider.
    pub fn said_nothing(&mut self) {
        self.is_tried = false;
    }

    pub fn failed(&mut self, now: Instant) {
        self.failures += 1;
        if self.is_tried || self.failures >= FAILURES_MAX {
            let open = OPEN_FIRST.saturating_mul(1 << self.openings.min(10)).min(OPEN_MOST);
            self.openings += 1;
            self.failures = 0;
            self.is_tried = false;
            self.open_until = Some(now + open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_lets_one_trial_through() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        for _ in 0..4 {
            breaker.failed(start);
        }
        breaker.succeeded();
        for _ in 0..4 {
            breaker.failed(start);
        }
        assert!(breaker.admit(start), "not in a row");
        breaker.failed(start);
        assert!(!breaker.admit(start + Duration::from_millis(4_999)));
        let later = start + Duration::from_secs(5);
        assert!(breaker.admit(later) && !breaker.admit(later), "one trial");
        breaker.failed(later);
        assert!(!breaker.admit(later + Duration::from_secs(9)), "twice as long");
        let later = later + Duration::from_secs(10);
        assert!(breaker.admit(later));
        breaker.said_nothing();
        assert!(breaker.admit(later), "another trial");
        breaker.succeeded();
        assert!(breaker.admit(later) && breaker.admit(later));
    }
}
