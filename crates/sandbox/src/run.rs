//! One exec in a fresh sandbox, from spec to nothing left.
//!
//! ```text
//!  spec ─▶ checked ─▶ recorded ─▶ jailed ─▶ attended ─▶ reaped ─▶ cleaned up ─▶ report
//! ```
//! Up to "recorded" nothing exists on the host. From there on the record names everything that might, and every way out
//! goes through the same cleaning up; a way out that doesn't run at all (SIGKILL) is the reaper's.

use std::os::fd::OwnedFd;
use std::time::Instant;

use saggar_domain::{
    Access, Code, Denial, DenialCode, EventBody, ExecId, ExecStatus, FsMode, GuestPath, HostPath, LimitName,
    NetworkReport, Output, Problem, SandboxId, Spec, Usage, User,
};
use saggar_guest::{End, ExecRequest, FailStage, TerminalSize, ToGuest};
use saggar_jail::cgroup::{Counters, Group, Host, Wanted};
use saggar_jail::{Identity, Op, Plan, SealedProgram, Signals, SpawnError, Step, Supplies, spawn};
use saggar_supervisor::{Attendance, Channel, Ending, Observation, Outcome, Refused, Streams};

use crate::data::DataDirectory;
use crate::enforce::Enforcement;
use crate::guest_image::GUEST_IMAGE;
use crate::host_tree::HostTree;
use crate::placeholder::{Gate, Protection, remove};
use crate::plan::{Brought, Layout, lay_out};
use crate::ranges::Range;
use crate::record::{FirstProcess, Holdings, Record, start_time};

/// The one exec of a sandbox made for it.
const ONLY_EXEC: u32 = 1;
/// Denials kept of one exec; each kind is kept once.
const DENIALS_MAX: usize = 100;
/// Denial events of one exec; the rest is told in one more.
const DENIAL_EVENTS_MAX: u32 = 1000;
/// Bytes of private storage for each file or directory there may be.
const BYTES_PER_INODE: u64 = 4096;

/// What to run, and in what.
#[derive(Debug)]
pub struct Job {
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
    /// Which signals cancel, blocked already.
    pub signals: Signals,
}

/// The names of a sandbox and its exec.
#[derive(Clone, Debug)]
pub struct Ids {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The exec.
    pub exec: ExecId,
}

impl Ids {
    /// New ones.
    pub fn generate() -> Result<Self, Problem> {
        Ok(Self { sandbox: SandboxId::from_random(random()?), exec: ExecId::from_random(random()?) })
    }
}

/// How it went.
#[derive(Debug)]
pub struct Report {
    /// How it ended.
    pub status: ExecStatus,
    /// The program's exit code.
    pub exit_code: Option<u8>,
    /// The signal that ended it.
    pub signal: Option<u8>,
    /// What was kept of its output.
    pub output: Output,
    /// What it used.
    pub usage: Usage,
    /// Defaults that were not enforced.
    pub unenforced: Vec<String>,
    /// What was refused or cut off.
    pub denials: Vec<Denial>,
    /// Why it isn't an ordinary end.
    pub error: Option<Problem>,
}

impl Report {
    /// Nothing was started.
    pub fn not_started(status: ExecStatus, error: Problem) -> Self {
        let denials = match status {
            ExecStatus::Refused => vec![Denial {
                code: DenialCode::Refused,
                rule: format!("spec/{}", error.code.as_str()),
                message: error.message.clone(),
            }],
            _ => Vec::new(),
        };
        Self {
            status,
            exit_code: None,
            signal: None,
            output: Output::default(),
            usage: Usage::default(),
            unenforced: Vec::new(),
            denials,
            error: Some(error),
        }
    }
}

/// Why nothing was started.
struct Stopped {
    status: ExecStatus,
    error: Problem,
}

fn refused(error: Problem) -> Stopped {
    Stopped { status: ExecStatus::Refused, error }
}

