//! Findings: what is wrong, where, and what to do about it.

use std::fmt;

/// One violation of one rule. Ordered by place, then rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Relative to the repository's root.
    pub path: String,
    pub line: usize,
    pub rule: Rule,
    pub what: String,
    pub help: String,
}

impl Finding {
    pub fn severity(&self) -> Severity {
        self.rule.severity()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity() {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        writeln!(f, "{}:{}: {severity}: {}", self.path, self.line, self.what)?;
        write!(f, "  help: {}", self.help)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Every crate has a row in the table of layers.
    UnknownCrate,
    /// Our crates depend on each other only downwards.
    Direction,
    /// Some crates stay free of some external ones.
    ForbiddenDependency,
    /// No crate re-exports another one of ours, or a module of it.
    WholeReexport,
    /// `unsafe` is only allowed in the few crates that talk to the kernel.
    Unsafe,
    /// The roots of all other crates forbid it.
    ForbidMissing,
    /// `lib.rs` and `mod.rs` contain only docs, `mod` and `pub use`.
    LogicInIndex,
    /// A file so long that it must have a second purpose.
    TooLong,
    /// A file long enough to look for one.
    Long,
    /// A name that says nothing.
    EmptyName,
    /// A source file without a header.
    HeaderMissing,
    /// A discarded value without a reason.
    SilentDiscard,
    /// A reminder without an issue.
    UntrackedTodo,
    /// A path that exists only on the machine where it was written.
    MachinePath,
}

impl Rule {
    fn severity(self) -> Severity {
        match self {
            Self::Long => Severity::Warning,
            Self::UnknownCrate
            | Self::Direction
            | Self::ForbiddenDependency
            | Self::WholeReexport
            | Self::Unsafe
            | Self::ForbidMissing
            | Self::LogicInIndex
            | Self::TooLong
            | Self::EmptyName
            | Self::HeaderMissing
            | Self::SilentDiscard
            | Self::UntrackedTodo
            | Self::MachinePath => Severity::Error,
        }
    }
}

/// Whether a finding fails the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Error,
    Warning,
}
