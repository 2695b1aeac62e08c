//! Decisions about a sandbox's network, and sums of them by host.
//!
//! They are events of their sandbox, numbered in the same sequence, and [`Store::events_after`] returns them among the others. They
//! have a table of their own because the sandbox causes them: allowed and denied ones are bounded apart, so that neither displaces the
//! other or any other event. The sums include decisions that are no longer kept.

use rusqlite::{Connection, Row};
use saggar_domain::net::{HostTraffic, NetDecision, Verdict};
use saggar_domain::{SandboxId, Timestamp};

use crate::column;
use crate::error::Error;
use crate::json_text::JsonText;
use crate::store::Store;
use crate::writer::Durability;

/// Maximum number of decisions kept per sandbox and verdict; the oldest are dropped.
pub const DECISIONS_PER_VERDICT_MAX: u64 = 5_000;
/// Maximum number of hosts with an allowed connection that are told apart, and as many again that were only refused.
pub const TRAFFIC_HOSTS_MAX: u64 = 256;
/// Stands for all hosts beyond the maximum.
const OTHERS: &str = "others";
/// The most that one decision adds to a sum, so that no sum overflows.
const BYTES_MAX: u64 = 1 << 48;
const TIMES_MAX: u64 = 1 << 40;

const INSERT: &str = "
    INSERT INTO decision (sandbox_id, seq, at, verdict, body_json) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (sandbox_id, seq) DO NOTHING";
const COUNT_ONCE: &str = "UPDATE sandbox SET summed_through = ?2 WHERE id = ?1 AND summed_through < ?2";
const HAS_MORE: &str = "
    SELECT count(*) AS kept FROM decision WHERE sandbox_id = ?1 AND verdict = ?2";
const DROP_OLDEST: &str = "
    DELETE FROM decision WHERE sandbox_id = ?1 AND seq IN (
        SELECT seq FROM decision WHERE sandbox_id = ?1 AND verdict = ?2 ORDER BY seq LIMIT ?3)";
const HOSTS: &str = "
    SELECT count(*) AS hosts FROM traffic WHERE sandbox_id = ?1 AND (allowed > 0) = ?2";
const ADD: &str = "
    UPDATE traffic SET allowed = allowed + ?4, denied = denied + ?5, bytes_up = bytes_up + ?6, bytes_down = bytes_down + ?7
    WHERE sandbox_id = ?1 AND host = ?2 AND port = ?3";
const BEGIN: &str = "
    INSERT INTO traffic (sandbox_id, host, port, allowed, denied, bytes_up, bytes_down) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
const SUMS: &str = "
    SELECT host, port, allowed, denied, bytes_up, bytes_down FROM traffic WHERE sandbox_id = ?1 ORDER BY host, port";

/// A decision as an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDecision {
    /// Position in the order of all events, assigned by the supervisor.
    pub seq: u64,
    pub at: Timestamp,
    /// The whole event.
    pub body: JsonText,
    pub decision: NetDecision,
}

impl Store {
    /// Appends decisions, in order. One whose number exists stays as it is, and counts once.
    pub async fn append_decisions(&self, sandbox: SandboxId, decisions: Vec<StoredDecision>) -> Result<(), Error> {
        self.write(Durability::Process, move |connection| append(connection, &sandbox, &decisions)).await
    }

    /// Sums of all decisions, by host and port.
    pub async fn traffic(&self, sandbox: SandboxId) -> Result<Vec<HostTraffic>, Error> {
        self.read(move |connection| column::all(connection, SUMS, [sandbox.as_str()], read_sum)).await
    }
}

pub(crate) fn append(connection: &Connection, sandbox: &SandboxId, decisions: &[StoredDecision]) -> Result<(), Error> {
    for new in decisions {
        let verdict = new.decision.verdict.as_str();
        let params = (sandbox.as_str(), column::count(new.seq), column::millis(new.at), verdict, new.body.as_str());
        column::execute(connection, INSERT, params).map_err(|error| error.naming("the sandbox"))?;
        if column::execute(connection, COUNT_ONCE, (sandbox.as_str(), column::count(new.seq)))? > 0 {
            add(connection, sandbox, &new.decision)?;
        }
    }
    let verdicts = Verdict::ALL.iter().filter(|verdict| decisions.iter().any(|new| new.decision.verdict == **verdict));
    for verdict in verdicts {
        let params = (sandbox.as_str(), verdict.as_str());
        let kept = column::one(connection, HAS_MORE, params, |row| column::number(row, "kept"))?.unwrap_or(0);
        let excess = kept.saturating_sub(DECISIONS_PER_VERDICT_MAX);
        if excess > 0 {
            column::execute(connection, DROP_OLDEST, (sandbox.as_str(), verdict.as_str(), column::count(excess)))?;
        }
    }
    Ok(())
}

fn add(connection: &Connection, sandbox: &SandboxId, decision: &NetDecision) -> Result<(), Error> {
    let is_allowed = decision.verdict == Verdict::Allowed;
    let bytes = |count: u64| column::count(count.min(BYTES_MAX));
    let times = |is_meant: bool| column::count(if is_meant { decision.times.min(TIMES_MAX) } else { 0 });
    let sum = |sql: &'static str, host: &str, port: u16| {
        let params = rusqlite::params![
            sandbox.as_str(),
            host,
            port,
            times(is_allowed),
            times(!is_allowed),
            bytes(decision.bytes_up),
            bytes(decision.bytes_down),
        ];
        column::execute(connection, sql, params)
    };
    if sum(ADD, &decision.host, decision.port)? > 0 {
        return Ok(());
    }
    let hosts = column::one(connection, HOSTS, (sandbox.as_str(), is_allowed), |row| column::number(row, "hosts"))?;
    if hosts.unwrap_or(0) < TRAFFIC_HOSTS_MAX {
        sum(BEGIN, &decision.host, decision.port)?;
    } else if sum(ADD, OTHERS, 0)? == 0 {
        sum(BEGIN, OTHERS, 0)?;
    }
    Ok(())
}

fn read_sum(row: &Row<'_>) -> Result<HostTraffic, Error> {
    Ok(HostTraffic {
        host: column::plain(row, "host")?,
        port: column::plain(row, "port")?,
        allowed: column::number(row, "allowed")?,
        denied: column::number(row, "denied")?,
        bytes_up: column::number(row, "bytes_up")?,
        bytes_down: column::number(row, "bytes_down")?,
    })
}
