//! Earlier contents of edited files, so that an edit can be undone and is never done twice.
//!
//! An entry is written before the file changes, under the number of the step. A worker that finds the entry of its own
//! step knows that an earlier one died in the middle: the file then is as before, as after, or somebody else's. An undo
//! renames the entry that it undid, for the same reason.
//!
//! Entries are in the sandbox and belong to its user: whoever can change them can change the files themselves.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::io::{read_text, write_text};
use crate::fault::{Fault, FileFaultKind};
use crate::files::{FilePath, Files};
use crate::permit::Action;
use crate::runs::tools::sandbox::RunSandbox;

/// Where entries are, below the home directory.
const PLACE: &str = ".saggar/edits";
/// Edits of one file that can be undone.
const ENTRIES_MAX: usize = 32;
/// Names in the history of one file that are looked at.
const NAMES_MAX: u32 = 1000;
const UNDONE: &str = ".undone-by-";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Past {
    /// `None` if there was no file.
    pub(super) before: Option<String>,
    /// The hash of what the edit made of it.
    pub(super) after: String,
}

/// The history of one file.
pub(super) struct History<'a> {
    sandbox: &'a RunSandbox,
    write: Action,
    read: Action,
    directory: String,
}

impl<'a> History<'a> {
    pub(super) fn of(sandbox: &'a RunSandbox, read: Action, write: Action, path: &FilePath) -> Self {
        // Files of another run may be here, from a snapshot or a volume, and its steps have the same numbers.
        let digest = hash(&format!("{}\0{path}", sandbox.branch()));
        Self { sandbox, write, read, directory: format!("{PLACE}/{}", &digest[..24]) }
    }

    /// The entry of this step, if it has one.
    pub(super) async fn get(&self, name: &str) -> Result<Option<Past>, Fault> {
        let path = self.path(name)?;
        match read_text(self.sandbox, self.read.clone(), &path).await {
            Ok(text) => Ok(text.ok().and_then(|text| serde_json::from_str(&text).ok())),
            Err(Fault::File(fault)) if fault.kind == FileFaultKind::NotFound => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    pub(super) async fn put(&self, step: u64, past: &Past) -> Result<(), Fault> {
        let text =
            serde_json::to_string(past).map_err(|error| Fault::internal("writing the history of a file", error))?;
        write_text(self.sandbox, self.write.clone(), &self.path(&name(step))?, &text).await?;
        let mut names = self.names().await?;
        names.retain(|name| is_entry(name));
        let excess = names.len().saturating_sub(ENTRIES_MAX);
        for old in names.into_iter().take(excess) {
            let mut files = self.files().await?;
            files.remove(&self.path(&old)?, false).await?;
        }
        Ok(())
    }

    /// The newest entry that was not undone.
    pub(super) async fn newest(&self) -> Result<Option<(String, Past)>, Fault> {
        let newest = self.names().await?.into_iter().rfind(|name| is_entry(name));
        match newest {
            Some(newest) => Ok(self.get(&newest).await?.map(|past| (newest, past))),
            None => Ok(None),
        }
    }

    /// Whether this step has undone an entry already.
    pub(super) async fn is_undone_by(&self, step: u64) -> Result<bool, Fault> {
        let end = format!("{UNDONE}{}", name(step));
        Ok(self.names().await?.iter().any(|name| name.ends_with(&end)))
    }

    pub(super) async fn mark_undone(&self, entry: &str, step: u64) -> Result<(), Fault> {
        let mut files = self.files().await?;
        files.move_to(&self.path(entry)?, &self.path(&format!("{entry}{UNDONE}{}", name(step)))?).await
    }

    /// All names, oldest first.
    async fn names(&self) -> Result<Vec<String>, Fault> {
        let mut files = self.sandbox.to_read(self.read.clone()).await?;
        let listed = files.list(&self.sandbox.path(&self.directory)?, 1, NAMES_MAX).await;
        let mut names: Vec<String> = match listed {
            Ok((entries, _)) => entries.iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned()).collect(),
            Err(Fault::File(fault)) if fault.kind == FileFaultKind::NotFound => Vec::new(),
            Err(fault) => return Err(fault),
        };
        names.sort();
        Ok(names)
    }

    async fn files(&self) -> Result<Files, Fault> {
        self.sandbox.to_write(self.write.clone()).await
    }

    fn path(&self, name: &str) -> Result<FilePath, Fault> {
        self.sandbox.path(&format!("{}/{name}", self.directory))
    }
}

/// Sorts as the steps do.
pub(super) fn name(step: u64) -> String {
    format!("{step:020}")
}

fn is_entry(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_digit())
}

pub(super) fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
