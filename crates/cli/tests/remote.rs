//! `saggar sandbox` and `saggar key` against a scripted server: their requests, output and exit status.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod harness;
mod scripted;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;

use harness::{Done, PATIENCE, Place, feed, finish};
use rustix::process::{Pid, Signal, kill_process};
use scripted::{
    EXEC, SANDBOX, STREAM, Scripted, answer, event, exec, exited, problem, sandbox, started, stream, value,
};
use serde_json::{Value, json};

const BASE: &str = "/api/v1/sandboxes/sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa";
const EXECS: &str = "POST /api/v1/sandboxes/sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa/execs";

/// A `saggar` that talks to this server, without our own settings.
fn command(place: &Place, server: &Scripted, arguments: &[&str]) -> std::process::Command {
    let mut command = place.command(arguments);
    command.env("SAGGAR_URL", &server.url).env("SAGGAR_API_KEY", "sgr_test").env("HOME", place.path("home"));
    command.env_remove("XDG_CONFIG_HOME").env_remove("SAGGAR_CA");
    command
}

fn run(server: &Scripted, arguments: &[&str]) -> Done {
    let place = Place::new();
    finish(command(&place, server, arguments).spawn().unwrap())
}

#[test]
fn no_server_is_told_with_what_to_do() {
    // Bound but not listening: connections are refused, and no other process can take the port.
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address: std::net::SocketAddr = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
    let place = Place::new();
    let url = format!("http://{address}");
    let done = finish(place.command(["sandbox", "list", "--url", &url]).spawn().unwrap());
    assert_eq!(done.code, 125);
    assert!(done.stderr.starts_with(&format!("error: no connection to {url}: Connection refused")), "{}", done.stderr);
    assert!(done.stderr.contains("\n  help: start a server with `saggar serve`"), "{}", done.stderr);
    let done = finish(place.command(["sandbox", "list", "--json", "--url", &url]).spawn().unwrap());
    assert_eq!((done.code, done.json()["error"]["code"].as_str()), (125, Some("no_connection")));
    assert_eq!(done.stderr, "");
}

#[test]
fn a_refusal_is_told_with_its_code_and_help() {
    let server = Scripted::new(|_, stream| {
        stream.write_all(&problem(404, "not_found", "no such sandbox \x1b[2J")).unwrap();
    });
    let done = run(&server, &["sandbox", "show", SANDBOX]);
    assert_eq!(done.stderr, "error: no such sandbox \\u{1b}[2J (not_found)\n  help: do this\n");
    assert_eq!((done.code, done.stdout.as_str()), (1, ""));
    let server = Scripted::new(|_, stream| stream.write_all(&problem(401, "unauthorized", "no")).unwrap());
    assert!(run(&server, &["key", "list"]).stderr.contains("SAGGAR_API_KEY"));
    for (key, expected) in [
        ("", format!("error: {} requires an API key, and SAGGAR_API_KEY is not set (unauthorized)\n", server.url)),
        ("secret", "error: the API key is not of the form sgr_… (unauthorized)\n".to_owned()),
        ("sgr_aaaabbbb", format!("error: {} doesn't accept the key sgr_aaaa…: it is ", server.url)),
    ] {
        let place = Place::new();
        let done = finish(command(&place, &server, &["key", "list"]).env("SAGGAR_API_KEY", key).spawn().unwrap());
        assert!(done.code == 1 && done.stderr.starts_with(&expected), "{done:?}");
        assert!(!done.stderr.contains("bbbb") && !done.stderr.contains("secret"), "{done:?}");
    }
    for wrong in [["show", "sbx_x"], ["kill", "/etc"], ["logs", ""]] {
        let done = run(&server, &["sandbox", wrong[0], wrong[1]]);
        assert_eq!(done.code, 125, "{wrong:?}");
    }
}

#[test]
fn create_says_the_id_and_asks_for_what_was_said() {
    let server = Scripted::table(vec![("POST /api/v1/sandboxes", value(&sandbox("running")))]);
    let flags = [
        "sandbox",
        "create",
        "--ttl",
        "1h",
        "--memory",
        "512M",
        "--label",
        "team=red",
        "--env",
        "A=b=c",
        "--network",
        "none",
        "--public-port",
        "8080",
        "--on-timeout",
        "pause",
        "--idempotency-key",
        "k1",
    ];
    let done = run(&server, &flags);
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (0, &*format!("{SANDBOX}\n"), ""));
    let asked = server.find("POST /api/v1/sandboxes");
    assert_eq!(asked.header("authorization"), Some("Bearer sgr_test"));
    assert_eq!(asked.header("idempotency-key"), Some("k1"));
    assert_eq!(
        asked.json(),
        json!({"template": "base", "labels": {"team": "red"}, "env": {"A": "b=c"}, "limits": {"memory": "512M"}, "ttl": "1h", "on_timeout": "pause", "network": "none", "auto_resume": false, "ports": {"public": [8080]}})
    );
}

