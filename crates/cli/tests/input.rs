//! Invalid input: errors name the problem, the object and the remedy, and nothing half-made is left behind.

mod harness;
mod traces;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use harness::{Place, finish, show};
use rustix::fs::{CWD, Mode};
use serde_json::{Value, json};
use traces::{check_nothing_left, names};

/// A place in which nothing may change: the workspace is empty and stays empty.
fn place() -> Place {
    let place = Place::new();
    place.write("file", "content");
    std::os::unix::fs::symlink("workspace", place.path("link")).expect("ours");
    std::os::unix::fs::symlink("/etc/hostname", place.path("outside")).expect("ours");
    rustix::fs::mkfifoat(CWD, place.path("fifo"), Mode::from_raw_mode(0o600)).expect("ours");
    place
}

/// An invalid command line: reported on stderr by the argument's name, before anything is examined.
fn check_usage(place: &Place, arguments: &[&str], named: &str) {
    let before = names(&place.path("."));
    let done = finish(place.command(arguments).spawn().expect("built"));
    assert_eq!((done.code, done.stdout.as_str()), (125, ""), "{arguments:?}: {done:?}");
    assert!(
        done.stderr.starts_with("error: ") && done.stderr.contains(named),
        "{arguments:?} does not name {named:?}: {}",
        done.stderr
    );
    assert_eq!(names(&place.path(".")), before, "{arguments:?} left something");
}

/// A refused spec: the same for programs and for people, and nothing is left over.
fn check_refused(place: &Place, flags: &[&str], program: &[&str], (exit, code): (i32, &str), named: &str) -> Value {
    let (before, content) = (names(&place.path(".")), names(&place.workspace()));
    let done = place.run(&[&["--json"], flags].concat(), program);
    let result = done.json();
    let error = &result["error"];
    assert_eq!((done.code, &error["code"]), (exit, &json!(code)), "{flags:?}: {result}");
    let (message, help) = (error["message"].as_str().expect("text"), error["help"].as_str().expect("text"));
    assert!(message.contains(named), "{flags:?}: {message:?} does not name {named:?}");
    assert!(help.len() > 10, "{flags:?}: {help:?} is no help");
    let people = place.run(flags, program);
    assert_eq!((people.code, people.stdout.as_str()), (exit, ""), "{flags:?}");
    // An ordinary user may also be told about unenforced limits.
    assert!(
        people.stderr.starts_with(&format!("error: {message} ({code})\n  help: {help}\n")),
        "{flags:?}: {people:?}"
    );
    for text in [message, help] {
        assert!(
            !text.contains(&show(&place.path("data"))) && !text.contains("/sys/fs/cgroup"),
            "{flags:?} tells a path of ours: {text}"
        );
    }
    let after: Vec<String> = names(&place.path(".")).into_iter().filter(|name| name != "data").collect();
    assert_eq!(after, before.into_iter().filter(|name| name != "data").collect::<Vec<_>>(), "{flags:?} left something");
    assert_eq!(names(&place.workspace()), content, "{flags:?} changed the workspace");
    assert_eq!(place.records(), Vec::<String>::new(), "{flags:?} left a record");
    result
}

const TRUE: &[&str] = &["/bin/true"];

