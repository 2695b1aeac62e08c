//! The request to start a worker on a stream, and the first bytes of a port's stream.
//!
//! A stream is a separate socket, so its data neither waits for nor blocks the channel. The agent starts the worker and
//! is not involved afterwards.

use alloc::vec::Vec;

use super::FrameError;
use super::exec::{GROUPS_MAX, check_user};
use super::wire::{self, Reader};

/// A worker to start, and its user. Exactly one descriptor comes with the frame: the worker's end of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRequest {
    /// An id for records; the guest ignores it.
    pub stream: u32,
    /// The user, as seen inside the sandbox.
    pub uid: u32,
    /// The group, as seen inside the sandbox.
    pub gid: u32,
    /// The supplementary groups, exactly.
    pub groups: Vec<u32>,
    /// As for an exec.
    pub keep_capabilities: bool,
    pub target: OpenTarget,
}

/// The other end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenTarget {
    /// The sandbox's files: a session of `FileRequest` and `FileReply`.
    Files,
    /// The listener on this TCP port inside: a [`PortPreface`], then plain bytes both ways.
    Port(u16),
}

impl OpenRequest {
    pub fn check(&self) -> Result<(), FrameError> {
        check_user(self.uid, self.gid, &self.groups, self.keep_capabilities)?;
        match self.target {
            OpenTarget::Port(0) => Err(FrameError::Invalid("port")),
            OpenTarget::Port(_) | OpenTarget::Files => Ok(()),
        }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        wire::put_u32(out, self.stream);
        wire::put_u32(out, self.uid);
        wire::put_u32(out, self.gid);
        wire::put_list(out, &self.groups, |out, group| wire::put_u32(out, *group));
        wire::put_bool(out, self.keep_capabilities);
        match self.target {
            OpenTarget::Files => out.push(1),
            OpenTarget::Port(port) => {
                out.push(2);
                wire::put_u16(out, port);
            }
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let request = OpenRequest {
            stream: reader.u32()?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            groups: reader.list("groups", GROUPS_MAX, Reader::u32)?,
            keep_capabilities: reader.bool("keep_capabilities")?,
            target: match reader.u8()? {
                1 => OpenTarget::Files,
                2 => OpenTarget::Port(reader.u16()?),
                _ => return Err(FrameError::Invalid("target")),
            },
        };
        request.check()?;
        Ok(request)
    }
}

/// The first bytes on a port's stream: whether a connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortPreface {
    /// The rest is data from and to the listener.
    Connected,
    /// There is no connection, for this kernel error, and nothing follows.
    Refused(i32),
}

impl PortPreface {
    pub const LEN: usize = 5;

    pub fn encode(self) -> [u8; Self::LEN] {
        match self {
            PortPreface::Connected => [0; Self::LEN],
            PortPreface::Refused(errno) => {
                let [a, b, c, d] = errno.to_le_bytes();
                [1, a, b, c, d]
            }
        }
    }

    pub fn decode(bytes: [u8; Self::LEN]) -> Result<Self, FrameError> {
        match bytes {
            [0, 0, 0, 0, 0] => Ok(PortPreface::Connected),
            [1, errno @ ..] => Ok(PortPreface::Refused(i32::from_le_bytes(errno))),
            _ => Err(FrameError::Invalid("preface")),
        }
    }
}
