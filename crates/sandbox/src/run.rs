//! One exec in a fresh sandbox, from its spec until nothing is left.
//!
//! ```text
//!  spec ─▶ checked ─▶ recorded ─▶ jailed ─▶ attended ─▶ reaped ─▶ cleaned up ─▶ report
//! ```
//! Before "recorded" nothing exists on the host. From there on the record names everything that might exist, and every
//! exit path runs the same clean-up. If none can run (SIGKILL), the reaper cleans up.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use saggar_domain::{
    Code, Denial, DenialCode, EventBody, ExecStatus, NetworkMode, Problem, SandboxId, Spec, TerminalSize,
};
use saggar_guest::ToGuest;
use saggar_jail::cgroup::{Group, Host};
use saggar_jail::{Jailed, Rule, Signals};
use saggar_supervisor::egress::{Network, SessionSecrets, Tape, Wants};
use saggar_supervisor::{Asker, Attendance, Channel, ExecOutcome, Observation, Program, Streams, Unreached};

use crate::changes::{Name, Pending, Worktree, collect};
use crate::data::DataDirectory;
use crate::egress::{ChildCgroups, ChildProcess, END_PATIENCE, Traffic};
use crate::git::{self, remove_new_links};
use crate::holdback::hold_back;
use crate::ids::Ids;
use crate::plan::Life;
use crate::prepare::{Order, Placed, Prepared, Scratch, Stopped, clean_up, failed, prepare, refused};
use crate::report::{Asked, Denials, Report, RootChanges, conclude};
use crate::templates::{HeldTemplate, LOCAL_PROJECT};

/// The number of the only exec of a one-shot sandbox.
const ONLY_EXEC: u32 = 1;
/// How much later a deadline is if it is switched off: late enough to be noticed, but it still ends.
const OFF_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the end of a sandbox in which nothing has run may take.
const WITHDRAW_PATIENCE: Duration = Duration::from_secs(30);
/// How long collecting the changes of a sandbox may take. Their size is bounded by the sandbox's storage limit, so this
/// is for disks that hang.
const COLLECT_PATIENCE: Duration = Duration::from_secs(600);
/// How to see such files, and how to unmark them.
const HIDDEN_HELP: &str = "list such files with `git ls-files -v | grep '^[a-z]\\|^S'`, and unmark one with `git update-index \
                           --no-assume-unchanged --no-skip-worktree FILE`";

#[derive(Debug)]
pub struct Job<'a> {
    pub spec: Spec,
    /// The image that the spec starts from.
    pub template: Option<HeldTemplate>,
    /// The program and its arguments.
    pub program: Vec<Vec<u8>>,
    pub streams: Streams,
    /// `None` for no terminal.
    pub terminal: Option<TerminalSize>,
    /// The terminal type given to programs.
    pub terminal_name: Option<String>,
    /// Whether the caller wants to know the usage.
    pub wants_usage: bool,
    /// Whether the changes of a scratch workspace are kept at the end.
    pub keeps_changes: bool,
    /// Whether the report has what the programs changed in the image. Not together with a scratch workspace.
    pub hands_over_root: bool,
    /// The recording that the network is written to, or answered from.
    pub tape: Option<Tape>,
    /// Files with the secrets of the spec. Only the egress process reads them.
    pub secrets: Vec<OwnedFd>,
    /// Who answers questions about hosts that no rule allows. Without one, nothing is asked.
    pub asks: Option<Asker<'a>>,
    /// The signals that cancel, already blocked.
    pub signals: &'a Signals,
}

/// Runs a job. `observe` gets every event as it happens, except the last one, `finish`.
pub fn run(data: &DataDirectory, ids: &Ids, mut job: Job<'_>, observe: &mut dyn FnMut(EventBody)) -> Report {
    let source = ChildProcess::default();
    let cgroups = source.cgroups();
    let begun = match job.spec.network {
        NetworkMode::Proxied => {
            let names = job.spec.secrets.iter().map(|used| used.name.clone()).collect();
            let secrets = SessionSecrets::new(names, std::mem::take(&mut job.secrets));
            let rules = job.spec.egress.clone();
            // There is one exec, so connections need no attribution.
            let wants = Wants { questions: job.asks.is_some(), connections: false, models: false };
            Network::begin(Box::new(source), ids.sandbox.clone(), rules, secrets, wants).map(Some).map_err(not_made)
        }
        NetworkMode::None | NetworkMode::Host => Ok(None),
    };
    // The egress process gets ready meanwhile.
    let prepared = begun.and_then(|network| {
        let template = job.template.take();
        let hands_over_root = job.hands_over_root && template.is_some();
        let order = Order {
            spec: &job.spec,
            life: Life::OneProgram,
            template,
            volume_project: LOCAL_PROJECT,
            volumes: None,
            hands_over_root,
        };
        Ok((prepare(data, &ids.sandbox, Host::detect(), order, observe)?, network))
    });
    match prepared {
        Ok((prepared, network)) => prepared.run(data, ids, job, network.map(|network| (network, cgroups)), observe),
        Err(stopped) => Report::not_started(stopped.status, stopped.error),
    }
}

