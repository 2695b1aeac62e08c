//! Splits Rust source into code and comments, line by line.
//!
//! This is a lexer of four constructs (comments, strings, characters, raw strings), not a parser: enough that a
//! keyword in a string or comment is not taken for code. Literals are blanked out; comments keep their text. Lines
//! and their numbers are those of the file.

pub struct Source {
    pub lines: Vec<Line>,
}

/// One line, separated into code and comment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Without comments, and with empty literals.
    pub code: String,
    /// The text of the comments on this line.
    pub comment: String,
    /// Whether it belongs to an item under `#[cfg(test)]`.
    pub is_test: bool,
}

impl Source {
    pub fn parse(text: &str) -> Self {
        let mut lines = Lexer::new(text).run();
        mark_tests(&mut lines);
        Self { lines }
    }

    /// Numbered from 1.
    pub fn numbered(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.lines.iter().enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// What the next character belongs to.
enum Mode {
    Code,
    LineComment,
    BlockComment { depth: usize },
    Text,
    RawText { hashes: usize },
}

struct Lexer {
    characters: Vec<char>,
    position: usize,
    mode: Mode,
    lines: Vec<Line>,
    line: Line,
}

impl Lexer {
    fn new(text: &str) -> Self {
        Self {
            characters: text.chars().collect(),
            position: 0,
            mode: Mode::Code,
            lines: Vec::new(),
            line: Line::default(),
        }
    }

    fn run(mut self) -> Vec<Line> {
        while let Some(&c) = self.characters.get(self.position) {
            if c == '\n' {
                if matches!(self.mode, Mode::LineComment) {
                    self.mode = Mode::Code;
                }
                self.lines.push(std::mem::take(&mut self.line));
                self.position += 1;
                continue;
            }
            match self.mode {
                Mode::Code => self.code(c),
                Mode::LineComment => self.comment(1),
                Mode::BlockComment { depth } => self.block_comment(depth),
                Mode::Text => self.text(c),
                Mode::RawText { hashes } => self.raw_text(c, hashes),
            }
        }
        if self.line != Line::default() {
            self.lines.push(self.line);
        }
        self.lines
    }

    fn code(&mut self, c: char) {
        if self.looks_at("//") {
            self.mode = Mode::LineComment;
            self.comment(2);
        } else if self.looks_at("/*") {
            self.mode = Mode::BlockComment { depth: 1 };
            self.comment(2);
        } else if c == '"' {
            self.mode = self.raw_hashes().map_or(Mode::Text, |hashes| Mode::RawText { hashes });
            self.keep(1);
        } else if c == '\'' {
            self.quote();
        } else {
            self.keep(1);
        }
    }

    /// A quote begins a character (`'x'`, `'\n'`) or a lifetime (`'a`).
    fn quote(&mut self) {
        let length = match (self.peek(1), self.peek(2)) {
            (Some('\\'), _) => {
                // The escaped character may be a quote itself, so the closing one is searched after it.
                let rest = self.characters.get(self.position + 3..).unwrap_or_default();
                rest.iter().take_while(|c| **c != '\n').position(|c| *c == '\'').map(|at| at + 4)
            }
            (Some(_), Some('\'')) => Some(3),
            _ => None,
        };
        self.keep(1);
        if let Some(length) = length {
            self.position += length - 1;
        }
    }

    fn block_comment(&mut self, depth: usize) {
        if self.looks_at("/*") {
            self.mode = Mode::BlockComment { depth: depth + 1 };
            self.comment(2);
        } else if self.looks_at("*/") {
            self.mode = if depth == 1 { Mode::Code } else { Mode::BlockComment { depth: depth - 1 } };
            self.comment(2);
        } else {
            self.comment(1);
        }
    }

    fn text(&mut self, c: char) {
        match c {
            // A backslash at the end of a line escapes the newline, which still has to be counted.
            '\\' if self.peek(1) != Some('\n') => self.position += 2,
            '"' => {
                self.mode = Mode::Code;
                self.keep(1);
            }
            _ => self.position += 1,
        }
    }

    fn raw_text(&mut self, c: char, hashes: usize) {
        let closes = c == '"' && (1..=hashes).all(|ahead| self.peek(ahead) == Some('#'));
        if closes {
            self.mode = Mode::Code;
            self.keep(1 + hashes);
        } else {
            self.position += 1;
        }
    }

    /// The number of hashes between this quote and an `r`, `br` or `cr` before it; `None` if it opens an ordinary
    /// string.
    fn raw_hashes(&self) -> Option<usize> {
        let before = &self.characters[..self.position];
        let hashes = before.iter().rev().take_while(|c| **c == '#').count();
        let before = &before[..before.len() - hashes];
        let prefix: String = before.iter().rev().take_while(|c| c.is_alphanumeric() || **c == '_').collect();
        matches!(prefix.as_str(), "r" | "rb" | "rc").then_some(hashes)
    }

    fn looks_at(&self, wanted: &str) -> bool {
        wanted.chars().enumerate().all(|(ahead, c)| self.peek(ahead) == Some(c))
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.characters.get(self.position + ahead).copied()
    }

    fn keep(&mut self, count: usize) {
        self.line.code.extend(&self.characters[self.position..self.position + count]);
        self.position += count;
    }

    fn comment(&mut self, count: usize) {
        self.line.comment.extend(&self.characters[self.position..self.position + count]);
        self.position += count;
    }
}

/// Marks each item under `#[cfg(test)]`, from the attribute to its closing brace or semicolon.
fn mark_tests(lines: &mut [Line]) {
    let mut inside = false;
    let mut depth = 0_usize;
    for line in lines {
        let code = line.code.trim_start();
        let mut rest = line.code.as_str();
        if !inside && (code.starts_with("#[cfg(test)]") || code.starts_with("#[cfg(all(test,")) {
            inside = true;
            // The attribute may share its line with the item.
            rest = code.split_once(']').map_or("", |(_, item)| item);
        }
        line.is_test = inside;
        if !inside {
            continue;
        }
        for c in rest.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 && matches!(c, '}' | ';') {
                inside = false;
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_code(text: &str, expected: &[&str]) {
        let source = Source::parse(text);
        assert_eq!(source.lines.iter().map(|line| line.code.as_str()).collect::<Vec<_>>(), expected, "{text}");
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        for (text, expected) in [
            ("a // b\nc", &["a ", "c"] as &[_]),
            ("a /* b /* c */ d\n e */ f", &["a ", " f"]),
            (r#"x("// no \" comment") y"#, &[r#"x("") y"#]),
            (r##"x(r#"a "quoted" b"#) y"##, &[r##"x(r#""#) y"##]),
            (r##"x(br#"a"#) y"##, &[r##"x(br#""#) y"##]),
            ("r#fn(\"a\") b", &["r#fn(\"\") b"]),
            ("x = \"a \\\n  b\"; y", &["x = \"", "\"; y"]),
            ("x = \"a\n  b\"; y", &["x = \"", "\"; y"]),
            (r#"'"' a '\'' b '\u{1f600}' c b'\\' d"#, &["' a ' b ' c b' d"]),
            ("fn f<'a>(x: &'a str) {}", &["fn f<'a>(x: &'a str) {}"]),
        ] {
            check_code(text, expected);
        }
    }

    #[test]
    fn comments_keep_their_words() {
        let source = Source::parse("a; // why\n/* and\n so */ b");
        let comments: Vec<_> = source.lines.iter().map(|line| line.comment.as_str()).collect();
        assert_eq!(comments, ["// why", "/* and", " so */"]);
    }

    #[test]
    fn lines_are_those_of_the_file() {
        let text = include_str!("source.rs");
        assert_eq!(Source::parse(text).lines.len(), text.lines().count());
    }

    #[test]
    fn test_items_end_where_their_braces_do() {
        let text = "a\n#[cfg(test)]\nmod tests {\n  fn f() { \"}\"; }\n}\nb\n#[cfg(test)] mod more;\nc\n";
        let marks: Vec<_> = Source::parse(text).lines.iter().map(|line| line.is_test).collect();
        assert_eq!(marks, [false, true, true, true, true, false, true, false]);
    }
}
