//! The protocol between a server and the process that holds a sandbox (its supervisor).
//!
//! One connection is one operation: a request, its reply, and for some a stream until either side closes. The kernel
//! then does the bookkeeping: a slow reader blocks only its own connection, and a server that dies takes none of the
//! supervisor's state with it.
//!
//! Control messages are JSON, because two versions of Saggar talk here (a server is replaced while its sandboxes keep
//! running): unknown fields are ignored, and new ones are optional. Bytes of programs are raw. [`Request::v`] is the
//! client's protocol version.

mod client;
mod codec;
mod reply;
mod request;

pub use client::{Client, Received};
pub use codec::{Decoder, Frame, FrameError, JSON_MAX, encode_json, encode_output, encode_stdin};
pub use reply::{
    BasedOn, Description, Event, EventBody, ExecDescription, Final, FinishedExec, Reply, Sample, Stillness, UsageReport,
};
pub use request::{Attach, Op, Request, Start, StartExec, Target, Terms};

pub const CONTROL: u32 = 1;
