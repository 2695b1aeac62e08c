//! Frames: the unit of what host and guest say to each other.
//!
//! A frame is `[u32 length][u8 kind][payload]`, little-endian; `length` counts the payload alone. The two directions use
//! disjoint kinds, so a crossed wire is an error and not a misreading. Which length is allowed follows from the kind: an
//! `Exec` may be as large as the kernel would let an argument list be, everything else is small.
//!
//! Besides the channel ([`ToGuest`], [`FromGuest`]) there are sessions about files ([`FileRequest`], [`FileReply`]), each on a stream of its own.
//!
//! INVARIANT: what comes from the other side can cost at most the bound of its kind in memory, and is either a value that
//! satisfies every rule written here or a [`FrameError`]; no input panics. The writer checks the same rules as the reader.

mod decoder;
mod error;
mod exec;
mod file_reply;
mod file_request;
mod from_guest;
mod open;
mod to_guest;
mod wire;

pub use decoder::{Decoder, Message};
pub use error::FrameError;
pub use exec::{
    ARGUMENTS_MAX, ENVIRONMENT_MAX, ExecRequest, GROUPS_MAX, JOINS_MAX, PATH_MAX, STORAGE_PATHS_MAX, TerminalSize,
};
pub use file_reply::{ENTRY_PATH_MAX, FileEntry, FileEventKind, FileKind, FileReply, FileStage};
pub use file_request::{
    DATA_MAX, FileRequest, LINK_MAX, METADATA_MAX, METADATA_NAME_MAX, METADATA_VALUE_MAX, MetadataEntry,
};
pub use from_guest::{End, FailStage, FromGuest};
pub use open::{OpenRequest, OpenTarget, PortPreface};
pub use to_guest::{SignalScope, ToGuest};

/// The version of this protocol; the guest says it in `Hello`, and the host refuses any other.
pub const PROTOCOL: u32 = 3;

/// The length field and the kind.
pub const HEADER_LEN: usize = 5;

/// The longest payload of every frame but `Exec`.
pub const FRAME_MAX: usize = 128 * 1024;

/// The longest payload of an `Exec`: what Linux by default lets arguments and environment take together.
pub const EXEC_FRAME_MAX: usize = 2 * 1024 * 1024;

/// How many bytes of one exec's stdin the host may have sent without `StdinTaken` for them.
pub const STDIN_WINDOW: usize = 64 * 1024;

/// Names one exec within a sandbox. The host chooses it and never uses it twice.
pub type ExecId = u32;

/// Which output of a program. With a terminal everything is `Stdout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// File descriptor 1, or the terminal.
    Stdout,
    /// File descriptor 2.
    Stderr,
}
