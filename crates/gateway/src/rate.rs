//! Rate limits of a project: requests and tokens per minute, and calls at once. Token buckets that hold one minute.
//!
//! Reads no clock; `now` is an argument.

use std::time::{Duration, Instant};

use serde::Deserialize;

const MINUTE: f64 = 60.0;
/// The longest wait that is told.
const WAIT_MOST: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RateLimits {
    pub requests_per_minute: Option<u32>,
    /// Counted as they are reserved: the prompt and the most that the reply may have.
    pub tokens_per_minute: Option<u64>,
    /// Calls under way at once.
    pub concurrent: Option<u32>,
}

#[derive(Debug, Default)]
pub struct Rates {
    requests: Bucket,
    tokens: Bucket,
    under_way: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub what: &'static str,
    pub wait: Duration,
}

impl Rates {
    /// Counts a call, or refuses it and counts nothing.
    pub fn take(&mut self, limits: &RateLimits, tokens: u64, now: Instant) -> Result<(), Refused> {
        if limits.concurrent.is_some_and(|most| self.under_way >= most) {
            return Err(Refused { what: "calls at once", wait: Duration::from_secs(1) });
        }
        let requests = limits.requests_per_minute.map(f64::from);
        let most_tokens = limits.tokens_per_minute.map(|most| most as f64);
        if let Some(wait) = self.requests.wait(requests, 1.0, now) {
            return Err(Refused { what: "requests per minute", wait });
        }
        // A call larger than a whole minute passes when the bucket is full, and leaves a debt.
        if let Some(wait) = self.tokens.wait(most_tokens, tokens as f64, now) {
            return Err(Refused { what: "tokens per minute", wait });
        }
        self.requests.take(requests, 1.0);
        self.tokens.take(most_tokens, tokens as f64);
        self.under_way += 1;
        Ok(())
    }

    /// A counted call has ended.
    pub fn ended(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }
}

#[derive(Debug, Default)]
struct Bucket {
    /// What is in it, and since when. `None` means full.
    level: Option<(f64, Instant)>,
}

impl Bucket {
    /// How long until there is enough.
    fn wait(&mut self, most: Option<f64>, amount: f64, now: Instant) -> Option<Duration> {
        let most = most?;
        // None at all: there is nothing to wait for.
        if most <= 0.0 {
            return Some(WAIT_MOST);
        }
        let level = match self.level {
            Some((level, since)) => {
                (level + now.saturating_duration_since(since).as_secs_f64() * most / MINUTE).min(most)
            }
            None => most,
        };
        self.level = Some((level, now));
        let needed = amount.min(most);
        // A rounding error must not make anybody wait.
        (level + 1e-6 < needed).then(|| Duration::from_secs_f64((needed - level) * MINUTE / most).min(WAIT_MOST))
    }

    fn take(&mut self, most: Option<f64>, amount: f64) {
        if let (Some(_), Some((level, _))) = (most, &mut self.level) {
            *level -= amount;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_has_as_many_as_it_is_told() {
        let limits = RateLimits { requests_per_minute: Some(2), ..RateLimits::default() };
        let (mut rates, start) = (Rates::default(), Instant::now());
        assert!(rates.take(&limits, 0, start).is_ok() && rates.take(&limits, 0, start).is_ok());
        let refused = rates.take(&limits, 0, start).unwrap_err();
        assert_eq!((refused.what, refused.wait), ("requests per minute", Duration::from_secs(30)));
        assert!(rates.take(&limits, 0, start + refused.wait).is_ok());
    }

    #[test]
    fn a_limit_of_none_lets_nothing_through() {
        let (start, default) = (Instant::now(), RateLimits::default());
        for (limits, what) in [
            (RateLimits { requests_per_minute: Some(0), ..default }, "requests per minute"),
            (RateLimits { tokens_per_minute: Some(0), ..default }, "tokens per minute"),
            (RateLimits { concurrent: Some(0), ..default }, "calls at once"),
        ] {
            let mut rates = Rates::default();
            for later in [0, 60, 86_400] {
                let refused = rates.take(&limits, 1, start + Duration::from_secs(later)).unwrap_err();
                assert!(refused.what == what && !refused.wait.is_zero(), "{refused:?}");
            }
        }
    }

    #[test]
    fn tokens_and_calls_at_once_are_counted_apart() {
        let limits = RateLimits { tokens_per_minute: Some(600), concurrent: Some(2), ..RateLimits::default() };
        let (mut rates, start) = (Rates::default(), Instant::now());
        assert!(rates.take(&limits, 1_200, start).is_ok(), "a call larger than a minute passes once");
        let refused = rates.take(&limits, 60, start).unwrap_err();
        assert_eq!((refused.what, refused.wait), ("tokens per minute", Duration::from_secs(66)));
        let later = start + Duration::from_secs(120);
        assert!(rates.take(&limits, 60, later).is_ok());
        assert_eq!(rates.take(&limits, 0, later).unwrap_err().what, "calls at once");
        rates.ended();
        assert!(rates.take(&limits, 0, later).is_ok());
    }
}
