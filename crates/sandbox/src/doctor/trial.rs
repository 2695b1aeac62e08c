//! One trial: a small program in a real sandbox, with its own workspace in the data directory.

use std::path::{Path, PathBuf};

use saggar_domain::{Draft, ExecStatus, HostPath, Problem, Spec};
use saggar_jail::Signals;
use saggar_supervisor::{Sink, Streams};

use crate::data::DataDirectory;
use crate::ids::Ids;
use crate::report::Report;
use crate::run::{Job, run};

/// Bytes captured of a trial's output, unless the trial sets its own limit.
const OUTPUT_KEPT: u64 = 4096;
/// SIGHUP, SIGINT, SIGQUIT and SIGTERM end a trial like any other program.
const SIGNALS: &[i32] = &[1, 2, 3, 15];

/// Runs trials, and removes their workspace when dropped.
pub(super) struct Trials<'a> {
    data: &'a DataDirectory,
    workspace: PathBuf,
    /// Marks it as in use for the reaper.
    _lock: std::os::fd::OwnedFd,
}

impl<'a> Trials<'a> {
    pub(super) fn new(data: &'a DataDirectory) -> std::io::Result<Self> {
        let ids = Ids::generate().map_err(std::io::Error::other)?;
        let (workspace, lock) = data.new_trial(&ids.sandbox)?;
        Ok(Self { data, workspace, _lock: lock })
    }

    pub(super) fn sh(&self, draft: Draft, script: &str) -> Report {
        let attempt = || -> Result<Report, Problem> {
            let spec = Spec::resolve(draft)?;
            let limit = if spec.limits.output.is_asked { spec.limits.output.value.bytes() } else { OUTPUT_KEPT };
            let streams = Streams { stdin: None, stdout: Sink::keep(limit), stderr: Sink::keep(limit), terminal: None };
            let program = ["/bin/sh", "-c", script].map(|part| part.as_bytes().to_vec()).to_vec();
            let signals = Signals::block(SIGNALS).map_err(|error| {
                Problem::new(
                    saggar_domain::Code::SetupFailed,
                    format!("signals can't be watched: {error}"),
                    "try again",
                )
            })?;
            let job = Job {
                spec,
                template: None,
                program,
                streams,
                terminal: None,
                terminal_name: None,
                secrets: Vec::new(),
                wants_usage: true,
                keeps_changes: false,
                hands_over_root: false,
                tape: None,
                asks: None,
                signals: &signals,
            };
            Ok(run(self.data, &Ids::generate()?, job, &mut |_| {}))
        };
        attempt().unwrap_or_else(|problem| Report::not_started(ExecStatus::Refused, problem))
    }

    pub(super) fn with_workspace(&self) -> Draft {
        let path = HostPath::parse(&self.workspace.display().to_string()).ok();
        Draft { workspace: path, ..Draft::default() }
    }

    /// The workspace's path on the host.
    pub(super) fn workspace(&self) -> &Path {
        &self.workspace
    }
}

impl Drop for Trials<'_> {
    fn drop(&mut self) {
        // The next start removes what remains.
        let _ = std::fs::remove_dir_all(&self.workspace);
    }
}

/// Why a trial failed, in one line.
pub(super) fn why(report: &Report) -> String {
    if let Some(error) = &report.error {
        return error.message.clone();
    }
    let said = String::from_utf8_lossy(&report.output.stderr);
    let said = said.lines().next().map(|line| format!(": {line}")).unwrap_or_default();
    format!(
        "the trial ended as {}{}{said}",
        report.status.as_str(),
        report.exit_code.map(|code| format!(" {code}")).unwrap_or_default()
    )
}

pub(super) fn succeeded(report: &Report) -> bool {
    report.status == ExecStatus::Exited && report.exit_code == Some(0)
}
