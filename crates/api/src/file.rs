//! Files of a sandbox: requests and responses. Contents are raw bodies and have no type here.

use std::collections::BTreeMap;

use saggar_domain::{Timeout, User};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::object::only_from_an_object;
use crate::path::{FileMode, FilePath};
use crate::schema;
use crate::time::Timestamp;

/// A file to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FileQuery {
    /// Path of the file.
    #[param(value_type = schema::SandboxPath)]
    pub path: FilePath,
    /// The user to act as; by default the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

/// A file to write with the request's body. It is written atomically.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WriteQuery {
    /// Path of the file.
    #[param(value_type = schema::SandboxPath)]
    pub path: FilePath,
    /// Permission bits of a new file; an existing file keeps its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::Mode>)]
    pub mode: Option<FileMode>,
    /// Whether to create missing parent directories.
    #[serde(default)]
    pub parents: bool,
    /// The user to act as; by default the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

/// A file or directory to remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RemoveQuery {
    /// Path of the entry.
    #[param(value_type = schema::SandboxPath)]
    pub path: FilePath,
    /// Whether to remove a directory with its contents.
    #[serde(default)]
    pub recursive: bool,
    /// The user to act as; by default the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

/// A request for information about an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StatQuery {
    /// Path of the entry.
    #[param(value_type = schema::SandboxPath)]
    pub path: FilePath,
    /// Whether to follow a symbolic link.
    #[serde(default)]
    pub follow: bool,
    /// The user to act as; by default the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

/// A directory to list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Path of the directory.
    #[param(value_type = schema::SandboxPath)]
    pub path: FilePath,
    /// How many levels deep; 1 is the directory itself.
    #[serde(default = "one")]
    #[param(minimum = 1, maximum = 64, default = 1)]
    pub depth: u32,
    /// Maximum number of entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 100_000)]
    pub limit: Option<u32>,
    /// The user to act as; by default the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

fn one() -> u32 {
    1
}

/// A path to watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WatchQuery {
    /// Path of a file or directory.
    #[param(value_type = schema::SandboxPath)]
    pub path: FilePath,
    /// Whether to watch everything below it too, including later additions.
    #[serde(default)]
    pub recursive: bool,
    /// The user to act as; by default the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

/// A directory to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct MakeDirectory {
    /// Path of the directory.
    #[schema(value_type = schema::SandboxPath)]
    pub path: FilePath,
    /// Whether to create missing parent directories and accept an existing directory.
    #[serde(default)]
    pub parents: bool,
    /// Permission bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Mode>)]
    pub mode: Option<FileMode>,
    /// The user to act as; by default the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

/// A file or directory to rename.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct MoveFile {
    /// Current path.
    #[schema(value_type = schema::SandboxPath)]
    pub from: FilePath,
    /// New path; an existing file is replaced.
    #[schema(value_type = schema::SandboxPath)]
    pub to: FilePath,
    /// The user to act as; by default the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

/// Metadata of a file: names and values, stored as extended attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Metadata {
    /// All names and values; setting them replaces the previous ones.
    pub metadata: BTreeMap<String, String>,
}

/// An entry of the sandbox's filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// Path of the entry. Bytes that are not UTF-8 are replaced; `path_base64` then has the exact path.
    pub path: String,
    /// The exact bytes of a path that is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "byte")]
    pub path_base64: Option<String>,
    /// Type of the entry.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    #[schema(value_type = schema::Mode)]
    pub mode: FileMode,
    /// Owner, as seen inside the sandbox.
    pub uid: u32,
    /// Group, as seen inside the sandbox.
    pub gid: u32,
    /// When its content last changed.
    #[schema(value_type = schema::Instant)]
    pub modified_at: Timestamp,
    /// Target of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub link_target: Option<String>,
}

impl FileEntry {
    /// The two forms of a path: text for people, and the exact bytes if they differ.
    pub fn written_path(bytes: &[u8]) -> (String, Option<String>) {
        match std::str::from_utf8(bytes) {
            Ok(text) => (text.to_owned(), None),
            Err(_) => (String::from_utf8_lossy(bytes).into_owned(), Some(crate::bytes::encode(bytes))),
        }
    }
}

/// The type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A device, a socket or a pipe.
    Other,
}

/// Entries of a directory; each directory comes before its contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileList {
    /// The entries.
    pub entries: Vec<FileEntry>,
    /// Whether there are more entries than requested or allowed at once.
    pub truncated: bool,
}

/// A change to a watched file. As a server-sent event: `event` is its type, `data` this object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FileEvent {
    /// The watch is active, and all later changes are reported; always the first event.
    Watching,
    /// A new entry.
    Created(FileChange),
    /// Its content changed.
    Written(FileChange),
    /// It was removed.
    Removed(FileChange),
    /// It was renamed, into or out of this name.
    Moved(FileChange),
    /// Its permissions or other attributes changed.
    Attributes(FileChange),
    /// Some changes were missed: read the current state.
    Overflow,
    /// The watch can't continue; always the last event.
    Failed {
        /// The reason.
        problem: crate::problem::Problem,
    },
    /// An event that this version doesn't know. Never sent, only read.
    #[serde(other)]
    Other,
}

impl FileEvent {
    /// The event's type.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Watching => "watching",
            Self::Created(_) => "created",
            Self::Written(_) => "written",
            Self::Removed(_) => "removed",
            Self::Moved(_) => "moved",
            Self::Attributes(_) => "attributes",
            Self::Overflow => "overflow",
            Self::Failed { .. } => "failed",
            Self::Other => "other",
        }
    }
}

/// The changed file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileChange {
    /// Path of the file; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// The result of uploading a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TreeReport {
    /// Number of files written.
    pub files: u64,
    /// Number of directories created or found.
    pub directories: u64,
    /// Number of links created.
    pub links: u64,
    /// Total size of the files, in bytes.
    pub bytes: u64,
}

/// The result of writing a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WriteReport {
    /// Number of bytes.
    pub bytes: u64,
}

/// A request for a URL that works without a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct SignFile {
    /// Path of the file.
    #[schema(value_type = schema::SandboxPath)]
    pub path: FilePath,
    /// For reading or for writing.
    #[serde(default)]
    pub method: SignedMethod,
    /// How long the URL is valid.
    #[serde(default = "five_minutes")]
    #[schema(value_type = schema::TimeSpan, default = "5m")]
    pub expires: Timeout,
    /// The user to act as; by default the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

fn five_minutes() -> Timeout {
    Timeout::millis(300_000)
}

/// The purpose of a signed URL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SignedMethod {
    /// Reading.
    #[default]
    Get,
    /// Writing.
    Put,
}

/// A URL that works without a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignedUrl {
    /// The URL, as absolute as the server knows its own address.
    #[schema(format = "uri-reference")]
    pub url: String,
    /// When it expires.
    #[schema(value_type = schema::Instant)]
    pub expires_at: Timestamp,
}

only_from_an_object!(MakeDirectory, MoveFile, Metadata, SignFile);