#[test]
fn settings_come_from_flags_then_environment_then_file() {
    let server = Scripted::new(|_, stream| stream.write_all(&value(&json!({"items": []}))).unwrap());
    let place = Place::new();
    let file =
        place.write("home/.config/saggar/config.toml", &format!("url = {:?}\napi_key = \"sgr_file\"\n", server.url));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let list = |flags: &[&str], key: Option<&str>| {
        let mut command = command(&place, &server, &[&["key", "list"], flags].concat());
        command.env_remove("SAGGAR_URL").env_remove("SAGGAR_API_KEY").envs(key.map(|key| ("SAGGAR_API_KEY", key)));
        finish(command.spawn().unwrap())
    };
    assert_eq!(list(&[], None).code, 0);
    assert_eq!(list(&[], Some("sgr_env")).code, 0);
    assert_eq!(list(&["--api-key", "sgr_flag"], Some("sgr_env")).code, 0);
    let keys: Vec<String> =
        server.asked().iter().filter_map(|asked| asked.header("authorization").map(str::to_owned)).collect();
    assert_eq!(keys, ["Bearer sgr_file", "Bearer sgr_env", "Bearer sgr_flag"]);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let exposed = list(&[], None);
    assert!(exposed.code == 125 && exposed.stderr.contains("chmod 600"), "{}", exposed.stderr);
    assert!(!exposed.stderr.contains("sgr_file"));
    place.write("home/.config/saggar/config.toml", "uri = \"x\"\n");
    assert!(list(&[], None).stderr.contains("uri"));
}

#[test]
fn a_list_is_a_table_or_json_and_goes_over_pages() {
    let server = Scripted::new(|asked, stream| {
        let next = if asked.line.contains("cursor=") { Value::Null } else { json!("next page") };
        stream.write_all(&value(&json!({"items": [sandbox("running")], "next_cursor": next}))).unwrap();
    });
    let done = run(&server, &["sandbox", "list", "--state", "running", "--state", "paused", "--label", "team=red"]);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>(),
        ["ID", "STATE", "TEMPLATE", "NETWORK", "AGE", "LEFT", "LABELS"]
    );
    assert_eq!(lines.len(), 3);
    assert!(lines[1].starts_with(&format!("{SANDBOX}  running  base      none")) && lines[1].ends_with("team=red"));
    let asked = server.asked();
    assert_eq!(asked[0].line, "GET /api/v1/sandboxes?state=running%2Cpaused&label=team%3Dred&limit=100");
    assert!(asked[1].line.ends_with("&limit=99&cursor=next+page"), "{}", asked[1].line);
    let done = run(&server, &["sandbox", "list", "--json", "--limit", "1"]);
    assert_eq!((done.json()["items"].as_array().unwrap().len(), &done.json()["next_cursor"]), (1, &json!("next page")));
}

#[test]
fn exec_passes_streams_through_and_ends_as_the_program_did() {
    let server = Scripted::new(|asked, stream| {
        let bytes = if asked.line == EXECS {
            // The stream breaks off after the first piece.
            stream_of(&[("0-0", started()), ("3-0", json!({"type": "stdout", "text": "out"}))])
        } else {
            stream_of(&[
                ("3-0", started()),
                ("3-1", json!({"type": "stderr", "base64": "/w=="})),
                ("3-1", exited("exited", Some(7), None)),
            ])
        };
        stream.write_all(&bytes).unwrap();
    });
    let place = Place::new();
    let mut child = command(&place, &server, &["sandbox", "exec", SANDBOX, "--cwd", "/tmp", "--", "sh", "-c", "x"])
        .spawn()
        .unwrap();
    let mut stderr = Vec::new();
    std::io::Read::read_to_end(&mut child.stderr.take().unwrap(), &mut stderr).unwrap();
    let done = finish(child);
    assert_eq!((done.code, done.stdout.as_str(), stderr), (7, "out", vec![0xff]));
    assert_eq!(server.asked()[0].json()["command"], json!(["sh", "-c", "x"]));
    assert_eq!(server.asked()[0].json()["cwd"], "/tmp");
    assert_eq!(server.asked()[1].header("last-event-id"), Some("3-0"));
}

