//! `saggar snapshot create|list|tree|diff|fork|rollback|export|import|rm`.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::Path;

use saggar_api::client::Client;
use saggar_api::{
    CreateSnapshot, ForkOutcome, ForkSandbox, ImportSnapshot, ListSnapshots, Snapshot, SnapshotChangeKind,
    TemplateRest, Timestamp,
};
use saggar_domain::SnapshotId;
use tokio::io::AsyncWriteExt;

use super::dispatch::{CommandResult, note, print, print_json};
use super::failure::CommandFailure;
use super::lifecycle::collected;
use super::shown::{labels, line, now, size, span};
use super::snapshot_arguments::SnapshotCommand;
use super::table::{aligned, terminal_width};

pub(crate) async fn main(client: &Client, command: SnapshotCommand, is_json: bool) -> CommandResult {
    match command {
        SnapshotCommand::Create { sandbox, name, labels, ttl } => {
            let asked = CreateSnapshot { name, labels: collected(labels)?, ttl };
            let taken = client.take_snapshot(&sandbox, &asked).await?;
            match is_json {
                true => print_json(&taken)?,
                false => print(format!("{}\n", taken.id).as_bytes())?,
            }
        }
        SnapshotCommand::List { sandbox, labels } => {
            let found = client.list_snapshots(&ListSnapshots { sandbox, name: None, label: labels }).await?;
            if is_json {
                print_json(&found)?;
            } else {
                let now = now();
                let rows: Vec<Vec<String>> = found.items.iter().map(|snapshot| row(snapshot, now)).collect();
                let titles = ["ID", "SANDBOX", "SIZE", "AGE", "EXPIRES", "USED BY", "NAME", "LABELS"];
                print(aligned(&titles, &rows, terminal_width()).as_bytes())?;
            }
        }
        SnapshotCommand::Tree => {
            let found = client.list_snapshots(&ListSnapshots::default()).await?;
            match is_json {
                true => print_json(&found)?,
                false => print(tree(&found.items, now()).as_bytes())?,
            }
        }
        SnapshotCommand::Diff { from, to, patch } => {
            return print_diff(client, &from, &to, patch, is_json).await;
        }
        SnapshotCommand::Rollback { sandbox, snapshot } => {
            let rolled = client.roll_back_sandbox(&sandbox, &snapshot).await?;
            match is_json {
                true => print_json(&rolled)?,
                false => print(format!("{sandbox} is back at {snapshot}; its programs were ended\n").as_bytes())?,
            }
        }
        SnapshotCommand::Fork { sandbox, count, ttl } => return fork(client, &sandbox, count, ttl, is_json).await,
        SnapshotCommand::Export { snapshot } => export(client, &snapshot).await?,
        SnapshotCommand::Import { file, digest, name, labels, ttl } => {
            let query = ImportSnapshot { digest, name, label: labels, ttl };
            let brought = import(client, &file, &query).await?;
            match is_json {
                true => print_json(&brought)?,
                false => print(format!("{}\n", brought.id).as_bytes())?,
            }
        }
        SnapshotCommand::Rm { snapshots } => {
            for id in snapshots {
                let removed = client.remove_snapshot(&id).await?;
                let more = match removed.files {
                    TemplateRest::Named => "; another name leads to its files",
                    TemplateRest::InUse => "; a sandbox still uses its files, and they are removed after that",
                    TemplateRest::Gone => "",
                };
                match is_json {
                    true => print_json(&removed)?,
                    false => print(format!("removed {id}{more}\n").as_bytes())?,
                }
            }
        }
    }
    Ok(0)
}

/// Prints what changed from one snapshot to the other.
pub(super) async fn print_diff(
    client: &Client,
    from: &SnapshotId,
    to: &SnapshotId,
    patch: bool,
    is_json: bool,
) -> CommandResult {
    let diff = client.diff_snapshots(from, to).await?;
    if is_json {
        print_json(&diff)?;
        return Ok(0);
    }
    for change in &diff.items {
        let sign = match change.change {
            SnapshotChangeKind::Added => 'A',
            SnapshotChangeKind::Changed => 'M',
            SnapshotChangeKind::Removed => 'D',
        };
        let end = if change.is_directory { "/" } else { "" };
        print(format!("{sign} {}{end}\n", line(&change.path)).as_bytes())?;
        if let Some(text) = change.text.as_ref().filter(|_| patch) {
            print(text.lines().map(|one| format!("{}\n", line(one))).collect::<String>().as_bytes())?;
        }
    }
    if diff.is_cut {
        note("there are more changes than are shown");
    }
    Ok(0)
}

