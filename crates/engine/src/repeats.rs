//! The loop detector: repeating the same call with the same arguments is not progress, and neither is repeating the same
//! few calls in turn, such as A B A B.
//!
//! A cycle with a `wait` in it is polling: it takes the time that the model wants it to take, and doesn't count. Only the
//! same `wait` in a row does.

use std::collections::VecDeque;

use sha2::{Digest, Sha256};

use crate::body::Body;
use crate::effect::ToolCall;
use crate::rules::Rules;

/// Maximum number of calls of a cycle that is seen.
const CYCLE_MAX: usize = 4;

/// The same calls, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cycle {
    pub(crate) times: u32,
    /// Number of calls that come in turn.
    pub(crate) calls: u32,
}

/// The newest calls, and for how long each was the same as the one so many before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Repeats {
    // The newest first; at most CYCLE_MAX.
    last: VecDeque<Call>,
    // By the number of calls in a cycle, from 1.
    same: [u32; CYCLE_MAX],
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    fingerprint: [u8; 32],
    is_wait: bool,
}

impl Repeats {
    /// The cycle that would be there more than `most` times if `call` is made now.
    pub(crate) fn exceeds(&self, call: &ToolCall, most: u32, rules: Rules) -> Option<Cycle> {
        let seen = if rules.see_cycles() { CYCLE_MAX } else { 1 };
        let same = self.with(&Call::of(call));
        (1_u32..).zip(&same[..seen]).find_map(|(calls, same)| {
            let times = same / calls + 1;
            // The last round counts when it is complete.
            let is_over = times > most && (calls == 1 || same % calls == 0);
            is_over.then_some(Cycle { times, calls })
        })
    }

    fn with(&self, call: &Call) -> [u32; CYCLE_MAX] {
        let mut same = [0; CYCLE_MAX];
        for (at, count) in same.iter_mut().enumerate() {
            let Some(before) = self.last.get(at) else { break };
            let is_polling = at > 0 && self.last.iter().take(at + 1).any(|call| call.is_wait);
            if *before == *call && !is_polling {
                *count = self.same[at].saturating_add(1);
            }
        }
        same
    }

    pub(crate) fn note(&mut self, call: &ToolCall) {
        let call = Call::of(call);
        self.same = self.with(&call);
        self.last.push_front(call);
        self.last.truncate(CYCLE_MAX);
    }

    /// The last call was not made after all.
    pub(crate) fn take_back(&mut self) {
        match self.same[0] {
            // What was before it isn't in a row with what comes next.
            0 => self.last.clear(),
            _ => drop(self.last.pop_front()),
        }
        for same in &mut self.same {
            *same = same.saturating_sub(1);
        }
    }
}

impl Call {
    fn of(call: &ToolCall) -> Self {
        Self { fingerprint: fingerprint(call), is_wait: call.tool == "wait" }
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
