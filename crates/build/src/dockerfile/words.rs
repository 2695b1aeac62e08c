//! Words and variables, as an instruction has them: quotes, escapes, `$NAME`, `${NAME}`, `${NAME:-default}`, `${NAME:+value}`.

use std::cell::Cell;
use std::collections::BTreeMap;

/// Maximum length of a text after its variables are expanded.
const EXPANDED_MAX: usize = 1 << 20;
/// Maximum depth of `${A:-${B:-…}}`.
const DEPTH_MAX: usize = 16;

/// How many bytes a file may take out of its variables, over all its instructions. Without this bound, a short file could fill the memory by
/// naming a long variable often.
pub(super) struct Allowance(Cell<usize>);

impl Allowance {
    pub(super) const MAX: usize = 16 << 20;

    pub(super) fn new() -> Self {
        Self(Cell::new(Self::MAX))
    }

    pub(super) fn take(&self, bytes: usize) -> Result<(), String> {
        let left = self.0.get().checked_sub(bytes);
        self.0.set(left.ok_or_else(|| format!("the file's variables come to more than {} MiB", Self::MAX >> 20))?);
        Ok(())
    }

    /// For a copy of variables.
    pub(super) fn take_all(&self, vars: &BTreeMap<String, String>) -> Result<(), String> {
        self.take(vars.iter().map(|(name, value)| name.len() + value.len()).sum())
    }
}

pub(super) struct Words<'a> {
    pub(super) vars: &'a BTreeMap<String, String>,
    pub(super) escape: char,
    pub(super) allowance: &'a Allowance,
}

impl Words<'_> {
    /// Cuts a text at spaces outside of quotes, and expands each word.
    pub(super) fn split(&self, text: &str) -> Result<Vec<String>, String> {
        let mut words = Vec::new();
        let mut reader = Reader { chars: text.chars().collect(), at: 0 };
        loop {
            while reader.peek().is_some_and(char::is_whitespace) {
                reader.at += 1;
            }
            if reader.peek().is_none() {
                return Ok(words);
            }
            words.push(self.read(&mut reader, Until::Space, 0)?);
        }
    }

    /// Expands a text as one word, spaces included.
    pub(super) fn expand(&self, text: &str) -> Result<String, String> {
        self.read(&mut Reader { chars: text.chars().collect(), at: 0 }, Until::End, 0)
    }

    fn read(&self, reader: &mut Reader, until: Until, depth: usize) -> Result<String, String> {
        if depth > DEPTH_MAX {
            return Err("its variables are nested too deeply".to_owned());
        }
        let mut word = String::new();
        let mut quote = None;
        while let Some(next) = reader.peek() {
            let is_end = match until {
                Until::Space => quote.is_none() && next.is_whitespace(),
                Until::Brace => quote.is_none() && next == '}',
                Until::End => false,
            };
            if is_end {
                return Ok(word);
            }
            reader.at += 1;
            match (next, quote) {
                ('\'', None) => quote = Some('\''),
                ('"', None) => quote = Some('"'),
                (character, Some(open)) if character == open => quote = None,
                (character, Some('\'')) => word.push(character),
                (character, Some('"')) if character == self.escape => match reader.peek() {
                    Some(after) if after == '"' || after == '$' || after == self.escape => {
                        word.push(after);
                        reader.at += 1;
                    }
                    _ => word.push(character),
                },
                (character, _) if character == self.escape => {
                    word.extend(reader.peek());
                    reader.at += 1;
                }
                ('$', _) => word.push_str(&self.variable(reader, depth)?),
                (character, _) => word.push(character),
            }
            if word.len() > EXPANDED_MAX {
                return Err("it is too long once its variables are expanded".to_owned());
            }
        }
        match (quote, until) {
            (Some(quote), _) => Err(format!("a quote {quote} has no end")),
            (None, Until::Brace) => Err("a ${ has no }".to_owned()),
            (None, Until::Space | Until::End) => Ok(word),
        }
    }

    /// What follows a `$`.
    fn variable(&self, reader: &mut Reader, depth: usize) -> Result<String, String> {
        let is_braced = reader.peek() == Some('{');
        reader.at += usize::from(is_braced);
        let name = reader.name();
        let value = self.vars.get(&name);
        let copied = || -> Result<String, String> {
            self.allowance.take(value.map_or(0, String::len))?;
            Ok(value.cloned().unwrap_or_default())
        };
        if !is_braced {
            // A `$` before anything else is itself.
            return if name.is_empty() { Ok("$".to_owned()) } else { copied() };
        }
        if name.is_empty() {
            return Err("${ is followed by no name".to_owned());
        }
        let is_strict = reader.peek() == Some(':');
        reader.at += usize::from(is_strict);
        let operation = reader.peek();
        reader.at += 1;
        let is_set = value.is_some_and(|value| !is_strict || !value.is_empty());
        match operation {
            Some('}') if !is_strict => copied(),
            Some(operation @ ('-' | '+' | '?')) => {
                let other = self.read(reader, Until::Brace, depth + 1)?;
                reader.at += 1;
                match (operation, is_set) {
                    ('+', true) => Ok(other),
                    ('+', false) => Ok(String::new()),
                    (_, true) => copied(),
                    ('?', false) => Err(format!("${{{name}}} is not set: {other}")),
                    (_, false) => Ok(other),
                }
            }
            _ => Err(format!(
                "${{{name}… is not understood; known are ${{{name}}}, ${{{name}:-default}} and ${{{name}:+value}}"
            )),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    Space,
    Brace,
    End,
}

struct Reader {
    chars: Vec<char>,
    at: usize,
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(next) = self.peek().filter(|c| c.is_ascii_alphanumeric() || *c == '_') {
            if name.is_empty() && next.is_ascii_digit() {
                break;
            }
            name.push(next);
            self.at += 1;
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cut_and_expanded() {
        let vars = BTreeMap::from([("A".to_owned(), "x y".to_owned()), ("E".to_owned(), String::new())]);
        let allowance = Allowance::new();
        let words = Words { vars: &vars, escape: '\\', allowance: &allowance };
        for (text, expected) in [
            ("a  b\tc", Ok(vec!["a", "b", "c"])),
            ("\"a b\" 'c d'", Ok(vec!["a b", "c d"])),
            ("a\\ b", Ok(vec!["a b"])),
            ("$A ${A}z", Ok(vec!["x y", "x yz"])),
            ("'$A' \"$A\" \\$A \"\\$A\"", Ok(vec!["$A", "x y", "$A", "$A"])),
            ("${B:-d} ${B-d} ${E:-d} ${E-d}", Ok(vec!["d", "d", "d", ""])),
            ("${A:+s}${B:+s}", Ok(vec!["s"])),
            ("${B:-${A}}", Ok(vec!["x y"])),
            ("$ a$", Ok(vec!["$", "a$"])),
            ("$B", Ok(vec![""])),
            ("${B:?no}", Err("${B} is not set: no")),
            ("\"a", Err("a quote \" has no end")),
            ("${A", Err("${A… is not understood; known are ${A}, ${A:-default} and ${A:+value}")),
            ("${A:-x", Err("a ${ has no }")),
            ("${}", Err("${ is followed by no name")),
            ("${A#x}", Err("${A… is not understood; known are ${A}, ${A:-default} and ${A:+value}")),
        ] {
            let expected = expected.map(|words| words.into_iter().map(str::to_owned).collect()).map_err(str::to_owned);
            assert_eq!(words.split(text), expected, "{text}");
        }
        let deep = format!("{}x{}", "${B:-".repeat(40), "}".repeat(40));
        assert!(words.split(&deep).is_err());
    }
}
