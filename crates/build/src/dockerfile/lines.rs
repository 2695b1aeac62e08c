//! Cuts a Dockerfile into instructions: comments, continued lines, the directive `escape`, and here-documents of RUN.

use saggar_domain::Problem;

use super::wrong;

/// Maximum size of a file.
const FILE_BYTES_MAX: usize = 4 << 20;

/// One instruction, with the line that it begins on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) number: u32,
    /// In upper case.
    pub(super) name: String,
    /// What follows the name, with continued lines joined.
    pub(super) rest: String,
    /// The here-documents that follow it, with their markers' names.
    pub(super) documents: Vec<Document>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Document {
    pub(super) marker: String,
    /// With the line of its end.
    pub(super) text: String,
    pub(super) body: String,
}

/// The instructions, and the character that escapes.
pub(super) fn cut(text: &str) -> Result<(Vec<Line>, char), Problem> {
    if text.len() > FILE_BYTES_MAX {
        return Err(wrong(1, format!("the file has more than {} MiB", FILE_BYTES_MAX >> 20), "shorten it"));
    }
    let text = text.trim_start_matches('\u{feff}');
    let escape = escape(text)?;
    let mut lines = Vec::new();
    let mut rows = text.lines().enumerate();
    while let Some((index, row)) = rows.next() {
        let number = u32::try_from(index + 1).unwrap_or(u32::MAX);
        if is_empty(row) {
            continue;
        }
        let mut whole = String::new();
        let mut part = row;
        while let Some(begin) = continued(part, escape) {
            whole.push_str(begin);
            // Comments and empty lines between continued lines are left out.
            let next = rows.by_ref().find(|(_, row)| !is_empty(row));
            part = next.map_or("", |(_, row)| row);
            if next.is_none() {
                break;
            }
        }
        whole.push_str(part);
        let whole = whole.trim();
        let (name, rest) = whole.split_once(char::is_whitespace).unwrap_or((whole, ""));
        let (name, rest) = (name.to_ascii_uppercase(), rest.trim().to_owned());
        let mut documents = Vec::new();
        if matches!(name.as_str(), "RUN" | "COPY" | "ADD") {
            for (marker, is_indented) in markers(&rest) {
                documents.push(document(&mut rows, number, marker, is_indented)?);
            }
        }
        lines.push(Line { number, name, rest, documents });
    }
    Ok((lines, escape))
}

/// Directives are comments at the very top.
fn escape(text: &str) -> Result<char, Problem> {
    for (index, row) in text.lines().enumerate() {
        let Some((name, value)) = row.trim().strip_prefix('#').and_then(|rest| rest.split_once('=')) else { break };
        let (name, value) = (name.trim(), value.trim());
        if name.eq_ignore_ascii_case("escape") {
            return match value {
                "\\" => Ok('\\'),
                "`" => Ok('`'),
                _ => Err(wrong(
                    index as u32 + 1,
                    format!("{value:?} can't escape"),
                    "use \\ or ` in the directive escape",
                )),
            };
        }
        if name.contains(char::is_whitespace) {
            break;
        }
    }
    Ok('\\')
}

fn is_empty(row: &str) -> bool {
    let row = row.trim_start();
    row.is_empty() || row.starts_with('#')
}

/// The part before the escape at the end of a line.
fn continued(row: &str, escape: char) -> Option<&str> {
    row.trim_end().strip_suffix(escape)
}

/// The here-documents that a line announces: `<<NAME`, `<<-NAME`, `<<"NAME"`, outside of quotes.
fn markers(rest: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    let mut quote = None;
    let mut at = 0;
    let bytes = rest.as_bytes();
    while at < bytes.len() {
        match (bytes[at], quote) {
            (byte @ (b'"' | b'\''), None) => quote = Some(byte),
            (byte, Some(open)) if byte == open => quote = None,
            (b'<', None) if bytes.get(at + 1) == Some(&b'<') && bytes.get(at + 2) != Some(&b'<') => {
                let after = &rest[at + 2..];
                let (is_indented, after) = after.strip_prefix('-').map_or((false, after), |after| (true, after));
                let after = after.trim_start_matches(['"', '\'']);
                let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if name.starts_with(|c: char| c.is_alphabetic() || c == '_') {
                    found.push((name, is_indented));
                }
                at += 1;
            }
            // A here-string of some shells.
            (b'<', None) if bytes.get(at + 1) == Some(&b'<') => at += 2,
            _ => {}
        }
        at += 1;
    }
    found
}

fn document<'a>(
    rows: &mut impl Iterator<Item = (usize, &'a str)>,
    number: u32,
    marker: String,
    is_indented: bool,
) -> Result<Document, Problem> {
    let (mut text, mut body) = (String::new(), String::new());
    for (_, row) in rows {
        let shown = if is_indented { row.trim_start_matches('\t') } else { row };
        text.push_str(row);
        if shown == marker {
            return Ok(Document { marker, text, body });
        }
        text.push('\n');
        body.push_str(shown);
        body.push('\n');
    }
    Err(wrong(number, format!("the here-document {marker:?} has no end"), format!("end it with a line {marker}")))
}
