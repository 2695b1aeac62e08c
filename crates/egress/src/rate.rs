//! A rate limit: a bucket of tokens that fills with time. Reads no clock; `now` is an argument.

use std::time::Instant;

/// Allows `burst` at once, and `per_second` on average.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: f64,
    burst: f64,
    tokens: f64,
    filled: Option<Instant>,
}

impl Rate {
    pub fn new(per_second: u32, burst: u32) -> Self {
        Self { per_second: per_second.into(), burst: burst.into(), tokens: burst.into(), filled: None }
    }

    /// Allows `count` at once, and as many more in each minute.
    pub fn per_minute(count: u32) -> Self {
        Self { per_second: f64::from(count) / 60.0, ..Self::new(0, count) }
    }

    /// Whether one more is within the rate. A clock that goes backwards adds nothing.
    pub fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled.unwrap_or(now));
        self.tokens = (self.tokens + passed.as_secs_f64() * self.per_second).min(self.burst);
        self.filled = Some(self.filled.map_or(now, |filled| filled.max(now)));
        let within = self.tokens >= 1.0;
        if within {
            self.tokens -= 1.0;
        }
        within
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::Rate;

    #[test]
    fn a_burst_passes_and_then_the_rate_holds() {
        let start = Instant::now();
        let mut rate = Rate::new(10, 3);
        let taken = |rate: &mut Rate, at: u64, tries: usize| {
            (0..tries).filter(|_| rate.take(start + Duration::from_millis(at))).count()
        };
        assert_eq!(taken(&mut rate, 0, 9), 3);
        assert_eq!(taken(&mut rate, 50, 9), 0);
        assert_eq!(taken(&mut rate, 100, 9), 1);
        assert_eq!(taken(&mut rate, 60_000, 9), 3, "a long pause saves up no more than the burst");
        assert_eq!(taken(&mut rate, 1_000, 9), 0, "a clock that goes back adds nothing");
        assert_eq!(taken(&mut rate, 60_100, 9), 1);
    }

    #[test]
    fn so_many_pass_at_once_and_as_many_in_each_minute() {
        let start = Instant::now();
        let mut rate = Rate::per_minute(3);
        let mut taken = |at: u64| (0..9).filter(|_| rate.take(start + Duration::from_secs(at))).count();
        assert_eq!([taken(0), taken(19), taken(20), taken(39), taken(40), taken(200)], [3, 0, 1, 0, 1, 3]);
    }
}