fn failed(what: &str, error: impl std::fmt::Display) -> Stopped {
    let problem = Problem::new(
        Code::SetupFailed,
        format!("{what} failed: {error}"),
        "`saggar doctor` shows what this host gives and what is missing",
    );
    Stopped { status: ExecStatus::SetupFailed, error: problem }
}

/// Runs a job. `observe` hears of everything as it happens, up to but without the finish.
pub fn run(data: &DataDirectory, ids: &Ids, job: Job, observe: &mut dyn FnMut(EventBody)) -> Report {
    match prepare(data, ids, &job.spec, observe) {
        Ok(prepared) => prepared.run(data, ids, job, observe),
        Err(stopped) => Report::not_started(stopped.status, stopped.error),
    }
}

/// A sandbox that is recorded and ready to be made.
struct Prepared {
    record: Record,
    range: Option<Range>,
    host: Host,
    name: String,
    layout: Layout,
    identity: Identity,
    enforcement: Enforcement,
    placed: Option<Placed>,
}

/// Placeholders of ours in a workspace.
struct Placed {
    workspace: HostTree,
    paths: Vec<String>,
}

fn prepare(
    data: &DataDirectory,
    ids: &Ids,
    spec: &Spec,
    observe: &mut dyn FnMut(EventBody),
) -> Result<Prepared, Stopped> {
    let host = Host::detect();
    let enforcement = Enforcement::decide(spec, &host).map_err(refused)?;
    let mut brought = bring(data, spec).map_err(refused)?;
    observe(EventBody::Setup {
        tier: spec.tier,
        fs: spec.fs,
        user: spec.user,
        unenforced: enforcement.unenforced.clone(),
    });
    observe(EventBody::Network(NetworkReport::from(spec.network)));
    let (identity, range) = identity(spec.user).map_err(|error| failed("taking a range of ids", error))?;
    let name = format!("saggar-{}", ids.sandbox);
    let mut holdings = Holdings::new();
    holdings.cgroups =
        Group::paths(&host, &name, &enforcement.cgroup).iter().map(|path| path.display().to_string()).collect();
    let (record, placed) = record(data, ids, spec, &mut brought, holdings)?;
    match lay_out(spec, identity, &brought) {
        Ok(layout) => Ok(Prepared { record, range, host, name, layout, identity, enforcement, placed }),
        Err(problem) => {
            clean_up(data, ids, record, placed);
            Err(refused(problem))
        }
    }
}

/// Opens what the spec names of the host, and refuses what would hand our own records over.
fn bring(data: &DataDirectory, spec: &Spec) -> Result<Brought, Problem> {
    let guard = |tree: &HostTree, path: &HostPath, code: Code, what: &str| {
        if data.overlaps(&tree.path) {
            let message = format!("{what} {path} is, holds or is in Saggar's own data directory");
            return Err(Problem::new(
                code,
                message,
                "choose a directory apart from it, or move the data directory with --data-dir",
            ));
        }
        Ok(())
    };
    let mut brought = Brought::default();
    if let Some(path) = &spec.workspace {
        let tree = HostTree::open(path, Code::InvalidWorkspace, "workspace")?;
        if !tree.is_directory {
            return Err(Problem::new(
                Code::InvalidWorkspace,
                format!("workspace {path} is not a directory"),
                "name a directory; single files can be brought in with --mount",
            ));
        }
        guard(&tree, path, Code::InvalidWorkspace, "workspace")?;
        brought.workspace = Some(tree);
    }
    for mount in &spec.mounts {
        let tree = HostTree::open(&mount.host, Code::InvalidMount, "mount source")?;
        guard(&tree, &mount.host, Code::InvalidMount, "mount source")?;
        if let Some(workspace) = &brought.workspace
            && spec.fs == FsMode::WorkspaceWrite
            && mount.access == Access::ReadWrite
            && (tree.holds(&workspace.path) || workspace.holds(&tree.path))
        {
            let message = format!(
                "writable mount source {} overlaps the workspace, and would be a way round its protected paths",
                mount.host
            );
            return Err(Problem::new(
                Code::InvalidMount,
                message,
                "the workspace is writable already: leave the mount out, or make it read-only",
            ));
        }
        brought.mounts.push((mount.clone(), tree));
    }
    Ok(brought)
}

