//! The problems of this crate: an image that is refused, and a store that can't be used.
//!
//! No message has a path of the data directory. Names out of an image are quoted and escaped, because they are hostile.

use std::io;

use rustix::io::Errno;
use saggar_domain::{Code, Problem};

/// Longest part of an untrusted text that a message shows.
const SHOWN_MAX: usize = 160;

/// The image itself is at fault.
pub(crate) fn refused(what: impl Into<String>, help: impl Into<String>) -> Problem {
    Problem::new(Code::InvalidImage, what, help)
}

/// An operation on the store failed.
pub(crate) fn storage(what: &str, error: impl Into<io::Error>) -> Problem {
    let error = error.into();
    let why = error.kind();
    let help = match Errno::from_io_error(&error) {
        Some(Errno::NOSPC | Errno::DQUOT) => {
            "free space on the disk of the data directory, then try again; nothing is left of this attempt"
        }
        Some(Errno::PERM | Errno::ACCESS | Errno::ROFS) => {
            "use a data directory on a disk that this user can write, or another one with --data-dir"
        }
        Some(Errno::OPNOTSUPP) => {
            "use a data directory on a disk that stores extended attributes, such as ext4, XFS or btrfs"
        }
        _ => "check the data directory's disk, then try again",
    };
    Problem::new(Code::DataDirectory, format!("{what}: {why}"), help)
}

/// Puts in front of a message what it is about.
pub(crate) fn about(what: &str, problem: Problem) -> Problem {
    Problem { message: format!("{what}: {}", problem.message), ..problem }
}

/// An untrusted name for a message: quoted, escaped and short.
pub(crate) fn shown(name: &[u8]) -> String {
    let text = name.escape_ascii().to_string();
    match text.char_indices().nth(SHOWN_MAX) {
        None => format!("\"{text}\""),
        Some((end, _)) => format!("\"{}…\"", &text[..end]),
    }
}
