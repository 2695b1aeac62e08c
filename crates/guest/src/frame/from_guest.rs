//! Frames from the guest to the host.
//!
//! Every `Exec` ends in exactly one way. Either `Failed` alone; or `Started`, any output, perhaps `StorageFull`,
//! perhaps `Used`, then `Exited` when the program itself has ended, and `TreeGone`, the last frame with its id, when no
//! process that it started is left. `Deserted` comes before `TreeGone`, as soon as the exec has no process left,
//! perhaps while its output still waits to be sent. (A `one_shot` has none of `Used`, `Deserted` and `TreeGone`.) The
//! host must not rely on this: the sandbox may have taken over its agent.

use alloc::vec::Vec;

use super::decoder::Message;
use super::wire::{self, Reader};
use super::{ExecId, FRAME_MAX, FrameError, Stream};

const HELLO: u8 = 0x81;
const STARTED: u8 = 0x82;
const OUTPUT: u8 = 0x83;
const STDIN_TAKEN: u8 = 0x84;
const EXITED: u8 = 0x85;
const FAILED: u8 = 0x86;
const STORAGE_FULL: u8 = 0x87;
const TREE_GONE: u8 = 0x88;
const USED: u8 = 0x89;
const DESERTED: u8 = 0x8a;

/// A frame from guest to host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromGuest {
    /// The guest is running. Always the first frame.
    Hello {
        /// Its protocol version.
        protocol: u32,
    },
    /// The program runs: the kernel has accepted it.
    Started {
        exec: ExecId,
        /// As seen inside the sandbox.
        pid: u32,
    },
    /// The program wrote output.
    Output {
        exec: ExecId,
        stream: Stream,
        /// Never empty.
        bytes: Vec<u8>,
    },
    /// This much stdin was delivered or discarded: the host may send as much again.
    StdinTaken { exec: ExecId, bytes: u32 },
    /// The program has ended. Processes that it started may live on until `TreeGone`, but their output is no longer
    /// reported.
    Exited { exec: ExecId, end: End },
    Failed {
        exec: ExecId,
        /// The step that failed.
        stage: FailStage,
        /// The kernel's error number.
        errno: i32,
    },
    /// When the exec ended, one of its `storage_paths` had no block or no inode left. Comes before `Exited`.
    StorageFull { exec: ExecId },
    /// The last descendant of the exec has ended. Comes after `Exited`, at once if nothing was left behind.
    TreeGone { exec: ExecId },
    /// Resources used by the program and those of its descendants that have ended. Comes before `Exited`. Since
    /// protocol 3.
    Used {
        exec: ExecId,
        /// CPU time in microseconds.
        cpu_usec: u64,
        /// Peak memory of any one of its processes, in bytes.
        memory_peak: u64,
    },
    /// The exec has no process left. Since protocol 3.
    Deserted { exec: ExecId },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with this status.
    Code(u8),
    Signal {
        signal: u8,
        /// Whether the kernel reports a core dump.
        core: bool,
    },
}

/// The step of an exec that failed, in the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FailStage {
    /// The guest already runs the maximum number of execs.
    Capacity = 1,
    /// Creating the pipes for stdin, stdout, stderr.
    Pipes = 2,
    /// Creating the terminal.
    Terminal = 3,
    /// Creating the process.
    Fork = 4,
    /// Entering its cgroups.
    Cgroup = 11,
    /// Starting its session and resetting its signals.
    Session = 5,
    /// Putting stdin, stdout and stderr in place and closing everything else.
    Descriptors = 6,
    /// Setting its resource limits.
    Limits = 7,
    /// Switching to the user, or verifying the result.
    Identity = 8,
    /// Entering the working directory, as that user.
    Cwd = 9,
    /// Finding and executing the program: `ENOENT`, `EACCES`, `ENOEXEC`, `E2BIG`, ...
    Program = 10,
}

impl FailStage {
    pub fn from_code(code: u8) -> Option<FailStage> {
        Some(match code {
            1 => FailStage::Capacity,
            2 => FailStage::Pipes,
            3 => FailStage::Terminal,
            4 => FailStage::Fork,
            5 => FailStage::Session,
            6 => FailStage::Descriptors,
            7 => FailStage::Limits,
            8 => FailStage::Identity,
            9 => FailStage::Cwd,
            10 => FailStage::Program,
            11 => FailStage::Cgroup,
            _ => return None,
        })
    }

    pub fn code(self) -> u8 {
        self as u8
    }
}