fn identity(user: User) -> std::io::Result<(Identity, Option<Range>)> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if !uid.is_root() {
        return Ok((Identity::Single { inside: user.id(), uid: uid.as_raw(), gid: gid.as_raw() }, None));
    }
    let range = Range::take(u32::from_ne_bytes(random().map_err(std::io::Error::other)?))?;
    Ok((Identity::Range { base: range.base() }, Some(range)))
}

/// Writes the record, with placeholders where a protected path is absent, and puts those there.
fn record(
    data: &DataDirectory,
    ids: &Ids,
    spec: &Spec,
    brought: &mut Brought,
    mut holdings: Holdings,
) -> Result<(Record, Option<Placed>), Stopped> {
    let create = |holdings: &Holdings| {
        Record::create(data.sandboxes(), &ids.sandbox, holdings)
            .map_err(|error| failed("writing the sandbox's record", error))
    };
    let Some(workspace) = brought.workspace.as_ref().filter(|_| spec.fs == FsMode::WorkspaceWrite) else {
        return Ok((create(&holdings)?, None));
    };
    let gate = Gate::close(data.sandboxes()).map_err(|error| failed("closing the placeholder gate", error))?;
    let protection = Protection::look(workspace, &spec.protect, data.sandboxes(), &gate).map_err(refused)?;
    brought.held = protection.held.clone();
    holdings.workspace = Some(workspace.path.display().to_string());
    holdings.placeholders = protection.absent.clone();
    let record = create(&holdings)?;
    let again = spec.workspace.as_ref().map(|path| HostTree::open(path, Code::InvalidWorkspace, "workspace"));
    let placed = match again {
        Some(Ok(workspace)) => Some(Placed { workspace, paths: protection.absent.clone() }),
        Some(Err(problem)) => {
            drop(gate);
            clean_up(data, ids, record, None);
            return Err(refused(problem));
        }
        None => None,
    };
    if let Err(problem) = protection.put(workspace, &gate) {
        drop(gate);
        clean_up(data, ids, record, placed);
        return Err(refused(problem));
    }
    Ok((record, placed))
}

/// Removes what is left on the host, the record last.
fn clean_up(data: &DataDirectory, ids: &Ids, record: Record, placed: Option<Placed>) {
    if let Some(placed) = placed.filter(|placed| !placed.paths.is_empty())
        && let Ok(gate) = Gate::close(data.sandboxes())
    {
        remove(&placed.workspace, &placed.paths, data.sandboxes(), ids.sandbox.as_str(), &gate);
    }
    // If this fails, the next start's reaper finds the record and has nothing left to do.
    let _ = record.remove(data.sandboxes());
}

