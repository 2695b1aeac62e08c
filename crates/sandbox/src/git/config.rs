//! Parses git's configuration files by git's own grammar.
//!
//! The alternative would be to ask the host's git: a process for each file and each start, of whichever version comes
//! first on PATH, and none on a host without git. It would also leave out what `includeIf` adds under another
//! condition. The grammar is small and has not changed in relevant ways, so this follows it step by step
//! (`git_parse_source` in git's config.c), and a test compares it with git itself. What git would not parse is an error
//! here too.

/// One setting. Sections and names are in lower case, sub-sections as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// `section.name` or `section.sub-section.name`; the sub-section may hold any byte.
    key: Vec<u8>,
    /// `None` for a name that stands alone, which means "true".
    pub(crate) value: Option<Vec<u8>>,
}

impl Setting {
    /// Creates a setting from its whole key. Sections and names are case-insensitive.
    pub(crate) fn new(key: &[u8], value: Option<Vec<u8>>) -> Self {
        let mut key = key.to_vec();
        let first = key.iter().position(|byte| *byte == b'.').unwrap_or(key.len());
        let last = key.iter().rposition(|byte| *byte == b'.').unwrap_or(0);
        key[..first].make_ascii_lowercase();
        key[last..].make_ascii_lowercase();
        Self { key, value }
    }

    pub(crate) fn section(&self) -> &[u8] {
        self.key.split(|byte| *byte == b'.').next().unwrap_or_default()
    }

    /// Whatever is between the first part and the last, if anything.
    pub(crate) fn sub_section(&self) -> Option<&[u8]> {
        let first = self.section().len() + 1;
        let last = self.key.len() - self.name().len();
        (first < last).then(|| &self.key[first..last - 1])
    }

    pub(crate) fn is_in(&self, section: &[u8], sub_section: &[u8]) -> bool {
        self.section() == section && self.sub_section() == Some(sub_section)
    }

    pub(crate) fn name(&self) -> &[u8] {
        self.key.rsplit(|byte| *byte == b'.').next().unwrap_or_default()
    }

    pub(crate) fn is(&self, key: &str) -> bool {
        self.key == key.as_bytes()
    }

    /// Whether its value is the path of a file to include.
    pub(crate) fn is_include(&self) -> bool {
        matches!(self.section(), b"include" | b"includeif") && self.name() == b"path"
    }
}

/// A file that git doesn't parse either.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

pub(crate) fn parse(bytes: &[u8]) -> Result<Vec<Setting>, Malformed> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut reader = Reader { bytes, at: 0, is_at_end: false };
    let mut settings = Vec::new();
    let mut section = Vec::new();
    loop {
        match reader.next() {
            b'\n' if reader.is_at_end => return Ok(settings),
            b'#' | b';' => while reader.next() != b'\n' {},
            byte if is_space(byte) => {}
            b'[' => section = reader.section()?,
            byte if byte.is_ascii_alphabetic() => settings.push(reader.setting(&section, byte)?),
            _ => return Err(Malformed),
        }
        if reader.is_at_end {
            return Ok(settings);
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    is_at_end: bool,
}

impl Reader<'_> {
    /// The next byte; both kinds of line end are treated the same, and the end of the file ends a line.
    fn next(&mut self) -> u8 {
        let Some(byte) = self.bytes.get(self.at) else {
            self.is_at_end = true;
            return b'\n';
        };
        self.at += 1;
        if *byte == b'\r' && self.bytes.get(self.at) == Some(&b'\n') {
            self.at += 1;
            return b'\n';
        }
        *byte
    }

    /// The rest of `[section]` or `[section "sub-section"]`, as the beginning of a key.
    fn section(&mut self) -> Result<Vec<u8>, Malformed> {
        let mut key = Vec::new();
        loop {
            let byte = self.next();
            if self.is_at_end {
                return Err(Malformed);
            }
            match byte {
                b']' => break,
                byte if is_space(byte) => {
                    self.sub_section(byte, &mut key)?;
                    break;
                }
                byte if is_key(byte) || byte == b'.' => key.push(byte.to_ascii_lowercase()),
                _ => return Err(Malformed),
            }
        }
        if key.is_empty() {
            return Err(Malformed);
        }
        key.push(b'.');
        Ok(key)
    }

    fn sub_section(&mut self, mut byte: u8, key: &mut Vec<u8>) -> Result<(), Malformed> {
        while is_space(byte) {
            if byte == b'\n' {
                return Err(Malformed);
            }
            byte = self.next();
        }
        if byte != b'"' {
            return Err(Malformed);
        }
        key.push(b'.');
        loop {
            match self.next() {
                b'\n' => return Err(Malformed),
                b'"' => break,
                b'\\' => match self.next() {
                    b'\n' => return Err(Malformed),
                    byte => key.push(byte),
                },
                byte => key.push(byte),
            }
        }
        if self.next() == b']' { Ok(()) } else { Err(Malformed) }
    }

    fn setting(&mut self, section: &[u8], first: u8) -> Result<Setting, Malformed> {
        let mut key = section.to_vec();
        key.push(first.to_ascii_lowercase());
        let mut byte = self.next();
        while !self.is_at_end && is_key(byte) {
            key.push(byte.to_ascii_lowercase());
            byte = self.next();
        }
        while matches!(byte, b' ' | b'\t') {
            byte = self.next();
        }
        let value = match byte {
            b'\n' => None,
            b'=' => Some(self.value()?),
            _ => return Err(Malformed),
        };
        Ok(Setting { key: up_to_nul(key), value: value.map(up_to_nul) })
    }

    fn value(&mut self) -> Result<Vec<u8>, Malformed> {
        let mut value = Vec::new();
        let (mut is_quoted, mut is_comment) = (false, false);
        // Start of the blanks at the end of the value.
        let mut blanks_from: Option<usize> = None;
        loop {
            match self.next() {
                b'\n' if is_quoted => return Err(Malformed),
                b'\n' => {
                    value.truncate(blanks_from.unwrap_or(value.len()));
                    return Ok(value);
                }
                _ if is_comment => {}
                byte if is_space(byte) && !is_quoted => {
                    if !value.is_empty() {
                        blanks_from.get_or_insert(value.len());
                        value.push(byte);
                    }
                }
                b';' | b'#' if !is_quoted => is_comment = true,
                byte => {
                    blanks_from = None;
                    match byte {
                        b'\\' => match self.next() {
                            b'\n' => {}
                            b't' => value.push(b'\t'),
                            b'b' => value.push(8),
                            b'n' => value.push(b'\n'),
                            same @ (b'\\' | b'"') => value.push(same),
                            _ => return Err(Malformed),
                        },
                        b'"' => is_quoted = !is_quoted,
                        byte => value.push(byte),
                    }
                }
            }
        }
    }
}

