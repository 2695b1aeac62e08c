//! `saggar agent`: files that are checked before anything starts, runs that are followed, and a server of the user's own.

mod harness;
mod http;
mod traces;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use http::{Server, command, eventually, new_directory};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use traces::terminal::Terminal;

/// An agent whose script says this.
fn agent(directory: &Path, more: &str, turns: &str) -> PathBuf {
    let file = directory.join("agent.toml");
    let text = format!(
        "schema = \"saggar.agent/v1\"\nname = \"tester\"\nversion = \"1.2.0\"\n{more}\n[model]\nprovider = \"scripted\"\nscript = {{ turns = [{turns}] }}\n"
    );
    std::fs::write(&file, text).expect("ours");
    file
}

/// Exit status, stdout, stderr.
fn finish(command: &mut Command) -> (i32, String, String) {
    ended(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("built"))
}

fn ended(child: Child) -> (i32, String, String) {
    let output = child.wait_with_output().expect("our own child");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints text");
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

fn in_directory(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = command(arguments);
    command.current_dir(directory).env("HOME", directory).env("XDG_CONFIG_HOME", directory.join("config"));
    command.env("SAGGAR_DATA_DIR", directory.join("data"));
    command
}

fn on(server: &Server, directory: &Path, arguments: &[&str]) -> Command {
    let mut command = in_directory(directory, arguments);
    command.env("SAGGAR_URL", format!("http://{}", server.address)).env("SAGGAR_API_KEY", &server.key);
    command
}

#[test]
fn a_new_agent_is_valid_and_an_existing_one_is_left_alone() {
    let directory = new_directory();
    let (code, said, error) = finish(&mut in_directory(&directory, &["agent", "init", "--name", "a \"b\""]));
    assert_eq!((code, error.as_str()), (0, ""), "{said}");
    let (code, said, error) = finish(&mut in_directory(&directory, &["agent", "check"]));
    assert_eq!((code, error.as_str()), (0, ""));
    let hash = said.split_whitespace().last().expect("a hash").to_owned();
    assert!(said.starts_with("ok agent.toml  a \"b\" 0.1.0  sha256:"), "{said}");
    let (code, _, error) = finish(&mut in_directory(&directory, &["agent", "init"]));
    assert!(code == 125 && error.contains("is left as it is"), "{code} {error}");
    // The task is no part of the definition; everything else is.
    let text = std::fs::read_to_string(directory.join("agent.toml")).expect("written");
    let hash_of = |text: &str| {
        std::fs::write(directory.join("agent.toml"), text).expect("ours");
        finish(&mut in_directory(&directory, &["agent", "check"])).1.split_whitespace().last().unwrap_or("").to_owned()
    };
    assert_eq!(hash_of(&text.replace("version", "task = \"t\"\nversion")), hash);
    assert_ne!(hash_of(&text.replace("0.1.0", "0.1.1")), hash);
    assert_ne!(hash_of(&text.replace("steps = 50", "steps = 51")), hash);
    std::fs::write(directory.join("other.toml"), "[package]\nname = \"x\"\n").expect("ours");
    let (code, listed, _) = finish(&mut in_directory(&directory, &["agent", "list"]));
    assert_eq!((code, listed.lines().count()), (0, 2), "{listed}");
    let (code, shown, _) = finish(&mut in_directory(&directory, &["agent", "show"]));
    assert!(code == 0 && shown.contains("shell: probeable, 300s a call, 3 attempts"), "{shown}");
}

#[test]
fn a_contradictory_agent_is_refused_with_its_place_and_the_remedy_and_starts_no_server() {
    let directory = new_directory();
    for (more, what, remedy) in [
        ("schema2 = 1", "agent.toml line 4 is not a valid agent: unknown field `schema2`", "docs/agent.md"),
        ("[tools]\nshell = { timeout = \"x\" }", "agent.toml line 5 is not a valid agent", "docs/agent.md"),
        ("[tools]\nhammer = {}", "unknown tool \"hammer\"", "correct the agent"),
        ("[sandbox]\nnetwork = \"host\"", "can't have the network mode host", "proxied"),
        ("[sandbox]\nreuse = true\nworkspace = \"site\"", "sandbox.reuse: later runs", "volume"),
        ("[sandbox]\nreuse = \"40d\"", "sandbox.reuse: files of a run can't wait 40d", "from 1s to 30d"),
        ("[sandbox]\negress = { allow = [\"a.example\"] }", "there are network rules", "proxied"),
        ("[sandbox.limits]\ntimeout = \"5m\"", "sandbox.limits.timeout", "tools.shell.timeout"),
        ("[agents.other]\nmodel = { provider = \"scripted\", script = { turns = [] } }", "needs the tool", "correct"),
        ("system = \"a\"\ninstructions = \"b\"", "duplicate field", "two names of one field"),
        (
            "[tools.look]\nkind = \"http\"\ndescription = \"d\"\nurl = \"https://{host}/\"\nschema = { type = \"object\" }",
            "agent.toml line 7: tools.look.url: only its path may have arguments",
            "must not choose where a call goes",
        ),
        ("[tools]\nshell = { url = \"https://a.example\" }", "line 5: tools.shell.url: it is for", "kind = \"http\""),
        ("[tools.look]\nkind = \"http\"", "agent.toml line 4: tools.look: it has no url", "docs/tools.md"),
        (
            "[tools.look]\nkind = \"http\"\ndescription = \"d\"\nurl = \"https://a.example\"\nschema = \"no.json\"",
            "names the schema",
            "tools.look.schema",
        ),
        (
            "[tools.shell]\nkind = \"http\"\ndescription = \"d\"\nurl = \"https://a.example\"\nschema = { type = \"object\" }",
            "agent.toml line 4: tools.shell: it has the name of a built-in tool",
            "a name of its own",
        ),
        (
            "[tools]\ncode = {}\n[on]\nuncertain = \"retry\"",
            "agent.toml line 7: on.uncertain: it is \"retry\", and the tool \"code\" has the class `once`",
            "park",
        ),
        ("[on]\nunanswered = { after = \"1h\" }", "agent.toml line 5: on.unanswered: it says", "ask_human = {}"),
        ("[on]\nlimit = \"ask\"", "agent.toml line 5 is not a valid agent: unknown field `limit`", "docs/agent.md"),
    ] {
        agent(&directory, more, "{ text = \"Done.\" }");
        for arguments in [&["agent", "check"][..], &["agent", "run", "work"]] {
            let (code, said, error) = finish(&mut in_directory(&directory, arguments));
            let expected = if arguments[1] == "check" { 1 } else { 125 };
            assert_eq!((code, said.as_str()), (expected, ""), "{more}: {error}");
            assert!(error.contains(what) && error.contains("agent.toml"), "{more}: {error}");
            assert!(error.contains("help: ") && error.contains(remedy), "{more}: {error}");
        }
    }
    for (from, to, what) in [("agent/v1", "agent/v9", "saggar.agent/v9"), ("1.2.0", "1 2", "is not a version")] {
        let file = agent(&directory, "", "");
        let text = std::fs::read_to_string(&file).expect("written").replace(from, to);
        std::fs::write(&file, text).expect("ours");
        let (code, _, error) = finish(&mut in_directory(&directory, &["agent", "check"]));
        assert!(code == 1 && error.contains(what), "{error}");
    }
    agent(&directory, "", "{ text = \"Done.\" }");
    let (code, _, error) = finish(&mut in_directory(&directory, &["agent", "run"]));
    assert!(code == 125 && error.contains("has no task") && error.contains("saggar agent run 'TASK'"), "{error}");
    let (code, _, error) = finish(&mut in_directory(&directory, &["agent", "run", "agent.toml"]));
    assert!(code == 125 && error.contains("saggar agent run --agent agent.toml"), "{error}");
    assert!(!directory.join("data/own-server.json").exists(), "nothing was started");
}

#[test]
fn a_run_is_followed_to_its_end_and_keeps_the_hash_of_its_agent() {
    let (server, directory) = (Server::start(), new_directory());
    let turns = "{ text = \"I look.\", tokens = 12, micros = 30, calls = [{ tool = \"shell\", arguments = { command = \"echo hi\" } }] }, { text = \"Two\\nlines.\" }";
    agent(&directory, "[tools]\nshell = {}\n[sandbox.limits]\npids = 77", turns);
    let (code, said, error) = finish(&mut on(&server, &directory, &["agent", "run", "look around"]));
    assert_eq!(code, 0, "{said}{error}");
    assert!(said.ends_with("completed (3 steps, 12 tokens, cost 0.000030)\nTwo\nlines.\n"), "{said}");
    let id = said.lines().next().expect("the id").to_owned();
    let (_, checked, _) = finish(&mut in_directory(&directory, &["agent", "check"]));
    let (code, shown, _) = finish(&mut on(&server, &directory, &["agent", "show", &id]));
    assert_eq!(code, 0);
    assert!(shown.contains(checked.split_whitespace().last().expect("a hash")), "{shown} {checked}");
    assert!(shown.contains("version  1.2.0") && shown.contains("pids"), "{shown}");
    let first = &server.get(&format!("/api/v1/runs/{id}/journal")).expect(200)["items"][0];
    assert_eq!(first["agent"]["task"]["text"], "look around", "{first}");
    // The same for programs: one object a line.
    let (code, said, _) = finish(&mut on(&server, &directory, &["agent", "run", "--json", "again"]));
    assert_eq!(code, 0);
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.last().expect("entries")["event"], "run_finished");
    // An outcome that isn't success is one of the exit status, too.
    agent(&directory, "[tools]\nshell = {}\n[budget]\nsteps = 1", turns);
    let (code, said, _) = finish(&mut on(&server, &directory, &["agent", "run", "again"]));
    assert!(code == 1 && said.contains("budget_exceeded: steps"), "{code} {said}");
}

