//! Sends instructions to a run, through its inbox: only the worker that holds a run appends to its journal.
//!
//! Invalid instructions are refused here, with an explanation. This is only a courtesy: a run may change before its
//! inbox is read, so the engine checks again, and its decision counts.

use std::time::Duration;

use saggar_engine::{ANSWER, Body, Decision, Event, Settled};
use saggar_store::{InboxError, LetterRoom, NewLetter, RunRow};

use super::blocked::Blocked;
use super::bodies::{fetch, shelve};
use super::family::OWN_LETTERS;
use super::handle::{NAME_LEN_MAX, Runs, refuse};
use super::instruction::Instruction;
use super::standing::Standing;
use crate::fail_point::pass;
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::sandboxes::{now, random};

/// Maximum length of a question that an error message quotes, in characters.
const QUOTED_MAX: usize = 200;

/// Whether a letter has to be stored.
enum Checked {
    /// Yes, under this id.
    New(Option<String>),
    /// No: the run has received it before.
    Known,
}

impl Runs {
    /// Sends an instruction. Durable when this returns; the same id is delivered once. Its effect is in the run's
    /// journal.
    pub async fn tell(&self, permit: &Permit, id: Option<String>, instruction: Instruction) -> Result<(), Fault> {
        permit.check(|action| matches!(action, Action::TellRun(_)))?;
        let row = self.row(permit, permit.run()?).await?;
        if id.as_ref().is_some_and(|id| id.is_empty() || id.len() > NAME_LEN_MAX || id.starts_with(OWN_LETTERS)) {
            let own = OWN_LETTERS;
            return Err(refuse(format!("an id must have 1 to {NAME_LEN_MAX} bytes and must not begin with {own:?}")));
        }
        let instruction = match instruction {
            Instruction::Signal { name, body, question } => {
                Instruction::Signal { name, body: shelve(self.store(), body).await?, question }
            }
            Instruction::Decide { step, attempt, decision: Decision::Done(body) } => {
                let decision = Decision::Done(shelve(self.store(), body).await?);
                Instruction::Decide { step, attempt, decision }
            }
            Instruction::RollBack { step, generation, message: Some(message) } => {
                let message = Some(shelve(self.store(), message).await?);
                Instruction::RollBack { step, generation, message }
            }
            // Runs send these to each other by what they append.
            Instruction::ChildEnded(_) => return Err(Fault::WrongPermit),
            Instruction::Raise { .. } if row.child_of.is_some() => {
                return Err(refuse_with(
                    format!("run {} is a child run, and its budget is part of its parent's", row.id),
                    "raise the budget of the run that started it, before it starts others".to_owned(),
                ));
            }
            other @ (Instruction::Raise { .. }
            | Instruction::Pause
            | Instruction::Resume
            | Instruction::Cancel
            | Instruction::Decide { .. }
            | Instruction::RollBack { message: None, .. }) => other,
        };
        if row.outcome.is_some() {
            return Err(finished(&row));
        }
        let blocked = match &row.block {
            None => Blocked::Waits,
            Some(block) => self.tell_blocked(&row, block, &instruction).await?,
        };
        if matches!(blocked, Blocked::Done) {
            return Ok(());
        }
        let instruction = match instruction {
            Instruction::Decide { step, attempt, decision } => {
                let attempt = Some(self.check_decision(&row, step, attempt).await?);
                Instruction::Decide { step, attempt, decision }
            }
            other => other,
        };
        let (own, room) = match &instruction {
            Instruction::Signal { name, body, question } if name == ANSWER => {
                match self.check_answer(&row, *question, body).await? {
                    Checked::New(own) => (own, LetterRoom::Data),
                    Checked::Known => return Ok(()),
                }
            }
            Instruction::Signal { question: Some(_), .. } => {
                return Err(refuse(format!("only a signal named {ANSWER:?} may name a question")));
            }
            Instruction::Signal { .. } => (None, LetterRoom::Data),
            // An attempt has one decision: a different second one is detected even before the first is read.
            Instruction::Decide { step, attempt, .. } => {
                let attempt = attempt.unwrap_or_default();
                (Some(format!("{OWN_LETTERS}decide {step} {attempt}")), LetterRoom::Control)
            }
            // A generation goes back once.
            Instruction::RollBack { generation: Some(generation), .. } => {
                (Some(format!("{OWN_LETTERS}roll back {generation}")), LetterRoom::Control)
            }
            // One unread letter is enough.
            Instruction::Cancel => (Some(format!("{OWN_LETTERS}cancel")), LetterRoom::Unbounded),
            Instruction::Raise { .. }
            | Instruction::Pause
            | Instruction::Resume
            | Instruction::RollBack { generation: None, .. }
            | Instruction::ChildEnded(_) => (None, LetterRoom::Control),
        };
        let id = own.or(id).unwrap_or_else(|| format!("{:032x}", u128::from_ne_bytes(random())));
        let body = instruction.encode().ok_or_else(|| refuse("the message is too long".to_owned()))?;
        let letter = NewLetter { project: permit.project().clone(), run: row.id.clone(), id, at: now(), body };
        match self.store().put_letter(letter, room).await {
            Ok(()) => {}
            Err(InboxError::NoRun) => return Err(Fault::no_run(&row.id)),
            Err(InboxError::Finished) => return Err(finished(&row)),
            Err(InboxError::Different) => {
                let what = format!("run {} has an unread message with the same id and different text", row.id);
                return Err(Fault::Conflict { what, help: format!("read {} again in a moment", row.id) });
            }
            Err(error @ InboxError::Full) => {
                let retry_after = Duration::from_secs(1);
                return Err(Fault::Capacity { what: error.to_string(), retry_after });
            }
            Err(InboxError::Store(error)) => return Err(error.into()),
        }
        pass("letter/put");
        if matches!(blocked, Blocked::Lifted) {
            self.lift(&row.id).await?;
        }
        self.hub().letter(&row.id);
        Ok(())
    }

