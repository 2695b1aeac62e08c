//! Repeatable random choices: a small seeded generator, good enough for mixing and nothing else.

#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same choices.
    pub fn new(seed: u64) -> Self {
        // Zero is a fixed point of the generator, and similar seeds must not start alike.
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.next();
        }
        random
    }

    /// An independent generator.
    pub fn split(&mut self) -> Self {
        Self::new(self.next())
    }

    /// Below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_choices_and_another_gives_others() {
        let choices = |seed| {
            let mut random = Random::new(seed);
            (0..20).map(|_| random.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(choices(1), choices(1));
        assert_ne!(choices(1), choices(2));
        assert_ne!(choices(0), choices(2));
    }
}