/// git ends a value there.
fn up_to_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    bytes
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn is_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn values(text: &str, key: &str) -> Vec<String> {
        let settings = parse(text.as_bytes()).unwrap();
        let found = settings.into_iter().filter(|setting| setting.is(key)).filter_map(|setting| setting.value);
        found.map(|value| String::from_utf8(value).unwrap()).collect()
    }

    #[test]
    fn every_way_to_write_a_value_is_read() {
        for (text, expected) in [
            ("[core]\n\thooksPath = .gh # ours\n", vec![".gh"]),
            ("[core]\n\thooksPath = .gh ; ours", vec![".gh"]),
            ("[core] hooksPath = .gh", vec![".gh"]),
            ("[CORE]\r\nHOOKSPATH=.g\\\nh\r\n", vec![".gh"]),
            ("[core]\nhooksPath = \".g\"h", vec![".gh"]),
            ("[core]\nhooksPath = \" a;b \"  ", vec![" a;b "]),
            ("\u{feff}[core]\nhooksPath = one\n[other]\n[core]\nhooksPath = two", vec!["one", "two"]),
            ("[core \"sub\"]\nhooksPath = .gh", vec![]),
            ("[core]\nhooksPath\n", vec![]),
        ] {
            assert_eq!(values(text, "core.hookspath"), expected, "{text:?}");
        }
    }

    /// git's result: keys and values, or `None` if it gives up.
    fn by_git(text: &[u8], file: &std::path::Path) -> Option<Vec<Setting>> {
        std::fs::write(file, text).unwrap();
        let output = Command::new("git")
            .args(["config", "--list", "-z", "--no-includes", "--file"])
            .arg(file)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .stdin(Stdio::null())
            .output()
            .expect("git is installed by make test");
        let entries = output.stdout.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
        output.status.success().then(|| {
            entries
                .map(|entry| match entry.iter().position(|byte| *byte == b'\n') {
                    // A sub-section may contain anything but a line end.
                    Some(end) => Setting { key: entry[..end].to_vec(), value: Some(entry[end + 1..].to_vec()) },
                    None => Setting { key: entry.to_vec(), value: None },
                })
                .collect()
        })
    }

    #[test]
    fn git_itself_reads_the_same() {
        const PIECES: &[&str] = &[
            "[core]",
            "[core",
            "]",
            "[a \"b.C\"]",
            "[a \"b\\\"]\"]",
            "[a.B]",
            "[ x]",
            "[x \t\"y\" ]",
            "hooksPath",
            "n-1",
            "1n",
            "=",
            " = ",
            "\n",
            "\n",
            "\n",
            "\r\n",
            "\r",
            " ",
            "\t",
            "\"",
            "\\",
            "\\\n",
            "\\n",
            "\\t",
            "\\b",
            "\\\\",
            "\\\"",
            "\\x",
            "#",
            ";",
            "v",
            "V w",
            ".gh",
            "\u{feff}",
            "\u{e9}",
            "\x0b",
            "\x0c",
            "\0",
        ];
        let file = std::env::temp_dir().join(format!("saggar-config-{}", std::process::id()));
        // A deterministic generator, so that a failure can be repeated.
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = |bound: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % bound as u64) as usize
        };
        let mut read = 0;
        for round in 0..500 {
            let mut text = if round % 4 == 0 { String::new() } else { "[core]\n".to_owned() };
            for _ in 0..next(9) {
                // Mostly well-formed, so that most of a file is reached.
                match next(8) {
                    0 => text.push_str(PIECES[next(PIECES.len())]),
                    _ => {
                        text.push_str("k = ");
                        (0..next(4)).for_each(|_| text.push_str(PIECES[8 + next(PIECES.len() - 8)]));
                        text.push('\n');
                    }
                }
            }
            let (ours, theirs) = (parse(text.as_bytes()).ok(), by_git(text.as_bytes(), &file));
            assert_eq!(ours, theirs, "round {round}: {text:?}");
            read += usize::from(ours.is_some_and(|settings| !settings.is_empty()));
        }
        std::fs::remove_file(file).unwrap();
        assert!(read > 100, "only {read} files had anything in them");
    }
}
