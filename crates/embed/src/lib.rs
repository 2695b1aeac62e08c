//! Builds a program that a crate embeds. For build scripts only.
//!
//! The program is a build of its own: it must be static (musl) whatever the outer binary is, and it has its own profile, `guest`.
//! Plain `cargo build` and `cargo test` therefore work without a step before them.
#![forbid(unsafe_code)]

mod program;

pub use program::Program;
