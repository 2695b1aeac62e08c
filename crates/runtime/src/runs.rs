//! Runs: durable execution of agents, from a journal that outlives every process.
//!
//! ```text
//!   Runs (start, say, look, fork) ──▶ store ◀── Worker: claims what is due ──▶ Drive, one for each run:
//!                                                  load, fold, claim ─▶ { append ─▶ start what is pending ─▶ wait } ─▶ rest or end
//! ```
//! The engine decides; this is the shell that appends its decisions and executes the pending effects. An effect starts
//! after its intent is durable, and only the holder of the run appends its outcome. A worker that isn't sure to hold
//! a run stops at once: the next one finds everything in the journal.

mod blocked;
mod bodies;
mod check;
mod damage;
mod drive;
mod effects;
mod family;
mod files;
mod fixture;
mod fork;
mod handle;
mod hub;
mod instruction;
mod journal;
mod lease;
mod live;
mod output;
mod presence;
mod real;
mod request;
mod roll_back;
mod sandbox_calls;
mod short;
mod standing;
mod stored_agent;
mod tell;
mod tools;
mod under_way;
mod worker;

pub use bodies::{fetch, shelve};
pub use check::check_data_directory;
pub use effects::{About, Effects, Over, Session, Task, Work};
pub use fixture::{Drift, FIXTURE_SCHEMA, Fixture, Replay};
pub use fork::{ForkAt, Forked, OpenCall};
pub use handle::{NewRun, Runs, check_agent};
pub use hub::Hub;
pub use instruction::Instruction;
pub use journal::Journal;
pub use live::{Ear, Listener, Live, Relay, Said, SaidWhat};
pub use real::{RealEffects, RunSettings, ScriptError};
pub use roll_back::{DoneCall, RollBack};
pub use standing::{DoingNow, OpenNow};
pub use stored_agent::{agent_of_entry, with_agent};
pub(crate) use tools::Exits;
pub use tools::{CATALOGUE, HttpRule, Needs, Performer, Tool, default_class};
pub use worker::{Worker, WorkerSettings};
