//! A program in a sealed memfd, which can't be rewritten through any path.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::io::Errno;

use crate::rule::Rule;

const SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

/// An immutable program.
#[derive(Debug)]
pub struct SealedProgram(OwnedFd);

impl SealedProgram {
    /// Copies a program into memory and seals it.
    pub fn new(name: &str, image: &[u8]) -> std::io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Kernels before 6.3 don't know the flag, and make every memfd executable.
        let fd = match memfd_create(name, flags | MemfdFlags::EXEC) {
            Err(Errno::INVAL) => memfd_create(name, flags)?,
            other => other?,
        };
        let mut file = std::fs::File::from(fd);
        file.write_all(image)?;
        let fd = OwnedFd::from(file);
        if Rule::SealedAgent.is_on() {
            fcntl_add_seals(&fd, SEALS)?;
        }
        Ok(Self(fd))
    }

    /// Accepts a program received over a socket, after checking that it is sealed.
    pub(crate) fn from_sealed(fd: OwnedFd) -> Result<Self, Errno> {
        let is_sealed = !Rule::SealedAgent.is_on() || fcntl_get_seals(&fd)?.contains(SEALS);
        if is_sealed { Ok(Self(fd)) } else { Err(Errno::PERM) }
    }

    /// The descriptor alone, for the last step.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.0
    }
}

impl AsFd for SealedProgram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_program_cannot_be_written_or_cut() {
        let program = SealedProgram::new("test", b"image").unwrap();
        assert_eq!(rustix::io::write(&program, b"x"), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&program, 0), Err(Errno::PERM));
        assert_eq!(fcntl_add_seals(&program, SealFlags::FUTURE_WRITE), Err(Errno::PERM));
    }
}
