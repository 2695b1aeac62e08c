//! One exec: a program the host asked for, from its process to the end of all it has started.
//!
//! ```text
//!             status pipe closes                ended               outputs dry           keeper reaped
//!   Starting ────────────────────▶ Running ─────────────▶ Draining ─────────────▶ Left ─────────────────▶ (gone)
//!      │                            Started                  StorageFull?, Exited              TreeGone
//!      └─ status pipe has a report ▶ (gone) Failed
//! ```
//!
//! Nothing is read from a program before it is known to have started, so `Started` always comes first. When it has ended,
//! what it wrote is still in its pipes and is read without waiting: until they are dry or closed, or [`DRAIN_MAX`] was read, as a
//! child it left behind may hold them open, and may write without pause. What such a child writes after `Exited` is read and thrown away:
//! it goes on as if somebody listened. A `one_shot` is never left: the sandbox ends with it.

use alloc::vec::Vec;

use saggar_guest::{End, ExecId, ExecRequest, FailStage, FromGuest, STDIN_WINDOW, Stream, TerminalSize};

use super::channel::Channel;
use super::input::Input;
use super::keeper::{self, Said, Used};
use super::spawn::{Failure, Spawned};
use super::sys::{self, Errno, Fd};
use super::tree::Tree;
use super::{Leave, storage, terminal};

/// How much of each output is read after the program's end. No pipe an ordinary user can make holds more.
const DRAIN_MAX: usize = 1024 * 1024;

/// How much output is read at once, and so the most that one `Output` holds.
pub(super) const OUTPUT_CHUNK: usize = 32 * 1024;

pub(super) struct Exec {
    pub(super) id: ExecId,
    pub(super) is_one_shot: bool,
    /// The program's process, once it is known.
    pid: Option<libc::pid_t>,
    /// Absent for a one-shot.
    pub(super) tree: Option<Tree>,
    phase: Phase,
    window: Option<Window>,
    /// What came for a process that is not known yet.
    signal_on_arrival: Option<u8>,
    stdin: Option<Input>,
    stdout: Option<Fd>,
    stderr: Option<Fd>,
    terminal: Option<Fd>,
    /// With a NUL at their end.
    storage_paths: Vec<Vec<u8>>,
    /// What it used, once its keeper has said.
    used: Option<Used>,
    /// Whether the host knows that there is no process of it.
    is_told_deserted: bool,
}

enum Phase {
    Starting { status: Fd },
    Running,
    Draining { end: End, stream: Option<Stream>, left: usize },
    Left,
    Failed,
}

/// How much output the host takes.
struct Window {
    size: u32,
    // INVARIANT: at most `size`.
    credit: u32,
}

/// What became of an exec that was starting.
pub(super) enum Start {
    Pending,
    Started,
    Failed(Failure),
}

/// What came from a keeper.
pub(super) enum Heard {
    Nothing,
    /// Something by which the program may turn out to have started or failed.
    Change,
    /// The program has ended.
    Ended(End),
}

/// What one read from an output gave.
enum Gave {
    Bytes(usize),
    Nothing,
    End,
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

    /// The descriptor to watch while it starts: nothing is told about a program whose process is not known.
    pub(super) fn status_fd(&self) -> Option<&Fd> {
        match &self.phase {
            Phase::Starting { status } if self.pid.is_some() => Some(status),
            Phase::Starting { .. } | Phase::Running | Phase::Draining { .. } | Phase::Left | Phase::Failed => None,
        }
    }

    /// The descriptor to watch for what the keeper says.
    pub(super) fn link_fd(&self) -> Option<&Fd> {
        self.tree.as_ref().and_then(|tree| tree.link.as_ref())
    }

    /// The descriptor to watch for output of a running program, if the host takes any, or of what it left; one that is draining is read
    /// without watching.
    pub(super) fn output_fd(&self, stream: Stream, channel: &Channel) -> Option<&Fd> {
        let is_wanted = match self.phase {
            Phase::Running => channel.has_room() && self.credit() > 0,
            Phase::Left => true,
            Phase::Starting { .. } | Phase::Draining { .. } | Phase::Failed => false,
        };
        self.output(stream).filter(|_| is_wanted)
    }

