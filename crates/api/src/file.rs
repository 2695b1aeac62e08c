//! Files of a sandbox: what is asked of them and what is told of them. Contents go as raw bodies and have no type here.

use std::collections::BTreeMap;

use saggar_domain::{Timeout, User};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::object::only_from_an_object;
use crate::path::{FileMode, FilePath};
use crate::schema;
use crate::time::Timestamp;

/// A file, for reading and the like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FileQuery {
    /// Which.
    #[param(value_type = schema::SandboxPath)]
    pub path: FilePath,
    /// As whom; without it, the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

/// A file to be written with the body. All of it appears at once, or nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WriteQuery {
    /// Which.
    #[param(value_type = schema::SandboxPath)]
    pub path: FilePath,
    /// Permission bits of a new file; an existing one keeps its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::Mode>)]
    pub mode: Option<FileMode>,
    /// Whether directories on the way are made.
    #[serde(default)]
    pub parents: bool,
    /// As whom; without it, the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

/// A file or directory to be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RemoveQuery {
    /// Which.
    #[param(value_type = schema::SandboxPath)]
    pub path: FilePath,
    /// Whether a directory goes with everything in it.
    #[serde(default)]
    pub recursive: bool,
    /// As whom; without it, the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

/// What is asked of one entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StatQuery {
    /// Which.
    #[param(value_type = schema::SandboxPath)]
    pub path: FilePath,
    /// Whether a link stands for what it leads to.
    #[serde(default)]
    pub follow: bool,
    /// As whom; without it, the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

/// A directory to be listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Which.
    #[param(value_type = schema::SandboxPath)]
    pub path: FilePath,
    /// How many directories deep; 1 is the directory itself.
    #[serde(default = "one")]
    #[param(minimum = 1, maximum = 64, default = 1)]
    pub depth: u32,
    /// How many entries at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 100_000)]
    pub limit: Option<u32>,
    /// As whom; without it, the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

fn one() -> u32 {
    1
}

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WatchQuery {
    /// A file or directory.
    #[param(value_type = schema::SandboxPath)]
    pub path: FilePath,
    /// Whether everything below it counts too, also what is made later.
    #[serde(default)]
    pub recursive: bool,
    /// As whom; without it, the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

/// A directory to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct MakeDirectory {
    /// Which.
    #[schema(value_type = schema::SandboxPath)]
    pub path: FilePath,
    /// Whether directories on the way are made, and one that is there is fine.
    #[serde(default)]
    pub parents: bool,
    /// Its permission bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Mode>)]
    pub mode: Option<FileMode>,
    /// As whom; without it, the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

/// A file or directory to get another name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct MoveFile {
    /// Where it is.
    #[schema(value_type = schema::SandboxPath)]
    pub from: FilePath,
    /// Where it will be; a file that is there is replaced.
    #[schema(value_type = schema::SandboxPath)]
    pub to: FilePath,
    /// As whom; without it, the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

/// Names and values kept with a file (as extended attributes).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Metadata {
    /// All of them; setting replaces what was there.
    pub metadata: BTreeMap<String, String>,
}

/// One entry of the sandbox's filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// Its path. Bytes that are not UTF-8 are replaced; `path_base64` then has the exact ones.
    pub path: String,
    /// The exact bytes of a path that is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = "byte")]
    pub path_base64: Option<String>,
    /// What it is.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    #[schema(value_type = schema::Mode)]
    pub mode: FileMode,
    /// Owner, as seen inside.
    pub uid: u32,
    /// Group, as seen inside.
    pub gid: u32,
    /// When its content last changed.
    #[schema(value_type = schema::Instant)]
    pub modified_at: Timestamp,
    /// Where a link points to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub link_target: Option<String>,
}

impl FileEntry {
    /// The two forms of a path: text for people, and the exact bytes where that is not the same.
    pub fn written_path(bytes: &[u8]) -> (String, Option<String>) {
        match std::str::from_utf8(bytes) {
            Ok(text) => (text.to_owned(), None),
            Err(_) => (String::from_utf8_lossy(bytes).into_owned(), Some(crate::bytes::encode(bytes))),
        }
    }
}

/// What an entry is.
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

/// Entries of a directory, each before what is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileList {
    /// The entries.
    pub entries: Vec<FileEntry>,
    /// Whether there are more than were asked for or may be told at once.
    pub truncated: bool,
}

/// What happened to a watched file. As a server-sent event: `event` is its type, `data` this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FileEvent {
    /// Everything from here on is told; always the first.
    Watching,
    /// It is new.
    Created(FileChange),
    /// Its content changed.
    Written(FileChange),
    /// It is gone.
    Removed(FileChange),
    /// It came or went by another name.
    Moved(FileChange),
    /// Its permissions or the like changed.
    Attributes(FileChange),
    /// More happened than could be told: look for yourself.
    Overflow,
    /// The watch can't go on; always the last.
    Failed {
        /// Why.
        problem: crate::problem::Problem,
    },
    /// One that this version has no name for. Never sent, only read.
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

/// Which file it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileChange {
    /// Its path; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// What an uploaded tree left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TreeReport {
    /// Files written.
    pub files: u64,
    /// Directories made or found.
    pub directories: u64,
    /// Links made.
    pub links: u64,
    /// Bytes of files.
    pub bytes: u64,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WriteReport {
    /// Bytes.
    pub bytes: u64,
}

/// A URL to be made that works without a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct SignFile {
    /// For which file.
    #[schema(value_type = schema::SandboxPath)]
    pub path: FilePath,
    /// For reading or for writing.
    #[serde(default)]
    pub method: SignedMethod,
    /// For how long.
    #[serde(default = "five_minutes")]
    #[schema(value_type = schema::TimeSpan, default = "5m")]
    pub expires: Timeout,
    /// As whom; without it, the sandbox's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SandboxUser>)]
    pub user: Option<User>,
}

fn five_minutes() -> Timeout {
    Timeout::millis(300_000)
}

/// What a signed URL is for.
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
    /// Until when.
    #[schema(value_type = schema::Instant)]
    pub expires_at: Timestamp,
}

only_from_an_object!(MakeDirectory, MoveFile, Metadata, SignFile);
