//! Volumes of a server: what stays, whose they are, how much of the disk they may take, and what a killed server leaves.

mod harness;
mod http;

use harness::{is_root, not_here};
use http::{Answer, Server, command, eventually};
use serde_json::{Value, json};

const VOLUMES: &str = "/api/v1/volumes";
const SANDBOXES: &str = "/api/v1/sandboxes";
const ALLOWED: &[&str] = &["--volumes-bytes-max", "128M", "--volumes-max", "3"];

fn stdout(answer: &Value) -> &str {
    answer["stdout"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn with(name: &str, mode: &str) -> Value {
    json!({ "volumes": [{ "name": name, "at": "/data", "mode": mode }] })
}

fn detail(problem: &Value) -> &str {
    problem["detail"].as_str().unwrap_or_else(|| panic!("{problem}"))
}

fn id_of(sandbox: &str) -> &str {
    sandbox.rsplit('/').next().expect("a path")
}

/// A key of another project.
fn stranger(server: &mut Server) -> String {
    assert_eq!(server.stop(), Some(0));
    let made = command(&["key", "create", "theirs", "--project", "other", "--data-dir"]).arg(server.data()).output();
    let made = made.expect("the binary was built");
    assert!(made.status.success(), "{made:?}");
    server.begin();
    String::from_utf8(made.stdout).expect("it prints text").trim().to_owned()
}

fn as_other(server: &Server, key: &str, method: &str, path: &str, body: &Value) -> Answer {
    let headers = [format!("Authorization: Bearer {key}"), "Content-Type: application/json".to_owned()];
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    server.request_without_key(method, path, &headers, &body)
}

#[test]
fn files_stay_after_the_sandbox_the_server_and_a_pause() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let mut server = Server::start_with(ALLOWED);
    let made = server.post(VOLUMES, &json!({ "name": "data", "size": "32M" })).expect(201);
    assert_eq!(
        (made["size"].as_str(), made["sharing"].as_str(), &made["used_by"]),
        (Some("32M"), Some("exclusive"), &json!([]))
    );
    let sandbox = server.sandbox_with(&with("data", "rw"));
    assert_eq!(stdout(&server.sh(&sandbox, "echo one > /data/file && stat -c %U /data/file")), "user\n");
    let told = server.get(&sandbox).expect(200);
    assert_eq!(told["volumes"], json!([{ "name": "data", "at": "/data", "mode": "rw" }]));
    server.post(&format!("{sandbox}/pause"), &json!({})).expect(200);
    // A paused sandbox still holds it, and so does one whose server was killed.
    server.kill();
    server.begin();
    let refused = server.post(SANDBOXES, &with("data", "ro")).problem(409, "conflict");
    assert!(detail(&refused).contains(&format!("volume data is in use by sandbox {}", id_of(&sandbox))), "{refused}");
    assert_eq!(server.get(&format!("{VOLUMES}/data")).expect(200)["used_by"], json!([id_of(&sandbox)]));
    server.delete(&format!("{VOLUMES}/data")).problem(409, "conflict");
    server.post(&format!("{sandbox}/resume"), &json!({})).expect(200);
    assert_eq!(stdout(&server.sh(&sandbox, "cat /data/file; echo two >> /data/file")), "one\n");
    assert_eq!(server.delete(&sandbox).status, 200);
    // Free at once.
    let sandbox = server.sandbox_with(&with("data", "ro"));
    assert_eq!(stdout(&server.sh(&sandbox, "cat /data/file; touch /data/x 2>/dev/null || echo no")), "one\ntwo\nno\n");
    assert_eq!(server.delete(&sandbox).status, 200);
    assert_eq!(server.delete(&format!("{VOLUMES}/data")).status, 204);
    server.get(&format!("{VOLUMES}/data")).problem(404, "not_found");
    server.post(SANDBOXES, &with("data", "rw")).problem(404, "not_found");
}

#[test]
fn a_shared_volume_is_one_filesystem_for_all_its_sandboxes() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let server = Server::start_with(ALLOWED);
    server.post(VOLUMES, &json!({ "name": "many", "size": "16M", "sharing": "shared" })).expect(201);
    let sandboxes: Vec<String> = (0..3).map(|_| server.sandbox_with(&with("many", "rw"))).collect();
    for (index, sandbox) in sandboxes.iter().enumerate() {
        assert_eq!(
            stdout(&server.sh(sandbox, &format!("echo {index} > /data/{index}; cat /data/*"))).lines().count(),
            index + 1
        );
    }
    let mut users: Vec<&str> = sandboxes.iter().map(|sandbox| id_of(sandbox)).collect();
    users.sort_unstable();
    assert_eq!(server.get(VOLUMES).expect(200)["items"][0]["used_by"], json!(users));
    // One that ends is a user no more, and the others go on.
    assert_eq!(server.delete(&sandboxes[2]).status, 200);
    users.retain(|user| *user != id_of(&sandboxes[2]));
    assert_eq!(server.get(VOLUMES).expect(200)["items"][0]["used_by"], json!(users));
    // One that fills it fills it for all, and nothing else.
    let full = server
        .sh(&sandboxes[0], "dd if=/dev/zero of=/data/big bs=1M count=32 2>&1 | grep -c 'No space'; echo fine > /tmp/x");
    assert_eq!(stdout(&full), "1\n");
    assert_eq!(
        stdout(&server.sh(&sandboxes[1], "rm /data/big && echo again > /data/again && cat /data/again /data/2")),
        "again\n2\n"
    );
}