fn stream_of(events: &[(&str, Value)]) -> Vec<u8> {
    stream(events)
}

#[test]
fn the_statuses_of_exec_are_those_of_run() {
    for (end, code) in [
        (exited("signaled", None, Some(9)), 137),
        (exited("timed_out", None, Some(15)), 124),
        (exited("out_of_memory", None, Some(9)), 137),
        (exited("cancelled", None, None), 130),
        (exited("lost", None, None), 125),
    ] {
        let bytes = stream(&[("0-0", started()), ("0-0", end)]);
        let server = Scripted::table(vec![(EXECS, bytes)]);
        assert_eq!(run(&server, &["sandbox", "exec", SANDBOX, "--", "x"]).code, code);
    }
    for (status, name, code) in [(422, "program_not_found", 127), (409, "sandbox_ended", 126), (500, "internal", 125)] {
        let server = Scripted::table(vec![(EXECS, problem(status, name, "no"))]);
        assert_eq!(run(&server, &["sandbox", "exec", SANDBOX, "--", "x"]).code, code, "{name}");
    }
}

#[test]
fn exec_sends_stdin_to_its_end() {
    let (said, heard) = mpsc::sync_channel::<()>(8);
    let heard = std::sync::Mutex::new(heard);
    let server = Scripted::new(move |asked, stream| {
        if asked.line == EXECS {
            stream.write_all(&stream_of(&[("0-0", started())])).unwrap();
            // The program ends with its stdin.
            heard.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            stream.write_all(&event("0-0", &exited("exited", Some(0), None))).unwrap();
            return;
        }
        stream.write_all(&answer(204, "text/plain", b"")).unwrap();
        if asked.line.ends_with("?end=true") {
            said.send(()).unwrap();
        }
    });
    let place = Place::new();
    let mut child = command(&place, &server, &["sandbox", "exec", SANDBOX, "cat", "--json"]);
    let mut child = child.stdin(std::process::Stdio::piped()).spawn().unwrap();
    feed(&mut child, b"hello");
    assert_eq!(finish(child).code, 0);
    let asked = server.asked()[0].json();
    assert_eq!((&asked["stdin"], &asked["command"]), (&json!(true), &json!(["cat", "--json"])));
    let sent: Vec<u8> = server
        .asked()
        .iter()
        .filter(|asked| asked.line.contains("/stdin?"))
        .flat_map(|asked| asked.body.clone())
        .collect();
    assert_eq!(sent, b"hello");
}

#[test]
fn ctrl_c_interrupts_the_tree_and_a_second_one_kills_it() {
    let (said, heard) = mpsc::sync_channel::<String>(8);
    let (end, ended) = mpsc::sync_channel::<()>(1);
    let ended = std::sync::Mutex::new(ended);
    let server = Scripted::new(move |asked, stream| {
        if asked.line == EXECS {
            // Output first: once it is seen, signals are handled.
            stream
                .write_all(&stream_of(&[("0-0", started()), ("1-0", json!({"type": "stdout", "text": "."}))]))
                .unwrap();
            ended.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            stream.write_all(&event("1-0", &exited("signaled", None, Some(9)))).unwrap();
            return;
        }
        stream.write_all(&answer(204, "text/plain", b"")).unwrap();
        said.send(format!("{} {}", asked.line, String::from_utf8_lossy(&asked.body))).unwrap();
    });
    let place = Place::new();
    let mut child = command(&place, &server, &["sandbox", "exec", SANDBOX, "--", "sleep", "60"]).spawn().unwrap();
    let mut dot = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut dot).unwrap();
    for signal in ["INT", "KILL"] {
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let expected = format!("POST {BASE}/execs/{EXEC}/signal {{\"signal\":\"{signal}\",\"scope\":\"tree\"}}");
        assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), expected);
    }
    end.send(()).unwrap();
    assert_eq!(finish(child).code, 137);
}

#[test]
fn exec_in_the_background_says_the_id() {
    let server = Scripted::table(vec![(EXECS, value(&exec("running", None, None)))]);
    let done = run(&server, &["sandbox", "exec", SANDBOX, "-d", "--shell", "sleep 9 &"]);
    assert_eq!((done.code, done.stdout), (0, format!("{EXEC}\n")));
    let asked = server.find(EXECS).json();
    assert_eq!((&asked["command"], &asked["wait"]), (&json!("sleep 9 &"), &json!(false)));
}

