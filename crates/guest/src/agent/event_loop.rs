//! The event loop: what there is to wait for, and what to do about each.
//!
//! Each round waits for something, then does a bounded amount for every one that is ready: one read from the channel, one
//! from each output, so many zombies. No program, however much it writes or forks, keeps the agent from the others or
//! from the host. Execs are removed only at a round's end, so their positions hold during it.

use alloc::vec;
use alloc::vec::Vec;
use core::convert::Infallible;

use saggar_guest::{End, ExecId, ExecRequest, FailStage, FromGuest, PROTOCOL, Stream, TerminalSize, ToGuest};

use super::Leave;
use super::channel::Channel;
use super::exec::{Exec, OUTPUT_CHUNK, Start};
use super::rule;
use super::spawn::{self, Failure};
use super::sys::{self, Errno, Fd, Wait};

/// Where the control channel is when the agent starts.
const CHANNEL_FD: core::ffi::c_int = 3;

/// How many execs there can be at once.
const EXECS_MAX: usize = 64;

/// How many zombies are reaped in one round.
const REAPED_PER_ROUND: usize = 256;

pub(super) struct Agent {
    channel: Channel,
    child_signals: Fd,
    execs: Vec<Exec>,
    // Whether a child's end was signalled and not all that have ended are reaped yet.
    may_have_zombies: bool,
    buffer: Vec<u8>,
    entries: Vec<libc::pollfd>,
    sources: Vec<Source>,
}

/// What an entry of the poll list is about; numbers are positions in `execs`.
#[derive(Clone, Copy)]
enum Source {
    Channel,
    ChildSignals,
    Status(usize),
    Output(usize, Stream),
    Stdin(usize),
}

impl Agent {
    /// Takes possession of the process and says hello.
    pub(super) fn start() -> Result<Agent, Leave> {
        let mut agent = Agent::set_up().map_err(|_| Leave::Broken)?;
        agent.channel.send(&FromGuest::Hello { protocol: PROTOCOL })?;
        Ok(agent)
    }

