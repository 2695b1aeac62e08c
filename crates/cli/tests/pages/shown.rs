//! What a page shows, held against what was printed.
//!
//! `...` stands for anything within a line and, alone in its line, for any number of lines. An id or a key that the page shows stands
//! for the one that was printed in its place, there and everywhere after it.

use std::collections::BTreeMap;

/// Beginnings of ids and keys, with the length and the letters of the rest.
const NAMES: [(&str, usize, &str); 8] = [
    ("sbx_", 26, "abcdefghijklmnopqrstuvwxyz234567"),
    ("snap_", 26, "abcdefghijklmnopqrstuvwxyz234567"),
    ("exec_", 26, "abcdefghijklmnopqrstuvwxyz234567"),
    ("ctx_", 26, "abcdefghijklmnopqrstuvwxyz234567"),
    ("run_", 26, "abcdefghijklmnopqrstuvwxyz234567"),
    ("key_", 26, "abcdefghijklmnopqrstuvwxyz234567"),
    ("sgr_", 43, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"),
    ("e2b_", 64, "0123456789abcdef"),
];

/// The real ids and keys behind those of a page.
pub type Names = BTreeMap<String, String>;

/// Whether what was printed is what the page shows; names are learned only where it is.
pub fn agrees(shown: &[String], printed: &[String], names: &mut Names) -> bool {
    match lines(shown, printed, names.clone()) {
        Some(learned) => {
            *names = learned;
            true
        }
        None => false,
    }
}

/// A command of the page with the real names in it.
pub fn real(command: &str, names: &Names) -> String {
    names.iter().fold(command.to_owned(), |command, (shown, real)| command.replace(shown, real))
}

fn lines(shown: &[String], printed: &[String], names: Names) -> Option<Names> {
    match shown.split_first() {
        None => printed.is_empty().then_some(names),
        Some((first, rest)) if first.trim() == "..." => {
            (0..=printed.len()).find_map(|skipped| lines(rest, &printed[skipped..], names.clone()))
        }
        Some((first, rest)) => {
            let (line, left) = printed.split_first()?;
            let names = text(first, line, names)?;
            lines(rest, left, names)
        }
    }
}

fn text(shown: &str, printed: &str, mut names: Names) -> Option<Names> {
    if shown.is_empty() {
        return printed.is_empty().then_some(names);
    }
    if let Some(rest) = shown.strip_prefix("...") {
        let ends = printed.char_indices().map(|(index, _)| index).chain([printed.len()]);
        return ends.map(|skipped| &printed[skipped..]).find_map(|left| text(rest, left, names.clone()));
    }
    if let (Some(one), Some(other)) = (name(shown), name(printed)) {
        let kind = |name: &str| name.split('_').next().map(str::to_owned);
        if kind(one) != kind(other) || names.get(one).is_some_and(|real| real != other) {
            return None;
        }
        names.insert(one.to_owned(), other.to_owned());
        return text(&shown[one.len()..], &printed[other.len()..], names);
    }
    let (first, other) = (shown.chars().next()?, printed.chars().next()?);
    if first != other {
        return None;
    }
    text(&shown[first.len_utf8()..], &printed[other.len_utf8()..], names)
}

/// The id or key that a text begins with.
fn name(text: &str) -> Option<&str> {
    NAMES.iter().find_map(|(begin, length, letters)| {
        let whole = text.get(..begin.len() + length)?;
        let rest = whole.strip_prefix(begin)?;
        rest.chars().all(|letter| letters.contains(letter)).then_some(whole)
    })
}