    fn output(&self, stream: Stream) -> Option<&Fd> {
        match stream {
            Stream::Stdout => self.stdout.as_ref(),
            Stream::Stderr => self.stderr.as_ref(),
        }
    }

    fn credit(&self) -> usize {
        self.window.as_ref().map_or(usize::MAX, |window| window.credit as usize)
    }

    /// The host has taken this much output. More than it was sent is not possible.
    pub(super) fn give_credit(&mut self, bytes: u32) -> Result<(), Leave> {
        let Some(window) = &mut self.window else { return Ok(()) };
        window.credit =
            window.credit.checked_add(bytes).filter(|credit| *credit <= window.size).ok_or(Leave::Protocol)?;
        Ok(())
    }

    /// The descriptor to watch for room, while there is something to write.
    pub(super) fn stdin_fd(&self) -> Option<&Fd> {
        self.stdin.as_ref().filter(|stdin| stdin.is_waiting()).and_then(|stdin| stdin.fd.as_ref())
    }

    /// Whether this is the exec's process, and still to be reaped on its behalf.
    pub(super) fn is_process(&self, pid: libc::pid_t) -> bool {
        self.tree.is_none() && self.pid == Some(pid) && !self.is_over()
    }

    /// Whether its process is gone or nobody's concern, and only [`Exec::drain`] is left to do.
    pub(super) fn is_over(&self) -> bool {
        match self.phase {
            Phase::Starting { .. } | Phase::Running => false,
            Phase::Draining { .. } | Phase::Left | Phase::Failed => true,
        }
    }

    /// Whether [`Exec::drain`] has something to do that no descriptor tells of.
    pub(super) fn can_drain(&self, channel: &Channel) -> bool {
        match self.phase {
            Phase::Starting { .. } | Phase::Running => false,
            Phase::Failed | Phase::Left => self.tree.as_ref().is_none_or(Tree::is_gone),
            Phase::Draining { stream, .. } => {
                stream.is_none() || (channel.has_room() && self.credit() > 0) || self.owes_deserted()
            }
        }
    }

    /// Whether the host is yet to be told that there is no process of it. That doesn't wait for output, which the host may take late.
    fn owes_deserted(&self) -> bool {
        let has_run = matches!(self.phase, Phase::Draining { .. } | Phase::Left);
        has_run && !self.is_told_deserted && self.tree.as_ref().is_some_and(Tree::is_gone)
    }

    /// Whether there is somebody in its tree who is to be signalled.
    pub(super) fn is_pursued(&self) -> bool {
        self.tree.as_ref().is_some_and(Tree::is_pursued)
    }

    /// Whether the host has been told that it failed, and has no more to do with it.
    pub(super) fn is_failed(&self) -> bool {
        matches!(self.phase, Phase::Failed)
    }

    /// Whether it is one of those that only wait for the end of their tree.
    pub(super) fn is_left(&self) -> bool {
        matches!(self.phase, Phase::Left)
    }

    /// Takes up what the keeper says next.
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

    /// The keeper has been reaped. If it has not said how the program ended, it was killed, and the program is killed with it.
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

    /// Looks at the status pipe.
    pub(super) fn try_start(&mut self, channel: &mut Channel) -> Result<Start, Leave> {
        let Phase::Starting { status } = &self.phase else { return Ok(Start::Started) };
        let mut report = [0; 5];
        match (status.read(&mut report), self.pid) {
            (Ok(0), Some(pid)) => {
                self.phase = Phase::Running;
                channel.send(&FromGuest::Started { exec: self.id, pid: pid.unsigned_abs() })?;
                Ok(Start::Started)
            }
            // Its keeper was killed before it could say who it is.
            (Ok(0), None) => Ok(Start::Failed(Failure { stage: FailStage::Fork, errno: Errno(libc::ESRCH) })),
            // A write this small arrives whole. Anything but a report has not come from our code.
            (Ok(5), _) => Failure::from_report(report).map(Start::Failed).ok_or(Leave::Broken),
            (Err(Errno(libc::EAGAIN)), _) => Ok(Start::Pending),
            (Ok(_) | Err(_), _) => Err(Leave::Broken),
        }
    }