impl Prepared {
    fn run(mut self, data: &DataDirectory, ids: &Ids, job: Job, observe: &mut dyn FnMut(EventBody)) -> Report {
        let unenforced = std::mem::take(&mut self.enforcement.unenforced);
        let mut group = None;
        let started = self.start_and_attend(job, &mut group, observe);
        let counters = group.as_ref().map(Group::counters).unwrap_or_default();
        let removed = group.map_or(Ok(()), Group::remove);
        let mut report = match started {
            Ok((outcome, denials, asked)) => conclude(outcome, denials, &asked, counters, observe),
            Err(stopped) => Report::not_started(stopped.status, stopped.error),
        };
        report.unenforced = unenforced;
        match removed {
            Ok(()) => clean_up(data, ids, self.record, self.placed),
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

    fn start_and_attend(
        &mut self,
        job: Job,
        group: &mut Option<Group>,
        observe: &mut dyn FnMut(EventBody),
    ) -> Result<(Outcome, Vec<Denial>, Asked), Stopped> {
        let Job { spec, program, streams, terminal, terminal_name, signals } = job;
        let deadline = Instant::now() + spec.limits.timeout.value.duration();
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
        let jailed = spawn(&plan, supply).map_err(|error| explain(&error, &plan))?;
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
        Ok((outcome.map_err(|error| failed("attending the program", error))?, denials.kept, asked))
    }
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
        is_network_private: spec.network != saggar_domain::NetworkMode::Host,
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
        nofile: Some(spec.limits.files.value.get()),
        nproc: None,
        storage_paths: vec![b"/tmp".to_vec()],
        one_shot: true,
    }
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

/// Refused syscalls, each kind kept once, so that a loop of them can't grow anything.
#[derive(Default)]
struct Denials {
    kept: Vec<Denial>,
    told: u32,
}

impl Denials {
    fn add(&mut self, refused: Refused, observe: &mut dyn FnMut(EventBody)) {
        let denial = Denial {
            code: DenialCode::SyscallRefused,
            rule: refused.rule.to_owned(),
            message: format!(
                "a program called {}, which the {} rule refuses in every sandbox of this tier",
                refused.syscall, refused.rule
            ),
        };
        self.told += 1;
        match self.told.cmp(&(DENIAL_EVENTS_MAX + 1)) {
            std::cmp::Ordering::Less => observe(EventBody::Denial(denial.clone())),
            std::cmp::Ordering::Equal => observe(EventBody::Denial(Denial {
                code: DenialCode::DenialsDropped,
                rule: "events/denials".to_owned(),
                message: format!(
                    "more than {DENIAL_EVENTS_MAX} syscalls were refused; further ones are refused in silence"
                ),
            })),
            std::cmp::Ordering::Greater => {}
        }
        if self.kept.len() < DENIALS_MAX && !self.kept.contains(&denial) {
            self.kept.push(denial);
        }
    }
}

/// What a message about the end of an exec has to name.
struct Asked {
    program: String,
    cwd: GuestPath,
    limits: saggar_domain::Limits,
}

/// Turns what was seen into what is said.
fn conclude(
    outcome: Outcome,
    mut denials: Vec<Denial>,
    asked: &Asked,
    counters: Counters,
    observe: &mut dyn FnMut(EventBody),
) -> Report {
    let Outcome { ending, is_storage_full, reaped, streams } = outcome;
    let was_killed = counters.out_of_memory_kills.unwrap_or(0) > 0;
    let (status, exit_code, signal, error) = describe(ending, was_killed, asked);
    let limits = &asked.limits;
    let (stdout, stderr) = (streams.stdout.totals(), streams.stderr.totals());
    let mut hit = Vec::new();
    if status == ExecStatus::TimedOut {
        hit.push(Denial::limit(
            LimitName::Timeout,
            format!("the program was ended after {}; raise it with --timeout", limits.timeout.value),
        ));
    }
    if was_killed {
        hit.push(Denial::limit(
            LimitName::Memory,
            format!("the kernel killed a process at {} of memory; raise it with --memory", limits.memory.value),
        ));
    }
    if counters.pids_refused.unwrap_or(0) > 0 {
        hit.push(Denial::limit(
            LimitName::Pids,
            format!("one more process or thread than {} was refused; raise it with --pids", limits.pids.value),
        ));
    }
    if is_storage_full {
        hit.push(Denial::limit(
            LimitName::Disk,
            format!("the private storage of {} is full; raise it with --disk", limits.disk.value),
        ));
    }
    if stdout.dropped + stderr.dropped > 0 {
        hit.push(Denial::limit(
            LimitName::Output,
            format!("output past {} was dropped; raise it with --output", limits.output.value),
        ));
    }
    for denial in &hit {
        observe(EventBody::Limit(denial.clone()));
    }
    denials.extend(hit);
    let cpu = counters.cpu_usec.map(|usec| usec / 1000).or(reaped.map(|reaped| reaped.cpu.as_millis() as u64));
    let usage = Usage { cpu_ms: cpu, memory_peak_bytes: counters.memory_peak, processes_peak: counters.pids_peak };
    let error = match (error, reaped) {
        (None, None) => Some(Problem::new(
            Code::SetupFailed,
            "a process of the sandbox can't be killed by the kernel",
            "the next start tries again; a hung disk or network mount is the usual reason",
        )),
        (error, _) => error,
    };
    let output = Output {
        stdout_dropped: stdout.dropped,
        stderr_dropped: stderr.dropped,
        stdout: streams.stdout.into_kept(),
        stderr: streams.stderr.into_kept(),
    };
    Report { status, exit_code, signal, output, usage, unenforced: Vec::new(), denials, error }
}

/// What a shell gives for a child that SIGKILL ended.
const KILLED_BY_SHELLS_ACCOUNT: u8 = 137;

fn describe(ending: Ending, was_killed: bool, asked: &Asked) -> (ExecStatus, Option<u8>, Option<u8>, Option<Problem>) {
    const SIGKILL: u8 = 9;
    match ending {
        Ending::Ended(End::Signal { signal: SIGKILL, .. }) if was_killed => {
            (ExecStatus::OutOfMemory, None, Some(SIGKILL), None)
        }
        Ending::Ended(End::Code(KILLED_BY_SHELLS_ACCOUNT)) if was_killed => {
            (ExecStatus::OutOfMemory, Some(KILLED_BY_SHELLS_ACCOUNT), None, None)
        }
        Ending::GuestLost if was_killed => (ExecStatus::OutOfMemory, None, Some(SIGKILL), None),
        Ending::Ended(End::Code(code)) => (ExecStatus::Exited, Some(code), None, None),
        Ending::Ended(End::Signal { signal, .. }) => (ExecStatus::Signaled, None, Some(signal), None),
        Ending::TimedOut => (ExecStatus::TimedOut, None, None, None),
        Ending::Cancelled => (ExecStatus::Cancelled, None, None, None),
        Ending::NotStarted { stage, errno } => {
            let (status, problem) = not_started(stage, errno, asked);
            (status, None, None, Some(problem))
        }
        Ending::GuestLost => {
            let problem = Problem::new(
                Code::GuestLost,
                "the agent inside the sandbox went away or broke the protocol; everything in it was killed",
                "run it again; if it repeats, report it",
            );
            (ExecStatus::SetupFailed, None, None, Some(problem))
        }
    }
}

fn not_started(stage: FailStage, errno: i32, asked: &Asked) -> (ExecStatus, Problem) {
    let Asked { program, cwd, .. } = asked;
    let reason = std::io::Error::from_raw_os_error(errno);
    match (stage, errno) {
        (FailStage::Program, libc::ENOENT) => (
            ExecStatus::SetupFailed,
            Problem::new(
                Code::ProgramNotFound,
                format!("no program {program:?} in the sandbox"),
                "give a path that exists inside, or a name on its PATH; the template `host` has only /usr, /bin and /lib* of the host. If it is there, what its first line (#!) names isn't",
            ),
        ),
        (FailStage::Program, _) => (
            ExecStatus::Refused,
            Problem::new(
                Code::ProgramNotExecutable,
                format!("the program {program:?} can't be executed: {reason}"),
                "check that it is executable, for this machine, and starts with #! if it is a script",
            ),
        ),
        (FailStage::Cwd, _) => (
            ExecStatus::Refused,
            Problem::new(
                Code::InvalidCwd,
                format!("the working directory {cwd} can't be entered: {reason}"),
                "give a directory that exists inside with --cwd",
            ),
        ),
        (stage, _) => (
            ExecStatus::SetupFailed,
            Problem::new(
                Code::SetupFailed,
                format!("starting the program failed ({stage:?}): {reason}"),
                "`saggar doctor` shows what this host gives and what is missing",
            ),
        ),
    }
}

fn random<const LEN: usize>() -> Result<[u8; LEN], Problem> {
    let mut bytes = [0u8; LEN];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(length) if length == LEN => Ok(bytes),
        _ => Err(Problem::new(Code::SetupFailed, "the kernel gave no randomness", "try again")),
    }
}
