//! What remains of a sandbox that was held: resources to clean up, and the final report.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, accept_with};
use saggar_domain::{Code, EndReason, ExecStatus, OutputStream, Problem};
use saggar_jail::Reaped;
use saggar_jail::cgroup::Group;

use crate::control::{Final, FinishedExec, Frame, JSON_MAX, Op, Reply, Sample};

use super::connection::{Connection, Role};
use super::exec::{Ended, Exec};
use super::holder::Hold;
use super::listening::is_ours;
use super::moment::{Moment, wall_ms};
use super::requests::read_request;

const FINAL: u32 = 1;
/// How long connections may take to receive their last data.
const DRAIN_PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of each stream of an exec in the final report.
const TAIL_MAX: usize = 64 * 1024;
/// Bytes of all events in the final report, and of all execs: together well below the limit of a frame.
const EVENTS_LEN_MAX: usize = JSON_MAX / 4;
const EXECS_LEN_MAX: usize = JSON_MAX / 2;

/// A sandbox whose processes are all dead.
#[derive(Debug)]
pub struct Held {
    /// Its cgroups, to be removed.
    pub group: Option<Group>,
    /// Usage of the whole tree; `None` if the kernel could not kill one of its processes in time.
    pub reaped: Option<Reaped>,
    /// The final report.
    pub last_word: Final,
    listener: OwnedFd,
    waiting: Vec<Connection>,
}

impl Held {
    pub(super) fn new(mut hold: Hold, reason: EndReason, reaped: Option<Reaped>, error: Option<Problem>) -> Self {
        let status = match reason {
            EndReason::OutOfMemory => ExecStatus::OutOfMemory,
            _ => ExecStatus::Cancelled,
        };
        let now = Moment::now();
        hold.close_network(now);
        for exec in hold.execs.iter_mut() {
            if exec.is_running() {
                exec.end(Ended { at: now, at_ms: wall_ms(), status, exit_code: None, signal: None, error: None });
            }
            exec.bury();
        }
        hold.drain();
        let mut usage = hold.samples.take(hold.group.as_ref(), hold.pid);
        usage.cpu_usec = usage.cpu_usec.or(reaped.map(|reaped| reaped.cpu.as_micros() as u64));
        let error = error.or_else(|| lost(reason)).or_else(|| reaped.is_none().then(unkillable));
        let last_word = last_word(&hold, reason, usage, error);
        let Hold { group, listener, connections, execs, .. } = hold;
        drop(execs);
        // A client whose request was not read yet may have asked for the end too, and must not take silence for a loss.
        let is_waiting = |connection: &Connection| matches!(connection.role, Role::Dying | Role::Asking);
        let waiting = connections.into_values().filter(is_waiting).collect();
        Self { group, reaped, last_word, listener, waiting }
    }

    /// Answers all connections that wait for the end, and late ones. Call it once nothing is left on the host.
    pub fn answer(self) {
        let now = Moment::now();
        let killed = Reply::Killed(Box::new(self.last_word));
        let too_late = Reply::Error(too_late());
        let mut buffer = [0; 4096];
        let mut answer = |mut connection: Connection| {
            let is_kill = matches!(connection.role, Role::Dying) || {
                connection.read(&mut buffer, now);
                let asked = connection.decoder.next_frame();
                matches!(asked, Ok(Some(Frame::Json(json))) if matches!(read_request(&json), Ok(Op::Kill)))
            };
            connection.say(if is_kill { &killed } else { &too_late });
            connection
        };
        let mut leaving: Vec<Connection> = self.waiting.into_iter().map(&mut answer).collect();
        while let Ok(fd) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            if is_ours(&fd) {
                leaving.push(answer(Connection::new(fd, now)));
            }
        }
        flush_all(&mut leaving.iter_mut().collect::<Vec<_>>());
    }
}

