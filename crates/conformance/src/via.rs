//! The attempts inside of other runtimes: the same attacker and the same data, through another program's command line.
//!
//! Only what the attacker sees is judged. Checks on the host, events and limits are ours and say nothing about others, and a case
//! whose sandbox is set up by our spec (a mode, a limit, protected paths) is left out.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use saggar_domain::{Code, Draft, NetworkMode, Problem, Tier, User};

use crate::case::{Case, cases, select};
use crate::enact::{is_done, members};
use crate::fixture::{PrivateDirectory, Workspace, place_attacker};
use crate::report::{CaseResult, Verdict};

/// Another runtime's command line.
#[derive(Clone, Debug)]
pub struct Via {
    /// Words; `{}` stands for the attempt, `{workspace}` for a fixture, `{probe}` for the directory to be seen as /probe.
    pub command: String,
    /// Ids of cases; none means all that apply.
    pub cases: Vec<String>,
}

/// Probes another runtime.
pub fn probe_via(via: &Via, told: &mut dyn FnMut(&CaseResult)) -> Result<Vec<CaseResult>, Problem> {
    if !via.command.split_whitespace().any(|word| word == "{}") {
        return Err(Problem::new(
            Code::InvalidValue,
            format!("the command {:?} has no place for the attempt", via.command),
            "write {} as a word where the program and its arguments belong",
        ));
    }
    let chosen = select(cases()?, &via.cases)?;
    let failed = |error: std::io::Error| {
        Problem::new(Code::SetupFailed, format!("making a place for the probe failed: {error}"), "check TMPDIR")
    };
    let private = PrivateDirectory::new().map_err(failed)?;
    let probe = private.path().join("probe");
    place_attacker(&probe).map_err(failed)?;
    let mut results = Vec::new();
    for case in chosen.iter().filter(|case| is_portable(case)) {
        let workspace = private.path().join(format!("workspace-{}", case.id));
        case.sandbox.workspace.unwrap_or(Workspace::Empty).make(&workspace).map_err(failed)?;
        let result = enact(via, case, &probe, &workspace);
        told(&result);
        results.push(result);
    }
    Ok(results)
}

/// Whether a case asks nothing of the runtime that only our spec can say.
fn is_portable(case: &Case) -> bool {
    let plain = Draft { network: case.sandbox.draft.network, ..Draft::default() };
    let is_plain = case.sandbox.draft == plain && plain.network != Some(NetworkMode::Host);
    let is_known = case.args.iter().all(|text| !text.contains('{'));
    case.attempt.is_some() && is_plain && is_known && case.documented.is_none() && case.users.contains(&User::User)
}

fn enact(via: &Via, case: &Case, probe: &Path, workspace: &Path) -> CaseResult {
    let start = Instant::now();
    let has_mount = via.command.contains("{probe}");
    let attacker = if has_mount {
        "/probe/saggar-attacker".to_owned()
    } else {
        probe.join("saggar-attacker").display().to_string()
    };
    let mut words: Vec<String> = vec!["timeout".into(), "-s".into(), "KILL".into(), "20".into()];
    for word in via.command.split_whitespace() {
        if word == "{}" {
            words.extend([attacker.clone(), case.attempt.clone().unwrap_or_default()]);
            words.extend(case.args.iter().cloned());
        } else {
            words.push(
                word.replace("{workspace}", &workspace.display().to_string())
                    .replace("{probe}", &probe.display().to_string()),
            );
        }
    }
    let output = Command::new(&words[0])
        .args(&words[1..])
        .current_dir(workspace)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .output();
    let mut reasons = Vec::new();
    let mut observed = std::collections::BTreeMap::new();
    let mut expected = std::collections::BTreeMap::new();
    match (output, case.expect.get(&Tier::Namespace)) {
        (Ok(output), Some(expectation)) => {
            for observation in members(&output.stdout) {
                let accepted = expectation.of(&observation, true);
                if !accepted.accepts(&observation) {
                    reasons.push(format!("{}: observed {observation}, expected {accepted}", observation.member));
                }
                expected.insert(observation.member.clone(), accepted.to_string());
                observed.insert(observation.member.clone(), observation.to_string());
            }
            if !is_done(&output.stdout) {
                let said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
                reasons.push(format!("the attempt did not finish ({}): {said}", output.status));
            }
        }
        (Err(error), _) => reasons.push(format!("the command can't be started: {error}")),
        (Ok(_), None) => reasons.push("the case expects nothing".to_owned()),
    }
    CaseResult {
        id: case.id.clone(),
        tier: Tier::Namespace,
        verdict: if reasons.is_empty() { Verdict::Pass } else { Verdict::Fail },
        observed,
        expected,
        ms: start.elapsed().as_millis() as u64,
        title: case.title.clone(),
        why: case.why.clone(),
        documented: None,
        reasons,
    }
}
