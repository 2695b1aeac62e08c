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

/// The sizes of several pools that may keep `most` sandboxes together: each gets what it wants, or all get the same.
pub(crate) fn shares(wanted: &[usize], most: usize) -> Vec<usize> {
    let mut sizes = vec![0; wanted.len()];
    let mut left = most;
    while left > 0 {
        let before = left;
        for (size, wanted) in sizes.iter_mut().zip(wanted) {
            if *size < *wanted && left > 0 {
                *size += 1;
                left -= 1;
            }
        }
        if left == before {
            break;
        }
    }
    sizes
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

    #[test]
    fn pools_share_their_maximum_evenly() {
        for (wanted, most, expected) in [
            (&[3, 1][..], 8, &[3, 1][..]),
            (&[8, 8], 8, &[4, 4]),
            (&[8, 1, 8], 8, &[4, 1, 3]),
            (&[1, 1, 1], 2, &[1, 1, 0]),
            (&[5], 0, &[0]),
            (&[], 3, &[]),
        ] {
            assert_eq!(shares(wanted, most), expected, "{wanted:?} within {most}");
        }
    }
}
