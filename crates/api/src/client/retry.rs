//! Exponential backoff with jitter, so that the clients of a restarted server don't return all at once.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

/// Maximum delay before the second attempt.
const FIRST_MS: u64 = 50;
/// Maximum delay before any later attempt.
const LONGEST_MS: u64 = 3_000;

/// The delay after this many failures: between half of the bound and all of it.
pub(crate) fn delay(failures: u32) -> Duration {
    let most = FIRST_MS.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_MS);
    Duration::from_millis(most / 2 + random_word() % (most / 2 + 1))
}

/// A random idempotency key: the standard library's hash seeds come from the kernel.
pub(crate) fn fresh_key() -> String {
    format!("{:016x}{:016x}", random_word(), random_word())
}

fn random_word() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_bound_and_are_never_nothing() {
        for (failures, least, most) in
            [(1, 25, 50), (2, 50, 100), (3, 100, 200), (8, 1500, 3000), (u32::MAX, 1500, 3000)]
        {
            let delay = delay(failures).as_millis() as u64;
            assert!((least..=most).contains(&delay), "{failures}: {delay}");
        }
    }

    #[test]
    fn keys_differ() {
        assert_ne!(fresh_key(), fresh_key());
    }
}
