//! Gives a stored template another name.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FlockOperation, fsync};
use rustix::io::Errno;
use saggar_domain::template::{NameRecord, TemplateId};
use saggar_domain::{Code, Problem, TemplateName, Timestamp};

use super::commit::replace;
use super::snapshot::is_reserved;
use super::{Lock, Store, made};
use crate::failure::storage;
use saggar_sandbox::fail_point::pass;

/// Names that stand for what is built in.
const BUILT_IN: &[&str] = &["base", "host"];

/// What giving a name did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tagged {
    pub id: TemplateId,
    /// Where the name led before, if elsewhere. A collection removes that template if it has no other name.
    pub replaced: Option<TemplateId>,
}

/// While it exists, no name of the store changes.
pub struct SteadyNames(#[expect(dead_code, reason = "it is held for its lock")] OwnedFd);

impl Store {
    /// Makes `name` lead to the template that `from` leads to.
    pub fn tag(&self, from: &TemplateName, name: &TemplateName, now: Timestamp) -> Result<Tagged, Problem> {
        check_free(name)?;
        let fail = |errno: Errno| storage("the name can't be written", errno);
        let _names = self.locked(Lock::Names, FlockOperation::LockExclusive)?;
        let Some(NameRecord { template: id, .. }) = self.templates.name(from)? else { return Err(missing(from)) };
        // A name must lead to something complete.
        self.manifest(&id)?;
        let before = self.templates.name(name)?.map(|record| record.template);
        let directory = made(self.names.as_fd(), Path::new(name.name())).map_err(fail)?;
        fsync(&self.names).map_err(fail)?;
        pass("tag/directory");
        let record = serde_json::to_vec(&NameRecord::new(id.clone(), now)).expect("our own types have only text keys");
        replace(&directory, name.tag(), &record).map_err(|error| storage("the name can't be written", error))?;
        pass("tag/named");
        Ok(Tagged { replaced: before.filter(|before| *before != id), id })
    }

    /// Keeps all names as they are until it is dropped. Imports and removals wait meanwhile, so only for a moment.
    pub fn steady(&self) -> Result<SteadyNames, Problem> {
        self.locked(Lock::Names, FlockOperation::LockShared).map(SteadyNames)
    }
}

/// Refuses names of built-in templates.
pub fn check_free(name: &TemplateName) -> Result<(), Problem> {
    if BUILT_IN.contains(&name.name()) {
        return Err(Problem::new(
            Code::InvalidValue,
            format!("the name {:?} is taken by a template that is built in", name.as_str()),
            "choose another name",
        ));
    }
    if is_reserved(name) {
        return Err(Problem::new(
            Code::InvalidValue,
            format!("the name {:?} looks like a snapshot's id", name.as_str()),
            "choose a name that doesn't begin with `snap_`",
        ));
    }
    Ok(())
}

pub(super) fn missing(name: &TemplateName) -> Problem {
    Problem::new(
        Code::InvalidValue,
        format!("there is no template {:?}", name.as_str()),
        "list them with `saggar template list`",
    )
}
