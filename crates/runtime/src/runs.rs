//! Runs: agents executed durably, from a journal that outlives every process.
//!
//! ```text
//!   Runs (start, say, look, fork) ──▶ store ◀── Worker: claims what is due ──▶ Drive, one for each run:
//!                                                  load, fold, claim ─▶ { append ─▶ start what is pending ─▶ wait } ─▶ rest or end
//! ```
//! The engine decides, and nothing here does: this is the shell that appends what was decided and does what then is pending. An effect
//! begins after its intent is durable; what comes of it is appended by whoever holds the run, and by nobody else. A worker that is not sure
//! to hold a run stops at once: the next one finds everything in the journal.

mod blocked;
mod bodies;
mod check;
mod damage;
mod drive;
mod effects;
mod family;
mod fixture;
mod fork;
mod handle;
mod hub;
mod instruction;
mod journal;
mod lease;
mod presence;
mod real;
mod standing;
mod stored_agent;
mod tell;
mod worker;

pub use bodies::{fetch, shelve};
pub use check::check_data_directory;
pub use effects::{About, Effects, Session, Task, Work};
pub use fixture::{Drift, FIXTURE_SCHEMA, Fixture, Replay};
pub use fork::{ForkAt, Forked, OpenCall};
pub use handle::{NewRun, Runs};
pub use hub::Hub;
pub use instruction::Instruction;
pub use journal::Journal;
pub use real::{AddressError, HttpAddress, RealEffects, RunSettings, ScriptError, TOOLS, default_class};
pub use standing::Awaited;
pub use stored_agent::{agent_of_entry, with_agent};
pub use worker::{Worker, WorkerSettings};
