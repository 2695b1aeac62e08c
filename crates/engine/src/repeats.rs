//! The loop detector: repeating the same call with the same arguments is not progress.

use sha2::{Digest, Sha256};

use crate::body::Body;
use crate::effect::ToolCall;

/// How many times in a row the last call was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Repeats {
    last: Option<[u8; 32]>,
    count: u32,
}

impl Repeats {
    /// The count if `call` is made now.
    pub(crate) fn with(&self, call: &ToolCall) -> u32 {
        if self.last == Some(fingerprint(call)) { self.count.saturating_add(1) } else { 1 }
    }

    pub(crate) fn note(&mut self, call: &ToolCall) {
        self.count = self.with(call);
        self.last = Some(fingerprint(call));
    }

    /// The last call was not made after all.
    pub(crate) fn take_back(&mut self) {
        self.count = self.count.saturating_sub(1);
        if self.count == 0 {
            self.last = None;
        }
    }
}

/// Hashes the tool and its arguments. The model's id for the call differs each time and is left out.
fn fingerprint(call: &ToolCall) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update((call.tool.len() as u64).to_le_bytes());
    digest.update(&call.tool);
    match &call.arguments {
        Body::Text(text) => digest.update(text),
        Body::Blob { hash, .. } => digest.update(hash),
    }
    digest.finalize().into()
}
