//! One manager and three executors at once, each in a git worktree of its own: what each commits becomes a branch of its
//! own of the operator's repository, and none sees another's.

mod harness;
mod http;
mod runs;

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{is_root, not_here};
use http::{Server, eventually, new_directory};
use runs::{begin, events, journal, said, until_completed};
use serde_json::{Value, json};

const PARTS: [&str; 3] = ["kiln", "glaze", "clay"];

/// Runs git on the host, without anybody's settings.
fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(["-c", "safe.directory=*", "-c", "user.name=a", "-c", "user.email=a@a"]).args(arguments);
    let ran = command.current_dir(directory).env("GIT_CONFIG_NOSYSTEM", "1").output().expect("git is installed");
    assert!(ran.status.success(), "{arguments:?}: {ran:?}");
    String::from_utf8(ran.stdout).expect("text")
}

/// A server with a repository of the operator's, named `site`.
fn site() -> (Server, PathBuf) {
    let root = new_directory();
    let site = root.join("site");
    std::fs::create_dir(&site).expect("ours");
    for part in PARTS {
        std::fs::write(site.join(part), "to do\n").expect("ours");
    }
    git(&site, &["init", "-q"]);
    git(&site, &["add", "."]);
    git(&site, &["commit", "-q", "-m", "one"]);
    let flags = ["--workspaces", &format!("site={}", site.display()), "--pool-max", "0"];
    (Server::start_in(root, &flags), site)
}

/// An executor that does one part. It commits only when all three have begun, so they are at work at once.
fn executor(part: &str) -> Value {
    let line = format!(
        "cd /workspace && git config user.name a && git config user.email a@a && cat {} && echo done > {part} && touch /tmp/begun && \
         while [ ! -e /tmp/go ]; do sleep 0.05; done && git commit -qam 'Do {part}' && git status --short",
        PARTS.join(" "),
    );
    let turns = json!([
        { "calls": [{ "tool": "shell", "arguments": { "command": line } }] },
        { "calls": [{ "tool": "finish", "arguments": { "answer": format!("{part} is done") } }] },
    ]);
    json!({
        "model": { "provider": "scripted", "script": { "turns": turns } },
        "tools": { "shell": {}, "finish": {} },
        "sandbox": { "workspace": "site", "fs": "worktree" },
    })
}

fn manager() -> Value {
    let delegate =
        |part: &str| json!({ "tool": "delegate", "arguments": { "task": format!("Do {part}."), "agent": part } });
    let look = json!({ "tool": "shell", "arguments": { "command": "cd /workspace && cat *" } });
    let turns = json!([{ "calls": PARTS.map(delegate) }, { "calls": [look] }, { "text": "All is done." }]);
    json!({ "agent": {
        "name": "manager",
        "task": "Do all of it.",
        "model": { "provider": "scripted", "script": { "turns": turns } },
        "tools": { "delegate": {}, "shell": {}, "finish": {} },
        "sandbox": { "workspace": "site", "fs": "worktree" },
        "parallel": 3,
        "agents": PARTS.iter().map(|part| ((*part).to_owned(), executor(part))).collect::<serde_json::Map<_, _>>(),
    } })
}

#[test]
fn three_executors_work_at_once_in_worktrees_of_their_own_under_one_manager() {
    if !is_root() {
        return not_here("sandboxes of an ordinary user have one id");
    }
    let (server, site) = site();
    let run = begin(&server, &manager());
    let mut sandboxes = Vec::new();
    eventually("all three are at work", || {
        let list = server.get("/api/v1/sandboxes").expect(200);
        let items = list["items"].as_array().expect("a list");
        let path = |item: &Value| format!("/api/v1/sandboxes/{}", item["id"].as_str().unwrap_or_default());
        sandboxes = items.iter().filter(|item| item["state"] == "running").map(path).collect();
        sandboxes.len() == 3 && sandboxes.iter().all(|sandbox| server.sh(sandbox, "cat /tmp/begun")["exit_code"] == 0)
    });
    for sandbox in &sandboxes {
        server.sh(sandbox, "touch /tmp/go");
    }
    let finished = until_completed(&server, &run);
    assert_eq!(finished["outcome"]["answer"]["text"], "All is done.");
    let entries = journal(&server, &run);
    let ended = entries.iter().filter_map(|entry| entry["result"]["ended"]["outcome"]["answer"]["text"].as_str());
    let mut ended: Vec<&str> = ended.collect();
    ended.sort_unstable();
    assert_eq!(ended, ["clay is done", "glaze is done", "kiln is done"]);

    let children = server.get(&format!("/api/v1/runs?child_of={run}")).expect(200);
    let children = children["items"].as_array().expect("a list").clone();
    assert_eq!(children.len(), 3);
    for child in &children {
        let (id, part) = (child["id"].as_str().expect("an id"), child["agent"].as_str().expect("a name"));
        let result =
            events(&server, id, "step_settled").into_iter().find(|entry| !entry["result"]["returned"].is_null());
        let returned = result.expect("it ran a command")["result"]["returned"]["content"]["text"].clone();
        let stdout = said(returned.as_str().expect("a text"))["stdout"].clone();
        assert_eq!(stdout, "to do\nto do\nto do\n", "{part} sees nothing of the others");
        let sandbox = format!("/api/v1/sandboxes/{}", child["sandbox_id"].as_str().expect("it had one"));
        eventually("its sandbox ends", || server.get(&sandbox).expect(200)["state"] == "ended");
        let changes = format!("{sandbox}/changes");
        let listed = server.get(&changes).expect(200);
        assert_eq!(listed["branch"]["commits"][0]["subject"], format!("Do {part}"), "{listed}");
        let applied = server.post(&format!("{changes}/apply"), &json!({})).expect(200);
        let branch = applied["branch"]["name"].as_str().expect("a name").to_owned();
        for other in PARTS {
            let expected = if other == part { "done\n" } else { "to do\n" };
            assert_eq!(
                git(&site, &["show", &format!("{branch}:{other}")]),
                expected,
                "{other} in the branch of {part}"
            );
        }
    }
    let branches = git(&site, &["branch", "--list", "saggar/*"]);
    assert_eq!(branches.lines().count(), 3, "{branches}");
    git(&site, &["fsck", "--strict"]);
    for part in PARTS {
        assert_eq!(
            std::fs::read_to_string(site.join(part)).expect("it is there"),
            "to do\n",
            "the checkout is as it was"
        );
    }
    let looked = entries.iter().find(|entry| !entry["result"]["returned"].is_null()).expect("the manager looks");
    let looked = said(looked["result"]["returned"]["content"]["text"].as_str().expect("a text"));
    assert_eq!(looked["stdout"], "to do\nto do\nto do\n", "the manager's own worktree is apart too");
}
