//! Workers: single-threaded processes that run cases one after the other, because creating a sandbox forks.
//!
//! The parent first sends a briefing about directories and the host, then one case id per line. Each is answered with
//! one line.

use std::io::{BufRead, Write};
use std::path::PathBuf;

use saggar_domain::{TemplateName, Tier};
use saggar_sandbox::DataDirectory;
use serde::{Deserialize, Serialize};

use crate::bench::Bench;
use crate::case::cases;
use crate::check::race;
use crate::enact::enact;
use crate::fixture::place_attacker;

/// First argument of a worker.
pub const WORKER_MODE: &str = "__probe-worker";
/// Second argument of a process that races against a sandbox's start.
pub(crate) const RACE_MODE: &str = "race";

/// The briefing of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Briefing {
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) data_path: PathBuf,
    pub(crate) directory: PathBuf,
    pub(crate) private: PathBuf,
    pub(crate) canary: String,
    pub(crate) tier: Tier,
    pub(crate) template: Option<TemplateName>,
    pub(crate) capabilities: serde_json::Value,
}

/// Runs cases until the parent closes its end. The error is meant for people.
pub fn serve() -> Result<(), String> {
    let mut arguments = std::env::args_os().skip(2);
    if arguments.next().is_some_and(|mode| mode == RACE_MODE) {
        return arguments
            .next()
            .map_or(Err("no directory to race in".to_owned()), |directory| race(&PathBuf::from(directory)));
    }
    let mut lines = std::io::stdin().lock().lines();
    let first = lines.next().ok_or("no briefing")?.map_err(|error| error.to_string())?;
    let briefing: Briefing =
        serde_json::from_str(&first).map_err(|error| format!("the briefing can't be read: {error}"))?;
    let data = DataDirectory::open(briefing.data_dir.as_deref()).map_err(|problem| problem.message)?;
    let bench = Bench {
        data,
        data_path: briefing.data_path,
        directory: briefing.directory,
        private: briefing.private,
        canary: briefing.canary,
        template: briefing.template,
        is_root: briefing.capabilities["identity"] == "root",
        capabilities: briefing.capabilities,
    };
    place_attacker(&bench.attacker()).map_err(|error| format!("the attacker can't be installed: {error}"))?;
    let all = cases().map_err(|problem| problem.message)?;
    for line in lines {
        let id = line.map_err(|error| error.to_string())?;
        let case = all.iter().find(|case| case.id == id).ok_or_else(|| format!("no case {id}"))?;
        let mut answer = serde_json::to_vec(&enact(&bench, case, briefing.tier)).map_err(|error| error.to_string())?;
        answer.push(b'\n');
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(&answer).and_then(|()| stdout.flush()).map_err(|error| error.to_string())?;
    }
    Ok(())
}
