//! `saggar runs …`.

use std::time::SystemTime;

use saggar_api::client::{Client, Heard, RunHandle};
use saggar_api::{
    DecideStep, ForkRun, JournalQuery, ListRuns, OpenStepState, RaiseBudget, Run, RunBudget, RunOpenStep, SignalRun,
    StartRun, Timestamp,
};
use saggar_domain::Timeout;
use serde_json::Value;

use super::agent_file::read_agent;
use super::dispatch::{CommandResult, note, print, print_json};
use super::failure::CommandFailure;
use super::journal_line::{EntryLine, entry_line, outcome};
use super::lifecycle::collected;
use super::run_arguments::{ForkAt, MoreBudget, RunsCommand};
use super::run_files;
use super::run_usage::RunUsage;
use super::run_view::{RunSums, StatusLine};
use super::shown::{labels, line, now, span};
use super::table::{aligned, terminal_width};

/// The name of the signal that is a person's message.
const MESSAGE: &str = "message";
/// Exit status for a run that did not complete successfully.
const NOT_COMPLETED: u8 = 1;
/// Number of children shown with a run; `list --child-of` lists all.
const CHILDREN_SHOWN: u32 = 20;

pub(crate) async fn main(client: &Client, command: RunsCommand, is_json: bool) -> CommandResult {
    match command {
        RunsCommand::Start { agent, labels, idempotency_key, follow } => {
            let start = StartRun { agent: read_agent(&agent)?, directory: None, labels: collected(labels)? };
            let started = match idempotency_key {
                Some(key) => client.start_run_once(&start, &key).await,
                None => client.start_run(&start).await,
            };
            let run = started.map_err(|error| CommandFailure::from(error).in_file(&agent))?;
            show_id(&run, is_json)?;
            if follow { follow_run(&client.run(run.id), 0, is_json).await } else { Ok(0) }
        }
        RunsCommand::List { state, agent, labels, since, before, child_of, limit } => {
            let ago = |span: Timeout| Timestamp::from(SystemTime::now() - span.duration());
            let query = ListRuns {
                state,
                agent,
                label: labels,
                since: since.map(ago),
                before: before.map(ago),
                child_of,
                limit: Some(limit),
                cursor: None,
            };
            let list = client.list_runs(&query).await?;
            if is_json {
                print_json(&list)?;
            } else {
                let rows: Vec<Vec<String>> = list.items.iter().map(row).collect();
                let titles = ["ID", "STATE", "AGE", "ENTRIES", "OUTCOME", "AGENT", "CHILD OF"];
                print(aligned(&titles, &rows, terminal_width()).as_bytes())?;
            }
            Ok(0)
        }
        RunsCommand::Show { run } => {
            let shown = client.run(run.clone()).get().await?;
            let children = ListRuns { child_of: Some(run), limit: Some(CHILDREN_SHOWN), ..ListRuns::default() };
            // JSON output is the run as the API returns it; programs request children themselves.
            if is_json {
                show(&shown, &[], &RunUsage::default(), is_json)
            } else {
                let usage = RunUsage::of(&shown, &client.run(shown.id.clone())).await?;
                show(&shown, &client.list_runs(&children).await?.items, &usage, is_json)
            }
        }
        RunsCommand::Follow { run, after } => follow_run(&client.run(run), after.unwrap_or(0), is_json).await,
        RunsCommand::Say { run, text, id } => {
            let (name, body) = (MESSAGE.to_owned(), text.join(" "));
            client.run(run).signal(&SignalRun { id, name, body, question: None }).await?;
            Ok(0)
        }
        RunsCommand::Signal { run, name, body, id } => {
            client.run(run).signal(&SignalRun { id, name, body, question: None }).await?;
            Ok(0)
        }
        // Without a question number the server refuses the answer and says which question is open.
        RunsCommand::Answer { run, text, question } => {
            let (id, body) = (run.clone(), text.join(" "));
            client.run(run).signal(&SignalRun { id: None, name: "answer".to_owned(), body, question }).await?;
            match question {
                Some(question) if is_json => print_json(&serde_json::json!({ "id": id, "question": question }))?,
                Some(question) => print(format!("answered question {question}\n").as_bytes())?,
                None => {}
            }
            Ok(0)
        }
        RunsCommand::Pause { run } => client.run(run).pause().await.map(|()| 0).map_err(CommandFailure::from),
        RunsCommand::Resume { run } => client.run(run).resume().await.map(|()| 0).map_err(CommandFailure::from),
        RunsCommand::Cancel { run } => client.run(run).cancel().await.map(|()| 0).map_err(CommandFailure::from),
        RunsCommand::Decide { run, step, decision, attempt, result } => {
            client.run(run).decide(step, &DecideStep { decision, attempt, result }).await?;
            Ok(0)
        }
        RunsCommand::Budget { run, more, id } => {
            let MoreBudget { steps, time, tokens, micros, tool_calls, retries, children } = more;
            let more = RunBudget { steps, time, tokens, micros, tool_calls, retries, children };
            client.run(run).raise_budget(&RaiseBudget { id, more }).await?;
            Ok(0)
        }
        RunsCommand::Fork { run, at, with } => {
            let (at_step, at_entry) = match at {
                None => (None, None),
                Some(ForkAt::Step(step)) => (Some(step), None),
                Some(ForkAt::Entry(entry)) => (None, Some(entry)),
            };
            let fork = client.run(run).fork(&ForkRun { at_step, at_entry, message: with }).await?;
            for open in fork.parent.iter().flat_map(|parent| &parent.open_calls) {
                note(&format!("step {} ({}) was open: the fork does it again", open.step, line(&open.tool)));
            }
            if let Some(files) = fork.files.as_ref().and_then(|files| files.restored.as_ref()) {
                note(&format!("the fork begins {}", run_files::said(files)));
            }
            show_id(&fork, is_json)?;
            Ok(0)
        }
        RunsCommand::Rollback { run, at, with } => run_files::roll_back(client, run, at, with, is_json).await,
        RunsCommand::Diff { from, to, patch } => run_files::diff(client, from, to, patch, is_json).await,
        RunsCommand::Rm { runs } => {
            for run in runs {
                client.run(run.clone()).remove().await?;
                if is_json {
                    print_json(&serde_json::json!({ "id": run, "state": "removed" }))?;
                } else {
                    print(format!("{run} removed\n").as_bytes())?;
                }
            }
            Ok(0)
        }
        RunsCommand::Replay { run } => {
            let report = client.run(run).replay().await?;
            if is_json {
                print_json(&report)?;
            } else {
                print(format!("{} of {} entries agree\n", report.agreed, report.entries).as_bytes())?;
                if let Some(divergence) = &report.divergence {
                    let side = |value: &Option<Value>| value.as_ref().map_or("nothing".to_owned(), Value::to_string);
                    let text = format!(
                        "entry {}\n  recorded {}\n  derived  {}\n",
                        divergence.entry,
                        line(&side(&divergence.recorded)),
                        line(&side(&divergence.derived))
                    );
                    print(text.as_bytes())?;
                }
            }
            Ok(if report.divergence.is_some() { NOT_COMPLETED } else { 0 })
        }
        RunsCommand::Export { run } => {
            print_json(&client.run(run).export().await?)?;
            Ok(0)
        }
    }
}

