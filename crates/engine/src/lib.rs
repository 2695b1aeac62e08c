//! The run as a pure state machine.
//!
//! ```text
//!   input ──▶ decide(&self, now, &input) ──▶ events ──▶ (the shell appends them) ──▶ apply(&mut self, &event)
//!                                                                                        │
//!   effects ◀── pending(&self) ◀─────────────────────────────────────────────────────────┘
//! ```
//! `decide` is pure, `apply` can't fail, `pending` derives the current work from the state, and `next_deadline` says
//! when to wake. Recovery uses the same code as progress: a run is the fold of its events.
//!
//! No IO, no clock, no randomness: ids, time and random numbers enter as inputs. The engine sees an epoch, not a
//! lease.
#![forbid(unsafe_code)]

mod agent;
mod body;
mod budget;
mod built_in;
mod child;
mod effect;
mod event;
mod fallback;
mod flaw;
mod input;
mod key;
mod record;
mod repeats;
mod replay;
mod reply;
mod retry;
mod rules;
mod run;
mod snapshots;

pub use agent::{
    AgentIdentity, AgentSpec, CORRECTIONS_DEFAULT, ContextLimit, ModelRef, OPEN_STEPS_DEFAULT, OPEN_STEPS_MAX,
    OwnDirectory, ToolSpec,
};
pub use body::{BODY_INLINE_MAX, Body};
pub use budget::{Budget, BudgetName, Ledger, Spending};
pub use built_in::{BuiltIn, BuiltInTool};
pub use child::{ChildEnd, ChildOf, DEPTH_MAX, NewChild};
pub use effect::{Class, Effect, ToolCall, ToolResult, Usage};
pub use event::{Event, RunOutcome, Settled};
pub use fallback::{Fallbacks, Unanswered, WhenFailing, WhenOutOfBudget, WhenUncertain};
pub use input::{Decision, EffectFailure, Input, Rejected, Report, Signal};
pub use key::EffectKey;
pub use record::{ENTRY_VERSION, Entry, EntryError};
pub use replay::{Divergence, Replayed, replay};
pub use reply::{ModelReply, Said, SaidPart};
pub use retry::RetryPolicy;
pub use rules::Rules;
pub use run::{
    ANSWER, Attempt, MESSAGE, Message, OpenStep, Pending, RESULT_MARKS_LEN, Run, RunStatus, SUMMARIZE, SUMMARY, Work,
};
pub use snapshots::{KeptFiles, Restored, RestoredAt, RunFiles, SNAPSHOTS_KEPT, SnapshotRules};