#[test]
fn a_shell_needs_a_terminal() {
    let server = Scripted::table(vec![]);
    let done = run(&server, &["sandbox", "shell", SANDBOX]);
    assert!(done.code == 125 && done.stderr.contains("sandbox exec"), "{}", done.stderr);
    assert!(server.asked().is_empty());
}

/// A journal entry as a server sends it.
fn entry(kind: &str) -> Value {
    json!({"path": "/x", "kind": kind, "size": 5, "mode": "0755", "uid": 1000, "gid": 1000, "modified_at": "2026-11-15T12:00:00.000Z"})
}

#[test]
fn a_file_goes_in_and_comes_out_whole() {
    let server = Scripted::new(|asked, stream| {
        let bytes = match asked.line.as_str() {
            line if line.contains("/files/stat?path=%2Ftmp%2F&") => value(&entry("directory")),
            line if line.contains("/files/stat?") => value(&entry("file")),
            line if line.starts_with("PUT") => value(&json!({"bytes": 5})),
            _ => answer(200, "application/octet-stream", b"\x00\x01\xff\n\r"),
        };
        stream.write_all(&bytes).unwrap();
    });
    let place = Place::new();
    std::fs::write(place.path("a.sh"), b"\x00\x01\xff\n\r").unwrap();
    std::fs::set_permissions(place.path("a.sh"), std::fs::Permissions::from_mode(0o4750)).unwrap();
    let copy = |from: &str, to: &str| finish(command(&place, &server, &["sandbox", "cp", from, to]).spawn().unwrap());
    assert_eq!(copy("a.sh", &format!("{SANDBOX}:/tmp/")).code, 0);
    let put = server.find(&format!("PUT {BASE}/files?path=%2Ftmp%2Fa.sh&mode=0750&parents=false"));
    assert_eq!((put.body.as_slice(), put.header("content-length")), (&b"\x00\x01\xff\n\r"[..], Some("5")));
    assert_eq!(copy(&format!("{SANDBOX}:out/b"), ".").code, 0);
    assert_eq!(std::fs::read(place.path("b")).unwrap(), b"\x00\x01\xff\n\r");
    assert_eq!(std::fs::metadata(place.path("b")).unwrap().permissions().mode() & 0o7777, 0o755);
    assert_eq!(copy("a.sh", "b").code, 125);
    assert_eq!(copy("absent", &format!("{SANDBOX}:x")).code, 125);
}

