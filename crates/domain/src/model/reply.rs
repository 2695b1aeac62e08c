//! What a model answered.

use serde::{Deserialize, Serialize};

use super::part::{Part, ToolCall};
use super::stop::Stop;
use super::usage::TokenUsage;
use super::verbatim::Origin;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelReply<T = String> {
    /// Of the assistant. They go back as they are with the next request.
    pub parts: Vec<Part<T>>,
    pub stop: Stop,
    pub usage: TokenUsage,
    /// Who really answered.
    pub origin: Origin,
}

impl<T> ModelReply<T> {
    /// The requested calls, in the model's order.
    pub fn calls(&self) -> impl Iterator<Item = &ToolCall<T>> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolCall(call) => Some(call),
            Part::Text { .. }
            | Part::Image(_)
            | Part::ToolResult(_)
            | Part::Reasoning { .. }
            | Part::Refusal { .. }
            | Part::Provider { .. } => None,
        })
    }

    /// The same reply with other text, as [`Part::try_map`].
    pub fn try_map<U, E>(self, f: &mut impl FnMut(T) -> Result<U, E>) -> Result<ModelReply<U>, E> {
        let parts = self.parts.into_iter().map(|part| part.try_map(f)).collect::<Result<_, E>>()?;
        Ok(ModelReply { parts, stop: self.stop, usage: self.usage, origin: self.origin })
    }
}
