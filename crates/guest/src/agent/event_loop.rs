//! The event loop: what to wait for, and what to do about each.
//!
//! Each round waits for something, then does a bounded amount of work for everything that is ready: one read from the
//! channel, one from each output, a limited number of zombies. No program, however much it writes or forks, keeps the
//! agent from the others or from the host. Execs are removed only at the end of a round, so their positions are valid
//! during it.

use alloc::vec;
use alloc::vec::Vec;
use core::convert::Infallible;

use saggar_guest::{
    End, ExecId, ExecRequest, FailStage, FromGuest, PROTOCOL, SignalScope, Stream, TerminalSize, ToGuest,
};

use super::Leave;
use super::channel::{Channel, Received};
use super::exec::{Exec, Heard, OUTPUT_CHUNK, Start, end_of};
use super::rule;
use super::spawn::{self, SpawnFailure};
use super::sys::{self, Errno, Fd, Wait};
use super::worker;

/// The control channel's descriptor when the agent starts.
const CHANNEL_FD: core::ffi::c_int = 3;

/// Maximum number of execs at once.
const EXECS_MAX: usize = 64;

/// Maximum number of further execs whose program has ended but whose tree has not.
const LEFT_MAX: usize = 192;

/// Maximum number of workers at once.
const WORKERS_MAX: usize = 128;

/// Maximum number of zombies reaped in one round.
const REAPED_PER_ROUND: usize = 256;

pub(super) struct Agent {
    channel: Channel,
    child_signals: Fd,
    execs: Vec<Exec>,
    workers: Vec<libc::pid_t>,
    // Whether a child's end was signalled and some ended children may not be reaped yet.
    may_have_zombies: bool,
    buffer: Vec<u8>,
    entries: Vec<libc::pollfd>,
    sources: Vec<Source>,
}

/// What an entry of the poll list stands for; numbers are positions in `execs`.
#[derive(Clone, Copy)]
enum Source {
    Channel,
    ChildSignals,
    Status(usize),
    Link(usize),
    Output(usize, Stream),
    Stdin(usize),
}

impl Agent {
    /// Sets up the process and sends `Hello`.
    pub(super) fn start() -> Result<Agent, Leave> {
        let mut agent = Agent::set_up().map_err(|_| Leave::Broken)?;
        agent.channel.send(&FromGuest::Hello { protocol: PROTOCOL })?;
        Ok(agent)
    }

