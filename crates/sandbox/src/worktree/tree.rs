//! New trees: what a commit has, with some files changed.

use std::collections::BTreeMap;

use super::object::{Mode, ObjectError, ObjectId, ObjectKind, TreeEntry};

/// Stores an object of this kind, and tells its id.
type Store<'a> = dyn FnMut(ObjectKind, &[u8]) -> Result<ObjectId, ObjectError> + 'a;

/// Files to put into a tree or to take out of it, by the names of the directories above them.
#[derive(Debug, Default)]
pub(super) struct Edits {
    files: BTreeMap<Vec<u8>, Option<(Mode, ObjectId)>>,
    directories: BTreeMap<Vec<u8>, Edits>,
}

impl Edits {
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.directories.is_empty()
    }

    pub(super) fn add(&mut self, path: &[u8], file: Option<(Mode, ObjectId)>) {
        match path.iter().position(|byte| *byte == b'/') {
            None => drop(self.files.insert(path.to_vec(), file)),
            Some(slash) => {
                let directory = self.directories.entry(path[..slash].to_vec()).or_default();
                directory.add(&path[slash + 1..], file);
            }
        }
    }

    /// The tree with these edits; `None` if nothing is left of it. `read` gives the entries of a tree and `write` stores one. How deep it
    /// goes is bounded by the paths, which the caller has checked.
    pub(super) fn apply(
        &self,
        entries: Vec<TreeEntry>,
        read: &dyn Fn(ObjectId) -> Result<Vec<TreeEntry>, ObjectError>,
        write: &mut Store<'_>,
    ) -> Result<Option<ObjectId>, ObjectError> {
        let mut made: BTreeMap<Vec<u8>, (Mode, ObjectId)> =
            entries.into_iter().map(|entry| (entry.name, (entry.mode, entry.id))).collect();
        for (name, _) in self.files.iter().filter(|(_, file)| file.is_none()) {
            if made.get(name).is_some_and(|(mode, _)| *mode != Mode::Tree) {
                made.remove(name);
            }
        }
        for (name, edits) in &self.directories {
            let below = match made.get(name) {
                Some((Mode::Tree, id)) => read(*id)?,
                _ => Vec::new(),
            };
            let was_tree = matches!(made.get(name), Some((Mode::Tree, _)));
            match edits.apply(below, read, write)? {
                Some(id) => drop(made.insert(name.clone(), (Mode::Tree, id))),
                None if was_tree => drop(made.remove(name)),
                None => {}
            }
        }
        for (name, file) in &self.files {
            if let Some(file) = file {
                made.insert(name.clone(), *file);
            }
        }
        if made.is_empty() {
            return Ok(None);
        }
        // A directory is sorted as if its name ended with a slash.
        let mut sorted: Vec<_> = made.into_iter().collect();
        let key = |name: &[u8], mode: Mode| if mode == Mode::Tree { [name, b"/"].concat() } else { name.to_vec() };
        sorted.sort_by_key(|(name, (mode, _))| key(name, *mode));
        let mut content = Vec::new();
        for (name, (mode, id)) in sorted {
            content.extend(mode.text().bytes());
            content.push(b' ');
            content.extend(name);
            content.push(0);
            content.extend(id.0);
        }
        write(ObjectKind::Tree, &content).map(Some)
    }
}
