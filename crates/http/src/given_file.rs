//! Files that a person names: settings, specs, agents, scripts, fixtures, certificates.
//!
//! Only a regular file is read, and only up to a bound. A pipe that nobody writes to would be waited for without end, and a device such as
//! `/dev/zero` has no end. The kind is asked of what was opened, so that nobody can exchange it in between.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Why a file that was named can't be used. Reads as the rest of a sentence that begins with its name.
#[derive(Debug, thiserror::Error)]
pub enum GivenFileError {
    /// It isn't there.
    #[error("does not exist")]
    Missing,
    /// A directory, a pipe, a device, a socket.
    #[error("is {0}, not a regular file")]
    NotRegular(&'static str),
    /// Longer than anything of its kind.
    #[error("is longer than {0} bytes")]
    TooLong(u64),
    #[error("is not text in UTF-8")]
    NotText,
    /// The operating system says no.
    #[error("can't be read: {}", .0.kind())]
    Unreadable(#[source] io::Error),
}

impl GivenFileError {
    /// What to do next.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Missing => "check its name; a relative one is looked for from where the command is given",
            Self::NotRegular("a directory") => "name a file in it",
            Self::NotRegular(_) => "write its content to a file first, and name that",
            Self::TooLong(_) => "check that it is the file you mean",
            Self::NotText => "save it as UTF-8",
            Self::Unreadable(_) => "check who may read it",
        }
    }
}

/// The bytes of a file, at most so many.
pub fn read_given_file(path: &Path, most: u64) -> Result<Vec<u8>, GivenFileError> {
    // A pipe without a writer is opened at once like this, and a terminal doesn't become ours.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map(File::from).map_err(|errno| match errno {
        rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR => GivenFileError::Missing,
        // How a socket is refused, and a device that isn't there.
        rustix::io::Errno::NXIO => GivenFileError::NotRegular("a socket or a device"),
        other => GivenFileError::Unreadable(other.into()),
    })?;
    let metadata = file.metadata().map_err(GivenFileError::Unreadable)?;
    let kind = metadata.file_type();
    if !kind.is_file() {
        return Err(GivenFileError::NotRegular(match kind {
            kind if kind.is_dir() => "a directory",
            kind if kind.is_fifo() => "a pipe",
            kind if kind.is_char_device() || kind.is_block_device() => "a device",
            _ => "something else",
        }));
    }
    if metadata.len() > most {
        return Err(GivenFileError::TooLong(most));
    }
    let mut bytes = Vec::new();
    // It may grow while it is read.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(GivenFileError::Unreadable)?;
    if bytes.len() as u64 > most { Err(GivenFileError::TooLong(most)) } else { Ok(bytes) }
}

/// The same as text.
pub fn read_given_text(path: &Path, most: u64) -> Result<String, GivenFileError> {
    String::from_utf8(read_given_file(path, most)?).map_err(|_| GivenFileError::NotText)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_of_a_bounded_length_is_read() {
        let directory = std::env::temp_dir().join(format!("saggar-given-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let at = |name: &str| directory.join(name);
        std::fs::write(at("short"), "text").unwrap();
        std::fs::write(at("binary"), [0xff]).unwrap();
        std::fs::write(at("long"), "12345678").unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink("short", at("link")).unwrap();
        for (name, expected) in [
            ("short", "text"),
            ("link", "text"),
            ("long", "is longer than 7 bytes"),
            ("binary", "is not text in UTF-8"),
            ("pipe", "is a pipe, not a regular file"),
            ("socket", "is a socket or a device, not a regular file"),
            (".", "is a directory, not a regular file"),
            ("absent", "does not exist"),
            ("short/below", "does not exist"),
            ("/dev/zero", "is a device, not a regular file"),
            ("/dev/tty", "not a regular file"),
        ] {
            let given = read_given_text(&at(name), 7).unwrap_or_else(|error| error.to_string());
            assert!(given.ends_with(expected), "{name}: {given}");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
