//! Warm Python: a process in a sandbox that has done its imports, and from which contexts fork.
//!
//! The operator names the imports for the built-in template, and a template names its own in its environment. The
//! process is an exec like any other, of the sandbox's user and under its limits, and starts with the sandbox. A
//! context is then a small process that hands its descriptors over and stays for its fork; without the warm process
//! it becomes an ordinary one by itself.

use std::fmt;
use std::path::Path;

use saggar_domain::{CodeLanguage, ExecId, ExecSpec, SandboxId};
use saggar_supervisor::control::{Attach, ExecDescription, Op, Reply, StartExec};

use super::kernel;
use crate::sandboxes::Sandboxes;
use crate::supervisor::{Connection, ControlError, started};

/// The variable of a template with its imports, separated by commas.
pub(crate) const VARIABLE: &str = "SAGGAR_WARM_IMPORTS";
/// The tag of the warm process.
const TAG: &str = "saggar-code-warm/1";
/// Maximum number of imports.
const IMPORTS_MAX: usize = 64;
/// Maximum length of a module's name.
const NAME_LEN_MAX: usize = 128;

/// The name of a Python module, such as `matplotlib.pyplot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleName(String);

impl ModuleName {
    /// `None` if no module can have it.
    pub fn parse(text: &str) -> Option<Self> {
        let is_word = |word: &str| {
            word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                && word.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
        };
        (text.len() <= NAME_LEN_MAX && text.split('.').all(is_word)).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for ModuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The imports of a template, from the value of its variable. What is no module's name is left out.
pub(crate) fn imports(text: &str) -> Vec<ModuleName> {
    text.split(',').filter_map(|name| ModuleName::parse(name.trim())).take(IMPORTS_MAX).collect()
}

/// Whether one of these is a warm process that lives.
pub(super) fn is_among(execs: &[ExecDescription]) -> bool {
    execs.iter().any(|exec| exec.tag.as_deref() == Some(TAG) && exec.status.is_none())
}

impl Sandboxes {
    /// Starts the warm process of a sandbox, unless it has one. A sandbox without it works the same, and slower.
    pub(crate) async fn begin_warm(&self, id: &SandboxId, socket: &Path, imports: &[ModuleName]) {
        if imports.is_empty() {
            return;
        }
        if let Err(error) = begin(socket, self.new_exec_id(), imports).await {
            tracing::warn!(sandbox = %id, error = %error, "starting the warm process of a sandbox failed");
        }
    }
}

async fn begin(socket: &Path, exec_id: ExecId, imports: &[ModuleName]) -> Result<(), ControlError> {
    if let Reply::Described(description) = Connection::question(socket, Op::Describe).await?
        && is_among(&description.execs)
    {
        return Ok(());
    }
    let argv = kernel::command(CodeLanguage::Python);
    let spec = ExecSpec { argv, stdin: true, tag: Some(TAG.to_owned()), ..ExecSpec::default() };
    let start = StartExec { exec_id: exec_id.clone(), spec, follow: false, is_fed_apart: true };
    started(Connection::question(socket, Op::Exec(Box::new(start))).await?)?;
    let attach = Attach { exec_id, from: saggar_domain::Beginning::Now, stdin: true };
    let mut connection = Connection::ask(socket, Op::Attach(attach)).await?;
    started(connection.answer().await?)?;
    let (_incoming, mut feeding) = connection.split();
    let names: Vec<String> = imports.iter().map(ToString::to_string).collect();
    feeding.stdin(&kernel::warm(&names)).await?;
    feeding.end().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_names_of_modules_and_nothing_else() {
        let names: Vec<String> =
            imports("numpy, matplotlib.pyplot,os;x,,1a,a..b, _x").iter().map(ToString::to_string).collect();
        assert_eq!(names, ["numpy", "matplotlib.pyplot", "_x"]);
        assert_eq!(imports(&"a,".repeat(1000)).len(), IMPORTS_MAX);
    }
}
