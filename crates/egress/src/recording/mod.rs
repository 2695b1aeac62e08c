//! Recordings: exchanges that are written to a file as they happen, and answered from it later without any network.
//!
//! - `line`: the format, one JSON object per line
//! - `redact`: what is left out of it
//! - `write`: a session that is recorded
//! - `read`: a recording, indexed for replay
//! - `find`: which recorded answer a request gets, and what is nearest to one that has none
//! - `play`: the body of a recorded answer
//!
//! A recording holds what the sandbox sent and what it got. Requests are matched by method, scheme, host, port, path, query and body.
//! The file is opened by the supervisor: this process can open none.

mod find;
mod line;
mod play;
mod read;
mod redact;
mod write;

pub(crate) use self::find::Asking;
pub(crate) use self::line::ConnectionKind;
pub(crate) use self::play::{Played, header_map};
pub use self::read::{Library, LoadError};
pub(crate) use self::write::Exchange;
pub(crate) use self::write::Recorder;
pub use self::write::RecordingLimits;

/// What a session does beside deciding.
pub(crate) enum Tape {
    Record(std::sync::Arc<Recorder>),
    Replay(std::sync::Arc<Library>),
}
