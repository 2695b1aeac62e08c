//! Handles and answers requests on a connection.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use saggar_domain::net::EgressDraft;
use saggar_domain::{
    Beginning, ByteSize, Code, Count, Cpus, EndReason, ExecId, ExecLimits, Offsets, Problem, Signal, SignalScope,
    TerminalSize, Timeout, User,
};
use saggar_guest::{OpenRequest, OpenTarget, ToGuest};
use saggar_jail::cgroup::{Group, Wanted};
use serde::Deserialize;

use crate::control::{Attach, CONTROL, EventBody, Op, Reply, Request, StartExec, Target, Terms};
use crate::guest_wire;
use crate::program::{Program, default_cwd};

use super::connection::{Following, Role};
use super::exec::{Accepted, Exec, OUTPUT_WINDOW};
use super::holder::Hold;
use super::listening::{STREAMS_MAX, too_many_connections};
use super::moment::{Moment, wall_ms};

/// Bytes of an exec's output that are kept unless the request says otherwise.
const OUTPUT_DEFAULT: u64 = 1024 * 1024;
/// Maximum that can be requested.
const OUTPUT_MOST: u64 = 16 * 1024 * 1024;
/// Bytes queued for an agent that doesn't read before new requests are refused.
const BACKLOG_MAX: usize = 4 * 1024 * 1024;
/// Bytes buffered in a stream. With a smaller buffer, writer and reader have to alternate more often.
const STREAM_BUFFER: usize = 1024 * 1024;
/// The terminal type, unless the request names one.
const TERMINAL: &str = "xterm-256color";

/// The fields that every request has, in any version.
#[derive(Deserialize)]
struct Version {
    v: u32,
}

impl Hold {
    /// Handles a first frame, and answers it.
    pub(super) fn obey(&mut self, token: u64, json: &[u8], now: Moment) {
        let outcome = read_request(json).and_then(|op| self.act(token, op, now));
        let Some(connection) = self.connections.get_mut(&token) else { return };
        match outcome {
            Ok(Some(reply)) => connection.say(&reply),
            Ok(None) => {}
            Err(problem) => connection.say(&Reply::Error(problem)),
        }
    }

    /// Carries out a request; `None` if the answer comes later or has been sent.
    fn act(&mut self, token: u64, op: Op, now: Moment) -> Result<Option<Reply>, Problem> {
        match op {
            Op::Describe => return Ok(Some(self.described())),
            Op::Usage => {
                let report = self.samples.report(self.group.as_ref(), self.pid);
                return Ok(Some(Reply::Used(Box::new(report))));
            }
            Op::Events { after } => {
                self.become_stream(token, Role::Hearing { after })?;
                return Ok(None);
            }
            _ => self.lifetime.touch(now),
        }
        match op {
            Op::Claim { terms, env, egress, uses_secrets } => {
                let answer = self.claim(token, terms, env, egress, now)?;
                if let Some(proxied) = self.proxied.as_mut().filter(|_| uses_secrets) {
                    proxied.network.use_server_secrets();
                }
                Ok(answer)
            }
            Op::Exec(start) => self.start(token, *start, now).map(|()| None),
            Op::Attach(attach) => self.attach(token, &attach, now).map(|()| None),
            Op::StdinEnd { .. } => Err(Problem::new(
                Code::InvalidValue,
                "the end of stdin was sent on a connection that doesn't feed stdin",
                "send it on the connection that is attached with stdin",
            )),
            Op::Signal { exec_id, signal, scope, wait } => {
                self.signal(&exec_id, signal, scope)?;
                Ok(if wait { self.bury(token, &exec_id) } else { Some(Reply::Done) })
            }
            Op::Resize { exec_id, size } => self.resize(&exec_id, size).map(|()| Some(Reply::Done)),
            Op::Open { target, user } => self.open(token, target, user).map(|()| None),
            Op::SetTerms { terms } => {
                self.check_terms(terms)?;
                self.lifetime.set(terms, now);
                Ok(Some(self.described()))
            }
            Op::SetEgress { egress, uses_secrets } => {
                let answer = self.set_egress(token, egress)?;
                if let Some(proxied) = self.proxied.as_mut().filter(|_| uses_secrets) {
                    proxied.network.use_server_secrets();
                }
                Ok(answer)
            }
            Op::Touch => Ok(Some(Reply::Done)),
            Op::Environment => {
                let mut env = self.spec.env.clone();
                env.extend(self.env.clone());
                Ok(Some(Reply::Environment { env }))
            }
            Op::KeepStill => self.keep_still(token, now).map(|()| None),
            Op::GoOn => Err(Problem::new(
                Code::InvalidValue,
                "this connection keeps nothing still",
                "send it on the connection that does",
            )),
            Op::BeginAgain { template, template_project } => {
                self.ask_to_begin_again(token, template, template_project).map(|()| None)
            }
            Op::Pause => self.pause(now, false).map(|()| Some(self.described())),
            Op::Resume { terms } => self.resume(terms, now).map(|()| Some(self.described())),
            Op::Kill => {
                self.become_stream(token, Role::Dying)?;
                let reason = if self.lifetime.is_owned() { EndReason::Killed } else { EndReason::Unclaimed };
                self.end.get_or_insert(reason);
                Ok(None)
            }
            Op::Describe | Op::Usage | Op::Events { .. } => Ok(None),
        }
    }

