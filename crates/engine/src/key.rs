//! Idempotency keys: they tell an executor that two requests are the same effect.
//!
//! A key consists of the run, its generation and the step, but not the attempt. A fork has a new generation, so it
//! never repeats an effect of the original by mistake.

use saggar_domain::RunId;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EffectKey(String);

impl EffectKey {
    pub fn of(run: &RunId, generation: u32, step: u64) -> Self {
        Self(format!("{run}/{generation}/{step}"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// 128 bits derived from the key, for ids that the creator chooses.
    pub fn bits(&self) -> [u8; 16] {
        let digest = Sha256::new_with_prefix("saggar.effect/v1\0").chain_update(&self.0).finalize();
        let mut bits = [0; 16];
        bits.copy_from_slice(&digest[..16]);
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_of_every_generation_has_its_own() {
        let (one, other) = (RunId::from_random([1; 16]), RunId::from_random([2; 16]));
        let keys = [
            EffectKey::of(&one, 0, 1),
            EffectKey::of(&one, 0, 11),
            EffectKey::of(&one, 1, 1),
            EffectKey::of(&other, 0, 1),
        ];
        for (index, key) in keys.iter().enumerate() {
            for later in &keys[index + 1..] {
                assert_ne!(key, later);
                assert_ne!(key.bits(), later.bits());
            }
        }
    }
}
