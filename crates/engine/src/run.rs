//! The state of a run, and how events change it.
//!
//! ```text
//!                    ┌──── Backoff ◀── StepFailed ◀── attempt failed, another is allowed
//!                    │ retry_at         │
//!                    ├──── Delayed ◀── StepDelayed ◀── not begun: the capacity it needs is missing
//!                    │ until            │
//!                    ▼                  │
//!   (no step) ── StepIntended ──▶ Doing ┴──▶ StepSettled ──▶ (no step) or the next StepIntended, in the same commit
//!                    ▲              │ the worker was lost
//!                    │              ├─ pure, model, keyed ──▶ StepIntended, next attempt; in a paused run
//!                    │              │                         StepInterrupted ──▶ Interrupted until it is resumed
//!                    │              ├─ probeable ──▶ StepProbed ──▶ Probing ──▶ settled, never done, or unknown
//!                    │              └─ once ──▶ StepUnknown ──▶ parked until StepDecided
//!                    └───────────────────────────────────────────── retry
//! ```
//! Each open step goes through this by itself. INVARIANT: a model call is open alone, and so is a call of class `once`;
//! nothing is open in a run that has finished.

mod apply;
mod back;
mod conversation;
mod decide;
mod kept;
mod next;
mod open;
mod pending;
mod price;
mod settle;
mod short;
mod status;
mod summary;

use std::collections::{BTreeSet, VecDeque};

use saggar_domain::model::{SandboxCalls, Tariff};
use saggar_domain::{RunId, Timestamp};

use crate::agent::AgentSpec;
use crate::body::Body;
use crate::budget::Ledger;
use crate::child::ChildOf;
use crate::event::{Event, RunOutcome};
use crate::repeats::Repeats;
use crate::rules::Rules;
use crate::snapshots::{Restored, RunFiles, Snapshots};
use back::Marks;
use conversation::Conversation;
use kept::Kept;
use short::Short;

pub use conversation::{Message, RESULT_MARKS_LEN};
pub use kept::MESSAGE;
pub use open::{Attempt, OpenStep};
pub use pending::{Pending, Work};
pub use status::RunStatus;
pub use summary::{SUMMARIZE, SUMMARY};

/// The name of signals that answer a question.
pub const ANSWER: &str = "answer";
/// Maximum number of unread signals.
pub(crate) const SIGNALS_MAX: usize = 256;
/// Number of past answers kept, so that a duplicate is harmless and a different answer is rejected.
const ANSWERED_MAX: usize = 64;
/// Number of signal ids kept for deduplication.
const SIGNAL_IDS_MAX: usize = 1024;

/// The state of a run: the fold of its events.
#[derive(Clone, Debug, Default)]
pub struct Run {
    born: Option<Born>,
    epoch: u64,
    rules: Rules,
    conversation: Conversation,
    replies: u64,
    // In the order of their numbers, which is that of the model's calls.
    open: Vec<OpenStep>,
    last_step: u64,
    ledger: Ledger,
    // The highest cost of a model call so far.
    dearest: u64,
    // What a model call may come to; `None` before anybody said.
    tariff: Option<Box<Tariff>>,
    // What programs in its sandboxes have asked of models.
    sandbox_calls: SandboxCalls,
    repeats: Repeats,
    short: Option<Short>,
    // Replies in a row that were of no use.
    useless: u32,
    // Answers that named no question. Only the first rules use them, for the next question.
    answers: VecDeque<Body>,
    answered: VecDeque<(u64, Body)>,
    kept: Kept,
    signal_ids: VecDeque<String>,
    known_signals: BTreeSet<String>,
    is_paused: bool,
    // The answer of a run that takes a last snapshot before it ends.
    final_answer: Option<Body>,
    snapshots: Snapshots,
    marks: Marks,
    // Generations of this run before it was rolled back.
    earlier_generations: Vec<u32>,
    outcome: Option<RunOutcome>,
}

#[derive(Clone, Debug)]
struct Born {
    id: RunId,
    agent: Box<AgentSpec>,
    generation: u32,
    started_at: Timestamp,
    is_logical_only: bool,
    child_of: Option<ChildOf>,
    // Number of runs above it. A fork keeps the number but has no parent waiting for it.
    depth: u32,
}

impl Run {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn from_events<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut run = Self::new();
        for event in events {
            run.apply(event);
        }
        run
    }

    /// `None` before its start.
    pub fn id(&self) -> Option<&RunId> {
        self.born.as_ref().map(|born| &born.id)
    }

    pub fn agent(&self) -> Option<&AgentSpec> {
        self.born.as_ref().map(|born| &*born.agent)
    }

    /// The branch of its tree.
    pub fn generation(&self) -> u32 {
        self.born.as_ref().map_or(0, |born| born.generation)
    }

    /// Whether its files were not restored when it was forked.
    pub fn is_logical_only(&self) -> bool {
        self.born.as_ref().is_some_and(|born| born.is_logical_only)
    }

    /// Number of runs above it.
    pub fn depth(&self) -> u32 {
        self.born.as_ref().map_or(0, |born| born.depth)
    }

    /// The parent, which waits for its end.
    pub fn child_of(&self) -> Option<&ChildOf> {
        self.born.as_ref().and_then(|born| born.child_of.as_ref())
    }

    /// The epoch of the current lease.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn conversation(&self) -> &[Message] {
        self.conversation.messages()
    }

    /// Number of model replies.
    pub fn replies(&self) -> u64 {
        self.replies
    }

    /// In the order of their numbers.
    pub fn open_steps(&self) -> &[OpenStep] {
        &self.open
    }

    /// The first of them.
    pub fn open_step(&self) -> Option<&OpenStep> {
        self.open.first()
    }

    pub(crate) fn open_at(&self, step: u64) -> Option<&OpenStep> {
        self.open.iter().find(|open| open.step == step)
    }

    pub fn last_step(&self) -> u64 {
        self.last_step
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The highest cost of a model call so far, in millionths.
    pub fn dearest(&self) -> u64 {
        self.dearest
    }

    /// What its model's calls may come to, as far as its journal says.
    pub fn tariff(&self) -> Option<&Tariff> {
        self.tariff.as_deref()
    }

    /// What programs in its sandboxes have asked of models, as far as its journal says.
    pub fn sandbox_calls(&self) -> &SandboxCalls {
        &self.sandbox_calls
    }

    /// Whether its model is called for the last time, without tools, because a budget is used up.
    pub fn is_closing(&self) -> bool {
        self.short.is_some_and(|short| short.is_closing)
    }

    /// Its snapshots, and where its files come from.
    pub fn files(&self) -> &RunFiles {
        &self.snapshots.files
    }

    /// What a sandbox starts with that this step needs, if the run has none.
    pub fn restorable(&self, for_step: u64) -> Restored {
        self.snapshots.restorable(for_step)
    }

    /// The generations that it had before it was rolled back.
    pub fn earlier_generations(&self) -> &[u32] {
        &self.earlier_generations
    }

    /// `None` while it isn't finished.
    pub fn outcome(&self) -> Option<&RunOutcome> {
        self.outcome.as_ref()
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused
    }
}
