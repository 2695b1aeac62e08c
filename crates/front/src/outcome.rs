//! What `saggar run` reports at the end: an exit status, a JSON object, or a few lines of text.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use rustix::event::Timespec;
use saggar_domain::{Code, Denial, DenialCode, ExecResult, ExecStatus, Problem};

use crate::streams::{copy, write_all};

/// Exit status of saggar's own failures: invalid arguments, or a sandbox that could not be created.
pub const OUR_FAILURE: u8 = 125;
/// How long to wait for a stalled reader of the notes, such as a stopped terminal.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
pub const TIMED_OUT: u8 = 124;
pub const REFUSED: u8 = 126;
pub const NO_SUCH_PROGRAM: u8 = 127;
pub const CANCELLED: u8 = 130;
pub const OUT_OF_MEMORY: u8 = 137;
pub const SIGNAL_BASE: u8 = 128;

pub(crate) fn exit_status(result: &ExecResult) -> u8 {
    let is_lost = result.error.as_ref().is_some_and(|error| error.code == Code::ChangesLost);
    match result.status {
        ExecStatus::Exited | ExecStatus::Signaled if is_lost => OUR_FAILURE,
        ExecStatus::Exited => result.exit_code.unwrap_or(OUR_FAILURE),
        ExecStatus::Signaled => result.signal.map_or(OUR_FAILURE, |signal| SIGNAL_BASE.saturating_add(signal)),
        ExecStatus::TimedOut => TIMED_OUT,
        ExecStatus::Cancelled => CANCELLED,
        ExecStatus::OutOfMemory => OUT_OF_MEMORY,
        ExecStatus::Refused => REFUSED,
        ExecStatus::SetupFailed if result.error.as_ref().is_some_and(|error| error.code == Code::ProgramNotFound) => {
            NO_SUCH_PROGRAM
        }
        ExecStatus::SetupFailed => OUR_FAILURE,
    }
}

/// Whether the program was started.
pub(crate) fn has_run(status: ExecStatus) -> bool {
    !matches!(status, ExecStatus::Refused | ExecStatus::SetupFailed)
}

pub(crate) fn print_json(result: &ExecResult) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(result)?;
    line.push(b'\n');
    write_all(std::io::stdout().as_fd(), &line, None)
}

/// Prints notes beside the program's own output; silent if all went well. Limits that this host doesn't enforce are
/// mentioned only when `is_news`; the result, the events and `doctor` always list them.
pub(crate) fn print_notes(result: &ExecResult, is_news: impl FnOnce(&str) -> bool) {
    let mut notes = String::new();
    if let Some(error) = &result.error {
        notes.push_str(&problem_text(error));
    }
    // A program that succeeded needed no network; many programs only look for one.
    let has_succeeded = result.exit_code == Some(0);
    let is_told = |denial: &&Denial| denial.code != DenialCode::NetworkRefused || !has_succeeded;
    for denial in result.denials.iter().filter(|_| result.error.is_none()).filter(is_told) {
        notes.push_str(&format!("saggar: {} ({})\n", denial.message, denial.rule));
    }
    if let Some(count) = result.changes_kept.filter(|count| *count > 0) {
        let (noun, them) = if count == 1 { ("change", "it") } else { ("changes", "them") };
        notes.push_str(&format!(
            "saggar: {count} {noun} kept; see {them} with: saggar changes list {}\n",
            result.sandbox_id
        ));
    }
    if !result.unenforced.is_empty() {
        let names: Vec<&str> = result.unenforced.iter().map(|text| text.split(':').next().unwrap_or(text)).collect();
        let note = format!(
            "saggar: default limits not enforced here: {} (shown once; `saggar doctor` explains why, --strict refuses to start)\n",
            names.join(", ")
        );
        if is_news(&note) {
            notes.push_str(&note);
        }
    }
    // Colours that a program left switched on must not hide the notes.
    let reset =
        if has_run(result.status) && !notes.is_empty() && std::io::stderr().is_terminal() { "\x1b[0m" } else { "" };
    let text = format!("{reset}{}", visible(&notes));
    if let Ok(stderr) = copy(std::io::stderr().as_fd()) {
        // If this can't be printed or read, there is nothing left to do; the exit status reports the result too.
        let _ = write_all(stderr.as_fd(), text.as_bytes(), Some(PATIENCE));
    }
}

pub fn problem_text(problem: &Problem) -> String {
    let help = if problem.help.is_empty() { String::new() } else { format!("  help: {}\n", problem.help) };
    visible(&format!("error: {} ({})\n{help}", problem.message, problem.code.as_str()))
}

/// Messages quote untrusted text. Characters that would act on a terminal or disguise text are escaped.
pub fn visible(text: &str) -> String {
    let is_hazard = |character: char| {
        (character.is_control() && character != '\n')
            || matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{61c}')
    };
    text.chars()
        .map(
            |character| {
                if is_hazard(character) { character.escape_unicode().to_string() } else { character.to_string() }
            },
        )
        .collect()
}
