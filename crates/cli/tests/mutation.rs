//! The mutation check: with an enforcement rule switched off, a conformance case must fail. Only in a build that can
//! switch rules off.
#![cfg(feature = "mutation")]

mod harness;

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use harness::Place;
use rustix::process::{Resource, Rlimit, setrlimit};
use saggar_conformance::{Teeth, teeth};
use serde_json::Value;

const ORDINARY: u32 = 12345;
/// Comma-separated rules to try; all if unset.
const CHOSEN: &str = "SAGGAR_MUTATION_RULES";
/// Set in the machine that `make test-vm` boots: it tries the rules that are left to it, and each must show.
const IN_MACHINE: &str = "SAGGAR_MUTATION_IN_MACHINE";
/// Path of the program, if it isn't where it was built.
const PROGRAM: &str = "SAGGAR_MUTATION_PROGRAM";

#[test]
fn every_rule_is_missed_when_it_is_off() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run here: only as root is every rule there to be switched off");
        return;
    }
    // The limits that a sandbox lowers must be high for the difference to show.
    for (resource, most) in [
        (Resource::Rtprio, Some(99)),
        (Resource::Nice, Some(40)),
        (Resource::Memlock, None),
        (Resource::Msgqueue, None),
        (Resource::Sigpending, Some(100_000)),
        (Resource::Core, None),
    ] {
        // Not even root may do this everywhere; then the rule is reported as one that can't be tried here.
        let _ = setrlimit(resource, Rlimit { current: most, maximum: most });
    }
    let chosen = std::env::var(CHOSEN).ok();
    let is_machine = std::env::var_os(IN_MACHINE).is_some();
    let mut all = teeth().expect("the data is read");
    all.retain(|entry| chosen.as_ref().is_none_or(|names| names.split(',').any(|name| name == entry.rule)));
    all.retain(|entry| entry.in_machine || !is_machine);
    assert!(!all.is_empty(), "no rule is called so");
    let range = Prober::as_root();
    let ordinary = Prober::as_ordinary_user();
    for (prober, is_ordinary) in [(&range, false), (&ordinary, true)] {
        let cases: BTreeSet<&String> =
            all.iter().filter(|entry| entry.as_ordinary_user == is_ordinary).flat_map(|entry| &entry.cases).collect();
        let failures = prober.failures(&cases.into_iter().cloned().collect::<Vec<_>>(), &[]);
        assert!(failures.is_empty(), "these fail with nothing off: {failures:?}");
    }
    let mut found = Vec::new();
    for entry in &all {
        let start = Instant::now();
        let bite = bite(if entry.as_ordinary_user { &ordinary } else { &range }, entry);
        println!("{:<32} {bite} ({} ms)", entry.rule, start.elapsed().as_millis());
        found.push((&entry.rule, bite));
    }
    // Processes that were left alive on purpose are removed by the next start.
    assert_eq!(range.failures(&["G03".to_owned()], &[]), []);
    let of = |is_it: fn(&Bite) -> bool| found.iter().filter(|(_, bite)| is_it(bite)).map(|(rule, _)| *rule).collect();
    let alone: Vec<&String> = of(|bite| matches!(bite, Bite::Alone(_)));
    let backed: Vec<&String> = of(|bite| matches!(bite, Bite::Backed(_)));
    let left: Vec<&String> = of(|bite| matches!(bite, Bite::LeftToMachine(_)));
    let excused: Vec<&String> = of(|bite| matches!(bite, Bite::NotHere(_)));
    let toothless: Vec<&String> = of(|bite| matches!(bite, Bite::None));
    println!(
        "{} rules: {} alone, {} with back-ups, {} left to make test-vm, {} not here, {} unnoticed",
        all.len(),
        alone.len(),
        backed.len(),
        left.len(),
        excused.len(),
        toothless.len()
    );
    assert!(toothless.is_empty(), "no case fails when these are off: {toothless:?}");
    assert!(!is_machine || alone.len() + backed.len() == all.len(), "left to this machine, and not shown: {left:?}");
}

/// The effect of switching a rule off.
enum Bite {
    /// A case failed.
    Alone(String),
    /// A case failed once the rules that back it were off too.
    Backed(String),
    /// This host can't show it; the emulated machine can.
    LeftToMachine(String),
    /// This host can't show it, or nothing can.
    NotHere(String),
    None,
}

impl std::fmt::Display for Bite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Alone(what) => write!(f, "alone: {what}"),
            Self::Backed(what) => write!(f, "with {what}"),
            Self::LeftToMachine(what) => write!(f, "left to make test-vm: {what}"),
            Self::NotHere(why) => write!(f, "not here: {why}"),
            Self::None => write!(f, "NO CASE FAILS"),
        }
    }
}

