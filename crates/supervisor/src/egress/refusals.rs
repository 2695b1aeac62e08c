//! Refused network access among the denials of an exec.

use std::cmp::Ordering;

use saggar_domain::net::{NetDecision, Verdict};
use saggar_domain::{Denial, DenialCode};

/// The sandbox chooses what these denials say, so they have a bound of their own: they must not crowd out others.
#[derive(Debug)]
pub struct Refusals {
    kinds: u32,
    most: u32,
}

impl Refusals {
    /// At most so many kinds are told apart.
    pub fn new(most: u32) -> Self {
        Self { kinds: 0, most }
    }

    /// The denial to record, if there is room for its kind. `is_known` says whether the same was recorded before.
    pub fn admit(&mut self, denial: Denial, is_known: bool) -> Option<Denial> {
        self.kinds = self.kinds.saturating_add(u32::from(!is_known));
        match self.kinds.cmp(&(self.most + 1)) {
            Ordering::Less => Some(denial),
            Ordering::Equal => Some(dropped(format!(
                "more than {} kinds of network access were refused; the rest are only counted",
                self.most
            ))),
            Ordering::Greater => None,
        }
    }
}

/// The denial that a decision stands for.
pub fn denial_of(decision: &NetDecision) -> Option<Denial> {
    let reason = || decision.reason.clone().unwrap_or_else(|| format!("{} was refused", decision.host));
    (decision.verdict == Verdict::Denied).then(|| refused(&decision.rule, reason()))
}

pub fn refused(rule: &str, message: String) -> Denial {
    Denial { code: DenialCode::NetworkRefused, rule: rule.to_owned(), message }
}

/// Something about decisions that is not reported one by one.
pub fn dropped(message: String) -> Denial {
    Denial { code: DenialCode::DenialsDropped, rule: "events/decisions".to_owned(), message }
}
