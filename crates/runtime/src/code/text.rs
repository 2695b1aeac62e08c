//! Text from bytes that come in pieces: a character that is cut waits for its rest.

/// The end of one stream.
#[derive(Debug, Default)]
pub(super) struct Text {
    /// Less than a character.
    begun: Vec<u8>,
}

impl Text {
    /// Bytes that are no text become U+FFFD.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        self.begun.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.begun) {
            Ok(_) => self.begun.len(),
            Err(_) => self.begun.len() - unfinished(&self.begun),
        };
        let rest = self.begun.split_off(whole);
        let text = String::from_utf8_lossy(&self.begun).into_owned();
        self.begun = rest;
        text
    }

    /// What is left at the end.
    pub(super) fn rest(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.begun)).into_owned()
    }
}

/// How many bytes at the end may be the beginning of a character.
fn unfinished(bytes: &[u8]) -> usize {
    let is_begun = |length: &usize| {
        let tail = &bytes[bytes.len() - length..];
        matches!(std::str::from_utf8(tail), Err(error) if error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..=bytes.len().min(3)).rev().find(is_begun).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_stay_whole_however_they_are_cut() {
        let text = "aé€😀\n";
        for size in 1..=text.len() {
            let mut pieces = Text::default();
            let mut seen: String = text.as_bytes().chunks(size).map(|bytes| pieces.push(bytes)).collect();
            seen += &pieces.rest();
            assert_eq!(seen, text);
        }
        let mut broken = Text::default();
        assert_eq!(broken.push(b"a\xffb\xe2\x82"), "a\u{fffd}b");
        assert_eq!(broken.rest(), "\u{fffd}");
    }
}
