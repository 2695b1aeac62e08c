//! One exec in a fresh sandbox, from spec to nothing left.
//!
//! ```text
//!  spec ─▶ checked ─▶ recorded ─▶ jailed ─▶ attended ─▶ reaped ─▶ cleaned up ─▶ report
//! ```
//! Up to "recorded" nothing exists on the host. From there on the record names everything that might, and every way out
//! goes through the same cleaning up; a way out that doesn't run at all (SIGKILL) is the reaper's.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use saggar_domain::{Code, Denial, DenialCode, EventBody, NetworkMode, Problem, Spec, User};
use saggar_guest::{ExecRequest, TerminalSize, ToGuest};
use saggar_jail::cgroup::{Group, Wanted};
use saggar_jail::{Identity, Op, Plan, Rule, SealedProgram, Signals, SpawnError, Step, Supplies, spawn};
use saggar_supervisor::{Attendance, Channel, Observation, Outcome, Streams};

use crate::changes::{Pending, collect};
use crate::data::DataDirectory;
use crate::git::{self, remove_new_links};
use crate::guest_image::GUEST_IMAGE;
use crate::ids::Ids;
use crate::plan::Layout;
use crate::prepare::{Placed, Prepared, Scratch, Stopped, clean_up, failed, prepare, refused};
use crate::record::{FirstProcess, start_time};
use crate::report::{Asked, Denials, Report, conclude};

/// The one exec of a sandbox made for it.
const ONLY_EXEC: u32 = 1;
/// How much later a deadline is when it is switched off: late enough to be noticed, and an end all the same.
const OFF_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may take to collect what a sandbox changed. It is bounded by what the sandbox could store, so this is for disks that hang.
const COLLECT_PATIENCE: Duration = Duration::from_secs(600);
/// Bytes of private storage for each file or directory there may be.
const BYTES_PER_INODE: u64 = 4096;

/// What to run, and in what.
#[derive(Debug)]
pub struct Job<'a> {
    /// The boundary.
    pub spec: Spec,
    /// The program and its arguments.
    pub program: Vec<Vec<u8>>,
    /// Its streams.
    pub streams: Streams,
    /// A terminal of its own, of this size, if it is to have one.
    pub terminal: Option<TerminalSize>,
    /// What kind of terminal programs are told they have.
    pub terminal_name: Option<String>,
    /// Whether anyone wants to know how much it used.
    pub wants_usage: bool,
    /// Whether what a scratch workspace changed is kept when it ends.
    pub keeps_changes: bool,
    /// Which signals cancel, blocked already.
    pub signals: &'a Signals,
}

/// Runs a job. `observe` hears of everything as it happens, up to but without the finish.
pub fn run(data: &DataDirectory, ids: &Ids, job: Job<'_>, observe: &mut dyn FnMut(EventBody)) -> Report {
    match prepare(data, ids, &job.spec, observe) {
        Ok(prepared) => prepared.run(data, ids, job, observe),
        Err(stopped) => Report::not_started(stopped.status, stopped.error),
    }
}

impl Prepared {
    fn run(mut self, data: &DataDirectory, ids: &Ids, job: Job<'_>, observe: &mut dyn FnMut(EventBody)) -> Report {
        let unenforced = std::mem::take(&mut self.enforcement.unenforced);
        let mut group = None;
        let (keeps_changes, wants_usage, signals) = (job.keeps_changes, job.wants_usage, job.signals);
        let started = self.start_and_attend(job, &mut group, observe);
        let counters = group.as_ref().map(|group| group.counters(wants_usage)).unwrap_or_default();
        // Where no tree is killed, its cgroups and its record stay for the reaper.
        let removed = group.filter(|_| Rule::TreeKill.is_on()).map_or(Ok(()), Group::remove);
        let mut is_dead = true;
        let mut report = match started {
            Ok(Seen { outcome, denials, asked, layer }) => {
                is_dead = outcome.reaped.is_some();
                let mut report = conclude(outcome, denials, &asked, counters, observe);
                if let Some(layer) = layer.filter(|_| keeps_changes) {
                    self.keep_changes(data, ids, &layer, signals, &mut report);
                }
                // What isn't dead could make more of them: those are the reaper's.
                if let Some(denial) = self.placed.as_ref().filter(|_| is_dead).and_then(without_links) {
                    observe(EventBody::Denial(denial.clone()));
                    report.denials.push(denial);
                }
                report
            }
            Err(stopped) => Report::not_started(stopped.status, stopped.error),
        };
        report.unenforced = unenforced;
        match removed {
            Ok(()) if is_dead => clean_up(data, ids, self.record, self.placed),
            Ok(()) => {}
            // Something in there doesn't die. The record stays, so that the next start tries again.
            Err(error) if report.error.is_none() => {
                report.error = Some(Problem::new(
                    Code::SetupFailed,
                    format!("a cgroup of the sandbox can't be removed: {}", error.kind()),
                    "the next start tries again",
                ));
            }
            Err(_) => {}
        }
        drop(self.range);
        report
    }

