//! Frames from the host to the guest.
//!
//! Frames about an exec that has already ended are not an error: the host may send them before it learns of the end.
//! The guest ignores them.
//!
//! Descriptors travel only in this direction, with the first byte of their frame ([`ToGuest::descriptors`] returns how
//! many). The guest takes them in the order of the frames, and a wrong number ends the conversation.

use alloc::vec::Vec;

use super::decoder::Message;
use super::wire::{self, Reader};
use super::{EXEC_FRAME_MAX, ExecId, ExecRequest, FRAME_MAX, FrameError, OpenRequest, Stream, TerminalSize};

/// The highest signal number Linux has.
const SIGNAL_MAX: u8 = 64;

const EXEC: u8 = 0x01;
const STDIN: u8 = 0x02;
const STDIN_END: u8 = 0x03;
const RESIZE: u8 = 0x04;
const SIGNAL: u8 = 0x05;
const CLOSE_OUTPUT: u8 = 0x06;
const OUTPUT_TAKEN: u8 = 0x07;
const OPEN: u8 = 0x08;

/// A frame from host to guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToGuest {
    /// Start a program.
    Exec(ExecRequest),
    /// Bytes for a program's stdin, within `STDIN_WINDOW`.
    Stdin { exec: ExecId, bytes: Vec<u8> },
    /// No more stdin: the program reads an end of file once it has read what was sent.
    StdinEnd { exec: ExecId },
    /// The terminal's new size. Ignored for an exec without one.
    Resize {
        exec: ExecId,
        rows: u16,
        /// Characters per line.
        cols: u16,
    },
    Signal {
        exec: ExecId,
        /// The signal's number on Linux, 1 to 64.
        signal: u8,
        scope: SignalScope,
    },
    /// This output is no longer read: close it, so that the program gets `SIGPIPE` as it would in a shell.
    CloseOutput { exec: ExecId, stream: Stream },
    /// The host has consumed this much output: the guest may send as much again. Ignored for an exec without a window.
    OutputTaken {
        exec: ExecId,
        /// Number of bytes, of both streams together.
        bytes: u32,
    },
    /// Start a worker on the stream that comes with this frame.
    Open(OpenRequest),
}

/// Which processes of an exec a signal is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalScope {
    /// Its process group, like a shell's job. Empty once its first process has ended.
    Group,
    /// All its descendants, in any group or session, even after its first process has ended.
    Tree,
}

impl ToGuest {
    pub fn descriptors(&self) -> usize {
        match self {
            ToGuest::Exec(request) => request.joins.into(),
            ToGuest::Open(_) => 1,
            ToGuest::Stdin { .. }
            | ToGuest::StdinEnd { .. }
            | ToGuest::Resize { .. }
            | ToGuest::Signal { .. }
            | ToGuest::CloseOutput { .. }
            | ToGuest::OutputTaken { .. } => 0,
        }
    }

    /// Appends this frame to `out`, which is unchanged after an error.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), FrameError> {
        match self {
            ToGuest::Exec(request) => {
                request.check()?;
                wire::append(out, EXEC, EXEC_FRAME_MAX, |out| request.put(out))
            }
            ToGuest::Stdin { exec, bytes } => wire::append(out, STDIN, FRAME_MAX, |out| {
                wire::put_u32(out, *exec);
                out.extend_from_slice(bytes);
            }),
            ToGuest::StdinEnd { exec } => wire::append(out, STDIN_END, FRAME_MAX, |out| wire::put_u32(out, *exec)),
            ToGuest::Resize { exec, rows, cols } => wire::append(out, RESIZE, FRAME_MAX, |out| {
                wire::put_u32(out, *exec);
                TerminalSize { rows: *rows, cols: *cols }.put(out);
            }),
            ToGuest::Signal { exec, signal, scope } => {
                check_signal(*signal)?;
                wire::append(out, SIGNAL, FRAME_MAX, |out| {
                    wire::put_u32(out, *exec);
                    out.push(*signal);
                    out.push(match scope {
                        SignalScope::Group => 1,
                        SignalScope::Tree => 2,
                    });
                })
            }
            ToGuest::CloseOutput { exec, stream } => wire::append(out, CLOSE_OUTPUT, FRAME_MAX, |out| {
                wire::put_u32(out, *exec);
                wire::put_stream(out, *stream);
            }),
            ToGuest::OutputTaken { exec, bytes } => wire::append(out, OUTPUT_TAKEN, FRAME_MAX, |out| {
                wire::put_u32(out, *exec);
                wire::put_u32(out, *bytes);
            }),
            ToGuest::Open(request) => {
                request.check()?;
                wire::append(out, OPEN, FRAME_MAX, |out| request.put(out))
            }
        }
    }
}

impl Message for ToGuest {
    fn payload_max(kind: u8) -> Option<usize> {
        match kind {
            EXEC => Some(EXEC_FRAME_MAX),
            STDIN | STDIN_END | RESIZE | SIGNAL | CLOSE_OUTPUT | OUTPUT_TAKEN | OPEN => Some(FRAME_MAX),
            _ => None,
        }
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(payload);
        let frame = match kind {
            EXEC => ToGuest::Exec(ExecRequest::read(&mut reader)?),
            STDIN => ToGuest::Stdin { exec: reader.u32()?, bytes: reader.rest() },
            STDIN_END => ToGuest::StdinEnd { exec: reader.u32()? },
            RESIZE => {
                let exec = reader.u32()?;
                let TerminalSize { rows, cols } = TerminalSize::read(&mut reader)?;
                ToGuest::Resize { exec, rows, cols }
            }
            SIGNAL => {
                let (exec, signal) = (reader.u32()?, reader.u8()?);
                check_signal(signal)?;
                let scope = match reader.u8()? {
                    1 => SignalScope::Group,
                    2 => SignalScope::Tree,
                    _ => return Err(FrameError::Invalid("scope")),
                };
                ToGuest::Signal { exec, signal, scope }
            }
            CLOSE_OUTPUT => ToGuest::CloseOutput { exec: reader.u32()?, stream: reader.stream()? },
            OUTPUT_TAKEN => ToGuest::OutputTaken { exec: reader.u32()?, bytes: reader.u32()? },
            OPEN => ToGuest::Open(OpenRequest::read(&mut reader)?),
            unknown => return Err(FrameError::UnknownKind(unknown)),
        };
        reader.finish()?;
        Ok(frame)
    }
}

/// Zero would only check whether the group exists, and the result could not be reported.
fn check_signal(signal: u8) -> Result<(), FrameError> {
    if (1..=SIGNAL_MAX).contains(&signal) { Ok(()) } else { Err(FrameError::Invalid("signal")) }
}