    pub(super) fn described(&self) -> Reply {
        Reply::Described(Box::new(self.describe()))
    }

    /// Reports a malformed frame to its sender and closes the connection.
    pub(super) fn refuse_frame(&mut self, token: u64, why: &str) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        connection.say(&Reply::Error(Problem::new(Code::InvalidValue, why, "speak the control protocol")));
        connection.role = Role::Leaving;
    }

    /// Handles a follower's messages other than stdin; they are not answered.
    pub(super) fn obey_follower(&mut self, token: u64, number: u32, json: &[u8]) {
        // An error here can't be reported: the connection carries output.
        match read_request(json) {
            Ok(Op::StdinEnd { .. }) if self.feeds(token) => {
                if let Some(exec) = self.execs.get_mut(number) {
                    exec.stdin.end();
                }
                self.feed(number);
            }
            Ok(Op::Signal { exec_id, signal, scope, .. }) => drop(self.signal(&exec_id, signal, scope)),
            Ok(Op::Resize { exec_id, size }) => drop(self.resize(&exec_id, size)),
            Ok(_) | Err(_) => {}
        }
    }

    fn feeds(&self, token: u64) -> bool {
        self.connections.get(&token).is_some_and(|connection| match &connection.role {
            Role::Following(following) => following.feeds,
            Role::Asking
            | Role::Starting { .. }
            | Role::Hearing { .. }
            | Role::Burying { .. }
            | Role::Ruling
            | Role::BeginningAgain
            | Role::Stilling
            | Role::Dying
            | Role::Leaving => false,
        })
    }

    fn become_stream(&mut self, token: u64, role: Role) -> Result<(), Problem> {
        let streams = self.connections.values().filter(|connection| match connection.role {
            Role::Following(_) | Role::Hearing { .. } | Role::Starting { .. } => true,
            Role::Asking
            | Role::Burying { .. }
            | Role::Ruling
            | Role::BeginningAgain
            | Role::Stilling
            | Role::Dying
            | Role::Leaving => false,
        });
        if streams.count() >= STREAMS_MAX && !matches!(role, Role::Dying) {
            return Err(too_many_connections());
        }
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.role = role;
        }
        Ok(())
    }

    fn claim(
        &mut self,
        token: u64,
        terms: Terms,
        env: BTreeMap<String, String>,
        egress: Option<EgressDraft>,
        now: Moment,
    ) -> Result<Option<Reply>, Problem> {
        if self.lifetime.is_owned() {
            return Err(Problem::new(
                Code::Contradiction,
                format!("the sandbox {} already has an owner", self.sandbox_id),
                "claim another one",
            ));
        }
        self.check_terms(terms)?;
        // If the rules are refused, it stays without an owner.
        let ruled = egress.map(|egress| self.set_egress(token, egress)).transpose()?;
        self.env = env;
        self.lifetime.set(terms, now);
        self.tell(EventBody::Claimed);
        match ruled {
            Some(None) => Ok(None),
            Some(Some(_)) | None => Ok(Some(self.described())),
        }
    }

    fn start(&mut self, token: u64, start: StartExec, now: Moment) -> Result<(), Problem> {
        self.check_runs()?;
        if self.execs.is_full() || self.channel.outgoing_len() > BACKLOG_MAX {
            return Err(Problem::new(
                Code::TooMany,
                "the sandbox has the maximum number of programs that run or left processes behind",
                "wait until some have ended, or end them",
            ));
        }
        if self.execs.find(&start.exec_id).is_some() {
            let message = format!("exec {} already exists", start.exec_id);
            return Err(Problem::new(Code::InvalidValue, message, "give each exec an id of its own"));
        }
        let StartExec { exec_id, spec, follow, is_fed_apart } = start;
        let number = self.execs.next_number();
        let portion = spec.limits.map(|limits| self.portion(number, limits)).transpose()?.flatten();
        let joins = portion.as_ref().map_or_else(|| Ok(Vec::new()), Group::tasks);
        let joins = joins.map_err(|error| portion_failed(&error))?;
        let user = self.spec.acting(spec.user);
        let cwd = spec.cwd.as_deref().unwrap_or_else(|| default_cwd(&self.spec, user)).to_owned();
        let exec = Exec::new(Accepted {
            id: exec_id,
            number,
            spec: &spec,
            cwd: &cwd,
            output_max: spec.output_bytes.map_or(OUTPUT_DEFAULT, ByteSize::bytes).min(OUTPUT_MOST) as usize,
            deadline: spec.timeout.map(|timeout| now + Timeout::duration(timeout)),
            portion,
            now_ms: wall_ms(),
        });
        let request = Program {
            exec: number,
            argv: spec.argv.into_iter().map(String::into_bytes).collect(),
            env: &[&self.env, &spec.env],
            cwd: Some(&cwd),
            user,
            has_stdin: spec.stdin,
            terminal: spec.tty,
            terminal_name: Some(TERMINAL),
            output_window: Some(OUTPUT_WINDOW),
            joins: joins.len() as u8,
            is_one_shot: false,
        };
        let frame = ToGuest::Exec(request.into_request(&self.spec));
        self.become_stream(
            token,
            Role::Starting { exec: number, follows: follow, feeds: spec.stdin && !is_fed_apart },
        )?;
        if let Err(error) = self.channel.send_with(&frame, joins) {
            if let Some(connection) = self.connections.get_mut(&token) {
                connection.role = Role::Asking;
            }
            if let Some(portion) = exec.portion {
                // Whatever remains is removed with the sandbox's own cgroups.
                let _ = portion.remove();
            }
            return Err(Problem::new(
                Code::InvalidValue,
                format!("the program, its arguments, its directory or its environment can't be sent: {error}"),
                "shorten them, or put them into a file",
            ));
        }
        self.execs.add(exec);
        Ok(())
    }

    /// Cgroups for the exec's own limits; `None` if it has none.
    fn portion(&self, number: u32, limits: ExecLimits) -> Result<Option<Group>, Problem> {
        let ExecLimits { memory, pids, cpus } = limits;
        let wanted = Wanted {
            memory: memory.map(ByteSize::bytes),
            pids: pids.map(Count::get),
            cpu_millis: cpus.map(Cpus::as_millis),
            is_freezable: false,
        };
        if wanted == Wanted::default() {
            return Ok(None);
        }
        let group = self.group.as_ref().ok_or_else(|| portion_failed(&std::io::ErrorKind::Unsupported.into()))?;
        group.portion(&format!("exec-{number}"), &wanted).map(Some).map_err(|error| portion_failed(&error))
    }

    fn attach(&mut self, token: u64, attach: &Attach, now: Moment) -> Result<(), Problem> {
        let exec = self.execs.find(&attach.exec_id).ok_or_else(|| no_such_exec(&attach.exec_id))?;
        let cursor = match attach.from {
            Beginning::Start => exec.ring.oldest(),
            Beginning::Now => exec.ring.newest(),
            Beginning::Offsets(Offsets { stdout, stderr }) => exec.ring.after(stdout, stderr).ok_or_else(|| {
                Problem::new(
                    Code::InvalidValue,
                    format!("the offset is past the output of {} so far", attach.exec_id),
                    "continue from offsets that were received",
                )
            })?,
        };
        let (number, is_open, state) = (exec.number, exec.stdin.is_open(), exec.state(now));
        if attach.stdin && !is_open {
            let message = format!("{} has no stdin, or it is closed", attach.exec_id);
            return Err(Problem::new(Code::InvalidStdin, message, "start it with stdin, or attach without"));
        }
        if attach.stdin && self.has_feeder(number) {
            let message = format!("another connection feeds the stdin of {}", attach.exec_id);
            return Err(Problem::new(Code::TooMany, message, "attach without stdin, or end the other connection"));
        }
        self.become_stream(
            token,
            Role::Following(Following { exec: number, cursor, feeds: attach.stdin, is_lossy: false }),
        )?;
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.say(&Reply::Started(Box::new(state)));
        }
        Ok(())
    }

    fn signal(&mut self, id: &ExecId, signal: Signal, scope: SignalScope) -> Result<(), Problem> {
        self.check_runs()?;
        let exec = self.execs.find(id).ok_or_else(|| no_such_exec(id))?;
        let (number, is_live) = (exec.number, exec.is_live());
        if is_live {
            let (signal, scope) = (signal.number(), guest_wire::scope(scope));
            self.say(&ToGuest::Signal { exec: number, signal, scope });
        }
        Ok(())
    }

    /// The answer for a client that waits until an exec has no process left; `None` if it comes later.
    fn bury(&mut self, token: u64, id: &ExecId) -> Option<Reply> {
        let waits = self.execs.find(id).filter(|exec| !exec.is_deserted()).map(|exec| exec.number);
        match (waits, self.connections.get_mut(&token)) {
            (Some(exec), Some(connection)) => {
                connection.role = Role::Burying { exec };
                None
            }
            (None, _) | (_, None) => Some(Reply::Done),
        }
    }

    fn resize(&mut self, id: &ExecId, size: TerminalSize) -> Result<(), Problem> {
        self.check_runs()?;
        let exec = self.execs.find(id).ok_or_else(|| no_such_exec(id))?;
        if !exec.has_terminal() {
            let message = format!("{id} has no terminal");
            return Err(Problem::new(Code::InvalidValue, message, "start it with one"));
        }
        if exec.is_running() {
            let frame = ToGuest::Resize { exec: exec.number, rows: size.rows, cols: size.cols };
            self.say(&frame);
        }
        Ok(())
    }

    /// Creates a stream, with one end for the agent's worker and the other for the client.
    fn open(&mut self, token: u64, target: Target, user: User) -> Result<(), Problem> {
        self.check_runs()?;
        let failed = |error: &dyn std::fmt::Display| {
            Problem::new(Code::Stream, format!("a stream into the sandbox can't be created: {error}"), "try again")
        };
        if self.channel.outgoing_len() > BACKLOG_MAX {
            return Err(failed(&"the agent inside doesn't answer"));
        }
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|errno| failed(&errno))?;
        for end in [&ours, &theirs] {
            // If the host allows less, the stream is only slower.
            let _ = sockopt::set_socket_send_buffer_size(end, STREAM_BUFFER);
        }
        let user = self.spec.acting(Some(user));
        let account = self.spec.account_of(user);
        let request = OpenRequest {
            stream: self.execs.next_number(),
            uid: account.map_or(user.id(), |account| account.uid),
            gid: account.map_or(user.id(), |account| account.gid),
            groups: account.map_or_else(Vec::new, |account| account.groups.clone()),
            keep_capabilities: user == User::Root,
            target: match target {
                Target::Files => OpenTarget::Files,
                Target::Port(port) => OpenTarget::Port(port),
            },
        };
        self.channel.send_with(&ToGuest::Open(request), vec![theirs]).map_err(|error| failed(&error))?;
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        if connection.hand_over(&Reply::Opened, ours.as_fd()).is_err() {
            self.connections.remove(&token);
        }
        Ok(())
    }
}

