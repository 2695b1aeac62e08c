//! `.dockerignore`: which files of a context are left out.

use saggar_domain::{Code, Problem};

use crate::glob::path_matches;

/// Maximum number of patterns: each is compared with each file.
const PATTERNS_MAX: usize = 10_000;

/// The last pattern that matches a path, or a directory above it, decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IgnoreList {
    patterns: Vec<Pattern>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    parts: Vec<Vec<u8>>,
    is_exception: bool,
}

impl IgnoreList {
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let mut patterns = Vec::new();
        for line in text.trim_start_matches('\u{feff}').lines() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (is_exception, line) = match line.strip_prefix('!') {
                Some(rest) => (true, rest.trim()),
                None => (false, line),
            };
            let mut parts: Vec<Vec<u8>> = Vec::new();
            for part in line.split('/').filter(|part| !part.is_empty() && *part != ".") {
                if part == ".." {
                    parts.pop();
                } else {
                    parts.push(part.as_bytes().to_vec());
                }
            }
            if !parts.is_empty() {
                patterns.push(Pattern { parts, is_exception });
            }
            // Without the rest of the list, files could be copied that are not to be.
            if patterns.len() > PATTERNS_MAX {
                let message = format!(".dockerignore has more than {PATTERNS_MAX} patterns");
                return Err(Problem::new(Code::InvalidValue, message, "name directories instead of files"));
            }
        }
        Ok(Self { patterns })
    }

    /// Whether everything below an ignored directory is ignored too, so that it need not be read.
    pub fn has_exceptions(&self) -> bool {
        self.patterns.iter().any(|pattern| pattern.is_exception)
    }

    pub fn ignores(&self, path: &[u8]) -> bool {
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let is_hit = |pattern: &&Pattern| {
            let parts: Vec<&[u8]> = pattern.parts.iter().map(Vec::as_slice).collect();
            (1..=names.len()).any(|end| path_matches(&parts, &names[..end]))
        };
        self.patterns.iter().rev().find(is_hit).is_some_and(|pattern| !pattern.is_exception)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_pattern_that_matches_decides() {
        let list =
            IgnoreList::parse("# comment\n\n*.log\n!keep.log\n/target\n**/cache\ndocs/../secret\nsub/*.txt\n").unwrap();
        for (path, expected) in [
            ("a.log", true),
            ("keep.log", false),
            ("sub/a.log", false),
            ("target", true),
            ("target/debug/x", true),
            ("sub/target", false),
            ("sub/cache/x", true),
            ("secret", true),
            ("sub/a.txt", true),
            ("a.txt", false),
            ("comment", false),
        ] {
            assert_eq!(list.ignores(path.as_bytes()), expected, "{path}");
        }
        assert!(list.has_exceptions());
        let all = IgnoreList::parse("*\n!src\n").unwrap();
        assert!(all.ignores(b"x") && !all.ignores(b"src") && !all.ignores(b"src/lib.rs"));
    }

    #[test]
    fn a_list_that_is_too_long_is_refused_as_a_whole() {
        let list = |patterns: usize| IgnoreList::parse(&format!("{}secret\n", "# comment\nx\n".repeat(patterns)));
        assert!(list(PATTERNS_MAX - 1).unwrap().ignores(b"secret"));
        assert!(list(PATTERNS_MAX).unwrap_err().message.contains("more than 10000 patterns"));
    }
}
