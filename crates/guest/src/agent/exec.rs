//! One exec: a program the host asked for, from its process to its end.
//!
//! ```text
//!             status pipe closes               reaped                  outputs dry
//!   Starting ────────────────────▶ Running ─────────────▶ Draining ────────────────▶ (gone)
//!      │                            Started                             StorageFull?, Exited
//!      └─ status pipe has a report ▶ (gone) Failed
//! ```
//!
//! Nothing is read from a program before it is known to have started, so `Started` always comes first. When it has ended,
//! what it wrote is still in its pipes and is read without waiting: until they are dry or closed, or [`DRAIN_MAX`] was read, as a
//! child it left behind may hold them open, and may write without pause.

use alloc::vec::Vec;

use saggar_guest::{End, ExecId, ExecRequest, FromGuest, STDIN_WINDOW, Stream, TerminalSize};

use super::channel::Channel;
use super::spawn::{Failure, Spawned};
use super::sys::{Errno, Fd};
use super::{Leave, storage, terminal};

/// How much of each output is read after the program's end. No pipe an ordinary user can make holds more.
const DRAIN_MAX: usize = 1024 * 1024;

/// How much output is read at once, and so the most that one `Output` holds.
pub(super) const OUTPUT_CHUNK: usize = 32 * 1024;

pub(super) struct Exec {
    pub(super) id: ExecId,
    pub(super) is_one_shot: bool,
    pid: libc::pid_t,
    phase: Phase,
    stdin: Option<Input>,
    stdout: Option<Fd>,
    stderr: Option<Fd>,
    terminal: Option<Fd>,
    /// With a NUL at their end.
    storage_paths: Vec<Vec<u8>>,
}

enum Phase {
    Starting { status: Fd },
    Running,
    Draining { end: End, left: usize },
    Failed,
}

/// What became of an exec that was starting.
pub(super) enum Start {
    Pending,
    Started,
    Failed(Failure),
}

/// What one read from an output gave.
enum Gave {
    Bytes(usize),
    Nothing,
    End,
}

impl Exec {
    pub(super) fn new(request: ExecRequest, spawned: Spawned) -> Exec {
        let Spawned { pid, status, ends } = spawned;
        let is_terminal = ends.terminal.is_some();
        let mut storage_paths = request.storage_paths;
        for path in &mut storage_paths {
            path.push(0);
        }
        Exec {
            id: request.exec,
            is_one_shot: request.one_shot,
            pid,
            phase: Phase::Starting { status },
            stdin: ends.stdin.map(|fd| Input::new(fd, is_terminal)),
            stdout: Some(ends.stdout),
            stderr: ends.stderr,
            terminal: ends.terminal,
            storage_paths,
        }
    }

    /// The descriptor to watch while it starts.
    pub(super) fn status_fd(&self) -> Option<&Fd> {
        match &self.phase {
            Phase::Starting { status } => Some(status),
            Phase::Running | Phase::Draining { .. } | Phase::Failed => None,
        }
    }

    /// The descriptor to watch for output of a running program; one that has ended is read without watching.
    pub(super) fn output_fd(&self, stream: Stream) -> Option<&Fd> {
        match self.phase {
            Phase::Running => match stream {
                Stream::Stdout => self.stdout.as_ref(),
                Stream::Stderr => self.stderr.as_ref(),
            },
            Phase::Starting { .. } | Phase::Draining { .. } | Phase::Failed => None,
        }
    }

    /// The descriptor to watch for room, while there is something to write.
    pub(super) fn stdin_fd(&self) -> Option<&Fd> {
        self.stdin.as_ref().filter(|stdin| stdin.is_waiting()).and_then(|stdin| stdin.fd.as_ref())
    }

    /// Whether this is the exec's process, and still to be reaped on its behalf.
    pub(super) fn is_process(&self, pid: libc::pid_t) -> bool {
        self.pid == pid && !self.is_over()
    }

    /// Whether its process is gone or nobody's concern, and only [`Exec::drain`] is left to do.
    pub(super) fn is_over(&self) -> bool {
        match self.phase {
            Phase::Starting { .. } | Phase::Running => false,
            Phase::Draining { .. } | Phase::Failed => true,
        }
    }

    /// Looks at the status pipe.
    pub(super) fn try_start(&mut self, channel: &mut Channel) -> Result<Start, Leave> {
        let Phase::Starting { status } = &self.phase else { return Ok(Start::Started) };
        let mut report = [0; 5];
        match status.read(&mut report) {
            Ok(0) => {
                self.phase = Phase::Running;
                channel.send(&FromGuest::Started { exec: self.id, pid: self.pid.unsigned_abs() })?;
                Ok(Start::Started)
            }
            // A write this small arrives whole. Anything but a report has not come from our code.
            Ok(5) => Failure::from_report(report).map(Start::Failed).ok_or(Leave::Broken),
            Err(Errno(libc::EAGAIN)) => Ok(Start::Pending),
            Ok(_) | Err(_) => Err(Leave::Broken),
        }
    }

    /// The process has been reaped: from here on its number may belong to another.
    pub(super) fn set_ended(&mut self, end: End) {
        if !self.is_over() {
            self.phase = Phase::Draining { end, left: DRAIN_MAX };
        }
    }

