//! Child runs: what a run hands to one that it starts, and what it gets back.
//!
//! ```text
//!   parent: StepIntended(Delegate) ─┬─ one commit ─▶ child: RunStarted … RunFinished ─┬─ one commit ─▶ a letter: ChildEnded
//!                                   └─ waits, and holds nothing                       └─ parent: StepSettled(Ended)
//! ```
//! A child's budget is set aside out of its parent's and settled by what it spent, so a limit holds for everything below whoever has it.
//! What a child may use is at most what its parent may. One step of a run is open at a time: so one effect is, in the whole tree.

use saggar_domain::RunId;
use serde::{Deserialize, Serialize};

use crate::agent::AgentSpec;
use crate::body::Body;
use crate::budget::Spending;
use crate::effect::{Effect, ToolResult};
use crate::event::{Event, Outcome};
use crate::input::Input;
use crate::run::Run;

/// How far below the first run a run can be.
pub const DEPTH_MAX: u32 = 4;

/// Who started a run, and waits for its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildOf {
    pub run: RunId,
    /// Which step of it.
    pub step: u64,
    /// How many runs are above the child.
    pub depth: u32,
}

/// A child to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewChild {
    pub run: RunId,
    /// What it is.
    pub agent: Box<AgentSpec>,
    /// Whose it is.
    pub child_of: ChildOf,
}

impl NewChild {
    /// What it begins with.
    pub fn start(self) -> Input {
        Input::Start { run: self.run, agent: self.agent, child_of: Some(self.child_of) }
    }
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildEnd {
    pub child: RunId,
    pub outcome: Outcome,
    /// What it has spent with everything below it, or may have where something was given up.
    pub spent: Spending,
}

impl ChildEnd {
    /// What the model of the parent is told.
    pub fn result(&self) -> ToolResult {
        let why = match &self.outcome {
            Outcome::Completed { answer } => return ToolResult { content: answer.clone(), is_error: false },
            Outcome::Cancelled => "it was cancelled".to_owned(),
            Outcome::BudgetExceeded { budget } => format!("its budget of {} was used up", budget.as_str()),
            Outcome::Loop { tool, times } => format!("it called {tool} {times} times in a row with the same arguments"),
            Outcome::Failed { failure } => {
                format!("its model could not be had ({}: {})", failure.code, failure.message)
            }
            Outcome::Abandoned { step } => format!("a person gave it up at step {step}"),
        };
        ToolResult { content: Body::text(format!("{} gave no answer: {why}", self.child)), is_error: true }
    }
}

impl Run {
    /// The child that an event of this run makes, if it makes one.
    pub fn child_of_event(&self, event: &Event) -> Option<NewChild> {
        let Event::StepIntended { step, effect: Effect::Delegate { child, agent, task, budget, .. }, .. } = event
        else {
            return None;
        };
        let own = self.agent()?;
        let mut spec = match agent {
            None => own.clone(),
            Some(name) => own.agents.get(name)?.clone(),
        };
        spec.tools.retain(|name, _| own.tools.contains_key(name));
        spec.agents = own.agents.clone();
        spec.task = task.clone();
        spec.budget = *budget;
        // The same model costs the child what it cost its parent.
        if agent.is_none() && self.dearest() > 0 {
            let most = spec.model.reply_micros_max.unwrap_or(0).max(self.dearest());
            spec.model.reply_micros_max = Some(most);
        }
        let child_of = ChildOf { run: self.id()?.clone(), step: *step, depth: self.depth() + 1 };
        Some(NewChild { run: child.clone(), agent: Box::new(spec), child_of })
    }

    /// The child that this run waits for.
    pub fn child(&self) -> Option<&RunId> {
        match &self.open_step()?.effect {
            Effect::Delegate { child, .. } => Some(child),
            Effect::CallModel { .. } | Effect::CallTool { .. } | Effect::Wait { .. } | Effect::AskHuman { .. } => None,
        }
    }

    /// What whoever started this run is told of its end; `None` before that, and where no run started it.
    pub fn end_for_parent(&self) -> Option<(&ChildOf, ChildEnd)> {
        let (child_of, outcome, child) = (self.child_of()?, self.outcome()?.clone(), self.id()?.clone());
        Some((child_of, ChildEnd { child, outcome, spent: self.ledger().spent_at_most() }))
    }
}
