//! Rules for Rust source: where `unsafe` is allowed, what an index file may contain, the length of a file, and its
//! header.

use super::finding::{Finding, Rule};
use super::layers::{self, UnsafeCode};
use super::source::Source;
use super::workspace::{TextFile, Workspace};

/// A longer file must have a second purpose.
const LINES_MAX: usize = 800;
/// A longer file probably has one.
const LINES_SUGGESTED: usize = 500;

const FORBID: &str = "#![forbid(unsafe_code)]";

/// All findings in one Rust file.
pub fn check(workspace: &Workspace, file: &TextFile, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !may_be_unsafe(workspace, file) {
        findings.extend(check_unsafe(file, source));
        findings.extend(check_forbid(workspace, file, source));
    }
    findings.extend(check_index(file, source));
    findings.extend(check_length(file, source));
    findings.extend(check_header(file));
    findings.extend(check_discards(file, source));
    findings
}

fn may_be_unsafe(workspace: &Workspace, file: &TextFile) -> bool {
    // An attacker may also be a program or a folder inside the conformance crate.
    let is_attacker = file.path.split(['/', '.']).any(|name| name == "attacker");
    let package = workspace.crate_of(file).map(|member| member.package.as_str());
    is_attacker || package.is_some_and(|package| layers::unsafe_code(package) == UnsafeCode::Allowed)
}

fn check_unsafe(file: &TextFile, source: &Source) -> Vec<Finding> {
    let unsafe_lines = source.numbered().filter(|(_, line)| has_word(&line.code, "unsafe"));
    unsafe_lines
        .map(|(number, _)| Finding {
            path: file.path.clone(),
            line: number,
            rule: Rule::Unsafe,
            what: "`unsafe` outside of the crates that may use it".into(),
            help: "use rustix or std; if there is no safe call, wrap it in jail, guest or sandbox and call that".into(),
        })
        .collect()
}

fn check_forbid(workspace: &Workspace, file: &TextFile, source: &Source) -> Option<Finding> {
    let is_root = workspace.crates.iter().any(|member| member.roots.contains(&file.path));
    if !is_root || source.lines.iter().any(|line| line.code.trim() == FORBID) {
        return None;
    }
    Some(Finding {
        path: file.path.clone(),
        line: 1,
        rule: Rule::ForbidMissing,
        what: "a crate root without a promise to hold no unsafe code".into(),
        help: format!("add {FORBID} below the header"),
    })
}

fn check_index(file: &TextFile, source: &Source) -> Vec<Finding> {
    if !matches!(file.name(), "lib.rs" | "mod.rs") || file.is_under("tests") {
        return Vec::new();
    }
    let functions = source.numbered().filter(|(_, line)| !line.is_test && has_function(&line.code));
    functions
        .map(|(number, _)| Finding {
            path: file.path.clone(),
            line: number,
            rule: Rule::LogicInIndex,
            what: format!("a function in {}, which holds only docs, `mod` and `pub use`", file.name()),
            help: "move it to a file named for what it does".into(),
        })
        .collect()
}

fn check_length(file: &TextFile, source: &Source) -> Option<Finding> {
    // Tests and tables are looked up, not read from top to bottom.
    let may_be_long =
        matches!(file.name(), "tests.rs" | "table.rs") || file.is_under("tests") || file.is_under("tables");
    let length = source.lines.iter().filter(|line| !line.is_test).count();
    if may_be_long || length <= LINES_SUGGESTED {
        return None;
    }
    let (rule, limit) = if length > LINES_MAX { (Rule::TooLong, LINES_MAX) } else { (Rule::Long, LINES_SUGGESTED) };
    Some(Finding {
        path: file.path.clone(),
        line: 1,
        rule,
        what: format!("{length} lines, tests apart; the limit is {limit}"),
        help: "find the second idea in it and give that a file of its own".into(),
    })
}

fn check_header(file: &TextFile) -> Option<Finding> {
    if !file.is_under("src") || file.name() == "main.rs" || file.text.starts_with("//!") {
        return None;
    }
    Some(Finding {
        path: file.path.clone(),
        line: 1,
        rule: Rule::HeaderMissing,
        what: "a source file that does not start with a header".into(),
        help: "start it with `//!`: what it is for, what it does not do, and the invariant it keeps".into(),
    })
}

fn check_discards(file: &TextFile, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut follows_comment = false;
    for (number, line) in source.numbered() {
        let has_comment = !line.comment.is_empty();
        if line.code.trim_start().starts_with("let _ =") && !has_comment && !follows_comment {
            findings.push(Finding {
                path: file.path.clone(),
                line: number,
                rule: Rule::SilentDiscard,
                what: "`let _ =` without a reason".into(),
                help: "handle the value, or say in a comment here or on the line above why it does not matter".into(),
            });
        }
        follows_comment = has_comment;
    }
    findings
}

fn has_function(code: &str) -> bool {
    // A function pointer type, `fn(`, is not a function.
    words(code).any(|(end, word)| word == "fn" && code[end..].starts_with(char::is_whitespace))
}

fn has_word(code: &str, wanted: &str) -> bool {
    words(code).any(|(_, word)| word == wanted)
}

/// Each identifier or keyword, with the position of its end.
fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let pieces = code.split_inclusive(move |c| !is_word(c)).scan(0, move |start, piece| {
        let word = piece.trim_end_matches(|c| !is_word(c));
        let end = *start + word.len();
        *start += piece.len();
        Some((end, word))
    });
    pieces.filter(|(_, word)| !word.is_empty())
}
