//! Retries: bounded, with exponential backoff and jitter.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// Maximum number of attempts, including the first.
    pub attempts_max: u32,
    /// Backoff before the second attempt, in milliseconds.
    pub first_ms: u64,
    /// Maximum backoff, in milliseconds.
    pub most_ms: u64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { attempts_max: 3, first_ms: 500, most_ms: 30_000 }
    }
}

impl RetryPolicy {
    /// The backoff after `attempt` failed, in milliseconds; `None` if it was the last. `chance` is a random number
    /// for the jitter: the result is between half of the exponential backoff and all of it, so that effects that
    /// failed together are not retried together.
    pub fn wait_ms(&self, attempt: u32, chance: u64) -> Option<u64> {
        if attempt >= self.attempts_max {
            return None;
        }
        let doubled = self.first_ms.saturating_mul(1u64.checked_shl(attempt.saturating_sub(1)).unwrap_or(u64::MAX));
        let longest = doubled.min(self.most_ms);
        let half = longest / 2;
        Some(half + chance % (longest - half + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_most_and_then_end() {
        let policy = RetryPolicy { attempts_max: 5, first_ms: 100, most_ms: 300 };
        for chance in [0, 1, 12345, u64::MAX] {
            for (attempt, longest) in [(1, 100), (2, 200), (3, 300), (4, 300)] {
                let wait = policy.wait_ms(attempt, chance).unwrap();
                assert!((longest / 2..=longest).contains(&wait), "{attempt} {chance} {wait}");
            }
            assert_eq!(policy.wait_ms(5, chance), None);
        }
    }

    #[test]
    fn no_number_is_too_large() {
        let policy = RetryPolicy { attempts_max: u32::MAX, first_ms: u64::MAX, most_ms: u64::MAX };
        assert!(policy.wait_ms(u32::MAX - 1, u64::MAX).is_some());
        assert_eq!(RetryPolicy { attempts_max: 0, ..policy }.wait_ms(1, 0), None);
    }
}
