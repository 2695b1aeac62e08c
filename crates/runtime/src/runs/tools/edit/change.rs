//! What an edit makes of a text. Pure: no file is touched here.
//!
//! A replacement must match exactly and once, unless every match is meant. A complaint says how many matches there are
//! and where, or which line comes closest, so that the model's next try can be right.

use super::io::TEXT_MAX;

/// Lines that a complaint names.
const PLACES_MAX: usize = 20;
/// Characters of a line that a complaint quotes.
const QUOTED_MAX: usize = 120;
/// Lines that are compared with the one that was meant.
const COMPARED_MAX: usize = 20_000;
/// Characters of each of them that are compared.
const COMPARED_CHARACTERS_MAX: usize = 480;

pub(super) fn too_long() -> String {
    format!("the file would have more than {TEXT_MAX} bytes, which is too long to edit")
}

/// An edit of an existing text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change<'a> {
    Replace {
        old: &'a str,
        new: &'a str,
        is_all: bool,
    },
    /// After this line; 0 is before the first.
    Insert {
        line: usize,
        text: &'a str,
    },
}

/// A changed text, and what to tell the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Changed {
    pub(super) text: String,
    pub(super) said: String,
}

impl Change<'_> {
    pub(super) fn apply(self, before: &str) -> Result<Changed, String> {
        match self {
            Self::Replace { old: "", .. } => Err("old is empty: to add text use the op insert".to_owned()),
            Self::Replace { old, new, .. } if old == new => {
                Err("old and new are the same, so nothing would change".to_owned())
            }
            Self::Replace { old, new, is_all } => {
                let matches = before.matches(old).count();
                let at = lines(before, old);
                match (matches, is_all) {
                    (0, _) => Err(not_found(before, old)),
                    (1, _) | (_, true) => {
                        // Before anything is made: many matches of a long text are more than there is memory.
                        let bytes =
                            (before.len() - matches * old.len()).saturating_add(matches.saturating_mul(new.len()));
                        if bytes > TEXT_MAX {
                            return Err(too_long());
                        }
                        let times = if matches == 1 { "once".to_owned() } else { format!("{matches} times") };
                        Ok(Changed { text: before.replace(old, new), said: format!("replaced {times}, at {at}") })
                    }
                    (_, false) => Err(format!(
                        "old matches {matches} times, at {at}: add lines around it so that it matches once, or set all to true"
                    )),
                }
            }
            Self::Insert { line, text } => {
                let all: Vec<&str> = before.split_inclusive('\n').collect();
                if line > all.len() {
                    return Err(format!("line {line} doesn't exist: the file has {}", count(all.len())));
                }
                let (head, tail) = all.split_at(line);
                let mut after = head.concat();
                if !after.is_empty() && !after.ends_with('\n') {
                    after.push('\n');
                }
                after.push_str(text);
                if !tail.is_empty() && !after.ends_with('\n') {
                    after.push('\n');
                }
                let added = count(text.lines().count());
                after.push_str(&tail.concat());
                Ok(Changed { text: after, said: format!("inserted {added} after line {line}") })
            }
        }
    }
}

/// A page of a text with line numbers. `start` counts from 1; `most` bounds lines, and `bytes` the page.
pub(in crate::runs::tools) fn numbered(text: &str, start: usize, most: usize, bytes: usize) -> Result<String, String> {
    let total = text.lines().count();
    if start > total.max(1) {
        return Err(format!("line {start} doesn't exist: the file has {}", count(total)));
    }
    let mut page = String::new();
    let mut last = start.saturating_sub(1);
    for (index, line) in text.lines().enumerate().skip(start.saturating_sub(1)).take(most) {
        let row = format!("{:>6}\t{line}\n", index + 1);
        // One line at least, so that the next page begins later.
        if !page.is_empty() && page.len() + row.len() > bytes {
            break;
        }
        page.push_str(&row);
        last = index + 1;
    }
    let page = within(page, bytes);
    Ok(match last < total {
        true => format!("{page}(lines {start} to {last} of {total}; the next page has \"start\": {})", last + 1),
        false => page,
    })
}

fn within(mut page: String, bytes: usize) -> String {
    if page.len() > bytes {
        page.truncate((0..=bytes).rev().find(|at| page.is_char_boundary(*at)).unwrap_or(0));
        page.push_str("…\n");
    }
    page
}

fn not_found(text: &str, old: &str) -> String {
    let wanted = old.lines().find(|line| !line.trim().is_empty()).unwrap_or(old);
    let cut = |line: &str| line.chars().take(COMPARED_CHARACTERS_MAX).collect::<String>();
    let blank = |line: &str| cut(line).split_whitespace().collect::<Vec<_>>().join(" ");
    let blank_wanted = blank(wanted);
    let nearest = text
        .lines()
        .take(COMPARED_MAX)
        .enumerate()
        .map(|(index, line)| (similarity(&blank(line), &blank_wanted), index, line))
        .filter(|(likeness, ..)| *likeness >= 50)
        // The first of the most similar ones.
        .max_by(|(one, first, _), (other, second, _)| one.cmp(other).then(second.cmp(first)));
    match nearest {
        Some((100, index, line)) if line == wanted => format!(
            "old is not in the file: line {} is its first line, and what follows differs; view the file from there",
            index + 1
        ),
        Some((100, index, line)) => {
            format!("old is not in the file: line {} differs in spaces alone: {:?}", index + 1, short(line))
        }
        Some((_, index, line)) => {
            format!("old is not in the file; the nearest line is {}: {:?}", index + 1, short(line))
        }
        None => "old is not in the file, and no line is like it; view the file first".to_owned(),
    }
}