impl Hold {
    /// Delivers the last output and events, for a limited time.
    fn drain(&mut self) {
        let is_unanswered =
            |other: &&mut Connection| matches!(other.role, Role::Starting { .. } | Role::Ruling | Role::BeginningAgain);
        for connection in self.connections.values_mut().filter(is_unanswered) {
            connection.say(&Reply::Error(too_late()));
            connection.role = Role::Leaving;
        }
        // Connections that wait for the end of an exec are answered: every process is dead.
        for connection in self.connections.values_mut().filter(|other| matches!(other.role, Role::Burying { .. })) {
            connection.say(&Reply::Done);
            connection.role = Role::Leaving;
        }
        let deadline = Moment::now() + DRAIN_PATIENCE;
        loop {
            let now = Moment::now();
            self.pump(now);
            let mut unsent: Vec<&mut Connection> =
                self.connections.values_mut().filter(|connection| connection.has_unsent()).collect();
            if unsent.is_empty() || now >= deadline {
                return;
            }
            wait_for_room(&mut unsent, deadline.since(now));
        }
    }
}

fn flush_all(connections: &mut Vec<&mut Connection>) {
    let deadline = Moment::now() + DRAIN_PATIENCE;
    loop {
        let now = Moment::now();
        connections.retain_mut(|connection| connection.flush(now).is_ok() && connection.has_unsent());
        if connections.is_empty() || now >= deadline {
            return;
        }
        wait_for_room(connections, deadline.since(now));
    }
}

fn wait_for_room(connections: &mut [&mut Connection], patience: Duration) {
    let mut polls: Vec<PollFd<'_>> =
        connections.iter().map(|connection| PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::OUT)).collect();
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    // Errors don't matter: writing is tried next, and the deadline ends this.
    let _ = poll(&mut polls, Some(&timeout));
}

fn too_late() -> Problem {
    Problem::new(Code::SandboxEnded, "the sandbox has ended", "create a new one")
}

fn lost(reason: EndReason) -> Option<Problem> {
    (reason == EndReason::AgentLost).then(|| {
        Problem::new(
            Code::GuestLost,
            "the agent inside the sandbox died or broke the protocol; everything in it was killed",
            "create a new one; if it happens again, report it",
        )
    })
}

fn unkillable() -> Problem {
    Problem::new(
        Code::SetupFailed,
        "the kernel can't kill a process of the sandbox",
        "the next start tries again; a hung disk or network mount is the usual reason",
    )
}

fn last_word(hold: &Hold, reason: EndReason, usage: Sample, error: Option<Problem>) -> Final {
    Final {
        v: FINAL,
        sandbox_id: hold.sandbox_id.clone(),
        is_claimed: hold.lifetime.is_owned(),
        reason,
        ended_ms: wall_ms(),
        usage,
        execs: newest_within(hold.execs.iter().rev().map(finished), EXECS_LEN_MAX),
        events: newest_within(hold.happenings.newest().cloned(), EVENTS_LEN_MAX),
        error,
    }
}

fn finished(exec: &Exec) -> FinishedExec {
    let tail = |stream| STANDARD.encode(exec.ring.tail(stream, TAIL_MAX));
    FinishedExec {
        state: exec.state(Moment::now()),
        stdout: tail(OutputStream::Stdout),
        stderr: tail(OutputStream::Stderr),
    }
}

/// As many as fit, given newest first and returned oldest first.
fn newest_within<T: serde::Serialize>(newest: impl Iterator<Item = T>, most: usize) -> Vec<T> {
    let mut length = 0;
    let mut kept: Vec<T> = newest
        .take_while(|entry| {
            length += serde_json::to_vec(entry).map_or(most, |json| json.len() + 1);
            length <= most
        })
        .collect();
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_in_order() {
        assert_eq!(newest_within([3, 2, 1].into_iter(), 4), [2, 3]);
        assert!(newest_within(std::iter::empty::<u8>(), 4).is_empty());
    }
}