    /// An answer is for the question it names, while that is open. Repeating the same answer is harmless.
    async fn check_answer(&self, row: &RunRow, question: Option<u64>, body: &Body) -> Result<Checked, Fault> {
        let turn = self.turn(row, row.head).await?;
        let mut asked = turn.iter().filter_map(|standing| Some((standing.step, standing.question()?)));
        let named = turn
            .iter()
            .find(|standing| Some(standing.step) == question)
            .and_then(|standing| Some((standing.step, standing.question()?)));
        let open = match named.or_else(|| asked.next()) {
            Some((step, text)) => Some((step, fetch(self.store(), text).await?)),
            None => None,
        };
        let how = match &open {
            Some((step, _)) => format!(
                "answer it with \"question\": {step}, or with: saggar runs answer {} --question {step} TEXT",
                row.id
            ),
            None => format!("wait until it asks: saggar runs follow {}", row.id),
        };
        let asks = match &open {
            Some((step, text)) => format!("run {} asks question {step}: {:?}", row.id, quoted(text)),
            None => format!("run {} has no open question", row.id),
        };
        let Some(question) = question else {
            return Err(match open {
                Some(_) => refuse_with(format!("an answer must name its question; {asks}"), how),
                None => Fault::Conflict { what: asks, help: how },
            });
        };
        if open.as_ref().is_some_and(|(step, _)| *step == question) {
            // A question has one answer: a different second one is detected even before the first is read.
            return Ok(Checked::New(Some(format!("{OWN_LETTERS}answer {question}"))));
        }
        match self.answer_of(row, question).await? {
            Some(answer) if answer == *body => Ok(Checked::Known),
            Some(answer) => {
                let answer = fetch(self.store(), &answer).await?;
                let what = format!("question {question} already has the answer {:?}; {asks}", quoted(&answer));
                Err(Fault::Conflict { what, help: how })
            }
            None => Err(Fault::Conflict { what: format!("question {question} is not open; {asks}"), help: how }),
        }
    }

    /// The answer that a question got.
    async fn answer_of(&self, row: &RunRow, question: u64) -> Result<Option<Body>, Fault> {
        let Some(end) = self.find_end_of_step(row, question).await? else { return Ok(None) };
        let turn = self.turn(row, end).await?;
        let Some(standing) = turn.into_iter().find(|standing| standing.step == question) else { return Ok(None) };
        Ok(match (standing.effect, standing.last) {
            (saggar_engine::Effect::AskHuman { .. }, Event::StepSettled { result: Settled::Returned(result), .. }) => {
                Some(result.content)
            }
            _ => None,
        })
    }

    /// A decision is for the step at which the run is parked, and for the attempt that parked it: gives that attempt.
    async fn check_decision(&self, row: &RunRow, step: u64, attempt: Option<u32>) -> Result<u32, Fault> {
        let turn = self.turn(row, row.head).await?;
        let is_parked = |standing: &&Standing| standing.parked().is_some();
        let parked = turn.iter().filter(is_parked).find(|standing| standing.step == step);
        let parked = parked.or_else(|| turn.iter().find(is_parked));
        match parked {
            Some(standing) if standing.step == step => match attempt {
                Some(attempt) if attempt != standing.attempt => Err(Fault::Conflict {
                    what: format!(
                        "run {} is parked at attempt {} of step {step}, not at attempt {attempt}",
                        row.id, standing.attempt
                    ),
                    help: format!(
                        "find out what the new attempt did, then decide about it; see: saggar runs show {}",
                        row.id
                    ),
                }),
                _ => Ok(standing.attempt),
            },
            Some(standing) => {
                let (parked, what) = (standing.step, standing.what());
                Err(Fault::Conflict {
                    what: format!("run {} is parked at step {parked} ({what}), not at step {step}", row.id),
                    help: format!("decide it with: saggar runs decide {} {parked} retry|done|abandon", row.id),
                })
            }
            None => Err(Fault::Conflict {
                what: format!("run {} is not parked at step {step}: it is {}", row.id, row.state.as_str()),
                help: format!("only a parked step can be decided; see: saggar runs show {}", row.id),
            }),
        }
    }
}

fn finished(row: &RunRow) -> Fault {
    let what = format!("run {} has finished", row.id);
    Fault::Conflict { what, help: "fork it to continue from a step".to_owned() }
}

fn refuse_with(message: String, help: String) -> Fault {
    Fault::Refused(saggar_domain::Problem::new(saggar_domain::Code::InvalidValue, message, help))
}

fn quoted(text: &str) -> String {
    let mut quoted: String = text.chars().take(QUOTED_MAX).collect();
    if quoted.len() < text.len() {
        quoted.push('…');
    }
    quoted
}
