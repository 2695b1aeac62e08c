//! Snapshots and forks of a server's sandboxes: what is in them, whose they are, and what a killed server leaves.

mod harness;
mod http;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;

use harness::image::Image;
use harness::{is_root, not_here};
use http::Server;
use serde_json::{Value, json};

const SANDBOXES: &str = "/api/v1/sandboxes";
const SNAPSHOTS: &str = "/api/v1/snapshots";

fn stdout(answer: &Value) -> &str {
    answer["stdout"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("{field} of {value}"))
}

fn take(server: &Server, sandbox: &str) -> String {
    text(&server.post(&format!("{sandbox}/snapshots"), &json!({})).expect(201), "id").to_owned()
}

fn from(server: &Server, snapshot: &str) -> String {
    server.sandbox_with(&json!({ "template": snapshot }))
}

#[test]
fn a_snapshot_has_the_files_of_the_root_and_the_programs_go_on() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let made = "mkdir -p ~/d/e /tmp/t && echo one > ~/d/e/f && ln -s f ~/d/e/l && ln ~/d/e/f ~/d/e/h && mkfifo ~/p && \
                echo tmp > /tmp/t/x && chmod 640 ~/d/e/f && touch -d @1000000000 ~/d/e/f";
    assert_eq!(stdout(&server.sh(&sandbox, made)), "");
    if is_root() {
        let body = json!({ "command": "echo opt > /opt/o; echo root > /root/r; echo x:x:7:7::/:/bin/sh >> /etc/passwd", "user": "root" });
        server.post(&format!("{sandbox}/execs"), &body).expect(200);
    }
    let counting = "i=0; while :; do i=$((i+1)); echo $i > ~/count; done";
    let body = json!({ "command": counting, "wait": false });
    server.post(&format!("{sandbox}/execs"), &body);
    // What its owner can't read is in it too, and stays as it is.
    server.sh(&sandbox, "mkdir ~/shut && echo shut > ~/shut/f && chmod 000 ~/shut/f && chmod 300 ~/shut");
    let taken = server.post(&format!("{sandbox}/snapshots"), &json!({ "labels": { "a": "b" } })).expect(201);
    let modes = "stat -c %a ~/shut ~/shut/f";
    assert_eq!(stdout(&server.sh(&sandbox, modes)), "300\n0\n");
    let id = text(&taken, "id").to_owned();
    assert_eq!(
        (taken["has_processes"].as_bool(), text(&taken, "sandbox_id")),
        (Some(false), sandbox.rsplit('/').next().unwrap())
    );
    // What changes later isn't in it.
    server.sh(&sandbox, "rm -rf ~/d /tmp/t");
    let copy = from(&server, &id);
    let seen = server.sh(
        &copy,
        "cd ~/d/e && cat f l h /tmp/t/x && stat -c '%a %U %h %Y' f && readlink l && stat -c %F ~/p && pwd && hostname; cat /etc/hostname 2>/dev/null | wc -l; pgrep -c sh",
    );
    let expected = "one\none\none\ntmp\n640 user 2 1000000000\nf\nfifo\n/home/user/d/e\nsandbox\n";
    assert!(stdout(&seen).starts_with(expected), "{seen}");
    assert_eq!(
        stdout(&server.sh(&copy, &format!("{modes}; chmod 700 ~/shut ~/shut/f; cat ~/shut/f"))),
        "300\n0\nshut\n"
    );
    if is_root() {
        let body = json!({ "command": "cat /opt/o /root/r && tail -1 /etc/passwd && ls /usr/bin/env /bin/sh && python3 -c 'print(6*7)'", "user": "root" });
        let seen = server.post(&format!("{copy}/execs"), &body).expect(200);
        assert_eq!(stdout(&seen), "opt\nroot\nx:x:7:7::/:/bin/sh\n/bin/sh\n/usr/bin/env\n42\n");
    }
    // The copy is writable, and a snapshot of it has both.
    server.sh(&copy, "echo two >> ~/d/e/f; rm ~/p; rm -rf /tmp/t; mkdir /tmp/t; echo new > /tmp/t/y");
    let second = take(&server, &copy);
    let again = from(&server, &second);
    assert_eq!(stdout(&server.sh(&again, "cat ~/d/e/f; ls ~/p 2>/dev/null; ls /tmp/t")), "one\ntwo\ny\n");
    assert_eq!(text(&server.get(&format!("{SNAPSHOTS}/{second}")).expect(200), "parent_id"), id);
    // The first one is as it was.
    let first = from(&server, &id);
    assert_eq!(stdout(&server.sh(&first, "cat ~/d/e/f; ls /tmp/t")), "one\nx\n");
}

