//! Which due runs are next: projects take turns, those with the fewest held runs first, then the longest due.
//!
//! The work is bounded by the number of agents that have something due, by what is held and by what is taken; never by how many runs wait.
//! So a backlog behind a limit costs nothing while it waits. Nothing here writes: a worker looks first, and claims only what it found.

use std::collections::BTreeMap;

use rusqlite::Connection;
use saggar_domain::{ProjectId, Timestamp};

use super::claim::{LEASE_MAX, Taking};
use super::{RunRow, columns, read};
use crate::column;
use crate::error::Error;

/// How many runs of each agent are held.
const HELD: &str = "
    SELECT project_id, agent, count(*) AS held FROM run WHERE holder IS NOT NULL AND lease_until > ?1
    GROUP BY project_id, agent";
/// The next agent that has a run with a time, after this one: one step in the index, whatever lies between.
pub(super) const NEXT_AGENT: &str = "
    SELECT project_id, agent FROM run INDEXED BY run_due
    WHERE wake_at IS NOT NULL AND (project_id, agent) > (?1, ?2) ORDER BY project_id, agent LIMIT 1";
/// An agent's due runs that nobody holds, finished ones that still hold something among them. ?4 is the latest end that a lease can have: one
/// that ends later was given by a clock that has since been set back.
pub(super) const HEADS: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM run INDEXED BY run_due
      WHERE project_id = ?1 AND agent = ?2 AND wake_at IS NOT NULL AND wake_at <= ?3
        AND (holder IS NULL OR lease_until <= ?3 OR lease_until > ?4)
      ORDER BY wake_at, id LIMIT ?5"
);

type Held = BTreeMap<(ProjectId, String), u64>;

/// The runs to take, in order. At most `heads` of each agent are looked at.
pub(super) fn due(connection: &Connection, now: Timestamp, taking: Taking, heads: u32) -> Result<Vec<RunRow>, Error> {
    let held: Held = held(connection, now)?;
    let mut candidates: BTreeMap<ProjectId, Vec<RunRow>> = BTreeMap::new();
    let mut last = (String::new(), String::new());
    while let Some((project, agent)) = column::one(connection, NEXT_AGENT, (&last.0, &last.1), |row| {
        Ok((column::parsed(row, "project_id", ProjectId::parse)?, column::plain::<String>(row, "agent")?))
    })? {
        last = (project.as_str().to_owned(), agent.clone());
        let of_project = held_by(&held, &project);
        let of_agent = held.get(&(project.clone(), agent.clone())).copied().unwrap_or(0);
        let room = u64::from(taking.per_project).saturating_sub(of_project);
        let room = room.min(u64::from(taking.per_agent).saturating_sub(of_agent)).min(u64::from(heads));
        if room == 0 {
            continue;
        }
        let (at, latest) = (column::millis(now), column::millis(now.after(LEASE_MAX)));
        let params = (project.as_str(), &agent, at, latest, column::count(room));
        let heads = column::all(connection, HEADS, params, read)?;
        candidates.entry(project).or_default().extend(heads);
    }
    Ok(choose(candidates, held, taking))
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
        // The last places are for projects that have none.
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

fn held(connection: &Connection, now: Timestamp) -> Result<Held, Error> {
    let rows = column::all(connection, HELD, [column::millis(now)], |row| {
        let project = column::parsed(row, "project_id", ProjectId::parse)?;
        Ok(((project, column::plain(row, "agent")?), column::number(row, "held")?))
    })?;
    Ok(rows.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate;

    /// What SQLite says it would do.
    fn plan(sql: &str, params: impl rusqlite::Params) -> String {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate::migrate(&mut connection).unwrap();
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let lines = statement.query_map(params, |row| row.get::<_, String>("detail")).unwrap();
        lines.map(Result::unwrap).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_backlog_is_passed_over_by_an_index_and_never_sorted() {
        let next = plan(NEXT_AGENT, ("", ""));
        assert!(next.starts_with("SEARCH run USING COVERING INDEX run_due ((project_id,agent)>(?,?))"), "{next}");
        let heads = plan(HEADS, ("", "", 0, 0, 0));
        assert_eq!(heads, "SEARCH run USING INDEX run_due (project_id=? AND agent=? AND wake_at<?)");
        assert!(!next.contains("TEMP B-TREE"), "{next}");
    }
}
