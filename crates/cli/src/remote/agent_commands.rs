//! `saggar agent init|check|list|show`: agent files, without starting a run.

use std::io::Write;
use std::path::{Path, PathBuf};

use saggar_api::client::Client;
use saggar_api::{Agent, JournalQuery};
use saggar_domain::RunId;
use saggar_server::CheckedAgent;
use serde_json::{Value, json};

use super::agent_file::{line_of, read_agent};
use super::dispatch::{CommandResult, note, print, print_json};
use super::failure::CommandFailure;
use super::shown::line;
use super::table::{aligned, terminal_width};

/// Agents that are listed at once.
const LISTED_MAX: usize = 1000;
/// The directory of agents, beside or instead of one `agent.toml`.
const AGENTS: &str = "agents";
/// An agent is invalid.
const INVALID: u8 = 1;

/// What `init` writes. It runs as it is.
const TEMPLATE: &str = r#"# An agent of Saggar. All fields: docs/agent.md. Check it with: saggar agent check
schema = "saggar.agent/v1"
name = "NAME"
version = "0.1.0"
instructions = """
You work in the directory /workspace. Look before you change anything.
When you are done, say what you did in one sentence.
"""

[model]
# A model of the server. `saggar models list` prints its routes:
# route = "gpt-5"
# Until there is one, this is what the model says, turn by turn; a path of a JSON file works too. Remove it then.
provider = "scripted"
script = { turns = [
    { text = "I look around.", calls = [{ tool = "shell", arguments = { command = "pwd; ls" } }] },
    { text = "Hello! Give me the route of a model, and I will do what you ask." },
] }

[tools]
shell = { timeout = "5m" }
files = {}
edit = {}
ask_human = {}
finish = {}

[sandbox]
# network = "proxied"
# egress = { allow = ["@pypi"] }

# The first limit that is reached ends the run.
[budget]
steps = 50
time = "1h"

# When its files are kept in a snapshot, to fork the run with them or to take it back.
# [snapshots]
# every = 5

# What happens where the run would stop for a person.
# [on]
# unanswered = { after = "4h", answer = "Nobody is here. Take the careful way." }
"#;

pub(crate) fn init(file: &Path, name: Option<String>, is_json: bool) -> CommandResult {
    let name = name.unwrap_or_else(|| {
        let directory = std::path::absolute(file).ok().and_then(|path| Some(path.parent()?.file_name()?.to_owned()));
        directory.map_or_else(|| "agent".to_owned(), |name| name.to_string_lossy().into_owned())
    });
    let quoted = Value::String(name).to_string();
    let text = TEMPLATE.replacen("\"NAME\"", &quoted, 1);
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(file);
    let written = made.and_then(|mut made| made.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => CommandFailure::ours(
            "exists",
            format!("{} exists already, and is left as it is", file.display()),
            "name another file: saggar agent init FILE",
        ),
        _ => CommandFailure::file(file, "written", &error),
    })?;
    match is_json {
        true => print_json(&json!({ "file": file }))?,
        false => {
            print(format!("{} written; try it: saggar agent run --agent {0} 'Say hello'\n", file.display()).as_bytes())?
        }
    }
    Ok(0)
}

/// Reads an agent file, and checks everything that a server would refuse for the agent's own sake.
pub(crate) fn checked(file: &Path) -> Result<(Agent, CheckedAgent), CommandFailure> {
    let agent = read_agent(file)?;
    let checked = saggar_server::check_agent(&agent).map_err(|problem| {
        let line = line_of(file, &problem.message);
        CommandFailure::ours("invalid_agent", format!("{}{line}: {}", file.display(), problem.message), problem.help)
    })?;
    Ok((agent, checked))
}

pub(crate) fn check(files: &[PathBuf], is_json: bool) -> CommandResult {
    let mut status = 0;
    for file in files {
        match checked(file) {
            Ok((agent, CheckedAgent { hash, .. })) if is_json => {
                print_json(&json!({ "file": file, "name": agent.name, "version": agent.version, "hash": hash }))?;
            }
            Ok((agent, CheckedAgent { hash, .. })) => {
                let version = agent.version.map(|version| format!(" {version}")).unwrap_or_default();
                let text = format!("ok {}  {}{}  {hash}\n", file.display(), line(&agent.name), line(&version));
                print(text.as_bytes())?;
            }
            Err(failure) => {
                status = INVALID;
                match is_json {
                    true => print(failure.json().as_bytes())?,
                    // If this can't be printed, the exit status reports the failure too.
                    false => drop(std::io::stderr().write_all(failure.text().as_bytes())),
                }
            }
        }
    }
    Ok(status)
}

