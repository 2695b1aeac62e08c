//! The tool `files`: read, write, list and remove, in the run's sandbox. Repeating an operation is harmless: a file
//! is replaced as a whole.

use saggar_domain::User;
use saggar_engine::Report;
use serde::Deserialize;
use serde_json::json;

use super::sandbox::RunSandbox;
use super::{cut, failed, not_begun, returned};
use crate::fault::{Fault, FileFaultKind};
use crate::files::{FilePath, Files, WriteOptions};
use crate::permit::Action;

/// Maximum size of a file that the agent gets, in bytes.
const READ_MAX: usize = 256 * 1024;
/// Maximum number of entries of a directory.
const LIST_MAX: u32 = 1000;

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Arguments {
    Read { path: String },
    Write { path: String, content: String },
    List { path: String },
    Remove { path: String },
}

pub(super) async fn call(sandbox: &RunSandbox, arguments: &str) -> Report {
    let arguments: Arguments = match serde_json::from_str(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            return returned(format!("files needs \"op\": read, write, list or remove, and \"path\" ({error})"), true);
        }
    };
    let id = match sandbox.ready().await {
        Ok(id) => id,
        Err(report) => return report,
    };
    let done = match arguments {
        Arguments::Read { path } => read(sandbox, Action::ReadFiles(id), &path).await,
        Arguments::Write { path, content } => write(sandbox, Action::WriteFiles(id), &path, &content).await,
        Arguments::List { path } => list(sandbox, Action::ReadFiles(id), &path).await,
        Arguments::Remove { path } => remove(sandbox, Action::WriteFiles(id), &path).await,
    };
    match done {
        Ok(said) => returned(said, false),
        Err(Fault::File(fault)) if fault.kind != FileFaultKind::Broken => returned(fault.message(), true),
        Err(fault @ Fault::Refused(_)) => not_begun(&fault),
        // Repeating it is harmless, whatever happened.
        Err(fault) => failed("files", fault.to_string(), true),
    }
}

async fn read(sandbox: &RunSandbox, action: Action, path: &str) -> Result<String, Fault> {
    let path = FilePath::parse(path, User::User)?;
    let files = Files::to_read(sandbox.sandboxes(), &sandbox.permit(action)?, User::User).await?;
    // One byte more than is returned shows that there is more.
    let mut reading = files.read(&path, 0, Some(READ_MAX as u64 + 1)).await?;
    let mut bytes = Vec::new();
    while bytes.len() <= READ_MAX
        && let Some(some) = reading.next().await?
    {
        bytes.extend_from_slice(&some);
    }
    Ok(cut(bytes, READ_MAX))
}

async fn write(sandbox: &RunSandbox, action: Action, path: &str, content: &str) -> Result<String, Fault> {
    let path = FilePath::parse(path, User::User)?;
    let files = Files::to_write(sandbox.sandboxes(), &sandbox.permit(action)?, User::User).await?;
    let options = WriteOptions { mode: 0o644, parents: true, expected: Some(content.len() as u64) };
    let mut writing = files.write(&path, options).await?;
    writing.data(content.as_bytes()).await?;
    writing.finish().await?;
    Ok(format!("{} bytes written", content.len()))
}

async fn list(sandbox: &RunSandbox, action: Action, path: &str) -> Result<String, Fault> {
    let path = FilePath::parse(path, User::User)?;
    let mut files = Files::to_read(sandbox.sandboxes(), &sandbox.permit(action)?, User::User).await?;
    let (entries, skipped) = files.list(&path, 1, LIST_MAX).await?;
    let names: Vec<_> = entries
        .iter()
        .map(|entry| json!({ "path": String::from_utf8_lossy(&entry.path), "size": entry.size }))
        .collect();
    Ok(json!({ "entries": names, "skipped": skipped }).to_string())
}

async fn remove(sandbox: &RunSandbox, action: Action, path: &str) -> Result<String, Fault> {
    let path = FilePath::parse(path, User::User)?;
    let mut files = Files::to_write(sandbox.sandboxes(), &sandbox.permit(action)?, User::User).await?;
    match files.remove(&path, true).await {
        Ok(()) => Ok("removed".to_owned()),
        // The state after it was removed, perhaps by an earlier attempt.
        Err(Fault::File(fault)) if fault.kind == FileFaultKind::NotFound => Ok("it does not exist".to_owned()),
        Err(fault) => Err(fault),
    }
}
