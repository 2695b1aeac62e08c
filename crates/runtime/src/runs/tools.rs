//! The catalogue of tools: what each is, and who performs it. Nothing else in the program knows a tool by its name.
//!
//! A new tool is one file below, which describes and performs it, and its lines here: its module and its place in
//! [`CATALOGUE`]. `reference.rs` checks that docs/tools.md says the same.
//!
//! Arguments are checked against the schema when a model's reply arrives, before anything is intended. The complaint
//! is part of the reply in the journal, so a later schema doesn't change what an old journal means. What is performed
//! reads its arguments once more, strictly: an old journal may have calls that were never checked.

mod code;
mod described;
mod edit;
mod engine;
mod files;
mod hands;
mod http;
mod presented;
#[cfg(test)]
mod reference;
mod report;
mod sandbox;
mod shell;
mod tool;

pub use http::HttpRule;
pub use tool::{Needs, Perform, Performer, Tool};

pub use described::default_class;
pub(super) use described::described;
pub(super) use hands::{Hands, LiveSettings};
pub(crate) use http::Exits;
pub(super) use http::{Endpoint, HttpTool, check_arguments, check_endpoint};
pub(super) use presented::presented;
pub(super) use report::{failed, returned};
pub(super) use sandbox::RunSandbox;

/// All tools, as the docs list them.
pub const CATALOGUE: &[Tool] = &[
    shell::TOOL,
    code::TOOL,
    files::TOOL,
    edit::TOOL,
    http::TOOL,
    engine::WAIT,
    engine::ASK_HUMAN,
    engine::DELEGATE,
    engine::FINISH,
];
