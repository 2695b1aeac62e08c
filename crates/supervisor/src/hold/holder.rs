//! The loop: waits, handles what is ready, and checks the clock, until the sandbox has a reason to end.
//!
//! Happy path: requests arrive over connections and become frames to the agent; its frames become output, replies and
//! events. It ends if a client asks for it, its deadline passes, it was idle for too long, or the agent dies or breaks
//! the protocol. All of these go through [`Hold::run`], which kills PID 1, waits until the whole tree is dead, and
//! returns what there is to clean up.
//!
//! INVARIANT: nothing here blocks except the one poll and two bounded operations: freezing a sandbox, and a `listen` made
//! on behalf of a program (usually under a millisecond; after one that takes seconds no more are made). Everything that
//! a connection or the agent can make grow has a named bound.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use saggar_domain::{
    Code, DeadlineAction, Denial, EndReason, NetworkMode, Problem, SandboxId, SandboxState, Spec, User,
};
use saggar_guest::{PROTOCOL, SignalScope, ToGuest};
use saggar_jail::Signals;
use saggar_jail::cgroup::Group;

use crate::channel::Channel;
use crate::control::{BasedOn, CONTROL, Description, EventBody, Terms};
use crate::deadline::Action;
use crate::unreached::Unreached;
use crate::watch::{Refused, Watch};

use super::again::{Inside, Outcome, WantedAgain};
use super::ancestry;
use super::connection::{Connection, Role};
use super::exec::Exec;
use super::execs::Execs;
use super::happenings::Happenings;
use super::held::Held;
use super::lifetime::{Due, Lifetime};
use super::listening::CONNECTION_PATIENCE;
use super::moment::{Moment, wall_ms};
use super::network::{Proxied, Window};
use super::usage::Samples;

/// Bytes read from a connection at once.
const READ_LEN: usize = 16 * 1024;
/// How long a killed PID 1 may take to end before this is reported as a failure.
pub(super) const KILL_PATIENCE: Duration = Duration::from_secs(30);
/// A refused call of the same kind is reported again after this long.
const DENIAL_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Holding {
    pub sandbox_id: SandboxId,
    pub inside: Inside,
    /// The control socket; it must be non-blocking.
    pub listener: OwnedFd,
    /// Any of these ends the sandbox in an orderly way.
    pub signals: Signals,
    pub terms: Terms,
    /// Whether it has no owner yet.
    pub is_pooled: bool,
    /// The number of the last event of its earlier supervisors.
    pub events_before: u64,
}

/// The directory with everything that a sandbox changed in its root.
#[derive(Debug)]
pub struct Changes {
    pub upper: OwnedFd,
    /// The first id of the sandbox's range outside; `None` if it has a single id.
    pub base: Option<u32>,
}

#[derive(Debug)]
pub struct Hold {
    pub(super) sandbox_id: SandboxId,
    pub(super) spec: Spec,
    pub(super) policy_hash: String,
    pub(super) unenforced: Vec<String>,
    pub(super) pid: Pid,
    pub(super) pidfd: OwnedFd,
    pub(super) watch: Watch,
    pub(super) channel: Channel,
    pub(super) group: Option<Group>,
    pub(super) listener: OwnedFd,
    signals: Signals,
    pub(super) lifetime: Lifetime,
    /// Since when it is frozen.
    pub(super) paused: Option<Moment>,
    /// Since when it stands still for connections that read its changes.
    pub(super) still: Option<Moment>,
    pub(super) changes: Option<Changes>,
    pub(super) based_on: Option<BasedOn>,
    /// Variables that its owner added to every exec's environment.
    pub(super) env: BTreeMap<String, String>,
    pub(super) execs: Execs,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) last_connection: u64,
    /// Connections that may have a complete frame waiting.
    pub(super) revisit: VecDeque<u64>,
    pub(super) happenings: Happenings,
    pub(super) samples: Samples,
    pub(super) is_greeted: bool,
    /// Processes killed because memory ran out, as of the last check.
    pub(super) memory_kills: u64,
    /// Processes refused by the limit, as of the last check.
    pub(super) pids_refused: u64,
    /// Counts attempts to use the network in a sandbox without one.
    pub(super) unreached: Option<Unreached>,
    pub(super) proxied: Option<Proxied>,
    pub(super) decisions_told: Window,
    pub(super) end: Option<EndReason>,
    /// Whether it is to begin again, and from what.
    pub(super) wanted_again: Option<WantedAgain>,
    pub(super) told: Vec<(Refused, Moment)>,
    pub(super) buffer: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Channel,
    Filter,
    Signals,
    Network,
    Listener,
    Connection(u64),
}

