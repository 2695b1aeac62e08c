//! Frames: the messages between host and guest.
//!
//! A frame is `[u32 length][u8 kind][payload]`, little-endian; `length` is that of the payload. The two directions use
//! disjoint kinds, so a crossed wire is an error and not a misreading. The maximum length depends on the kind: an
//! `Exec` may be as large as the kernel allows an argument list to be, everything else is small.
//!
//! Besides the channel ([`ToGuest`], [`FromGuest`]) there are file sessions ([`FileRequest`], [`FileReply`]), each on
//! its own stream.
//!
//! INVARIANT: input from the other side takes at most the bound of its kind in memory, and is either a value that
//! satisfies every rule written here or a [`FrameError`]; no input panics. The writer checks the same rules as the
//! reader.

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

/// The version of this protocol; the guest sends it in `Hello`, and the host refuses any other.
pub const PROTOCOL: u32 = 4;

/// The length field and the kind.
pub const HEADER_LEN: usize = 5;

/// Maximum payload of every frame but `Exec`.
pub const FRAME_MAX: usize = 128 * 1024;

/// Maximum payload of an `Exec`: Linux's default limit for arguments and environment together.
pub const EXEC_FRAME_MAX: usize = 2 * 1024 * 1024;

/// Bytes of one exec's stdin that the host may have sent without `StdinTaken` for them.
pub const STDIN_WINDOW: usize = 64 * 1024;

/// Identifies one exec within a sandbox. The host chooses it and never reuses it.
pub type ExecId = u32;

/// An output of a program. With a terminal everything is `Stdout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// File descriptor 1, or the terminal.
    Stdout,
    /// File descriptor 2.
    Stderr,
}
