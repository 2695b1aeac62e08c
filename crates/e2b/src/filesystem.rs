//! E2B's filesystem service: stat, list, create, move, remove and watch.

mod entry;
mod watch;
mod watchers;
mod way;

use axum::body::Body;
use axum::response::Response;
use http::request::Parts;
use saggar_http::access::Insider;
use saggar_runtime::{Action, Fault, FileFault, FileFaultKind, FileKind, FilePath, Files, LIST_MAX};
use serde::Deserialize;
use serde_json::{Value, json};

use super::connect::{self, Actor};
use super::envd::{answered, no_such_call, streamed};
use super::failure::{CallFailure, Code};
use crate::state::Shared;

pub(crate) use watchers::Watchers;

use way::Ways;

/// Permissions of a new directory.
const DIRECTORY_MODE: u32 = 0o755;

pub(super) async fn call(server: Shared, insider: Insider, parts: Parts, body: Body, rpc: &str) -> Response {
    match rpc {
        "Stat" => answered(stat(&server, &insider, &parts, body).await),
        "ListDir" => answered(list(&server, &insider, &parts, body).await),
        "MakeDir" => answered(make_directory(&server, &insider, &parts, body).await),
        "Move" => answered(move_entry(&server, &insider, &parts, body).await),
        "Remove" => answered(remove(&server, &insider, &parts, body).await),
        "WatchDir" => streamed(watch::watch(server, &insider, &parts, body).await),
        "CreateWatcher" => answered(watchers::create(&server, &insider, &parts, body).await),
        "GetWatcherEvents" => answered(watchers::events(&server, &insider, &parts, body).await),
        "RemoveWatcher" => answered(watchers::remove(&server, &insider, &parts, body).await),
        _ => no_such_call().unary(),
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PathRequest {
    path: String,
    depth: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MoveRequest {
    source: String,
    destination: String,
}

/// The user that a call acts as.
fn acting(server: &Shared, insider: &Insider, parts: &Parts) -> Result<Actor, CallFailure> {
    Actor::of(server, &insider.may(Action::ReadFiles)?, connect::user_name(&parts.headers)?.as_deref())
}

async fn to_read(server: &Shared, insider: &Insider, actor: &Actor) -> Result<Files, CallFailure> {
    Ok(Files::to_read(&server.sandboxes, &insider.may(Action::ReadFiles)?, actor.user).await?)
}

async fn to_write(server: &Shared, insider: &Insider, actor: &Actor) -> Result<Files, CallFailure> {
    Ok(Files::to_write(&server.sandboxes, &insider.may(Action::WriteFiles)?, actor.user).await?)
}

/// A path as E2B's agent interprets it: relative to the user's home, with `.` and `..` removed textually.
pub(super) fn place(text: &str, home: &str) -> Result<FilePath, CallFailure> {
    let path = FilePath::parse(text, home)?.to_string();
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    Ok(FilePath::parse(&format!("/{}", names.join("/")), home)?)
}

async fn stat(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Value, CallFailure> {
    let request: PathRequest = connect::unary(parts, body).await?;
    let actor = acting(server, insider, parts)?;
    let path = place(&request.path, &actor.home)?;
    let mut files = to_read(server, insider, &actor).await?;
    Ok(json!({ "entry": entry::of(&mut files, &path).await? }))
}

async fn list(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Value, CallFailure> {
    let request: PathRequest = connect::unary(parts, body).await?;
    let actor = acting(server, insider, parts)?;
    let path = place(&request.path, &actor.home)?;
    let mut files = to_read(server, insider, &actor).await?;
    directory(&mut files, &path).await?;
    // A depth of zero means one.
    let (mut found, _skipped) = files.list(&path, request.depth.max(1), LIST_MAX).await?;
    found.sort_by(|one, other| names(&one.path).cmp(names(&other.path)));
    let mut entries = Vec::with_capacity(found.len());
    let mut ways = Ways::default();
    for one in found {
        let path = path.join(&one.path)?;
        entries.push(entry::shown(&mut files, &mut ways, &path, one).await?);
    }
    Ok(json!({ "entries": entries }))
}

/// The components of a path. Sorting by these, not by bytes, puts a directory's contents right after it.
fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/')
}

/// Fails if the path is not a directory.
async fn directory(files: &mut Files, path: &FilePath) -> Result<(), CallFailure> {
    match files.stat(path, true).await {
        Ok(entry) if entry.kind == FileKind::Directory => Ok(()),
        Ok(_) => Err(CallFailure::invalid(format!("path is not a directory: {path}"))),
        Err(Fault::File(FileFault { kind: FileFaultKind::NotFound, .. })) => {
            Err(CallFailure::new(Code::NotFound, format!("directory not found: {path}")))
        }
        Err(fault) => Err(fault.into()),
    }
}

async fn make_directory(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Value, CallFailure> {
    let request: PathRequest = connect::unary(parts, body).await?;
    let actor = acting(server, insider, parts)?;
    let path = place(&request.path, &actor.home)?;
    let mut files = to_write(server, insider, &actor).await?;
    match files.stat(&path, true).await {
        Ok(entry) if entry.kind == FileKind::Directory => {
            return Err(CallFailure::new(Code::AlreadyExists, format!("directory already exists: {path}")));
        }
        Ok(_) => return Err(CallFailure::invalid(format!("path already exists but it is not a directory: {path}"))),
        // If it can't be examined it can't be created either, and that error is better.
        Err(_) => files.make_directory(&path, true, DIRECTORY_MODE).await?,
    }
    Ok(json!({ "entry": entry::of(&mut files, &path).await? }))
}

async fn move_entry(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Value, CallFailure> {
    let request: MoveRequest = connect::unary(parts, body).await?;
    let actor = acting(server, insider, parts)?;
    let (from, to) = (place(&request.source, &actor.home)?, place(&request.destination, &actor.home)?);
    let mut files = to_write(server, insider, &actor).await?;
    match files.stat(&from, false).await {
        Ok(_) => {}
        Err(Fault::File(FileFault { kind: FileFaultKind::NotFound, .. })) => {
            return Err(CallFailure::new(Code::NotFound, format!("source file not found: {from}")));
        }
        Err(fault) => return Err(fault.into()),
    }
    let (parent, _) = split(&to);
    if !parent.is_empty() {
        files.make_directory(&FilePath::parse(&parent, &actor.home)?, true, DIRECTORY_MODE).await?;
    }
    files.move_to(&from, &to).await?;
    Ok(json!({ "entry": entry::of(&mut files, &to).await? }))
}

/// The directory of a path, empty for the root, and the name in it.
fn split(path: &FilePath) -> (String, String) {
    let text = path.to_string();
    let (parent, name) = text.rsplit_once('/').unwrap_or(("", &text));
    (parent.to_owned(), name.to_owned())
}

async fn remove(server: &Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Value, CallFailure> {
    let request: PathRequest = connect::unary(parts, body).await?;
    let actor = acting(server, insider, parts)?;
    let path = place(&request.path, &actor.home)?;
    let mut files = to_write(server, insider, &actor).await?;
    match files.remove(&path, true).await {
        // A missing entry counts as removed.
        Ok(()) | Err(Fault::File(FileFault { kind: FileFaultKind::NotFound, .. })) => Ok(json!({})),
        Err(fault) => Err(fault.into()),
    }
}

#[cfg(test)]
mod tests {
    use saggar_domain::User;

    use super::*;

    #[test]
    fn paths_are_the_users_and_plain() {
        for (text, path) in [
            ("", "/home/user"),
            (".", "/home/user"),
            ("a/./b//c/", "/home/user/a/b/c"),
            ("../x", "/home/x"),
            ("/../../etc", "/etc"),
            ("/", "/"),
            ("~/a", "/home/user/a"),
        ] {
            assert_eq!(place(text, User::User.home()).unwrap().to_string(), path, "{text}");
        }
        assert!(place("a\0b", User::User.home()).is_err());
    }
}