    /// Keeps what a scratch workspace changed. That it can't be kept is an error of the exec: someone counts on it.
    fn keep_changes(&self, data: &DataDirectory, ids: &Ids, layer: &OwnedFd, signals: &Signals, report: &mut Report) {
        let Some(Scratch { workspace, started_ns, protect }) = &self.scratch else { return };
        let deadline = Instant::now() + COLLECT_PATIENCE;
        let go_on = || match signals.next() {
            Ok(Some(signal)) if signal != libc::SIGWINCH => Err(Errno::CANCELED),
            _ if Instant::now() >= deadline => Err(Errno::TIMEDOUT),
            _ => Ok(()),
        };
        let kept = Pending::begin(data, &ids.sandbox).and_then(|mut pending| {
            collect(layer, workspace, *started_ns, &mut pending, &go_on)?;
            // Looked for again when they are applied; what can't be looked at is told of then.
            let of_git = git::examine(workspace).map(|found| found.paths).unwrap_or_default();
            let protected = protect.iter().chain(&of_git).map(|path| path.as_str().to_owned()).collect();
            pending.finish(&ids.sandbox, workspace, protected)
        });
        match kept {
            Ok(count) => report.changes_kept = Some(count),
            Err(error) => {
                let why = match Errno::from_io_error(&error) {
                    Some(Errno::CANCELED) => "a signal came while they were collected".to_owned(),
                    Some(Errno::TIMEDOUT) => format!("collecting them took longer than {COLLECT_PATIENCE:?}"),
                    _ => error.kind().to_string(),
                };
                let problem = Problem::new(
                    Code::ChangesLost,
                    format!("what the sandbox changed can't be kept: {why}"),
                    "check the space and permissions of the data directory, and run it again",
                );
                report.error.get_or_insert(problem);
            }
        }
    }

    fn start_and_attend(
        &mut self,
        job: Job<'_>,
        group: &mut Option<Group>,
        observe: &mut dyn FnMut(EventBody),
    ) -> Result<Seen, Stopped> {
        let Job { spec, program, streams, terminal, terminal_name, wants_usage: _, keeps_changes: _, signals } = job;
        let mut deadline = Instant::now() + spec.limits.timeout.value.duration();
        if !Rule::Timeout.is_on() {
            deadline += OFF_TIMEOUT;
        }
        let (mut channel, theirs) = Channel::pair().map_err(|error| failed("making the control channel", error))?;
        let program_name = String::from_utf8_lossy(program.first().map_or(&[], Vec::as_slice)).into_owned();
        let request = request(&spec, program, streams.stdin.is_some(), terminal, terminal_name.as_deref());
        channel.send(&ToGuest::Exec(request)).map_err(|error| {
            refused(Problem::new(
                Code::InvalidValue,
                format!("the program, its arguments or its environment can't be passed on: {error}"),
                "shorten them, or put them into a file",
            ))
        })?;
        let create = || Group::create(&self.host, &self.name, &self.enforcement.cgroup);
        // A version 2 cgroup has to be there when the first process is born; version 1 can be made while it makes its root.
        if Group::has_birthplace(&self.host, &self.enforcement.cgroup) {
            *group = Some(create().map_err(|error| failed("making the cgroups", error.kind()))?);
        }
        let birthplace = group
            .as_ref()
            .map_or(Ok(None), Group::birthplace)
            .map_err(|error| failed("opening the cgroup", error.kind()))?;
        let plan = plan(&mut self.layout, self.identity, &spec, self.enforcement.processes, birthplace, theirs);
        let supply = || {
            let group = match group {
                Some(group) => group,
                None => group.insert(create()?),
            };
            Ok(Supplies { tasks: group.tasks()?, guest: SealedProgram::new("saggar-guest", GUEST_IMAGE)? })
        };
        let mut jailed = spawn(&plan, supply).map_err(|error| explain(&error, &plan))?;
        let layer = jailed.layer.take();
        drop(plan);
        let pid = jailed.pid.as_raw_nonzero().get();
        // Where there are cgroups the reaper finds every process in them.
        if self.enforcement.cgroup == Wanted::default()
            && let Some(started) = start_time(pid)
        {
            // Without this line the reaper relies on PID 1 ending itself, which it does.
            let _ = self.record.add_first_process(FirstProcess { pid, started });
        }
        let attendance = Attendance { jailed, channel, exec: ONLY_EXEC, deadline, signals, streams };
        let mut denials = Denials::default();
        let outcome = attendance.run(&mut |observation| match observation {
            Observation::Started => observe(EventBody::Start { program: program_name.clone() }),
            Observation::Refused(refused) => denials.add(refused, observe),
        });
        let asked = Asked { program: program_name, cwd: spec.cwd, limits: spec.limits };
        let outcome = outcome.map_err(|error| failed("attending the program", error))?;
        Ok(Seen { outcome, denials: denials.kept, asked, layer })
    }
}

