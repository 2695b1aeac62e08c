//! The bench of one worker: its directories, the host's capabilities, and how it runs a program in a sandbox.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use saggar_domain::{
    Access, Code, Draft, EventBody, ExecStatus, GuestPath, HostPath, Mount, Problem, SandboxId, Template, TemplateName,
    Timeout, User,
};
use saggar_sandbox::{DataDirectory, Ids, Job, LOCAL_PROJECT, Report, Signals, Templates, resolve, run};
use saggar_supervisor::{Sink, Streams};

use crate::expect::Setting;

/// Bytes captured of an attacker's output, unless the case sets its own limit.
const OUTPUT_KEPT: u64 = 4 << 20;
/// SIGHUP, SIGINT, SIGQUIT and SIGTERM end an attempt like any other program.
const SIGNALS: &[i32] = &[1, 2, 3, 15];
/// Timeout of an attempt, unless the case sets its own.
const PATIENCE: &str = "25s";
/// Path of the attacker inside a sandbox.
const ATTACKER: &str = "/probe/saggar-attacker";

#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) data: DataDirectory,
    /// Real path of the data directory; it must not appear in any output.
    pub(crate) data_path: PathBuf,
    /// This worker's own directory.
    pub(crate) directory: PathBuf,
    /// The directory of all workers; it must not appear in any output.
    pub(crate) private: PathBuf,
    /// A secret in the environment; it must not be found inside.
    pub(crate) canary: String,
    /// The JSON output of `doctor`.
    pub(crate) capabilities: serde_json::Value,
    pub(crate) is_root: bool,
    /// The template that sandboxes start from, unless a case names its own.
    pub(crate) template: Option<TemplateName>,
}

#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) sandbox: Option<SandboxId>,
    pub(crate) report: Report,
    pub(crate) events: Vec<EventBody>,
    /// The policy hash, and the same computed again.
    pub(crate) hashes: Option<(String, String)>,
    pub(crate) elapsed: Duration,
    /// CPU time of the runtime itself, without the sandbox.
    pub(crate) cpu: Duration,
}

impl Bench {
    /// The directory that holds the attacker.
    pub(crate) fn attacker(&self) -> PathBuf {
        self.directory.join("probe")
    }

    pub(crate) fn attempt(&self, name: &str, arguments: &[String]) -> Vec<Vec<u8>> {
        [ATTACKER, name]
            .into_iter()
            .map(|text| text.as_bytes().to_vec())
            .chain(arguments.iter().map(|text| text.as_bytes().to_vec()))
            .collect()
    }

    pub(crate) fn draft(&self, workspace: &Path) -> Draft {
        Draft { workspace: host_path(workspace), ..Draft::default() }
    }

    /// Runs a program in a sandbox in which the attacker is mounted, and captures its output.
    pub(crate) fn run(&self, draft: Draft, program: Vec<Vec<u8>>) -> Ran {
        self.run_watched(draft, program, &mut |_, _| {})
    }

    /// The same, and keeps the changes of a scratch workspace.
    pub(crate) fn run_keeping(&self, draft: Draft, program: Vec<Vec<u8>>) -> Ran {
        self.run_as(draft, program, true, &mut |_, _| {})
    }

    /// The same, with a callback for each event as it happens.
    pub(crate) fn run_watched(
        &self,
        draft: Draft,
        program: Vec<Vec<u8>>,
        watch: &mut dyn FnMut(&SandboxId, &EventBody),
    ) -> Ran {
        self.run_as(draft, program, false, watch)
    }

