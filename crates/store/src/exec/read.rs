//! Reads execs and their output.

use rusqlite::{Connection, Row};
use saggar_domain::{ExecId, ExecStatus, GuestPath, SandboxId, User};

use super::{Exec, ExecEnd, ExecOutput, ExecProgress, StartedExec, Tail};
use crate::column;
use crate::cursor::{Cursor, ExecCursor};
use crate::error::Error;
use crate::page::{Page, PageLimit};
use crate::store::Store;

const GET: &str = "
    SELECT id, sandbox_id, state, started_at, ended_at, status, exit_code, signal, user, cwd, argv_json
    FROM exec WHERE id = ?1 AND sandbox_id = ?2";
const GET_OUTPUT: &str = "
    SELECT stdout, stdout_dropped, stderr, stderr_dropped FROM exec WHERE id = ?1 AND sandbox_id = ?2";
const LIST: &str = "
    SELECT id, sandbox_id, state, started_at, ended_at, status, exit_code, signal, user, cwd, argv_json
    FROM exec WHERE sandbox_id = ?1 AND (started_at, id) < (?2, ?3) ORDER BY started_at DESC, id DESC LIMIT ?4";

impl Store {
    pub async fn exec(&self, sandbox: SandboxId, id: ExecId) -> Result<Option<Exec>, Error> {
        self.read(move |connection| column::one(connection, GET, (id.as_str(), sandbox.as_str()), read)).await
    }

    /// The end of an exec's output; empty while it runs.
    pub async fn exec_output(&self, sandbox: SandboxId, id: ExecId) -> Result<Option<ExecOutput>, Error> {
        self.read(move |connection| column::one(connection, GET_OUTPUT, (id.as_str(), sandbox.as_str()), read_output))
            .await
    }

    /// A page of a sandbox's execs, newest first.
    pub async fn execs(
        &self,
        sandbox: SandboxId,
        limit: PageLimit,
        cursor: Option<ExecCursor>,
    ) -> Result<Page<Exec, ExecId>, Error> {
        self.read(move |connection| list(connection, &sandbox, limit, cursor)).await
    }
}

fn list(
    connection: &Connection,
    sandbox: &SandboxId,
    limit: PageLimit,
    cursor: Option<ExecCursor>,
) -> Result<Page<Exec, ExecId>, Error> {
    let (before, before_id) = match &cursor {
        Some(cursor) => (column::millis(cursor.created_at), cursor.id.as_str()),
        None => (i64::MAX, ""),
    };
    let items = column::all(connection, LIST, (sandbox.as_str(), before, before_id, limit.and_one()), read)?;
    Ok(Page::cut(items, limit, |last| Cursor { created_at: last.asked.started_at, id: last.asked.id.clone() }))
}

fn read(row: &Row<'_>) -> Result<Exec, Error> {
    let asked = StartedExec {
        id: column::parsed(row, "id", ExecId::parse)?,
        sandbox: column::parsed(row, "sandbox_id", SandboxId::parse)?,
        argv: column::json(row, "argv_json")?,
        cwd: column::parsed_optional(row, "cwd", |text| GuestPath::parse(text).ok())?,
        user: column::parsed(row, "user", User::parse)?,
        started_at: column::time(row, "started_at")?,
    };
    let progress = column::parsed(row, "state", |state| Some(state.to_owned()))?;
    let progress = match progress.as_str() {
        "running" => ExecProgress::Running,
        "lost" => ExecProgress::Lost { at: column::time(row, "ended_at")? },
        "ended" => ExecProgress::Ended(ExecEnd {
            at: column::time(row, "ended_at")?,
            status: column::parsed(row, "status", ExecStatus::parse)?,
            exit_code: column::plain(row, "exit_code")?,
            signal: column::plain(row, "signal")?,
        }),
        _ => return Err(column::damaged("state")),
    };
    Ok(Exec { asked, progress })
}

fn read_output(row: &Row<'_>) -> Result<ExecOutput, Error> {
    Ok(ExecOutput {
        stdout: Tail::new(column::plain(row, "stdout")?, column::number(row, "stdout_dropped")?),
        stderr: Tail::new(column::plain(row, "stderr")?, column::number(row, "stderr_dropped")?),
    })
}
