//! `saggar doctor`: reports this host's capabilities, as a table or as JSON.

use std::io::Write;
use std::process::ExitCode;

use saggar_domain::{Capabilities, Capability};
use saggar_sandbox::{DataDirectory, examine, reap};

use crate::args::DoctorArguments;
use crate::outcome::{OUR_FAILURE, problem_text};

const NOT_READY: u8 = 1;

/// Examines the host, prints the report, and returns whether the default tier is ready.
pub fn main(arguments: &DoctorArguments) -> ExitCode {
    let data = match DataDirectory::open(arguments.data_dir.as_deref()) {
        Ok(data) => data,
        Err(problem) => {
            eprint!("{}", problem_text(&problem));
            return ExitCode::from(OUR_FAILURE);
        }
    };
    let capabilities = examine(&data, &reap(&data));
    let text = if arguments.json {
        serde_json::to_string(&capabilities).map(|line| line + "\n")
    } else {
        Ok(table(&capabilities))
    };
    let printed = text.map_err(std::io::Error::from).and_then(|text| std::io::stdout().write_all(text.as_bytes()));
    match printed {
        Ok(()) if capabilities.is_ready => ExitCode::SUCCESS,
        Ok(()) => ExitCode::from(NOT_READY),
        Err(_) => ExitCode::from(OUR_FAILURE),
    }
}

fn table(capabilities: &Capabilities) -> String {
    let ready = if capabilities.is_ready { "ready" } else { "NOT READY" };
    let mut text = format!(
        "saggar {} on {} as {}: the default tier (namespace) is {ready}\n",
        capabilities.version, capabilities.host, capabilities.identity
    );
    for (title, rows) in [
        ("tiers", &capabilities.tiers),
        ("filesystem", &capabilities.filesystem),
        ("network", &capabilities.network),
        ("limits", &capabilities.limits),
        ("mechanisms", &capabilities.mechanisms),
    ] {
        text.push_str(&format!("\n{title}\n"));
        rows.iter().for_each(|row| text.push_str(&line(row)));
    }
    text.push_str("\nleft behind by a process that was killed\n");
    match capabilities.reaped.as_slice() {
        [] => text.push_str("  nothing\n"),
        reaped => reaped.iter().for_each(|entry| text.push_str(&format!("  {entry}\n"))),
    }
    text
}

fn line(row: &Capability) -> String {
    let mut text = format!("  {:<16} {:<13} {}", row.name, row.status.as_str(), row.reason);
    if !row.mechanism.is_empty() {
        text.push_str(&format!("\n  {:<30} by {}", "", row.mechanism));
    }
    if !row.remedy.is_empty() {
        text.push_str(&format!("\n  {:<30} remedy: {}", "", row.remedy));
    }
    text.push('\n');
    text
}
