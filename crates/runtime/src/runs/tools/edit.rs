//! The tool `edit`: views and changes text files in the run's sandbox, each change once per step.
//!
//! ```text
//!   read ─▶ entry of this step? ── no ─▶ change ─▶ write the entry ─▶ write the file ─▶ done
//!                  │
//!                  └─ yes: the file is as before ─▶ write it again; as after ─▶ done; otherwise ─▶ an error
//! ```
//! So a worker may die between any two of them, and the next one neither loses the change nor makes it twice.

mod change;
mod history;
mod io;

use std::time::Duration;

use saggar_domain::SandboxId;
use saggar_engine::{Class, Report};
use serde::Deserialize;

use super::hands::Hands;
use super::report::{failed, not_begun, read as read_arguments, returned};
use super::sandbox::RunSandbox;
use super::tool::{Needs, Performer, Performing, Tool};
use crate::fail_point::pass;
use crate::fault::{Fault, FileFaultKind};
use crate::files::FilePath;
use crate::permit::Action;
use crate::runs::effects::Task;
use change::{Change, Changed, too_long};
use history::{History, Past, hash, name};
use io::{TEXT_MAX, read_text, write_text};

pub(in crate::runs::tools) use change::numbered;

/// Lines of a view, unless fewer are asked for.
pub(in crate::runs::tools) const LINES_MAX: usize = 2000;
/// Bytes of a view.
pub(in crate::runs::tools) const PAGE_MAX: usize = 64 * 1024;

pub(super) const TOOL: Tool = Tool {
    name: "edit",
    description: "Views and changes text files in the sandbox. replace needs the exact text, spaces included, and it \
        must be there once; a failed call says where it is or what comes nearest. undo takes back the last edit of a file.",
    schema: r#"{
        "type": "object",
        "properties": {
            "op": {"enum": ["view", "create", "replace", "insert", "undo"]},
            "path": {"type": "string", "description": "An absolute path, or one below the home directory."},
            "start": {"type": "integer", "minimum": 1, "description": "With view: the first line; 1 without it."},
            "lines": {"type": "integer", "minimum": 1, "description": "With view: how many lines; at most 2000."},
            "content": {"type": "string", "description": "With create: the whole file. With insert: the new lines."},
            "old": {"type": "string", "description": "With replace: the text that is replaced."},
            "new": {"type": "string", "description": "With replace: the text that takes its place."},
            "all": {"type": "boolean", "description": "With replace: every match is meant."},
            "line": {"type": "integer", "minimum": 0, "description": "With insert: after this line; 0 is the top."}
        },
        "required": ["op", "path"],
        "additionalProperties": false
    }"#,
    // The sandbox keeps what each step did.
    class: Class::Keyed,
    class_of: None,
    is_parallel: false,
    risk: 30,
    timeout: Duration::from_secs(60),
    needs: Needs::Sandbox,
    performer: Performer::Executor { call: perform, probe: None },
};

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Arguments {
    View {
        path: String,
        #[serde(default)]
        start: Option<usize>,
        #[serde(default)]
        lines: Option<usize>,
    },
    Create {
        path: String,
        content: String,
    },
    Replace {
        path: String,
        old: String,
        new: String,
        #[serde(default)]
        all: bool,
    },
    Insert {
        path: String,
        line: usize,
        content: String,
    },
    Undo {
        path: String,
    },
}

/// What is told to the model: what was done, or why nothing was.
type Told = Result<String, String>;

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
    match (Editing { sandbox, id, step: task.step }).perform(&arguments).await {
        Ok(Ok(said)) => returned(said, false),
        Ok(Err(complaint)) => returned(complaint, true),
        Err(Fault::File(fault)) if fault.kind != FileFaultKind::Broken => returned(fault.message(), true),
        Err(fault @ Fault::Refused(_)) => not_begun(&fault),
        // Repeating it is harmless, whatever happened.
        Err(fault) => failed(TOOL.name, fault.to_string(), true),
    }
}

struct Editing<'a> {
    sandbox: &'a RunSandbox,
    id: SandboxId,
    step: u64,
}

