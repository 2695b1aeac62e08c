//! Messages of a conversation.

use serde::{Deserialize, Serialize};

use super::part::Part;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message<T = String> {
    pub role: Role,
    pub parts: Vec<Part<T>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Instructions, usually the first message. OpenAI's `developer` is the same.
    System,
    /// A person's text, and the results of tools.
    User,
    /// The model.
    Assistant,
}

impl<T> Message<T> {
    pub fn new(role: Role, parts: Vec<Part<T>>) -> Self {
        Self { role, parts }
    }

    /// The same message with other text, as [`Part::try_map`].
    pub fn try_map<U, E>(self, f: &mut impl FnMut(T) -> Result<U, E>) -> Result<Message<U>, E> {
        let parts = self.parts.into_iter().map(|part| part.try_map(f));
        Ok(Message { parts: parts.collect::<Result<_, E>>()?, role: self.role })
    }
}