#[test]
fn mistakes_on_the_command_line_are_our_failure_and_named() {
    let place = place();
    for (arguments, named) in [
        (&["run", "--bogus", "--", "true"][..], "--bogus"),
        (&["run", "-x", "--", "true"], "-x"),
        (&["walk"], "walk"),
        (&["run"], "<PROGRAM>"),
        (&["run", "--"], "<PROGRAM>"),
        (&["run", "--strict", "--strict", "--", "true"], "--strict"),
        (&["run", "--fs", "writable", "--", "true"], "workspace-write"),
        (&["run", "--net", "internet", "--", "true"], "none, proxied, host"),
        (&["run", "--allow", "127.1", "--", "true"], "four decimal numbers"),
        (&["run", "--allow", ".example.com", "--", "true"], "write *.example.com"),
        (&["run", "--deny", "bücher.example", "--", "true"], "punycode"),
        (&["net", "explain", "--allow", "get a.example", "a.example"], "write GET"),
        (&["net", "explain"], "TARGET"),
        (&["run", "--user", "admin", "--", "true"], "root"),
        (&["run", "--tier", "docker", "--", "true"], "namespace"),
        (&["run", "--env", "NAME", "--", "true"], "NAME"),
        (&["run", "--env", "=value", "--", "true"], "=value"),
        (&["run", "--workspace", "", "--", "true"], "--workspace"),
        (&["run", "--cwd", "relative", "--", "true"], "relative"),
        (&["run", "--cwd", "/a/../b", "--", "true"], "/a/../b"),
        (&["run", "--workspace", "workspace", "--protect", "../x", "--", "true"], "../x"),
        (&["run", "--workspace", "workspace", "--protect", "/etc", "--", "true"], "/etc"),
        (&["run", "--mount", "nowhere", "--", "true"], "HOST:GUEST"),
        (&["run", "--mount", "/usr:data", "--", "true"], "data"),
        (&["run", "--mount", ":/data", "--", "true"], "--mount"),
        (&["run", "--mount", "/usr:/data:wr", "--", "true"], "wr"),
        (&["run", "--mount", "/usr:/data/../../etc", "--", "true"], ".."),
    ] {
        check_usage(&place, arguments, named);
    }
}

#[test]
fn programs_are_told_of_mistakes_on_the_command_line_too() {
    let place = place();
    for (arguments, named) in [
        (&["run", "--json", "--bogus", "--", "true"][..], "--bogus"),
        (&["run", "--tty", "--json", "--", "true"], "--tty"),
        (&["run", "--json", "--memory", "12zb", "--", "true"], "12zb"),
    ] {
        let done = finish(place.command(arguments).spawn().expect("built"));
        let result = done.json();
        assert_eq!((done.code, result["error"]["code"].as_str()), (125, Some("invalid_value")), "{done:?}");
        assert!(result["error"]["message"].as_str().is_some_and(|message| message.contains(named)), "{done:?}");
    }
    // Everything after -- belongs to the program.
    assert!(place.run(&["--bogus"], &["true", "--json"]).stdout.is_empty());
}

#[test]
fn impossible_quantities_are_named_wherever_they_are_found() {
    let place = place();
    for flag in ["--memory", "--disk", "--output"] {
        for size in ["", "lots", "-1", "1.5G", "12Q", "1 G", "0x10", "99999999999999999999", "9999999T"] {
            check_usage(&place, &["run", flag, size, "--", "true"], flag);
        }
    }
    for (flag, values) in [
        ("--timeout", ["", "soon", "-1s", "1.5s", "1w"]),
        ("--cpus", ["", "all", "-1", "1e3", ".5"]),
        ("--pids", ["", "many", "-1", "1.5", "1K"]),
    ] {
        for value in values {
            check_usage(&place, &["run", flag, value, "--", "true"], flag);
        }
    }
    for (flag, value) in [
        ("memory", "1K"),
        ("memory", "128T"),
        ("disk", "0"),
        ("disk", "1000T"),
        ("output", "2G"),
        ("timeout", "0"),
        ("timeout", "100d"),
        ("cpus", "0"),
        ("cpus", "2000"),
        ("pids", "0"),
        ("pids", "99999999"),
        ("files", "3"),
        ("files", "99999999"),
    ] {
        check_refused(&place, &[&format!("--{flag}"), value], TRUE, (126, "invalid_value"), flag);
    }
}

#[test]
fn a_workspace_has_to_be_a_directory_of_its_own() {
    let place = place();
    let data = show(&place.path("data"));
    place.run(&[], TRUE);
    for workspace in [
        "missing",
        "link",
        "link/",
        "link/.",
        "file",
        "file/",
        "fifo",
        "/",
        "//",
        "/.",
        "/dev/null",
        "missing/deeper",
        ".",
    ] {
        // "link/." names the directory itself, through a link.
        if workspace == "link/." {
            assert_eq!(place.run(&["--workspace", workspace], TRUE).code, 0);
            continue;
        }
        for fs in ["read-only", "workspace-write", "scratch"] {
            check_refused(
                &place,
                &["--workspace", workspace, "--fs", fs],
                TRUE,
                (126, "invalid_workspace"),
                &format!("{workspace:?}"),
            );
        }
    }
    for ours in [data.clone(), format!("{data}/sandboxes")] {
        let done = place.run(&["--json", "--workspace", &ours, "--fs", "read-only"], TRUE);
        assert_eq!((done.code, &done.json()["error"]["code"]), (126, &json!("invalid_workspace")), "{ours}");
    }
}