async fn follow_run(run: &RunHandle, after: u64, is_json: bool) -> CommandResult {
    let mut has_cut = false;
    let (mut sums, mut status) = (RunSums::default(), StatusLine::new(!is_json));
    let mut entries = run.follow(&JournalQuery { after: Some(after), live: Some(status.is_shown()) }).await?;
    if !is_json {
        let now = run.get().await?;
        // The question is older than the entries that are followed, so it was not printed.
        if now.entries <= after {
            print(awaited(&now).as_bytes())?;
        }
    }
    while let Some(heard) = entries.next_heard().await? {
        let entry = match heard {
            Heard::Entry(entry) => entry,
            Heard::Said(said) => {
                sums.hear(&said);
                status.draw(&sums);
                continue;
            }
        };
        if is_json {
            print_json(&entry)?;
            continue;
        }
        sums.take(&entry);
        status.clear();
        let EntryLine { text, is_cut } = entry_line(&entry);
        has_cut |= is_cut;
        print(format!("{text}\n").as_bytes())?;
        let may_wait = entry["event"] == "step_unknown" || entry["effect"]["do"] == "ask_human";
        let is_short = entry["event"] == "budget_reached" && entry["note"].is_null();
        if may_wait || is_short {
            let now = run.get().await?;
            if is_short {
                print(awaited(&now).as_bytes())?;
            }
            // A question that is already answered needs no hint.
            let is_it = |open: &&RunOpenStep| Some(open.step) == entry["step"].as_u64();
            if let Some(open) = now.open_steps.iter().find(is_it) {
                print(awaits(&now, open).as_bytes())?;
            }
        }
    }
    status.clear();
    let ended = run.get().await?;
    if has_cut {
        note(&format!("lines that end with … are cut; all of them: saggar runs follow {} --json", ended.id));
    }
    let is_completed = ended.outcome.as_ref().is_some_and(|outcome| outcome["outcome"] == "completed");
    Ok(if is_completed { 0 } else { NOT_COMPLETED })
}

/// What a run is waiting for from a human, with the commands that provide it.
pub(crate) fn awaited(run: &Run) -> String {
    let mut text: String = run.open_steps.iter().map(|open| awaits(run, open)).collect();
    if let Some(budget) = &run.out_of_budget {
        let budget = line(budget);
        text += &format!("  waits    its budget of {budget} is used up\n");
        text += &format!("           raise it: saggar runs budget {} --{} N\n", run.id, budget.replace('_', "-"));
    }
    text
}

