//! Answers that a person gave for good: hosts that programs in a workspace may reach. They are in the data directory, where no sandbox
//! can write, by the workspace's canonical path.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};
use saggar_domain::{Code, Problem};
use serde::{Deserialize, Serialize};

use crate::data::DataDirectory;

const VERSION: u32 = 1;
/// Maximum length of the file.
const FILE_LEN: usize = 256 * 1024;
/// Hosts of one workspace.
const HOSTS_MAX: usize = 128;

#[derive(Debug)]
pub struct Answers {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    v: u32,
    /// Rules, by workspace.
    workspaces: BTreeMap<String, Vec<String>>,
}

impl Answers {
    pub fn of(data: &DataDirectory) -> Self {
        Self { path: data.path().join("answers.json") }
    }

    /// The rules of every workspace.
    pub fn all(&self) -> Result<BTreeMap<String, Vec<String>>, Problem> {
        let text = match std::fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(error) => return Err(failed(&error.kind())),
        };
        match serde_json::from_slice::<Stored>(&text) {
            Ok(stored) if stored.v == VERSION => Ok(stored.workspaces),
            Ok(_) => Err(failed(&"a later version of saggar wrote them")),
            Err(_) => Err(failed(&"the file is damaged")),
        }
    }

    /// Adds a rule for a workspace.
    pub fn add(&self, workspace: &str, rule: &str) -> Result<(), Problem> {
        self.change(|workspaces| {
            let rules = workspaces.entry(workspace.to_owned()).or_default();
            if !rules.iter().any(|known| known == rule) && rules.len() < HOSTS_MAX {
                rules.push(rule.to_owned());
            }
        })
    }

    /// Removes a rule from every workspace. Returns from how many.
    pub fn forget(&self, rule: &str) -> Result<usize, Problem> {
        let mut count = 0;
        self.change(|workspaces| {
            for rules in workspaces.values_mut() {
                let before = rules.len();
                rules.retain(|known| known != rule);
                count += usize::from(rules.len() < before);
            }
            workspaces.retain(|_, rules| !rules.is_empty());
        })?;
        Ok(count)
    }

    /// Two that change them take turns, and a reader sees either the old file or the new one.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Vec<String>>)) -> Result<(), Problem> {
        let create = |name: &str| {
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600).open(self.path.with_extension(name))
        };
        let lock = create("lock").map_err(|error| failed(&error.kind()))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|errno| failed(&errno))?;
        let mut workspaces = self.all()?;
        change(&mut workspaces);
        let text = serde_json::to_vec(&Stored { v: VERSION, workspaces }).map_err(|error| failed(&error))?;
        if text.len() > FILE_LEN {
            return Err(failed(&"there are too many; forget some with `saggar net answers --forget HOST`"));
        }
        create("new")
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| std::fs::rename(self.path.with_extension("new"), &self.path))
            .map_err(|error| failed(&error.kind()))
    }
}

fn failed(why: &dyn std::fmt::Display) -> Problem {
    Problem::new(
        Code::DataDirectory,
        format!("the answers about hosts can't be used: {why}"),
        "check the file answers.json in the data directory, or remove it",
    )
}
