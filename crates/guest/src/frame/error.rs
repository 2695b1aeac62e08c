//! Why a frame was refused.

use core::fmt;

/// Why a frame can be neither read nor written. After one of these on the reading side the stream has no known frame
/// border any more, so the channel is to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// No frame of this direction has this kind.
    UnknownKind(u8),
    /// The payload is longer than its kind allows.
    TooLong {
        /// The frame's kind.
        kind: u8,
        /// What the length field says, or what would have been written.
        length: usize,
        /// The bound of this kind.
        limit: usize,
    },
    /// The payload ended inside a field.
    Truncated,
    /// The payload has this many bytes after its last field.
    TrailingBytes(usize),
    /// A list has more entries than allowed.
    TooMany {
        /// The field that holds the list.
        field: &'static str,
        /// How many it has.
        count: usize,
        /// How many it may have.
        limit: usize,
    },
    /// A field holds a value it must not.
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