/// How alike two lines are, from 0 to 100: by the pairs of neighbouring characters that both have.
fn similarity(one: &str, other: &str) -> usize {
    if one == other {
        return 100;
    }
    let pairs = |text: &str| {
        let characters: Vec<char> = text.chars().collect();
        let mut pairs: Vec<(char, char)> = characters.windows(2).map(|two| (two[0], two[1])).collect();
        pairs.sort_unstable();
        pairs
    };
    let (one, other) = (pairs(one), pairs(other));
    let (mut a, mut b, mut shared) = (0, 0, 0);
    while let (Some(left), Some(right)) = (one.get(a), other.get(b)) {
        match left.cmp(right) {
            std::cmp::Ordering::Equal => (a, b, shared) = (a + 1, b + 1, shared + 1),
            std::cmp::Ordering::Less => a += 1,
            std::cmp::Ordering::Greater => b += 1,
        }
    }
    // Only equal texts are wholly alike.
    (200 * shared / (one.len() + other.len()).max(1)).min(99)
}

/// The lines of the first matches, as people say them.
fn lines(text: &str, old: &str) -> String {
    let line_of = |at: usize| text[..at].matches('\n').count() + 1;
    let mut places: Vec<usize> = text.match_indices(old).take(PLACES_MAX + 1).map(|(at, _)| line_of(at)).collect();
    let is_more = places.len() > PLACES_MAX;
    places.truncate(PLACES_MAX);
    let shown: Vec<String> = places.iter().map(usize::to_string).collect();
    let more = if is_more { " …" } else { "" };
    format!("{} {}{more}", if places.len() == 1 { "line" } else { "lines" }, shown.join(", "))
}

fn count(lines: usize) -> String {
    if lines == 1 { "1 line".to_owned() } else { format!("{lines} lines") }
}

fn short(line: &str) -> String {
    line.chars().take(QUOTED_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "fn add(a: i32) {\n    a + 1\n}\n\nfn sub(a: i32) {\n    a - 1\n}\n";

    fn replace<'a>(old: &'a str, new: &'a str) -> Change<'a> {
        Change::Replace { old, new, is_all: false }
    }

    #[test]
    fn a_replacement_is_exact_and_meets_one_place_unless_all_are_meant() {
        let once = replace("a + 1", "a + 2").apply(TEXT).unwrap();
        assert_eq!((once.text, once.said.as_str()), (TEXT.replace("a + 1", "a + 2"), "replaced once, at line 2"));
        let all = Change::Replace { old: "(a: i32)", new: "()", is_all: true }.apply(TEXT).unwrap();
        assert_eq!((all.text, all.said.as_str()), (TEXT.replace("(a: i32)", "()"), "replaced 2 times, at lines 1, 5"));
        for (change, why) in [
            (replace("(a: i32)", "()"), "old matches 2 times, at lines 1, 5: add lines around it"),
            (replace("a  +  1", "x"), "line 2 differs in spaces alone: \"    a + 1\""),
            (replace("fn sub(b: i32) {", "x"), "the nearest line is 5: \"fn sub(a: i32) {\""),
            (replace("fn add(a: i32) {\n    a * 1", "x"), "line 1 is its first line, and what follows differs"),
            (replace("zzzzzzz", "x"), "no line is like it"),
            (replace("", "x"), "old is empty"),
            (replace("a", "a"), "nothing would change"),
        ] {
            let error = change.apply(TEXT).unwrap_err();
            assert!(error.contains(why), "{change:?}: {error}");
        }
    }

    #[test]
    fn a_replacement_of_many_matches_is_refused_before_it_is_made() {
        let text = "a\n".repeat(TEXT_MAX / 2);
        let new = "b".repeat(TEXT_MAX / 2);
        let change = Change::Replace { old: "a", new: &new, is_all: true };
        assert_eq!(change.apply(&text), Err(too_long()));
        let complaint = replace("a", "b").apply(&text).unwrap_err();
        assert!(complaint.contains(&format!("matches {} times, at lines 1, 2, 3,", TEXT_MAX / 2)), "{complaint}");
        assert!(complaint.contains("20 …"), "{complaint}");
    }

    #[test]
    fn an_insertion_is_a_line_of_its_own_wherever_it_is() {
        for (before, line, text, after) in [
            ("a\nb\n", 0, "x", "x\na\nb\n"),
            ("a\nb\n", 1, "x\n", "a\nx\nb\n"),
            ("a\nb", 2, "x", "a\nb\nx"),
            ("", 0, "x\n", "x\n"),
        ] {
            assert_eq!(Change::Insert { line, text }.apply(before).unwrap().text, after);
        }
        let error = Change::Insert { line: 3, text: "x" }.apply("a\nb\n").unwrap_err();
        assert_eq!(error, "line 3 doesn't exist: the file has 2 lines");
    }

    #[test]
    fn a_view_is_paged_by_lines_and_by_bytes() {
        assert_eq!(
            numbered("a\nb\nc\n", 2, 1, 99),
            Ok("     2\tb\n(lines 2 to 2 of 3; the next page has \"start\": 3)".to_owned())
        );
        assert_eq!(numbered("a\nb", 1, 9, 99), Ok("     1\ta\n     2\tb\n".to_owned()));
        assert_eq!(numbered("", 1, 9, 99), Ok(String::new()));
        assert!(numbered("a\n", 3, 9, 99).unwrap_err().contains("the file has 1 line"));
        let long = numbered(&"x".repeat(1000), 1, 9, 100).unwrap();
        assert!(long.len() < 120, "{long}");
        let many = numbered(&"line\n".repeat(1000), 1, 1000, 120).unwrap();
        assert!(many.contains("the next page has \"start\": 11"), "{many}");
    }
}