#[test]
fn forks_have_their_parents_files_and_variables_and_not_its_programs() {
    let server = Server::start();
    let sandbox = server.sandbox_with(&json!({ "env": { "CANARY": "value" }, "labels": { "team": "red" } }));
    server.sh(&sandbox, "echo there > ~/file");
    server.post(&format!("{sandbox}/execs"), &json!({ "command": "sleep 1000", "wait": false }));
    let forked = server.post(&format!("{sandbox}/fork"), &json!({ "count": 3 })).expect(201);
    assert_eq!(forked["has_processes"], json!(false));
    let items = forked["items"].as_array().expect("a list");
    assert_eq!(items.len(), 3, "{forked}");
    for item in items {
        let fork = format!("{SANDBOXES}/{}", text(&item["sandbox"], "id"));
        let seen = server.sh(&fork, "cat ~/file; echo $CANARY; pgrep -c sleep; echo own > ~/own; ls ~");
        assert_eq!(stdout(&seen), "there\nvalue\n0\nfile\nown\n");
        assert_eq!(item["sandbox"]["labels"], json!({ "team": "red" }));
        assert_eq!(server.delete(&fork).status, 200);
    }
    // Nobody sees the snapshot that they were made from.
    assert_eq!(server.get(SNAPSHOTS).expect(200)["items"], json!([]));
    assert_eq!(stdout(&server.sh(&sandbox, "ls ~; pgrep -c sleep")), "file\n1\n");
}

#[test]
fn a_snapshot_that_is_removed_stays_for_those_who_use_it() {
    let server = Server::start();
    let sandbox = server.sandbox();
    server.sh(&sandbox, "echo there > ~/file");
    let id = take(&server, &sandbox);
    let copy = from(&server, &id);
    let removed = server.delete(&format!("{SNAPSHOTS}/{id}")).expect(200);
    assert_eq!(text(&removed, "files"), "in_use");
    server.get(&format!("{SNAPSHOTS}/{id}")).problem(404, "not_found");
    server.delete(&format!("{SNAPSHOTS}/{id}")).problem(404, "not_found");
    server.post(SANDBOXES, &json!({ "template": id })).problem(404, "not_found");
    // The live one goes on, and can be kept again.
    assert_eq!(stdout(&server.sh(&copy, "cat ~/file")), "there\n");
    let again = take(&server, &copy);
    assert_eq!(stdout(&server.sh(&from(&server, &again), "cat ~/file")), "there\n");
}

