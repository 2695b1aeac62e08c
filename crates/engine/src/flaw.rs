//! Flaws: what makes a model's reply useless, and what follows.
//!
//! A reply is cut off at its limit, or empty, or its answer isn't of the form that the agent's author wants, or none of its
//! calls can be made. The model is told what is wrong, a bounded number of times in a row; then the run fails, with the
//! flaw as the reason. A refusal is no flaw that telling could mend, so it ends the run at once.
//!
//! Everything follows from the reply as the journal has it: what needs a schema was found when the reply arrived, and is
//! recorded in it.

use saggar_domain::model::Stop;

use crate::agent::AgentSpec;
use crate::body::Body;
use crate::input::EffectFailure;
use crate::reply::ModelReply;

/// Maximum length of what an outcome quotes of a reply, in characters.
const QUOTED_MAX: usize = 300;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The model declined, for this reason as far as it gave one.
    Refused(String),
    /// The provider's filter blocked the prompt or the answer.
    Filtered,
    /// The model's context is full.
    ContextFull,
    /// Cut off at the limit of so many tokens.
    Cut(u64),
    /// The provider wants the same conversation again, to continue.
    Unfinished,
    /// Neither text nor calls.
    Empty,
    /// The answer isn't of the form that it must have.
    WrongAnswer(String),
    /// None of its calls can be made. Their results say why.
    WrongCalls,
    /// It was to sum up the conversation, and didn't, for this reason.
    NoSummary(&'static str),
}

/// What follows from a flaw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Fail(EffectFailure),
    /// The model is told this, and asked again.
    Tell(String),
    /// There is nothing to tell beside the results of its calls.
    GoOn,
}

impl Flaw {
    pub(crate) fn of(reply: &ModelReply, agent: &AgentSpec) -> Option<Self> {
        if !reply.calls.is_empty() {
            let is_wrong = |call: &crate::ToolCall| call.invalid.is_some() || !agent.tools.contains_key(&call.tool);
            return reply.calls.iter().all(is_wrong).then_some(Self::WrongCalls);
        }
        match reply.stop() {
            Some(Stop::Refusal) => return Some(Self::Refused(quoted(reply.refusal().unwrap_or(&reply.text)))),
            Some(Stop::ContentFilter) => return Some(Self::Filtered),
            Some(Stop::ContextFull) => return Some(Self::ContextFull),
            Some(Stop::MaxTokens) => return Some(Self::Cut(agent.model.reply_tokens_max)),
            Some(Stop::Paused) => return Some(Self::Unfinished),
            Some(Stop::End | Stop::Sequence | Stop::ToolCalls | Stop::Other) | None => {}
        }
        if let (0, Some(reason)) = (reply.text.length(), reply.refusal()) {
            return Some(Self::Refused(quoted(reason)));
        }
        if let Some(complaint) = &reply.invalid {
            return Some(Self::WrongAnswer(complaint.clone()));
        }
        // A script, or a person in the model's place, may mean it.
        (reply.text.length() == 0 && reply.said.is_some()).then_some(Self::Empty)
    }

    /// The same of a reply that is to sum up the conversation. Calls in it are ignored.
    pub(crate) fn of_summary(reply: &ModelReply) -> Option<Self> {
        let why = match reply.stop() {
            Some(Stop::ContextFull) => return Some(Self::ContextFull),
            Some(Stop::Refusal) => "it declined",
            Some(Stop::ContentFilter) => "the provider's filter blocked it",
            Some(Stop::MaxTokens) => "it was cut off at its limit of tokens",
            Some(Stop::Paused) => "the provider did not finish it",
            Some(Stop::End | Stop::Sequence | Stop::ToolCalls | Stop::Other) | None => {
                return (reply.text.length() == 0).then_some(Self::NoSummary("it was empty"));
            }
        };
        Some(Self::NoSummary(why))
    }

    /// `before` is the number of useless replies just before it.
    pub(crate) fn verdict(&self, before: u32, most: u32) -> Verdict {
        let fail = |message: String| Verdict::Fail(EffectFailure::new(self.code(), message, false));
        let is_last = before >= most;
        let times = |what: &str| fail(format!("{what}, {} times in a row", u64::from(before) + 1));
        match self {
            Self::Refused(reason) if reason.is_empty() => fail("the model declined to answer".to_owned()),
            Self::Refused(reason) => fail(format!("the model declined to answer: {reason}")),
            Self::Filtered => fail("the provider's filter blocked the conversation or the answer".to_owned()),
            Self::ContextFull => fail(
                "the model's context is full: set context.tokens_max of the agent below the model's limit".to_owned(),
            ),
            Self::Cut(limit) if is_last => times(&format!("the model's reply was cut off at {limit} tokens")),
            Self::Unfinished if is_last => times("the provider did not finish the model's reply"),
            Self::Empty if is_last => times("the model answered nothing"),
            Self::WrongAnswer(complaint) if is_last => {
                times(&format!("the model's answer was not of the form that the agent's output has ({complaint})"))
            }
            Self::WrongCalls if is_last => {
                times("the model called only tools that it doesn't have, or with wrong arguments")
            }
            Self::NoSummary(why) if is_last => times(&format!("the model gave no summary of the conversation: {why}")),
            Self::Cut(limit) => Verdict::Tell(format!(
                "Note from the runtime: your reply was cut off at its limit of {limit} tokens, and nothing of it was used. Be \
                 brief: answer in fewer words, or do the task in smaller parts, with a tool call for each."
            )),
            Self::Empty => Verdict::Tell(
                "Note from the runtime: your reply was empty. Go on with the task, or answer it.".to_owned(),
            ),
            Self::WrongAnswer(complaint) => Verdict::Tell(format!(
                "Note from the runtime: your answer can't be accepted: {complaint}. Answer again, with nothing but a JSON \
                 object as the task demands."
            )),
            Self::Unfinished | Self::WrongCalls | Self::NoSummary(_) => Verdict::GoOn,
        }
    }

    /// The reason in a run's outcome.
    fn code(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Filtered => "content_filter",
            Self::ContextFull => "context_full",
            Self::Cut(_) => "reply_cut",
            Self::Unfinished => "reply_unfinished",
            Self::Empty => "empty_reply",
            Self::WrongAnswer(_) => "wrong_output",
            Self::WrongCalls => "wrong_calls",
            Self::NoSummary(_) => "no_summary",
        }
    }
}

fn quoted(text: &Body) -> String {
    text.as_text().unwrap_or_default().chars().take(QUOTED_MAX).collect()
}
