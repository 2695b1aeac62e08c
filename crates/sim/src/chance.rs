//! Random numbers derived from a seed.

use std::time::Duration;

/// SplitMix64: small, fast, and the same on every platform.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end.max(1)
    }

    /// True with a probability of `times` in a thousand.
    pub fn per_mille(&mut self, times: u64) -> bool {
        self.below(1000) < times
    }

    /// A duration of up to this many milliseconds.
    pub fn span(&mut self, most_ms: u64) -> Duration {
        Duration::from_millis(self.below(most_ms + 1))
    }

    pub fn bits(&mut self) -> [u8; 16] {
        let mut bits = [0; 16];
        bits[..8].copy_from_slice(&self.number().to_le_bytes());
        bits[8..].copy_from_slice(&self.number().to_le_bytes());
        bits
    }
}
