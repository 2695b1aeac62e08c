//! One exec: a program the host requested, from its process to the end of everything it has started.
//!
//! ```text
//!             status pipe closes                ended               outputs dry           keeper reaped
//!   Starting ────────────────────▶ Running ─────────────▶ Draining ─────────────▶ Left ─────────────────▶ (gone)
//!      │                            Started                  StorageFull?, Exited              TreeGone
//!      └─ status pipe has a report ▶ (gone) Failed
//! ```
//!
//! Nothing is read from a program before it is known to have started, so `Started` always comes first. When it has
//! ended, its output is still in its pipes and is read without waiting, until they are empty or closed, or
//! [`DRAIN_MAX`] was read: a child it left behind may hold them open, and may write without pause. Output of such a
//! child after `Exited` is read and discarded, so that it can continue. A `one_shot` is never left behind: the sandbox
//! ends with it.

mod output;

use alloc::vec::Vec;

use saggar_guest::{End, ExecId, ExecRequest, FailStage, FromGuest, STDIN_WINDOW, Stream, TerminalSize};

use super::channel::Channel;
use super::input::Input;
use super::keeper::{self, Said, Used};
use super::spawn::{SpawnFailure, Spawned};
use super::sys::{Errno, Fd};
use super::tree::Tree;
use super::{Leave, storage, terminal};
use output::{DRAIN_MAX, Window};

pub(super) use output::OUTPUT_CHUNK;

pub(super) struct Exec {
    pub(super) id: ExecId,
    pub(super) is_one_shot: bool,
    /// The program's process, once it is known.
    pid: Option<libc::pid_t>,
    /// Absent for a one-shot.
    pub(super) tree: Option<Tree>,
    phase: Phase,
    window: Option<Window>,
    /// A signal for a process that is not known yet.
    signal_on_arrival: Option<u8>,
    stdin: Option<Input>,
    stdout: Option<Fd>,
    stderr: Option<Fd>,
    terminal: Option<Fd>,
    /// Each ends with a NUL.
    storage_paths: Vec<Vec<u8>>,
    /// Its usage, once its keeper has reported it.
    used: Option<Used>,
    /// Whether the host knows that it has no process left.
    is_told_deserted: bool,
}

enum Phase {
    Starting { status: Fd },
    Running,
    Draining { end: End, stream: Option<Stream>, left: usize },
    Left,
    Failed,
}

/// The result of an exec's start.
pub(super) enum Start {
    Pending,
    Started,
    Failed(SpawnFailure),
}

/// A keeper's message.
pub(super) enum Heard {
    Nothing,
    /// The program may now turn out to have started or failed.
    Change,
    /// The program has ended.
    Ended(End),
}

impl Exec {
    pub(super) fn new(request: ExecRequest, spawned: Spawned) -> Exec {
        let Spawned { pid, link, status, ends } = spawned;
        let is_terminal = ends.terminal.is_some();
        let mut storage_paths = request.storage_paths;
        for path in &mut storage_paths {
            path.push(0);
        }
        let (pid, tree) = match link {
            Some(link) => (None, Some(Tree::new(pid, link))),
            None => (Some(pid), None),
        };
        Exec {
            id: request.exec,
            is_one_shot: request.one_shot,
            pid,
            tree,
            phase: Phase::Starting { status },
            window: request.output_window.map(|size| Window { size, credit: size }),
            signal_on_arrival: None,
            stdin: ends.stdin.map(|fd| Input::new(fd, is_terminal)),
            stdout: Some(ends.stdout),
            stderr: ends.stderr,
            terminal: ends.terminal,
            storage_paths,
            used: None,
            is_told_deserted: false,
        }
    }

    /// The descriptor to watch while it starts: nothing is reported about a program whose process is not known.
    pub(super) fn status_fd(&self) -> Option<&Fd> {
        match &self.phase {
            Phase::Starting { status } if self.pid.is_some() => Some(status),
            Phase::Starting { .. } | Phase::Running | Phase::Draining { .. } | Phase::Left | Phase::Failed => None,
        }
    }

    /// The descriptor to watch for messages of the keeper.
    pub(super) fn link_fd(&self) -> Option<&Fd> {
        self.tree.as_ref().and_then(|tree| tree.link.as_ref())
    }

    /// The descriptor to watch for room, while there is something to write.
    pub(super) fn stdin_fd(&self) -> Option<&Fd> {
        self.stdin.as_ref().filter(|stdin| stdin.is_waiting()).and_then(|stdin| stdin.fd.as_ref())
    }

    /// Whether this is the exec's process, not reaped yet.
    pub(super) fn is_process(&self, pid: libc::pid_t) -> bool {
        self.tree.is_none() && self.pid == Some(pid) && !self.is_over()
    }

