//! `saggar changes`: shows, applies or drops the changes of a scratch sandbox.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;

use saggar_domain::{Code, Problem, SandboxId};
use saggar_sandbox::{
    Applied, AppliedBranch, ApplyOutcome, Change, Changes, DataDirectory, Entry, Kind, NewBranch, Skipped, Unified,
    Wanted, is_plain, reap,
};
use serde_json::json;

use crate::args::{ChangesArguments, ChangesCommand};
use crate::outcome::{OUR_FAILURE, problem_text, visible};
use crate::remote;

/// Some paths were refused; the others were done.
pub(crate) const NOT_ALL: u8 = 1;

pub(crate) fn main(arguments: ChangesArguments) -> ExitCode {
    if arguments.on_server || arguments.server.url.is_some() {
        return remote::changes(&arguments.server, arguments.command);
    }
    let is_json = arguments.server.json;
    let outcome = DataDirectory::open(arguments.data_dir.as_deref()).and_then(|data| {
        reap(&data);
        execute(&data, arguments.command, is_json)
    });
    match outcome {
        Ok((text, code)) => match std::io::stdout().write_all(text.as_bytes()) {
            Ok(()) => code,
            Err(_) => ExitCode::from(OUR_FAILURE),
        },
        Err(problem) if is_json => {
            println!("{}", json!({"schema": "saggar.changes/v1", "error": problem}));
            ExitCode::from(OUR_FAILURE)
        }
        Err(problem) => {
            eprint!("{}", problem_text(&problem));
            ExitCode::from(OUR_FAILURE)
        }
    }
}

fn execute(data: &DataDirectory, command: ChangesCommand, is_json: bool) -> Result<(String, ExitCode), Problem> {
    match command {
        ChangesCommand::List { sandbox: None, all: _ } => {
            let kept = Changes::kept(data)?;
            let text = if is_json {
                format!("{}\n", json!({"schema": "saggar.changes/v1", "sandboxes": kept, "error": null}))
            } else {
                kept.iter().map(|id| kept_line(data, id)).collect()
            };
            Ok((text, ExitCode::SUCCESS))
        }
        ChangesCommand::List { sandbox: Some(sandbox), all } => {
            list(&Changes::open(data, &sandbox)?, Objects::new(all), is_json)
        }
        ChangesCommand::Diff { sandbox, paths, all } => {
            // A path that is named is meant.
            let objects = Objects::new(all || !paths.is_empty());
            diff(&Changes::open(data, &sandbox)?, &Picked::new(paths), objects)
        }
        ChangesCommand::Apply { sandbox, paths } => {
            apply(data, Changes::open(data, &sandbox)?, &Picked::new(paths), is_json)
        }
        ChangesCommand::Drop { sandbox } => {
            let dropped = Changes::open(data, &sandbox)?.drop_all(data);
            dropped.map_err(|error| unfinished("dropping", &error)).map(|()| (String::new(), ExitCode::SUCCESS))
        }
    }
}

/// A sandbox with kept changes: how many, and of which workspace.
fn kept_line(data: &DataDirectory, id: &SandboxId) -> String {
    match Changes::open(data, id.as_str()) {
        Ok(changes) => {
            let count = changes.entries().len();
            let what = if count == 1 { "change" } else { "changes" };
            format!("{id}  {count} {what} of {}\n", visible(changes.workspace_path()).replace('\n', "\\n"))
        }
        // `changes list SANDBOX` says why.
        Err(_) => format!("{id}  unreadable\n"),
    }
}

/// What is shown of the objects that a commit adds to git's store. They are many, not text, and git does nothing with
/// them by themselves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Objects {
    Shown,
    Counted,
}

impl Objects {
    /// Where git keeps them.
    const PLACE: &[u8] = b".git/objects";

    fn new(is_all: bool) -> Self {
        if is_all { Self::Shown } else { Self::Counted }
    }

    fn hides(self, changes: &Changes, entry: &Entry) -> bool {
        // The git directory of a worktree is ours; what is in it shows as commits.
        self == Self::Counted && (changes.is_of_git(entry) || self.is_object(entry))
    }

    fn is_object(self, entry: &Entry) -> bool {
        entry.change == Change::Added && !entry.held && entry.path.is_within(Self::PLACE)
    }

    /// The line that stands for the hidden ones.
    fn counted(self, changes: &Changes) -> String {
        let is_counted = |entry: &&Entry| !changes.is_of_worktree() && self == Self::Counted && self.is_object(entry);
        match changes.entries().iter().filter(is_counted).count() {
            0 => String::new(),
            1 => "added     .git/objects/ (1 path; --all shows it)\n".to_owned(),
            count => format!("added     .git/objects/ ({count} paths; --all shows them)\n"),
        }
    }
}

/// The selected workspace paths: all, or the named ones with everything under them.
struct Picked(Vec<Vec<u8>>);

impl Picked {
    fn new(paths: Vec<OsString>) -> Self {
        let trimmed = |path: OsString| {
            let bytes = path.into_vec();
            let start = if bytes.starts_with(b"./") { 2 } else { 0 };
            let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
            bytes[start.min(end)..end].to_vec()
        };
        Self(paths.into_iter().map(trimmed).collect())
    }

