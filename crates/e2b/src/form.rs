//! Forms with files, read as they come: `multipart/form-data`, as RFC 7578 and browsers have it.
//!
//! No IO is done here. Bytes go in as they arrive, and parts come out: its headers first, then pieces of its content, then its end. What
//! may be the beginning of a boundary is held back, and nothing else is.

use bytes::{Buf, Bytes, BytesMut};

/// Most bytes of the headers of one part.
const HEADERS_MAX: usize = 16 * 1024;
/// Longest boundary, by RFC 2046.
const BOUNDARY_MAX: usize = 70;

/// Why a form isn't taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the form can't be read: {0}")]
pub(super) struct FormError(&'static str);

/// A piece of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// A part begins.
    Part {
        /// Which field it is of.
        name: String,
        /// What its file is called.
        file_name: Option<String>,
    },
    /// More of the part's content.
    Data(Bytes),
    /// The part is whole.
    End,
}

/// A form that is being read.
#[derive(Debug)]
pub(super) struct Form {
    /// What is between two parts, and before it the end of a line.
    delimiter: Vec<u8>,
    buffer: BytesMut,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first boundary.
    Preamble,
    /// After a boundary: a part, or the end.
    Between,
    Headers,
    Content,
    Over,
}

impl Form {
    /// A form of this content type.
    pub(super) fn of(content_type: &str) -> Result<Self, FormError> {
        let boundary = parameter(content_type, "boundary").ok_or(FormError("no boundary is given"))?;
        if boundary.is_empty() || boundary.len() > BOUNDARY_MAX {
            return Err(FormError("the boundary is too long or too short"));
        }
        let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
        // So that the first boundary looks like all others.
        let buffer = BytesMut::from(&b"\r\n"[..]);
        Ok(Self { delimiter, buffer, state: State::Preamble })
    }

    /// More of the body.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// What comes next; `None` when more must go in.
    pub(super) fn next(&mut self) -> Result<Option<Item>, FormError> {
        loop {
            match self.state {
                State::Preamble => match find(&self.buffer, &self.delimiter) {
                    Some(at) => {
                        self.buffer.advance(at + self.delimiter.len());
                        self.state = State::Between;
                    }
                    None if self.buffer.len() > HEADERS_MAX => {
                        return Err(FormError("it doesn't begin with its boundary"));
                    }
                    None => return Ok(None),
                },
                State::Between => {
                    if self.buffer.starts_with(b"--") {
                        self.state = State::Over;
                        continue;
                    }
                    // Blanks may follow a boundary.
                    let Some(end) = find(&self.buffer, b"\r\n") else {
                        return if self.buffer.len() > HEADERS_MAX {
                            Err(FormError("a boundary's line has no end"))
                        } else {
                            Ok(None)
                        };
                    };
                    if !self.buffer[..end].iter().all(|byte| matches!(byte, b' ' | b'\t')) {
                        return Err(FormError("a boundary is followed by something else"));
                    }
                    // The line's end stays: it may be that of headers that there are none of.
                    self.buffer.advance(end);
                    self.state = State::Headers;
                }
                State::Headers => {
                    let Some(end) = find(&self.buffer, b"\r\n\r\n") else {
                        return if self.buffer.len() > HEADERS_MAX {
                            Err(FormError("the headers of a part are too long"))
                        } else {
                            Ok(None)
                        };
                    };
                    let headers = self.buffer.split_to(end + 4);
                    self.state = State::Content;
                    return part(&headers).map(Some);
                }
                State::Content => return Ok(self.content()),
                State::Over => {
                    // Whatever comes after is nobody's.
                    self.buffer.clear();
                    return Ok(None);
                }
            }
        }
    }

    fn content(&mut self) -> Option<Item> {
        match find(&self.buffer, &self.delimiter) {
            Some(0) => {
                self.buffer.advance(self.delimiter.len());
                self.state = State::Between;
                Some(Item::End)
            }
            Some(at) => Some(Item::Data(self.buffer.split_to(at).freeze())),
            None => {
                let sure = self.buffer.len().saturating_sub(self.delimiter.len() - 1);
                (sure > 0).then(|| Item::Data(self.buffer.split_to(sure).freeze()))
            }
        }
    }

    /// The body has ended: was that all of the form?
    pub(super) fn finish(&self) -> Result<(), FormError> {
        if self.state == State::Over { Ok(()) } else { Err(FormError("it breaks off")) }
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    // All that is looked for begins with the end of a line, which content seldom has.
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == wanted[0]) {
        from += at;
        if bytes[from..].starts_with(wanted) {
            return Some(from);
        }
        from += 1;
    }
    None
}