/// Removes links that were made in git directories, and says so.
fn without_links(placed: &Placed) -> Option<Denial> {
    if !Rule::GitLinks.is_on() {
        return None;
    }
    let removed = remove_new_links(&placed.workspace, &placed.git_directories, placed.started_ns);
    let message = if removed.count > 0 {
        let names = removed.names.join(", ");
        format!(
            "{} symbolic links in git directories were removed, {names:?} among them: git would write through them",
            removed.count
        )
    } else if removed.is_incomplete {
        "a git directory of the workspace can't be looked through for symbolic links; look before you use git on it"
            .to_owned()
    } else {
        return None;
    };
    Some(Denial { code: DenialCode::LinkRemoved, rule: "protect/git-links".to_owned(), message })
}

/// What there is to report on.
struct Seen {
    outcome: Outcome,
    denials: Vec<Denial>,
    asked: Asked,
    layer: Option<OwnedFd>,
}

fn plan(
    layout: &mut Layout,
    identity: Identity,
    spec: &Spec,
    processes: Option<u64>,
    cgroup: Option<OwnedFd>,
    channel: OwnedFd,
) -> Plan {
    let disk = spec.limits.disk.value.bytes();
    Plan {
        identity,
        is_network_private: spec.network != NetworkMode::Host,
        hostname: "sandbox".to_owned(),
        storage_bytes: disk,
        storage_inodes: (disk / BYTES_PER_INODE).max(1024),
        ops: std::mem::take(&mut layout.ops),
        fence: std::mem::take(&mut layout.fence),
        files: spec.limits.files.value.get(),
        processes,
        cgroup,
        channel,
    }
}

/// The environment is built, never inherited: what is not named here or in the spec is not there.
fn request(
    spec: &Spec,
    argv: Vec<Vec<u8>>,
    has_stdin: bool,
    tty: Option<TerminalSize>,
    terminal_name: Option<&str>,
) -> ExecRequest {
    let name = spec.user.as_str();
    let mut env = std::collections::BTreeMap::from([
        ("HOME", spec.user.home()),
        ("LANG", "C.UTF-8"),
        ("LOGNAME", name),
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("SHELL", "/bin/sh"),
        ("USER", name),
    ]);
    if let Some(terminal) = terminal_name.filter(|_| tty.is_some()) {
        env.insert("TERM", terminal);
    }
    let inherited: Vec<(String, String)> =
        if Rule::Environment.is_on() { Vec::new() } else { std::env::vars().collect() };
    env.extend(inherited.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    env.extend(spec.env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    ExecRequest {
        exec: ONLY_EXEC,
        argv,
        env: env.into_iter().map(|(name, value)| format!("{name}={value}").into_bytes()).collect(),
        cwd: spec.cwd.as_str().as_bytes().to_vec(),
        uid: spec.user.id(),
        gid: spec.user.id(),
        groups: Vec::new(),
        keep_capabilities: spec.user == User::Root,
        tty,
        stdin: has_stdin,
        nofile: Some(files_within_reach(spec.limits.files.value.get())).filter(|_| Rule::Files.is_on()),
        nproc: None,
        storage_paths: vec![b"/tmp".to_vec()],
        one_shot: Rule::TreeKill.is_on(),
        output_window: None,
        joins: 0,
    }
}

/// Never more than whoever started us may have: a limit that is tighter than asked holds too.
fn files_within_reach(asked: u64) -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.map_or(asked, |most| most.min(asked))
}

/// A failed step, told without naming a path of the host that the user did not name.
fn explain(error: &SpawnError, plan: &Plan) -> Stopped {
    match error {
        SpawnError::Step { step: Step::Root, index, errno } => {
            let what = match plan.ops.get(*index) {
                Some(
                    Op::Directory { path, .. }
                    | Op::File { path, .. }
                    | Op::Link { path, .. }
                    | Op::Writable { path }
                    | Op::Mask { path, .. },
                ) => format!("making /{path}"),
                Some(Op::Bind { target, .. }) => format!("mounting /{target}"),
                Some(Op::Overlay { target, .. }) => format!("layering /{target}"),
                Some(Op::Protect { under, names }) => format!("protecting /{under}/{}", names.join("/")),
                Some(Op::Proc { target } | Op::Terminals { target }) => format!("mounting /{target}"),
                Some(Op::Device { name }) => format!("mounting /dev/{name}"),
                Some(Op::Covers) => "making masks".to_owned(),
                Some(Op::Seal) | None => "sealing the root".to_owned(),
            };
            failed(&what, errno)
        }
        SpawnError::Step { step, errno, .. } => failed(&step.to_string(), errno),
        SpawnError::Clone(errno) | SpawnError::Map(errno) | SpawnError::Channel(errno) => {
            failed(&error.to_string(), errno)
        }
        SpawnError::Supply(source) => failed(&error.to_string(), source.kind()),
        SpawnError::Died => failed("set-up", "the new process died without a word"),
        SpawnError::Hung => failed("set-up", "the new process hung and was killed"),
    }
}
