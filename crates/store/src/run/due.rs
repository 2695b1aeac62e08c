//! The order of due runs: projects take turns, those with the fewest held runs first, then the longest due.
//!
//! The work is bounded by the number of agents that have due runs, the number of held runs and the number of claimed
//! runs, but not by the number of waiting runs. So a backlog behind a limit costs nothing. Nothing here writes: a
//! worker looks first, and claims only what it found.

use std::collections::BTreeMap;

use rusqlite::Connection;
use saggar_domain::{ProjectId, Uptime};

use super::claim::{LEASE_MAX, Now, Taking};
use super::{RunRow, columns, read};
use crate::column;
use crate::error::Error;

/// Number of held runs per agent. Without the index hint SQLite would scan all runs because of the grouping.
const HELD: &str = "
    SELECT project_id, agent, count(*) AS held FROM run INDEXED BY run_held
    WHERE holder IS NOT NULL AND lease_until > ?1 AND lease_until <= ?2
    GROUP BY project_id, agent";
/// The next agent of a project that has a scheduled run: one index lookup, however many runs lie between. Two
/// statements, because a comparison of pairs would scan all runs of the first pair.
const NEXT_AGENT: &str = "
    SELECT project_id, agent FROM run INDEXED BY run_due
    WHERE wake_at IS NOT NULL AND blocked IS NULL AND project_id = ?1 AND agent > ?2 ORDER BY agent LIMIT 1";
/// The first agent of the next project that has a scheduled run.
const NEXT_PROJECT: &str = "
    SELECT project_id, agent FROM run INDEXED BY run_due
    WHERE wake_at IS NOT NULL AND blocked IS NULL AND project_id > ?1 ORDER BY project_id, agent LIMIT 1";
/// An agent's due runs without a holder, including finished ones that still hold something. ?4 is now by the lease
/// clock, ?5 the latest possible end of a lease: a lease that ends later was given in an earlier boot, whose
/// processes are all dead.
const HEADS: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM run INDEXED BY run_due
      WHERE project_id = ?1 AND agent = ?2 AND wake_at IS NOT NULL AND blocked IS NULL AND wake_at <= ?3
        AND (holder IS NULL OR lease_until <= ?4 OR lease_until > ?5)
      ORDER BY wake_at, id LIMIT ?6"
);

type Held = BTreeMap<(ProjectId, String), u64>;

/// The runs to claim, in order. At most `heads` of each agent are considered.
pub(super) fn due(connection: &Connection, now: Now, taking: Taking, heads: u32) -> Result<Vec<RunRow>, Error> {
    let held: Held = held(connection, now.uptime)?;
    let mut candidates: BTreeMap<ProjectId, Vec<RunRow>> = BTreeMap::new();
    let mut last = None;
    while let Some((project, agent)) = next_agent(connection, last.as_ref())? {
        last = Some((project.clone(), agent.clone()));
        let of_project = held_by(&held, &project);
        let of_agent = held.get(&(project.clone(), agent.clone())).copied().unwrap_or(0);
        let room = u64::from(taking.per_project).saturating_sub(of_project);
        let room = room.min(u64::from(taking.per_agent).saturating_sub(of_agent)).min(u64::from(heads));
        if room == 0 {
            continue;
        }
        let (lease, latest) = (column::uptime(now.uptime), column::uptime(now.uptime.after(LEASE_MAX)));
        let params = (project.as_str(), &agent, column::millis(now.wall), lease, latest, column::count(room));
        let heads = column::all(connection, HEADS, params, read)?;
        candidates.entry(project).or_default().extend(heads);
    }
    Ok(choose(candidates, held, taking))
}

/// The next agent, ordered by project and name.
fn next_agent(
    connection: &Connection,
    last: Option<&(ProjectId, String)>,
) -> Result<Option<(ProjectId, String)>, Error> {
    let read = |row: &rusqlite::Row<'_>| {
        Ok((column::parsed(row, "project_id", ProjectId::parse)?, column::plain(row, "agent")?))
    };
    let Some((project, agent)) = last else { return column::one(connection, NEXT_PROJECT, [""], read) };
    match column::one(connection, NEXT_AGENT, (project.as_str(), agent), read)? {
        Some(next) => Ok(Some(next)),
        None => column::one(connection, NEXT_PROJECT, [project.as_str()], read),
    }
}

