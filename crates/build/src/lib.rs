//! Builds templates: the steps of a recipe, each in a sandbox of its own or as copies, become layers.
//!
//! A recipe comes from a Dockerfile, from a file or from a client; the engine knows only the recipe. Files of the host are read from the contexts
//! that the caller names, and programs run in sandboxes only. Layers are written by `saggar-image`.
//!
//! The engine starts sandboxes, which takes a process with a single thread. A server starts one per build.

#![forbid(unsafe_code)]

mod cache_key;
mod context;
pub mod dockerfile;
mod engine;
mod event;
mod glob;
mod ignore;
mod recipe;
mod request;
mod run;
mod stage;

pub use engine::{build, template_env};
pub use event::{Built, Event, Failure, Log, Stream};
pub use ignore::IgnoreList;
pub use recipe::{Action, Base, Command, Recipe, Stage, Step};
pub use request::{BUILD, Order, Request};
