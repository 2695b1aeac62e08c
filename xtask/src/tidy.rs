//! Tidy: checks the project's rules that neither rustc nor clippy can check, on every file of the repository.
//!
//! `workspace` reads everything once; the rules are pure functions from that to findings, so each is tested on a few
//! lines in memory. A rule belongs here only if it is cheap, has no false alarms, and says what to do instead.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use finding::{Finding, Severity};
use source::Source;
use workspace::Workspace;

mod finding;
mod layers;
mod names;
mod prose;
mod reexports;
mod rust;
mod source;
#[cfg(test)]
mod tests;
mod workspace;

/// Checks the repository that this program was built from, and prints the findings.
pub fn run() -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has no parent directory")?;
    let workspace = Workspace::read(root).context("reading the workspace")?;
    let findings = check(&workspace);
    for finding in &findings {
        eprintln!("{finding}");
    }
    let errors = findings.iter().filter(|finding| finding.severity() == Severity::Error).count();
    if errors == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("tidy: {errors} errors in {} files", workspace.files.len());
    Ok(ExitCode::FAILURE)
}

/// Applies every rule to every file. Sorted by path and line.
fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = layers::check(workspace);
    for file in &workspace.files {
        findings.extend(names::check(file));
        if file.is_rust() {
            let source = Source::parse(&file.text);
            findings.extend(rust::check(workspace, file, &source));
            findings.extend(reexports::check(workspace, file, &source));
            findings.extend(prose::check_todos(file, source.lines.iter().map(|line| line.comment.as_str())));
        } else {
            findings.extend(prose::check_todos(file, file.text.lines()));
        }
        findings.extend(prose::check_machine_paths(file, &workspace.machine_paths));
    }
    findings.sort();
    findings
}
