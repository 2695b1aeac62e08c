//! The request to start one program.
//!
//! INVARIANT: a decoded request satisfies [`ExecRequest::check`]: C strings contain no NUL, paths are absolute, and no
//! id is one that the kernel would read as "leave unchanged".

use alloc::vec::Vec;

use super::wire::{self, Reader};
use super::{ExecId, FrameError};

/// Maximum number of arguments of a program, its own name included.
pub const ARGUMENTS_MAX: usize = 65_536;
/// Maximum number of environment variables of a program.
pub const ENVIRONMENT_MAX: usize = 16_384;
/// Maximum number of supplementary groups of an exec.
pub const GROUPS_MAX: usize = 256;
/// Maximum number of paths that are checked for free space at an exec's end.
pub const STORAGE_PATHS_MAX: usize = 16;
/// Maximum number of cgroups for a new process to enter: one per hierarchy, of which version 1 has a dozen.
pub const JOINS_MAX: usize = 16;
/// Maximum length of a path in a request, as in Linux including the NUL.
pub const PATH_MAX: usize = 4096;

/// One program to start, and its user. The guest adds no defaults: anything that is not requested is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecRequest {
    /// The id that every frame about this exec carries.
    pub exec: ExecId,
    /// The program and its arguments; at least the program. Without a `/` it is searched in the `PATH` of `env`.
    pub argv: Vec<Vec<u8>>,
    /// The whole environment, each entry `NAME=value`.
    pub env: Vec<Vec<u8>>,
    /// The working directory, absolute.
    pub cwd: Vec<u8>,
    /// The user, as seen inside the sandbox.
    pub uid: u32,
    /// The group, as seen inside the sandbox.
    pub gid: u32,
    /// The supplementary groups, exactly.
    pub groups: Vec<u32>,
    /// Whether the program, which must then be root's, keeps the sandbox's bounded capability set (never `SETPCAP`).
    /// Without this all its sets are empty.
    pub keep_capabilities: bool,
    /// A terminal of this size for stdin, stdout and stderr, instead of pipes.
    pub tty: Option<TerminalSize>,
    /// Whether stdin comes in `Stdin` frames. Otherwise stdin is `/dev/null`, or a terminal without input.
    pub stdin: bool,
    /// `RLIMIT_NOFILE`, soft and hard.
    pub nofile: Option<u64>,
    /// `RLIMIT_NPROC`, soft and hard.
    pub nproc: Option<u64>,
    /// Absolute paths whose filesystems are checked for free blocks and inodes when the exec ends.
    pub storage_paths: Vec<Vec<u8>>,
    /// Whether the guest, and with it the sandbox, ends with this exec. Such an exec has no tree: there is no
    /// `TreeGone`, and signals to its tree go to its group.
    pub one_shot: bool,
    /// Bytes of output, both streams together, that the guest may have sent without `OutputTaken` for them. `None`
    /// means no bound.
    pub output_window: Option<u32>,
    /// Number of descriptors that come with this frame. Each is a cgroup's list of processes, and the new process
    /// enters every one before it does anything else.
    pub joins: u8,
}

