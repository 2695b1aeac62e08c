//! OpenAI responses.

pub(crate) mod ask;
pub(crate) mod put;
pub(crate) mod stream;
pub(crate) mod tell;
