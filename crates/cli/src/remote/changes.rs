//! `saggar changes list|diff|apply|drop` on a server.

use std::ffi::OsString;

use saggar_api::client::Client;
use saggar_api::{ApplyChanges, ChangeDiffQuery};
use saggar_domain::SandboxId;

use super::arguments::sandbox_id;
use super::dispatch::{CommandResult, print, print_json};
use super::failure::CommandFailure;
use super::shown::line;
use crate::args::ChangesCommand;
use crate::changes::{NOT_ALL, branch_line, commits_text, plain};

pub(crate) async fn main(client: &Client, command: ChangesCommand, is_json: bool) -> CommandResult {
    match command {
        ChangesCommand::List { sandbox: None, all: _ } => Err(CommandFailure::ours(
            "invalid_value",
            "a server lists the changes of one sandbox".to_owned(),
            "name it; `saggar sandbox list --state ended` shows those that have ended",
        )),
        ChangesCommand::List { sandbox: Some(sandbox), all: _ } => {
            let changes = client.list_changes(&id(&sandbox)?).await?;
            if is_json {
                print_json(&changes)?;
                return Ok(0);
            }
            let item = |change: &saggar_api::SandboxChange| {
                let warning = if change.changed_on_host { "  (the host changed it too)" } else { "" };
                format!("{}{warning}\n", entry(&change.change, &change.path, &change.kind))
            };
            let mut text: String = changes.branch.as_ref().map_or_else(String::new, branch_lines);
            text.extend(changes.items.iter().map(item));
            text.extend(
                changes.skipped.iter().map(|one| format!("skipped   {}: {}\n", line(&one.path), line(&one.why))),
            );
            print(text.as_bytes())?;
            Ok(0)
        }
        ChangesCommand::Diff { sandbox, paths, all: _ } => {
            let query = ChangeDiffQuery { path: texts(paths)? };
            let compared = client.diff_changes(&id(&sandbox)?, &query).await?;
            if is_json {
                print_json(&compared)?;
                return Ok(0);
            }
            let item = |change: &saggar_api::ChangeDiff| match (&change.diff, change.reason.as_deref()) {
                (Some(diff), _) => diff.clone(),
                (None, Some("not_text")) => {
                    format!("{} (not text)\n", entry(&change.change, &change.path, &change.kind))
                }
                (None, Some("too_long")) => {
                    format!("{} (left out: name it alone)\n", entry(&change.change, &change.path, &change.kind))
                }
                (None, _) => format!("{}\n", entry(&change.change, &change.path, &change.kind)),
            };
            let text: String = compared.items.iter().map(item).collect();
            print(plain(&text).as_bytes())?;
            Ok(0)
        }
        ChangesCommand::Apply { sandbox, paths } => {
            let applied = client.apply_changes(&id(&sandbox)?, &ApplyChanges { paths: texts(paths)? }).await?;
            let status = if applied.items.iter().all(|one| one.applied) { 0 } else { NOT_ALL };
            if is_json {
                print_json(&applied)?;
                return Ok(status);
            }
            let item = |one: &saggar_api::AppliedChange| match &one.reason {
                None => format!("applied   {}\n", line(&one.path)),
                Some(why) => format!("refused   {}: {}\n", line(&one.path), line(why)),
            };
            let mut text: String = applied.items.iter().map(item).collect();
            if let Some(branch) = &applied.branch {
                text.push_str(&branch_line(&line(&branch.name), &line(&branch.commit)));
            }
            print(text.as_bytes())?;
            Ok(status)
        }
        ChangesCommand::Drop { sandbox } => {
            client.drop_changes(&id(&sandbox)?).await?;
            Ok(0)
        }
    }
}

fn branch_lines(branch: &saggar_api::NewBranch) -> String {
    let commits = branch.commits.iter().map(|commit| (line(&commit.id), line(&commit.subject)));
    commits_text(&line(&branch.name), commits.collect::<Vec<_>>().as_slice())
}

fn entry(change: &str, path: &str, kind: &str) -> String {
    let tail = if kind == "directory" { "/" } else { "" };
    format!("{:<9} {}{tail}", line(change), line(path))
}

fn id(text: &str) -> Result<SandboxId, CommandFailure> {
    sandbox_id(text).map_err(|why| CommandFailure::ours("invalid_value", why, "`saggar sandbox list` shows ids"))
}

/// As the API knows them: relative to the workspace, without a slash at the end.
fn texts(paths: Vec<OsString>) -> Result<Vec<String>, CommandFailure> {
    let text = |path: OsString| {
        let text = path.into_string().map_err(|path| {
            let what = format!("{path:?} is not UTF-8");
            CommandFailure::ours("invalid_value", what, "use `saggar changes` on the server's host, with --data-dir")
        })?;
        let text = text.strip_prefix("./").unwrap_or(&text);
        Ok(text.trim_end_matches('/').to_owned())
    };
    paths.into_iter().map(text).collect()
}