    /// The process has been reaped, or is about to be: from here on its number may belong to another.
    pub(super) fn set_ended(&mut self, end: End) {
        if !self.is_over() {
            self.phase = Phase::Draining { end, stream: Some(Stream::Stdout), left: DRAIN_MAX };
        }
    }

    /// The host has been told that it failed. Its process ends by itself and is reaped like any stranger.
    pub(super) fn set_failed(&mut self) {
        self.phase = Phase::Failed;
    }

    /// Passes on what can be read from an output now, once, or throws it away if it comes too late.
    pub(super) fn pass_output(
        &mut self,
        stream: Stream,
        channel: &mut Channel,
        buffer: &mut [u8],
    ) -> Result<(), Leave> {
        let gave = match self.phase {
            // The other output may have used up what there was a moment ago.
            Phase::Running if channel.has_room() && self.credit() > 0 => self.read_output(stream, channel, buffer)?,
            Phase::Left => self.output(stream).map_or(Gave::End, |output| read(output, buffer)),
            Phase::Running | Phase::Starting { .. } | Phase::Draining { .. } | Phase::Failed => Gave::Nothing,
        };
        if let Gave::End = gave {
            self.forget_output(stream);
        }
        Ok(())
    }

    /// Goes on with an exec that is over, as far as the host takes it; true once everything about it has been told.
    pub(super) fn drain(&mut self, channel: &mut Channel, buffer: &mut [u8]) -> Result<bool, Leave> {
        if self.owes_deserted() {
            self.is_told_deserted = true;
            channel.send(&FromGuest::Deserted { exec: self.id })?;
        }
        match self.phase {
            Phase::Starting { .. } | Phase::Running => Ok(false),
            // If it was its keeper that was lost, a process may still be on its way, and is killed first.
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

    /// Reads what is in the outputs, first one and then the other; true when nothing more is to be told.
    fn drain_outputs(
        &mut self,
        end: End,
        mut stream: Option<Stream>,
        mut left: usize,
        channel: &mut Channel,
        buffer: &mut [u8],
    ) -> Result<bool, Leave> {
        while let Some(current) = stream {
            let gave = if self.credit() == 0 && !self.output(current).is_some_and(sys::is_readable) {
                // Without credit it cannot be read, but it can be seen that there is nothing to read.
                Gave::Nothing
            } else if self.output(current).is_some() && (!channel.has_room() || self.credit() == 0) {
                self.phase = Phase::Draining { end, stream, left };
                return Ok(false);
            } else {
                let most = left.min(buffer.len());
                self.read_output(current, channel, &mut buffer[..most])?
            };
            match gave {
                Gave::Bytes(count) if count < left => left -= count,
                gave => {
                    if let Gave::End = gave {
                        self.forget_output(current);
                    }
                    left = DRAIN_MAX;
                    stream = match current {
                        Stream::Stdout => Some(Stream::Stderr),
                        Stream::Stderr => None,
                    };
                }
            }
        }
        Ok(true)
    }

    /// The program is over, but perhaps not all it has started. A terminal is hung up, as nobody sits at it any more.
    fn leave(&mut self) {
        self.phase = Phase::Left;
        self.stdin = None;
        if self.terminal.take().is_some() {
            self.stdout = None;
        }
    }

    fn read_output(&mut self, stream: Stream, channel: &mut Channel, buffer: &mut [u8]) -> Result<Gave, Leave> {
        let most = buffer.len().min(self.credit());
        let Some(output) = self.output(stream) else { return Ok(Gave::End) };
        let gave = read(output, &mut buffer[..most]);
        if let Gave::Bytes(count) = gave {
            if let Some(window) = &mut self.window {
                // At most `most`, hence at most the credit.
                window.credit -= count as u32;
            }
            channel.send(&FromGuest::Output { exec: self.id, stream, bytes: buffer[..count].to_vec() })?;
        }
        Ok(gave)
    }

    fn forget_output(&mut self, stream: Stream) {
        match stream {
            Stream::Stdout => self.stdout = None,
            Stream::Stderr => self.stderr = None,
        }
    }

    /// The host reads no more of this output. For a terminal that means to hang up, as it would when its window is closed.
    pub(super) fn close_output(&mut self, stream: Stream) {
        self.forget_output(stream);
        if self.terminal.is_some() && stream == Stream::Stdout {
            self.terminal = None;
            if let Some(stdin) = &mut self.stdin {
                stdin.fd = None;
            }
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

    /// Writes what the program takes now, and gives the host that much credit back.
    pub(super) fn pump_stdin(&mut self, channel: &mut Channel) -> Result<(), Leave> {
        match self.stdin.as_mut().map_or(0, Input::pump) {
            0 => Ok(()),
            // At most STDIN_WINDOW, so the cast keeps the value.
            taken => channel.send(&FromGuest::StdinTaken { exec: self.id, bytes: taken as u32 }),
        }
    }

    pub(super) fn resize(&self, size: TerminalSize) {
        if let Some(terminal) = &self.terminal {
            // A terminal that is being closed by its program may refuse; then there is no size to have.
            let _ = terminal::resize(terminal, size);
        }
    }

    /// Signals the exec's process group: the program and what it started, except what has moved to a group of its own (a
    /// daemon, a job of an interactive shell).
    pub(super) fn signal(&mut self, signal: u8) {
        if self.is_over() {
            return;
        }
        let Some(pid) = self.pid else {
            // Nothing that comes later takes the place of a kill.
            if self.signal_on_arrival != Some(libc::SIGKILL as u8) {
                self.signal_on_arrival = Some(signal);
            }
            return;
        };
        // SAFETY: takes numbers only. The process has not been reaped, so its number is still its own. It has no group of that number
        // yet for the moment between fork and setsid. A signal that finds nobody has come too late, which is no error.
        unsafe {
            if libc::kill(-pid, signal.into()) < 0 {
                libc::kill(pid, signal.into());
            }
        }
    }

    /// Signals everything that descends from the exec, also what it has left behind. Without a tree: the group.
    pub(super) fn signal_tree(&mut self, signal: u8) {
        match &mut self.tree {
            // Until its process is known there may be nothing under the keeper yet, and there is nobody else.
            Some(_) if self.pid.is_none() => self.signal(signal),
            Some(tree) => tree.pursue(signal.into()),
            None => self.signal(signal),
        }
    }

    /// The agent's own children on behalf of this exec.
    pub(super) fn children(&self) -> impl Iterator<Item = libc::pid_t> {
        let own = if self.tree.is_none() && !self.is_over() { self.pid } else { None };
        own.into_iter().chain(self.tree.as_ref().and_then(Tree::keeper))
    }
}

fn read(output: &Fd, buffer: &mut [u8]) -> Gave {
    match output.read(buffer) {
        Ok(0) => Gave::End,
        Ok(count) => Gave::Bytes(count),
        Err(Errno(libc::EAGAIN)) => Gave::Nothing,
        // EIO is how a terminal says that nobody has it open any more.
        Err(_) => Gave::End,
    }
}

/// How a process ended, from its wait status.
pub(super) fn end_of(status: core::ffi::c_int) -> End {
    // A status and a signal number have eight and seven bits, so the casts keep the value.
    if libc::WIFSIGNALED(status) {
        End::Signal { signal: libc::WTERMSIG(status) as u8, core: libc::WCOREDUMP(status) }
    } else {
        End::Code(libc::WEXITSTATUS(status) as u8)
    }
}
