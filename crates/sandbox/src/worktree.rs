//! Worktrees: a git repository of the host for a sandbox, as the files of its current commit.
//!
//! The sandbox gets a checkout of its own, with a git directory of its own that borrows the host's objects read-only. The host's git is
//! never run, so neither hooks, filters nor settings of the repository can run anything here, and nothing inside can write to the
//! repository. What the sandbox committed becomes a branch when somebody applies it: each object is read from what was kept, checked against
//! its id, and written as a new file. Refs that exist, the working tree, the index and the settings stay as they are.

mod branch;
mod checkout;
mod example;
mod import;
mod object;
mod pack;
mod repository;
mod store;
mod tree;
mod work;

pub use branch::{NewBranch, NewCommit};
pub(crate) use checkout::{Checkout, remove, remove_orphans};
pub use example::plant as plant_repository;
pub(crate) use import::{Import, Imported};
pub(crate) use object::ObjectId;
pub(crate) use repository::Repository;
pub(crate) use store::Objects;