impl Hold {
    pub fn new(holding: Holding) -> Self {
        let now = Moment::now();
        let inside = holding.inside;
        let mut happenings = Happenings::after(holding.events_before);
        happenings.add(wall_ms(), EventBody::Started { unenforced: inside.unenforced.clone() });
        let memory_bytes = inside.spec.limits.memory.value.bytes();
        Self {
            sandbox_id: holding.sandbox_id,
            spec: inside.spec,
            policy_hash: inside.policy_hash,
            unenforced: inside.unenforced,
            pid: inside.pid,
            pidfd: inside.pidfd,
            watch: Watch::new(inside.questions, memory_bytes),
            channel: inside.channel,
            group: inside.group,
            listener: holding.listener,
            signals: holding.signals,
            lifetime: Lifetime::new(holding.terms, !holding.is_pooled, now),
            paused: None,
            still: None,
            changes: inside.changes,
            based_on: inside.based_on,
            env: BTreeMap::new(),
            execs: Execs::default(),
            connections: BTreeMap::new(),
            last_connection: 0,
            revisit: VecDeque::new(),
            happenings,
            samples: Samples::new(now),
            is_greeted: false,
            memory_kills: 0,
            pids_refused: 0,
            unreached: Unreached::of(inside.counters),
            proxied: inside.network.map(Proxied::new),
            decisions_told: Window::new(now),
            end: None,
            wanted_again: None,
            told: Vec::new(),
            buffer: vec![0; READ_LEN],
        }
    }

    /// Returns once it is dead: for good, or to begin again.
    pub fn run(mut self) -> Outcome {
        let mut error = None;
        while self.end.is_none() {
            let now = Moment::now();
            self.tick(now);
            self.revisit(now);
            self.pump(now);
            if self.end.is_none()
                && let Some(wanted) = self.wanted_again.take()
            {
                return self.stop_to_begin_again(wanted);
            }
            if self.end.is_some() || !self.revisit.is_empty() {
                continue;
            }
            match self.wait(now) {
                Ok(ready) => {
                    let now = Moment::now();
                    for source in ready {
                        self.serve(source, now);
                    }
                }
                Err(errno) => {
                    let message = format!("waiting for a sandbox failed: {errno}");
                    error = Some(Problem::new(Code::Internal, message, "report it"));
                    self.end = Some(EndReason::AgentLost);
                }
            }
        }
        let reason = self.end.unwrap_or(EndReason::AgentLost);
        self.tell(EventBody::Ending { reason });
        self.kill();
        let reaped = saggar_jail::reap(&self.pidfd, self.pid, KILL_PATIENCE).unwrap_or_default();
        Outcome::Ended(Box::new(Held::new(self, reason, reaped, error)))
    }

