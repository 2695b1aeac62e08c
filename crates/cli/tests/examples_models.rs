//! The five example agents on a real wire: with the line `model` changed, and nothing else, each does what its script says.

mod http;
mod model_standin;
mod runs;

use std::path::{Path, PathBuf};
use std::process::Command;

use http::{Server, command, eventually, new_directory};
use model_standin::serving::{models_file, secrets};
use model_standin::{Standin, Turn};
use runs::show;
use serde_json::{Value, json};

/// Only the planner's executors are told this.
const EXECUTOR: &str = "You read one file";

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("two below the top")
        .join("examples/agents")
        .join(name)
}

/// The turns of a script, as a provider says them.
fn script(path: &Path) -> Vec<Turn> {
    let text = std::fs::read_to_string(path).expect("it is there");
    let script: Value = serde_json::from_str(&text).expect("JSON");
    let turn = |turn: &Value| {
        let calls = turn["calls"].as_array().into_iter().flatten();
        let calls =
            calls.map(|call| (call["tool"].as_str().expect("a name").to_owned(), call["arguments"].to_string()));
        Turn { calls: calls.collect(), ..Turn::says(turn["text"].as_str().unwrap_or_default()) }
    };
    script["turns"].as_array().expect("a list").iter().map(turn).collect()
}

/// What its last call says.
fn expected(turns: &[Turn]) -> String {
    let (tool, arguments) = turns.last().and_then(|turn| turn.calls.last()).expect("it finishes");
    assert_eq!(tool, "finish");
    let arguments: Value = serde_json::from_str(arguments).expect("JSON");
    arguments["answer"].as_str().map_or_else(|| arguments["output"].to_string(), str::to_owned)
}

/// Copies an example, and changes each line `model` to a route. Returns the directory and how many lines that were.
fn with_route(name: &str, route: &str) -> (PathBuf, usize) {
    let copy = new_directory();
    let copied = Command::new("cp").args(["-r", "-T"]).args([&example(name), &copy]).status().expect("cp");
    assert!(copied.success());
    let file = copy.join("agent.toml");
    let text = std::fs::read_to_string(&file).expect("it is there");
    let mut changed = 0;
    let lines = text.lines().map(|line| {
        if !line.starts_with("model = ") {
            return line.to_owned();
        }
        changed += 1;
        format!("model = {{ route = \"{route}\" }}")
    });
    let text: Vec<String> = lines.collect();
    std::fs::write(&file, text.join("\n")).expect("ours");
    (copy, changed)
}

#[test]
fn each_example_runs_on_a_real_wire_after_a_change_of_one_line() {
    for (name, workspace, route, lines) in [
        ("fixer", Some("./project"), "anthropic", 1),
        ("researcher", None, "responses", 1),
        ("data", Some("./figures"), "chat", 1),
        ("planner", Some("./notes"), "anthropic", 2),
        ("reviewer", Some("./project"), "chat", 1),
    ] {
        let turns = script(&example(name).join("turns.json"));
        let answer = expected(&turns);
        let executor = example(name).join("executor.json");
        let executor = if executor.exists() { script(&executor) } else { Vec::new() };
        let standin = Standin::saying(move |replies, asked| {
            let script = if asked.body.to_string().contains(EXECUTOR) { &executor } else { &turns };
            script.get(replies).cloned().unwrap_or_else(|| Turn::says("There is no more."))
        });
        let root = new_directory();
        let socket = root.join("socket");
        let file = models_file(&root, &standin.models_file(""));
        let flags = [
            "--pool-max",
            "0",
            "--socket",
            socket.to_str().expect("a name"),
            "--models-file",
            file.to_str().expect("a name"),
        ];
        let server = Server::start_in(root, &flags);
        secrets(&server);
        let (directory, changed) = with_route(name, route);
        assert_eq!(changed, lines, "{name}");
        let mut run = command(&["agent", "run", "--agent", "agent.toml", "--detach"]);
        if let Some(workspace) = workspace {
            run.args(["--workspace", workspace]);
        }
        run.current_dir(&directory).env("HOME", &directory);
        run.env("SAGGAR_URL", format!("unix:{}", socket.display())).env("SAGGAR_API_KEY", &server.key);
        let output = run.output().expect("built");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{name}: {said}{}", String::from_utf8_lossy(&output.stderr));
        let run = said.lines().next().expect("an id").to_owned();
        let mut shown = Value::Null;
        eventually(&format!("{name} ends"), || {
            shown = show(&server, &run);
            if let Some(question) = shown["question"]["id"].as_u64() {
                let yes = json!({ "id": "yes", "name": "answer", "question": question, "body": "yes" });
                server.post(&format!("/api/v1/runs/{run}/signal"), &yes);
            }
            shown["state"] == "finished"
        });
        assert_eq!(shown["outcome"]["answer"]["text"], answer, "{name}: {shown}");
        assert!(standin.asked().len() >= 2, "{name}");
    }
}
