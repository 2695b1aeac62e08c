//! Records that an exec started, and how it ended.

use rusqlite::Connection;
use saggar_domain::{ExecId, SandboxId, Timestamp};

use super::{EXECS_PER_SANDBOX_MAX, ExecEnd, ExecOutput, OUTPUTS_PER_SANDBOX_MAX, StartedExec};
use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

/// Maximum number of old execs deleted when one ends. There is never more than one excess row, unless the bound was
/// lowered.
const DROPPED_AT_ONCE: u32 = 16;

const INSERT: &str = "
    INSERT INTO exec (id, sandbox_id, state, started_at, user, cwd, argv_json) VALUES (?1, ?2, 'running', ?3, ?4, ?5, ?6)";
/// An end that arrives after its exec was marked as lost still counts, and output may arrive after the end.
const END: &str = "
    UPDATE exec SET state = 'ended', ended_at = ?3, status = ?4, exit_code = ?5, signal = ?6, has_output = ?7,
        stdout = ?8, stdout_dropped = ?9, stderr = ?10, stderr_dropped = ?11
    WHERE id = ?1 AND sandbox_id = ?2 AND (state <> 'ended' OR (has_output = 0 AND ?7))";
const LOSE_RUNNING: &str = "
    UPDATE exec SET state = 'lost', ended_at = ?2 WHERE sandbox_id = ?1 AND state = 'running'";
const DROP_OUTPUTS: &str = "
    UPDATE exec SET has_output = 0, stdout_dropped = stdout_dropped + length(stdout), stdout = x'',
        stderr_dropped = stderr_dropped + length(stderr), stderr = x''
    WHERE id IN (SELECT id FROM exec WHERE sandbox_id = ?1 AND has_output = 1 ORDER BY ended_at DESC LIMIT ?3 OFFSET ?2)";
const DROP_EXECS: &str = "
    DELETE FROM exec WHERE id IN (
        SELECT id FROM exec WHERE sandbox_id = ?1 AND state <> 'running'
        ORDER BY started_at DESC, id DESC LIMIT ?3 OFFSET ?2)";

impl Store {
    /// Records that an exec started. [`Error::Missing`] if the sandbox doesn't exist.
    pub async fn record_exec_started(&self, exec: StartedExec) -> Result<(), Error> {
        self.write(Durability::Process, move |connection| record_start(connection, &exec)).await
    }

    /// Records how an exec ended. The first end wins; an exec that doesn't exist (any more) is ignored.
    pub async fn record_exec_ended(
        &self,
        sandbox: SandboxId,
        id: ExecId,
        end: ExecEnd,
        output: ExecOutput,
    ) -> Result<(), Error> {
        self.write(Durability::Process, move |connection| record_end(connection, &sandbox, &id, &end, &output)).await
    }
}

/// Everything known about an exec whose sandbox has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecRecord {
    pub exec: StartedExec,
    /// Its end and its output.
    pub end: Option<(ExecEnd, ExecOutput)>,
}

/// Records an exec, whether or not parts of it were recorded before.
pub(crate) fn record(connection: &Connection, record: &ExecRecord) -> Result<(), Error> {
    let ExecRecord { exec, end } = record;
    match record_start(connection, exec) {
        Ok(()) | Err(Error::Taken { .. }) => {}
        Err(error) => return Err(error),
    }
    end.as_ref().map_or(Ok(()), |(end, output)| record_end(connection, &exec.sandbox, &exec.id, end, output))
}

fn record_start(connection: &Connection, exec: &StartedExec) -> Result<(), Error> {
    let params = (
        exec.id.as_str(),
        exec.sandbox.as_str(),
        column::millis(exec.started_at),
        exec.user.as_str(),
        exec.cwd.as_ref().map(|cwd| cwd.as_str()),
        column::to_json(&exec.argv),
    );
    column::execute(connection, INSERT, params).map_err(|error| match error {
        Error::Taken { .. } => error.naming("an exec of that id"),
        other => other.naming("the sandbox"),
    })?;
    Ok(())
}

/// Marks the execs that were running when their sandbox ended as lost.
pub(crate) fn lose_running(connection: &Connection, sandbox: &SandboxId, at: Timestamp) -> Result<(), Error> {
    column::execute(connection, LOSE_RUNNING, (sandbox.as_str(), column::millis(at)))?;
    Ok(())
}

fn record_end(
    connection: &Connection,
    sandbox: &SandboxId,
    id: &ExecId,
    end: &ExecEnd,
    output: &ExecOutput,
) -> Result<(), Error> {
    let ExecOutput { stdout, stderr } = output;
    let has_output = !stdout.bytes().is_empty() || !stderr.bytes().is_empty();
    let params = (
        id.as_str(),
        sandbox.as_str(),
        column::millis(end.at),
        end.status.as_str(),
        end.exit_code,
        end.signal,
        has_output,
        stdout.bytes(),
        column::count(stdout.dropped()),
        stderr.bytes(),
        column::count(stderr.dropped()),
    );
    column::execute(connection, END, params)?;
    let bound = |kept: u32| (sandbox.as_str(), kept, DROPPED_AT_ONCE);
    column::execute(connection, DROP_OUTPUTS, bound(OUTPUTS_PER_SANDBOX_MAX))?;
    column::execute(connection, DROP_EXECS, bound(EXECS_PER_SANDBOX_MAX))?;
    Ok(())
}
