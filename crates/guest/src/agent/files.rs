//! A files worker: a session of requests about the sandbox's files, as one of its users.
//!
//! The kernel decides what that user may do; there are no further checks here. This code takes care of the rest:
//! nothing blocks on a special file, nothing recurses on the stack, no incomplete file gets a name, and nothing grows
//! with the size of a file or a tree.

mod at;
mod change;
mod data;
mod descent;
mod entry;
mod notes;
mod remove;
mod session;
mod tree;
mod watch;
mod write;

pub(super) use session::serve;