#[test]
fn a_mount_has_to_have_a_source_and_a_place_of_its_own() {
    let place = place();
    let root = show(&place.path(""));
    for (mount, named) in [
        ("missing:/data", "\"missing\""),
        ("link:/data", "\"link\""),
        ("fifo:/data", "\"fifo\""),
        ("/:/data", "\"/\""),
        ("/usr:/", "\"/\""),
        ("/usr:/usr/x", "\"/usr/x\""),
        ("/usr:/proc", "\"/proc\""),
        ("/usr:/workspace/x", "\"/workspace/x\""),
        ("/usr:/tmp", "\"/tmp\""),
        ("/usr:/dev/x:rw", "\"/dev/x\""),
        ("/usr:/.null", "\"/.null\""),
        ("/usr:/.empty", "\"/.empty\""),
        ("/usr:/.scratch/x", "\"/.scratch/x\""),
        (&format!("{root}:/data"), "overlaps"),
    ] {
        check_refused(&place, &["--mount", mount], TRUE, (126, "invalid_mount"), named);
    }
    check_refused(
        &place,
        &["--mount", "/usr:/data", "--mount", "/etc:/data/etc"],
        TRUE,
        (126, "invalid_mount"),
        "/data/etc",
    );
}

#[test]
fn a_program_has_to_be_there_and_executable() {
    let place = place();
    let workspace = show(&place.workspace());
    for (name, content, mode) in [
        ("plain", "#!/bin/sh\n", 0o644),
        ("bare", "echo hi\n", 0o755),
        ("lost", "#!/no/such/interpreter\n", 0o755),
        ("binary", "\x7fELF\x01junk", 0o755),
        ("empty", "", 0o755),
    ] {
        let path = place.write(&format!("workspace/{name}"), content);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
    }
    let (missing, unusable) = ((127, "program_not_found"), (126, "program_not_executable"));
    for (program, expected) in [
        ("missing", missing),
        ("/missing/too", missing),
        ("./missing", missing),
        ("./lost", missing),
        ("/usr", unusable),
        ("./plain", unusable),
        ("./bare", unusable),
        ("./binary", unusable),
        ("./empty", unusable),
        ("/etc/passwd", unusable),
        ("./plain/x", unusable),
        ("/usr/bin/../../etc/passwd", unusable),
    ] {
        check_refused(&place, &["--workspace", &workspace], &[program], expected, &format!("{program:?}"));
    }
    check_refused(&place, &[], &[""], (126, "invalid_value"), "empty");
    let long = "x".repeat(100_000);
    let count = [&["/bin/sh", "-c", "echo $# ${#1}", "sh"][..], &[long.as_str(); 15]].concat();
    assert_eq!(place.run(&[], &count).stdout, "15 100000\n", "what the host's kernel takes is passed on");
}

#[test]
fn a_working_directory_has_to_be_there() {
    let place = place();
    for cwd in ["/missing", "/etc/passwd", "/root", "/proc/1/root"] {
        check_refused(&place, &["--cwd", cwd], TRUE, (126, "invalid_cwd"), &format!("{cwd:?}"));
    }
    // An existing target widens nothing: what may be written doesn't follow the link.
    let done = place.sh(
        &["--workspace", &show(&place.workspace()), "--cwd", "/"],
        "pwd; touch /x /etc/x /usr/x 2>/dev/null; ls -d /x /etc/x /usr/x 2>/dev/null",
    );
    assert_eq!(done.stdout, "/\n");
}

