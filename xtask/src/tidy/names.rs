//! Names of files and folders: a name that fits anything says nothing.

use super::finding::{Finding, Rule};
use super::workspace::TextFile;

/// Rejected as a word of any name in a path: `utils.rs`, `net_helpers/`, `session-manager.ts`.
const EMPTY_WORDS: &[&str] = &["utils", "common", "helpers", "manager"];

/// At most one finding per file.
pub fn check(file: &TextFile) -> Option<Finding> {
    let is_separator = |c: char| matches!(c, '/' | '.' | '_' | '-');
    let word = file.path.split(is_separator).find(|word| EMPTY_WORDS.contains(word))?;
    Some(Finding {
        path: file.path.clone(),
        line: 1,
        rule: Rule::EmptyName,
        what: format!("\"{word}\" in a file's name would fit anything"),
        help: "name it for the thing of the domain it holds; if it holds several, it is several files".into(),
    })
}