#[test]
fn snapshots_need_root_or_not_but_never_another_projects_key() {
    if !is_root() {
        return not_here("a second project is made by the operator");
    }
    let mut server = Server::start();
    let sandbox = server.sandbox();
    let id = take(&server, &sandbox);
    assert_eq!(server.stop(), Some(0));
    let made =
        http::command(&["key", "create", "theirs", "--project", "other", "--data-dir"]).arg(server.data()).output();
    let key = String::from_utf8(made.expect("the binary was built").stdout).expect("text").trim().to_owned();
    server.begin();
    let headers = [format!("Authorization: Bearer {key}"), "Content-Type: application/json".to_owned()];
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    for (method, path) in [
        ("GET", format!("{SNAPSHOTS}/{id}")),
        ("DELETE", format!("{SNAPSHOTS}/{id}")),
        ("POST", format!("{sandbox}/snapshots")),
        ("POST", format!("{sandbox}/fork")),
    ] {
        server.request_without_key(method, &path, &headers, b"{}").problem(404, "not_found");
    }
    let body = json!({ "template": id }).to_string();
    server.request_without_key("POST", SANDBOXES, &headers, body.as_bytes()).problem(404, "not_found");
    let listed = server.request_without_key("GET", SNAPSHOTS, &headers, b"").expect(200);
    assert_eq!(listed["items"], json!([]));
    server.get(&format!("{SNAPSHOTS}/{id}")).expect(200);
}

#[test]
fn a_sandbox_goes_back_in_place_and_differences_are_told() {
    let server = Server::start();
    let sandbox = server.sandbox_with(&json!({ "env": { "CANARY": "value" } }));
    server.sh(&sandbox, "mkdir ~/d; printf 'a\\nb\\n' > ~/d/text; echo gone > ~/gone; echo same > ~/same");
    let before = take(&server, &sandbox);
    server.sh(&sandbox, "printf 'a\\nc\\n' > ~/d/text; rm ~/gone; mkdir ~/new; echo x > ~/new/x; chmod 600 ~/same");
    let after = take(&server, &sandbox);
    let diff = server.get(&format!("{SNAPSHOTS}/{after}/diff?from={before}")).expect(200);
    let told: Vec<(&str, &str)> = diff["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|item| (text(item, "path"), text(item, "change")))
        .filter(|(path, _)| *path != "/home/user")
        .collect();
    let home = "/home/user";
    let expected = [
        (format!("{home}/d/text"), "changed"),
        (format!("{home}/gone"), "removed"),
        (format!("{home}/new"), "added"),
        (format!("{home}/new/x"), "added"),
        (format!("{home}/same"), "changed"),
    ];
    assert_eq!(told, expected.iter().map(|(path, change)| (path.as_str(), *change)).collect::<Vec<_>>(), "{diff}");
    assert!(diff.to_string().contains(r"-b\n+c\n"), "{diff}");
    // The destructive command, and the way back.
    let running = server.post(&format!("{sandbox}/execs"), &json!({ "command": "sleep 1000", "wait": false }));
    assert!(running.status == 201 || running.status == 200, "{running:?}");
    server.sh(&sandbox, "rm -rf ~/* ~/.??*; ls -A ~");
    let back = server.post(&format!("{sandbox}/rollback"), &json!({ "snapshot": before })).expect(200);
    assert_eq!((text(&back, "state"), text(&back, "template")), ("running", before.as_str()));
    let seen = server.sh(&sandbox, "cat ~/d/text ~/gone; ls ~; echo $CANARY; pgrep -c sleep");
    assert_eq!(stdout(&seen), "a\nb\ngone\nd\ngone\nsame\nvalue\n0\n");
    // What is recorded is as if it had been started from there, the names of its variables included.
    let same = server.sandbox_with(&json!({ "template": before, "env": { "CANARY": "other" } }));
    let hash = |path: &str| text(&server.get(path).expect(200), "policy_hash").to_owned();
    assert_eq!(hash(&sandbox), hash(&same));
    assert_eq!(server.delete(&same).status, 200);
    // The next snapshot came from the one it went back to.
    let next = take(&server, &sandbox);
    assert_eq!(text(&server.get(&format!("{SNAPSHOTS}/{next}")).expect(200), "parent_id"), before);
    // Forwards too, also while it is paused.
    server.post(&format!("{sandbox}/pause"), &json!({})).expect(200);
    server.post(&format!("{sandbox}/rollback"), &json!({ "snapshot": after })).expect(200);
    assert_eq!(stdout(&server.sh(&sandbox, "cat ~/new/x; ls ~")), "x\nd\nnew\nsame\n");
    server
        .post(&format!("{sandbox}/rollback"), &json!({ "snapshot": "snap_aaaaaaaaaaaaaaaaaaaaaaaaaa" }))
        .problem(404, "not_found");
    assert_eq!(stdout(&server.sh(&sandbox, "cat ~/new/x")), "x\n");
}

/// It is held all the time: whoever took it in between would cost the sandbox its life.
#[test]
fn a_sandbox_that_goes_back_keeps_its_volume() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let server = Server::start_with(&["--volumes-bytes-max", "128M", "--volumes-max", "3"]);
    server.post("/api/v1/volumes", &json!({ "name": "data", "size": "32M" })).expect(201);
    let wanted = json!({ "volumes": [{ "name": "data", "at": "/data", "mode": "rw" }] });
    let sandbox = server.sandbox_with(&wanted);
    let before = take(&server, &sandbox);
    server.sh(&sandbox, "echo new > ~/file; echo kept > /data/file");
    server.post(&format!("{sandbox}/rollback"), &json!({ "snapshot": before })).expect(200);
    assert_eq!(stdout(&server.sh(&sandbox, "ls ~; cat /data/file; echo more >> /data/file")), "kept\n");
    server.post(SANDBOXES, &wanted).problem(409, "conflict");
    assert_eq!(server.delete(&sandbox).status, 200);
    let next = server.sandbox_with(&wanted);
    assert_eq!(stdout(&server.sh(&next, "cat /data/file")), "kept\nmore\n");
}

