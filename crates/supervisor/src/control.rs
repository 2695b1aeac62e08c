//! What a server and the process that holds a sandbox say to each other.
//!
//! One connection is one operation: a request, its answer, and for some a stream until either side closes. That leaves the
//! bookkeeping of who waits for whom to the kernel: a slow reader holds up its own connection and nothing else, and a
//! server that dies takes none of this process's state with it.
//!
//! Control is JSON, because two versions of us talk here (a server is replaced while its sandboxes live on): unknown fields
//! are ignored, new ones are optional. Bytes of programs are raw. [`Request::v`] says what the asker speaks.

mod client;
mod codec;
mod reply;
mod request;

pub use client::{Client, Received};
pub use codec::{Decoder, Frame, FrameError, JSON_MAX, encode_json, encode_output, encode_stdin};
pub use reply::{Description, Event, EventBody, ExecDescription, Final, FinishedExec, Reply, Sample, UsageReport};
pub use request::{Attach, Op, Request, Start, StartExec, Target, Terms};

/// The version of this protocol.
pub const CONTROL: u32 = 1;