/// What a step is waiting for from a human.
fn awaits(run: &Run, open: &RunOpenStep) -> String {
    let mut text = String::new();
    let (step, attempt, tool) = (open.step, open.attempt, line(&open.tool));
    let said = line(open.text.as_deref().unwrap_or_default());
    match open.state {
        OpenStepState::Asking => {
            text += &format!("  asks     {said}\n");
            text += &format!("           answer: saggar runs answer {} --question {step} TEXT\n", run.id);
        }
        OpenStepState::Parked => {
            text += &format!("  parked   at step {step}, attempt {attempt} ({tool}): {said}\n");
            text += &format!("           do it again:      saggar runs decide {} {step} retry\n", run.id);
            text += &format!("           it was done:      saggar runs decide {} {step} done --result TEXT\n", run.id);
            text += &format!("           abandon the run:  saggar runs decide {} {step} abandon\n", run.id);
        }
        OpenStepState::Waiting if !said.is_empty() => {
            text += &format!("  waits    for {said}\n");
            text += &format!("           send it: saggar runs signal {} NAME TEXT\n", run.id);
        }
        OpenStepState::Running
        | OpenStepState::Waiting
        | OpenStepState::Delegating
        | OpenStepState::Probing
        | OpenStepState::Retrying
        | OpenStepState::Delayed
        | OpenStepState::Interrupted => {}
    }
    text
}

/// The open steps, if there is more than one: then the run's state doesn't tell all.
fn open_steps(run: &Run) -> String {
    if run.open_steps.len() < 2 {
        return String::new();
    }
    let shown = run.open_steps.iter().map(|open| {
        let with = open.child.as_ref().map_or_else(String::new, |child| format!(" {child}"));
        let (state, age) = (open.state.as_str(), span(open.since, now()));
        format!("  open     step {} ({}): {state}{with}, for {age}\n", open.step, line(&open.tool))
    });
    shown.collect()
}

fn show_id(run: &Run, is_json: bool) -> Result<(), CommandFailure> {
    if is_json { print_json(run) } else { print(format!("{}\n", run.id).as_bytes()) }
}

fn show(run: &Run, children: &[Run], usage: &RunUsage, is_json: bool) -> CommandResult {
    if is_json {
        print_json(run)?;
        return Ok(0);
    }
    let mut text = format!(
        "{}\n  agent    {}\n  state    {}\n  age      {}\n  entries  {}\n",
        run.id,
        line(&run.agent),
        run.state.as_str(),
        span(run.created_at, now()),
        run.entries
    );
    if run.labels.iter().next().is_some() {
        text += &format!("  labels   {}\n", labels(&run.labels));
    }
    text += &open_steps(run);
    text += &awaited(run);
    if let Some(what) = &run.waiting_for {
        text += &format!("  waiting  for a {}: it continues when capacity is free\n", line(what));
    }
    if let Some(parent) = &run.parent {
        text += &format!("  fork of  {} after entry {}\n", parent.run_id, parent.through);
    }
    if let Some(child_of) = &run.child_of {
        text += &format!("  child of {} at step {}\n", child_of.run_id, child_of.step);
    }
    for child in children {
        text += &format!("  child    {} {} ({})\n", child.id, child.state.as_str(), line(&child.agent));
    }
    text += &usage.lines();
    if let Some(sandbox) = &run.sandbox_id {
        text += &format!("  sandbox  {sandbox}\n");
    }
    text += &run_files::shown(run);
    if let Some(blocked) = &run.blocked {
        text += &format!("  blocked  {}: {}\n", line(&blocked.kind), line(&blocked.reason));
        text += &format!("           resume it: saggar runs resume {0}; cancel it: saggar runs cancel {0}\n", run.id);
    }
    if let Some(ended) = &run.outcome {
        text += &format!("  outcome  {}\n", line(&outcome(ended)));
        // The only outcome that has a text of its own.
        if let Some(answer) = ended["answer"]["text"].as_str().filter(|answer| !answer.is_empty()) {
            text += &format!("  answer   {}\n", line(answer));
        }
    }
    print(text.as_bytes())?;
    Ok(0)
}

fn row(run: &Run) -> Vec<String> {
    let outcome = run.outcome.as_ref().and_then(|outcome| outcome["outcome"].as_str()).unwrap_or_default();
    vec![
        run.id.to_string(),
        run.state.as_str().to_owned(),
        span(run.created_at, now()),
        run.entries.to_string(),
        line(outcome),
        line(&run.agent),
        run.child_of.as_ref().map(|child_of| child_of.run_id.to_string()).unwrap_or_default(),
    ]
}
