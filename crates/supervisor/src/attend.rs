//! Attends one exec: from the agent's start to the death of the last process.
//!
//! Happy path: `Hello`, `Started`, output, `Exited`, the agent exits, the kernel kills the rest of the pid namespace,
//! PID 1 is reaped. Only then is anything reported, so a report means that the whole tree is dead, including daemonised
//! children. Failures: the deadline passes or the user cancels (ask the program to end, wait, kill PID 1); the agent
//! dies or breaks the protocol (kill PID 1); the program can't be started (`Failed`). Each ends with the same reaping.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};
use saggar_guest::{End, ExecId, FailStage, FromGuest, PROTOCOL, STDIN_WINDOW, SignalScope, Stream, ToGuest};
use saggar_jail::{Jailed, Reaped, Rule, Signals};

use crate::caller;
use crate::channel::{Channel, Incoming};
use crate::deadline::{Action, Cause, Deadline};
use crate::egress::{FromEgress, HostAnswer, Network, Told};
use crate::sink::Sink;
use crate::watch::{Observation, Watch};

/// How long a killed PID 1 may take to end before this is reported as a failure.
const KILL_PATIENCE: Duration = Duration::from_secs(30);
/// Messages of the egress process taken at once.
const DECISIONS_PER_ROUND: usize = 64;
/// Bytes of stdin read at once.
const STDIN_LEN: usize = 16 * 1024;

#[derive(Debug)]
pub struct Streams {
    /// `None` means an empty stdin.
    pub stdin: Option<OwnedFd>,
    pub stdout: Sink,
    pub stderr: Sink,
    /// The operator's terminal; the program's terminal follows its size.
    pub terminal: Option<OwnedFd>,
}

impl Streams {
    /// Writes what the readers accept. If one stream is cut inside an escape sequence the other waits, because both may
    /// lead to the same terminal.
    fn pass_on(&mut self) {
        if !self.stderr.is_cut() {
            self.stdout.write_some();
        }
        if !self.stdout.is_cut() {
            self.stderr.write_some();
        }
    }
}

/// How an exec ended, and observations on the way.
#[derive(Debug)]
pub struct ExecOutcome {
    pub ending: Ending,
    /// Whether private storage was full at the end.
    pub is_storage_full: bool,
    /// Resources that the tree used.
    pub reaped: Option<Reaped>,
    /// The streams, with the captured output.
    pub streams: Streams,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Ended(End),
    /// The deadline passed.
    TimedOut,
    /// The user cancelled it.
    Cancelled,
    NotStarted {
        stage: FailStage,
        /// The kernel's error.
        errno: i32,
    },
    /// The agent died or broke the protocol.
    GuestLost,
}

#[derive(Debug)]
pub struct Attendance<'a> {
    pub jailed: Jailed,
    /// The channel to its agent; the exec request has already been sent.
    pub channel: Channel,
    pub exec: ExecId,
    /// The deadline by which it must have ended.
    pub deadline: Instant,
    /// The sandbox's memory limit.
    pub memory_bytes: u64,
    /// SIGINT, SIGTERM and SIGHUP cancel; SIGWINCH resizes.
    pub signals: &'a Signals,
    pub streams: Streams,
    /// The sandbox's network, if it is proxied.
    pub network: Option<&'a mut Network>,
    /// Who answers its questions.
    pub asker: Option<Asker<'a>>,
}

/// Asks a person. It waits for the answer, and while it does, the program's output is held and it gets no input.
pub struct Asker<'a>(pub &'a mut dyn FnMut(&Question<'_>) -> HostAnswer);

impl std::fmt::Debug for Asker<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Asker")
    }
}

/// A host that no rule allows.
#[derive(Debug)]
pub struct Question<'a> {
    /// As the program calls itself.
    pub program: Option<&'a str>,
    pub host: &'a str,
    pub port: u16,
    /// When the program's time is over.
    pub deadline: Instant,
}

impl Attendance<'_> {
    /// Returns when the whole tree is dead.
    pub fn run(self, observe: &mut dyn FnMut(Observation)) -> io::Result<ExecOutcome> {
        let mut attendant = Attendant {
            watch: Watch::new(Some(self.jailed.listener), self.memory_bytes),
            pid: self.jailed.pid,
            pidfd: self.jailed.pidfd,
            channel: self.channel,
            exec: self.exec,
            deadline: Deadline::new(self.deadline),
            signals: self.signals,
            streams: self.streams,
            network: self.network,
            asker: self.asker,
            until: self.deadline,
            stdin_credit: STDIN_WINDOW,
            end: None,
            is_greeted: false,
            is_started: false,
            is_storage_full: false,
            is_channel_open: true,
            is_abandoned: false,
        };
        let outcome = attendant.attend(observe);
        if !Rule::TreeKill.is_on() {
            return attendant.leave_running(outcome);
        }
        // Whatever the agent said or did, it is dead or dying from here on.
        attendant.kill();
        let reaped = saggar_jail::reap(&attendant.pidfd, attendant.pid, KILL_PATIENCE)?;
        outcome?;
        Ok(ExecOutcome {
            ending: attendant.ending(),
            is_storage_full: attendant.is_storage_full,
            reaped,
            streams: attendant.streams,
        })
    }
}