pub(super) fn read_request(json: &[u8]) -> Result<Op, Problem> {
    let unreadable = |error: serde_json::Error| {
        Problem::new(Code::InvalidValue, format!("the request can't be read: {error}"), "speak the control protocol")
    };
    let Version { v } = serde_json::from_slice(json).map_err(unreadable)?;
    if v > CONTROL {
        return Err(Problem::new(
            Code::UnsupportedProtocol,
            format!(
                "the request uses version {v} of the control protocol, and this supervisor knows versions up to {CONTROL}"
            ),
            format!("use version {CONTROL} with this sandbox"),
        ));
    }
    let request: Request = serde_json::from_slice(json).map_err(unreadable)?;
    Ok(request.op)
}

fn no_such_exec(id: &ExecId) -> Problem {
    Problem::new(
        Code::NoSuchExec,
        format!("exec {id} doesn't exist in this sandbox, or is no longer remembered"),
        "list the sandbox's execs",
    )
}

fn portion_failed(error: &std::io::Error) -> Problem {
    if error.kind() == std::io::ErrorKind::Unsupported {
        return Problem::new(
            Code::UnsupportedCapability,
            "limits of a single exec need cgroup controllers of version 1, which this host doesn't provide",
            "limit the sandbox instead",
        );
    }
    // The kernel refuses what is beyond its own bounds or those of the sandbox: the request is at fault, not the host.
    let code = match error.kind() {
        std::io::ErrorKind::InvalidInput => Code::InvalidValue,
        _ => Code::SetupFailed,
    };
    let message = format!("the limits of the exec can't be set: {}", error.kind());
    Problem::new(code, message, "request no more than the sandbox has")
}
