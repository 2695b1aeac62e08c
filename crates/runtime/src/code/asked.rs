//! What is to be run, and where.

use std::collections::BTreeMap;
use std::time::Duration;

use saggar_domain::{Code, CodeLanguage, ContextId, Problem};

use crate::fault::Fault;

/// Maximum length of a piece of code.
pub const CODE_BYTES_MAX: usize = 4 << 20;

/// A piece of code to run.
#[derive(Clone, Debug)]
pub struct RunCode {
    pub code: String,
    pub place: Place,
    /// Variables for this execution only.
    pub env: BTreeMap<String, String>,
    /// When it is interrupted; `None` for no limit.
    pub timeout: Option<Duration>,
}

impl RunCode {
    /// What it takes of this process's memory.
    pub(super) fn bytes(&self) -> usize {
        self.code.len() + self.env.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
    }
}

/// Where code runs.
#[derive(Clone, Debug)]
pub enum Place {
    Context(ContextId),
    /// The default context of a language, with these variables if it has yet to be started.
    Default(CodeLanguage, BTreeMap<String, String>),
}

/// Refuses what no kernel can be told.
pub(super) fn check(run: &RunCode) -> Result<(), Fault> {
    let refused = |what: &str, help: &str| Err(Fault::Refused(Problem::new(Code::InvalidValue, what, help)));
    if run.code.len() > CODE_BYTES_MAX {
        return refused("the code is longer than 4 MiB", "put it into a file of the sandbox, and run that");
    }
    if run.code.contains('\0') {
        return refused("the code contains a NUL character", "remove it");
    }
    // A shell takes other names for something else.
    let is_name = |name: &String| {
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
    };
    if !run.env.iter().all(|(name, value)| is_name(name) && !value.contains('\0')) {
        return refused("a variable has an invalid name or value", "use letters, digits and _ in names");
    }
    Ok(())
}