impl Editing<'_> {
    async fn perform(&self, arguments: &Arguments) -> Result<Told, Fault> {
        let place = |path: &str| self.sandbox.path(path);
        match arguments {
            Arguments::View { path, start, lines } => {
                let text = match read_text(self.sandbox, self.reads(), &place(path)?).await? {
                    Ok(text) => text,
                    Err(why) => return Ok(Err(why)),
                };
                Ok(numbered(&text, start.unwrap_or(1), lines.unwrap_or(LINES_MAX).min(LINES_MAX), PAGE_MAX))
            }
            Arguments::Create { path, content } => {
                let made = |before: Option<&str>| match before {
                    None => Ok(Changed { text: content.clone(), said: format!("created, {} bytes", content.len()) }),
                    Some(_) => Err("the file exists: change it with replace or insert, or remove it first".to_owned()),
                };
                self.change(&place(path)?, made).await
            }
            Arguments::Replace { path, old, new, all } => {
                self.change(&place(path)?, existing(Change::Replace { old, new, is_all: *all })).await
            }
            Arguments::Insert { path, line, content } => {
                self.change(&place(path)?, existing(Change::Insert { line: *line, text: content })).await
            }
            Arguments::Undo { path } => self.undo(&place(path)?).await,
        }
    }

    async fn change(
        &self,
        path: &FilePath,
        make: impl Fn(Option<&str>) -> Result<Changed, String>,
    ) -> Result<Told, Fault> {
        let now = match self.current(path).await? {
            Ok(now) => now,
            Err(why) => return Ok(Err(why)),
        };
        let history = self.history(path);
        let past = history.get(&name(self.step)).await?;
        let before = past.as_ref().map_or(now.as_deref(), |past| past.before.as_deref());
        let changed = match make(before) {
            Ok(changed) if changed.text.len() > TEXT_MAX => {
                return Ok(Err(too_long()));
            }
            Ok(changed) => changed,
            Err(complaint) => return Ok(Err(complaint)),
        };
        match &past {
            // An earlier attempt got as far as this, or further.
            Some(past) if now.as_deref().map(hash).as_deref() == Some(&past.after) => return Ok(Ok(changed.said)),
            Some(past) if now == past.before => {}
            Some(_) => return Ok(Err("the file was changed by something else meanwhile: view it again".to_owned())),
            None => history.put(self.step, &Past { before: now, after: hash(&changed.text) }).await?,
        }
        pass("edit/noted");
        write_text(self.sandbox, self.writes(), path, &changed.text).await?;
        pass("edit/written");
        Ok(Ok(changed.said))
    }

    async fn undo(&self, path: &FilePath) -> Result<Told, Fault> {
        let history = self.history(path);
        let done = || Ok(Ok("the last edit of the file is undone".to_owned()));
        if history.is_undone_by(self.step).await? {
            return done();
        }
        let Some((entry, past)) = history.newest().await? else {
            return Ok(Err("there is no edit of this file to undo".to_owned()));
        };
        let now = match self.current(path).await? {
            Ok(now) => now,
            Err(why) => return Ok(Err(why)),
        };
        // An attempt that died here has undone it already.
        if now != past.before {
            if now.as_deref().map(hash).as_deref() != Some(&past.after) {
                return Ok(Err(
                    "the file was changed by something else since its last edit: undo would lose that".to_owned()
                ));
            }
            match &past.before {
                Some(before) => write_text(self.sandbox, self.writes(), path, before).await?,
                None => {
                    self.sandbox.to_write(self.writes()).await?.remove(path, false).await?;
                }
            }
        }
        pass("edit/undone");
        history.mark_undone(&entry, self.step).await?;
        pass("edit/marked");
        done()
    }

    /// The text of the file, or `None` if there is none.
    async fn current(&self, path: &FilePath) -> Result<Result<Option<String>, String>, Fault> {
        match read_text(self.sandbox, self.reads(), path).await {
            Ok(Ok(text)) if text.len() > TEXT_MAX => {
                Ok(Err(format!("the file has more than {TEXT_MAX} bytes, which is too long to edit")))
            }
            Ok(text) => Ok(text.map(Some)),
            Err(Fault::File(fault)) if fault.kind == FileFaultKind::NotFound => Ok(Ok(None)),
            Err(fault) => Err(fault),
        }
    }

    fn history(&self, path: &FilePath) -> History<'_> {
        History::of(self.sandbox, self.reads(), self.writes(), path)
    }

    fn reads(&self) -> Action {
        Action::ReadFiles(self.id.clone())
    }

    fn writes(&self) -> Action {
        Action::WriteFiles(self.id.clone())
    }
}

fn existing(change: Change<'_>) -> impl Fn(Option<&str>) -> Result<Changed, String> {
    move |before| before.map_or_else(|| Err("the file does not exist: create it".to_owned()), |text| change.apply(text))
}