    fn set_up() -> Result<Agent, Errno> {
        // Nobody else may look into this process, and it does not outlive who started it.
        if rule::is_on("agent/undumpable") {
            sys::prctl(libc::PR_SET_DUMPABLE, 0, 0)?;
        }
        sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0)?;
        sys::set_disposition(libc::SIGPIPE, libc::SIG_IGN)?;
        // Ignored by whoever started us, children would be reaped before their end is known.
        sys::set_disposition(libc::SIGCHLD, libc::SIG_DFL)?;
        if !(0..CHANNEL_FD).all(sys::is_open) {
            return Err(Errno(libc::EBADF));
        }
        let channel = Channel::new(Fd::inherited(CHANNEL_FD)?)?;
        // There should be none; but nothing that was left open by mistake is to be found in here.
        if rule::is_on("start/descriptors") {
            sys::close_from(CHANNEL_FD + 1)?;
        }
        Ok(Agent {
            channel,
            child_signals: sys::child_signals()?,
            execs: Vec::new(),
            may_have_zombies: false,
            buffer: vec![0; OUTPUT_CHUNK],
            entries: Vec::new(),
            sources: Vec::new(),
        })
    }

    /// Works until there is a reason to leave.
    pub(super) fn serve(mut self) -> Leave {
        match self.rounds() {
            Ok(never) => match never {},
            Err(leave) => leave,
        }
    }

    fn rounds(&mut self) -> Result<Infallible, Leave> {
        loop {
            self.channel.flush()?;
            self.list_sources();
            let wait = self.wait();
            sys::poll(&mut self.entries, wait).map_err(|_| Leave::Broken)?;
            for position in 0..self.entries.len() {
                if self.entries[position].revents != 0 {
                    self.serve_source(self.sources[position])?;
                }
            }
            if self.may_have_zombies {
                self.reap()?;
            }
            self.drain_ended()?;
        }
    }

    /// Whether there is something to do that no descriptor tells of. (A channel without room tells when it has some.)
    fn wait(&self) -> Wait {
        let can_drain = self.channel.has_room() && self.execs.iter().any(Exec::is_over);
        if self.may_have_zombies || can_drain { Wait::Never } else { Wait::Forever }
    }

    fn list_sources(&mut self) {
        let (entries, sources) = (&mut self.entries, &mut self.sources);
        entries.clear();
        sources.clear();
        let mut watch = |fd: &Fd, events, source| {
            entries.push(libc::pollfd { fd: fd.raw(), events, revents: 0 });
            sources.push(source);
        };
        let writing = if self.channel.unsent() > 0 { libc::POLLOUT } else { 0 };
        watch(self.channel.fd(), libc::POLLIN | writing, Source::Channel);
        watch(&self.child_signals, libc::POLLIN, Source::ChildSignals);
        for (position, exec) in self.execs.iter().enumerate() {
            if let Some(fd) = exec.status_fd() {
                watch(fd, libc::POLLIN, Source::Status(position));
            }
            if let Some(fd) = exec.stdin_fd() {
                watch(fd, libc::POLLOUT, Source::Stdin(position));
            }
            if self.channel.has_room() {
                for stream in [Stream::Stdout, Stream::Stderr] {
                    if let Some(fd) = exec.output_fd(stream) {
                        watch(fd, libc::POLLIN, Source::Output(position, stream));
                    }
                }
            }
        }
    }

    fn serve_source(&mut self, source: Source) -> Result<(), Leave> {
        match source {
            Source::Channel => {
                for frame in self.channel.receive()? {
                    self.obey(frame)?;
                }
                Ok(())
            }
            Source::ChildSignals => {
                // Only whether there is one matters, as signals of many ends may have been merged into it.
                let _ = self.child_signals.read(&mut self.buffer);
                self.may_have_zombies = true;
                Ok(())
            }
            Source::Status(position) => self.try_start(position),
            Source::Stdin(position) => self.execs[position].pump_stdin(&mut self.channel),
            Source::Output(position, stream) if self.channel.has_room() => {
                self.execs[position].pass_output(stream, &mut self.channel, &mut self.buffer)
            }
            Source::Output(..) => Ok(()),
        }
    }

    /// Does what the host says. What it says about an exec that is gone was sent before it knew.
    fn obey(&mut self, frame: ToGuest) -> Result<(), Leave> {
        let channel = &mut self.channel;
        match frame {
            ToGuest::Exec(request) => return self.begin(request),
            ToGuest::Stdin { exec, bytes } => {
                if let Some(exec) = find(&mut self.execs, exec) {
                    exec.take_stdin(&bytes, channel)?;
                }
            }
            ToGuest::StdinEnd { exec } => {
                if let Some(exec) = find(&mut self.execs, exec) {
                    exec.end_stdin(channel)?;
                }
            }
            ToGuest::Resize { exec, rows, cols } => {
                if let Some(exec) = find(&mut self.execs, exec) {
                    exec.resize(TerminalSize { rows, cols });
                }
            }
            ToGuest::Signal { exec, signal, scope: _ } => {
                if let Some(exec) = find(&mut self.execs, exec) {
                    exec.signal(signal);
                }
            }
            ToGuest::CloseOutput { exec, stream } => {
                if let Some(exec) = find(&mut self.execs, exec) {
                    exec.close_output(stream);
                }
            }
            ToGuest::OutputTaken { .. } | ToGuest::Open(_) => return Err(Leave::Protocol),
        }
        Ok(())
    }

    fn begin(&mut self, mut request: ExecRequest) -> Result<(), Leave> {
        if self.execs.iter().any(|exec| exec.id == request.exec) {
            return Err(Leave::Protocol);
        }
        let spawned = if self.execs.len() < EXECS_MAX {
            spawn::spawn(&mut request)
        } else {
            Err(Failure { stage: FailStage::Capacity, errno: Errno(libc::EAGAIN) })
        };
        match spawned {
            Ok(spawned) => self.execs.push(Exec::new(request, spawned)),
            Err(Failure { stage, errno }) => {
                self.channel.send(&FromGuest::Failed { exec: request.exec, stage, errno: errno.0 })?;
                self.leave_after(request.one_shot)?;
            }
        }
        Ok(())
    }

    /// Sees whether an exec runs. One that failed is gone at once; its process is reaped like any stranger.
    fn try_start(&mut self, position: usize) -> Result<(), Leave> {
        let exec = &mut self.execs[position];
        match exec.try_start(&mut self.channel)? {
            Start::Pending | Start::Started => Ok(()),
            Start::Failed(Failure { stage, errno }) => {
                self.channel.send(&FromGuest::Failed { exec: exec.id, stage, errno: errno.0 })?;
                let is_one_shot = exec.is_one_shot;
                exec.set_failed();
                self.leave_after(is_one_shot)
            }
        }
    }

    /// Reaps what has ended, the execs' processes and the orphans that a PID 1 inherits, up to a number.
    fn reap(&mut self) -> Result<(), Leave> {
        for _ in 0..REAPED_PER_ROUND {
            let mut status = 0;
            // SAFETY: the call writes one int through the pointer.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
            if pid <= 0 {
                self.may_have_zombies = false;
                return Ok(());
            }
            if let Some(position) = self.execs.iter().position(|exec| exec.is_process(pid)) {
                // Its end of the status pipe is closed by now, so this settles whether it had started.
                self.try_start(position)?;
                self.execs[position].set_ended(end_of(status));
            }
        }
        Ok(())
    }

    fn drain_ended(&mut self) -> Result<(), Leave> {
        let mut position = 0;
        while let Some(exec) = self.execs.get_mut(position) {
            if exec.drain(&mut self.channel, &mut self.buffer)? {
                let exec = self.execs.swap_remove(position);
                self.leave_after(exec.is_one_shot)?;
            } else {
                position += 1;
            }
        }
        Ok(())
    }

    /// Ends the sandbox, once the host has everything, if this was what it was for.
    fn leave_after(&mut self, is_one_shot: bool) -> Result<(), Leave> {
        if is_one_shot {
            self.channel.flush_all()?;
            return Err(Leave::Done);
        }
        Ok(())
    }
}

fn find(execs: &mut [Exec], id: ExecId) -> Option<&mut Exec> {
    execs.iter_mut().find(|exec| exec.id == id)
}

fn end_of(status: core::ffi::c_int) -> End {
    // A status and a signal number have eight and seven bits, so the casts keep the value.
    if libc::WIFSIGNALED(status) {
        End::Signal { signal: libc::WTERMSIG(status) as u8, core: libc::WCOREDUMP(status) }
    } else {
        End::Code(libc::WEXITSTATUS(status) as u8)
    }
}