fn bite(prober: &Prober, entry: &Teeth) -> Bite {
    if let Some(why) = &entry.untested {
        return Bite::NotHere(why.clone());
    }
    if let Some(needed) = entry.needs.as_deref().filter(|needed| !is_there(needed)) {
        let why = format!("no {needed}");
        return if entry.in_machine { Bite::LeftToMachine(why) } else { Bite::NotHere(why) };
    }
    let failures = prober.failures(&entry.cases, &[&entry.rule]);
    if let Some((case, reason)) = failures.first() {
        return Bite::Alone(format!("{case}: {reason}"));
    }
    if entry.backups.is_empty() {
        return Bite::None;
    }
    let backups: Vec<&str> = entry.backups.iter().map(String::as_str).collect();
    let without = prober.failures(&entry.cases, &backups);
    let both: Vec<&str> = backups.iter().copied().chain([entry.rule.as_str()]).collect();
    let failures = prober.failures(&entry.cases, &both);
    match failures.iter().find(|failure| !without.contains(failure)) {
        Some((case, reason)) => Bite::Backed(format!("{}: {case}: {reason}", backups.join(" and "))),
        None => Bite::None,
    }
}

fn is_there(needed: &str) -> bool {
    match needed {
        "cgroup v1" => Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists(),
        // The name in /proc/self/limits, and the value that must be exceeded inside.
        limit if limit.starts_with("Max ") => {
            let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
            let (name, least) = limit.split_once(" above ").expect("a name and a number");
            let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            let most = line.split_whitespace().nth(1).unwrap_or_default();
            most == "unlimited" || most.parse::<u64>().unwrap_or(0) > least.parse().expect("a number")
        }
        path => Path::new(path).exists(),
    }
}

/// Runs probes as a user, in its own place.
struct Prober {
    _place: Place,
    program: PathBuf,
    user: Option<u32>,
    data: PathBuf,
    temporary: PathBuf,
}

impl Prober {
    fn as_root() -> Self {
        Self::new(None)
    }

    fn as_ordinary_user() -> Self {
        Self::new(Some(ORDINARY))
    }

    fn new(user: Option<u32>) -> Self {
        let place = Place::new();
        let program = place.path("saggar");
        let [data, temporary] = ["data", "tmp"].map(|name| place.path(name));
        std::fs::create_dir_all(&temporary).expect("ours");
        std::fs::create_dir_all(&data).expect("ours");
        let built = std::env::var_os(PROGRAM).unwrap_or_else(|| env!("CARGO_BIN_EXE_saggar").into());
        harness::copy_program(&built, &program);
        if let Some(user) = user {
            for path in [&place.path(""), &data, &temporary] {
                lchown(path, Some(user), Some(user)).expect("we are root");
            }
            std::fs::set_permissions(place.path(""), std::fs::Permissions::from_mode(0o755)).expect("ours");
        }
        Self { _place: place, program, user, data, temporary }
    }

    /// The cases that fail with these rules off, each with a reason.
    fn failures(&self, cases: &[String], off: &[&str]) -> Vec<(String, String)> {
        if cases.is_empty() {
            return Vec::new();
        }
        let mut command = match self.user {
            Some(user) => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", &user.to_string(), "--regid", &user.to_string(), "--clear-groups", "--"]);
                command.arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command.args(["probe", "--json", "--data-dir"]).arg(&self.data);
        for case in cases {
            command.args(["--case", case]);
        }
        command.env("TMPDIR", &self.temporary).env("SAGGAR_MUTATE", off.join(","));
        let output = command.output().expect("the probe starts");
        let results: Vec<Value> = String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(|line| serde_json::from_str(line).expect("one object a line"))
            .collect();
        assert!(results.len() >= cases.len(), "{}", String::from_utf8_lossy(&output.stderr));
        let failed = results.iter().filter(|result| result["verdict"] == "fail");
        let told = failed.flat_map(|result| {
            let id = result["id"].as_str().unwrap_or_default().to_owned();
            let reasons = result["reasons"].as_array().cloned().unwrap_or_default();
            reasons.into_iter().map(move |reason| (id.clone(), reason.as_str().unwrap_or_default().to_owned()))
        });
        let mut told: Vec<(String, String)> = told.filter(|(id, _)| cases.contains(id)).collect();
        // A sandbox that doesn't start shows nothing about its boundary: another rule, such as the self-test of a managed network, has
        // noticed. An observation inside is better evidence than a missing word.
        let silent: BTreeSet<String> =
            told.iter().filter(|(_, reason)| reason.contains("setup_failed")).map(|(id, _)| id.clone()).collect();
        told.retain(|(id, _)| off.is_empty() || !silent.contains(id));
        told.sort_by_key(|(_, reason)| !reason.contains("observed"));
        told
    }
}
