//! Child runs: what a run passes to a child, and what it gets back.
//!
//! ```text
//!   parent: StepIntended(Delegate) ─┬─ one commit ─▶ child: RunStarted … RunFinished ─┬─ one commit ─▶ a letter: ChildEnded
//!                                   └─ waits, and holds nothing                       └─ parent: StepSettled(Ended)
//! ```
//! A child's budget is reserved out of its parent's and settled by what the child spent, so a limit covers the whole
//! tree below the run that has it. A child may use at most the tools that its parent may use, and at most its network
//! and its secrets. A run may wait for several children at once, as many as it may have open steps.

use saggar_domain::RunId;
use serde::{Deserialize, Serialize};

use crate::agent::AgentSpec;
use crate::body::Body;
use crate::budget::Spending;
use crate::effect::{Effect, ToolResult};
use crate::event::{Event, RunOutcome};
use crate::input::Input;
use crate::run::Run;

/// Maximum depth of a run below the first run of its tree.
pub const DEPTH_MAX: u32 = 4;

/// The parent of a run, which waits for its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildOf {
    pub run: RunId,
    /// The parent's step.
    pub step: u64,
    /// The number of runs above the child.
    pub depth: u32,
}

/// A child run to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewChild {
    pub run: RunId,
    pub agent: Box<AgentSpec>,
    pub child_of: ChildOf,
}

impl NewChild {
    /// The input that starts it.
    pub fn start(self) -> Input {
        Input::Start { run: self.run, agent: self.agent, child_of: Some(self.child_of) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildEnd {
    pub child: RunId,
    pub outcome: RunOutcome,
    /// What it and its children have spent, or may have spent if a step was abandoned.
    pub spent: Spending,
}

impl ChildEnd {
    /// The tool result that the parent's model gets.
    pub fn result(&self) -> ToolResult {
        let why = match &self.outcome {
            RunOutcome::Completed { answer } => return ToolResult::new(answer.clone(), false),
            RunOutcome::Cancelled => "it was cancelled".to_owned(),
            RunOutcome::BudgetExceeded { answer: Some(answer @ Body::Blob { .. }), .. } => {
                return ToolResult::new(answer.clone(), true);
            }
            RunOutcome::BudgetExceeded { budget, answer: Some(Body::Text(said)) } => {
                format!("its budget of {} was used up. It said at last: {said}", budget.as_str())
            }
            RunOutcome::BudgetExceeded { budget, answer: None } => {
                format!("its budget of {} was used up", budget.as_str())
            }
            RunOutcome::Loop { tool, times, calls: 1 } => {
                format!("it called {tool} {times} times in a row with the same arguments")
            }
            RunOutcome::Loop { tool, times, calls } => {
                format!("it made the same {calls} calls {times} times in turn, the last one of {tool}")
            }
            RunOutcome::Failed { failure } => {
                format!("its model gave none ({}: {})", failure.code, failure.message)
            }
            RunOutcome::Abandoned { step } => format!("a person gave it up at step {step}"),
        };
        ToolResult::new(Body::text(format!("{} gave no answer: {why}", self.child)), true)
    }
}

impl Run {
    /// The child that an event of this run creates, if any.
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
        // The same name could be another endpoint.
        spec.tools.retain(|name, tool| own.tools.get(name).is_some_and(|own| own.endpoint == tool.endpoint));
        spec.sandbox = spec.sandbox.within(&own.sandbox);
        spec.directory = own.directory.clone();
        spec.agents = own.agents.clone();
        spec.task = task.clone();
        spec.budget = *budget;
        // A call of the same model costs the child as much as it cost the parent.
        if agent.is_none() && self.dearest() > 0 && self.tariff().is_none() {
            let most = spec.model.reply_micros_max.unwrap_or(0).max(self.dearest());
            spec.model.reply_micros_max = Some(most);
        }
        let child_of = ChildOf { run: self.id()?.clone(), step: *step, depth: self.depth() + 1 };
        Some(NewChild { run: child.clone(), agent: Box::new(spec), child_of })
    }

    /// The children that this run is waiting for.
    pub fn children(&self) -> impl Iterator<Item = &RunId> {
        self.open_steps().iter().filter_map(|open| open.effect.child())
    }

    /// The end to report to the parent; `None` before the end, and for runs without a parent.
    pub fn end_for_parent(&self) -> Option<(&ChildOf, ChildEnd)> {
        let (child_of, outcome, child) = (self.child_of()?, self.outcome()?.clone(), self.id()?.clone());
        Some((child_of, ChildEnd { child, outcome, spent: self.ledger().spent_at_most() }))
    }
}

impl Effect {
    /// The child that it starts.
    pub fn child(&self) -> Option<&RunId> {
        match self {
            Self::Delegate { child, .. } => Some(child),
            Self::CallModel { .. }
            | Self::Summarize { .. }
            | Self::CallTool { .. }
            | Self::Wait { .. }
            | Self::AskHuman { .. }
            | Self::TakeSnapshot => None,
        }
    }
}
