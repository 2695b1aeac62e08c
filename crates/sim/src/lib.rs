//! Deterministic simulation: the real workers and the real engine, over a model of the store and a model of the world, in virtual time.
//!
//! ```text
//!   Worker ×3 (the runtime's own) ──▶ FaultyJournal ──▶ Memory      fails, delays, answers after it was done, does things twice
//!        │                                                          workers are killed, stopped, woken; the clock is set
//!        └──▶ SimEffects ──▶ World: the outside ledger              calls are under way, done, answered, or never answered
//! ```
//! Everything that varies is derived from a seed, on one thread, so the same seed gives the same trace. After each
//! step the invariants are checked against the ledger and the journals, never against a worker's own state. Needs a
//! paused tokio clock. Never shipped.
#![forbid(unsafe_code)]

mod agents;
mod chance;
mod ends;
mod family;
mod faults;
mod files;
mod gate;
mod inside;
mod journal;
mod memory;
mod scenario;
mod world;

pub use chance::Chance;
pub use faults::{AtCall, Disturbs, FaultPlan};
pub use journal::FaultyJournal;
pub use memory::Memory;
pub use scenario::{Scenario, ScenarioOutcome, simulate};