impl Prepared {
    fn run(
        mut self,
        data: &DataDirectory,
        ids: &Ids,
        job: Job<'_>,
        network: Option<(Network, ChildCgroups)>,
        observe: &mut dyn FnMut(EventBody),
    ) -> Report {
        let (mut network, cgroups) = network.unzip();
        let unenforced = std::mem::take(&mut self.enforcement.unenforced);
        let mut group = None;
        let (keeps_changes, wants_usage, signals) = (job.keeps_changes, job.wants_usage, job.signals);
        let hands_over_root = job.hands_over_root;
        let confined = cgroups.as_ref().map_or(Ok(()), |cgroups| cgroups.make(&self.host, &ids.sandbox));
        let started =
            confined.map_err(not_made).and_then(|()| self.start_and_attend(job, network.as_mut(), &mut group, observe));
        // Its process ends while we clean up.
        if let Some(network) = &mut network {
            network.close();
        }
        let counters = group.as_ref().map(|group| group.counters(wants_usage)).unwrap_or_default();
        // If the tree is not killed, its cgroups and its record stay for the reaper.
        let removed = group.filter(|_| Rule::TreeKill.is_on()).map_or(Ok(()), Group::remove);
        let mut is_dead = true;
        let mut is_postponed = false;
        let mut report = match started {
            Ok(Seen { outcome, mut denials, mut traffic, asked, layer, changes }) => {
                is_dead = outcome.reaped.is_some();
                if let Some(network) = network.take() {
                    network.finish(END_PATIENCE, &mut |message| traffic.hear(message, &mut denials, observe));
                }
                let mut report = conclude(outcome, denials.kept, &asked, counters, observe);
                report.error = report.error.or_else(|| traffic.problem());
                report.traffic = traffic.by_host();
                if let Some(upper) = changes.filter(|_| hands_over_root) {
                    // Whatever still runs could change it while it is read.
                    report.root = is_dead.then(|| RootChanges::new(upper, self.identity));
                }
                if let Some(layer) = layer.filter(|_| keeps_changes) {
                    self.keep_changes(data, ids, &layer, signals, &mut report);
                }
                // A process that isn't dead could create more links; these are left to the reaper.
                if let Some(placed) = self.placed.as_ref().filter(|_| is_dead) {
                    let links = without_links(placed);
                    let held = hold_back(data, &ids.sandbox, &placed.workspace, &placed.before, placed.started_ns);
                    is_postponed = held.is_postponed;
                    report.changes_kept = Some(held.kept).filter(|kept| *kept > 0);
                    let denials = [links, held.denial(&ids.sandbox), hidden_edits(placed)];
                    for denial in denials.into_iter().flatten() {
                        observe(EventBody::Denial(denial.clone()));
                        report.denials.push(denial);
                    }
                }
                report
            }
            Err(stopped) => Report::not_started(stopped.status, stopped.error),
        };
        report.unenforced = unenforced;
        // Waits for its process.
        drop(network);
        let removed = removed.and(cgroups.map_or(Ok(()), |cgroups| cgroups.remove()));
        match removed {
            // Postponed work is left to the reaper.
            Ok(()) if is_dead && !is_postponed => clean_up(data, &ids.sandbox, self.record, self.placed),
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

    /// Keeps the changes of a scratch workspace. A failure is an error of the exec, because the caller relies on them.
    fn keep_changes(&self, data: &DataDirectory, ids: &Ids, layer: &OwnedFd, signals: &Signals, report: &mut Report) {
        let Some(scratch) = &self.scratch else { return };
        let deadline = Instant::now() + COLLECT_PATIENCE;
        let go_on = || match signals.next() {
            Ok(Some(signal)) if signal != libc::SIGWINCH => Err(Errno::CANCELED),
            _ if Instant::now() >= deadline => Err(Errno::TIMEDOUT),
            _ => Ok(()),
        };
        match keep(data, &ids.sandbox, scratch, layer, &go_on) {
            Ok(count) => report.changes_kept = Some(count),
            Err(problem) => {
                report.error.get_or_insert(problem);
            }
        }
    }

    fn start_and_attend(
        &mut self,
        job: Job<'_>,
        mut network: Option<&mut Network>,
        group: &mut Option<Group>,
        observe: &mut dyn FnMut(EventBody),
    ) -> Result<Seen, Stopped> {
        let Job { mut spec, program, streams, terminal, terminal_name, tape, mut asks, signals, .. } = job;
        let mut deadline = Instant::now() + spec.limits.timeout.value.duration();
        if !Rule::Timeout.is_on() {
            deadline += OFF_TIMEOUT;
        }
        let (mut channel, theirs) = Channel::pair().map_err(|error| failed("creating the control channel", error))?;
        let program_name = String::from_utf8_lossy(program.first().map_or(&[], Vec::as_slice)).into_owned();
        let program = Program {
            exec: ONLY_EXEC,
            argv: program,
            env: &[],
            cwd: None,
            user: spec.user,
            has_stdin: streams.stdin.is_some(),
            terminal,
            terminal_name: terminal_name.as_deref(),
            output_window: None,
            joins: 0,
            is_one_shot: Rule::TreeKill.is_on(),
        };
        // Sent ahead, it is there when the agent begins to read. In a proxied sandbox nothing runs before the network has passed its
        // test, and the placeholders are not known yet.
        let mut program = Some(program);
        if network.is_none()
            && let Some(program) = program.take()
        {
            send(&mut channel, program, &spec)?;
        }
        let mut jailed = self.enter(&spec, theirs, group, || Ok(()))?;
        let (layer, changes) = (jailed.layer.take(), jailed.changes.take());
        let mut traffic = Traffic::default();
        if let Some(network) = &mut network {
            let taped = tape.as_ref().map_or(Ok(None), |tape| network.hand_tape(tape));
            let warning = taped.map_err(|problem| withdraw(&jailed, not_made(problem)))?;
            warning.into_iter().for_each(|warning| traffic.blame(warning));
            open_network(network, &mut jailed).map_err(not_made)?;
            let pairs = spec.secrets.iter().zip(network.placeholders());
            let placeholders = pairs.filter_map(|(used, text)| Some((used.env.as_ref()?.to_string(), text.clone())));
            spec.env.extend(placeholders);
        }
        if let Some(program) = program {
            send(&mut channel, program, &spec).map_err(|stopped| withdraw(&jailed, stopped))?;
        }
        let unreached = Unreached::of(std::mem::take(&mut jailed.counters));
        let memory_bytes = spec.limits.memory.value.bytes();
        let asker = asks.as_mut().map(|asker| Asker(&mut *asker.0));
        let attendance =
            Attendance { jailed, channel, exec: ONLY_EXEC, deadline, memory_bytes, signals, streams, network, asker };
        let mut denials = Denials::default();
        let outcome = attendance.run(&mut |observation| match observation {
            Observation::Started => observe(EventBody::Start { program: program_name.clone() }),
            Observation::Refused(refused) => denials.add(refused.to_denial(), observe),
            Observation::Egress(message) => traffic.hear(message, &mut denials, observe),
            Observation::NetworkLost { is_for_good } => traffic.lose(is_for_good, &mut denials, observe),
            // The denial about the loss says that it was for a while.
            Observation::NetworkRestored => {}
        });
        let asked = Asked { program: program_name, cwd: spec.cwd, limits: spec.limits };
        let outcome = outcome.map_err(|error| failed("attending the program", error))?;
        if let Some(denial) = unreached.and_then(|mut unreached| unreached.take_denial()) {
            denials.add(denial, observe);
        }
        Ok(Seen { outcome, denials, traffic, asked, layer, changes })
    }
}

/// The same for a held sandbox, which nobody waits for at a terminal.
pub(crate) fn keep_held(
    data: &DataDirectory,
    sandbox: &SandboxId,
    scratch: &Scratch,
    layer: &OwnedFd,
) -> Result<u64, Problem> {
    let deadline = Instant::now() + COLLECT_PATIENCE;
    let go_on = || if Instant::now() >= deadline { Err(Errno::TIMEDOUT) } else { Ok(()) };
    keep(data, sandbox, scratch, layer, &go_on)
}

/// Keeps the changes in the layer of a dead sandbox, and returns their number.
fn keep(
    data: &DataDirectory,
    sandbox: &SandboxId,
    scratch: &Scratch,
    layer: &OwnedFd,
    go_on: &dyn Fn() -> Result<(), Errno>,
) -> Result<u64, Problem> {
    let Scratch { lower, worktree, started_ns, protect } = scratch;
    let kept = Pending::begin(data, sandbox).and_then(|mut pending| {
        collect(layer, lower, *started_ns, &mut pending, go_on)?;
        if let Some((workspace, commit)) = worktree {
            return pending.finish(sandbox, workspace, Vec::new(), Some(Worktree { commit: *commit, branch: None }));
        }
        // Searched again when they are applied; errors are reported then.
        let of_git = git::examine(lower).map(|found| found.paths).unwrap_or_default();
        let protected = protect.iter().chain(&of_git).map(|path| path.as_str().to_owned()).collect();
        pending.finish(sandbox, lower, protected, None)
    });
    kept.map_err(|error| {
        let why = match Errno::from_io_error(&error) {
            Some(Errno::CANCELED) => "a signal came while they were collected".to_owned(),
            Some(Errno::TIMEDOUT) => format!("collecting them took longer than {COLLECT_PATIENCE:?}"),
            _ => error.kind().to_string(),
        };
        Problem::new(
            Code::ChangesLost,
            format!("the sandbox's changes can't be kept: {why}"),
            "check the space and permissions of the data directory, and run it again",
        )
    })
}

/// Sends the request to run the program.
fn send(channel: &mut Channel, program: Program<'_>, spec: &Spec) -> Result<(), Stopped> {
    channel.send(&ToGuest::Exec(program.into_request(spec))).map_err(|error| {
        refused(Problem::new(
            Code::InvalidValue,
            format!("the program, its arguments or its environment can't be sent: {error}"),
            "shorten them, or put them into a file",
        ))
    })
}

/// Gives the sandbox its network, and tests it. If that fails, the sandbox is ended: nothing has run in it.
pub(crate) fn open_network(network: &mut Network, jailed: &mut Jailed) -> Result<(), Problem> {
    let kept = std::mem::take(&mut jailed.kept);
    let served = match jailed.gates.take() {
        Some(gates) => network.serve(gates, kept),
        None => Err(failed("opening the network", "the sandbox has no gates").error),
    };
    served.map_err(|problem| withdraw(jailed, not_made(problem)).error)
}

/// Ends a sandbox in which nothing has run.
fn withdraw(jailed: &Jailed, stopped: Stopped) -> Stopped {
    // It may be dead already.
    let _ = rustix::process::pidfd_send_signal(&jailed.pidfd, rustix::process::Signal::KILL);
    match saggar_jail::reap(&jailed.pidfd, jailed.pid, WITHDRAW_PATIENCE) {
        Ok(Some(_)) => stopped,
        Ok(None) | Err(_) => failed("ending the sandbox", "the kernel can't kill its first process"),
    }
}

fn not_made(error: Problem) -> Stopped {
    Stopped { status: ExecStatus::SetupFailed, error }
}

/// Removes links created in git directories, and reports them.
pub(crate) fn without_links(placed: &Placed) -> Option<Denial> {
    if !Rule::GitLinks.is_on() {
        return None;
    }
    let removed = remove_new_links(&placed.workspace, &placed.git_directories, &placed.git_links, placed.started_ns);
    let message = if removed.count > 0 {
        let names = removed.names.join(", ");
        format!(
            "{} symbolic links in git directories were removed, {names:?} among them: git would write through them",
            removed.count
        )
    } else if removed.is_incomplete {
        "a git directory of the workspace can't be searched for symbolic links; check it before you use git on it"
            .to_owned()
    } else {
        return None;
    };
    Some(Denial { code: DenialCode::LinkRemoved, rule: "protect/git-links".to_owned(), message })
}

/// Reports files that were marked in git's index so that a review with git misses their edits.
fn hidden_edits(placed: &Placed) -> Option<Denial> {
    // If it can't be examined, the next start refuses the workspace, with the reason.
    let now = git::examine(&placed.workspace).ok()?.hidden;
    let hidden: Vec<String> = now.difference(&placed.hidden).map(|path| Name(path.clone()).to_string()).collect();
    let message = match hidden.as_slice() {
        [] => return None,
        [only] => format!("{only:?} is marked in git's index so that git shows no edits of it; {HIDDEN_HELP}"),
        [first, rest @ ..] => format!(
            "{first:?} and {} more files are marked in git's index so that git shows no edits of them; {HIDDEN_HELP}",
            rest.len()
        ),
    };
    Some(Denial { code: DenialCode::EditsHidden, rule: "protect/git-index".to_owned(), message })
}

struct Seen {
    outcome: ExecOutcome,
    denials: Denials,
    traffic: Traffic,
    asked: Asked,
    layer: Option<OwnedFd>,
    /// What holds the changes of the root.
    changes: Option<OwnedFd>,
}