fn choose(candidates: BTreeMap<ProjectId, Vec<RunRow>>, mut held: Held, taking: Taking) -> Vec<RunRow> {
    let mut ordered = Vec::new();
    for (project, mut runs) in candidates {
        runs.sort_by(|one, other| (one.wake_at, &one.id).cmp(&(other.wake_at, &other.id)));
        let turns = held_by(&held, &project)..;
        ordered.extend(turns.zip(runs));
    }
    ordered.sort_by(|(turn, one), (later, other)| (turn, one.wake_at, &one.id).cmp(&(later, other.wake_at, &other.id)));
    let mut chosen = Vec::new();
    for (_, run) in ordered {
        let left = taking.most.saturating_sub(u32::try_from(chosen.len()).unwrap_or(u32::MAX));
        if left == 0 {
            break;
        }
        let of_project = held_by(&held, &run.project);
        let of_agent = held.entry((run.project.clone(), run.agent.clone())).or_default();
        let is_within = of_project < u64::from(taking.per_project) && *of_agent < u64::from(taking.per_agent);
        // The last slots are reserved for projects without a held run.
        if is_within && (of_project == 0 || left > taking.reserved) {
            *of_agent += 1;
            chosen.push(run);
        }
    }
    chosen
}

fn held_by(held: &Held, project: &ProjectId) -> u64 {
    held.iter().filter(|((other, _), _)| other == project).map(|(_, count)| count).sum()
}

fn held(connection: &Connection, now: Uptime) -> Result<Held, Error> {
    let rows = column::all(connection, HELD, [column::uptime(now), column::uptime(now.after(LEASE_MAX))], |row| {
        let project = column::parsed(row, "project_id", ProjectId::parse)?;
        Ok(((project, column::plain(row, "agent")?), column::number(row, "held")?))
    })?;
    Ok(rows.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;
    use crate::migrate;

    /// The cost of finding that nothing can be claimed, in steps of SQLite's virtual machine, with a backlog of due
    /// runs of one agent.
    fn cost(backlog: u32) -> i32 {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate::migrate(&mut connection).unwrap();
        connection.execute("INSERT INTO project VALUES ('p', 'p', 0)", []).unwrap();
        let insert =
            "INSERT INTO run (id, project_id, agent, state, created_at, updated_at, head, wake_at, root_id, generation)
            VALUES (?1, 'p', 'a', 'queued', 0, 0, 1, 0, ?1, 0)";
        for number in 0..backlog {
            connection.execute(insert, [format!("run{number}")]).unwrap();
        }
        let steps = |sql: &str, params: &[&str]| {
            let mut statement = connection.prepare(sql).unwrap();
            let rows = statement.query_map(rusqlite::params_from_iter(params), |_| Ok(())).unwrap().count();
            (rows, statement.get_status(StatementStatus::VmStep))
        };
        let (first, none, end) =
            (steps(NEXT_PROJECT, &[""]), steps(NEXT_AGENT, &["p", "a"]), steps(NEXT_PROJECT, &["p"]));
        let held = steps(HELD, &["0", "0"]);
        assert_eq!((first.0, none.0, end.0, held.0), (1, 0, 0, 0));
        first.1 + none.1 + end.1 + held.1
    }

    #[test]
    fn a_backlog_behind_a_limit_costs_the_same_however_long_it_is() {
        assert_eq!(cost(10), cost(2000));
    }

    #[test]
    fn the_heads_of_an_agent_are_found_without_sorting() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate::migrate(&mut connection).unwrap();
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {HEADS}")).unwrap();
        let lines = statement.query_map(("", "", 0, 0, 0, 0), |row| row.get::<_, String>("detail")).unwrap();
        let plan: Vec<String> = lines.map(Result::unwrap).collect();
        assert_eq!(plan, ["SEARCH run USING INDEX run_due (project_id=? AND agent=? AND wake_at>? AND wake_at<?)"]);
    }
}