/// Sends a request that kills the server at this point, and starts the next one.
fn cut_off(server: &mut Server, point: &str, path: &str, body: &Value) {
    cut_off_by(server, point, "POST", path, "application/json", body.to_string().as_bytes());
}

fn cut_off_by(server: &mut Server, point: &str, method: &str, path: &str, kind: &str, body: &[u8]) {
    assert_eq!(server.stop(), Some(0));
    server.fails_at = format!("kill {point}");
    server.begin();
    let mut connection = server.connect();
    let (authorization, kind) = (server.authorization(), format!("Content-Type: {kind}"));
    let headers = [authorization.as_str(), kind.as_str()];
    http::send(&mut connection, method, path, &headers, body);
    let mut answer = Vec::new();
    // Reset or closed: a response would have arrived before.
    let _ = connection.read_to_end(&mut answer);
    assert_eq!(String::from_utf8_lossy(&answer), "", "{point}");
    assert_eq!(server.ended().signal(), Some(9), "{point}");
    server.fails_at.clear();
    server.begin();
}

#[test]
fn a_server_that_is_killed_while_it_takes_a_snapshot_leaves_a_whole_one_or_none() {
    let mut server = Server::start();
    let sandbox = server.sandbox_with(&json!({ "ttl": "10m" }));
    server.sh(&sandbox, "echo there > ~/file");
    let mut whole = 0;
    for point in [
        "snapshot/begun",
        "snapshot/still",
        "snapshot/read",
        "snapshot/went-on",
        "build/layer",
        "snapshot/recorded",
        "import/manifest",
        "snapshot/named",
    ] {
        cut_off(&mut server, point, &format!("{sandbox}/snapshots"), &json!({}));
        whole += usize::from(point == "snapshot/named");
        // Its programs go on, and what is listed can be used.
        assert_eq!(stdout(&server.sh(&sandbox, "cat ~/file")), "there\n", "{point}");
        let listed = server.get(SNAPSHOTS).expect(200);
        let items = listed["items"].as_array().expect("a list").clone();
        assert_eq!(items.len(), whole, "{point}: {listed}");
        for item in &items {
            let copy = from(&server, text(item, "id"));
            assert_eq!(stdout(&server.sh(&copy, "cat ~/file")), "there\n");
            assert_eq!(server.delete(&copy).status, 200);
        }
    }
    let id = take(&server, &sandbox);
    assert_eq!(stdout(&server.sh(&from(&server, &id), "cat ~/file")), "there\n");
}