#[test]
fn a_stdin_file_has_to_be_a_regular_one_where_it_is_allowed() {
    let place = place();
    for stdin in [
        "missing",
        "workspace",
        "fifo",
        "outside",
        "/etc/hostname",
        "/dev/zero",
        "../../../../../etc/hostname",
        "/proc/self/environ",
    ] {
        check_refused(&place, &["--stdin", stdin], &["/bin/cat"], (126, "invalid_stdin"), &format!("{stdin:?}"));
    }
    assert_eq!(place.run(&["--stdin", "file"], &["/bin/cat"]).stdout, "content");
    assert_eq!(
        place.run(&["--stdin", "/etc/hostname", "--mount", "/etc/hostname:/data"], &["/bin/cat"]).code,
        0,
        "a mount allows it"
    );
}

#[test]
fn an_events_file_has_to_be_one_that_no_program_can_write() {
    let place = place();
    std::os::unix::fs::symlink("planted", place.path("events-link")).expect("ours");
    let workspace = show(&place.workspace());
    let mount = format!("{workspace}:/data:rw");
    check_refused(
        &place,
        &["--workspace", &workspace, "--events", "workspace/events"],
        TRUE,
        (126, "contradiction"),
        "workspace/events",
    );
    check_refused(
        &place,
        &["--workspace", &workspace, "--events", "link/events"],
        TRUE,
        (126, "contradiction"),
        "link/events",
    );
    check_refused(
        &place,
        &["--mount", &mount, "--events", "workspace/events"],
        TRUE,
        (126, "contradiction"),
        "workspace/events",
    );
    // The file itself, mounted, and already existing.
    let events = show(&place.write("events", ""));
    for (access, exit) in [(":rw", 126), ("", 0)] {
        let mount = format!("{events}:/data/e{access}");
        let done = place.run(&["--json", "--events", &events, "--mount", &mount], TRUE);
        assert_eq!(done.code, exit, "{done:?}");
        assert_eq!(done.json()["error"]["code"] == "contradiction", exit == 126, "{done:?}");
    }
    for events in ["events-link", "missing/events", "workspace", "fifo", "file/events"] {
        check_refused(&place, &["--events", events], TRUE, (126, "stream"), &format!("{events:?}"));
    }
    let done = place.run(&["--events", "-"], TRUE);
    assert_eq!((done.code, done.stdout.as_str()), (126, ""));
    assert!(done.stderr.contains("--json"), "{done:?}");
    // If the workspace isn't writable, the file may be in it.
    assert_eq!(
        place.run(&["--workspace", &workspace, "--fs", "read-only", "--events", "workspace/events"], TRUE).code,
        0
    );
}

#[test]
fn contradictions_are_refused_and_nothing_stands_in_for_what_is_not_built() {
    let place = place();
    for (flags, code, named) in [
        (&["--fs", "workspace-write"][..], "contradiction", "workspace-write"),
        (&["--fs", "scratch"], "contradiction", "scratch"),
        (&["--protect", "secret"], "contradiction", "protected path"),
        (&["--env", "A=1", "--env", "A=2"], "ambiguous_merge", "\"A\""),
        (&["--allow", "a.example"], "contradiction", "network rules"),
        (&["--net", "host", "--deny", "a.example"], "contradiction", "host"),
        (&["--tier", "vm"], "unsupported_capability", "vm"),
        (&["--tier", "wasm"], "unsupported_capability", "wasm"),
        (&["--tier", "oci"], "unsupported_capability", "oci"),
    ] {
        check_refused(&place, flags, TRUE, (126, code), named);
    }
    std::os::unix::fs::symlink("/etc", place.path("workspace/.git")).expect("ours");
    check_refused(&place, &["--workspace", &show(&place.workspace())], TRUE, (126, "invalid_protect"), ".git");
}