#[test]
fn another_project_neither_sees_nor_uses_nor_removes_a_volume() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let mut server = Server::start_with(ALLOWED);
    let key = stranger(&mut server);
    server.post(VOLUMES, &json!({ "name": "mine", "size": "16M" })).expect(201);
    let ask = |method: &str, path: &str, body: &Value| as_other(&server, &key, method, path, body);
    assert_eq!(ask("GET", VOLUMES, &Value::Null).expect(200)["items"], json!([]));
    // What exists elsewhere looks like what exists nowhere.
    let told = |answer: Answer, name: &str| detail(&answer.problem(404, "not_found")).replace(name, "NAME");
    for (method, body) in [("GET", Value::Null), ("DELETE", Value::Null)] {
        let path = |name: &str| format!("{VOLUMES}/{name}");
        assert_eq!(
            told(ask(method, &path("mine"), &body), "mine"),
            told(ask(method, &path("nowhere"), &body), "nowhere")
        );
    }
    let use_of = |name: &str| told(ask("POST", SANDBOXES, &with(name, "rw")), name);
    assert_eq!(use_of("mine"), use_of("nowhere"));
    // The same name is another volume there.
    ask("POST", VOLUMES, &json!({ "name": "mine", "size": "16M" })).expect(201);
    for body in [with("../other/mine", "rw"), with("..", "rw"), with("a/b", "rw")] {
        ask("POST", SANDBOXES, &body).problem(400, "invalid_request");
    }
}

#[test]
fn a_project_has_what_the_operator_allows() {
    let server = Server::start();
    let refused =
        server.post(VOLUMES, &json!({ "name": "data", "size": "16M" })).problem(422, "unsupported_capability");
    assert_eq!(detail(&refused), "this server has no volumes");
    drop(server);
    if !is_root() {
        return not_here("volumes need root");
    }
    let mut server = Server::start_with(ALLOWED);
    let key = stranger(&mut server);
    let create = |name: &str, size: &str| server.post(VOLUMES, &json!({ "name": name, "size": size }));
    let refused = create("large", "129M").problem(409, "conflict");
    assert!(detail(&refused).contains("volumes of 128M are allowed"), "{refused}");
    create("a", "64M").expect(201);
    create("b", "48M").expect(201);
    let refused = create("c", "32M").problem(409, "conflict");
    assert!(detail(&refused).contains("112M are taken"), "{refused}");
    create("c", "16M").expect(201);
    let refused = create("d", "16M").problem(409, "conflict");
    assert!(detail(&refused).contains("3 are allowed"), "{refused}");
    create("a", "16M").problem(409, "already_exists");
    assert_eq!(server.delete(&format!("{VOLUMES}/b")).status, 204);
    create("d", "48M").expect(201);
    // Another project has its own.
    as_other(&server, &key, "POST", VOLUMES, &json!({ "name": "a", "size": "128M" })).expect(201);
    for (body, code) in [
        (json!({ "name": "e", "size": "1K" }), "invalid_value"),
        (json!({ "name": "../e", "size": "16M" }), "invalid_request"),
        (json!({ "name": "e", "size": "16M", "extra": 1 }), "invalid_request"),
    ] {
        server.post(VOLUMES, &body).problem(400, code);
    }
    for at in ["/proc", "/usr/lib", "/dev/shm", "/etc", "/", "/workspace", "/home/user"] {
        let body = json!({ "volumes": [{ "name": "a", "at": at }] });
        server.post(SANDBOXES, &body).problem(400, "invalid_mount");
    }
}

