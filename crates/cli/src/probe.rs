//! `saggar probe`: runs the conformance suite on this host and reports as text, JSON lines or a page.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use saggar_conformance::{CaseResult, Options, Summary, Verdict, Via, markdown, probe, probe_via};
use saggar_domain::{Code, Problem, Tier};

use crate::args::ProbeArguments;
use crate::outcome::{OUR_FAILURE, problem_text};

const SOMETHING_FAILED: u8 = 1;
/// Number of reasons shown for a failing case; `--json` and `--report` have all of them.
const REASONS_SHOWN: usize = 8;

/// Runs the probe, prints the results, and returns whether every case held.
pub(crate) fn main(arguments: &ProbeArguments) -> ExitCode {
    match run(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(SOMETHING_FAILED),
        Err(problem) => {
            eprint!("{}", problem_text(&problem));
            ExitCode::from(OUR_FAILURE)
        }
    }
}

fn run(arguments: &ProbeArguments) -> Result<bool, Problem> {
    let mut lost = None;
    let mut tell = |result: &CaseResult| {
        if arguments.json {
            let line = serde_json::to_string(result).map_err(std::io::Error::from);
            let written = line.and_then(|line| writeln!(std::io::stdout().lock(), "{line}"));
            lost = lost.take().or(written.err());
        }
    };
    let results = if let Some(command) = &arguments.via {
        if rustix::process::geteuid().is_root() && !arguments.as_root {
            return Err(Problem::new(
                Code::InvalidValue,
                "with --via as root, attempts that the other runtime doesn't block run as root on this host",
                "run it as an ordinary user; or, on a disposable host, add --as-root",
            ));
        }
        let via = Via { command: command.clone(), cases: arguments.cases.clone() };
        let results = probe_via(&via, &mut tell)?;
        if !arguments.json {
            print!("{}", told(&results, &format!("probed through: {command}\n"), Subject::Another));
        }
        results
    } else {
        let options = Options {
            tier: arguments.tier.unwrap_or(Tier::Namespace),
            cases: arguments.cases.clone(),
            data_dir: arguments.data_dir.clone(),
            template: arguments.template.clone(),
        };
        let summary = probe(&options, &mut tell)?;
        if let Some(path) = &arguments.report {
            write_report(path, &summary)?;
        }
        if !arguments.json {
            print!("{}", told(&summary.results, &heading(&summary), Subject::Saggar));
        }
        summary.results
    };
    match lost {
        Some(error) => Err(Problem::new(
            Code::Stream,
            format!("writing results failed: {}", error.kind()),
            "check where stdout goes",
        )),
        None => Ok(results.iter().all(|result| result.verdict != Verdict::Fail)),
    }
}

fn heading(summary: &Summary) -> String {
    let host = &summary.host;
    format!(
        "saggar {} on {} as {}: {} cases with {} members in {:.1} s\n",
        host.version,
        host.host,
        host.identity,
        summary.results.len(),
        summary.members(),
        summary.elapsed_ms as f64 / 1000.0
    )
}

/// The runtime that is probed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Saggar,
    /// Another runtime. Its makers' claims decide whether an escape matters, and half of the cases say nothing about
    /// it.
    Another,
}

/// Failures first, with their consequences; then cases that don't apply; then documented gaps; then the counts.
fn told(results: &[CaseResult], heading: &str, subject: Subject) -> String {
    let mut text = heading.to_owned();
    let of = |verdict: Verdict| results.iter().filter(move |result| result.verdict == verdict);
    for result in of(Verdict::Fail) {
        text.push_str(&format!("\nFAIL {} {}\n  why it matters: {}\n", result.id, result.title, result.why));
        for reason in result.reasons.iter().take(REASONS_SHOWN) {
            text.push_str(&format!("  - {}\n", reason.escape_debug()));
        }
        if result.reasons.len() > REASONS_SHOWN {
            text.push_str(&format!("  - and {} more: see --json or --report\n", result.reasons.len() - REASONS_SHOWN));
        }
        if subject == Subject::Another {
            continue;
        }
        text.push_str(&format!("  remedy: look closer with `saggar probe --case {} --json`; if saggar is at fault, report it privately as THREAT_MODEL.md says\n", result.id));
    }
    for result in of(Verdict::NotApplicable).filter(|_| subject == Subject::Saggar) {
        text.push_str(&format!("\nnot applicable {} {}\n", result.id, result.title));
        result.reasons.iter().for_each(|reason| text.push_str(&format!("  {reason}\n")));
    }
    for result in of(Verdict::Documented) {
        let page = result.documented.as_deref().unwrap_or("THREAT_MODEL.md");
        text.push_str(&format!("\ndocumented {} {}\n  not stopped; documented in {page}\n", result.id, result.title));
    }
    let count = |verdict| of(verdict).count();
    let (pass, fail, not) = (count(Verdict::Pass), count(Verdict::Fail), count(Verdict::NotApplicable));
    let documented = match count(Verdict::Documented) {
        0 => String::new(),
        gaps => format!("{gaps} documented as not stopped, "),
    };
    text.push_str(&format!("\n{pass} passed, {documented}{fail} failed, {not} not applicable\n"));
    if subject == Subject::Another && not > 0 {
        text.push_str("  help: --json shows why a case does not apply to another runtime; conformance/peers.toml lists what some runtimes claim\n");
    }
    text
}

/// Writes Markdown or JSON, depending on the file's extension.
fn write_report(path: &Path, summary: &Summary) -> Result<(), Problem> {
    let fail = |why: String, help: &str| {
        Problem::new(Code::Stream, format!("the report {path:?} can't be written: {why}"), help)
    };
    let bytes = match path.extension().and_then(|extension| extension.to_str()) {
        Some("md") => markdown(summary).into_bytes(),
        Some("json") => serde_json::to_vec_pretty(summary).map_err(|error| fail(error.to_string(), "report this"))?,
        _ => {
            return Err(fail(
                "its extension is neither .md nor .json".to_owned(),
                "give the file the extension .md or .json",
            ));
        }
    };
    std::fs::write(path, bytes)
        .map_err(|error| fail(error.kind().to_string(), "name a file in a directory that exists"))
}
