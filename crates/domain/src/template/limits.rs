//! The limits that a template gives its sandboxes: labels, so that a Dockerfile can have them too.
//!
//! They are defaults. A request that asks for other limits gets those, so they are no protection against a template.

use std::collections::BTreeMap;

use crate::limit::{DraftLimits, Limits};
use crate::quantity::{ByteSize, Cpus};

/// `LABEL saggar.memory=512M`
const MEMORY: &str = "saggar.memory";
/// `LABEL saggar.cpus=1.5`
const CPUS: &str = "saggar.cpus";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TemplateLimits {
    pub memory: Option<ByteSize>,
    pub cpus: Option<Cpus>,
}

impl TemplateLimits {
    /// What no sandbox can have is left out: labels come from strangers, and an image must not be useless for one of them.
    pub fn of_labels(labels: &BTreeMap<String, String>) -> Self {
        let memory = labels.get(MEMORY).and_then(|text| ByteSize::parse(text).ok());
        let cpus = labels.get(CPUS).and_then(|text| Cpus::parse(text).ok());
        Self { memory, cpus }.within_reach()
    }

    /// Without those that no sandbox can have.
    pub fn within_reach(self) -> Self {
        let can_be = |limits: Self| Limits::resolve(&limits.beside(DraftLimits::default())).is_ok();
        Self {
            memory: self.memory.filter(|memory| can_be(Self { memory: Some(*memory), cpus: None })),
            cpus: self.cpus.filter(|cpus| can_be(Self { memory: None, cpus: Some(*cpus) })),
        }
    }

    /// The labels that say so.
    pub fn to_labels(self) -> BTreeMap<String, String> {
        let memory = self.memory.map(|memory| (MEMORY.to_owned(), memory.to_string()));
        memory.into_iter().chain(self.cpus.map(|cpus| (CPUS.to_owned(), cpus.to_string()))).collect()
    }

    /// What was asked for, and these where nothing was.
    pub fn beside(self, asked: DraftLimits) -> DraftLimits {
        DraftLimits { memory: asked.memory.or(self.memory), cpus: asked.cpus.or(self.cpus), ..asked }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_labels_and_the_same_again() {
        let limits = TemplateLimits { memory: Some(ByteSize::mebibytes(512)), cpus: Some(Cpus::millis(1500)) };
        assert_eq!(TemplateLimits::of_labels(&limits.to_labels()), limits);
        assert_eq!(TemplateLimits::default().to_labels(), BTreeMap::new());
        let asked = DraftLimits { memory: Some(ByteSize::mebibytes(64)), ..DraftLimits::default() };
        let both = limits.beside(asked);
        assert_eq!((both.memory, both.cpus), (Some(ByteSize::mebibytes(64)), limits.cpus));
    }

    #[test]
    fn what_no_sandbox_can_have_is_left_out() {
        for (memory, cpus) in [("1K", "2"), ("lots", "2"), ("", "2"), ("-1", "2")] {
            let labels = [(MEMORY, memory), (CPUS, cpus)].map(|(name, value)| (name.to_owned(), value.to_owned()));
            let expected = TemplateLimits { memory: None, cpus: Some(Cpus::millis(2000)) };
            assert_eq!(TemplateLimits::of_labels(&labels.into()), expected, "{memory}");
        }
    }
}
