//! Patterns of paths, as Dockerfiles and `.dockerignore` have them: `*`, `?`, `[a-z]`, and `**` for any number of directories.

/// Whether one name matches one part of a pattern.
pub(crate) fn name_matches(pattern: &[u8], name: &[u8]) -> bool {
    // Only the last star can have to take more, so that no pattern takes longer than its length times that of the name.
    let (mut pattern, mut name, mut star) = (pattern, name, None);
    loop {
        if let Some((b'*', rest)) = pattern.split_first() {
            star = Some((rest, name));
            pattern = rest;
        } else if pattern.is_empty() && name.is_empty() {
            return true;
        } else if let Some(next) = after_one(pattern, name) {
            (pattern, name) = next;
        } else {
            let Some((rest, [_, more @ ..])) = star else { return false };
            star = Some((rest, more));
            (pattern, name) = (rest, more);
        }
    }
}

/// Whether a path matches, by parts. `**` stands for none or more names.
pub(crate) fn path_matches(pattern: &[&[u8]], path: &[&[u8]]) -> bool {
    let (mut pattern, mut path, mut star) = (pattern, path, None);
    loop {
        match (pattern, path) {
            ([part, rest @ ..], _) if *part == b"**" => {
                star = Some((rest, path));
                pattern = rest;
            }
            ([], []) => return true,
            ([part, rest @ ..], [name, below @ ..]) if name_matches(part, name) => (pattern, path) = (rest, below),
            _ => {
                let Some((rest, [_, more @ ..])) = star else { return false };
                star = Some((rest, more));
                (pattern, path) = (rest, more);
            }
        }
    }
}

pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// What is left of both after one character that matches.
fn after_one<'p, 'n>(pattern: &'p [u8], name: &'n [u8]) -> Option<(&'p [u8], &'n [u8])> {
    let (byte, below) = name.split_first()?;
    let (first, rest) = pattern.split_first()?;
    match first {
        b'?' => Some((rest, below)),
        b'[' => match class(rest) {
            Some((class, rest)) => class.has(*byte).then_some((rest, below)),
            // Without its end it is an ordinary character.
            None => (*byte == b'[').then_some((rest, below)),
        },
        b'\\' if !rest.is_empty() => (*byte == rest[0]).then_some((&rest[1..], below)),
        first => (first == byte).then_some((rest, below)),
    }
}

struct Class<'a> {
    is_inverted: bool,
    members: &'a [u8],
}

impl Class<'_> {
    fn has(&self, byte: u8) -> bool {
        let mut members = self.members;
        let mut is_in = false;
        while let Some((&first, rest)) = members.split_first() {
            let (last, rest) = match rest {
                [b'-', last, rest @ ..] => (*last, rest),
                _ => (first, rest),
            };
            is_in |= (first..=last).contains(&byte);
            members = rest;
        }
        is_in != self.is_inverted
    }
}

fn class(text: &[u8]) -> Option<(Class<'_>, &[u8])> {
    let (is_inverted, text) = match text.split_first() {
        Some((b'^' | b'!', rest)) => (true, rest),
        _ => (false, text),
    };
    // A bracket in the first place is a member.
    let end = text.iter().skip(1).position(|byte| *byte == b']')? + 1;
    Some((Class { is_inverted, members: &text[..end] }, &text[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_patterns() {
        for (pattern, name, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("*.rs", "lib.rs", true),
            ("*.rs", "lib.rsx", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[x", "[x", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[", "", false),
            ("\\", "\\", true),
            ("*a*b", "xaxbxab", true),
            ("*a*b", "xaxbxa", false),
            ("a*", "a", true),
            ("", "a", false),
        ] {
            assert_eq!(name_matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_ends_and_is_right() {
        assert!(!name_matches(&b"a*".repeat(200), &b"a".repeat(199)));
        assert!(name_matches(&b"*a".repeat(100), &b"ba".repeat(100)));
        let (stars, names) = (["**", "a"].repeat(50), ["b", "a"].repeat(50));
        let bytes = |parts: &[&'static str]| parts.iter().map(|part| part.as_bytes()).collect::<Vec<_>>();
        assert!(path_matches(&bytes(&stars), &bytes(&names)));
        assert!(!path_matches(&bytes(&stars), &bytes(&["b"].repeat(99))));
    }

    #[test]
    fn paths_match_by_parts() {
        for (pattern, path, expected) in [
            ("a/*/c", "a/b/c", true),
            ("a/*", "a/b/c", false),
            ("**/c", "a/b/c", true),
            ("**/c", "c", true),
            ("a/**", "a/b/c", true),
            ("a/**", "a", true),
            ("**", "x/y", true),
            ("**/a/*/b", "a/x/a/y/b", true),
            ("**/a/*/b", "a/x/y/b", false),
            ("a", "a/b", false),
        ] {
            let parts = |text: &'static str| text.split('/').map(str::as_bytes).collect::<Vec<_>>();
            assert_eq!(path_matches(&parts(pattern), &parts(path)), expected, "{pattern} {path}");
        }
    }
}