    /// How an entry is selected. Naming a directory that was held back as a whole also selects its contents.
    fn wants(&self, entry: &Entry, changes: &[(Vec<u8>, Kind)]) -> Wanted {
        let is_named = |path: &Vec<u8>| {
            entry.path.as_bytes() == path.as_slice()
                || changes.iter().any(|(held, kind)| held == path && *kind == Kind::Directory)
        };
        match self.0.iter().find(|path| entry.path.is_within(path)) {
            Some(_) if self.0.iter().any(|path| entry.path.is_within(path) && is_named(path)) => Wanted::ByName,
            Some(_) => Wanted::Together,
            None if self.0.is_empty() => Wanted::Together,
            None => Wanted::No,
        }
    }

    /// For a worktree: a file, or a directory that it is in, is named.
    fn wants_of_worktree(&self, entry: &Entry) -> Wanted {
        match self.0.iter().any(|path| entry.path.is_within(path)) {
            true => Wanted::ByName,
            false if self.0.is_empty() => Wanted::Together,
            false => Wanted::No,
        }
    }

    fn has(&self, entry: &Entry) -> bool {
        self.0.is_empty() || self.0.iter().any(|path| entry.path.is_within(path))
    }

    /// A path that matches no change is an error, not an empty result.
    fn check(&self, changes: &Changes) -> Result<(), Problem> {
        let lost = self.0.iter().find(|path| !changes.entries().iter().any(|entry| entry.path.is_within(path)));
        match lost {
            None => Ok(()),
            Some(path) => Err(Problem::new(
                Code::InvalidValue,
                format!(
                    "{:?} is not among the changes: it was applied already, or never changed",
                    String::from_utf8_lossy(path)
                ),
                format!("list them with `saggar changes list {}`; paths are relative to the workspace", changes.id()),
            )),
        }
    }
}

fn list(changes: &Changes, objects: Objects, is_json: bool) -> Result<(String, ExitCode), Problem> {
    // If the workspace is gone, there is nothing to compare with or apply to.
    let hidden = changes.workspace().map(|workspace| changes.hidden(&workspace)).unwrap_or_default();
    if is_json {
        let text = json!({
            "schema": "saggar.changes/v1",
            "entries": changes.entries(),
            "skipped": changes.skipped(),
            "hidden": hidden,
            "branch": changes.branch(),
            "error": null,
        });
        return Ok((format!("{text}\n"), ExitCode::SUCCESS));
    }
    let branch = changes.branch();
    let mut text = branch.as_ref().map_or_else(String::new, branch_lines);
    text.push_str(&objects.counted(changes));
    text.extend(changes.entries().iter().filter(|entry| !objects.hides(changes, entry)).map(line));
    for skipped in changes.skipped() {
        text.push_str(&format!("skipped   {}: {}\n", skipped.path, skipped.why));
    }
    for hidden in hidden {
        text.push_str(&format!("hidden    {}: {} tells git not to show edits of it\n", hidden.path, hidden.index));
    }
    Ok((text, ExitCode::SUCCESS))
}

/// The commits of a worktree, and the branch that applying makes of them.
fn branch_lines(branch: &NewBranch) -> String {
    let commits = branch.commits.iter().map(|commit| (commit.id.clone(), commit.subject.to_string()));
    commits_text(&branch.name, &commits.collect::<Vec<_>>())
}

/// Ids and subjects of commits, below the name of their branch.
pub(crate) fn commits_text(branch: &str, commits: &[(String, String)]) -> String {
    let count = match commits.len() {
        0 => "no commits".to_owned(),
        1 => "1 commit".to_owned(),
        count => format!("{count} commits"),
    };
    let lines = commits.iter().map(|(id, subject)| format!("commit    {} {subject}\n", short(id)));
    std::iter::once(format!("branch    {branch} ({count})\n")).chain(lines).collect()
}

pub(crate) fn branch_line(name: &str, commit: &str) -> String {
    format!("branch    {name} at {}\n", short(commit))
}

fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

fn line(entry: &Entry) -> String {
    let change = match entry.change {
        _ if entry.held => "held",
        Change::Added => "added",
        Change::Modified => "modified",
        Change::Removed => "removed",
        Change::Mode => "mode",
    };
    let tail = match (entry.kind, &entry.target) {
        (Kind::Directory, _) => "/".to_owned(),
        (Kind::Link, Some(target)) => format!(" -> {target}"),
        (Kind::File | Kind::Link, _) if entry.change == Change::Mode => format!(" ({:03o})", entry.mode),
        (Kind::File | Kind::Link, _) => String::new(),
    };
    let warning = if entry.changed_on_host { "  (the host changed it too)" } else { "" };
    format!("{change:<9} {}{tail}{warning}\n", entry.path)
}

