//! The faults of a simulation and their frequency.

use std::time::Duration;

#[derive(Clone, Copy, Debug, Default)]
pub struct FaultPlan {
    /// Store calls that fail, per thousand; half of them after they were done.
    pub store_fails: u64,
    /// Store calls that are repeated a moment later, per thousand.
    pub store_repeats: u64,
    /// Maximum latency of a store call in each direction, in milliseconds.
    pub store_ms: u64,
    /// Effects that fail without having been done, per thousand.
    pub effect_fails: u64,
    /// Effects with an unknown outcome, per thousand; half of them were done.
    pub effect_lost: u64,
    /// Effects that never answer, per thousand.
    pub effect_hangs: u64,
    /// Effects in a sandbox for which there is no capacity yet, per thousand.
    pub no_room: u64,
    /// Calls that find their sandbox lost, per thousand.
    pub sandbox_lost: u64,
    /// Maximum latency of an effect in each direction, in milliseconds.
    pub effect_ms: u64,
    /// Number of disturbances of workers, store or clock.
    pub disturbances: u32,
    pub disturbs: Disturbs,
    /// Maximum clock error in either direction, in milliseconds.
    pub clock_ms: u64,
    /// Maximum time between two disturbances, in milliseconds.
    pub disturb_ms: u64,
    /// A fault at one store call, counted over all workers from 1.
    pub at_call: Option<(u64, AtCall)>,
}

/// The targets of disturbances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disturbs {
    /// Workers are killed, stopped and woken; the store fails; the clock is set; messages are sent.
    #[default]
    Everything,
    /// Only the clock is set.
    TheClock,
}

/// A fault at one store call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtCall {
    /// It fails without having been done.
    FailBefore,
    /// It fails after it was done.
    FailAfter,
    /// Its worker is killed before it was done.
    KillBefore,
    /// Its worker is killed after it was done, before it gets the result.
    KillAfter,
}

impl AtCall {
    pub const ALL: [Self; 4] = [Self::FailBefore, Self::FailAfter, Self::KillBefore, Self::KillAfter];
}

impl FaultPlan {
    /// The index of the clock among the ten disturbances.
    pub(crate) const CLOCK: u64 = 8;

    /// The next disturbance; `any` draws one of all.
    pub(crate) fn disturbed(&self, any: impl FnOnce() -> u64) -> u64 {
        match self.disturbs {
            Disturbs::Everything => any(),
            Disturbs::TheClock => Self::CLOCK,
        }
    }

    pub fn none() -> Self {
        Self { store_ms: 2, effect_ms: 20, ..Self::default() }
    }

    /// Every kind of fault happens sometimes.
    pub fn rough() -> Self {
        Self {
            store_fails: 30,
            store_repeats: 30,
            store_ms: 40,
            effect_fails: 40,
            effect_lost: 30,
            effect_hangs: 5,
            no_room: 20,
            sandbox_lost: 0,
            effect_ms: 300,
            disturbances: 40,
            disturbs: Disturbs::Everything,
            clock_ms: 10_000,
            disturb_ms: 500,
            at_call: None,
        }
    }

    /// The clock is set forward and back, by far more than a lease or a backoff.
    pub fn clock() -> Self {
        Self { disturbances: 40, disturbs: Disturbs::TheClock, clock_ms: 60 * 1000, disturb_ms: 500, ..Self::none() }
    }

    /// Only this fault, at this call.
    pub fn at_call(call: u64, what: AtCall) -> Self {
        Self { at_call: Some((call, what)), ..Self::none() }
    }
}

/// The fate of one store call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreFate {
    pub(crate) there: Duration,
    pub(crate) back: Duration,
    pub(crate) at_call: Option<AtCall>,
    pub(crate) again_after: Option<Duration>,
}

/// The fate of one effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EffectFate {
    Done,
    /// Certainly not done.
    Failed,
    /// Not done, with an unknown outcome.
    LostBefore,
    /// Done, with an unknown outcome.
    LostAfter,
    /// Done, and never answered.
    Hangs,
    /// Not started if it needs a sandbox: it waits for capacity.
    NoRoom,
}