impl ExecRequest {
    /// Whether every field is valid. Both sides check: the host before it writes, the guest after it reads.
    pub fn check(&self) -> Result<(), FrameError> {
        at_most("argv", self.argv.len(), ARGUMENTS_MAX)?;
        at_most("env", self.env.len(), ENVIRONMENT_MAX)?;
        at_most("storage_paths", self.storage_paths.len(), STORAGE_PATHS_MAX)?;
        at_most("joins", self.joins.into(), JOINS_MAX)?;
        if self.output_window == Some(0) {
            return Err(FrameError::Invalid("output_window"));
        }
        if self.argv.first().is_none_or(Vec::is_empty) || self.argv.iter().any(|argument| has_nul(argument)) {
            return Err(FrameError::Invalid("argv"));
        }
        if !self.env.iter().all(|entry| is_variable(entry)) {
            return Err(FrameError::Invalid("env"));
        }
        if !is_path(&self.cwd) {
            return Err(FrameError::Invalid("cwd"));
        }
        if !self.storage_paths.iter().all(|path| is_path(path)) {
            return Err(FrameError::Invalid("storage_paths"));
        }
        check_user(self.uid, self.gid, &self.groups, self.keep_capabilities)
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        wire::put_u32(out, self.exec);
        wire::put_list(out, &self.argv, |out, argument| wire::put_bytes(out, argument));
        wire::put_list(out, &self.env, |out, entry| wire::put_bytes(out, entry));
        wire::put_bytes(out, &self.cwd);
        wire::put_u32(out, self.uid);
        wire::put_u32(out, self.gid);
        wire::put_list(out, &self.groups, |out, group| wire::put_u32(out, *group));
        wire::put_bool(out, self.keep_capabilities);
        wire::put_option(out, self.tty, |out, size| size.put(out));
        wire::put_bool(out, self.stdin);
        wire::put_option(out, self.nofile, wire::put_u64);
        wire::put_option(out, self.nproc, wire::put_u64);
        wire::put_list(out, &self.storage_paths, |out, path| wire::put_bytes(out, path));
        wire::put_bool(out, self.one_shot);
        wire::put_option(out, self.output_window, wire::put_u32);
        out.push(self.joins);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let request = ExecRequest {
            exec: reader.u32()?,
            argv: reader.list("argv", ARGUMENTS_MAX, Reader::bytes)?,
            env: reader.list("env", ENVIRONMENT_MAX, Reader::bytes)?,
            cwd: reader.bytes()?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            groups: reader.list("groups", GROUPS_MAX, Reader::u32)?,
            keep_capabilities: reader.bool("keep_capabilities")?,
            tty: reader.option("tty", TerminalSize::read)?,
            stdin: reader.bool("stdin")?,
            nofile: reader.option("nofile", Reader::u64)?,
            nproc: reader.option("nproc", Reader::u64)?,
            storage_paths: reader.list("storage_paths", STORAGE_PATHS_MAX, Reader::bytes)?,
            one_shot: reader.bool("one_shot")?,
            output_window: reader.option("output_window", Reader::u32)?,
            joins: reader.u8()?,
        };
        request.check()?;
        Ok(request)
    }
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    pub rows: u16,
    /// Characters per line.
    pub cols: u16,
}

impl TerminalSize {
    pub(super) fn put(self, out: &mut Vec<u8>) {
        wire::put_u16(out, self.rows);
        wire::put_u16(out, self.cols);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        Ok(TerminalSize { rows: reader.u16()?, cols: reader.u16()? })
    }
}

/// Checks an identity to act as.
pub(super) fn check_user(uid: u32, gid: u32, groups: &[u32], keeps_capabilities: bool) -> Result<(), FrameError> {
    at_most("groups", groups.len(), GROUPS_MAX)?;
    // For setresuid and similar calls the highest number means "leave as it is", which here would mean "stay root".
    if uid == u32::MAX {
        return Err(FrameError::Invalid("uid"));
    }
    if gid == u32::MAX {
        return Err(FrameError::Invalid("gid"));
    }
    if groups.contains(&u32::MAX) {
        return Err(FrameError::Invalid("groups"));
    }
    // An execve gives only root anything from the bounding set.
    if keeps_capabilities && uid != 0 {
        return Err(FrameError::Invalid("keep_capabilities"));
    }
    Ok(())
}

pub(super) fn at_most(field: &'static str, count: usize, limit: usize) -> Result<(), FrameError> {
    if count > limit { Err(FrameError::TooMany { field, count, limit }) } else { Ok(()) }
}

pub(super) fn has_nul(bytes: &[u8]) -> bool {
    bytes.contains(&0)
}

pub(super) fn is_path(bytes: &[u8]) -> bool {
    bytes.first() == Some(&b'/') && bytes.len() < PATH_MAX && !has_nul(bytes)
}

fn is_variable(entry: &[u8]) -> bool {
    !has_nul(entry) && entry.iter().position(|byte| *byte == b'=').is_some_and(|equals| equals > 0)
}