    fn set_up() -> Result<Agent, Errno> {
        // No other process may inspect this one, and it does not outlive its parent.
        if rule::is_on("agent/undumpable") {
            sys::prctl(libc::PR_SET_DUMPABLE, 0, 0)?;
        }
        sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0)?;
        // Signals that our parent ignores must not be ignored by our programs. With SIGCHLD ignored, children would be
        // reaped before their end is known.
        sys::default_dispositions();
        sys::set_disposition(libc::SIGPIPE, libc::SIG_IGN)?;
        if !(0..CHANNEL_FD).all(sys::is_open) {
            return Err(Errno(libc::EBADF));
        }
        let channel = Channel::new(Fd::inherited(CHANNEL_FD)?)?;
        // There should be none, but descriptors left open by mistake must not be found in here.
        if rule::is_on("start/descriptors") {
            sys::close_from(CHANNEL_FD + 1)?;
        }
        Ok(Agent {
            channel,
            child_signals: sys::child_signals()?,
            execs: Vec::new(),
            workers: Vec::new(),
            may_have_zombies: false,
            buffer: vec![0; OUTPUT_CHUNK],
            entries: Vec::new(),
            sources: Vec::new(),
        })
    }

    /// Works until there is a reason to exit.
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
            self.pursue();
        }
    }

    /// Whether there is work that no descriptor announces. (A full channel announces when it has room.)
    fn wait(&self) -> Wait {
        let has_work = |exec: &Exec| exec.can_drain(&self.channel) || exec.is_pursued();
        if self.may_have_zombies || self.execs.iter().any(has_work) { Wait::Never } else { Wait::Forever }
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
            if let Some(fd) = exec.link_fd() {
                watch(fd, libc::POLLIN, Source::Link(position));
            }
            if let Some(fd) = exec.stdin_fd() {
                watch(fd, libc::POLLOUT, Source::Stdin(position));
            }
            for stream in [Stream::Stdout, Stream::Stderr] {
                if let Some(fd) = exec.output_fd(stream, &self.channel) {
                    watch(fd, libc::POLLIN, Source::Output(position, stream));
                }
            }
        }
    }

    fn serve_source(&mut self, source: Source) -> Result<(), Leave> {
        match source {
            Source::Channel => {
                for received in self.channel.receive()? {
                    self.obey(received)?;
                }
                Ok(())
            }
            Source::ChildSignals => {
                // Only its presence matters, as signals of several ends may have been merged into it.
                let _ = self.child_signals.read(&mut self.buffer);
                self.may_have_zombies = true;
                Ok(())
            }
            Source::Status(position) => self.try_start(position),
            Source::Stdin(position) => self.execs[position].pump_stdin(&mut self.channel),
            Source::Link(position) => self.hear_keeper(position).map(|_| ()),
            Source::Output(position, stream) => {
                self.execs[position].pass_output(stream, &mut self.channel, &mut self.buffer)
            }
        }
    }

    /// Carries out a frame from the host. A frame about an exec that is gone was sent before the host knew.
    fn obey(&mut self, received: Received) -> Result<(), Leave> {
        let Received { frame, descriptors } = received;
        let channel = &mut self.channel;
        match frame {
            ToGuest::Exec(request) => return self.begin(request, &descriptors),
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
            ToGuest::Signal { exec, signal, scope } => {
                if let Some(exec) = find(&mut self.execs, exec) {
                    match scope {
                        SignalScope::Group => exec.signal(signal),
                        SignalScope::Tree => exec.signal_tree(signal),
                    }
                }
            }
            ToGuest::CloseOutput { exec, stream } => {
                if let Some(exec) = find(&mut self.execs, exec) {
                    exec.close_output(stream);
                }
            }
            ToGuest::OutputTaken { exec, bytes } => {
                if let Some(exec) = find(&mut self.execs, exec) {
                    exec.give_credit(bytes)?;
                }
            }
            ToGuest::Open(request) => {
                let has_room = self.workers.len() < WORKERS_MAX;
                for stream in descriptors {
                    self.workers.extend(worker::start(&request, stream, has_room));
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, mut request: ExecRequest, joins: &[Fd]) -> Result<(), Leave> {
        if find(&mut self.execs, request.exec).is_some() {
            return Err(Leave::Protocol);
        }
        let left = self.execs.iter().filter(|exec| exec.is_left()).count();
        let spawned = if self.execs.len() - left < EXECS_MAX && left <= LEFT_MAX {
            spawn::spawn(&mut request, joins)
        } else {
            Err(SpawnFailure { stage: FailStage::Capacity, errno: Errno(libc::EAGAIN) })
        };
        match spawned {
            Ok(spawned) => self.execs.push(Exec::new(request, spawned)),
            Err(SpawnFailure { stage, errno }) => {
                self.channel.send(&FromGuest::Failed { exec: request.exec, stage, errno: errno.0 })?;
                self.leave_after(request.one_shot)?;
            }
        }
        Ok(())
    }

    /// Handles a message from a keeper; returns true if there may be more. Whether the program started is settled
    /// before its end.
    fn hear_keeper(&mut self, position: usize) -> Result<bool, Leave> {
        match self.execs[position].hear_keeper() {
            Heard::Nothing => Ok(false),
            Heard::Change => self.try_start(position).map(|()| true),
            Heard::Ended(end) => {
                self.try_start(position)?;
                self.execs[position].set_ended(end);
                Ok(true)
            }
        }
    }

    /// A keeper has been reaped. Its earlier messages count.
    fn lose_keeper(&mut self, position: usize, left_by_itself: bool) -> Result<(), Leave> {
        while self.hear_keeper(position)? {}
        if self.execs[position].is_starting() {
            self.fail(position, SpawnFailure { stage: FailStage::Fork, errno: Errno(libc::ESRCH) })?;
        }
        self.execs[position].lose_keeper(left_by_itself);
        Ok(())
    }

    /// Checks whether an exec runs. One that failed is removed at once; its process is reaped like any orphan.
    fn try_start(&mut self, position: usize) -> Result<(), Leave> {
        match self.execs[position].try_start(&mut self.channel)? {
            Start::Pending | Start::Started => Ok(()),
            Start::Failed(failure) => self.fail(position, failure),
        }
    }

    fn fail(&mut self, position: usize, SpawnFailure { stage, errno }: SpawnFailure) -> Result<(), Leave> {
        let exec = &mut self.execs[position];
        self.channel.send(&FromGuest::Failed { exec: exec.id, stage, errno: errno.0 })?;
        let is_one_shot = exec.is_one_shot;
        exec.set_failed();
        self.leave_after(is_one_shot)
    }

    /// Reaps ended processes, up to a number: those of execs, and orphans that PID 1 inherits.
    fn reap(&mut self) -> Result<(), Leave> {
        for _ in 0..REAPED_PER_ROUND {
            let mut status = 0;
            // SAFETY: the call writes one int through the pointer.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
            if pid <= 0 {
                self.may_have_zombies = false;
                return Ok(());
            }
            self.workers.retain(|worker| *worker != pid);
            if let Some(position) = self.execs.iter().position(|exec| exec.is_kept_by(pid)) {
                self.lose_keeper(position, end_of(status) == End::Code(0))?;
            }
            if let Some(position) = self.execs.iter().position(|exec| exec.is_process(pid)) {
                // Its end of the status pipe is closed by now, so this settles whether it started.
                self.try_start(position)?;
                self.execs[position].set_ended(end_of(status));
            }
        }
        Ok(())
    }

    /// Takes one snapshot of each tree that is being signalled.
    fn pursue(&mut self) {
        if !self.execs.iter().any(Exec::is_pursued) {
            return;
        }
        let children = self.execs.iter().flat_map(Exec::children).chain(self.workers.iter().copied());
        let ours: Vec<libc::pid_t> = children.collect();
        for tree in self.execs.iter_mut().filter_map(|exec| exec.tree.as_mut()) {
            tree.look(&ours);
        }
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

    /// Ends the sandbox, once the host has received everything, if this was its only exec.
    fn leave_after(&mut self, is_one_shot: bool) -> Result<(), Leave> {
        if is_one_shot {
            self.channel.flush_all()?;
            return Err(Leave::Done);
        }
        Ok(())
    }
}

fn find(execs: &mut [Exec], id: ExecId) -> Option<&mut Exec> {
    execs.iter_mut().find(|exec| exec.id == id && !exec.is_failed())
}