    /// Whether its process is gone or no longer matters, and only [`Exec::drain`] is left to do.
    pub(super) fn is_over(&self) -> bool {
        match self.phase {
            Phase::Starting { .. } | Phase::Running => false,
            Phase::Draining { .. } | Phase::Left | Phase::Failed => true,
        }
    }

    /// Whether [`Exec::drain`] has work that no descriptor announces.
    pub(super) fn can_drain(&self, channel: &Channel) -> bool {
        match self.phase {
            Phase::Starting { .. } | Phase::Running => false,
            Phase::Failed | Phase::Left => self.tree.as_ref().is_none_or(Tree::is_gone),
            Phase::Draining { stream, .. } => {
                stream.is_none() || (channel.has_room() && self.credit() > 0) || self.owes_deserted()
            }
        }
    }

    /// Whether the host has yet to be told that it has no process left. That doesn't wait for output, which the host
    /// may take late.
    fn owes_deserted(&self) -> bool {
        let has_run = matches!(self.phase, Phase::Draining { .. } | Phase::Left);
        has_run && !self.is_told_deserted && self.tree.as_ref().is_some_and(Tree::is_gone)
    }

    /// Whether its tree has processes that are still to be signalled.
    pub(super) fn is_pursued(&self) -> bool {
        self.tree.as_ref().is_some_and(Tree::is_pursued)
    }

    /// Whether the host has been told that it failed, and needs nothing more.
    pub(super) fn is_failed(&self) -> bool {
        matches!(self.phase, Phase::Failed)
    }

    /// Whether it only waits for the end of its tree.
    pub(super) fn is_left(&self) -> bool {
        matches!(self.phase, Phase::Left)
    }

    /// Handles the keeper's next message.
    pub(super) fn hear_keeper(&mut self) -> Heard {
        let Some(tree) = &mut self.tree else { return Heard::Nothing };
        let Some(link) = &tree.link else { return Heard::Nothing };
        match keeper::hear(link) {
            Said::Nothing => Heard::Nothing,
            Said::Pid(pid) => {
                self.pid = Some(pid);
                if let Some(signal) = self.signal_on_arrival.take() {
                    self.signal(signal);
                }
                Heard::Change
            }
            Said::Ended(status, used) => {
                tree.link = None;
                self.used = Some(used);
                Heard::Ended(end_of(status))
            }
            Said::Gone => {
                tree.link = None;
                Heard::Change
            }
        }
    }

    /// The keeper has been reaped. If it did not report how the program ended, it was killed, and the program is killed
    /// with it.
    pub(super) fn lose_keeper(&mut self, left_by_itself: bool) {
        if let Some(tree) = &mut self.tree {
            tree.set_keeper_gone(left_by_itself);
        }
        self.set_ended(End::Signal { signal: libc::SIGKILL as u8, core: false });
    }