/// Names in these directories of all template stores of a server.
fn stored(server: &Server, parts: &[&str]) -> Vec<String> {
    let projects = std::fs::read_dir(server.data().join("templates")).into_iter().flatten().flatten();
    let names = |project: std::fs::DirEntry| {
        let of = move |part: &&str| {
            let found = std::fs::read_dir(project.path().join(part)).into_iter().flatten().flatten();
            found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        parts.iter().flat_map(of).collect::<Vec<_>>()
    };
    projects.flat_map(names).collect()
}

/// What a kill left unused is collected.
fn until_empty(server: &Server) {
    let parts = ["layers", "manifests", "snapshots", "staging", "names"];
    http::eventually("nothing is left in the store", || stored(server, &parts).is_empty());
}

#[test]
fn a_server_that_is_killed_while_it_imports_a_snapshot_has_a_whole_one_or_none() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    let sandbox = server.sandbox_with(&json!({ "ttl": "10m" }));
    server.sh(&sandbox, "echo there > ~/file");
    let original = take(&server, &sandbox);
    let file = server.get(&format!("{SNAPSHOTS}/{original}/archive")).body;
    server.delete(&format!("{SNAPSHOTS}/{original}")).expect(200);
    assert_eq!(server.delete(&sandbox).status, 200);
    for point in [
        "import/layer",
        "import/synced",
        "import/renamed",
        "import/layers",
        "snapshot/recorded",
        "import/manifest",
        "import/named",
        "snapshot/named",
    ] {
        let path = format!("{SNAPSHOTS}/import");
        cut_off_by(&mut server, point, "POST", &path, "application/octet-stream", &file);
        let listed = server.get(SNAPSHOTS).expect(200);
        let items = listed["items"].as_array().expect("a list");
        let is_whole = matches!(point, "import/named" | "snapshot/named");
        assert_eq!(items.len(), usize::from(is_whole), "{point}: {listed}");
        for item in items {
            let copy = from(&server, text(item, "id"));
            assert_eq!(stdout(&server.sh(&copy, "cat ~/file")), "there\n", "{point}");
            assert_eq!(server.delete(&copy).status, 200);
            server.delete(&format!("{SNAPSHOTS}/{}", text(item, "id"))).expect(200);
        }
        until_empty(&server);
    }
}

#[test]
fn a_server_that_is_killed_while_a_snapshot_is_removed_and_forked_leaves_whole_ones_or_none() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    for point in ["remove/name", "snapshot/unnamed", "remove/manifest", "collect/manifests", "collect/layer"] {
        let sandbox = server.sandbox_with(&json!({ "ttl": "10m" }));
        server.sh(&sandbox, "echo there > ~/file");
        let snapshot = take(&server, &sandbox);
        // While a sandbox uses its layer, no collection comes so far.
        let is_used = !matches!(point, "remove/manifest" | "collect/layer");
        let user = is_used.then(|| from(&server, &snapshot));
        assert_eq!(server.delete(&sandbox).status, 200);
        let path = format!("{SNAPSHOTS}/{snapshot}");
        let forking = user.as_ref().map(|user| (format!("{user}/fork"), json!({ "count": 3 })));
        cut_off_beside(&mut server, point, &path, forking);
        let listed = server.get(SNAPSHOTS).expect(200);
        assert_eq!(listed["items"], json!([]), "{point}: its name goes first");
        server.post(SANDBOXES, &json!({ "template": snapshot })).problem(404, "not_found");
        if let Some(user) = &user {
            assert_eq!(stdout(&server.sh(user, "cat ~/file")), "there\n", "{point}");
            let forked = server.post(&format!("{user}/fork"), &json!({ "count": 1 })).expect(201);
            let fork = format!("{SANDBOXES}/{}", text(&forked["items"][0]["sandbox"], "id"));
            assert_eq!(stdout(&server.sh(&fork, "cat ~/file")), "there\n", "{point}");
        }
        for one in server.get(SANDBOXES).expect(200)["items"].as_array().expect("a list") {
            assert_eq!(server.delete(&format!("{SANDBOXES}/{}", text(one, "id"))).status, 200);
        }
        until_empty(&server);
    }
}