#[test]
fn a_download_that_breaks_off_leaves_nothing() {
    let server = Scripted::new(|asked, stream| {
        let bytes = match asked.line.contains("/files/stat?") {
            true => value(&entry("file")),
            false => b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc".to_vec(),
        };
        stream.write_all(&bytes).unwrap();
    });
    let place = Place::new();
    let from = format!("{SANDBOX}:b");
    let done = finish(command(&place, &server, &["sandbox", "cp", &from, "here"]).spawn().unwrap());
    assert_eq!(done.code, 125);
    let names: Vec<_> = std::fs::read_dir(place.path(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["workspace"]);
}

#[test]
fn a_tree_goes_in_and_comes_out() {
    let kept = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let archive = std::sync::Arc::clone(&kept);
    let server = Scripted::new(move |asked, stream| {
        let bytes = match asked.line.as_str() {
            line if line.contains("/files/stat?path=there") => value(&entry("directory")),
            line if line.contains("/files/stat?") => problem(404, "file_not_found", "no"),
            line if line.starts_with("PUT") => {
                *archive.lock().unwrap() = asked.body.clone();
                value(&json!({"files": 2, "directories": 1, "links": 1, "bytes": 5}))
            }
            line if line.starts_with("GET") => answer(200, "application/x-tar", &archive.lock().unwrap()),
            _ => answer(204, "text/plain", b""),
        };
        stream.write_all(&bytes).unwrap();
    });
    let place = Place::new();
    place.write("tree/a", "one");
    place.write("tree/sub/b", "2\n");
    std::os::unix::fs::symlink("sub/b", place.path("tree/link")).unwrap();
    let to = format!("{SANDBOX}:new");
    let done = finish(command(&place, &server, &["sandbox", "cp", "tree", &to, "--json"]).spawn().unwrap());
    assert_eq!(done.json(), json!({"files": 2, "directories": 1, "links": 1, "bytes": 5, "skipped": 0}));
    server.find(&format!("POST {BASE}/files/mkdir"));
    server.find(&format!("PUT {BASE}/files/tree?path=new"));
    let from = format!("{SANDBOX}:there");
    let done = finish(command(&place, &server, &["sandbox", "cp", &from, ".", "--json"]).spawn().unwrap());
    assert_eq!(done.json(), json!({"files": 2, "directories": 1, "links": 1, "bytes": 5, "skipped": 0}));
    assert_eq!(std::fs::read_to_string(place.path("there/sub/b")).unwrap(), "2\n");
    assert_eq!(std::fs::read_to_string(place.path("there/link")).unwrap(), "2\n");
}

#[test]
fn logs_and_watch_print_what_happens() {
    let at = "2026-11-15T12:00:00.000Z";
    let server = Scripted::new(move |asked, stream| {
        let bytes = match asked.line.as_str() {
            line if line.ends_with("/logs") => answer(200, "text/plain", b"line\n"),
            line if line.contains("/events") => stream_of(&[
                ("1", json!({"seq": 1, "at": at, "type": "exec_started", "exec_id": EXEC, "program": "a\nb"})),
                ("2", json!({"seq": 2, "at": at, "type": "ended", "reason": "killed", "detail": ""})),
            ]),
            line if line.contains("/files/watch?path=%2Ftmp&recursive=true") => stream_of(&[
                ("", json!({"type": "watching"})),
                ("", json!({"type": "created", "path": "/tmp/x", "is_directory": true})),
            ]),
            _ => problem(404, "not_found", "no"),
        };
        stream.write_all(&bytes).unwrap();
    });
    assert_eq!(run(&server, &["sandbox", "logs", SANDBOX]).stdout, "line\n");
    let expected = format!("{at} exec_started  {EXEC} a\\nb\n{at} ended         killed\n");
    assert_eq!(run(&server, &["sandbox", "logs", "-f", SANDBOX]).stdout, expected);
    assert_eq!(run(&server, &["sandbox", "watch", SANDBOX]).stdout, expected);
    let json = run(&server, &["sandbox", "watch", SANDBOX, "--json"]).stdout;
    assert_eq!(serde_json::from_str::<Value>(json.lines().next().unwrap()).unwrap()["program"], "a\nb");
    assert_eq!(run(&server, &["sandbox", "watch", SANDBOX, "/tmp", "-r"]).stdout, "created    /tmp/x/\n");
}

#[test]
fn the_output_of_an_exec_is_shown_again() {
    let mut result = exec("exited", Some(3), None);
    result["stdout"] = "out\n".into();
    result["stderr"] = "err\n".into();
    result["stdout_dropped_bytes"] = 5.into();
    let server = Scripted::new(move |asked, stream| {
        let bytes = match asked.line.ends_with("/stream?from=start") {
            true => stream_of(&[
                ("0-0", started()),
                ("4-0", json!({"type": "stdout", "text": "out\n"})),
                ("4-0", exited("exited", Some(3), None)),
            ]),
            false => value(&result),
        };
        stream.write_all(&bytes).unwrap();
    });
    let done = run(&server, &["sandbox", "logs", SANDBOX, EXEC]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "out\n"));
    assert_eq!(done.stderr, "saggar: 5 bytes of earlier output were dropped\nerr\n");
    let done = run(&server, &["sandbox", "logs", SANDBOX, EXEC, "-f"]);
    assert_eq!((done.code, done.stdout.as_str()), (3, "out\n"));
}

#[test]
fn sandboxes_are_paused_resumed_and_killed() {
    let server = Scripted::new(|asked, stream| {
        let state = match asked.line.as_str() {
            line if line.ends_with("/pause") => "paused",
            line if line.starts_with("DELETE") => "ended",
            _ => "running",
        };
        stream.write_all(&value(&sandbox(state))).unwrap();
    });
    for (command, state) in [("pause", "paused"), ("resume", "running"), ("kill", "ended")] {
        assert_eq!(run(&server, &["sandbox", command, SANDBOX]).stdout, format!("{SANDBOX} {state}\n"));
    }
    assert_eq!(run(&server, &["sandbox", "resume", SANDBOX, "--ttl", "5m"]).code, 0);
    assert_eq!(server.asked().last().unwrap().json(), json!({"ttl": "5m"}));
    assert!(run(&server, &["sandbox", "show", SANDBOX]).stdout.contains("labels        team=red\n"));
}

