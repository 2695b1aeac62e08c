//! Files that the operator names: settings, specs, agents, scripts, fixtures, certificates.
//!
//! Only a regular file is read, and only up to a bound. A pipe without a writer would block forever, and a device
//! such as `/dev/zero` has no end. The type is checked on the opened file, so that it can't be exchanged in between.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Why a named file can't be used. The text continues a sentence that begins with its name.
#[derive(Debug, thiserror::Error)]
pub enum GivenFileError {
    /// It doesn't exist.
    #[error("does not exist")]
    Missing,
    /// A directory, a pipe, a device, a socket.
    #[error("is {0}, not a regular file")]
    NotRegular(&'static str),
    /// Longer than the bound.
    #[error("is longer than {0} bytes")]
    TooLong(u64),
    #[error("is not text in UTF-8")]
    NotText,
    /// An error of the operating system.
    #[error("can't be read: {}", .0.kind())]
    Unreadable(#[source] io::Error),
}

impl GivenFileError {
    pub fn help(&self) -> &'static str {
        match self {
            Self::Missing => "check its name; a relative path starts at the current directory",
            Self::NotRegular("a directory") => "name a file in it",
            Self::NotRegular(_) => "write its content to a file first, and name that",
            Self::TooLong(_) => "check that it is the right file",
            Self::NotText => "save it as UTF-8",
            Self::Unreadable(_) => "check its permissions",
        }
    }
}

/// A regular file of at most `most` bytes, opened.
pub fn open_given_file(path: &Path, most: u64) -> Result<File, GivenFileError> {
    // With these flags a pipe without a writer opens at once, and a terminal doesn't become ours.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map(File::from).map_err(|errno| match errno {
        rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR => GivenFileError::Missing,
        // The error for a socket, and for a device without a driver.
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
    Ok(file)
}

/// The bytes of a file, at most `most`.
pub fn read_given_file(path: &Path, most: u64) -> Result<Vec<u8>, GivenFileError> {
    let file = open_given_file(path, most)?;
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
