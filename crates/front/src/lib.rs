//! The front: what happens once per sandbox on the command line, and the way from there to everything else.
//!
//! `saggar run`, `saggar doctor`, `saggar --version` and the helper modes of a sandbox are carried out here, by a program that is small however
//! much the rest grows: a start pays for the size of what it maps, and a supervisor keeps what it relocates. The rest is another program that
//! lies behind this one in the same file; see `start.rs`. This crate must stay free of an async runtime and of the server.
#![forbid(unsafe_code)]

mod args;
mod ask;
mod doctor;
mod events;
pub mod joint;
pub mod outcome;
mod recording;
mod run;
mod secrets;
mod spec_file;
mod spec_flags;
mod start;
pub mod streams;
pub mod terminal;

pub use args::{DoctorArguments, RunArguments, template_name, tier};
pub use doctor::main as doctor;
pub use run::{main as run, misused};
pub use secrets::default_path as default_secrets_file;
pub use spec_file::read as read_spec;
pub use spec_flags::{NetworkLimitFlags, RuleFlags, SpecFlags, env_entry, network_mode, storage, user};
pub use start::{end_with_a_panic, helper_mode, start};
