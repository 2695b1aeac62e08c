//! The agent's side: frames from it and to it.
//!
//! A program inside may have taken the agent over. So an impossible frame ends the sandbox, and believing the others
//! has a bounded cost.

use saggar_domain::{Denial, EndReason, ExecStatus, LimitName, Usage};
use saggar_guest::{End, FailStage, FromGuest, PROTOCOL, ToGuest};
use saggar_jail::cgroup::Counters;

use crate::attend::Ending;
use crate::channel::Incoming;
use crate::control::{EventBody, Reply};
use crate::deadline::Cause;
use crate::ending::describe_ending;
use crate::guest_wire;
use crate::unreached::Unreached;

use super::connection::{Following, Role};
use super::exec::{Counted, Ended, Exec, Lie, shortened};
use super::holder::Hold;
use super::moment::{Moment, wall_ms};
use super::owners;

/// Bytes queued for an agent that doesn't read before it is given up.
const OUTGOING_MAX: usize = 16 * 1024 * 1024;
/// Maximum length of a program's name in an event.
const PROGRAM_LEN_MAX: usize = 256;
const SIGKILL: u8 = 9;
/// A shell's exit code for a child that SIGKILL ended.
const KILLED_BY_SHELLS_ACCOUNT: u8 = 137;

impl Hold {
    pub(super) fn converse(&mut self, now: Moment) {
        self.channel.flush();
        match self.channel.receive() {
            Ok(Incoming::Frames(frames)) => {
                for frame in frames {
                    if self.hear(frame, now).is_err() {
                        self.lose_agent();
                        return;
                    }
                }
            }
            Ok(Incoming::End) | Err(_) => self.lose_agent(),
        }
    }

    pub(super) fn say(&mut self, frame: &ToGuest) {
        if self.channel.send(frame).is_err() || self.channel.outgoing_len() > OUTGOING_MAX {
            self.lose_agent();
        }
    }

    fn lose_agent(&mut self) {
        let is_out_of_memory = self.is_more_killed(self.hits());
        let reason = if is_out_of_memory { EndReason::OutOfMemory } else { EndReason::AgentLost };
        self.end.get_or_insert(reason);
    }

    fn hear(&mut self, frame: FromGuest, now: Moment) -> Result<(), Lie> {
        match frame {
            FromGuest::Hello { protocol } if !self.is_greeted && protocol == PROTOCOL => self.is_greeted = true,
            FromGuest::Hello { .. } => return Err(Lie),
            _ if !self.is_greeted => return Err(Lie),
            FromGuest::Started { exec, pid } => self.hear_started(exec, pid, now)?,
            FromGuest::Output { exec, stream, bytes } => {
                self.execs.get_mut(exec).ok_or(Lie)?.hear_output(guest_wire::stream(stream), &bytes)?;
            }
            FromGuest::StdinTaken { exec, bytes } => self.hear_stdin_taken(exec, bytes)?,
            FromGuest::StorageFull { exec } => self.execs.get_mut(exec).ok_or(Lie)?.hear_storage_full()?,
            FromGuest::Exited { exec, end } => self.hear_exited(exec, end, now)?,
            FromGuest::Failed { exec, stage, errno } => self.hear_failed(exec, stage, errno)?,
            FromGuest::Used { exec, cpu_usec, memory_peak } => {
                self.execs.get_mut(exec).ok_or(Lie)?.hear_used(Counted { cpu_usec, memory_peak })?;
            }
            FromGuest::Deserted { exec } => self.hear_deserted(exec)?,
            FromGuest::TreeGone { exec } => {
                let exec = self.execs.get_mut(exec).ok_or(Lie)?;
                exec.hear_tree_gone()?;
                exec.note_gone(Moment::now());
                if let Some(portion) = exec.portion.take() {
                    // Whatever remains is removed with the sandbox's own cgroups.
                    let _ = portion.remove();
                }
            }
        }
        Ok(())
    }

