//! Gemini's generateContent, as spoken to providers.

pub(crate) mod put;
pub(crate) mod stream;
