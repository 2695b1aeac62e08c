//! Turns the observations of an exec into its report.

use std::os::fd::OwnedFd;

use saggar_domain::net::HostTraffic;
use saggar_domain::{
    Code, Denial, DenialCode, EventBody, ExecStatus, GuestPath, LimitName, Limits, Output, Problem, Usage,
};
use saggar_jail::Identity;
use saggar_jail::cgroup::Counters;
use saggar_supervisor::{ExecOutcome, describe_ending};

/// Maximum number of denials kept for one exec; each kind is kept once.
const DENIALS_MAX: usize = 100;
/// Maximum number of denial events of one exec; one more summarises the rest.
const DENIAL_EVENTS_MAX: u32 = 1000;

#[derive(Debug)]
pub struct Report {
    pub status: ExecStatus,
    pub exit_code: Option<u8>,
    pub signal: Option<u8>,
    /// The captured output.
    pub output: Output,
    pub usage: Usage,
    /// Default limits that were not enforced.
    pub unenforced: Vec<String>,
    /// What was refused or cut off.
    pub denials: Vec<Denial>,
    /// Number of kept changes of a scratch workspace; `None` if none could be kept.
    pub changes_kept: Option<u64>,
    /// What it exchanged through a proxied network, by host.
    pub traffic: Vec<HostTraffic>,
    /// What the programs changed in an image, if it was asked for.
    pub root: Option<RootChanges>,
    /// Set unless the end was an ordinary one.
    pub error: Option<Problem>,
}

/// The upper layer of a sandbox's root, as an overlay mounted with `userxattr` leaves it. Hostile programs made it, and all of them are dead.
///
/// Or of one whose programs stand still, until they go on.
#[derive(Debug)]
pub struct RootChanges {
    pub upper: OwnedFd,
    /// The first id of the sandbox's range outside.
    base: Option<u32>,
}

impl RootChanges {
    pub(crate) fn new(upper: OwnedFd, identity: Identity) -> Self {
        Self { upper, base: identity.base() }
    }

    /// Those of a sandbox that stands still, as its supervisor hands them out.
    pub fn of_held(upper: OwnedFd, base: Option<u32>) -> Self {
        Self { upper, base }
    }

    /// The id inside of a file's owner or group; `None` if nothing inside has it.
    pub fn id_inside(&self, id: u32) -> Option<u32> {
        match self.base {
            Some(base) => id.checked_sub(base).filter(|id| *id < Identity::RANGE),
            // There is one id, and a store without owners doesn't keep it.
            None => Some(0),
        }
    }
}

impl Report {
    /// For an exec that was never started.
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
            changes_kept: None,
            traffic: Vec::new(),
            root: None,
            error: Some(error),
        }
    }
}

/// What was refused. Each kind is kept once, so that a loop can't use up memory.
#[derive(Debug, Default)]
pub(crate) struct Denials {
    pub(crate) kept: Vec<Denial>,
    told: u32,
}

impl Denials {
    pub(crate) fn add(&mut self, denial: Denial, observe: &mut dyn FnMut(EventBody)) {
        let is_new = self.kept.len() < DENIALS_MAX && !self.kept.contains(&denial);
        if is_new {
            // The first of each kind is always kept.
            self.kept.push(denial.clone());
            observe(EventBody::Denial(denial));
            return;
        }
        self.told += 1;
        match self.told.cmp(&(DENIAL_EVENTS_MAX + 1)) {
            std::cmp::Ordering::Less => observe(EventBody::Denial(denial)),
            std::cmp::Ordering::Equal => observe(EventBody::Denial(Denial {
                code: DenialCode::DenialsDropped,
                rule: "events/denials".to_owned(),
                message: format!(
                    "more than {DENIAL_EVENTS_MAX} actions were refused; further ones are refused without being reported"
                ),
            })),
            std::cmp::Ordering::Greater => {}
        }
    }
}

/// What a message about the end of an exec has to name.
pub(crate) struct Asked {
    pub(crate) program: String,
    pub(crate) cwd: GuestPath,
    pub(crate) limits: Limits,
}

pub(crate) fn conclude(
    outcome: ExecOutcome,
    mut denials: Vec<Denial>,
    asked: &Asked,
    counters: Counters,
    observe: &mut dyn FnMut(EventBody),
) -> Report {
    let ExecOutcome { ending, is_storage_full, reaped, streams } = outcome;
    let was_killed = counters.out_of_memory_kills.unwrap_or(0) > 0;
    let (status, exit_code, signal, error) = describe_ending(ending, was_killed, &asked.program, asked.cwd.as_str());
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
            format!("the limit of {} processes and threads was reached; raise it with --pids", limits.pids.value),
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
            "the kernel can't kill a process of the sandbox",
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
    Report {
        status,
        exit_code,
        signal,
        output,
        usage,
        unenforced: Vec::new(),
        denials,
        changes_kept: None,
        traffic: Vec::new(),
        root: None,
        error,
    }
}
