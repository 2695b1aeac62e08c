//! The tool `files`: read, write, list and remove, in the run's sandbox. Repeating an operation is harmless: a file
//! is replaced as a whole.

use std::time::Duration;

use saggar_domain::User;
use saggar_engine::{Class, Report};
use serde::Deserialize;
use serde_json::json;

use super::hands::Hands;
use super::report::{cut, failed, not_begun, read as read_arguments, returned};
use super::sandbox::RunSandbox;
use super::tool::{Needs, Performer, Performing, Tool};
use crate::fault::{Fault, FileFaultKind};
use crate::files::{FilePath, Files, WriteOptions};
use crate::permit::Action;
use crate::runs::effects::Task;

/// Maximum size of a file that the agent gets, in bytes.
const READ_MAX: usize = 256 * 1024;
/// Maximum number of entries of a directory.
const LIST_MAX: u32 = 1000;

pub(super) const TOOL: Tool = Tool {
    name: "files",
    description: "Reads, writes, lists and removes files in the sandbox. A write replaces the whole file.",
    schema: r#"{
        "type": "object",
        "properties": {
            "op": {"enum": ["read", "write", "list", "remove"]},
            "path": {"type": "string", "description": "An absolute path, or one below the home directory."},
            "content": {"type": "string", "description": "With write: the whole file."}
        },
        "required": ["op", "path"],
        "additionalProperties": false
    }"#,
    // A file is read, or replaced as a whole: repeating it is harmless.
    class: Class::Pure,
    risk: 30,
    timeout: Duration::from_secs(10 * 60),
    needs: Needs::Sandbox,
    performer: Performer::Executor { call: perform, probe: None },
};

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Arguments {
    Read { path: String },
    Write { path: String, content: String },
    List { path: String },
    Remove { path: String },
}

fn perform<'a>(hands: &'a Hands, _: &'a Task, arguments: &'a str) -> Performing<'a> {
    Box::pin(call(&hands.sandbox, arguments))
}

async fn call(sandbox: &RunSandbox, arguments: &str) -> Report {
    let arguments: Arguments = match read_arguments(TOOL.name, arguments) {
        Ok(arguments) => arguments,
        Err(report) => return report,
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
        Err(fault) => failed(TOOL.name, fault.to_string(), true),
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