/// Removes a snapshot on a server that dies of it, while its sandbox is forked.
fn cut_off_beside(server: &mut Server, point: &str, path: &str, forking: Option<(String, Value)>) {
    assert_eq!(server.stop(), Some(0));
    server.fails_at = format!("kill {point}");
    server.begin();
    let authorization = server.authorization();
    let headers = [authorization.as_str(), "Content-Type: application/json"];
    let mut connections = Vec::new();
    for (method, path, body) in forking.iter().map(|(path, body)| ("POST", path.as_str(), body.to_string())).chain([(
        "DELETE",
        path,
        String::new(),
    )]) {
        let mut connection = server.connect();
        http::send(&mut connection, method, path, &headers, body.as_bytes());
        connections.push(connection);
    }
    assert_eq!(server.ended().signal(), Some(9), "{point}");
    server.fails_at.clear();
    server.begin();
}

#[test]
fn a_server_that_is_killed_while_it_rolls_back_leaves_the_old_files_or_the_new_ones() {
    let mut server = Server::start();
    let sandbox = server.sandbox_with(&json!({ "ttl": "10m" }));
    server.sh(&sandbox, "echo old > ~/file");
    let before = take(&server, &sandbox);
    for (point, expected) in [("rollback/begun", "new\n"), ("rollback/done", "old\n")] {
        server.sh(&sandbox, "echo new > ~/file");
        cut_off(&mut server, point, &format!("{sandbox}/rollback"), &json!({ "snapshot": before }));
        assert_eq!(stdout(&server.sh(&sandbox, "cat ~/file")), expected, "{point}");
    }
    // What it was started from is told by its supervisor.
    http::eventually("the row follows", || text(&server.get(&sandbox).expect(200), "template") == before);
}

#[test]
fn images_of_the_operator_files_on_disk_and_long_histories_are_kept_too() {
    if !is_root() {
        return not_here("storage on disk needs root");
    }
    let server = Server::start_with(&["--public-templates", "shared", "--disk-storage-max", "64M"]);
    Image::in_project(&server.data(), "local")
        .system()
        .layer(|top| {
            top.write("etc/greeting", "operator");
            top.write("etc/machine-id", "of the image");
            top.write("srv/d/below", "below");
        })
        .named("shared");
    let on_disk = |template: &str| json!({ "template": template, "storage": "disk", "limits": { "disk": "32M" } });
    let as_root = |sandbox: &str, line: &str| {
        let body = json!({ "command": line, "user": "root" });
        stdout(&server.post(&format!("{sandbox}/execs"), &body).expect(200)).to_owned()
    };
    let first = server.sandbox_with(&on_disk("shared"));
    as_root(
        &first,
        "rm -rf /srv/d; mkdir /srv/d; echo canary > /etc/machine-id; echo 0 > /srv/d/0; echo changed > /etc/greeting",
    );
    let mut snapshot = take(&server, &first);
    // More than the layers that are stacked at once. Each hides something of the one before.
    for step in 1..=40 {
        let sandbox = server.sandbox_with(&json!({ "template": snapshot }));
        let line = format!(
            "rm /srv/d/{}; echo {step} > /srv/d/{step}; rm -rf /srv/n; mkdir /srv/n; echo {step} > /srv/n/{step}",
            step - 1
        );
        as_root(&sandbox, &line);
        snapshot = take(&server, &sandbox);
        assert_eq!(server.delete(&sandbox).status, 200);
    }
    let last = server.sandbox_with(&on_disk(&snapshot));
    let seen =
        as_root(&last, "cat /etc/greeting; ls /srv/d /srv/n; cat /srv/d/40; cat /etc/machine-id; stat -c %U /srv/d/40");
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines[..6], ["changed", "/srv/d:", "40", "", "/srv/n:", "40"], "{seen}");
    assert_eq!((lines[6], lines[8]), ("40", "root"), "{seen}");
    // An id of the machine is its own.
    assert!(lines[7].len() == 32 && lines[7].bytes().all(|byte| byte.is_ascii_hexdigit()), "{seen}");
    let back = server.post(&format!("{last}/rollback"), &json!({ "snapshot": snapshot })).expect(200);
    assert_eq!(text(&back, "storage"), "disk");
    assert_eq!(as_root(&last, "cat /srv/d/40"), "40\n");
    // Nothing in the store differs from its digests.
    let project = text(&back, "project_id").to_owned();
    let manifests = server.data().join("templates").join(&project).join("manifests");
    let highest = std::fs::read_dir(manifests)
        .expect("it is there")
        .map(|file| {
            std::fs::read_to_string(file.expect("an entry").path()).expect("a manifest").matches("\"entries\"").count()
        })
        .max();
    assert!(highest.is_some_and(|count| (17..=32).contains(&count)), "{highest:?}");
}

