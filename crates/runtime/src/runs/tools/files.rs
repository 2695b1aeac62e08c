//! The tool `files`: read, write, list, search and remove, in the run's sandbox. Repeating an operation is harmless: a file
//! is replaced as a whole.

mod search;

use std::time::Duration;

use saggar_engine::{Class, Report};
use serde::Deserialize;
use serde_json::json;

use super::edit::{LINES_MAX, PAGE_MAX, numbered};
use super::hands::Hands;
use super::report::{cut, failed, not_begun, read as read_arguments, returned};
use super::sandbox::RunSandbox;
use super::tool::{Needs, Performer, Performing, Tool};
use crate::fault::{Fault, FileFaultKind};
use crate::files::WriteOptions;
use crate::permit::Action;
use crate::runs::effects::Task;

/// Maximum size of a file that the agent gets, in bytes.
const READ_MAX: usize = 256 * 1024;
/// Maximum size of a file in which lines are counted, in bytes; of a longer one, its beginning.
const RANGE_MAX: usize = 8 << 20;
/// Maximum number of entries of a directory.
const LIST_MAX: u32 = 1000;

pub(super) const TOOL: Tool = Tool {
    name: "files",
    description: "Reads, writes, lists, searches and removes files in the sandbox. A write replaces the whole file.",
    schema: r#"{
        "type": "object",
        "properties": {
            "op": {"enum": ["read", "write", "list", "search", "remove"]},
            "path": {"type": "string", "description": "An absolute path, or one below the home directory."},
            "content": {"type": "string", "description": "With write: the whole file."},
            "start": {"type": "integer", "minimum": 1, "description": "With read: the first line; lines are numbered then."},
            "lines": {"type": "integer", "minimum": 1, "description": "With read: how many lines; at most 2000."},
            "text": {"type": "string", "minLength": 1, "description": "With search: the text that lines have."}
        },
        "required": ["op", "path"],
        "additionalProperties": false
    }"#,
    // A file is read, or replaced as a whole: repeating it is harmless.
    class: Class::Pure,
    // A reply that writes a file and runs it means that order.
    class_of: None,
    is_parallel: false,
    risk: 30,
    timeout: Duration::from_secs(10 * 60),
    needs: Needs::Sandbox,
    performer: Performer::Executor { call: perform, probe: None },
};

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Arguments {
    Read {
        path: String,
        #[serde(default)]
        start: Option<usize>,
        #[serde(default)]
        lines: Option<usize>,
    },
    Search {
        path: String,
        text: String,
    },
    Write {
        path: String,
        content: String,
    },
    List {
        path: String,
    },
    Remove {
        path: String,
    },
}

fn perform<'a>(hands: &'a Hands, task: &'a Task, arguments: &'a str) -> Performing<'a> {
    Box::pin(call(&hands.sandbox, task, arguments))
}

async fn call(sandbox: &RunSandbox, task: &Task, arguments: &str) -> Report {
    let arguments: Arguments = match read_arguments(TOOL.name, arguments) {
        Ok(arguments) => arguments,
        Err(report) => return report,
    };
    let id = match sandbox.ready(task).await {
        Ok(id) => id,
        Err(report) => return report,
    };
    let done = match arguments {
        Arguments::Read { path, start: None, lines: None } => {
            read(sandbox, Action::ReadFiles(id), &path, READ_MAX).await
        }
        Arguments::Read { path, start, lines } => {
            let lines = lines.unwrap_or(LINES_MAX).min(LINES_MAX);
            match read(sandbox, Action::ReadFiles(id), &path, RANGE_MAX).await {
                Ok(text) => match numbered(&text, start.unwrap_or(1), lines, PAGE_MAX) {
                    Ok(page) => Ok(page),
                    Err(complaint) => return returned(complaint, true),
                },
                Err(fault) => Err(fault),
            }
        }
        Arguments::Search { path, text } => search::search(sandbox, Action::ReadFiles(id), &path, &text).await,
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

async fn read(sandbox: &RunSandbox, action: Action, path: &str, most: usize) -> Result<String, Fault> {
    let path = sandbox.path(path)?;
    let files = sandbox.to_read(action).await?;
    // One byte more than is returned shows that there is more.
    let mut reading = files.read(&path, 0, Some(most as u64 + 1)).await?;
    let mut bytes = Vec::new();
    while bytes.len() <= most
        && let Some(some) = reading.next().await?
    {
        bytes.extend_from_slice(&some);
    }
    Ok(cut(bytes, most))
}

async fn write(sandbox: &RunSandbox, action: Action, path: &str, content: &str) -> Result<String, Fault> {
    let path = sandbox.path(path)?;
    let files = sandbox.to_write(action).await?;
    let options = WriteOptions { mode: 0o644, parents: true, expected: Some(content.len() as u64) };
    let mut writing = files.write(&path, options).await?;
    writing.data(content.as_bytes()).await?;
    writing.finish().await?;
    Ok(format!("{} bytes written", content.len()))
}

async fn list(sandbox: &RunSandbox, action: Action, path: &str) -> Result<String, Fault> {
    let path = sandbox.path(path)?;
    let mut files = sandbox.to_read(action).await?;
    let (entries, skipped) = files.list(&path, 1, LIST_MAX).await?;
    let names: Vec<_> = entries
        .iter()
        .map(|entry| json!({ "path": String::from_utf8_lossy(&entry.path), "size": entry.size }))
        .collect();
    Ok(json!({ "entries": names, "skipped": skipped }).to_string())
}

async fn remove(sandbox: &RunSandbox, action: Action, path: &str) -> Result<String, Fault> {
    let path = sandbox.path(path)?;
    let mut files = sandbox.to_write(action).await?;
    match files.remove(&path, true).await {
        Ok(()) => Ok("removed".to_owned()),
        // The state after it was removed, perhaps by an earlier attempt.
        Err(Fault::File(fault)) if fault.kind == FileFaultKind::NotFound => Ok("it does not exist".to_owned()),
        Err(fault) => Err(fault),
    }
}
