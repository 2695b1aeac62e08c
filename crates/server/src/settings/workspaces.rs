//! Settings of workspaces: directories of the host that sandboxes may use.

use saggar_domain::{HostPath, WorkspaceName};

use super::ConfigError;
use super::section::{Origins, Setting, Table, complain, setting};
use super::value::Value;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceSettings {
    pub workspaces: Vec<Workspace>,
}

/// A directory, by the name that clients use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workspace {
    pub name: WorkspaceName,
    pub path: HostPath,
}

impl Value for Workspace {
    fn read(text: &str) -> Result<Self, String> {
        let complaint = || format!("{text:?} is not NAME=PATH with an absolute path, such as site=/srv/site");
        let (name, path) = text.split_once('=').ok_or_else(complaint)?;
        let name = WorkspaceName::parse(name).ok_or_else(complaint)?;
        let path = HostPath::parse(path).ok().filter(|path| path.as_str().starts_with('/')).ok_or_else(complaint)?;
        Ok(Self { name, path })
    }

    fn show(&self) -> String {
        format!("{}={}", self.name, self.path.as_str())
    }
}

impl Table for WorkspaceSettings {
    const SETTINGS: &'static [Setting<Self>] = &[setting!(
        workspaces,
        Process,
        "directories of the host that sandboxes may use copy-on-write, as NAME=PATH, comma-separated"
    )];

    fn check(&self, _origins: &Origins) -> Result<(), ConfigError> {
        let names: std::collections::BTreeSet<&WorkspaceName> = self.workspaces.iter().map(|one| &one.name).collect();
        complain(&[(
            names.len() < self.workspaces.len(),
            "workspaces has a name twice",
            "give each directory a name of its own",
        )])
    }
}
