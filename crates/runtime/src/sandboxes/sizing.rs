//! The size of the pool: the recent demand, between two bounds.
//!
//! Pure: `now` is an argument.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The period of recent demand: about as long as refilling after a burst may take.
const WINDOW: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// The minimum, whatever the demand.
    pub least: usize,
    pub most: usize,
}

/// The recent demand.
#[derive(Debug)]
pub(crate) struct Demand {
    size: PoolSize,
    claims: VecDeque<Instant>,
}

impl Demand {
    pub(crate) fn new(size: PoolSize) -> Self {
        Self { size, claims: VecDeque::new() }
    }

    /// Records one request.
    pub(crate) fn note(&mut self, now: Instant) {
        self.forget(now);
        // More than the maximum size needn't be remembered.
        if self.claims.len() < self.size.most {
            self.claims.push_back(now);
        }
    }

    /// The current target size.
    pub(crate) fn wanted(&mut self, now: Instant) -> usize {
        self.forget(now);
        self.claims.len().clamp(self.size.least, self.size.most)
    }

    fn forget(&mut self, now: Instant) {
        while self.claims.front().is_some_and(|claim| now.duration_since(*claim) > WINDOW) {
            self.claims.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_demand_between_its_bounds() {
        let start = Instant::now();
        let mut demand = Demand::new(PoolSize { least: 2, most: 5 });
        assert_eq!(demand.wanted(start), 2);
        for _ in 0..4 {
            demand.note(start);
        }
        assert_eq!(demand.wanted(start), 4);
        for _ in 0..40 {
            demand.note(start);
        }
        assert_eq!(demand.wanted(start + WINDOW), 5);
        assert_eq!(demand.wanted(start + WINDOW + Duration::from_millis(1)), 2);
    }

    #[test]
    fn none_are_kept_where_none_may_be() {
        let now = Instant::now();
        let mut demand = Demand::new(PoolSize { least: 0, most: 0 });
        demand.note(now);
        assert_eq!(demand.wanted(now), 0);
    }
}