async fn export(client: &Client, snapshot: &SnapshotId) -> Result<(), CommandFailure> {
    let mut stdout = tokio::io::stdout();
    if std::io::stdout().is_terminal() {
        return Err(CommandFailure::ours(
            "invalid_value",
            "a snapshot is not written to a terminal",
            format!("redirect it to a file: saggar snapshot export {snapshot} > snapshot.tar"),
        ));
    }
    let unwritable = |error: &std::io::Error| CommandFailure::file(Path::new("standard output"), "written", error);
    let (digest, mut download) = client.export_snapshot(snapshot).await?;
    while let Some(piece) = download.next().await? {
        stdout.write_all(&piece).await.map_err(|error| unwritable(&error))?;
    }
    stdout.flush().await.map_err(|error| unwritable(&error))?;
    note(&digest.to_string());
    Ok(())
}

async fn import(client: &Client, file: &Path, query: &ImportSnapshot) -> Result<Snapshot, CommandFailure> {
    if file == Path::new("-") {
        return Ok(client.import_snapshot(query, tokio::io::stdin(), None).await?);
    }
    let opened = tokio::fs::File::open(file).await.map_err(|error| CommandFailure::file(file, "opened", &error))?;
    let stat = opened.metadata().await.map_err(|error| CommandFailure::file(file, "read", &error))?;
    let length = stat.is_file().then_some(stat.len());
    Ok(client.import_snapshot(query, opened, length).await?)
}

async fn fork(
    client: &Client,
    sandbox: &saggar_domain::SandboxId,
    count: u32,
    ttl: Option<saggar_domain::Timeout>,
    is_json: bool,
) -> CommandResult {
    let forked = client.fork_sandbox(sandbox, &ForkSandbox { count: Some(count), ttl }).await?;
    let is_whole = forked.items.iter().all(|one| matches!(one, ForkOutcome::Sandbox(_)));
    if is_json {
        print_json(&forked)?;
        return Ok(u8::from(!is_whole));
    }
    for one in &forked.items {
        match one {
            ForkOutcome::Sandbox(made) => print(format!("{}\n", made.sandbox.id).as_bytes())?,
            ForkOutcome::Problem(problem) => note(&format!("one fork was not made: {}", line(&problem.detail))),
        }
    }
    Ok(u8::from(!is_whole))
}

fn row(snapshot: &Snapshot, now: Timestamp) -> Vec<String> {
    vec![
        snapshot.id.to_string(),
        snapshot.sandbox_id.as_ref().map_or_else(|| "imported".to_owned(), ToString::to_string),
        size(snapshot.bytes),
        span(snapshot.created_at, now),
        snapshot.expires_at.map_or_else(|| "never".to_owned(), |end| format!("in {}", span(now, end))),
        snapshot.used_by.len().to_string(),
        snapshot.name.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
        labels(&snapshot.labels),
    ]
}

/// Each snapshot below the one that it came from. One whose parent is gone is at the top.
fn tree(snapshots: &[Snapshot], now: Timestamp) -> String {
    let mut children: BTreeMap<Option<&SnapshotId>, Vec<&Snapshot>> = BTreeMap::new();
    for snapshot in snapshots {
        let parent = snapshot.parent_id.as_ref().filter(|id| snapshots.iter().any(|other| other.id == **id));
        children.entry(parent).or_default().push(snapshot);
    }
    let mut text = String::new();
    let mut open: Vec<(&Snapshot, usize)> =
        children.get(&None).into_iter().flatten().rev().map(|snapshot| (*snapshot, 0)).collect();
    while let Some((snapshot, depth)) = open.pop() {
        let name = snapshot.name.as_ref().map_or_else(String::new, |name| format!("  {name}"));
        let age = span(snapshot.created_at, now);
        text.push_str(&format!("{}{}  {}  {age}{name}\n", "  ".repeat(depth), snapshot.id, size(snapshot.bytes)));
        open.extend(children.get(&Some(&snapshot.id)).into_iter().flatten().rev().map(|child| (*child, depth + 1)));
    }
    text
}
