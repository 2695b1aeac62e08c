//! Rules for any text: leftover work names its issue, and no file mentions paths of the machine it was written on.

use super::finding::{Finding, Rule};
use super::workspace::TextFile;

/// A reminder must name its issue. `lines` are the file's lines, or only the comments of a Rust file.
pub fn check_todos<'a>(file: &TextFile, lines: impl Iterator<Item = &'a str>) -> Vec<Finding> {
    let untracked = lines.enumerate().filter(|(_, text)| has_untracked_todo(text));
    untracked
        .map(|(index, _)| Finding {
            path: file.path.clone(),
            line: index + 1,
            rule: Rule::UntrackedTodo,
            what: "a TODO without an issue".into(),
            help: "open an issue and write TODO(#123), or do it now".into(),
        })
        .collect()
}

/// `machine_paths` are absolute paths that only exist where the repository is checked out.
pub fn check_machine_paths(file: &TextFile, machine_paths: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, text) in file.text.lines().enumerate() {
        if let Some(path) = machine_paths.iter().find(|path| mentions_path(text, path)) {
            findings.push(Finding {
                path: file.path.clone(),
                line: index + 1,
                rule: Rule::MachinePath,
                what: format!("\"{path}\" exists only on this machine"),
                help: "write the path relative to the repository, or leave it out".into(),
            });
        }
    }
    findings
}

fn has_untracked_todo(text: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices("TODO").any(|(start, word)| {
        let (before, after) = (&text[..start], &text[start + word.len()..]);
        let is_whole_word = !before.ends_with(is_word) && !after.starts_with(is_word);
        is_whole_word && !names_issue(after)
    })
}

/// `(#123)`, directly after the word.
fn names_issue(after: &str) -> bool {
    let number = after.strip_prefix("(#").and_then(|rest| rest.split_once(')'));
    number.is_some_and(|(digits, _)| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Matches whole components only: a longer name with the same beginning is another path.
fn mentions_path(text: &str, path: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    text.match_indices(path).any(|(start, _)| {
        let (before, after) = (&text[..start], &text[start + path.len()..]);
        !before.ends_with(continues) && !after.starts_with(continues)
    })
}
