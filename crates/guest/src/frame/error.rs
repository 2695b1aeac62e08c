//! Why a frame was refused.

use core::fmt;

/// Why a frame can't be read or written. After one of these on the reading side the start of the next frame is unknown,
/// so the channel must be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    UnknownKind(u8),
    TooLong {
        kind: u8,
        /// The value of the length field, or the length that would have been written.
        length: usize,
        limit: usize,
    },
    /// The payload ended inside a field.
    Truncated,
    /// The payload has this many bytes after its last field.
    TrailingBytes(usize),
    TooMany {
        /// The field that contains the list.
        field: &'static str,
        count: usize,
        limit: usize,
    },
    Invalid(&'static str),
}

impl fmt::Display for FrameError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::UnknownKind(kind) => write!(out, "unknown frame kind {kind:#04x}"),
            FrameError::TooLong { kind, length, limit } => {
                write!(out, "frame of kind {kind:#04x} has {length} bytes, at most {limit} are allowed")
            }
            FrameError::Truncated => out.write_str("frame ends inside a field"),
            FrameError::TrailingBytes(count) => write!(out, "frame has {count} bytes after its last field"),
            FrameError::TooMany { field, count, limit } => {
                write!(out, "{field} has {count} entries, at most {limit} are allowed")
            }
            FrameError::Invalid(field) => write!(out, "{field} has a value that is not allowed"),
        }
    }
}

impl core::error::Error for FrameError {}