fn part(headers: &[u8]) -> Result<Item, FormError> {
    let text = std::str::from_utf8(headers).map_err(|_| FormError("the headers of a part are not UTF-8"))?;
    let disposition = text.split("\r\n").filter_map(|line| line.split_once(':'));
    let disposition =
        disposition.filter(|(name, _)| name.trim().eq_ignore_ascii_case("content-disposition")).map(|(_, value)| value);
    let disposition = disposition.last().ok_or(FormError("a part has no Content-Disposition"))?;
    let name = parameter(disposition, "name").ok_or(FormError("a part has no name"))?;
    Ok(Item::Part {
        name: unescaped(&name),
        file_name: parameter(disposition, "filename").map(|name| unescaped(&name)),
    })
}

/// What browsers escape in a name, and nothing else: a percent sign of its own stays one.
fn unescaped(text: &str) -> String {
    text.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n")
}

/// A parameter of a header: `; name=value` or `; name="value"`, in which a backslash makes the next character plain.
fn parameter(header: &str, wanted: &str) -> Option<String> {
    let mut rest = header.split_once(';')?.1;
    loop {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = value(after)?;
        if name.trim().trim_start_matches(';').trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = after;
    }
}

fn value(text: &str) -> Option<(String, &str)> {
    let text = text.trim_start();
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        return Some((text[..end].trim_end().to_owned(), &text[end..]));
    };
    let (mut value, mut is_escaped) = (String::new(), false);
    for (at, character) in quoted.char_indices() {
        match character {
            _ if is_escaped => {
                value.push(character);
                is_escaped = false;
            }
            '\\' => is_escaped = true,
            '"' => return Some((value, &quoted[at + 1..])),
            _ => value.push(character),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "multipart/form-data; boundary=XX";

    type Parts = Vec<(Option<String>, Vec<u8>)>;

    fn read(body: &[u8], piece: usize) -> Result<Parts, FormError> {
        let mut form = Form::of(KIND)?;
        let (mut parts, mut whole) = (Vec::new(), 0);
        for piece in body.chunks(piece) {
            form.push(piece);
            while let Some(item) = form.next()? {
                match item {
                    Item::Part { file_name, .. } => parts.push((file_name, Vec::new())),
                    Item::Data(bytes) => parts.last_mut().unwrap().1.extend_from_slice(&bytes),
                    Item::End => whole += 1,
                }
            }
        }
        form.finish()?;
        assert_eq!(whole, parts.len());
        Ok(parts)
    }

    #[test]
    fn parts_come_out_however_they_are_cut() {
        let body = b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a b/\xc3\xa9.txt\"\r\nContent-Type: text/plain\r\n\r\n\
            one\r\n--X\r\n--XY\r\r\n--XX\r\ncontent-disposition: form-data; filename=x;name=file\r\n\r\n\r\n--XX--\r\nepilogue";
        for piece in [1, 2, 7, 1000] {
            let parts = read(body, piece).unwrap();
            assert_eq!(parts[0], (Some("a b/é.txt".to_owned()), b"one\r\n--X\r\n--XY\r".to_vec()), "{piece}");
            assert_eq!(parts[1], (Some("x".to_owned()), Vec::new()), "{piece}");
        }
    }

    #[test]
    fn what_is_no_form_is_refused() {
        for wrong in [
            &b""[..],
            b"--XX\r\n",
            b"--XX\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nabc",
            b"--XX\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nabc\r\n--XX",
            b"--XX\r\nContent-Type: x\r\n\r\nabc\r\n--XX--",
            b"--XXjunk\r\n\r\n\r\n--XX--",
            b"nothing like it",
        ] {
            assert!(read(wrong, 5).is_err(), "{:?}", String::from_utf8_lossy(wrong));
        }
        assert!(read(&[b"--XX\r\nA: ", &[b'x'; 20_000][..]].concat(), 1000).is_err());
        for kind in ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=\"unended"]
        {
            assert!(Form::of(kind).is_err(), "{kind}");
        }
    }

    #[test]
    fn names_are_unescaped_as_browsers_escape_them() {
        let name = |text: &str| parameter(text, "filename").map(|name| unescaped(&name));
        assert_eq!(name("form-data; name=\"a\"; filename=\"q%22q%.txt\"").unwrap(), "q\"q%.txt");
        assert_eq!(name("form-data; filename=\"a\\\"b;c\"; x=y").unwrap(), "a\"b;c");
        assert_eq!(name("form-data; name=\"filename=x\""), None);
    }
}
