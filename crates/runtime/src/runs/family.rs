//! The consequences of a run's events for its parent and its child: collected with the events, and appended in the
//! same commit.
//!
//! ```text
//!   parent ──── StepIntended(Delegate): the child itself ──────────────────────────▶ child
//!          ──── Paused, Resumed, StepAbandoned: pause, resume, cancel ─────────────▶
//!          ◀─── RunFinished: its end, and what it spent ────────────────────────────
//! ```
//! Pausing propagates down, because a child's effects belong to its parent: nothing new starts on behalf of a paused
//! run. However a run ends, the children it waits for are cancelled, because their results are no longer needed. Neither
//! propagates up: a paused child keeps its parent waiting, and a cancelled child is a failed call for its parent.

use saggar_domain::{Labels, ProjectId, RunId};
use saggar_engine::{ChildEnd, EffectFailure, Entry, Event, Run, RunOutcome};
use saggar_store::{NewLetter, NewRun};

use super::instruction::Instruction;
use super::stored_agent::pack;

/// Prefix of the ids of letters between runs; no other letter has it.
pub(super) const OWN_LETTERS: &str = "@";
/// The id of a parent's letters: the newest replaces the earlier one.
const FROM_PARENT: &str = "@parent";
/// Prefix of the id of a child's end.
const FROM_CHILD: &str = "@child";

/// Decided events, with their consequences for other runs.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) events: Vec<Event>,
    pub(super) children: Vec<NewRun>,
    pub(super) letters: Vec<NewLetter>,
    /// Agents of the children that are too large for their entries.
    pub(super) agents: Vec<Vec<u8>>,
}

impl Batch {
    /// Adds an event, and applies it.
    pub(super) fn take(&mut self, project: &ProjectId, run: &mut Run, event: Event) {
        let waited_for = |of: Option<u64>| {
            let open = run.open_steps().iter().filter(move |open| of.is_none_or(|step| step == open.step));
            open.filter_map(|open| open.effect.child().cloned()).collect::<Vec<_>>()
        };
        let (children, instruction) = match &event {
            Event::Paused { .. } => (waited_for(None), Instruction::Pause),
            Event::Resumed { .. } => (waited_for(None), Instruction::Resume),
            Event::StepAbandoned { step, .. } => (waited_for(Some(*step)), Instruction::Cancel),
            _ => (Vec::new(), Instruction::Resume),
        };
        for child in children {
            self.say(project, &event, child, FROM_PARENT, &instruction);
        }
        if let Some((child, agent)) = begin(project, run, &event) {
            self.children.push(child);
            self.agents.extend(agent);
        }
        run.apply(&event);
        if matches!(event, Event::RunFinished { .. })
            && let Some((child_of, end)) = run.end_for_parent()
        {
            let id = child_end_id(&end.child);
            self.say(project, &event, child_of.run.clone(), &id, &Instruction::ChildEnded(short(end)));
        }
        self.events.push(event);
    }

    fn say(&mut self, project: &ProjectId, event: &Event, to: RunId, id: &str, instruction: &Instruction) {
        let (project, id, at) = (project.clone(), id.to_owned(), event.at());
        let body = instruction.encode().expect("what runs say to each other is short");
        self.letters.push(NewLetter { project, run: to, id, at, body });
    }
}

/// The id of the letter with a child's end.
pub(super) fn child_end_id(child: &RunId) -> String {
    format!("{FROM_CHILD} {child}")
}

/// The child that an event creates, as it is stored, and its agent if that is stored separately.
fn begin(project: &ProjectId, run: &Run, event: &Event) -> Option<(NewRun, Option<Vec<u8>>)> {
    let child = run.child_of_event(event)?;
    let (id, agent, created_at) = (child.run.clone(), child.agent.name.clone(), event.at());
    let child_of = Some((child.child_of.run.clone(), child.child_of.step));
    // A child's agent was validated with its parent's, so its start is accepted.
    let started = Run::new().decide(created_at, &child.start()).ok()?.into_iter().next()?;
    let (first, stored) = pack(&Entry::new(1, started));
    let labels = Labels::default();
    Some((NewRun { id, project: project.clone(), agent, labels, created_at, first, child_of }, stored))
}

/// Shortens an end so that it fits a letter: only a failure's message is unbounded.
fn short(mut end: ChildEnd) -> ChildEnd {
    const MESSAGE_MAX: usize = 4096;
    if let RunOutcome::Failed { failure: EffectFailure { message, .. } } = &mut end.outcome
        && message.len() > MESSAGE_MAX
    {
        message.truncate((0..=MESSAGE_MAX).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0));
    }
    end
}