impl FromGuest {
    /// Appends this frame to `out`, which is unchanged after an error.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), FrameError> {
        match self {
            FromGuest::Hello { protocol } => wire::append(out, HELLO, FRAME_MAX, |out| wire::put_u32(out, *protocol)),
            FromGuest::Started { exec, pid } => wire::append(out, STARTED, FRAME_MAX, |out| {
                wire::put_u32(out, *exec);
                wire::put_u32(out, *pid);
            }),
            FromGuest::Output { exec, stream, bytes } => {
                if bytes.is_empty() {
                    return Err(FrameError::Invalid("bytes"));
                }
                wire::append(out, OUTPUT, FRAME_MAX, |out| {
                    wire::put_u32(out, *exec);
                    wire::put_stream(out, *stream);
                    out.extend_from_slice(bytes);
                })
            }
            FromGuest::StdinTaken { exec, bytes } => wire::append(out, STDIN_TAKEN, FRAME_MAX, |out| {
                wire::put_u32(out, *exec);
                wire::put_u32(out, *bytes);
            }),
            FromGuest::Exited { exec, end } => wire::append(out, EXITED, FRAME_MAX, |out| {
                wire::put_u32(out, *exec);
                match end {
                    End::Code(code) => out.extend_from_slice(&[0, *code]),
                    End::Signal { signal, core } => {
                        out.extend_from_slice(&[1, *signal]);
                        wire::put_bool(out, *core);
                    }
                }
            }),
            FromGuest::Failed { exec, stage, errno } => wire::append(out, FAILED, FRAME_MAX, |out| {
                wire::put_u32(out, *exec);
                out.push(stage.code());
                out.extend_from_slice(&errno.to_le_bytes());
            }),
            FromGuest::StorageFull { exec } => {
                wire::append(out, STORAGE_FULL, FRAME_MAX, |out| wire::put_u32(out, *exec))
            }
            FromGuest::TreeGone { exec } => wire::append(out, TREE_GONE, FRAME_MAX, |out| wire::put_u32(out, *exec)),
            FromGuest::Used { exec, cpu_usec, memory_peak } => wire::append(out, USED, FRAME_MAX, |out| {
                wire::put_u32(out, *exec);
                wire::put_u64(out, *cpu_usec);
                wire::put_u64(out, *memory_peak);
            }),
            FromGuest::Deserted { exec } => wire::append(out, DESERTED, FRAME_MAX, |out| wire::put_u32(out, *exec)),
        }
    }
}

impl Message for FromGuest {
    fn payload_max(kind: u8) -> Option<usize> {
        match kind {
            HELLO..=DESERTED => Some(FRAME_MAX),
            _ => None,
        }
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(payload);
        let frame = match kind {
            HELLO => FromGuest::Hello { protocol: reader.u32()? },
            STARTED => FromGuest::Started { exec: reader.u32()?, pid: reader.u32()? },
            OUTPUT => {
                let (exec, stream, bytes) = (reader.u32()?, reader.stream()?, reader.rest());
                if bytes.is_empty() {
                    return Err(FrameError::Invalid("bytes"));
                }
                FromGuest::Output { exec, stream, bytes }
            }
            STDIN_TAKEN => FromGuest::StdinTaken { exec: reader.u32()?, bytes: reader.u32()? },
            EXITED => FromGuest::Exited { exec: reader.u32()?, end: read_end(&mut reader)? },
            FAILED => FromGuest::Failed {
                exec: reader.u32()?,
                stage: FailStage::from_code(reader.u8()?).ok_or(FrameError::Invalid("stage"))?,
                errno: reader.u32()? as i32,
            },
            STORAGE_FULL => FromGuest::StorageFull { exec: reader.u32()? },
            TREE_GONE => FromGuest::TreeGone { exec: reader.u32()? },
            USED => FromGuest::Used { exec: reader.u32()?, cpu_usec: reader.u64()?, memory_peak: reader.u64()? },
            DESERTED => FromGuest::Deserted { exec: reader.u32()? },
            unknown => return Err(FrameError::UnknownKind(unknown)),
        };
        reader.finish()?;
        Ok(frame)
    }
}

fn read_end(reader: &mut Reader<'_>) -> Result<End, FrameError> {
    match reader.u8()? {
        0 => Ok(End::Code(reader.u8()?)),
        1 => Ok(End::Signal { signal: reader.u8()?, core: reader.bool("core")? }),
        _ => Err(FrameError::Invalid("end")),
    }
}
