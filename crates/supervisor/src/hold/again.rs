//! Begins a sandbox again with other files: everything inside is ended and made anew, and the sandbox stays the same to everybody outside.
//!
//! The connections, the events with their numbers, the variables and the lifetime stay. So a server that dies in the middle changes nothing:
//! this process completes it. If the inside can't be made again, the sandbox has ended, and says why.

use std::os::fd::OwnedFd;

use rustix::process::Pid;
use saggar_domain::net::EgressDraft;
use saggar_domain::{Code, EndReason, ExecStatus, Problem, Spec, TemplateName};
use saggar_jail::cgroup::Group;
use saggar_jail::seccomp::Listener;

use crate::channel::Channel;
use crate::control::{BasedOn, EventBody, Reply};
use crate::egress::Network;
use crate::unreached::Unreached;
use crate::watch::Watch;

use super::connection::Role;
use super::exec::Ended;
use super::held::Held;
use super::holder::{Changes, Hold, KILL_PATIENCE};
use super::moment::{Moment, wall_ms};
use super::network::Proxied;
use super::usage::Samples;

/// How a hold returns.
pub enum Outcome {
    /// It is over.
    Ended(Box<Held>),
    /// Everything inside is dead, and is to be made again.
    BeginsAgain(Box<Again>),
}

/// What it is to begin again from.
#[derive(Debug)]
pub(super) struct WantedAgain {
    token: u64,
    template: TemplateName,
    project: String,
}

/// A sandbox without an inside.
pub struct Again {
    hold: Hold,
    wanted: WantedAgain,
}

/// What is inside of a sandbox, and what it is held by.
#[derive(Debug)]
pub struct Inside {
    /// The spec it enforces.
    pub spec: Spec,
    /// The hash of that spec.
    pub policy_hash: String,
    /// Default limits that this host can't enforce.
    pub unenforced: Vec<String>,
    /// PID 1 of the sandbox.
    pub pid: Pid,
    /// Refers to the same process, and is immune to pid reuse.
    pub pidfd: OwnedFd,
    /// Receives the filter's notifications about telling calls.
    pub questions: Option<Listener>,
    pub channel: Channel,
    pub group: Option<Group>,
    /// The network of a proxied sandbox, which serves it already.
    pub network: Option<Network>,
    /// The kernel's counters of a network namespace without a way out.
    pub counters: Vec<OwnedFd>,
    /// What the sandbox changed in its root.
    pub changes: Option<Changes>,
    /// The stored template that it was started from.
    pub based_on: Option<BasedOn>,
}

impl Hold {
    pub(super) fn ask_to_begin_again(
        &mut self,
        token: u64,
        template: TemplateName,
        project: String,
    ) -> Result<(), Problem> {
        if self.wanted_again.is_some() || self.still.is_some() {
            return Err(Problem::new(
                Code::TooMany,
                format!("the files of sandbox {} are being read or replaced", self.sandbox_id),
                "try again in a moment",
            ));
        }
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.role = Role::BeginningAgain;
        }
        self.wanted_again = Some(WantedAgain { token, template, project });
        Ok(())
    }

    /// Ends everything inside.
    pub(super) fn stop_to_begin_again(mut self, wanted: WantedAgain) -> Outcome {
        self.kill();
        let reaped = saggar_jail::reap(&self.pidfd, self.pid, KILL_PATIENCE).unwrap_or_default();
        if reaped.is_none() {
            // Something in there doesn't die, so nothing can take its place.
            self.tell(EventBody::Ending { reason: EndReason::AgentLost });
            return Outcome::Ended(Box::new(Held::new(self, EndReason::AgentLost, None, None)));
        }
        let now = Moment::now();
        self.close_network(now);
        for exec in self.execs.iter_mut() {
            if exec.is_running() {
                let status = ExecStatus::Cancelled;
                exec.end(Ended { at: now, at_ms: wall_ms(), status, exit_code: None, signal: None, error: None });
            }
            exec.bury();
            if let Some(portion) = exec.portion.take() {
                // What remains is removed with the sandbox's own cgroups.
                let _ = portion.remove();
            }
        }
        self.pump(now);
        Outcome::BeginsAgain(Box::new(Again { hold: self, wanted }))
    }
}

impl Again {
    pub fn template(&self) -> &TemplateName {
        &self.wanted.template
    }

    pub fn project(&self) -> &str {
        &self.wanted.project
    }

    /// The rules of its network, as they were last set.
    pub fn egress(&self) -> &EgressDraft {
        &self.hold.spec.egress
    }

    /// The cgroups of what is dead, to be removed.
    pub fn take_group(&mut self) -> Option<Group> {
        self.hold.group.take()
    }

    /// Goes on with a new inside.
    pub fn go_on(self, inside: Inside) -> Hold {
        let Self { mut hold, wanted } = self;
        let now = Moment::now();
        let memory_bytes = inside.spec.limits.memory.value.bytes();
        hold.spec = inside.spec;
        hold.policy_hash = inside.policy_hash;
        hold.unenforced = inside.unenforced;
        (hold.pid, hold.pidfd, hold.channel, hold.group) = (inside.pid, inside.pidfd, inside.channel, inside.group);
        hold.watch = Watch::new(inside.questions, memory_bytes);
        (hold.unreached, hold.proxied) = (Unreached::of(inside.counters), inside.network.map(Proxied::new));
        (hold.changes, hold.based_on) = (inside.changes, inside.based_on);
        hold.samples = Samples::new(now);
        (hold.is_greeted, hold.memory_kills, hold.pids_refused) = (false, 0, 0);
        hold.told.clear();
        hold.tell(EventBody::BeganAgain { template: wanted.template });
        if hold.paused.take().is_some() {
            hold.lifetime.resume(now);
            hold.tell(EventBody::Resumed);
        }
        let reply = hold.described();
        if let Some(connection) = hold.connections.get_mut(&wanted.token) {
            connection.say(&reply);
            connection.role = Role::Leaving;
        }
        hold
    }

    /// There is no new inside.
    pub fn give_up(mut self, problem: Problem) -> Held {
        if let Some(connection) = self.hold.connections.get_mut(&self.wanted.token) {
            connection.say(&Reply::Error(problem.clone()));
            connection.role = Role::Leaving;
        }
        self.hold.tell(EventBody::Ending { reason: EndReason::StartFailed });
        Held::new(
            self.hold,
            EndReason::StartFailed,
            Some(saggar_jail::Reaped { cpu: std::time::Duration::ZERO }),
            Some(problem),
        )
    }
}
