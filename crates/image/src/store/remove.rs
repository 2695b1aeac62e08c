//! Removes a name, and with the last name of a template the template.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, FlockOperation, fsync, unlinkat};
use rustix::io::Errno;
use saggar_domain::template::{NameRecord, TemplateId};
use saggar_domain::{Problem, TemplateName};

use super::tag::missing;
use super::{Collected, Lock, Store, made};
use crate::failure::storage;
use saggar_sandbox::fail_point::pass;

/// What a removal did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// What the name led to; `None` if that couldn't be read.
    pub id: Option<TemplateId>,
    pub rest: Rest,
}

/// What became of the template that the name led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Other names lead to it.
    Named,
    /// The name was damaged, so its template isn't known. A collection removes it if nothing else leads to it.
    Unknown,
    /// A live sandbox uses it. It is removed by a collection after that.
    InUse,
    /// Gone. Its layers are removed too, except those that others use; `None` while something is imported.
    Gone(Option<Collected>),
}

impl Store {
    pub fn remove(&self, name: &TemplateName) -> Result<Removed, Problem> {
        let fail = |errno: Errno| storage("the template can't be removed", errno);
        let names = self.locked(Lock::Names, FlockOperation::LockExclusive)?;
        let found = self.templates.name(name);
        if let Ok(None) = found {
            return Err(missing(name));
        }
        let directory = made(self.names.as_fd(), Path::new(name.name())).map_err(fail)?;
        unlinkat(&directory, name.tag(), AtFlags::empty()).map_err(fail)?;
        fsync(&directory).map_err(fail)?;
        pass("remove/name");
        match unlinkat(&self.names, name.name(), AtFlags::REMOVEDIR) {
            // Other tags are in it.
            Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(errno) => return Err(fail(errno)),
        }
        pass("remove/unnamed");
        let Ok(Some(NameRecord { template: id, .. })) = found else {
            return Ok(Removed { id: None, rest: Rest::Unknown });
        };
        if self.templates.names()?.iter().any(|(_, record)| record.template == id) {
            return Ok(Removed { id: Some(id), rest: Rest::Named });
        }
        if !self.remove_unused(&format!("{}.json", id.hex()))? {
            return Ok(Removed { id: Some(id), rest: Rest::InUse });
        }
        pass("remove/manifest");
        drop(names);
        let rest = Rest::Gone(self.collect()?);
        Ok(Removed { id: Some(id), rest })
    }
}