    /// The host has been told that it failed. Its process ends by itself and is reaped like any stranger.
    pub(super) fn set_failed(&mut self) {
        self.phase = Phase::Failed;
    }

    /// Passes on what can be read from an output now, once.
    pub(super) fn pass_output(
        &mut self,
        stream: Stream,
        channel: &mut Channel,
        buffer: &mut [u8],
    ) -> Result<(), Leave> {
        if let Gave::End = self.read_output(stream, channel, buffer)? {
            self.forget_output(stream);
        }
        Ok(())
    }

    /// Goes on with an exec that is over, as far as the channel has room; true once everything about it has been told.
    pub(super) fn drain(&mut self, channel: &mut Channel, buffer: &mut [u8]) -> Result<bool, Leave> {
        let (end, mut left) = match self.phase {
            Phase::Starting { .. } | Phase::Running => return Ok(false),
            Phase::Failed => return Ok(true),
            Phase::Draining { end, left } => (end, left),
        };
        for stream in [Stream::Stdout, Stream::Stderr] {
            while self.has_output(stream) {
                if !channel.has_room() {
                    self.phase = Phase::Draining { end, left };
                    return Ok(false);
                }
                let most = left.min(buffer.len());
                match self.read_output(stream, channel, &mut buffer[..most])? {
                    Gave::Bytes(count) if count < left => left -= count,
                    Gave::Bytes(_) | Gave::Nothing | Gave::End => {
                        self.forget_output(stream);
                        left = DRAIN_MAX;
                    }
                }
            }
        }
        if storage::is_any_full(&self.storage_paths) {
            channel.send(&FromGuest::StorageFull { exec: self.id })?;
        }
        channel.send(&FromGuest::Exited { exec: self.id, end })?;
        Ok(true)
    }

    fn has_output(&self, stream: Stream) -> bool {
        match stream {
            Stream::Stdout => self.stdout.is_some(),
            Stream::Stderr => self.stderr.is_some(),
        }
    }

    fn read_output(&self, stream: Stream, channel: &mut Channel, buffer: &mut [u8]) -> Result<Gave, Leave> {
        let output = match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        };
        let Some(output) = output else { return Ok(Gave::End) };
        match output.read(buffer) {
            Ok(0) => Ok(Gave::End),
            Ok(count) => {
                channel.send(&FromGuest::Output { exec: self.id, stream, bytes: buffer[..count].to_vec() })?;
                Ok(Gave::Bytes(count))
            }
            Err(Errno(libc::EAGAIN)) => Ok(Gave::Nothing),
            // EIO is how a terminal says that nobody has it open any more.
            Err(_) => Ok(Gave::End),
        }
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
    /// daemon, a job of an interactive shell). Those end with the sandbox.
    pub(super) fn signal(&self, signal: u8) {
        if self.is_over() {
            return;
        }
        // SAFETY: takes numbers only. The process has not been reaped, so its number is still its own. It has no group of that number
        // yet for the moment between fork and setsid. A signal that finds nobody has come too late, which is no error.
        unsafe {
            if libc::kill(-self.pid, signal.into()) < 0 {
                libc::kill(self.pid, signal.into());
            }
        }
    }
}

/// A program's stdin, seen from outside.
struct Input {
    // `None` once it is closed, by us or by the program; what still comes is thrown away.
    fd: Option<Fd>,
    // INVARIANT: from `written` on never longer than STDIN_WINDOW.
    queue: Vec<u8>,
    written: usize,
    is_ended: bool,
    is_terminal: bool,
    is_line_open: bool,
}

impl Input {
    fn new(fd: Fd, is_terminal: bool) -> Input {
        Input { fd: Some(fd), queue: Vec::new(), written: 0, is_ended: false, is_terminal, is_line_open: false }
    }

    fn waiting(&self) -> usize {
        self.queue.len() - self.written
    }

    fn is_waiting(&self) -> bool {
        self.waiting() > 0 || self.is_ended
    }

    /// Writes as much as goes; returns how many bytes are off the queue.
    fn pump(&mut self) -> usize {
        let before = self.waiting();
        while self.waiting() > 0 {
            let Some(fd) = &self.fd else {
                self.written = self.queue.len();
                break;
            };
            match fd.write(&self.queue[self.written..]) {
                Ok(count) => self.written += count,
                Err(Errno(libc::EAGAIN)) => break,
                Err(_) => self.fd = None,
            }
        }
        let taken = before - self.waiting();
        if let Some(last) = self.written.checked_sub(1).and_then(|last| self.queue.get(last)) {
            self.is_line_open = *last != b'\n';
        }
        self.queue.drain(..self.written);
        self.written = 0;
        if self.is_ended && self.waiting() == 0 {
            self.end();
        }
        taken
    }

    /// Tells the program that there is no more. A terminal cannot be closed in one direction: there, the end is typed. In the
    /// middle of a line the first such character only sends the line off, so there it is typed twice.
    fn end(&mut self) {
        if self.is_terminal
            && let Some(fd) = &self.fd
            && let Some(end) = terminal::end_of_input(fd)
        {
            let typed = [end, end];
            let count = if self.is_line_open { 2 } else { 1 };
            if fd.write(&typed[..count]) == Err(Errno(libc::EAGAIN)) {
                return;
            }
        }
        self.fd = None;
    }
}