    fn hear_started(&mut self, number: u32, pid: u32, now: Moment) -> Result<(), Lie> {
        // Only the network asks which exec a process belongs to after its program has ended.
        let keeper = self.proxied.as_ref().and_then(|_| {
            let first = self.pid.as_raw_nonzero().get().unsigned_abs();
            owners::keeper_of(pid, first, &self.execs)
        });
        let exec = self.execs.get_mut(number).ok_or(Lie)?;
        exec.keeper = keeper;
        exec.hear_started(pid, wall_ms())?;
        let event =
            EventBody::ExecStarted { exec_id: exec.id.clone(), program: shortened(&exec.program, PROGRAM_LEN_MAX) };
        let (state, cursor) = (exec.state(now), exec.ring.oldest());
        for (token, connection) in &mut self.connections {
            if let Role::Starting { exec, follows, feeds } = connection.role
                && exec == number
            {
                connection.say(&Reply::Started(Box::new(state.clone())));
                connection.moved = now;
                connection.role = if follows {
                    Role::Following(Following { exec, cursor, feeds, is_lossy: false })
                } else {
                    Role::Asking
                };
                // More of its frames may have arrived already.
                self.revisit.push_back(*token);
            }
        }
        self.tell(event);
        self.samples.hasten(now);
        Ok(())
    }

    /// Answers the connections that wait for this.
    fn hear_deserted(&mut self, number: u32) -> Result<(), Lie> {
        let exec = self.execs.get_mut(number).ok_or(Lie)?;
        exec.hear_deserted()?;
        exec.note_gone(Moment::now());
        for (token, connection) in &mut self.connections {
            if matches!(connection.role, Role::Burying { exec } if exec == number) {
                connection.say(&Reply::Done);
                connection.role = Role::Asking;
                self.revisit.push_back(*token);
            }
        }
        Ok(())
    }

    fn hear_failed(&mut self, number: u32, stage: FailStage, errno: i32) -> Result<(), Lie> {
        if !self.execs.get(number).ok_or(Lie)?.is_starting() {
            return Err(Lie);
        }
        let exec = self.execs.remove(number).ok_or(Lie)?;
        if let Some(portion) = exec.portion {
            // Whatever remains is removed with the sandbox's own cgroups.
            let _ = portion.remove();
        }
        let (.., problem) = describe_ending(Ending::NotStarted { stage, errno }, false, &exec.program, &exec.cwd);
        let Some(problem) = problem else { return Ok(()) };
        for (token, connection) in &mut self.connections {
            if matches!(connection.role, Role::Starting { exec, .. } if exec == number) {
                connection.say(&Reply::Error(problem.clone()));
                connection.role = Role::Asking;
                self.revisit.push_back(*token);
            }
        }
        Ok(())
    }

