//! Attempts made inside a sandbox, as data: Python expressions with their expected outcomes.

use serde_json::Value;

use super::{Done, Place};

const PYTHON: &str = "/usr/bin/python3";
const SCRIPT: &str = include_str!("probe.py");

/// The errors of a write that the boundary refuses. Which one depends on the kernel's order of checks.
pub const REFUSED: &str = "EROFS|EACCES|EPERM|EBUSY|EXDEV";

/// Makes the attempts and compares each outcome: "ok", a value, the name of an errno, or several of these separated
/// by `|`.
pub fn check(place: &Place, flags: &[&str], cases: &[(&str, &str)]) {
    let attempts: Vec<&str> = cases.iter().map(|(attempt, _)| *attempt).collect();
    compare(cases, &outcomes(&run(place, flags, &attempts)));
}

/// Several attempts with the same expected outcome.
pub fn check_all(place: &Place, flags: &[&str], attempts: &[&str], outcome: &str) {
    let cases: Vec<(&str, &str)> = attempts.iter().map(|attempt| (*attempt, outcome)).collect();
    check(place, flags, &cases);
}

/// Makes the attempts with `--json`, compares the outcomes, and returns the whole result.
pub fn check_json(place: &Place, flags: &[&str], cases: &[(&str, &str)]) -> Value {
    let flags: Vec<&str> = ["--json"].iter().chain(flags).copied().collect();
    let attempts: Vec<&str> = cases.iter().map(|(attempt, _)| *attempt).collect();
    let result = run(place, &flags, &attempts).json();
    let stdout = result["stdout"].as_str().unwrap_or_else(|| panic!("no text: {result}"));
    compare(cases, &parse(stdout).unwrap_or_else(|| panic!("no outcomes: {result}")));
    result
}

/// The outcome of each attempt.
pub fn attempts(place: &Place, flags: &[&str], attempts: &[&str]) -> Vec<String> {
    outcomes(&run(place, flags, attempts))
}

/// The program that makes the attempts.
pub fn program<'a>(attempts: &[&'a str]) -> Vec<&'a str> {
    [PYTHON, "-I", "-c", SCRIPT].into_iter().chain(attempts.iter().copied()).collect()
}

fn run(place: &Place, flags: &[&str], attempts: &[&str]) -> Done {
    place.run(flags, &program(attempts))
}

fn outcomes(done: &Done) -> Vec<String> {
    parse(&done.stdout).unwrap_or_else(|| panic!("no outcomes: {done:?}"))
}

/// Parses the outcomes that the script prints.
pub fn parse(stdout: &str) -> Option<Vec<String>> {
    serde_json::from_str(stdout.trim_end()).ok()
}

/// Compares all, so that a failure shows every difference at once.
pub fn compare(cases: &[(&str, &str)], outcomes: &[String]) {
    assert_eq!(cases.len(), outcomes.len());
    let wrong: Vec<String> = cases
        .iter()
        .zip(outcomes)
        .filter(|((_, expected), outcome)| {
            *expected != outcome.as_str() && !expected.split('|').any(|choice| choice == *outcome)
        })
        .map(|((attempt, expected), outcome)| format!("{attempt}\n    expected {expected}, got {outcome}"))
        .collect();
    assert!(wrong.is_empty(), "{} of {} attempts came out wrong:\n  {}", wrong.len(), cases.len(), wrong.join("\n  "));
}