#[test]
fn a_spec_file_is_read_to_the_letter_or_not_at_all() {
    let place = place();
    let large = format!("# {}\n", "x".repeat(1 << 20));
    for (name, content, code, named) in [
        ("a.toml", "netwrok = \"none\"", "invalid_spec", "netwrok"),
        ("b.json", r#"{"limits": {"ram": "1G"}}"#, "invalid_spec", "ram"),
        ("c.json", r#"{"fs": "scratch", "fs": "read-only"}"#, "invalid_spec", "fs"),
        ("d.toml", "fs = \"scratch\"\nfs = \"read-only\"", "invalid_spec", "fs"),
        ("e.json", r#"{"env": {"A": "1", "A": "1"}}"#, "invalid_spec", "A"),
        ("f.json", r#"{"env": {"A": "x\u0000y"}}"#, "invalid_spec", "NUL"),
        ("g.json", r#"{"workspace": "a\u0000b"}"#, "invalid_spec", "NUL"),
        ("h.toml", "cwd = \"/a\\u0000\"", "invalid_spec", "NUL"),
        ("i.json", r#"{"limits": {"memory": "-1"}}"#, "invalid_spec", "-1"),
        ("j.json", r#"{"limits": {"pids": 1}}"#, "invalid_value", "pids"),
        ("k.json", r#"{"fs": "workspace-write"}"#, "contradiction", "workspace"),
        ("k.toml", "fs = \"scratch\"", "contradiction", "workspace"),
        ("l.json", r#"{"schema": "saggar.spec/v9"}"#, "invalid_spec", "saggar.spec/v9"),
        ("m.json", r#"{"mounts": [{"host": "/usr", "guest": "/data", "acces": "rw"}]}"#, "invalid_spec", "acces"),
        ("n.json", "{} {}", "invalid_spec", "n.json"),
        ("o.json", "[]", "invalid_spec", "o.json"),
        ("o.toml", "mounts = [[\"/usr\", \"/data\"]]", "invalid_spec", "table"),
        ("p.json", "", "invalid_spec", "p.json"),
        ("q.yaml", "fs: scratch", "invalid_spec", "q.yaml"),
        ("r", "{}", "invalid_spec", "\"r\""),
        ("s.toml", &large, "invalid_spec", "s.toml"),
    ] {
        place.write(name, content);
        check_refused(&place, &["--spec", name], TRUE, (126, code), named);
    }
    std::fs::write(place.path("t.toml"), b"fs = \"\xff\"").expect("ours");
    for (spec, named) in [("t.toml", "t.toml"), ("missing.toml", "missing.toml"), ("workspace", "workspace")] {
        check_refused(&place, &["--spec", spec], TRUE, (126, "invalid_spec"), named);
    }
    place.write("u.toml", "fs = \"scratch\"\n[limits]\nmemory = \"64M\"\n[env]\nA = \"1\"");
    for (flags, named) in [(["--fs", "read-only"], "fs"), (["--memory", "65M"], "memory"), (["--env", "A=2"], "\"A\"")]
    {
        check_refused(&place, &[&["--spec", "u.toml"], &flags[..]].concat(), TRUE, (126, "ambiguous_merge"), named);
    }
}

#[test]
fn names_that_are_not_text_are_refused_as_paths_and_passed_on_as_arguments() {
    let place = place();
    let raw = OsStr::from_bytes(b"not-\xff-text\x1b[31m");
    let run = |before: &[&OsStr], program: &[&OsStr]| {
        let arguments = [&[OsStr::new("run"), OsStr::new("--json")], before, &[OsStr::new("--")], program].concat();
        finish(place.command(arguments).spawn().expect("built"))
    };
    let echo = run(&[], &[OsStr::new("/usr/bin/printf"), OsStr::new("%s"), raw]);
    assert_eq!(echo.json()["stdout_base64"], "bm90Lf8tdGV4dBtbMzFt");
    std::fs::create_dir(place.path("").join(raw)).expect("ours");
    for flag in ["--workspace", "--cwd", "--env", "--mount", "--protect"] {
        let done = run(&[OsStr::new(flag), raw], &[OsStr::new("/bin/true")]);
        let result = done.json();
        let message = result["error"]["message"].as_str().expect("an error");
        assert_eq!((done.code, result["status"].as_str()), (125, Some("setup_failed")), "{flag}: {done:?}");
        assert!(
            message.contains("UTF-8") && message.contains(flag) && !done.stdout.contains('\x1b'),
            "{flag}: {done:?}"
        );
    }
    let lost = run(&[], &[raw]);
    assert_eq!(
        (lost.code, lost.json()["error"]["message"].as_str()),
        (127, Some("no program \"not-\u{fffd}-text\\u{1b}[31m\" in the sandbox"))
    );
    // A plain workspace may contain such names, and a stdin or events file may have one.
    std::fs::write(place.workspace().join(raw), "inside").expect("ours");
    let listed = finish(
        place
            .command(["run", "--workspace", "workspace", "--", "/bin/sh", "-c", "cat not*; rm not*"])
            .spawn()
            .expect("built"),
    );
    assert_eq!((listed.code, listed.stdout.as_str()), (0, "inside"));
    std::fs::write(place.path("").join(OsString::from(raw)).join("stdin"), "piped").expect("ours");
    let stdin = place.path("").join(raw).join("stdin");
    assert_eq!(run(&[OsStr::new("--stdin"), stdin.as_os_str()], &[OsStr::new("/bin/cat")]).json()["stdout"], "piped");
    check_nothing_left(&place, "none of these is called so");
}

#[test]
fn a_message_shows_the_escapes_of_a_name_and_does_not_send_them_to_the_terminal() {
    let place = place();
    for (flags, program) in [
        (&["--workspace", "a\x1b]52;c;eA==\x07b"][..], "true"),
        (&["--stdin", "a\x1b[2Jb"], "true"),
        (&["--events", "no/a\x1b[2J"], "true"),
        (&[], "a\x1b[2Jb"),
        (&["--spec", "a\x1b[2J.toml"], "true"),
    ] {
        let done = place.run(flags, &[program]);
        assert!(
            done.code >= 126 && !done.stderr.contains('\x1b') && done.stderr.contains("u{1b}"),
            "{flags:?}: {done:?}"
        );
    }
}

#[test]
fn a_file_that_is_a_pipe_a_device_or_missing_is_named_and_not_waited_for() {
    let place = place();
    place.write("agent.json", r#"{"name": "a", "task": "t", "model": {"provider": "scripted", "script": "fifo"}}"#);
    let server = ["--url", "http://127.0.0.1:1", "--api-key", "none"];
    for (file, wrong) in [
        ("fifo", "is a pipe, not a regular file"),
        ("/dev/zero", "is a device, not a regular file"),
        ("workspace", "is a directory, not a regular file"),
        ("absent", "does not exist"),
    ] {
        check_usage(&place, &["test", file], &format!("{file} {wrong}"));
        check_usage(&place, &["config", "show", "--config", file], &format!("{file} {wrong}"));
        let start: Vec<&str> = ["runs"].iter().chain(&server).chain(&["start", file]).copied().collect();
        check_usage(&place, &start, wrong);
    }
    // A script is read relative to its agent, in the same way.
    let start: Vec<&str> = ["runs"].iter().chain(&server).chain(&["start", "agent.json"]).copied().collect();
    check_usage(&place, &start, "is a pipe, not a regular file");
}

#[test]
fn a_spec_file_that_is_a_pipe_is_refused_and_not_waited_for() {
    let place = place();
    rustix::fs::mkfifoat(CWD, place.path("fifo.toml"), Mode::from_raw_mode(0o600)).expect("ours");
    check_refused(&place, &["--spec", "fifo.toml"], TRUE, (126, "invalid_spec"), "fifo.toml");
}

#[test]
fn escapes_in_a_spec_file_are_shown_and_not_sent_either() {
    let place = place();
    for (name, content) in [
        ("a.toml", r#"workspace = "\u001b]0;PWNED\u0007""#),
        ("b.json", r#"{"workspace": "\u001b]0;PWNED\u0007"}"#),
        ("c.json", r#"{"\u001b]0;PWNED\u0007": 1}"#),
        ("d.json", r#"{"limits": {"\u001b[2J": 1}}"#),
        ("e.toml", "\"\\u001b[2J\" = 1"),
        ("f.json", r#"{"fs": "\u001b[2J"}"#),
        ("g.json", r#"{"workspace": "/no\u202egnp.exe"}"#),
        ("h.json", r#"{"\u009b2J": 1}"#),
    ] {
        place.write(name, content);
        let done = place.run(&["--spec", name], TRUE);
        assert_eq!((done.code, done.stdout.as_str()), (126, ""), "{name}: {done:?}");
        assert!(!done.stderr.contains(['\x1b', '\x07', '\u{9b}', '\u{202e}']), "{name}: {done:?}");
        assert!(done.stderr.contains("u{"), "{name}: it is not shown: {done:?}");
    }
}
