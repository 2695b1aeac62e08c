//! Attempts inside other runtimes: the same attacker and the same data, through another program's command line.
//!
//! Only what the attacker sees is judged, and only as far as it concerns a boundary: another runtime may refuse with
//! another error, and may refuse what we allow. Checks on the host, events and limits are specific to Saggar. A case
//! that needs them, or a sandbox that only Saggar's spec can express, is reported as not applicable, with the reason.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use saggar_domain::{Code, Draft, NetworkMode, Problem, Tier, User};

use crate::case::{Case, cases, select};
use crate::enact::{is_done, members};
use crate::expect::{AttemptOutcome, Expectation, Observation, Setting};
use crate::fixture::{PrivateDirectory, Workspace, place_attacker, random_name};
use crate::outside::{CANARY_NAMES, Outside, Secrets};
use crate::report::{CaseResult, Verdict};

/// Seconds that another runtime has for one attempt, its own start included.
const PATIENCE_S: u32 = 40;

#[derive(Clone, Debug)]
pub struct Via {
    /// Words; `{}` stands for the attempt, `{workspace}` for a fixture, `{probe}` for the directory to mount at /probe.
    pub command: String,
    /// Ids of cases; empty means all.
    pub cases: Vec<String>,
}

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
        Problem::new(Code::SetupFailed, format!("creating the probe's directory failed: {error}"), "check TMPDIR")
    };
    let private = PrivateDirectory::new().map_err(failed)?;
    let probe = private.path().join("probe");
    place_attacker(&probe).map_err(failed)?;
    let canary = format!("canary-{}", random_name().map_err(failed)?);
    let mut results = Vec::new();
    for case in &chosen {
        let start = Instant::now();
        let mut seen = match obstacle(case) {
            Some(why) => Seen { verdict: Verdict::NotApplicable, reasons: vec![why.to_owned()], ..Seen::default() },
            None => {
                let workspace = private.path().join(format!("workspace-{}", case.id));
                case.sandbox.workspace.unwrap_or(Workspace::Empty).make(&workspace).map_err(failed)?;
                let outside = Outside::new(case.leaky).map_err(failed)?;
                let secrets = Secrets { private: private.path(), data: private.path(), canary: &canary };
                let arguments = case.args.iter().map(|text| outside.filled_in(&secrets, text)).collect();
                Round { via, case, probe: &probe, workspace: &workspace, canary: &canary, arguments }.enact()
            }
        };
        if seen.verdict == Verdict::Pass && !seen.reasons.is_empty() {
            seen.verdict = Verdict::Fail;
        }
        let result = CaseResult {
            id: case.id.clone(),
            tier: Tier::Namespace,
            verdict: seen.verdict,
            observed: seen.observed,
            expected: seen.expected,
            ms: start.elapsed().as_millis() as u64,
            title: case.title.clone(),
            why: case.why.clone(),
            documented: None,
            reasons: seen.reasons,
        };
        told(&result);
        results.push(result);
    }
    Ok(results)
}

/// Why a case says nothing about another runtime; `None` if it does.
pub(crate) fn obstacle(case: &Case) -> Option<&str> {
    let draft = &case.sandbox.draft;
    let plain = Draft { network: draft.network, ..Draft::default() };
    let asks_for_ours = case.args.iter().any(|text| text.contains("{data}") || text.contains("{token}"));
    let Some(expectation) = case.expect.get(&Tier::Namespace).filter(|_| case.attempt.is_some()) else {
        return Some("not portable: it checks how Saggar itself starts, ends or reports");
    };
    if let Some(why) = &case.only_here {
        Some(why)
    } else if draft.network == Some(NetworkMode::Host) {
        Some("not portable: it shares the host's network on purpose")
    } else if draft.network == Some(NetworkMode::Proxied) {
        Some("not portable: it needs a managed network, with Saggar's rules")
    } else if *draft != plain {
        Some(
            "not portable: its sandbox has a limit, a mode, protected paths or variables that only Saggar's spec can express",
        )
    } else if asks_for_ours {
        Some("not portable: it looks for directories of Saggar's own")
    } else if !case.users.contains(&User::User) {
        Some("not portable: it is tried as root of the sandbox")
    } else if !can_break(expectation, case.check.is_some()) {
        Some("not portable: the attempt is ordinary work, and its result is checked on the host")
    } else {
        None
    }
}

/// Whether any observation of the attacker would be a breach.
fn can_break(expectation: &Expectation, is_checked: bool) -> bool {
    let is_strict = |accepted: &crate::expect::Accepted| !accepted.accepts_kind(AttemptOutcome::Allowed);
    is_strict(&expectation.default) || (!is_checked && expectation.members.values().any(is_strict))
}