    fn run_as(
        &self,
        draft: Draft,
        program: Vec<Vec<u8>>,
        keeps_changes: bool,
        watch: &mut dyn FnMut(&SandboxId, &EventBody),
    ) -> Ran {
        let (start, cpu) = (Instant::now(), cpu_time());
        let mut events = Vec::new();
        let mut sandbox = None;
        let mut hashes = None;
        let attempt = || -> Result<Report, Problem> {
            let draft = self.completed(draft)?;
            let (spec, template) = resolve(draft.clone(), || Ok(Templates::new(&self.data, LOCAL_PROJECT)))?;
            let again = resolve(draft, || Ok(Templates::new(&self.data, LOCAL_PROJECT)))?.0;
            hashes = Some((spec.policy_hash().to_string(), again.policy_hash().to_string()));
            let limit = if spec.limits.output.is_asked { spec.limits.output.value.bytes() } else { OUTPUT_KEPT };
            let streams = Streams { stdin: None, stdout: Sink::keep(limit), stderr: Sink::keep(limit), terminal: None };
            let signals = Signals::block(SIGNALS).map_err(|error| {
                Problem::new(Code::SetupFailed, format!("signals can't be watched: {error}"), "try again")
            })?;
            let ids = Ids::generate()?;
            sandbox = Some(ids.sandbox.clone());
            let job = Job {
                spec,
                template,
                program,
                streams,
                terminal: None,
                terminal_name: None,
                secrets: Vec::new(),
                signals: &signals,
                wants_usage: true,
                keeps_changes,
                hands_over_root: false,
                tape: None,
                asks: None,
            };
            Ok(run(&self.data, &ids, job, &mut |body| {
                watch(&ids.sandbox, &body);
                events.push(body);
            }))
        };
        let report = attempt().unwrap_or_else(|problem| Report::not_started(ExecStatus::Refused, problem));
        Ran { sandbox, report, events, hashes, elapsed: start.elapsed(), cpu: cpu_time() - cpu }
    }

    /// Adds the attacker's mount, and a timeout if the draft has none.
    fn completed(&self, mut draft: Draft) -> Result<Draft, Problem> {
        let fault = |message: String| {
            Problem::new(Code::InvalidSpec, message, "choose a temporary directory with a plain name")
        };
        let host = host_path(&self.attacker())
            .ok_or_else(|| fault("the temporary directory's name is not text".to_owned()))?;
        let guest = GuestPath::parse("/probe").map_err(fault)?;
        draft.mounts.push(Mount { host, guest, access: Access::ReadOnly });
        if draft.template.is_none() && self.setting().is_image {
            draft.template = self.template.clone();
            // The cases are about our users, and not about the one that an image names.
            draft.user = draft.user.or(Some(User::User));
        }
        if draft.limits.timeout.is_none() {
            draft.limits.timeout = Some(Timeout::parse(PATIENCE).map_err(fault)?);
        }
        Ok(draft)
    }

    pub(crate) fn setting(&self) -> Setting {
        let is_image = self.template.clone().is_some_and(|name| Template::of(name) != Template::Host);
        Setting { is_root: self.is_root, is_image }
    }

    /// Status and reason of one capability, from `doctor`.
    pub(crate) fn capability(&self, name: &str) -> Option<(&str, &str)> {
        let groups = ["tiers", "filesystem", "network", "limits", "mechanisms"];
        let rows = groups.iter().filter_map(|group| self.capabilities[*group].as_array()).flatten();
        let row = rows.into_iter().find(|row| row["name"] == name)?;
        Some((row["status"].as_str()?, row["reason"].as_str()?))
    }
}

/// CPU time of this process, which has one thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub(crate) fn host_path(path: &Path) -> Option<HostPath> {
    HostPath::parse(path.to_str()?).ok()
}

impl Ran {
    /// Whether the program exited with success.
    pub(crate) fn succeeded(&self) -> bool {
        self.report.status == ExecStatus::Exited && self.report.exit_code == Some(0)
    }

    /// How it ended, in a few words and without a path.
    pub(crate) fn ending(&self) -> String {
        let report = &self.report;
        let code = report.exit_code.map(|code| format!(" {code}")).unwrap_or_default();
        let signal = report.signal.map(|signal| format!(" signal {signal}")).unwrap_or_default();
        let problem = report.error.as_ref().map(|error| format!(" {}", error.code.as_str())).unwrap_or_default();
        format!("{}{code}{signal}{problem}", report.status.as_str())
    }

    /// Whether it was refused with this code before anything started.
    pub(crate) fn is_refused_as(&self, code: Code) -> bool {
        self.report.status == ExecStatus::Refused && self.report.error.as_ref().is_some_and(|error| error.code == code)
    }

    pub(crate) fn denied_by(&self) -> Vec<&str> {
        let of_events = self.events.iter().filter_map(|event| match event {
            EventBody::Denial(denial) | EventBody::Limit(denial) => Some(denial.rule.as_str()),
            EventBody::Setup { .. }
            | EventBody::Network(_)
            | EventBody::Start { .. }
            | EventBody::Decision(_)
            | EventBody::Finish { .. } => None,
        });
        of_events.collect()
    }
}
