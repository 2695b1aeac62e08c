//! Dockerfiles: the common subset, as a recipe. What is not in it is refused by its line, never skipped silently.
//!
//! Variables are expanded here, with the environment of each stage's base, so that a recipe has none left. Lines for a shell are left to that shell.

mod instruction;
mod lines;
mod stages;
mod words;

use std::collections::BTreeMap;

use saggar_domain::{Code, Problem};

use crate::recipe::Recipe;

pub use stages::read;

/// Something in a file that has no effect here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub line: u32,
    pub text: String,
}

/// A Dockerfile that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    pub recipe: Recipe,
    pub notices: Vec<Notice>,
}

pub type EnvOf<'a> = dyn Fn(&str) -> Result<BTreeMap<String, String>, Problem> + 'a;

/// What a file may depend on.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// Build arguments.
    pub args: &'a BTreeMap<String, String>,
    /// The stage to end with; the last one if there is none.
    pub target: Option<&'a str>,
    /// The environment of a template.
    pub env_of: &'a EnvOf<'a>,
}

fn wrong(line: u32, what: impl std::fmt::Display, help: impl Into<String>) -> Problem {
    Problem::new(Code::InvalidValue, format!("line {line} of the Dockerfile: {what}"), help)
}

#[cfg(test)]
mod tests;
