//! The files of runs: `saggar runs rollback` and `saggar runs diff`, and what `show` and `fork` say about files.

use saggar_api::client::Client;
use saggar_api::{RestoredFiles, RollBackRun, RolledBackRun, Run, RunSnapshot};
use saggar_domain::{RunId, SnapshotId};

use super::dispatch::{CommandResult, note, print, print_json};
use super::failure::CommandFailure;
use super::shown::line;
use super::snapshots::print_diff;

/// A run at one of its steps; without one, at its newest snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunAt {
    run: RunId,
    step: Option<u64>,
}

impl RunAt {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (run, step) = match text.split_once('@') {
            None => (text, None),
            Some((run, step)) => (run, Some(step)),
        };
        let run = RunId::parse(run).ok_or("not a run, such as run_…, or a run at a step, such as run_…@7")?;
        let step = step.map(|step| step.parse().map_err(|_| format!("{step:?} is not the number of a step")));
        Ok(Self { run, step: step.transpose()? })
    }
}

pub(crate) async fn roll_back(
    client: &Client,
    run: RunId,
    at_step: u64,
    message: Option<String>,
    is_json: bool,
) -> CommandResult {
    let run = client.run(run);
    // It goes back once, also if the answer is lost.
    let generation = Some(run.get().await?.generation);
    let back = run.roll_back(&RollBackRun { at_step, generation, message }).await?;
    if is_json {
        print_json(&back)?;
        return Ok(0);
    }
    let RolledBackRun { id, at_step, files, stays_done } = back;
    print(format!("{id} goes back to step {at_step}, {}\n", said(&files)).as_bytes())?;
    for call in stays_done {
        let doubt = if call.is_certain { "" } else { ", if it was done" };
        let inside = if call.in_sandbox { " outside its sandbox" } else { "" };
        let child = call.child.map_or_else(String::new, |child| format!(" {child}"));
        note(&format!("step {} ({}{child}) is not undone{inside}{doubt}", call.step, line(&call.tool)));
    }
    Ok(0)
}

pub(crate) async fn diff(client: &Client, from: RunAt, to: RunAt, patch: bool, is_json: bool) -> CommandResult {
    let (before, after) = (snapshot_at(client, &from).await?, snapshot_at(client, &to).await?);
    print_diff(client, &before, &after, patch, is_json).await
}

/// The snapshot that has the files of a run at a step.
async fn snapshot_at(client: &Client, at: &RunAt) -> Result<SnapshotId, CommandFailure> {
    let run = client.run(at.run.clone()).get().await?;
    let kept = run.files.map(|files| files.snapshots).unwrap_or_default();
    let is_before = |kept: &&RunSnapshot| at.step.is_none_or(|step| kept.step <= step);
    match kept.iter().rev().find(is_before) {
        Some(kept) => {
            if let Some(step) = at.step.filter(|step| *step != kept.step) {
                note(&format!(
                    "the files of {} at step {step} are those of its snapshot of step {}",
                    at.run, kept.step
                ));
            }
            Ok(kept.id.clone())
        }
        None => {
            let at = at.step.map_or_else(String::new, |step| format!(" at or before step {step}"));
            let what = format!("run {} has no snapshot{at}", run.id);
            let help = match kept.first() {
                Some(oldest) => format!("its oldest one is of step {}", oldest.step),
                None => "its agent says when its files are kept: [snapshots] in docs/agent.md".to_owned(),
            };
            Err(CommandFailure::ours("not_found", what, help))
        }
    }
}

/// Lines of `runs show`.
pub(crate) fn shown(run: &Run) -> String {
    let mut text = String::new();
    if let Some(began) = &run.began_with {
        text += &format!("  began    with the files of run {} (snapshot {})\n", began.run_id, began.snapshot_id);
    }
    let Some(files) = &run.files else { return text };
    if let (Some(oldest), Some(newest)) = (files.snapshots.first(), files.snapshots.last()) {
        let count = match files.snapshots.len() {
            1 => format!("of step {}", newest.step),
            count => format!("{count}, of steps {} to {}", oldest.step, newest.step),
        };
        text += &format!("  kept     snapshot {} is the newest: {count}\n", newest.id);
    }
    if let Some(restored) = &files.restored {
        let after = restored.after_step.map_or_else(String::new, |step| format!("after step {step}, "));
        text += &format!("  files    {after}{}\n", said(restored));
    }
    text
}

/// Which files a run goes on with.
pub(crate) fn said(files: &RestoredFiles) -> String {
    let older = match files.older_from_step {
        Some(step) => format!("; changes since step {step} are not in them"),
        None => String::new(),
    };
    match &files.snapshot {
        Some(snapshot) => format!("with the files of step {}{older}", snapshot.step),
        None => format!("with the files of a new sandbox{older}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_may_be_named_at_a_step() {
        let id = RunId::from_random([7; 16]);
        let parsed = |text: &str| RunAt::parse(text).map(|at| at.step);
        assert_eq!(parsed(id.as_str()), Ok(None));
        assert_eq!(parsed(&format!("{id}@7")), Ok(Some(7)));
        for bad in [format!("{id}@"), format!("{id}@x"), "snap_x@7".to_owned()] {
            assert!(parsed(&bad).is_err(), "{bad}");
        }
    }
}