    pub fn describe(&self) -> Description {
        let now = Moment::now();
        let terms = self.lifetime.terms();
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Description {
            protocol: CONTROL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sandbox_id: self.sandbox_id.clone(),
            pid: std::process::id(),
            state: match (self.end, self.paused) {
                (Some(_), _) => SandboxState::Ending,
                (None, Some(_)) => SandboxState::Paused,
                (None, None) => SandboxState::Running,
            },
            is_claimed: self.lifetime.is_owned(),
            ttl_left_ms: self.lifetime.left(now).map(millis),
            then: terms.then,
            idle_ms: terms.idle_ms,
            idle_for_ms: millis(self.lifetime.idle_for(now)),
            policy_hash: self.policy_hash.clone(),
            unenforced: self.unenforced.clone(),
            execs: self.execs.iter().map(|exec| exec.state(now)).collect(),
            last_event: self.happenings.last(),
            guest_protocol: PROTOCOL,
            egress: (self.spec.network == NetworkMode::Proxied).then(|| self.spec.egress.clone()),
            based_on: self.based_on.clone(),
            account: self.spec.account_of(User::Template).cloned(),
            has_changes: self.changes.is_some(),
        }
    }

    /// Kills PID 1; the kernel then kills the whole pid namespace. Frozen processes are killed before they are thawed.
    pub(super) fn kill(&mut self) {
        // It may be dead already.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        if (self.paused.is_some() || self.still.is_some())
            && let Some(group) = &self.group
        {
            // If this fails the processes don't die, and that is reported.
            let _ = group.kill_frozen();
        }
    }

    pub(super) fn tell(&mut self, body: EventBody) {
        self.happenings.add(wall_ms(), body);
    }

    fn tick(&mut self, now: Moment) {
        let is_busy = self.is_busy();
        match self.lifetime.due(now, is_busy) {
            None => {}
            Some((due, DeadlineAction::Pause | DeadlineAction::Rest)) if self.pause(now, true).is_err() => {
                self.expire(due);
            }
            Some((_, DeadlineAction::Pause | DeadlineAction::Rest)) => {}
            Some((due, DeadlineAction::Kill)) => self.expire(due),
        }
        self.tick_network(now);
        self.tick_still(now);
        if self.paused.is_some() || self.still.is_some() {
            return;
        }
        let mut asked = Vec::new();
        for exec in self.execs.iter_mut().filter(|exec| exec.next().is_some()) {
            match exec.deadline.as_mut().and_then(|deadline| deadline.tick(now)) {
                Some(Action::Ask) => asked.push((exec.number, Signal::TERM)),
                Some(Action::Kill) => asked.push((exec.number, Signal::KILL)),
                None => {}
            }
        }
        for (exec, signal) in asked {
            self.say(&ToGuest::Signal { exec, signal: signal.as_raw() as u8, scope: SignalScope::Tree });
        }
        self.samples.tick(now, self.execs.has_live(), self.group.as_ref(), self.pid);
    }

    fn expire(&mut self, due: Due) {
        self.end = Some(match due {
            Due::Expired if !self.lifetime.is_owned() => EndReason::Unclaimed,
            Due::Expired => EndReason::TimedOut,
            Due::Idle => EndReason::Idle,
        });
    }

    /// When to check the clock again.
    fn next(&self) -> Option<Moment> {
        let patience = self.connections.values().filter_map(|connection| match connection.role {
            Role::Asking | Role::Leaving => Some(connection.moved + CONNECTION_PATIENCE),
            Role::Following(ref following) if connection.has_unsent() && !following.is_lossy => {
                Some(connection.moved + CONNECTION_PATIENCE)
            }
            Role::Starting { .. }
            | Role::Following(_)
            | Role::Hearing { .. }
            | Role::Burying { .. }
            | Role::Ruling
            | Role::BeginningAgain
            | Role::Stilling
            | Role::Dying => None,
        });
        let lifetime = self.lifetime.next(self.is_busy());
        let running = self.execs.iter().filter_map(|exec| exec.next()).chain([self.samples.next()]);
        let running = running.filter(|_| self.paused.is_none() && self.still.is_none());
        let settling = self.proxied.as_ref().and_then(Proxied::next);
        let flood = self.decisions_told.next();
        lifetime.into_iter().chain(self.still_until()).chain(running).chain(patience).chain(settling).chain(flood).min()
    }