#[test]
fn snapshots_are_bounded_and_expire() {
    let server = Server::start_with(&["--snapshots-max", "2", "--snapshot-size-max", "1M"]);
    let sandbox = server.sandbox();
    let path = format!("{sandbox}/snapshots");
    server.sh(&sandbox, "dd if=/dev/urandom of=$HOME/big bs=1M count=2 2>/dev/null");
    let refused = server.post(&path, &json!({})).problem(400, "invalid_value");
    assert!(text(&refused, "detail").contains("larger than 1M"), "{refused}");
    server.sh(&sandbox, "rm ~/big; echo there > ~/file");
    let short = text(&server.post(&path, &json!({ "ttl": "1s", "name": "short" })).expect(201), "id").to_owned();
    let long = text(&server.post(&path, &json!({ "name": "short" })).expect(201), "id").to_owned();
    server.post(&path, &json!({})).problem(429, "capacity");
    // The name has moved, and stays where it is when the first one goes.
    http::eventually("it expires", || server.get(&format!("{SNAPSHOTS}/{short}")).status == 404);
    server.post(SANDBOXES, &json!({ "template": short })).problem(404, "not_found");
    assert_eq!(stdout(&server.sh(&from(&server, "short"), "cat ~/file")), "there\n");
    let listed = server.get(SNAPSHOTS).expect(200);
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
    server.delete(&format!("{SNAPSHOTS}/{long}")).expect(200);
    server.post(SANDBOXES, &json!({ "template": "short" })).problem(404, "not_found");
}

#[test]
fn two_snapshots_at_once_are_both_whole_and_a_kill_in_between_is_told() {
    let server = Server::start();
    let sandbox = server.sandbox();
    server.sh(&sandbox, "for i in $(seq 300); do echo $i > ~/$i; done");
    std::thread::scope(|scope| {
        let taking: Vec<_> = (0..2).map(|_| scope.spawn(|| take(&server, &sandbox))).collect();
        for one in taking {
            let id = one.join().expect("it was taken");
            assert_eq!(stdout(&server.sh(&from(&server, &id), "ls ~ | wc -l; cat ~/300")), "300\n300\n");
        }
    });
    std::thread::scope(|scope| {
        let forking = scope.spawn(|| server.post(&format!("{sandbox}/fork"), &json!({ "count": 4 })));
        let killing = scope.spawn(|| server.delete(&sandbox));
        assert_eq!(killing.join().expect("it was asked").status, 200);
        // Either all were made from what it had, or it was gone.
        let forked = forking.join().expect("it was asked");
        match forked.status {
            201 => {
                for item in forked.expect(201)["items"].as_array().expect("a list") {
                    let fork = format!("{SANDBOXES}/{}", text(&item["sandbox"], "id"));
                    assert_eq!(stdout(&server.sh(&fork, "cat ~/300")), "300\n");
                }
            }
            410 | 404 | 409 => {}
            other => panic!("{other}"),
        }
    });
}