    /// Whether it is not known yet if the program runs.
    pub(super) fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Starting { .. })
    }

    pub(super) fn is_kept_by(&self, pid: libc::pid_t) -> bool {
        self.tree.as_ref().is_some_and(|tree| tree.is_keeper(pid))
    }

    pub(super) fn try_start(&mut self, channel: &mut Channel) -> Result<Start, Leave> {
        let Phase::Starting { status } = &self.phase else { return Ok(Start::Started) };
        let mut report = [0; 5];
        match (status.read(&mut report), self.pid) {
            (Ok(0), Some(pid)) => {
                self.phase = Phase::Running;
                channel.send(&FromGuest::Started { exec: self.id, pid: pid.unsigned_abs() })?;
                Ok(Start::Started)
            }
            // Its keeper was killed before it reported the process.
            (Ok(0), None) => Ok(Start::Failed(SpawnFailure { stage: FailStage::Fork, errno: Errno(libc::ESRCH) })),
            // A write this small arrives whole. Anything but a report did not come from our code.
            (Ok(5), _) => SpawnFailure::from_report(report).map(Start::Failed).ok_or(Leave::Broken),
            (Err(Errno(libc::EAGAIN)), _) => Ok(Start::Pending),
            (Ok(_) | Err(_), _) => Err(Leave::Broken),
        }
    }

    /// The process has been reaped, or is about to be: from here on its pid may be reused.
    pub(super) fn set_ended(&mut self, end: End) {
        if !self.is_over() {
            self.phase = Phase::Draining { end, stream: Some(Stream::Stdout), left: DRAIN_MAX };
        }
    }

    /// The host has been told that it failed. Its process ends by itself and is reaped like any orphan.
    pub(super) fn set_failed(&mut self) {
        self.phase = Phase::Failed;
    }

    /// Continues with an ended exec, as far as the host accepts it; true once everything about it has been reported.
    pub(super) fn drain(&mut self, channel: &mut Channel, buffer: &mut [u8]) -> Result<bool, Leave> {
        if self.owes_deserted() {
            self.is_told_deserted = true;
            channel.send(&FromGuest::Deserted { exec: self.id })?;
        }
        match self.phase {
            Phase::Starting { .. } | Phase::Running => Ok(false),
            // If its keeper was lost, a process may still be starting, and is killed first.
            Phase::Failed => Ok(self.tree.as_ref().is_none_or(Tree::is_gone)),
            Phase::Draining { end, stream, left } => {
                if !self.drain_outputs(end, stream, left, channel, buffer)? {
                    return Ok(false);
                }
                if storage::is_any_full(&self.storage_paths) {
                    channel.send(&FromGuest::StorageFull { exec: self.id })?;
                }
                if let Some(Used { cpu_usec, memory_peak }) = self.used {
                    channel.send(&FromGuest::Used { exec: self.id, cpu_usec, memory_peak })?;
                }
                channel.send(&FromGuest::Exited { exec: self.id, end })?;
                self.leave();
                Ok(self.tree.is_none())
            }
            Phase::Left => {
                let is_gone = self.tree.as_ref().is_none_or(Tree::is_gone);
                if is_gone {
                    channel.send(&FromGuest::TreeGone { exec: self.id })?;
                }
                Ok(is_gone)
            }
        }
    }

    /// The program has ended, but perhaps not everything it started. A terminal is hung up, as it has no user any more.
    fn leave(&mut self) {
        self.phase = Phase::Left;
        self.stdin = None;
        if self.terminal.take().is_some() {
            self.stdout = None;
        }
    }

    /// Queues stdin. The host must have been told that there is room for it.
    pub(super) fn take_stdin(&mut self, bytes: &[u8], channel: &mut Channel) -> Result<(), Leave> {
        let stdin = self.stdin.as_mut().filter(|stdin| !stdin.is_ended).ok_or(Leave::Protocol)?;
        if stdin.waiting() + bytes.len() > STDIN_WINDOW {
            return Err(Leave::Protocol);
        }
        stdin.queue.extend_from_slice(bytes);
        self.pump_stdin(channel)
    }

    /// No more stdin after what is queued.
    pub(super) fn end_stdin(&mut self, channel: &mut Channel) -> Result<(), Leave> {
        self.stdin.as_mut().ok_or(Leave::Protocol)?.is_ended = true;
        self.pump_stdin(channel)
    }

    /// Writes as much as the program accepts now, and returns that credit to the host.
    pub(super) fn pump_stdin(&mut self, channel: &mut Channel) -> Result<(), Leave> {
        match self.stdin.as_mut().map_or(0, Input::pump) {
            0 => Ok(()),
            // At most STDIN_WINDOW, so the cast keeps the value.
            taken => channel.send(&FromGuest::StdinTaken { exec: self.id, bytes: taken as u32 }),
        }
    }

    pub(super) fn resize(&self, size: TerminalSize) {
        if let Some(terminal) = &self.terminal {
            // A terminal that its program is closing may refuse; then its size doesn't matter.
            let _ = terminal::resize(terminal, size);
        }
    }

    /// Signals the exec's process group: the program and what it started, except what has moved to its own group (a
    /// daemon, a job of an interactive shell).
    pub(super) fn signal(&mut self, signal: u8) {
        if self.is_over() {
            return;
        }
        let Some(pid) = self.pid else {
            // No later signal replaces a kill.
            if self.signal_on_arrival != Some(libc::SIGKILL as u8) {
                self.signal_on_arrival = Some(signal);
            }
            return;
        };
        // SAFETY: takes numbers only. The process has not been reaped, so its pid is still its own. Between fork and
        // setsid it has no group of that number yet. A signal that reaches no process has come too late, which is no
        // error.
        unsafe {
            if libc::kill(-pid, signal.into()) < 0 {
                libc::kill(pid, signal.into());
            }
        }
    }

    /// Signals everything that descends from the exec, including what it has left behind. Without a tree, signals the
    /// group.
    pub(super) fn signal_tree(&mut self, signal: u8) {
        match &mut self.tree {
            // Until its process is known the keeper may have no children yet, and no other process exists.
            Some(_) if self.pid.is_none() => self.signal(signal),
            Some(tree) => tree.pursue(signal.into()),
            None => self.signal(signal),
        }
    }

    /// The agent's own children that belong to this exec.
    pub(super) fn children(&self) -> impl Iterator<Item = libc::pid_t> {
        let own = if self.tree.is_none() && !self.is_over() { self.pid } else { None };
        own.into_iter().chain(self.tree.as_ref().and_then(Tree::keeper))
    }
}

/// How a process ended, from its wait status.
pub(super) fn end_of(status: core::ffi::c_int) -> End {
    // A status has eight bits and a signal number seven, so the casts keep the value.
    if libc::WIFSIGNALED(status) {
        End::Signal { signal: libc::WTERMSIG(status) as u8, core: libc::WCOREDUMP(status) }
    } else {
        End::Code(libc::WEXITSTATUS(status) as u8)
    }
}