pub(crate) fn list(directory: &Path, is_json: bool) -> CommandResult {
    let mut files = Vec::new();
    for (place, is_required) in [(directory.to_owned(), true), (directory.join(AGENTS), false)] {
        let entries = match std::fs::read_dir(&place) {
            Ok(entries) => entries,
            Err(_) if !is_required => continue,
            Err(error) => return Err(CommandFailure::file(&place, "read", &error)),
        };
        let is_candidate = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "toml");
        files.extend(entries.flatten().map(|entry| entry.path()).filter(is_candidate));
    }
    files.sort();
    files.truncate(LISTED_MAX);
    let mut rows = Vec::new();
    for file in files {
        // Other TOML files are no agents, and say so by having no model.
        if !is_agent(&file) {
            continue;
        }
        let shown = file.strip_prefix("./").unwrap_or(&file).display().to_string();
        match checked(&file) {
            Ok((agent, CheckedAgent { hash, .. })) => rows.push(json!({
                "file": shown, "name": agent.name, "version": agent.version, "hash": hash,
                "tools": agent.tools.keys().collect::<Vec<_>>(), "problem": null,
            })),
            Err(failure) => rows.push(json!({ "file": shown, "problem": failure.text().trim_end() })),
        }
    }
    if is_json {
        print_json(&json!({ "items": rows }))?;
        return Ok(0);
    }
    let text = |row: &Value, name: &str| line(row[name].as_str().unwrap_or_default());
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let tools = row["tools"].as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>();
            let hash: String = text(row, "hash").chars().take("sha256:".len() + 12).collect();
            let what =
                if row["problem"].is_null() { tools.join(",") } else { "invalid: saggar agent check".to_owned() };
            vec![text(row, "file"), text(row, "name"), text(row, "version"), hash, what]
        })
        .collect();
    print(aligned(&["FILE", "NAME", "VERSION", "HASH", "TOOLS"], &cells, terminal_width()).as_bytes())?;
    Ok(0)
}

/// Whether a file means to be an agent. One that can't be read may be one.
fn is_agent(file: &Path) -> bool {
    let Ok(text) = std::fs::read_to_string(file) else { return true };
    match toml::from_str::<toml::Table>(&text) {
        Ok(table) => table.contains_key("model"),
        Err(_) => text.contains("[model]"),
    }
}

pub(crate) fn show_file(file: &Path, is_json: bool) -> CommandResult {
    let (agent, checked) = checked(file)?;
    let version = agent.version.unwrap_or_default();
    show(&checked.effective, &version, checked.hash.as_str(), is_json)
}

/// The agent that a run was started with.
pub(crate) async fn show_run(client: &Client, run: RunId, is_json: bool) -> CommandResult {
    let page = client.run(run).journal(&JournalQuery::default()).await?;
    let agent = page.items.first().map(|entry| &entry["agent"]).filter(|agent| agent.is_object());
    let Some(agent) = agent else {
        return Err(CommandFailure::ours(
            "no_agent",
            "the run's first entry has no agent",
            "see: saggar runs follow RUN --json",
        ));
    };
    let text = |name: &str| agent["identity"][name].as_str().unwrap_or_default().to_owned();
    show(agent, &text("version"), &text("hash"), is_json)
}

fn show(agent: &Value, version: &str, hash: &str, is_json: bool) -> CommandResult {
    if is_json {
        print_json(agent)?;
        return Ok(0);
    }
    let field = |name: &str, text: String| if text.is_empty() { text } else { format!("  {name:<9}{text}\n") };
    let mut text = format!("{}\n", line(agent["name"].as_str().unwrap_or_default()));
    text += &field("version", line(version));
    text += &field("hash", line(hash));
    text += &field("model", line(agent["model"]["provider"].as_str().unwrap_or_default()));
    for (name, tool) in agent["tools"].as_object().into_iter().flatten() {
        let class = tool["class"].as_str().unwrap_or_default();
        let (seconds, attempts) =
            (tool["timeout_ms"].as_u64().unwrap_or_default() / 1000, &tool["retry"]["attempts_max"]);
        text += &field("tool", format!("{}: {class}, {seconds}s a call, {attempts} attempts", line(name)));
    }
    let tables = [("sandbox", "sandbox"), ("budget", "budget"), ("snapshot", "snapshots")];
    for (place, table) in tables.map(|(place, name)| (place, &agent[name])) {
        for (name, value) in table.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
            text += &field(place, format!("{} = {}", line(name), line(&value.to_string())));
        }
    }
    for name in agent["agents"].as_object().into_iter().flatten().map(|(name, _)| name) {
        text += &field("agent", line(name));
    }
    print(text.as_bytes())?;
    if agent["budget"].as_object().is_none_or(|budget| budget.values().all(Value::is_null)) {
        note("it has no budget, so nothing but its task ends it; see [budget] in docs/agent.md");
    }
    Ok(0)
}