/// Whether something worked that must not. Another error, or a stricter refusal, is no breach.
fn is_breach(expectation: &Expectation, observation: &Observation) -> bool {
    match observation.outcome {
        AttemptOutcome::Allowed | AttemptOutcome::Broken => {
            !expectation.of(observation, Setting::USUAL).accepts_kind(observation.outcome)
        }
        AttemptOutcome::Refused | AttemptOutcome::Absent | AttemptOutcome::Held | AttemptOutcome::Killed => false,
    }
}

struct Seen {
    verdict: Verdict,
    observed: BTreeMap<String, String>,
    expected: BTreeMap<String, String>,
    reasons: Vec<String>,
}

impl Default for Seen {
    fn default() -> Self {
        Self { verdict: Verdict::Pass, observed: BTreeMap::new(), expected: BTreeMap::new(), reasons: Vec::new() }
    }
}

/// One case in another runtime.
struct Round<'a> {
    via: &'a Via,
    case: &'a Case,
    probe: &'a Path,
    workspace: &'a Path,
    canary: &'a str,
    arguments: Vec<String>,
}

impl Round<'_> {
    fn enact(&self) -> Seen {
        let mut seen = Seen::default();
        let words = self.words();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(self.workspace).stdin(Stdio::null()).process_group(0);
        for name in CANARY_NAMES {
            command.env(name, self.canary);
        }
        let output = match command.output() {
            Ok(output) => output,
            Err(error) => {
                seen.reasons.push(format!("the command can't be started: {error}"));
                return seen;
            }
        };
        let Some(expectation) = self.case.expect.get(&Tier::Namespace) else { return seen };
        for observation in members(&output.stdout) {
            let accepted = expectation.of(&observation, Setting::USUAL);
            if is_breach(expectation, &observation) {
                seen.reasons.push(format!("{}: observed {observation}, expected {accepted}", observation.member));
            }
            seen.expected.insert(observation.member.clone(), accepted.to_string());
            seen.observed.insert(observation.member.clone(), observation.to_string());
        }
        if !is_done(&output.stdout) {
            let said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
            seen.reasons.push(format!("the attempt did not finish ({}): {said}", output.status));
        }
        seen
    }

    fn words(&self) -> Vec<String> {
        let attacker = if self.via.command.contains("{probe}") {
            "/probe/saggar-attacker".to_owned()
        } else {
            self.probe.join("saggar-attacker").display().to_string()
        };
        let mut words: Vec<String> = vec!["timeout".into(), "-s".into(), "KILL".into(), PATIENCE_S.to_string()];
        for word in self.via.command.split_whitespace() {
            if word == "{}" {
                words.extend([attacker.clone(), self.case.attempt.clone().unwrap_or_default()]);
                words.extend(self.arguments.iter().cloned());
            } else {
                let word = word.replace("{workspace}", &self.workspace.display().to_string());
                words.push(word.replace("{probe}", &self.probe.display().to_string()));
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The data behind docs/comparison.md: every peer has exactly one stance on every portable case.
    #[test]
    fn every_peer_has_one_stance_on_every_portable_case() {
        let peers: toml::Table = toml::from_str(include_str!("../../../conformance/peers.toml")).unwrap();
        let all = cases().unwrap();
        let portable: BTreeSet<&str> =
            all.iter().filter(|case| obstacle(case).is_none()).map(|case| case.id.as_str()).collect();
        for peer in peers["peer"].as_array().unwrap() {
            let (name, mut named) = (peer["name"].as_str().unwrap(), BTreeSet::new());
            for stance in peer["stance"].as_array().unwrap() {
                assert!(stance.get("source").is_some() && stance.get("why").is_some(), "{name}: {stance:?}");
                for id in stance["cases"].as_array().unwrap().iter().filter_map(toml::Value::as_str) {
                    assert!(portable.contains(id), "{name}: {id} is not a portable case");
                    let is_new = stance.get("members").is_some() || named.insert(id);
                    assert!(is_new, "{name}: {id} has two stances");
                }
            }
            let missing: Vec<_> = portable.difference(&named).collect();
            assert!(missing.is_empty(), "{name}: no stance on {missing:?}");
        }
    }

    #[test]
    fn another_error_or_a_stricter_answer_is_no_breach() {
        let expectation: Expectation =
            toml::from_str("default = \"refused EPERM\"\nmembers = { work = \"allowed\" }").unwrap();
        let seen = |member: &str, outcome: AttemptOutcome| -> bool {
            let observation =
                Observation { member: member.to_owned(), outcome, ..Observation::examined("", true, "EACCES") };
            is_breach(&expectation, &observation)
        };
        assert!(seen("mount", AttemptOutcome::Allowed) && seen("mount", AttemptOutcome::Broken));
        assert!(
            !seen("mount", AttemptOutcome::Refused)
                && !seen("mount", AttemptOutcome::Absent)
                && !seen("mount", AttemptOutcome::Killed)
        );
        assert!(!seen("work", AttemptOutcome::Allowed) && !seen("work", AttemptOutcome::Refused));
    }
}
