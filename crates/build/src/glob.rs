//! Patterns of paths, as Dockerfiles and `.dockerignore` have them: `*`, `?`, `[a-z]`, and `**` for any number of directories.

/// Steps of one comparison: a pattern with many stars could take forever otherwise.
const STEPS_MAX: u32 = 100_000;

/// Whether one name matches one part of a pattern.
pub(crate) fn name_matches(pattern: &[u8], name: &[u8]) -> bool {
    let mut steps = 0;
    matches_from(pattern, name, &mut steps)
}

/// Whether a path matches, by parts. `**` stands for none or more names.
pub(crate) fn path_matches(pattern: &[&[u8]], path: &[&[u8]]) -> bool {
    let mut steps = 0;
    path_from(pattern, path, &mut steps)
}

pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

fn path_from(pattern: &[&[u8]], path: &[&[u8]], steps: &mut u32) -> bool {
    *steps += 1;
    if *steps > STEPS_MAX {
        return false;
    }
    match pattern.split_first() {
        None => path.is_empty(),
        Some((&b"**", rest)) => (0..=path.len()).any(|skipped| path_from(rest, &path[skipped..], steps)),
        Some((part, rest)) => path
            .split_first()
            .is_some_and(|(name, below)| matches_from(part, name, steps) && path_from(rest, below, steps)),
    }
}

fn matches_from(pattern: &[u8], name: &[u8], steps: &mut u32) -> bool {
    *steps += 1;
    if *steps > STEPS_MAX {
        return false;
    }
    match pattern.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|skipped| matches_from(rest, &name[skipped..], steps)),
        Some((b'?', rest)) => name.split_first().is_some_and(|(_, below)| matches_from(rest, below, steps)),
        Some((b'[', rest)) => match (class(rest), name.split_first()) {
            (Some((class, rest)), Some((byte, below))) => class.has(*byte) && matches_from(rest, below, steps),
            (Some(_), None) => false,
            // Without its end it is an ordinary character.
            (None, _) => name.strip_prefix(b"[").is_some_and(|below| matches_from(rest, below, steps)),
        },
        Some((b'\\', rest)) if !rest.is_empty() => {
            name.first() == rest.first() && matches_from(&rest[1..], &name[1..], steps)
        }
        Some((byte, rest)) => name.first() == Some(byte) && matches_from(rest, &name[1..], steps),
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
        ] {
            assert_eq!(name_matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_ends() {
        assert!(!name_matches(&b"a*".repeat(200), &b"a".repeat(199)));
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
        ] {
            let parts = |text: &'static str| text.split('/').map(str::as_bytes).collect::<Vec<_>>();
            assert_eq!(path_matches(&parts(pattern), &parts(path)), expected, "{pattern} {path}");
        }
    }
}
