//! What goes wrong, and how often.

use std::time::Duration;

/// What goes wrong in one simulation.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultPlan {
    /// Calls of the store that fail, in a thousand; half of them after they were done.
    pub store_fails: u64,
    /// Calls of the store that are done a second time a moment later, in a thousand.
    pub store_repeats: u64,
    /// The longest that a call of the store takes each way, in milliseconds.
    pub store_ms: u64,
    /// Effects that certainly did nothing, in a thousand.
    pub effect_fails: u64,
    /// Effects of which nobody knows, in a thousand; half of them were done.
    pub effect_lost: u64,
    /// Effects that never answer, in a thousand.
    pub effect_hangs: u64,
    /// Effects in a sandbox for which there is no room yet, in a thousand.
    pub no_room: u64,
    /// The longest that an effect takes each way, in milliseconds.
    pub effect_ms: u64,
    /// How often something happens to the workers, the store or the clock.
    pub disturbances: u32,
    /// To which of them.
    pub disturbs: Disturbs,
    /// The furthest that the clock is ever off, in milliseconds, either way.
    pub clock_ms: u64,
    /// The longest time between two of them, in milliseconds.
    pub disturb_ms: u64,
    /// What happens at one call of the store, counted over all workers from 1.
    pub at_call: Option<(u64, AtCall)>,
}

/// What something happens to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Disturbs {
    /// Workers are killed, stopped and woken, the store fails, the clock is set, people speak.
    #[default]
    Everything,
    /// The clock is set, and nothing else goes wrong.
    TheClock,
}

/// What happens at one call of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtCall {
    /// It fails, and was not done.
    FailBefore,
    /// It fails, and was done.
    FailAfter,
    /// Its worker is killed before it was done.
    KillBefore,
    /// Its worker is killed after it was done, and before it knows.
    KillAfter,
}

impl AtCall {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::FailBefore, Self::FailAfter, Self::KillBefore, Self::KillAfter];
}

impl FaultPlan {
    /// Of the ten disturbances, the one that is of the clock.
    pub(crate) const CLOCK: u64 = 8;

    /// Which disturbance comes, where `any` draws one of all.
    pub(crate) fn disturbed(&self, any: impl FnOnce() -> u64) -> u64 {
        match self.disturbs {
            Disturbs::Everything => any(),
            Disturbs::TheClock => Self::CLOCK,
        }
    }

    /// Nothing goes wrong.
    pub fn none() -> Self {
        Self { store_ms: 2, effect_ms: 20, ..Self::default() }
    }

    /// Everything goes wrong now and then.
    pub fn rough() -> Self {
        Self {
            store_fails: 30,
            store_repeats: 30,
            store_ms: 40,
            effect_fails: 40,
            effect_lost: 30,
            effect_hangs: 5,
            no_room: 20,
            effect_ms: 300,
            disturbances: 40,
            disturbs: Disturbs::Everything,
            clock_ms: 10_000,
            disturb_ms: 500,
            at_call: None,
        }
    }

    /// Somebody sets the clock, forward and back, by far more than a lease or a wait takes.
    pub fn clock() -> Self {
        Self { disturbances: 40, disturbs: Disturbs::TheClock, clock_ms: 60 * 1000, disturb_ms: 500, ..Self::none() }
    }

    /// Only this, at this call.
    pub fn at_call(call: u64, what: AtCall) -> Self {
        Self { at_call: Some((call, what)), ..Self::none() }
    }
}

/// How one call of the store goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreFate {
    pub(crate) there: Duration,
    pub(crate) back: Duration,
    pub(crate) at_call: Option<AtCall>,
    pub(crate) again_after: Option<Duration>,
}

/// How one effect goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EffectFate {
    Done,
    /// Certainly not done.
    Failed,
    /// Not done, and nobody knows.
    LostBefore,
    /// Done, and nobody knows.
    LostAfter,
    /// Done, and never answered.
    Hangs,
    /// Not begun, if it needs a sandbox: it waits for room.
    NoRoom,
}
