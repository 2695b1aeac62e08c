//! Server-sent events: formats one event, and parses a stream from pieces of any size.
//!
//! It only formats the fields that this API uses: `id`, `event` and `data`, and comments that keep the connection
//! alive. The parser accepts any conforming stream; an event longer than a bound is an error, so memory stays
//! bounded.

use std::fmt::Write;

/// The media type of a stream.
pub const SSE_MEDIA_TYPE: &str = "text/event-stream";
/// Maximum size of an event. The largest are results of code, of up to 16 MiB.
const EVENT_BYTES_MAX: usize = 24 << 20;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSentEvent {
    /// The position after it, for resuming; empty if it has none.
    pub id: String,
    /// The event's type; empty means `message`.
    pub event: String,
    /// The event's data.
    pub data: String,
}

impl ServerSentEvent {
    /// The event's text on the wire.
    pub fn to_text(&self) -> String {
        let mut text = String::with_capacity(self.data.len() + self.id.len() + self.event.len() + 32);
        for (name, value) in [("id", &self.id), ("event", &self.event)] {
            // A line break in a value would start another field.
            if !value.is_empty() && !value.contains(['\n', '\r', '\0']) {
                // Writing to a string can't fail.
                let _ = writeln!(text, "{name}: {value}");
            }
        }
        for line in self.data.split('\n') {
            // Writing to a string can't fail.
            let _ = writeln!(text, "data: {line}");
        }
        text.push('\n');
        text
    }
}

/// Parses a stream piece by piece.
#[derive(Debug, Default)]
pub struct SseDecoder {
    line: Vec<u8>,
    event: ServerSentEvent,
    has_data: bool,
    /// Whether the last byte was a carriage return, so that a following newline belongs to the same line break.
    after_return: bool,
}

/// The stream contains an event that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of more than {EVENT_BYTES_MAX} bytes")]
pub struct TooLong;

impl SseDecoder {
    /// Takes the next piece, and returns the complete events.
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<ServerSentEvent>, TooLong> {
        let mut events = Vec::new();
        for byte in piece {
            match byte {
                b'\n' if self.after_return => {}
                b'\n' | b'\r' => events.extend(self.end_line()),
                byte if self.line.len() + self.event.data.len() >= EVENT_BYTES_MAX => {
                    self.after_return = *byte == b'\r';
                    return Err(TooLong);
                }
                byte => self.line.push(*byte),
            }
            self.after_return = *byte == b'\r';
        }
        Ok(events)
    }

    fn end_line(&mut self) -> Option<ServerSentEvent> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return std::mem::take(&mut self.has_data).then_some(event);
        }
        let line = String::from_utf8_lossy(&line);
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" if !value.contains('\0') => self.event.id = value.to_owned(),
            "event" => self.event.event = value.to_owned(),
            "data" => {
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
                self.has_data = true;
            }
            // Comments, which have an empty name, and fields that the standard says to ignore.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[(&str, &str, &str)]) {
        let expected: Vec<_> = expected
            .iter()
            .map(|(id, event, data)| ServerSentEvent {
                id: (*id).to_owned(),
                event: (*event).to_owned(),
                data: (*data).to_owned(),
            })
            .collect();
        assert_eq!(SseDecoder::default().push(text.as_bytes()).unwrap(), expected, "{text:?}");
        let mut decoder = SseDecoder::default();
        let pieces: Vec<_> = text.bytes().flat_map(|byte| decoder.push(&[byte]).unwrap()).collect();
        assert_eq!(pieces, expected, "cut after every byte: {text:?}");
    }

    #[test]
    fn streams_read_however_they_are_cut() {
        check("id: 1-0\nevent: stdout\ndata: {}\n\n", &[("1-0", "stdout", "{}")]);
        check("data: a\r\ndata: b\r\n\r\ndata:c\r\r", &[("", "", "a\nb"), ("", "", "c")]);
        check(": keep alive\n\nevent: x\n\ndata\n\n", &[("", "", "")]);
        check("data: unfinished\n", &[]);
    }

    #[test]
    fn what_is_written_reads_back() {
        let event = ServerSentEvent { id: "7".into(), event: "created".into(), data: "a\nb: c\n".into() };
        assert_eq!(SseDecoder::default().push(event.to_text().as_bytes()).unwrap(), [event]);
    }

    #[test]
    fn an_id_can_not_smuggle_a_field() {
        let event = ServerSentEvent { id: "1\ndata: evil".into(), event: String::new(), data: "x".into() };
        assert_eq!(event.to_text(), "data: x\n\n");
    }

    #[test]
    fn an_event_without_end_is_an_error() {
        let mut decoder = SseDecoder::default();
        let piece = vec![b'x'; EVENT_BYTES_MAX / 4 + 1];
        let outcomes: Vec<_> = (0..5).map(|_| decoder.push(&piece).is_ok()).collect();
        assert!(outcomes.contains(&false));
    }
}
