//! Changes as unified diffs.
//!
//! A minimal diff takes quadratic time, so a program could make it take forever. If the files are too large, or time has run out,
//! everything between the first and the last difference becomes one block. Nothing is left out either way.

use std::time::{Duration, Instant};

use similar::TextDiff;

use super::entry::{Change, Entry, Kind};
use super::store::{Changes, Difference};
use crate::host_tree::HostTree;
use crate::worktree::Objects;

/// Time limit for computing minimal diffs; after it, diffs are coarse.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of lines between the first and the last difference for a minimal diff.
const CLOSE_MAX: usize = 10_000;

/// Makes diffs, all of them within one time limit.
#[derive(Debug)]
pub struct Unified {
    deadline: Instant,
    /// The objects of a repository, once they are open.
    objects: Option<Objects<'static>>,
}

impl Unified {
    pub fn begin() -> Self {
        Self { deadline: Instant::now() + PATIENCE, objects: None }
    }

    /// Whether a change is one of contents.
    pub fn is_of(entry: &Entry) -> bool {
        entry.kind == Kind::File && entry.change != Change::Mode
    }

    /// The diff of one file; `None` if a side is not text, or too long.
    pub fn of(&mut self, changes: &Changes, workspace: &HostTree, entry: &Entry) -> Option<String> {
        if self.objects.is_none() {
            self.objects = changes.objects(workspace);
        }
        match changes.difference(workspace, entry, self.objects.as_ref()) {
            Difference::Binary => None,
            Difference::Text(before, after) => {
                let (old, new) = (format!("a/{}", entry.path), format!("b/{}", entry.path));
                Some(difference(&old, &new, &before, &after, Instant::now() < self.deadline))
            }
        }
    }
}

fn difference(old: &str, new: &str, before: &str, after: &str, is_close: bool) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) =
        (before.split_inclusive('\n').collect(), after.split_inclusive('\n').collect());
    let same = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let same_end = a[same..].iter().rev().zip(b[same..].iter().rev()).take_while(|(a, b)| a == b).count();
    let (gone, come) = (&a[same..a.len() - same_end], &b[same..b.len() - same_end]);
    if is_close && gone.len().max(come.len()) <= CLOSE_MAX {
        return TextDiff::from_lines(before, after).unified_diff().header(old, new).to_string();
    }
    let range = |lines: &[&str]| format!("{},{}", if lines.is_empty() { same } else { same + 1 }, lines.len());
    let mut text = format!("--- {old}\n+++ {new}\n@@ -{} +{} @@\n", range(gone), range(come));
    for (sign, lines) in [('-', gone), ('+', come)] {
        for line in lines {
            text.push(sign);
            text.push_str(line);
            if !line.ends_with('\n') {
                text.push_str("\n\\ No newline at end of file\n");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coarse_difference_holds_everything() {
        let coarse = |before: &str, after: &str| difference("a/f", "b/f", before, after, false);
        assert_eq!(
            coarse("1\n2\n3\n4\n", "1\nx\n3\ny\n4\n"),
            "--- a/f\n+++ b/f\n@@ -2,2 +2,3 @@\n-2\n-3\n+x\n+3\n+y\n"
        );
        assert_eq!(coarse("", "x"), "--- a/f\n+++ b/f\n@@ -0,0 +1,1 @@\n+x\n\\ No newline at end of file\n");
        let long = |first: &str| first.to_owned() + &"x\n".repeat(CLOSE_MAX + 1);
        assert_eq!(difference("a", "b", &long("1\n"), &long("2\n"), true).lines().count(), 8, "most of it is the same");
    }
}