    fn hear_exited(&mut self, number: u32, end: End, now: Moment) -> Result<(), Lie> {
        self.execs.get(number).ok_or(Lie)?.check_running()?;
        let looks_killed = match end {
            End::Signal { signal, .. } => signal == SIGKILL,
            End::Code(code) => code == KILLED_BY_SHELLS_ACCOUNT,
        };
        // A limit of the whole sandbox was hit by this exec if its end looks like it, or if no other exec can have done
        // it.
        let is_alone = self.execs.iter().filter(|exec| exec.is_live()).count() == 1;
        let hits = if end != End::Code(0) || is_alone { self.hits() } else { Counters::default() };
        let short = if looks_killed || is_alone { self.ran_short(number, hits) } else { None };
        let is_crowded = self.is_more_refused(hits);
        let unreached =
            if end != End::Code(0) { self.unreached.as_mut().and_then(Unreached::take_denial) } else { None };
        self.trim(number);
        let exec = self.execs.get_mut(number).ok_or(Lie)?;
        let cause = exec.deadline.as_ref().and_then(|deadline| deadline.cause());
        let ending = match cause {
            Some(Cause::Timeout) => Ending::TimedOut,
            Some(Cause::Cancel) => Ending::Cancelled,
            None => Ending::Ended(end),
        };
        let was_killed = looks_killed && short.is_some();
        let (status, exit_code, signal, error) = describe_ending(ending, was_killed, &exec.program, &exec.cwd);
        exec.usage = usage(exec);
        exec.end(Ended { at: now, at_ms: wall_ms(), status, exit_code, signal, error });
        let limits = &self.spec.limits;
        let mut hit = Vec::new();
        if status == ExecStatus::TimedOut {
            hit.push(Denial::limit(LimitName::Timeout, "an exec was ended at its deadline"));
        }
        if let Some(short) = short {
            let what = "the kernel killed a process because memory ran out";
            let message = match short {
                Short::Exec => format!("{what}; its exec has its own limit"),
                Short::Sandbox => format!("{what}; the sandbox has {}", limits.memory.value),
            };
            hit.push(Denial::limit(LimitName::Memory, message));
        }
        if is_crowded {
            let message = format!("the limit of {} processes and threads was reached", limits.pids.value);
            hit.push(Denial::limit(LimitName::Pids, message));
        }
        if exec.is_storage_full {
            let message = format!("the private storage of {} is full", limits.disk.value);
            hit.push(Denial::limit(LimitName::Disk, message));
        }
        // Only the whole sandbox is counted: attempts of execs that still run are reported with the first one that
        // fails.
        hit.iter().chain(&unreached).for_each(|denial| exec.deny(denial));
        unreached.into_iter().for_each(|denial| self.tell(EventBody::Denial { denial }));
        hit.into_iter().for_each(|denial| self.tell(EventBody::Limit { denial }));
        self.settle_network(number, now);
        Ok(())
    }

    /// The kernel's counters of limits hit by any process of the sandbox.
    fn hits(&self) -> Counters {
        self.group.as_ref().map(|group| group.counters(false)).unwrap_or_default()
    }

    /// Which memory limit cost a process of this exec its life: its own, or the sandbox's since the last check.
    fn ran_short(&mut self, number: u32, hits: Counters) -> Option<Short> {
        let portion = self.execs.get(number).and_then(|exec| exec.portion.as_ref());
        let own = portion.and_then(|portion| portion.counters(false).out_of_memory_kills).unwrap_or(0);
        // Counted in either case: a kill attributed to this exec must not be attributed to the next.
        let is_sandbox = self.is_more_killed(hits);
        if own > 0 { Some(Short::Exec) } else { is_sandbox.then_some(Short::Sandbox) }
    }

    /// Whether the sandbox's memory limit has killed a process since the last check.
    fn is_more_killed(&mut self, hits: Counters) -> bool {
        let kills = hits.out_of_memory_kills.unwrap_or(0);
        let is_more = kills > self.memory_kills;
        self.memory_kills = kills.max(self.memory_kills);
        is_more
    }

    /// Whether a process was refused since the last check.
    fn is_more_refused(&mut self, hits: Counters) -> bool {
        let refused = hits.pids_refused.unwrap_or(0);
        let is_more = refused > self.pids_refused;
        self.pids_refused = refused.max(self.pids_refused);
        is_more
    }
}

/// Usage of an exec: from its own cgroups if it has some, otherwise as its processes reported at their end. Values that
/// were not counted are left out.
fn usage(exec: &Exec) -> Option<Usage> {
    let own = exec.portion.as_ref().map(|portion| portion.counters(true)).unwrap_or_default();
    let counted = exec.counted();
    let cpu_usec = own.cpu_usec.or(counted.map(|counted| counted.cpu_usec));
    let usage = Usage {
        cpu_ms: cpu_usec.map(|usec| usec / 1000),
        memory_peak_bytes: own.memory_peak.or(counted.map(|counted| counted.memory_peak)),
        processes_peak: own.pids_peak,
    };
    (usage != Usage::default()).then_some(usage)
}

/// The memory limit that was hit.
enum Short {
    Exec,
    Sandbox,
}