#[test]
fn kill_all_ends_what_is_alive_and_has_the_labels() {
    let server = Scripted::new(|asked, stream| {
        let bytes = match asked.line.starts_with("GET") {
            true => value(&json!({"items": [sandbox("running")], "next_cursor": null})),
            false => value(&sandbox("ended")),
        };
        stream.write_all(&bytes).unwrap();
    });
    let done = run(&server, &["sandbox", "kill", "--all", "--label", "team=red"]);
    assert_eq!((done.code, done.stdout), (0, format!("{SANDBOX} ended\n")));
    let asked: Vec<String> = server.asked().into_iter().map(|asked| asked.line).collect();
    assert!(asked[0].starts_with("GET /api/v1/sandboxes?") && asked[0].contains("label=team"), "{asked:?}");
    assert_eq!(asked[1..], [format!("DELETE {BASE}")]);
    // The target must be given: by name or as all of them, not both.
    for wrong in [&["kill"][..], &["kill", "--all", SANDBOX], &["kill", "--label", "a=b", SANDBOX]] {
        assert_eq!(run(&server, &[&["sandbox"], wrong].concat()).code, 125, "{wrong:?}");
    }
    assert_eq!(run(&server, &["sandbox", "list", "-q"]).stdout, format!("{SANDBOX}\n"));
}

#[test]
fn keys_are_made_listed_and_revoked() {
    let key = json!({"id": "key_aaaaaaaaaaaaaaaaaaaaaaaaaa", "project_id": "prj_aaaaaaaaaaaaaaaaaaaaaaaaaa", "name": "ci", "prefix": "sgr_ab", "created_at": "2026-11-15T12:00:00.000Z", "last_used_at": null, "expires_at": null, "revoked_at": null});
    let mut expired = key.clone();
    expired["expires_at"] = "2026-11-15T13:00:00.000Z".into();
    let mut expiring = key.clone();
    expiring["expires_at"] = "9999-01-01T00:00:00.000Z".into();
    let mut made = key.clone();
    made["secret"] = "sgr_abcdef".into();
    let server = Scripted::table(vec![
        ("POST /api/v1/keys", value(&made)),
        ("GET /api/v1/keys", value(&json!({"items": [key.clone(), expired, expiring]}))),
        ("DELETE /api/v1/keys/key_aaaaaaaaaaaaaaaaaaaaaaaaaa", b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()),
    ]);
    assert_eq!(run(&server, &["key", "create", "ci", "--expires", "30d"]).stdout, "sgr_abcdef\n");
    assert_eq!(server.find("POST /api/v1/keys").json(), json!({"name": "ci", "expires": "30d"}));
    let listed = run(&server, &["key", "list"]).stdout;
    assert!(listed.contains("key_aaaaaaaaaaaaaaaaaaaaaaaaaa  sgr_ab  active") && !listed.contains("cdef"), "{listed}");
    let fields = |line: &str| line.split_whitespace().skip(2).map(str::to_owned).collect::<Vec<_>>().join(" ");
    let rows: Vec<String> = listed.lines().skip(1).map(fields).collect();
    assert!(
        rows[0].contains(" never never ") && rows[1].starts_with("expired") && rows[1].contains(" ago never "),
        "{listed}"
    );
    assert!(rows[2].starts_with("active") && rows[2].contains(" in "), "{listed}");
    assert_eq!(run(&server, &["key", "list", "--json"]).json()["items"][0], key);
    let revoked = run(&server, &["key", "revoke", "key_aaaaaaaaaaaaaaaaaaaaaaaaaa"]);
    assert_eq!(revoked.stdout, "key_aaaaaaaaaaaaaaaaaaaaaaaaaa revoked\n");
}

#[test]
fn ctrl_c_before_the_program_began_gives_up() {
    // A server that accepts the request and never answers: Ctrl-C ends the command, and nothing is left waiting.
    let (said, heard) = mpsc::sync_channel::<()>(1);
    let server = Scripted::new(move |_, stream| {
        stream.write_all(STREAM).unwrap();
        said.send(()).unwrap();
        let mut rest = Vec::new();
        // Ends when the client goes away.
        let _ = std::io::Read::read_to_end(stream, &mut rest);
    });
    let place = Place::new();
    let child = command(&place, &server, &["sandbox", "exec", SANDBOX, "--", "x"]).spawn().unwrap();
    heard.recv_timeout(PATIENCE).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(finish(child).code, 130);
}