#[test]
fn more_forks_than_there_is_room_for_are_refused_one_by_one() {
    let server = Server::start_with(&["--capacity", "4", "--pool-max", "0", "--pool-min", "0"]);
    let sandbox = server.sandbox();
    let forked = server.post(&format!("{sandbox}/fork"), &json!({ "count": 1000 })).expect(201);
    let items = forked["items"].as_array().expect("a list");
    let made = items.iter().filter(|item| item["sandbox"].is_object()).count();
    let refused = items.iter().filter(|item| item["problem"]["code"] == "capacity").count();
    assert_eq!((made, refused), (3, 997));
    let live = server.get(SANDBOXES).expect(200);
    assert_eq!(live["items"].as_array().map(Vec::len), Some(4), "{live}");
    server.post(&format!("{sandbox}/fork"), &json!({ "count": 1 })).problem(429, "capacity");
    server.post(&format!("{sandbox}/fork"), &json!({ "count": 1001 })).problem(400, "invalid_value");
}

/// A small disk, which is unmounted at the end.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(bytes: &str) -> Self {
        let place = http::new_directory();
        let options = format!("size={bytes},mode=0700");
        let mount =
            std::process::Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(&place).status();
        assert!(mount.is_ok_and(|status| status.success()));
        Self(place)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: what is still open there is closed with its process.
        let unmount = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(unmount.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

#[test]
fn a_full_disk_fails_a_snapshot_a_fork_and_a_pause_without_memory_and_leaves_nothing() {
    if !is_root() {
        return not_here("only root can mount a small disk");
    }
    let disk = SmallDisk::mount("48m");
    let server = Server::start_in(disk.0.clone(), &["--pool-max", "0", "--pool-min", "0"]);
    let sandbox = server.sandbox();
    let staged = || {
        let projects = std::fs::read_dir(server.data().join("templates")).into_iter().flatten().flatten();
        let of = |name: &'static str| {
            move |project: &std::path::Path| std::fs::read_dir(project.join(name)).map_or(0, Iterator::count)
        };
        projects.map(|project| of("staging")(&project.path()) + of("snapshots")(&project.path())).sum::<usize>()
    };
    let id = take(&server, &sandbox);
    server.delete(&format!("{SNAPSHOTS}/{id}")).expect(200);
    // More than the disk has. It is in the sandbox's memory.
    server.sh(&sandbox, "dd if=/dev/urandom of=$HOME/big bs=1M count=60 2>/dev/null; echo there > ~/file");
    for (path, body) in [
        (format!("{sandbox}/snapshots"), json!({})),
        (format!("{sandbox}/fork"), json!({ "count": 2 })),
        (format!("{sandbox}/pause"), json!({ "memory": false })),
    ] {
        let refused = server.post(&path, &body);
        assert!((400..600).contains(&refused.status), "{path}: {}", refused.text());
        assert!(refused.text().contains("disk"), "{path}: {}", refused.text());
        assert_eq!(staged(), 0, "{path}");
        assert_eq!(server.get(SNAPSHOTS).expect(200)["items"], json!([]), "{path}");
        assert_eq!(stdout(&server.sh(&sandbox, "cat ~/file")), "there\n", "{path}");
    }
    // With room it works again.
    server.sh(&sandbox, "rm ~/big");
    let id = take(&server, &sandbox);
    assert_eq!(stdout(&server.sh(&from(&server, &id), "cat ~/file")), "there\n");
}
