//! The contents of a host directory, for comparing before with after.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Every path below `root` with its mode, owner and content. Links are not followed.
pub fn tree(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(&directory).expect("ours") {
            let path = entry.expect("ours").path();
            let metadata = path.symlink_metadata().expect("nothing is removed meanwhile");
            let content = if metadata.is_dir() {
                waiting.push(path.clone());
                String::new()
            } else if metadata.is_symlink() {
                std::fs::read_link(&path).expect("a link").display().to_string()
            } else if metadata.is_file() {
                String::from_utf8_lossy(&std::fs::read(&path).expect("ours")).into_owned()
            } else {
                String::new()
            };
            let name = path.strip_prefix(root).expect("below it").display().to_string();
            found.insert(name, format!("{:o} {}:{} {content}", metadata.mode(), metadata.uid(), metadata.gid()));
        }
    }
    found
}

/// Only the names.
pub fn names(root: &Path) -> Vec<String> {
    tree(root).into_keys().collect()
}
