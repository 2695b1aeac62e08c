//! The runtime: the lifecycle of sandboxes over the processes that hold them, and everything that is done in one.
//!
//! Async, and without HTTP or SQL: whoever answers requests calls it, and it keeps what must be found again in the store.
//! Everything that acts takes a [`Permit`].
#![forbid(unsafe_code)]

mod execs;
mod fail_point;
mod fault;
mod files;
mod following;
mod host;
mod keys;
mod permit;
mod ports;
pub mod runs;
mod sandboxes;
mod settings;
mod signing;
mod supervisor;

pub use fault::{Fault, FileFault, FileFaultKind};
pub use files::{
    DEPTH_MAX, FileEntry, FileEvent, FileEventKind, FileKind, FilePath, Files, Heard, LIST_MAX, MetadataEntry, Reading,
    Walked, Walking, Watching, WriteOptions, Writing,
};
pub use following::{ExecEvent, Finished, Followed, Following};
pub use keys::{KEYS, create_key_in};
pub use permit::{Action, Kind, Permit, Subject};
pub use sandboxes::{Adopted, Created, ExecView, NewSandbox, NewTerms, Patch, PoolSize, Sandboxes, StoredExec, Upkeep};
pub use settings::Settings;
pub use signing::{SIGNING_KEY, Signature, SigningKey};
pub use supervisor::{ControlError, Feeding, Launched, Launcher, Waiting};