struct Attendant<'a> {
    watch: Watch,
    pid: rustix::process::Pid,
    pidfd: OwnedFd,
    channel: Channel,
    exec: ExecId,
    deadline: Deadline,
    signals: &'a Signals,
    streams: Streams,
    network: Option<&'a mut Network>,
    asker: Option<Asker<'a>>,
    until: Instant,
    stdin_credit: usize,
    end: Option<Ending>,
    is_greeted: bool,
    is_started: bool,
    is_storage_full: bool,
    is_channel_open: bool,
    /// The user no longer wants output that has not been read yet.
    is_abandoned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Channel,
    Filter,
    Signals,
    Network,
    Stdin,
    Stdout,
    Stderr,
}

impl Attendant<'_> {
    /// The loop: waits, handles what is ready, and checks the clock, until the agent is gone and its last output is
    /// delivered.
    fn attend(&mut self, observe: &mut dyn FnMut(Observation)) -> io::Result<()> {
        loop {
            let now = Instant::now();
            if self.end.is_none() {
                match self.deadline.tick(now) {
                    Some(Action::Ask) => self.ask(Signal::TERM),
                    Some(Action::Kill) => self.kill(),
                    None => {}
                }
            }
            if let Some(told) = self.network.as_mut().and_then(|network| network.advance(now)) {
                note(told, observe);
            }
            if !self.is_channel_open && !self.has_backlog() {
                return Ok(());
            }
            for source in self.wait(now)? {
                self.serve(source, observe)?;
            }
            for (stream, is_lost) in
                [(Stream::Stdout, self.streams.stdout.take_lost()), (Stream::Stderr, self.streams.stderr.take_lost())]
            {
                if is_lost {
                    self.say(&ToGuest::CloseOutput { exec: self.exec, stream });
                }
            }
        }
    }

    /// Output that a reader still has to take. For a program that was made to end, readers are not waited for.
    fn has_backlog(&self) -> bool {
        self.deadline.cause().is_none()
            && !self.is_abandoned
            && [&self.streams.stdout, &self.streams.stderr].iter().any(|sink| sink.waiting_on().is_some())
    }

    fn wait(&self, now: Instant) -> io::Result<Vec<Source>> {
        let mut wanted: Vec<(Source, BorrowedFd<'_>, PollFlags)> = Vec::with_capacity(6);
        if self.is_channel_open {
            let incoming = if self.is_backed_up() { PollFlags::empty() } else { PollFlags::IN };
            let outgoing = if self.channel.has_outgoing() { PollFlags::OUT } else { PollFlags::empty() };
            if !(incoming | outgoing).is_empty() {
                wanted.push((Source::Channel, self.channel.as_fd(), incoming | outgoing));
            }
        }
        // A refused call before the start event is answered only after it, so that the refusal is reported after the
        // start. The agent itself sends that event, and makes no such call.
        if let Some(fd) = self.watch.waiting_on(now).filter(|_| self.is_started) {
            wanted.push((Source::Filter, fd, PollFlags::IN));
        }
        wanted.push((Source::Signals, self.signals.as_fd(), PollFlags::IN));
        if let Some(fd) = self.network.as_ref().and_then(|network| network.as_fd()) {
            wanted.push((Source::Network, fd, PollFlags::IN));
        }
        if let Some(stdin) = self.streams.stdin.as_ref().filter(|_| self.wants_stdin()) {
            wanted.push((Source::Stdin, stdin.as_fd(), PollFlags::IN));
        }
        let Streams { stdout, stderr, .. } = &self.streams;
        for (source, sink, other) in [(Source::Stdout, stdout, stderr), (Source::Stderr, stderr, stdout)] {
            if let Some(fd) = sink.waiting_on().filter(|_| !other.is_cut()) {
                wanted.push((source, fd, PollFlags::OUT));
            }
        }
        let mut polls: Vec<PollFd<'_>> =
            wanted.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        // The deadline applies to the program; once it has ended, a slow reader may take its time.
        let deadline = self.deadline.next().filter(|_| self.end.is_none());
        let network = self.network.as_ref().and_then(|network| network.next());
        let next = [deadline, self.watch.next(now), network].into_iter().flatten().min();
        let timeout = next
            .map(|at| at.saturating_duration_since(now))
            .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
        match poll(&mut polls, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(wanted
            .iter()
            .zip(&polls)
            .filter(|(_, poll)| !poll.revents().is_empty())
            .map(|((source, ..), _)| *source)
            .collect())
    }

    /// Sends only as much as the agent has room for, and only once it has read what it was sent: it could claim to have
    /// room and never read.
    fn wants_stdin(&self) -> bool {
        self.stdin_credit > 0 && self.is_channel_open && !self.channel.has_outgoing()
    }

    /// Whether a slow reader makes the program wait. A program that was made to end is not made to wait.
    fn is_backed_up(&self) -> bool {
        self.deadline.cause().is_none() && (self.streams.stdout.is_backed_up() || self.streams.stderr.is_backed_up())
    }

    fn serve(&mut self, source: Source, observe: &mut dyn FnMut(Observation)) -> io::Result<()> {
        match source {
            Source::Channel => self.converse(observe),
            Source::Filter => self.answer(observe),
            Source::Signals => self.obey()?,
            Source::Network => self.hear_network(observe),
            Source::Stdin => self.feed(),
            Source::Stdout | Source::Stderr => self.streams.pass_on(),
        }
        Ok(())
    }

    fn converse(&mut self, observe: &mut dyn FnMut(Observation)) {
        self.channel.flush();
        match self.channel.receive() {
            Ok(Incoming::Frames(frames)) => {
                for frame in frames {
                    self.hear(frame, observe);
                }
            }
            Ok(Incoming::End) => self.is_channel_open = false,
            Err(_) => self.lose_guest(),
        }
    }

    /// Handles one frame from the guest. Nothing in it is trusted: an out-of-order frame ends the conversation.
    fn hear(&mut self, frame: FromGuest, observe: &mut dyn FnMut(Observation)) {
        match frame {
            FromGuest::Hello { protocol } if !self.is_greeted && protocol == PROTOCOL => self.is_greeted = true,
            FromGuest::Hello { .. } => self.lose_guest(),
            // Occurs only if the sandbox doesn't end with the program, which a check may request; then nothing needs to
            // be done.
            FromGuest::TreeGone { .. } | FromGuest::Deserted { .. } if self.is_greeted && self.end.is_some() => {}
            _ if !self.is_greeted || self.end.is_some() => self.lose_guest(),
            FromGuest::Started { .. } => {
                self.is_started = true;
                observe(Observation::Started);
            }
            FromGuest::Output { stream, bytes, .. } => {
                match stream {
                    Stream::Stdout => self.streams.stdout.take(&bytes),
                    Stream::Stderr => self.streams.stderr.take(&bytes),
                }
                self.streams.pass_on();
            }
            FromGuest::StdinTaken { bytes, .. } => {
                self.stdin_credit = (self.stdin_credit + bytes as usize).min(STDIN_WINDOW)
            }
            FromGuest::StorageFull { .. } => self.is_storage_full = true,
            FromGuest::Exited { end, .. } => {
                // All its output came before. The agent is about to exit, but that is not relied upon.
                self.end = Some(Ending::Ended(end));
                if !Rule::TreeKill.is_on() {
                    self.is_channel_open = false;
                    return;
                }
                self.kill();
            }
            // The kernel counts the usage of the whole sandbox.
            FromGuest::Used { .. } => {}
            FromGuest::TreeGone { .. } | FromGuest::Deserted { .. } => self.lose_guest(),
            FromGuest::Failed { stage, errno, .. } => {
                self.end = Some(Ending::NotStarted { stage, errno });
                self.kill();
            }
        }
    }

    fn answer(&mut self, observe: &mut dyn FnMut(Observation)) {
        if let Some((refused, ())) = self.watch.answer(Instant::now(), |_| ()) {
            observe(Observation::Refused(refused));
        }
    }

    /// Takes what the egress process says, a bounded number of messages at a time.
    fn hear_network(&mut self, observe: &mut dyn FnMut(Observation)) {
        for _ in 0..DECISIONS_PER_ROUND {
            let Some(network) = &mut self.network else { return };
            match network.hear(Instant::now()) {
                Some(Told::Message(FromEgress::Question { question, host, port, client })) => {
                    let answer = self.put(&host, port, client);
                    if let Some(session) = self.network.as_mut().and_then(|network| network.session()) {
                        session.answer_question(question, answer);
                    }
                }
                Some(told) => note(told, observe),
                None => return,
            }
        }
    }

    fn put(&mut self, host: &str, port: u16, client: SocketAddr) -> HostAnswer {
        let Some(asker) = &mut self.asker else { return HostAnswer::NoTerminal };
        self.streams.pass_on();
        // A question inside of a sequence would be read as a part of it. The terminal isn't being read.
        if self.end.is_some() || self.streams.stdout.is_cut() || self.streams.stderr.is_cut() {
            return HostAnswer::TooLate;
        }
        let program = caller::name(self.pid.as_raw_nonzero().get(), client);
        (asker.0)(&Question { program: program.as_deref(), host, port, deadline: self.until })
    }

    fn obey(&mut self) -> io::Result<()> {
        while let Some(number) = self.signals.next()? {
            if Signal::from_named_raw(number) == Some(Signal::WINCH) {
                self.resize();
                continue;
            }
            if self.end.is_some() {
                self.is_abandoned = true;
                continue;
            }
            match self.deadline.cancel(Instant::now()) {
                Some(Action::Ask) => self.ask(Signal::TERM),
                Some(Action::Kill) => self.kill(),
                None => {}
            }
        }
        Ok(())
    }

    fn resize(&mut self) {
        let Some(terminal) = &self.streams.terminal else { return };
        if let Ok(size) = rustix::termios::tcgetwinsize(terminal) {
            self.say(&ToGuest::Resize { exec: self.exec, rows: size.ws_row, cols: size.ws_col });
        }
    }

    fn feed(&mut self) {
        let Some(stdin) = &self.streams.stdin else { return };
        let mut bytes = vec![0; self.stdin_credit.min(STDIN_LEN)];
        match rustix::io::read(stdin, &mut bytes[..]) {
            Ok(0) => self.end_stdin(),
            Ok(length) => {
                bytes.truncate(length);
                self.stdin_credit -= length;
                self.say(&ToGuest::Stdin { exec: self.exec, bytes });
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            // To the program, an unreadable stdin is an empty one.
            Err(_) => self.end_stdin(),
        }
    }

    fn end_stdin(&mut self) {
        self.streams.stdin = None;
        self.say(&ToGuest::StdinEnd { exec: self.exec });
    }

    fn ask(&mut self, signal: Signal) {
        self.say(&ToGuest::Signal { exec: self.exec, signal: signal.as_raw() as u8, scope: SignalScope::Group });
    }

    fn say(&mut self, frame: &ToGuest) {
        if self.channel.send(frame).is_err() {
            self.lose_guest();
        }
    }

    fn lose_guest(&mut self) {
        self.end = Some(Ending::GuestLost);
        self.is_channel_open = false;
        self.kill();
    }

    /// Kills PID 1; the kernel then kills the whole pid namespace.
    fn kill(&mut self) {
        // It may be dead already.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// For the check that notices an unkilled tree. The tree lives as long as this process, to which its PID 1 is tied.
    fn leave_running(self, outcome: io::Result<()>) -> io::Result<ExecOutcome> {
        outcome?;
        let ending = self.ending();
        // The agent runs for as long as the channel is open.
        std::mem::forget(self.channel);
        Ok(ExecOutcome { ending, is_storage_full: self.is_storage_full, reaped: None, streams: self.streams })
    }

    /// What we did to a program before it ended takes precedence over its own exit status.
    fn ending(&self) -> Ending {
        match (self.deadline.cause(), self.end) {
            (Some(Cause::Timeout), _) => Ending::TimedOut,
            (Some(Cause::Cancel), _) => Ending::Cancelled,
            (None, Some(ending)) => ending,
            (None, None) => Ending::GuestLost,
        }
    }
}

fn note(told: Told, observe: &mut dyn FnMut(Observation)) {
    match told {
        Told::Message(message) => observe(Observation::Egress(message)),
        Told::Lost { is_for_good } => observe(Observation::NetworkLost { is_for_good }),
        Told::Restored => observe(Observation::NetworkRestored),
        // Nothing of this was asked for.
        Told::Ruled | Told::RulesRefused(_) | Told::Settled => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::escape::EscapeFilter;

    #[test]
    fn one_stream_waits_while_the_other_is_cut_inside_of_a_sequence() {
        let ((slow, to_slow), (free, to_free)) = (rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap());
        let sink = |fd| Sink::forward(fd, None, Some(EscapeFilter::default()));
        let mut streams = Streams { stdin: None, stdout: sink(to_slow), stderr: sink(to_free), terminal: None };
        // Everything that a pipe holds, up to the middle of a colour sequence.
        let room = rustix::pipe::fcntl_getpipe_size(&slow).unwrap();
        streams.stdout.take(&vec![b'x'; room - 3]);
        streams.stdout.take(b"\x1b[31mred");
        streams.stderr.take(b"2J");
        streams.pass_on();
        assert_eq!(rustix::io::ioctl_fionread(&free), Ok(0), "it would have ended the sequence");
        let mut bytes = vec![0; room];
        assert_eq!(rustix::io::read(&slow, &mut bytes[..]), Ok(room));
        streams.pass_on();
        assert_eq!(rustix::io::ioctl_fionread(&slow), Ok(5));
        assert_eq!(rustix::io::ioctl_fionread(&free), Ok(2));
    }
}
