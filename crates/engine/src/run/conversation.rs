//! The conversation with the model, and its current turn: the calls of the last reply that have not been made, and the
//! results that can't be told yet.
//!
//! Calls may end in any order, and the model gets their results in its own order. So a result waits here until those
//! of all earlier calls are there. A person's message that arrives in the middle of a turn waits for its end: providers
//! refuse a message between a call and its result.

use std::collections::{BTreeMap, VecDeque};

use super::back::Mark;
use super::summary::SUMMARY;
use crate::body::Body;
use crate::effect::{ToolCall, ToolResult};
use crate::reply::{ModelReply, message_tokens};

/// Bytes that a request may add to the text of a tool's result: marks that say where it begins and ends.
pub const RESULT_MARKS_LEN: u64 = 160;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The system prompt.
    System(Body),
    User(Body),
    /// What older turns came to, in the model's own words.
    Summary(Body),
    /// The model's reply with its tool calls.
    Assistant(ModelReply),
    /// A tool's result.
    Tool {
        /// The model's id for the call.
        call: String,
        result: ToolResult,
    },
}

/// INVARIANT: every call of the last reply is in `calls`, or is open, or has its result in `held` or in `messages`.
#[derive(Clone, Debug, Default)]
pub(super) struct Conversation {
    pub(super) messages: Vec<Message>,
    pub(super) bytes: u64,
    pub(super) tokens: u64,
    // Calls that have not been made, with their places in the reply, in that order.
    calls: VecDeque<(u32, ToolCall)>,
    // By place: results of calls whose predecessors have none yet. `None` for a call that gets no result.
    held: BTreeMap<u32, Option<Message>>,
    // The place of the next result to tell.
    next: u32,
    later: Vec<Message>,
}

impl Conversation {
    /// What the model has been told, or will be told with the next call.
    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub(super) fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.calls.iter().map(|(_, call)| call)
    }

    /// Number of messages when the turn is over, as far as they exist.
    pub(super) fn length(&self) -> u64 {
        (self.messages.len() + self.held.values().flatten().count() + self.later.len()) as u64
    }

    /// Their bytes.
    pub(super) fn bytes(&self) -> u64 {
        let waiting = self.held.values().flatten().chain(&self.later);
        waiting.fold(self.bytes, |sum, message| sum.saturating_add(message.length()))
    }

    /// The tokens that they have as a request, at most.
    pub(super) fn tokens(&self) -> u64 {
        let waiting = self.held.values().flatten().chain(&self.later);
        waiting.fold(self.tokens, |sum, message| sum.saturating_add(message.tokens()))
    }

    /// Whether a person's message waits for the end of the turn.
    pub(super) fn has_more(&self) -> bool {
        !self.later.is_empty()
    }

    pub(super) fn say(&mut self, message: Message) {
        self.bytes = self.bytes.saturating_add(message.length());
        self.tokens = self.tokens.saturating_add(message.tokens());
        self.messages.push(message);
    }

    /// Says it when the turn is over.
    pub(super) fn say_later(&mut self, message: Message) {
        self.later.push(message);
    }

    /// Messages that wait for the end of the turn.
    pub(super) fn later(&self) -> impl Iterator<Item = &Message> {
        self.later.iter()
    }

    /// The model gets this as the result of a call instead.
    pub(super) fn unsay_later(&mut self, message: &Message) {
        if let Some(at) = self.later.iter().position(|later| later == message) {
            self.later.remove(at);
        }
    }

    /// A new turn begins.
    pub(super) fn reply(&mut self, reply: &ModelReply) {
        self.calls = (0..).zip(reply.calls.iter().cloned()).collect();
        self.held.clear();
        self.next = 0;
        self.say(Message::Assistant(reply.clone()));
    }

    /// The next call is made. Gives its place.
    pub(super) fn take_call(&mut self) -> u32 {
        self.calls.pop_front().map_or(0, |(place, _)| place)
    }

    /// A call was not made after all.
    pub(super) fn put_back(&mut self, place: u32, call: ToolCall) {
        let at = self.calls.iter().position(|(other, _)| *other > place).unwrap_or(self.calls.len());
        self.calls.insert(at, (place, call));
    }

    /// The result of the call at that place; `None` if it gets none.
    pub(super) fn result(&mut self, place: u32, message: Option<Message>) {
        if place < self.next {
            // An edited journal may settle a call twice.
            return message.into_iter().for_each(|message| self.say(message));
        }
        self.held.insert(place, message);
        while let Some(message) = self.held.remove(&self.next) {
            self.next += 1;
            if let Some(message) = message {
                self.say(message);
            }
        }
    }

    /// Nothing is open. If no call is left either, the turn is over.
    pub(super) fn rest(&mut self) {
        if self.calls.is_empty() {
            for message in std::mem::take(&mut self.later) {
                self.say(message);
            }
        }
    }

    /// Where it is, while nothing is open: the number of messages, the place of the next call, the results of calls after
    /// it, and what waits for the end of the turn.
    pub(super) fn place(&self) -> (usize, u32, BTreeMap<u32, Option<Message>>, Vec<Message>) {
        (self.messages.len(), self.next, self.held.clone(), self.later.clone())
    }

    /// Forgets what came after that place.
    pub(super) fn back_to(&mut self, mark: &Mark) {
        for message in self.messages.drain(mark.messages..) {
            self.bytes = self.bytes.saturating_sub(message.length());
            self.tokens = self.tokens.saturating_sub(message.tokens());
        }
        let is_reply = |message: &&Message| matches!(message, Message::Assistant(_));
        let calls = match self.messages.iter().rev().find(is_reply) {
            Some(Message::Assistant(reply)) => reply.calls.as_slice(),
            _ => &[],
        };
        let is_left = |place: &u32| *place >= mark.next && !mark.held.contains_key(place);
        self.calls = (0..).zip(calls.iter().cloned()).filter(|(place, _)| is_left(place)).collect();
        self.held.clone_from(&mark.held);
        self.next = mark.next;
        self.later.clone_from(&mark.later);
    }

    /// The run is over.
    pub(super) fn end(&mut self) {
        self.calls.clear();
    }
}

impl Message {
    /// In bytes.
    pub(super) fn length(&self) -> u64 {
        match self {
            Self::System(text) | Self::User(text) | Self::Summary(text) => text.length(),
            Self::Assistant(reply) => {
                reply.text.length() + reply.calls.iter().map(|call| call.arguments.length()).sum::<u64>()
            }
            Self::Tool { result, .. } => result.content.length(),
        }
    }

    /// The tokens that it adds to a request, at most.
    pub(super) fn tokens(&self) -> u64 {
        match self {
            Self::System(text) | Self::User(text) => message_tokens(text.length()),
            Self::Summary(text) => message_tokens(text.length() + SUMMARY.len() as u64),
            Self::Assistant(reply) => reply.tokens(),
            Self::Tool { call, result } => {
                message_tokens(result.content.length() + call.len() as u64 + RESULT_MARKS_LEN)
            }
        }
    }
}
