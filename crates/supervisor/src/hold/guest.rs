//! The agent's side: what it says, and what is said to it.
//!
//! It may have been taken over by what runs inside. So a frame that can't be true ends the sandbox, and what it costs to believe the
//! others is bounded.

use saggar_domain::{Denial, EndReason, ExecStatus, LimitName};
use saggar_guest::{End, FailStage, FromGuest, PROTOCOL, ToGuest};

use crate::attend::Ending;
use crate::channel::Incoming;
use crate::control::{EventBody, Reply};
use crate::deadline::Cause;
use crate::ending::describe_ending;
use crate::unreached::Unreached;

use super::connection::{Following, Role};
use super::exec::{Ended, Lie, shortened};
use super::holder::Hold;
use super::moment::{Moment, wall_ms};

/// Bytes that wait for an agent that doesn't read before it is given up.
const OUTGOING_MAX: usize = 16 * 1024 * 1024;
/// A program's name in an event is no longer.
const PROGRAM_LEN_MAX: usize = 256;
const SIGKILL: u8 = 9;
/// What a shell gives for a child that SIGKILL ended.
const KILLED_BY_SHELLS_ACCOUNT: u8 = 137;

impl Hold {
    /// Reads once from the agent.
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

    /// Tells the agent something.
    pub(super) fn say(&mut self, frame: &ToGuest) {
        if self.channel.send(frame).is_err() || self.channel.outgoing_len() > OUTGOING_MAX {
            self.lose_agent();
        }
    }

    fn lose_agent(&mut self) {
        let is_out_of_memory = self.count_memory_kills();
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
                self.execs.get_mut(exec).ok_or(Lie)?.hear_output(stream, &bytes)?;
            }
            FromGuest::StdinTaken { exec, bytes } => self.hear_stdin_taken(exec, bytes)?,
            FromGuest::StorageFull { exec } => self.execs.get_mut(exec).ok_or(Lie)?.hear_storage_full()?,
            FromGuest::Exited { exec, end } => self.hear_exited(exec, end, now)?,
            FromGuest::Failed { exec, stage, errno } => self.hear_failed(exec, stage, errno)?,
            FromGuest::TreeGone { exec } => {
                let exec = self.execs.get_mut(exec).ok_or(Lie)?;
                exec.hear_tree_gone()?;
                if let Some(portion) = exec.portion.take() {
                    // What is left of it goes with the sandbox's own.
                    let _ = portion.remove();
                }
            }
        }
        Ok(())
    }

    fn hear_started(&mut self, number: u32, pid: u32, now: Moment) -> Result<(), Lie> {
        let exec = self.execs.get_mut(number).ok_or(Lie)?;
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
                // It may have said more already.
                self.revisit.push_back(*token);
            }
        }
        self.tell(event);
        self.samples.hasten(now);
        Ok(())
    }

    fn hear_failed(&mut self, number: u32, stage: FailStage, errno: i32) -> Result<(), Lie> {
        if !self.execs.get(number).ok_or(Lie)?.is_starting() {
            return Err(Lie);
        }
        let exec = self.execs.remove(number).ok_or(Lie)?;
        if let Some(portion) = exec.portion {
            // What is left of it goes with the sandbox's own.
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
        let short = if looks_killed { self.ran_short(number) } else { None };
        if end != End::Code(0) {
            self.look_for_refused_processes();
            self.look_for_refused_network();
        }
        self.trim(number);
        let exec = self.execs.get_mut(number).ok_or(Lie)?;
        let cause = exec.deadline.as_ref().and_then(|deadline| deadline.cause());
        let ending = match cause {
            Some(Cause::Timeout) => Ending::TimedOut,
            Some(Cause::Cancel) => Ending::Cancelled,
            None => Ending::Ended(end),
        };
        let (status, exit_code, signal, error) = describe_ending(ending, short.is_some(), &exec.program, &exec.cwd);
        let is_storage_full = exec.is_storage_full;
        exec.end(Ended { at: now, at_ms: wall_ms(), status, exit_code, signal, error });
        let limits = &self.spec.limits;
        let mut hit = Vec::new();
        if status == ExecStatus::TimedOut {
            hit.push(Denial::limit(LimitName::Timeout, "an exec was ended when its time was up"));
        }
        if let Some(short) = short {
            let what = "the kernel killed a process for want of memory";
            let message = match short {
                Short::Exec => format!("{what}; its exec has a limit of its own"),
                Short::Sandbox => format!("{what}; the sandbox has {}", limits.memory.value),
            };
            hit.push(Denial::limit(LimitName::Memory, message));
        }
        if is_storage_full {
            let message = format!("the private storage of {} is full", limits.disk.value);
            hit.push(Denial::limit(LimitName::Disk, message));
        }
        hit.into_iter().for_each(|denial| self.tell(EventBody::Limit { denial }));
        Ok(())
    }

    /// Whose limit of memory cost a process of this exec its life: its own, or the sandbox's since anyone last looked.
    fn ran_short(&mut self, number: u32) -> Option<Short> {
        let portion = self.execs.get(number).and_then(|exec| exec.portion.as_ref());
        let own = portion.and_then(|portion| portion.counters(false).out_of_memory_kills).unwrap_or(0);
        // Counted in either case: a kill that is this exec's is not the next one's.
        let is_sandbox = self.count_memory_kills();
        if own > 0 { Some(Short::Exec) } else { is_sandbox.then_some(Short::Sandbox) }
    }

    /// Whether the sandbox's memory has cost a process its life since anyone last looked.
    fn count_memory_kills(&mut self) -> bool {
        let Some(group) = &self.group else { return false };
        let kills = group.counters(false).out_of_memory_kills.unwrap_or(0);
        let is_more = kills > self.memory_kills;
        self.memory_kills = kills;
        is_more
    }

    fn look_for_refused_processes(&mut self) {
        let Some(group) = &self.group else { return };
        let refused = group.counters(false).pids_refused.unwrap_or(0);
        if refused > self.pids_refused {
            self.pids_refused = refused;
            let message = format!("one more process or thread than {} was refused", self.spec.limits.pids.value);
            self.tell(EventBody::Limit { denial: Denial::limit(LimitName::Pids, message) });
        }
    }

    /// Only the whole sandbox is counted: what others that still run have tried is told with the first that fails.
    fn look_for_refused_network(&mut self) {
        if let Some(denial) = self.unreached.as_mut().and_then(Unreached::take_denial) {
            self.tell(EventBody::Denial { denial });
        }
    }
}

/// Whose memory was used up.
enum Short {
    Exec,
    Sandbox,
}
