//! Cursors: where the next page of a list, newest first, begins.
//!
//! A cursor is opaque to clients and not a capability: it only names a position in a list that the caller may see
//! anyway. Check digits reject a truncated, edited or guessed cursor, which would otherwise skip rows silently.

use std::fmt;

use saggar_domain::{ExecId, RunId, SandboxId, Timestamp};
use sha2::{Digest, Sha256};

/// Version of the text form.
const VERSION: &str = "1";
/// Number of hexadecimal check digits.
const CHECK_LEN: usize = 12;

/// The position after the item with this age and id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor<Id> {
    pub(crate) created_at: Timestamp,
    pub(crate) id: Id,
}

pub type SandboxCursor = Cursor<SandboxId>;
pub type ExecCursor = Cursor<ExecId>;

/// The text is not a cursor of this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor of this list")]
pub struct CursorError;

impl CursorError {
    pub fn help(&self) -> &'static str {
        "pass the cursor of the previous page unchanged, or leave it out to start at the newest"
    }
}

/// The second sort key of a list, after the age.
pub trait CursorId: Sized {
    fn parse(text: &str) -> Option<Self>;
    fn as_str(&self) -> &str;
}

impl CursorId for SandboxId {
    fn parse(text: &str) -> Option<Self> {
        Self::parse(text)
    }

    fn as_str(&self) -> &str {
        self.as_str()
    }
}

impl CursorId for ExecId {
    fn parse(text: &str) -> Option<Self> {
        Self::parse(text)
    }

    fn as_str(&self) -> &str {
        self.as_str()
    }
}

impl CursorId for RunId {
    fn parse(text: &str) -> Option<Self> {
        Self::parse(text)
    }

    fn as_str(&self) -> &str {
        self.as_str()
    }
}

impl<Id: CursorId> Cursor<Id> {
    pub fn parse(text: &str) -> Result<Self, CursorError> {
        let mut parts = text.splitn(4, '-');
        let mut next = || parts.next().ok_or(CursorError);
        let (version, created_at, id, digits) = (next()?, next()?, next()?, next()?);
        let millis = u64::from_str_radix(created_at, 16).map_err(|_| CursorError)?;
        let cursor = Self { created_at: Timestamp::from_millis(millis), id: Id::parse(id).ok_or(CursorError)? };
        // Formatting must give the same text again, so each position has exactly one cursor.
        let is_ours = version == VERSION && digits.len() == CHECK_LEN && cursor.to_string() == text;
        if is_ours { Ok(cursor) } else { Err(CursorError) }
    }
}

impl<Id: CursorId> fmt::Display for Cursor<Id> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = format!("{VERSION}-{:x}-{}", self.created_at.as_millis(), self.id.as_str());
        write!(f, "{body}-{}", check_digits(&body))
    }
}

fn check_digits(body: &str) -> String {
    let digest = Sha256::digest(format!("saggar.cursor/v1\0{body}"));
    digest.iter().take(CHECK_LEN / 2).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_nothing_near_it_does() {
        let cursor =
            Cursor { created_at: Timestamp::from_millis(1_700_000_000_000), id: SandboxId::from_random([7; 16]) };
        let text = cursor.to_string();
        assert_eq!(SandboxCursor::parse(&text), Ok(cursor));
        for at in 0..text.len() {
            for other in ['0', 'b', '-', '\'', 'é'] {
                let mut edited: Vec<char> = text.chars().collect();
                if edited[at] == other {
                    continue;
                }
                edited[at] = other;
                let edited: String = edited.into_iter().collect();
                assert_eq!(SandboxCursor::parse(&edited), Err(CursorError), "{edited}");
            }
            assert_eq!(SandboxCursor::parse(&text[..at]), Err(CursorError));
        }
        assert_eq!(SandboxCursor::parse(&format!("{text}-")), Err(CursorError));
        assert_eq!(ExecCursor::parse(&text), Err(CursorError));
    }

    #[test]
    fn text_from_anywhere_is_refused() {
        for text in ["", "-", "---", "1---", "' OR 1=1 --", "1-ffffffffffffffffff-sbx_-0", "\0\0\0", "🦀🦀🦀🦀"]
        {
            assert_eq!(SandboxCursor::parse(text), Err(CursorError), "{text:?}");
        }
    }
}
