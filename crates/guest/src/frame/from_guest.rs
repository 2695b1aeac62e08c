//! What the guest tells the host.
//!
//! For every `Exec` there is exactly one ending: `Failed` alone, or `Started`, any output, perhaps `StorageFull`, perhaps `Used`, then
//! `Exited` when the program itself has ended, and `TreeGone`, as the last frame that bears its id, when nothing that it started is left.
//! `Deserted` comes before `TreeGone`, as soon as there is no process of it: perhaps while its output still waits to be told. (A `one_shot`
//! has none of `Used`, `Deserted` and `TreeGone`.) The host must not rely on it: the sandbox may have taken over its agent.

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
    /// The guest is up. Always the first frame.
    Hello {
        /// The protocol it speaks.
        protocol: u32,
    },
    /// The program runs: the kernel has accepted it.
    Started {
        exec: ExecId,
        /// Its process id, as seen inside the sandbox.
        pid: u32,
    },
    /// The program wrote something.
    Output {
        exec: ExecId,
        /// To which output.
        stream: Stream,
        /// What it wrote; never empty.
        bytes: Vec<u8>,
    },
    /// This much stdin was handed over or thrown away: the host may send as much again.
    StdinTaken {
        exec: ExecId,
        /// How many bytes.
        bytes: u32,
    },
    /// The program has ended. What it started may live on until `TreeGone`, but its output is told no more.
    Exited { exec: ExecId, end: End },
    /// The program was not started.
    Failed {
        exec: ExecId,
        /// What could not be done.
        stage: FailStage,
        /// The kernel's reason.
        errno: i32,
    },
    /// When the exec ended, one of its `storage_paths` had no block or no inode left. Comes before `Exited`.
    StorageFull { exec: ExecId },
    /// The last process that descends from the exec is gone. Comes after `Exited`, at once if nothing was left behind.
    TreeGone { exec: ExecId },
    /// What the program used, and those of its descendants that have ended. Comes before `Exited`. Since protocol 3.
    Used {
        exec: ExecId,
        /// CPU time in microseconds.
        cpu_usec: u64,
        /// The most memory that one of its processes had at once, in bytes.
        memory_peak: u64,
    },
    /// There is no process of the exec any more. Since protocol 3.
    Deserted { exec: ExecId },
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, with this status.
    Code(u8),
    /// By a signal.
    Signal {
        /// The signal's number.
        signal: u8,
        /// Whether the kernel says that it dumped core.
        core: bool,
    },
}

/// What could not be done for an exec. In the order in which it is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FailStage {
    /// The guest runs as many execs as it can.
    Capacity = 1,
    /// Making the pipes for stdin, stdout, stderr.
    Pipes = 2,
    /// Making the terminal.
    Terminal = 3,
    /// Making the process.
    Fork = 4,
    /// Entering its cgroups.
    Cgroup = 11,
    /// Giving it a session and its signals.
    Session = 5,
    /// Putting stdin, stdout and stderr in place and closing everything else.
    Descriptors = 6,
    /// Setting its resource limits.
    Limits = 7,
    /// Becoming the user, or verifying that it did.
    Identity = 8,
    /// Entering the working directory, as that user.
    Cwd = 9,
    /// Finding and executing the program: `ENOENT`, `EACCES`, `ENOEXEC`, `E2BIG`, ...
    Program = 10,
}

impl FailStage {
    /// The stage with this number on the wire.
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

    /// Its number on the wire.
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
