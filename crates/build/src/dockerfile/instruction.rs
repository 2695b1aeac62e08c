//! The parts of an instruction: flags, the JSON form, pairs.

use std::collections::BTreeMap;

use saggar_domain::Problem;

use super::lines::Line;
use super::words::Words;
use super::wrong;
use crate::recipe::Command;

/// Flags at the beginning: `--name=value`, or `--name`.
pub(super) fn flags(line: &Line) -> (Vec<(String, String)>, &str) {
    let mut found = Vec::new();
    let mut rest = line.rest.as_str();
    while let Some(flag) = rest.strip_prefix("--") {
        let (flag, after) = flag.split_once(char::is_whitespace).unwrap_or((flag, ""));
        let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
        found.push((name.to_owned(), value.to_owned()));
        rest = after.trim_start();
    }
    (found, rest)
}

/// A list of texts as JSON; `None` if it is something else.
pub(super) fn json(text: &str) -> Option<Vec<String>> {
    text.trim_start().starts_with('[').then(|| serde_json::from_str(text).ok()).flatten()
}

/// A program with its arguments, or a line for a shell.
pub(super) fn command(line: &Line, text: &str) -> Result<Command, Problem> {
    match json(text) {
        Some(words) if words.is_empty() => Ok(Command::Exec(words)),
        Some(words) => Ok(Command::Exec(words)),
        None if text.trim().is_empty() => {
            Err(wrong(line.number, format!("{} names no program", line.name), "write one after it"))
        }
        None => Ok(Command::Shell(text.to_owned())),
    }
}

/// `NAME=VALUE …`, or the old form `NAME VALUE`.
pub(super) fn pairs(line: &Line, words: &Words<'_>) -> Result<BTreeMap<String, String>, Problem> {
    let fail = |what: String| wrong(line.number, what, format!("write {} NAME=VALUE", line.name));
    let first = line.rest.split_whitespace().next().unwrap_or_default();
    if !first.contains('=') {
        let (name, value) = line
            .rest
            .split_once(char::is_whitespace)
            .ok_or_else(|| fail(format!("{} has no value for {first:?}", line.name)))?;
        let value = words.expand(value.trim()).map_err(fail)?;
        return Ok(BTreeMap::from([(name.to_owned(), value)]));
    }
    let mut set = BTreeMap::new();
    for word in words.split(&line.rest).map_err(fail)? {
        match word.split_once('=') {
            Some((name, value)) if !name.is_empty() => set.insert(name.to_owned(), value.to_owned()),
            _ => return Err(fail(format!("{word:?} is not NAME=VALUE"))),
        };
    }
    Ok(set)
}
