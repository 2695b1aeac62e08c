//! An entry in the form of E2B's agent.

use std::collections::BTreeMap;

use saggar_api::Timestamp;
use saggar_runtime::{FileEntry, FileKind, FilePath, Files};
use serde_json::{Value, json};

use super::way::Ways;
use crate::failure::CallFailure;

/// Examines a path and returns its entry.
pub(crate) async fn of(files: &mut Files, path: &FilePath) -> Result<Value, CallFailure> {
    let entry = files.stat(path, false).await?;
    shown(files, &mut Ways::default(), path, entry).await
}

/// Formats an entry. A link has the type and permissions of its target, and is marked as a link.
pub(super) async fn shown(
    files: &mut Files,
    ways: &mut Ways,
    path: &FilePath,
    entry: FileEntry,
) -> Result<Value, CallFailure> {
    let is_link = entry.kind == FileKind::Link;
    let (kind, mode) = match is_link {
        true => files.stat(path, true).await.map_or((FileKind::Link, 0), |target| (target.kind, target.mode)),
        false => (entry.kind, entry.mode),
    };
    let metadata = if entry.kind == FileKind::File { metadata(files, path).await } else { BTreeMap::new() };
    let mut shown = json!({
        "name": path.name(),
        "type": kind_name(kind),
        "path": path.to_string(),
        "size": entry.size.to_string(),
        "mode": mode,
        "permissions": permissions(entry.kind, entry.mode),
        "owner": owner(entry.uid),
        "group": owner(entry.gid),
        "modifiedTime": modified(entry.modified_ns),
        "metadata": metadata,
    });
    if is_link {
        shown["isSymlink"] = json!(true);
        // For a broken link, E2B's agent reports the link itself.
        let target = ways.follow(files, path).await.map_or_else(|| path.to_string(), |target| target.to_string());
        shown["symlinkTarget"] = json!(target);
    }
    Ok(shown)
}

/// A file's metadata. Unreadable metadata counts as missing, because it was not requested explicitly.
async fn metadata(files: &mut Files, path: &FilePath) -> BTreeMap<String, String> {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let entries = files.metadata(path).await.unwrap_or_default();
    entries.into_iter().map(|entry| (text(entry.name), text(entry.value))).collect()
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "FILE_TYPE_FILE",
        FileKind::Directory => "FILE_TYPE_DIRECTORY",
        FileKind::Link => "FILE_TYPE_SYMLINK",
        FileKind::Other => "FILE_TYPE_UNSPECIFIED",
    }
}

/// In the format of Go.
fn permissions(kind: FileKind, mode: u32) -> String {
    let first = match kind {
        FileKind::File | FileKind::Other => '-',
        FileKind::Directory => 'd',
        FileKind::Link => 'L',
    };
    let bit = |at: u32| if mode & (1 << (8 - at)) == 0 { '-' } else { ['r', 'w', 'x'][(at % 3) as usize] };
    std::iter::once(first).chain((0..9).map(bit)).collect()
}

/// The names that every sandbox has; others are numbers.
fn owner(id: u32) -> String {
    match id {
        0 => "root".to_owned(),
        1000 => "user".to_owned(),
        other => other.to_string(),
    }
}

fn modified(nanoseconds: i64) -> String {
    let millis = u64::try_from(nanoseconds / 1_000_000).unwrap_or(0);
    Timestamp::from_millis(millis).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_as_in_a_listing() {
        assert_eq!(permissions(FileKind::File, 0o644), "-rw-r--r--");
        assert_eq!(permissions(FileKind::Directory, 0o1755), "drwxr-xr-x");
        assert_eq!(permissions(FileKind::Link, 0o777), "Lrwxrwxrwx");
        assert_eq!(permissions(FileKind::File, 0), "----------");
    }
}