#[test]
fn what_a_killed_server_left_half_made_is_collected_and_counted() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let mut server = Server::start_with(ALLOWED);
    let log = server.data().with_extension("log");
    let body = json!({ "name": "data", "size": "16M" });
    let one = format!("{VOLUMES}/data");
    for (point, left, method, path) in
        [("volume/formatted", ".new-", "POST", VOLUMES), ("volume/unnamed", ".gone-", "DELETE", one.as_str())]
    {
        if method == "DELETE" {
            server.post(VOLUMES, &body).expect(201);
        }
        server.kill();
        server.fails_at = format!("kill {point}");
        server.begin();
        let authorization = server.authorization();
        let headers = [authorization.as_str(), "Content-Type: application/json"];
        // A request whose connection is closed may not be begun.
        let mut connection = server.connect();
        http::send(&mut connection, method, path, &headers, body.to_string().as_bytes());
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&server.ended()), Some(9), "{point}");
        assert!(matches!(&entries(&server)[..], [name] if name.starts_with(left)), "{point}: {:?}", entries(&server));
        server.fails_at = String::new();
        server.log = Some(log.clone());
        server.begin();
        eventually("the rest is gone", || entries(&server).is_empty());
        let told = || std::fs::read_to_string(&log).unwrap_or_default();
        eventually("it is counted", || told().contains("half made or half removed"));
        assert_eq!(server.get(VOLUMES).expect(200)["items"], json!([]), "{point}");
        std::fs::remove_file(&log).expect("ours");
    }
}

/// What is in the directories of projects.
fn entries(server: &Server) -> Vec<String> {
    let projects = std::fs::read_dir(server.data().join("volumes")).into_iter().flatten().flatten();
    let inner = projects.flat_map(|project| std::fs::read_dir(project.path()).into_iter().flatten().flatten());
    let names = inner.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name != ".lock").collect()
}

#[test]
fn nobody_waits_for_the_files_of_another_volume() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let mut server = Server::start_with(ALLOWED);
    server.kill();
    let pipe = server.data().with_extension("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()));
    server.fails_at = "wait volume-files/slow".to_owned();
    server.fails_until = Some(pipe.clone());
    server.begin();
    for name in ["slow", "quick"] {
        server.post(VOLUMES, &json!({ "name": name, "size": "16M", "sharing": "shared" })).expect(201);
    }
    let list = |name: &str| server.get(&format!("/volumecontent/{name}/dir?path=/"));
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| list("slow"));
        assert_eq!(std::fs::read_to_string(&pipe).expect("ours"), "reached");
        // Its sandbox isn't made yet.
        assert_eq!(list("quick").status, 200);
        let sandbox = server.sandbox_with(&with("quick", "rw"));
        assert_eq!(stdout(&server.sh(&sandbox, "echo hello > /data/file; cat /data/file")), "hello\n");
        server.delete(&sandbox);
        std::fs::write(&pipe, "on").expect("ours");
        assert_eq!(slow.join().expect("it was answered").status, 200);
    });
}
