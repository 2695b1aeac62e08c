//! Server-sent events, parsed as the bytes arrive, within bounds.
//!
//! Accepts what clients of the providers accept: LF, CRLF and CR, comments, `data:` with and without a space, data over several
//! lines, a byte-order mark. An event that the end of the stream cuts off is not an event.

use bytes::{Buf, BytesMut};

/// Maximum size of one event, in bytes. Clients take seconds for larger ones.
pub const EVENT_BYTES_MAX: usize = 8 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEvent {
    /// Empty if the event has none.
    pub name: String,
    pub data: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    #[error("an event of the stream is larger than {EVENT_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the stream is not UTF-8")]
    NotText,
}

#[derive(Debug, Default)]
pub struct SseParser {
    /// Bytes that are no complete line yet.
    rest: BytesMut,
    /// How far `rest` has been searched for the end of a line.
    searched: usize,
    name: String,
    data: String,
    has_data: bool,
    is_begun: bool,
}

impl SseParser {
    pub fn push(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
    }

    /// The next complete event.
    pub fn next(&mut self) -> Result<Option<SseEvent>, SseError> {
        while let Some(line) = self.line()? {
            if line.is_empty() {
                let has_data = std::mem::take(&mut self.has_data);
                let event = SseEvent { name: std::mem::take(&mut self.name), data: std::mem::take(&mut self.data) };
                if has_data {
                    return Ok(Some(event));
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "data" => {
                    if self.has_data {
                        self.data.push('\n');
                    }
                    self.data.push_str(value);
                    self.has_data = true;
                    if self.data.len() > EVENT_BYTES_MAX {
                        return Err(SseError::TooLarge);
                    }
                }
                "event" => value.clone_into(&mut self.name),
                // Comments, ids and retry times.
                _ => {}
            }
        }
        Ok(None)
    }

    /// The next line, without its end.
    fn line(&mut self) -> Result<Option<String>, SseError> {
        if !self.is_begun {
            const MARK: &[u8] = b"\xef\xbb\xbf";
            if self.rest.len() < MARK.len() && MARK.starts_with(&self.rest) {
                return Ok(None);
            }
            if self.rest.starts_with(MARK) {
                self.rest.advance(MARK.len());
            }
            self.is_begun = true;
        }
        let found = self.rest[self.searched..].iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        let Some(end) = found.map(|at| at + self.searched) else {
            self.searched = self.rest.len();
            return if self.rest.len() > EVENT_BYTES_MAX { Err(SseError::TooLarge) } else { Ok(None) };
        };
        let length = match (self.rest[end], self.rest.get(end + 1)) {
            (b'\r', Some(b'\n')) => 2,
            // The line feed may still come.
            (b'\r', None) => {
                self.searched = end;
                return Ok(None);
            }
            _ => 1,
        };
        let line = self.rest.split_to(end);
        self.rest.advance(length);
        self.searched = 0;
        std::str::from_utf8(&line).map(|line| Some(line.to_owned())).map_err(|_| SseError::NotText)
    }
}

/// The text of an event, as every client accepts it: no ids, no retry times, one line of data.
pub fn written(name: &str, data: &str) -> String {
    let mut text = String::with_capacity(name.len() + data.len() + 16);
    if !name.is_empty() {
        text.push_str("event: ");
        text.push_str(name);
        text.push('\n');
    }
    for line in data.split('\n') {
        text.push_str("data: ");
        text.push_str(line);
        text.push('\n');
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let (mut parser, mut events) = (SseParser::default(), Vec::new());
        for piece in pieces {
            parser.push(piece);
            while let Some(event) = parser.next().unwrap() {
                events.push((event.name, event.data));
            }
        }
        events
    }

    #[test]
    fn every_spelling_of_a_stream_is_read() {
        let expected = vec![("a".to_owned(), "1".to_owned()), (String::new(), "2\n3".to_owned())];
        for text in [
            "event: a\ndata: 1\n\ndata: 2\ndata: 3\n\n",
            "event:a\r\ndata:1\r\n\r\ndata:2\r\ndata:3\r\n\r\n",
            "\u{feff}: hi\n\nevent: a\nid: 7\ndata: 1\nretry: 9\n\n\n\n: x\ndata: 2\n:\ndata: 3\n\n",
            "event: a\rdata: 1\r\rdata: 2\rdata: 3\r\r\n",
        ] {
            assert_eq!(parse(&[text.as_bytes()]), expected, "{text:?}");
            let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert_eq!(parse(&bytes), expected, "{text:?}, byte by byte");
        }
        assert_eq!(parse(&[b"data: cut"]), []);
        assert_eq!(parse(&[b"data: cut\n"]), [], "an event ends with an empty line");
        assert_eq!(parse(&[b"event: x\n\ndata: 1\n\n"]), [(String::new(), "1".to_owned())]);
    }

    #[test]
    fn what_is_too_large_or_no_text_is_refused() {
        let mut parser = SseParser::default();
        let piece = vec![b'x'; 1 << 20];
        let error = (0..=EVENT_BYTES_MAX >> 20).find_map(|_| {
            parser.push(&piece);
            parser.next().err()
        });
        assert_eq!(error, Some(SseError::TooLarge));
        let mut parser = SseParser::default();
        let error = (0..=EVENT_BYTES_MAX >> 10).find_map(|_| {
            parser.push(b"data: ");
            parser.push(&piece[..1 << 10]);
            parser.push(b"\n");
            parser.next().err()
        });
        assert_eq!(error, Some(SseError::TooLarge), "also over many lines");
        let mut parser = SseParser::default();
        parser.push(b"data: \xff\n\n");
        assert_eq!(parser.next(), Err(SseError::NotText));
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_events(data in "[a-zé\n]{0,40}", cuts in proptest::collection::vec(0usize..80, 0..6)) {
            let text = written("n", &data) + &written("", "end");
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([bytes.len()]) {
                pieces.push(&bytes[from..cut]);
                from = cut;
            }
            prop_assert_eq!(parse(&pieces), vec![("n".to_owned(), data), (String::new(), "end".to_owned())]);
        }
    }
}