fn diff(changes: &Changes, picked: &Picked, objects: Objects) -> Result<(String, ExitCode), Problem> {
    picked.check(changes)?;
    let workspace = changes.workspace()?;
    let mut text = objects.counted(changes);
    let mut unified = Unified::begin();
    for entry in changes.entries().iter().filter(|entry| picked.has(entry) && !objects.hides(changes, entry)) {
        if !Unified::is_of(entry) {
            text.push_str(&line(entry));
            continue;
        }
        match unified.of(changes, &workspace, entry) {
            None => text.push_str(&format!("{} (not text)\n", line(entry).trim_end())),
            Some(difference) => text.push_str(&difference),
        }
    }
    Ok((plain(&text), ExitCode::SUCCESS))
}

/// Contents come from a sandbox: on a terminal they must not act on it or hide parts of themselves. So anything that
/// isn't plain text is shown as escaped bytes. Where output is not a terminal, the diff is printed unchanged.
pub(crate) fn plain(text: &str) -> String {
    use std::io::IsTerminal;
    if std::io::stdout().is_terminal() { shown(text) } else { text.to_owned() }
}

fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        // CRLF line ends are common and harmless, so they are not escaped.
        let is_line_end = character == '\n' || (character == '\r' && characters.peek() == Some(&'\n'));
        if is_line_end || character == '\t' || is_plain(character) {
            shown.push(character);
        } else {
            let mut space = [0; 4];
            character.encode_utf8(&mut space).bytes().for_each(|byte| shown.push_str(&format!("\\x{byte:02x}")));
        }
    }
    shown
}

fn apply(
    data: &DataDirectory,
    changes: Changes,
    picked: &Picked,
    is_json: bool,
) -> Result<(String, ExitCode), Problem> {
    picked.check(&changes)?;
    let workspace = changes.workspace()?;
    let skipped = changes.skipped().to_vec();
    if changes.is_of_worktree() {
        let AppliedBranch { results, branch } =
            changes.apply_to_branch(data, &workspace, |entry| picked.wants_of_worktree(entry))?;
        return Ok(applied_text(&results, branch, &skipped, is_json));
    }
    let guard = changes.guard(&workspace)?;
    let held = changes.entries().iter().filter(|entry| entry.held);
    let held: Vec<(Vec<u8>, Kind)> = held.map(|entry| (entry.path.as_bytes().to_vec(), entry.kind)).collect();
    let applied = changes
        .apply(data, &workspace, &guard, |entry| picked.wants(entry, &held))
        .map_err(|error| unfinished("applying", &error))?;
    Ok(applied_text(&applied, None, &skipped, is_json))
}

/// What was applied, and the branch that was made if it was a worktree.
fn applied_text(
    applied: &[Applied],
    branch: Option<(String, String)>,
    skipped: &[Skipped],
    is_json: bool,
) -> (String, ExitCode) {
    let has_refused = applied.iter().any(|result| result.outcome != ApplyOutcome::Done);
    let code = if has_refused { ExitCode::from(NOT_ALL) } else { ExitCode::SUCCESS };
    if is_json {
        let results: Vec<_> = applied
            .iter()
            .map(|result| match &result.outcome {
                ApplyOutcome::Done => json!({"path": result.path, "applied": true, "reason": null}),
                ApplyOutcome::Refused(why) => json!({"path": result.path, "applied": false, "reason": why}),
            })
            .collect();
        let mut text = json!({"schema": "saggar.changes/v1", "results": results, "skipped": skipped, "error": null});
        if let Some((name, commit)) = branch {
            text["branch"] = json!({"name": name, "commit": commit});
        }
        return (format!("{text}\n"), code);
    }
    let mut text = String::new();
    for result in applied {
        match &result.outcome {
            ApplyOutcome::Done => text.push_str(&format!("applied   {}\n", result.path)),
            ApplyOutcome::Refused(why) => text.push_str(&format!("refused   {}: {why}\n", result.path)),
        }
    }
    skipped.iter().for_each(|skipped| text.push_str(&format!("skipped   {}: {}\n", skipped.path, skipped.why)));
    if let Some((name, commit)) = branch {
        text.push_str(&branch_line(&name, &commit));
    }
    (text, code)
}

fn unfinished(what: &str, error: &std::io::Error) -> Problem {
    Problem::new(
        Code::DataDirectory,
        format!("{what} the changes failed: {}", error.kind()),
        "run the command again; completed changes stay in place",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_text_is_hidden_on_a_terminal() {
        for (text, expected) in [
            ("+curl evil\n", "+curl evil\n"),
            ("+\x1b]\n+curl evil\n", "+\\x1b]\n+curl evil\n"),
            ("+evil()\r+innocent\n", "+evil()\\x0d+innocent\n"),
            ("+evil\x08\x08\x08\x08fine\n", "+evil\\x08\\x08\\x08\\x08fine\n"),
            ("+dos\r\n+\tindented\n", "+dos\r\n+\tindented\n"),
            ("+\u{9b}2J \u{202e}x gr\u{f6}\u{df}e\n", "+\\xc2\\x9b2J \\xe2\\x80\\xaex gr\u{f6}\u{df}e\n"),
        ] {
            assert_eq!(shown(text), expected);
        }
    }
}
