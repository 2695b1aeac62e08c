//! Signals that no `wait` has returned yet, in their order. One that arrives before the wait for it isn't lost.
//!
//! A signal is a message of the conversation too, unless a wait returns it before the model has seen it. A person's
//! message, which has the name [`MESSAGE`], is kept only until then: the next one is another.

use std::collections::VecDeque;

use super::SIGNALS_MAX;
use crate::body::Body;

/// The name of a person's message.
pub const MESSAGE: &str = "message";

/// INVARIANT: at most [`SIGNALS_MAX`]; the oldest make room.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept(VecDeque<(String, Body)>);

impl Kept {
    pub(super) fn keep(&mut self, name: &str, body: &Body) {
        if self.0.len() == SIGNALS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((name.to_owned(), body.clone()));
    }

    /// The text of the oldest signal of that name.
    pub(super) fn oldest(&self, name: &str) -> Option<&Body> {
        self.0.iter().find(|(kept, _)| kept == name).map(|(_, body)| body)
    }

    /// A wait has returned the oldest signal of that name, if it has this text.
    pub(super) fn take(&mut self, name: &str, body: &Body) {
        let oldest = self.0.iter().position(|(kept, _)| kept == name);
        if let Some(at) = oldest.filter(|at| self.0[*at].1 == *body) {
            self.0.remove(at);
        }
    }

    /// The model has seen all messages.
    pub(super) fn forget_messages(&mut self) {
        self.0.retain(|(name, _)| name != MESSAGE);
    }
}