    fn wait(&self, now: Moment) -> rustix::io::Result<Vec<Source>> {
        let mut wanted: Vec<(Source, BorrowedFd<'_>, PollFlags)> = Vec::with_capacity(8);
        let outgoing = if self.channel.has_outgoing() { PollFlags::OUT } else { PollFlags::empty() };
        wanted.push((Source::Channel, self.channel.as_fd(), PollFlags::IN | outgoing));
        let instant = Instant::now();
        // A refused call before the start event is answered only after it, so that the refusal is reported after the
        // start.
        let is_starting = self.execs.iter().any(Exec::is_starting);
        if let Some(fd) = self.watch.waiting_on(instant).filter(|_| !is_starting) {
            wanted.push((Source::Filter, fd, PollFlags::IN));
        }
        wanted.push((Source::Signals, self.signals.as_fd(), PollFlags::IN));
        if let Some(fd) = self.proxied.as_ref().and_then(|proxied| proxied.network.as_fd()) {
            wanted.push((Source::Network, fd, PollFlags::IN));
        }
        wanted.push((Source::Listener, self.listener.as_fd(), PollFlags::IN));
        for (token, connection) in &self.connections {
            let incoming = if self.is_read(connection) { PollFlags::IN } else { PollFlags::empty() };
            let outgoing = if connection.has_unsent() { PollFlags::OUT } else { PollFlags::empty() };
            // A connection that does neither is polled again later; until then its hang-up would wake us for nothing.
            if !(incoming | outgoing).is_empty() || self.is_watched(connection) {
                wanted.push((Source::Connection(*token), connection.as_fd(), incoming | outgoing));
            }
        }
        let mut polls: Vec<PollFd<'_>> =
            wanted.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        let watch = self.watch.next(instant).map(|at| at.saturating_duration_since(instant));
        let network = self.proxied.as_ref().and_then(|proxied| proxied.network.next());
        let network = network.map(|at| at.saturating_duration_since(instant));
        let timeout = self.next().map(|at| at.since(now)).into_iter().chain(watch).chain(network).min();
        let timeout =
            timeout.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
        match poll(&mut polls, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let ready = wanted.iter().zip(&polls).filter(|(_, poll)| !poll.revents().is_empty());
        Ok(ready.map(|((source, ..), _)| *source).collect())
    }

    fn serve(&mut self, source: Source, now: Moment) {
        match source {
            Source::Channel => self.converse(now),
            Source::Filter => self.answer(now),
            Source::Signals => {
                while let Ok(Some(_)) = self.signals.next() {
                    self.end = Some(EndReason::Killed);
                }
            }
            Source::Network => self.hear_network(now),
            Source::Listener => self.accept(now),
            Source::Connection(token) => self.listen(token, now),
        }
    }

    fn answer(&mut self, now: Moment) {
        let Some((refused, line)) = self.watch.answer(Instant::now(), ancestry::of) else { return };
        self.note_denial(&line, &refused.to_denial());
        match self.told.iter_mut().find(|(told, _)| *told == refused) {
            Some((_, at)) if now.since(*at) < DENIAL_INTERVAL => return,
            Some((_, at)) => *at = now,
            // There are as many kinds as the filter has names, which is few.
            None => self.told.push((refused, now)),
        }
        self.tell(EventBody::Denial { denial: refused.to_denial() });
    }

    /// Records a denial with the exec that owns the process, found by its pid and those of its ancestors. A process
    /// that left its line, as daemons do, can't be attributed: then all running execs get it.
    pub(super) fn note_denial(&mut self, line: &[u32], denial: &Denial) {
        let is_known = self.execs.iter().any(|exec| exec.is_in_line(line));
        for exec in
            self.execs.iter_mut().filter(|exec| if is_known { exec.is_in_line(line) } else { exec.is_running() })
        {
            exec.deny(denial);
        }
    }
}
