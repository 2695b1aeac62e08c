//! A probe: selects the cases that apply, distributes them to workers, and collects the results.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use saggar_domain::{Capabilities, Code, Problem, Support, TemplateName, Tier};
use saggar_sandbox::{DataDirectory, examine, reap};

use crate::case::{Case, cases, select};
use crate::fixture::{PrivateDirectory, random_name};
use crate::outside::CANARY_NAMES;
use crate::report::{CaseResult, Summary, Verdict};
use crate::worker::{Briefing, WORKER_MODE};

/// Maximum number of workers: the cases are short, and a host has other work.
const WORKERS_MAX: usize = 4;
/// Seconds that one case may take before its worker is abandoned.
const PATIENCE_S: i64 = 60;
/// Maximum number of queued results.
const RESULTS_WAITING: usize = 16;

#[derive(Clone, Debug)]
pub struct Options {
    pub tier: Tier,
    /// Ids of cases; empty means all.
    pub cases: Vec<String>,
    pub data_dir: Option<PathBuf>,
    /// The template that sandboxes start from, unless a case names its own.
    pub template: Option<TemplateName>,
}

/// Calls `told` with each result as soon as it is available.
pub fn probe(options: &Options, told: &mut dyn FnMut(&CaseResult)) -> Result<Summary, Problem> {
    let start = Instant::now();
    let chosen = select(cases()?, &options.cases)?;
    let data = DataDirectory::open(options.data_dir.as_deref())?;
    let host = examine(&data, &reap(&data));
    check_tier(&host, options.tier)?;
    let private = PrivateDirectory::new().map_err(|error| failed("creating a temporary directory", &error))?;
    let mut results: Vec<Option<CaseResult>> =
        chosen.iter().map(|case| not_applicable(case, &host, options.tier)).collect();
    results.iter().flatten().for_each(&mut *told);
    let due = |is_alone: bool| -> VecDeque<usize> {
        (0..chosen.len()).filter(|index| results[*index].is_none() && chosen[*index].alone == is_alone).collect()
    };
    let (together, alone) = (due(false), due(true));
    let workers = std::thread::available_parallelism().map_or(1, usize::from).clamp(1, WORKERS_MAX);
    let crew = Crew::new(options, &data_path(&data, options), &host, &private)?;
    for (queue, count) in [(together, workers), (alone, 1)] {
        crew.enact(&chosen, queue, count, &mut |index, result| {
            told(&result);
            results[index] = Some(result);
        })?;
    }
    Ok(Summary {
        host,
        results: results.into_iter().flatten().collect(),
        elapsed_ms: start.elapsed().as_millis() as u64,
        workers,
    })
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> Problem {
    Problem::new(
        Code::SetupFailed,
        format!("{what} failed: {error}"),
        "check TMPDIR, and that this user may start processes",
    )
}

fn check_tier(host: &Capabilities, tier: Tier) -> Result<(), Problem> {
    match host.tiers.iter().find(|row| row.name == tier.as_str()) {
        Some(row) if row.status != Support::Unsupported => Ok(()),
        row => {
            let reason = row.map_or("this version doesn't support it", |row| row.reason.as_str());
            Err(Problem::new(
                Code::UnsupportedCapability,
                format!("tier {tier} can't be probed here: {reason}"),
                row.map_or(String::new(), |row| row.remedy.clone()),
            ))
        }
    }
}

fn data_path(data: &DataDirectory, options: &Options) -> PathBuf {
    // It was opened before, so it exists.
    let given = options.data_dir.clone().unwrap_or_else(|| data.path().to_owned());
    given.canonicalize().unwrap_or(given)
}

/// Returns a result for a case that needs a capability `doctor` reports as missing.
fn not_applicable(case: &Case, host: &Capabilities, tier: Tier) -> Option<CaseResult> {
    let rows = [&host.tiers, &host.filesystem, &host.network, &host.limits, &host.mechanisms];
    let lacking = case.needs.iter().find_map(|need| {
        rows.into_iter().flatten().find(|row| row.name == *need && row.status == Support::Unsupported)
    })?;
    Some(CaseResult {
        id: case.id.clone(),
        tier,
        verdict: Verdict::NotApplicable,
        observed: Default::default(),
        expected: Default::default(),
        ms: 0,
        title: case.title.clone(),
        why: case.why.clone(),
        documented: None,
        reasons: vec![format!(
            "doctor says that {} is unsupported here: {}; remedy: {}",
            lacking.name, lacking.reason, lacking.remedy
        )],
    })
}

/// The workers.
struct Crew {
    program: PathBuf,
    private: PathBuf,
    briefing: Briefing,
}

impl Crew {
    fn new(
        options: &Options,
        data_path: &Path,
        host: &Capabilities,
        private: &PrivateDirectory,
    ) -> Result<Self, Problem> {
        let canary = random_name().map_err(|error| failed("generating a canary", &error))?;
        let briefing = Briefing {
            data_dir: options.data_dir.clone(),
            data_path: data_path.to_owned(),
            directory: PathBuf::new(),
            private: private.path().to_owned(),
            canary: format!("canary-{canary}"),
            tier: options.tier,
            template: options.template.clone(),
            capabilities: serde_json::to_value(host)
                .map_err(|error| failed("describing the host to workers", &error))?,
        };
        let program = std::env::current_exe().map_err(|error| failed("locating the running executable", &error))?;
        Ok(Self { program, private: private.path().to_owned(), briefing })
    }

    /// Runs a queue of cases on this many workers.
    fn enact(
        &self,
        chosen: &[Case],
        queue: VecDeque<usize>,
        workers: usize,
        told: &mut dyn FnMut(usize, CaseResult),
    ) -> Result<(), Problem> {
        let workers = workers.min(queue.len());
        let queue = Mutex::new(queue);
        std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel(RESULTS_WAITING);
            for _ in 0..workers {
                let (sender, queue) = (sender.clone(), &queue);
                scope.spawn(move || self.take_turns(chosen, queue, &sender));
            }
            drop(sender);
            for (index, result) in receiver {
                told(index, result);
            }
        });
        Ok(())
    }

    fn take_turns(&self, chosen: &[Case], queue: &Mutex<VecDeque<usize>>, results: &SyncSender<(usize, CaseResult)>) {
        let mut worker: Option<Worker> = None;
        loop {
            let Some(index) = queue.lock().ok().and_then(|mut queue| queue.pop_front()) else { return };
            let case = &chosen[index];
            let start = Instant::now();
            let ready = match worker.take() {
                Some(worker) => Ok(worker),
                None => Worker::start(self),
            };
            let result = ready.and_then(|mut ready| {
                let result = ready.enact(&case.id)?;
                worker = Some(ready);
                Ok(result)
            });
            let result = result.unwrap_or_else(|why| CaseResult {
                id: case.id.clone(),
                tier: self.briefing.tier,
                verdict: Verdict::Fail,
                observed: Default::default(),
                expected: Default::default(),
                ms: start.elapsed().as_millis() as u64,
                title: case.title.clone(),
                why: case.why.clone(),
                documented: case.documented.clone(),
                reasons: vec![format!("the worker failed: {why}")],
            });
            if results.send((index, result)).is_err() {
                return;
            }
        }
    }
}

