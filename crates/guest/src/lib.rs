//! What the host and the agent inside a sandbox say to each other.
//!
//! The library holds the frames and nothing else: no IO, no clock, no standard library, so that both sides link the same
//! code and neither drags in the other. The agent is the binary of the same name (`src/main.rs`, `src/agent/`).

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod frame;

pub use frame::{
    ARGUMENTS_MAX, Decoder, ENVIRONMENT_MAX, EXEC_FRAME_MAX, End, ExecId, ExecRequest, FRAME_MAX, FailStage,
    FrameError, FromGuest, GROUPS_MAX, HEADER_LEN, Message, PATH_MAX, PROTOCOL, STDIN_WINDOW, STORAGE_PATHS_MAX,
    Stream, TerminalSize, ToGuest,
};