/// Starts a run that waits for a person, and waits until it does.
fn asking(server: &Server, directory: &Path, terminal: Option<&Terminal>) -> (Child, String) {
    let turns = "{ calls = [{ tool = \"ask_human\", arguments = { question = \"Which?\" } }] }, { text = \"Done.\" }";
    agent(directory, "[tools]\nask_human = {}", turns);
    let mut command = on(server, directory, &["agent", "run", "ask"]);
    let child = match terminal {
        Some(terminal) => terminal.start(command),
        None => command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("built"),
    };
    let mut id = String::new();
    eventually("the run asks", || {
        let runs = server.get("/api/v1/runs?state=asking").expect(200);
        id = runs["items"][0]["id"].as_str().unwrap_or_default().to_owned();
        !id.is_empty()
    });
    (child, id)
}

fn state(server: &Server, run: &str) -> String {
    server.get(&format!("/api/v1/runs/{run}")).expect(200)["state"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn an_interrupt_leaves_the_run_alone_unless_a_person_decides() {
    let (server, directory) = (Server::start(), new_directory());
    let (child, id) = asking(&server, &directory, None);
    kill_process(Pid::from_child(&child), Signal::INT).expect("our own child");
    let (code, said, error) = ended(child);
    assert!(code == 130 && error.contains(&format!("saggar runs cancel {id}")), "{code} {said} {error}");
    assert_eq!(state(&server, &id), "asking");
    server.post(&format!("/api/v1/runs/{id}/cancel"), &Value::Null);
    eventually("it is over", || state(&server, &id) == "finished");

    for (typed, told, expected) in
        [("c\r", "is cancelled", "finished"), ("l\r", "goes on", "asking"), ("p\r", "resume", "asking")]
    {
        let terminal = Terminal::open();
        let (child, id) = asking(&server, &directory, Some(&terminal));
        terminal.read("waits for an answer");
        // The status line and the question are there.
        kill_process(Pid::from_child(&child), Signal::INT).expect("our own child");
        terminal.read("Enter to follow it again: ");
        // Enter alone goes on.
        terminal.type_in(b"\r");
        terminal.read("waits for an answer");
        kill_process(Pid::from_child(&child), Signal::INT).expect("our own child");
        terminal.read("Enter to follow it again: ");
        terminal.type_in(typed.as_bytes());
        terminal.read(told);
        assert_eq!(ended(child).0, 130, "{typed:?}");
        eventually("it is as decided", || state(&server, &id) == expected);
        server.post(&format!("/api/v1/runs/{id}/cancel"), &Value::Null);
        eventually("it is over", || state(&server, &id) == "finished");
    }
}

#[test]
fn without_a_server_one_is_started_as_this_user_and_used_again() {
    let directory = new_directory();
    agent(
        &directory,
        "[tools]\nshell = {}",
        "{ calls = [{ tool = \"shell\", arguments = { command = \"echo hi\" } }] }, { text = \"Done.\" }",
    );
    let place = directory.join("data/own-server.json");
    let mut pids = Vec::new();
    for round in 0..3 {
        if round == 2 {
            // It was killed; the next command starts another on the same data, with the same key.
            let pid = Pid::from_raw(pids[0]).expect("a pid");
            kill_process(pid, Signal::KILL).expect("ours");
            eventually("it is gone", || is_gone(pids[0]));
        }
        let (code, said, error) = finish(&mut in_directory(&directory, &["agent", "run", "hi"]));
        assert_eq!(code, 0, "{round}: {said}{error}");
        assert_eq!(error.contains("one was started as this user"), round != 1, "{round}: {error}");
        let own: Value = serde_json::from_slice(&std::fs::read(&place).expect("written")).expect("JSON");
        pids.push(own["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a pid"));
        use std::os::unix::fs::MetadataExt;
        assert_eq!(std::fs::metadata(&place).expect("there").mode() & 0o777, 0o600);
        // What `agent run` tells to type works as it is told.
        let id = said.lines().next().expect("the run").to_owned();
        for arguments in
            [&["runs", "show", &id][..], &["runs", "follow", &id], &["runs", "list"], &["agent", "show", &id]]
        {
            let (code, said, error) = finish(&mut in_directory(&directory, arguments));
            assert!(code == 0 && !said.is_empty(), "{arguments:?}: {said}{error}");
        }
    }
    // A server that is named is used, even if another one is running.
    let (code, _, error) = finish(in_directory(&directory, &["runs", "list"]).env("SAGGAR_URL", "http://127.0.0.1:9"));
    assert!(code == 125 && error.contains("127.0.0.1:9"), "{code} {error}");
    assert_eq!(pids[0], pids[1]);
    assert_ne!(pids[0], pids[2]);
    kill_process(Pid::from_raw(pids[2]).expect("a pid"), Signal::TERM).expect("ours");
    eventually("it stopped", || is_gone(pids[2]));
    let (code, _, error) = finish(&mut in_directory(&directory, &["runs", "list", "--url", "unix:/nowhere"]));
    assert!(code == 125 && error.contains("/nowhere"), "{code} {error}");
}

#[test]
fn a_command_whose_server_is_killed_says_that_the_run_goes_on_and_how_to_see_it() {
    let directory = new_directory();
    let ask = "{ calls = [{ tool = \"ask_human\", arguments = { question = \"Which?\" } }] }, { text = \"Done.\" }";
    agent(&directory, "[tools]\nask_human = {}", ask);
    let place = directory.join("data/own-server.json");
    let pid = || {
        let own = std::fs::read(&place).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        own.and_then(|own| own["pid"].as_i64()).and_then(|pid| i32::try_from(pid).ok())
    };
    let mut running = in_directory(&directory, &["agent", "run", "hi"]);
    let running = running.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("built");
    let asks = || finish(&mut in_directory(&directory, &["runs", "list", "--state", "asking"])).1.contains("run_");
    eventually("it asks", || pid().is_some() && asks());
    kill_process(Pid::from_raw(pid().expect("a server")).expect("a pid"), Signal::KILL).expect("ours");
    let (code, said, error) = ended(running);
    let run = said.lines().next().expect("the run").to_owned();
    assert_eq!(code, 125, "{said}{error}");
    assert!(error.contains(&format!("{run} is not lost")) && error.contains("saggar runs follow"), "{error}");
    // As it says: the next run starts the server again.
    let (code, _, error) = finish(&mut in_directory(&directory, &["agent", "run", "hi", "--detach"]));
    assert_eq!(code, 0, "{error}");
    eventually("it still asks", || finish(&mut in_directory(&directory, &["runs", "show", &run])).1.contains("Which?"));
    kill_process(Pid::from_raw(pid().expect("a server")).expect("a pid"), Signal::TERM).expect("ours");
}

/// A small repository with a failing test, and a scripted agent that mends it.
fn repository(directory: &Path) -> PathBuf {
    let repository = directory.join("project");
    std::fs::create_dir(&repository).expect("ours");
    std::fs::write(repository.join("leap.sh"), "leap() { [ $(($1 % 4)) = 0 ]; }\n").expect("ours");
    std::fs::write(repository.join("test.sh"), ". ./leap.sh\nleap 2024 && ! leap 1900 && echo passed\n").expect("ours");
    for line in
        [&["init", "-q"][..], &["add", "."], &["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]]
    {
        let status = Command::new("git").args(line).current_dir(&repository).env("HOME", directory).status();
        assert!(status.expect("git is there").success());
    }
    let turns = [
        "{ text = \"I look.\", calls = [{ tool = \"files\", arguments = { op = \"search\", path = \"/workspace\", text = \"leap()\" } }] }",
        "{ calls = [{ tool = \"shell\", arguments = { command = \"sh test.sh\", cwd = \"/workspace\" } }] }",
        "{ calls = [{ tool = \"edit\", arguments = { op = \"view\", path = \"/workspace/leap.sh\" } }] }",
        "{ calls = [{ tool = \"edit\", arguments = { op = \"replace\", path = \"/workspace/leap.sh\", old = \"= 0 ];\", new = \"= 0 ] && [ $(($1 % 100)) != 0 -o $(($1 % 400)) = 0 ];\" } }] }",
        "{ calls = [{ tool = \"shell\", arguments = { command = \"sh test.sh\", cwd = \"/workspace\" } }] }",
        "{ text = \"1900 is no leap year any more.\" }",
    ];
    agent(directory, "[tools]\nshell = {}\nfiles = {}\nedit = {}", &turns.join(", "));
    repository
}

#[test]
fn an_agent_mends_a_test_in_a_repository_which_changes_only_when_the_changes_are_applied() {
    let directory = new_directory();
    let repository = repository(&directory);
    let test = |expected: bool| {
        let passed = Command::new("sh").arg("test.sh").current_dir(&repository).output().expect("a shell");
        assert_eq!(passed.stdout == b"passed\n", expected, "{passed:?}");
    };
    test(false);
    let run = ["agent", "run", "Mend the test", "--workspace", "./project"];
    let (code, said, error) = finish(&mut in_directory(&directory, &run));
    assert_eq!(code, 0, "{said}{error}");
    assert!(said.contains("passed") && said.contains("completed"), "{said}");
    test(false);
    let changes = |what: &str| {
        let told = error.split(&format!("saggar changes {what} ")).nth(1).expect("the command");
        let words: Vec<&str> = told.split([';', '\n']).next().expect("its words").split(' ').collect();
        finish(&mut in_directory(&directory, &[&["changes", what], &words[..]].concat()))
    };
    let (code, diff, complaint) = changes("diff");
    assert!(code == 0 && diff.contains("+leap() { [ $(($1 % 4)) = 0 ] && ["), "{diff}{complaint}");
    let (code, _, complaint) = changes("apply");
    assert_eq!(code, 0, "{complaint}");
    test(true);
    // A name is one of the operator's, also if there is a directory of that name here.
    let named = ["agent", "run", "Mend the test", "--workspace", "project"];
    let (code, _, error) = finish(&mut in_directory(&directory, &named));
    assert!(code == 1 && error.contains("no workspace \"project\"") && error.contains("./project"), "{code} {error}");
    // A directory is named by its path only by a user of the host.
    let server = Server::start();
    let (code, _, error) = finish(&mut on(&server, &directory, &run));
    assert!(code == 1 && error.contains("only by a user of that host"), "{code} {error}");
    let own: Value =
        serde_json::from_slice(&std::fs::read(directory.join("data/own-server.json")).expect("written")).expect("JSON");
    let pid = own["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a pid");
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::TERM).expect("ours");
    eventually("it stopped", || is_gone(pid));
}

/// Nobody waits for it here, so it may be a zombie.
fn is_gone(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.is_empty() || status.contains("State:\tZ")
}

#[test]
fn a_server_stops_when_nothing_has_needed_it_for_a_while() {
    let mut server = Server::start_with(&["--stop-when-idle", "400ms", "--pool-max", "0"]);
    let directory = new_directory();
    // Five times as long as an idle server stays.
    agent(
        &directory,
        "[tools]\nwait = {}",
        "{ calls = [{ tool = \"wait\", arguments = { seconds = 2 } }] }, { text = \"Done.\" }",
    );
    let (code, said, error) = finish(&mut on(&server, &directory, &["agent", "run", "wait"]));
    assert_eq!(code, 0, "{said}{error}");
    assert_eq!(server.ended().code(), Some(0));
}