/// One worker process; killed when dropped.
struct Worker {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn start(crew: &Crew) -> Result<Self, String> {
        let directory = crew.private.join(format!("worker-{}", random_name().map_err(|error| error.to_string())?));
        fs::create_dir(&directory).map_err(|error| error.to_string())?;
        let briefing = serde_json::json!({
            "data_dir": crew.briefing.data_dir, "data_path": crew.briefing.data_path, "directory": directory, "private": crew.briefing.private,
            "canary": crew.briefing.canary, "tier": crew.briefing.tier, "template": crew.briefing.template, "capabilities": crew.briefing.capabilities,
        });
        let mut command = Command::new(&crew.program);
        command.arg(WORKER_MODE).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        for name in CANARY_NAMES {
            command.env(name, &crew.briefing.canary);
        }
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let (Some(mut ask), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("it has no pipes".to_owned());
        };
        writeln!(ask, "{briefing}").map_err(|error| error.to_string())?;
        Ok(Self { child, ask, answers: BufReader::new(answers) })
    }

    fn enact(&mut self, id: &str) -> Result<CaseResult, String> {
        writeln!(self.ask, "{id}").map_err(|error| error.to_string())?;
        let patience = Timespec { tv_sec: PATIENCE_S, tv_nsec: 0 };
        let mut waiting = [PollFd::from_borrowed_fd(self.answers.get_ref().as_fd(), PollFlags::IN)];
        if poll(&mut waiting, Some(&patience)).map_err(|errno| errno.to_string())? == 0 {
            return Err(format!("no answer in {PATIENCE_S} s"));
        }
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|error| error.to_string())?;
        if line.is_empty() {
            return Err("it exited without an answer".to_owned());
        }
        serde_json::from_str(&line).map_err(|error| format!("its answer can't be read: {error}"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It ends by itself when its input closes; a hanging one is killed. It is waited for in either case.
        let _ = self.child.kill();
        // A failure can't be reported to anyone, and nothing more can be done.
        let _ = self.child.wait();
    }
}
