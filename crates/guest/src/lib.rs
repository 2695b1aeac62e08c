//! The protocol between the host and the agent inside a sandbox.
//!
//! The library contains only the frames: no IO, no clock, no standard library, so that both sides link the same code
//! and neither pulls in the other. The agent is the binary of the same name (`src/main.rs`, `src/agent/`).

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod frame;

pub use frame::{
    ARGUMENTS_MAX, DATA_MAX, Decoder, ENTRY_PATH_MAX, ENVIRONMENT_MAX, EXEC_FRAME_MAX, End, ExecId, ExecRequest,
    FRAME_MAX, FailStage, FileEntry, FileEventKind, FileKind, FileReply, FileRequest, FileStage, FrameError, FromGuest,
    GROUPS_MAX, HEADER_LEN, JOINS_MAX, LINK_MAX, METADATA_MAX, METADATA_NAME_MAX, METADATA_VALUE_MAX, Message,
    MetadataEntry, OpenRequest, OpenTarget, PATH_MAX, PROTOCOL, PortPreface, STDIN_WINDOW, STORAGE_PATHS_MAX,
    SignalScope, Stream, TerminalSize, ToGuest,
};
