//! Runs through the API, as a client sees them.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::http::{Ask, Client};
use crate::patience::{pause, wait_until};

pub const RUNS: &str = "/api/v1/runs";
/// The last reply of every agent here.
pub const LAST_WORDS: &str = "It is done.";
/// Interval of polling a run.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Time limit for a run to reach a state.
const PATIENCE: Duration = Duration::from_secs(300);

/// The request that starts a run of a scripted agent.
pub fn request(name: &str, tools: &Value, turns: Vec<Vec<Value>>) -> String {
    let spoken = turns.into_iter().map(|calls| json!({ "calls": calls }));
    let turns: Vec<Value> = spoken.chain([json!({ "text": LAST_WORDS })]).collect();
    let model = json!({ "provider": "scripted", "script": { "turns": turns } });
    json!({ "agent": { "name": name, "task": "do it", "model": model, "tools": tools } }).to_string()
}

/// A call of the tool `http`.
pub fn http_call(url: &str, body: impl Into<Value>) -> Value {
    json!({ "tool": "http", "arguments": { "url": url, "body": body.into() } })
}

/// Starts one and returns its id.
pub fn start(client: &mut Client, request: &str) -> Result<String> {
    let answer = client.ask(Ask::post(RUNS, request)).context("beginning a run")?.expect(201)?;
    Ok(answer.json()["id"].as_str().context("a run without an id")?.to_owned())
}

pub fn show(client: &mut Client, id: &str) -> Result<Value> {
    Ok(client.ask(Ask::new("GET", &format!("{RUNS}/{id}"))).context("looking at a run")?.expect(200)?.json())
}

/// Waits until it is in a state.
pub fn wait_for(client: &mut Client, id: &str, state: &str) -> Result<()> {
    wait_until(&format!("a run that is {state}"), PATIENCE, || {
        let is_so = show(client, id)?["state"] == state;
        if !is_so {
            pause(LOOK_EVERY);
        }
        Ok(is_so)
    })
}

/// Waits until all of them have ended with the expected outcome.
pub fn wait_for_all(client: &mut Client, ids: &[String]) -> Result<()> {
    for id in ids {
        wait_for(client, id, "finished")?;
        if let Some(fault) = fault_in_end(&show(client, id)?) {
            bail!("{fault}");
        }
    }
    Ok(())
}

/// What is wrong with a run's end.
pub fn fault_in_end(run: &Value) -> Option<String> {
    let outcome = &run["outcome"];
    let is_right = outcome["outcome"] == "completed" && outcome["answer"]["text"] == LAST_WORDS;
    (!is_right).then(|| format!("run {} ended differently: {outcome}", run["id"]))
}

/// All entries of a run's journal.
pub fn journal(client: &mut Client, id: &str) -> Result<Vec<Value>> {
    let (mut entries, mut after) = (Vec::new(), 0);
    loop {
        let path = format!("{RUNS}/{id}/journal?after={after}");
        let mut page = client.ask(Ask::new("GET", &path)).context("reading a journal")?.expect(200)?.json();
        let Value::Array(items) = page["items"].take() else { bail!("a journal without items") };
        if items.is_empty() {
            return Ok(entries);
        }
        after = page["last_seq"].as_u64().context("a page without a last number")?;
        entries.extend(items);
    }
}

/// The server's report on a replay of the run.
pub fn replay(client: &mut Client, id: &str) -> Result<Value> {
    Ok(client.ask(Ask::new("GET", &format!("{RUNS}/{id}/replay"))).context("replaying a run")?.expect(200)?.json())
}
