//! The server's own life cycle: first start, settings, stop, crash, restart, and backups.

mod http;

use http::{Server, command, new_directory, stdout_of};
use serde_json::{Value, json};

fn run(arguments: &[&str], environment: &[(&str, &str)]) -> (i32, String, String) {
    let output = command(arguments).envs(environment.iter().copied()).output().expect("the binary was built");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints text");
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

#[test]
fn the_first_start_prints_a_key_once_with_a_line_that_works() {
    let mut server = Server::start();
    let curl = server.printed.lines().find(|line| line.contains("curl")).expect("a line to paste").trim().to_owned();
    assert!(curl.contains(&server.key) && curl.contains(&server.address), "{curl}");
    let pasted = std::process::Command::new("sh").args(["-c", &curl]).output().expect("sh");
    let created: Value = serde_json::from_slice(&pasted.stdout).unwrap_or_else(|_| panic!("{pasted:?}"));
    assert_eq!(created["state"], "running");
    assert_eq!(server.stop(), Some(0));
    server.begin();
    assert!(!server.printed.contains("sgr_"), "{}", server.printed);
    server.get("/api/v1/sandboxes").expect(200);
}

#[test]
fn sandboxes_outlive_a_stop_and_a_kill_and_streams_go_on_where_they_were() {
    let mut server = Server::start();
    let sandbox = server.sandbox();
    let script = "i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo line $i; sleep 0.05; done; echo last";
    let started = server.post(&format!("{sandbox}/execs"), &json!({ "command": script, "wait": false })).expect(201);
    let stream = format!("{sandbox}/execs/{}/stream", started["id"].as_str().unwrap());
    let mut read = server.follow("GET", &stream, &[], b"");
    let mut events = vec![read.until("started").remove(0), read.next().expect("some output")];
    for stop in [Server::kill as fn(&mut Server), |server: &mut Server| assert_eq!(server.stop(), Some(0))] {
        stop(&mut server);
        server.begin();
        assert_eq!(server.get(&sandbox).expect(200)["state"], "running");
        let last = format!("Last-Event-ID: {}", events.last().unwrap().id);
        let mut read = server.follow("GET", &stream, &[&last], b"");
        read.until("started");
        events.push(read.next().expect("more output"));
    }
    server.sh(&sandbox, "touch /tmp/stop");
    let last = format!("Last-Event-ID: {}", events.last().unwrap().id);
    events.extend(server.follow("GET", &stream, &[&last], b"").until("exited"));
    let text = stdout_of(&events);
    let lines: Vec<&str> = text.lines().collect();
    let expected: Vec<String> =
        (1..lines.len()).map(|index| format!("line {index}")).chain(["last".to_owned()]).collect();
    assert_eq!(lines, expected, "nothing twice, nothing missing");
}

#[test]
fn a_stop_ends_open_streams_and_waits_for_no_idle_client() {
    let mut server = Server::start();
    let sandbox = server.sandbox();
    let mut events = server.follow("GET", &format!("{sandbox}/events"), &[], b"");
    events.next().expect("it was started");
    let idle = server.connect();
    let begin = std::time::Instant::now();
    assert_eq!(server.stop(), Some(0));
    while events.next().is_some() {}
    drop(idle);
    assert!(begin.elapsed() < http::PATIENCE);
    server.begin();
}

#[test]
fn every_setting_says_where_it_came_from() {
    let root = new_directory();
    let file = root.join("saggar.toml");
    std::fs::write(&file, "capacity = 50\nport = 1\n").unwrap();
    let arguments = ["config", "show", "--json", "--config", file.to_str().unwrap(), "--port", "3"];
    let (code, stdout, _) = run(&arguments, &[("SAGGAR_PORT", "2"), ("SAGGAR_POOL_MAX", "4")]);
    let shown: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(code, 0);
    assert_eq!(shown["port"], json!({ "value": "3", "from": "flag --port" }));
    assert_eq!(shown["pool_max"], json!({ "value": "4", "from": "environment SAGGAR_POOL_MAX" }));
    assert_eq!(shown["capacity"]["from"], format!("file {}", file.display()));
    assert_eq!(shown["address"], json!({ "value": "127.0.0.1", "from": "default" }));
    std::fs::remove_dir_all(root).unwrap();
}

#[test]
fn what_cannot_be_meant_is_refused_before_anything_is_opened() {
    let root = new_directory();
    let data = root.join("data");
    let data = data.to_str().unwrap();
    for (arguments, expected) in [
        (&["--address", "0.0.0.0"][..], "without encryption"),
        (&["--address", "0.0.0.0", "--tls", "true", "--auth", "off"], "any client on the network could run programs"),
        (&["--pool-min", "9"], "pool_min"),
        (&["--tls-key", "/nowhere"], "must be set together"),
        (&["--default-ttl", "soon"], "default_ttl"),
    ] {
        let all: Vec<&str> = ["serve", "--data-dir", data].iter().chain(arguments).copied().collect();
        let (code, stdout, stderr) = run(&all, &[]);
        assert_eq!((code, stdout.as_str()), (125, ""), "{stderr}");
        assert!(stderr.contains(expected) && stderr.contains("help:"), "{stderr}");
    }
    let (_, _, stderr) = run(&["serve", "--data-dir", data], &[("SAGGAR_PROT", "1")]);
    assert!(stderr.contains("SAGGAR_PROT") && stderr.contains("did you mean \"port\""), "{stderr}");
    assert!(!std::path::Path::new(data).exists());
    std::fs::remove_dir_all(root).unwrap();
}

#[test]
fn a_data_directory_has_one_server() {
    let server = Server::start();
    let data = server.data();
    let (code, _, stderr) = run(&["serve", "--port", "0", "--data-dir", data.to_str().unwrap()], &[]);
    assert_eq!(code, 125);
    assert!(stderr.contains(&format!("the data directory {} is in use by process", data.display())), "{stderr}");
}

#[test]
fn a_data_directory_without_a_store_is_told_of_as_that_and_not_as_a_loss() {
    let empty = new_directory();
    let missing = empty.join("missing");
    for directory in [&empty, &missing] {
        for command in [&["check"][..], &["check", "--accept-loss"], &["worker"], &["backup", "copy.db"]] {
            let all = [command, &["--data-dir", directory.to_str().unwrap()]].concat();
            let (code, stdout, stderr) = run(&all, &[]);
            assert_eq!((code, stdout.as_str()), (125, ""), "{all:?}: {stderr}");
            let expected = format!("error: the data directory {} has no store", directory.display());
            assert!(stderr.starts_with(&expected) && stderr.contains("help:"), "{all:?}: {stderr}");
        }
    }
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0, "something was created");
    std::fs::remove_dir_all(empty).unwrap();
}

#[test]
fn a_backup_made_while_the_server_runs_brings_everything_back() {
    let server = Server::start();
    let sandbox = server.sandbox_with(&json!({ "labels": { "kept": "yes" } }));
    server.sh(&sandbox, "echo remembered");
    server.delete(&sandbox).expect(200);
    let root = new_directory();
    let (file, data) = (root.join("copy.db"), root.join("data"));
    let (file, data) = (file.to_str().unwrap(), data.to_str().unwrap());
    let old = server.data();
    let (code, _, stderr) = run(&["backup", file, "--data-dir", old.to_str().unwrap()], &[]);
    assert_eq!(code, 0, "{stderr}");
    let again = run(&["backup", file, "--data-dir", old.to_str().unwrap()], &[]);
    assert!(again.0 == 125 && again.2.contains("already exists"), "{again:?}");
    let (code, _, stderr) = run(&["restore", file, "--data-dir", data], &[]);
    assert_eq!(code, 0, "{stderr}");
    let again = run(&["restore", file, "--data-dir", data], &[]);
    assert!(again.0 == 125 && again.2.contains("already has a store"), "{again:?}");
    let mut restored = Server::start_in(root, &[]);
    assert!(!restored.printed.contains("sgr_"), "the key is in the backup");
    restored.key.clone_from(&server.key);
    let row = restored.get(&sandbox).expect(200);
    assert_eq!((&row["state"], &row["labels"]["kept"]), (&json!("ended"), &json!("yes")));
}

#[test]
fn a_backup_says_what_it_does_not_hold() {
    let mut server = Server::start_with(&["--tls", "true", "--pool-max", "0"]);
    let (root, data) = (new_directory(), server.data());
    let (code, _, stderr) =
        run(&["backup", root.join("copy.db").to_str().unwrap(), "--data-dir", data.to_str().unwrap()], &[]);
    assert_eq!(code, 0, "{stderr}");
    for name in ["signing.key", "tls-certificate.pem", "tls-key.pem"] {
        assert!(stderr.contains(name) && data.join(name).exists(), "{name}: {stderr}");
    }
    assert!(stderr.contains("0600"), "{stderr}");
    server.stop();
    std::fs::remove_dir_all(root).unwrap();
}

#[test]
fn without_keys_none_is_made_until_they_are_asked_for() {
    let root = new_directory();
    let mut open = Server::start_in(root.clone(), &["--auth", "off", "--pool-max", "0"]);
    assert!(!open.printed.contains("sgr_"), "{}", open.printed);
    let curl = open.printed.lines().find(|line| line.contains("curl")).expect("a line to paste").trim().to_owned();
    let pasted = std::process::Command::new("sh").args(["-c", &curl]).output().expect("sh");
    let created: Value = serde_json::from_slice(&pasted.stdout).unwrap_or_else(|_| panic!("{pasted:?}"));
    open.delete(&format!("/api/v1/sandboxes/{}", created["id"].as_str().unwrap())).expect(200);
    assert_eq!(open.stop(), Some(0));
    let closed = Server::start_in(root, &["--pool-max", "0"]);
    assert!(closed.key.starts_with("sgr_"), "{}", closed.printed);
    closed.get("/api/v1/sandboxes").expect(200);
}

#[test]
fn a_key_is_made_without_one_only_where_no_server_runs() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    let sandbox = server.sandbox();
    let data = server.data();
    let make = |more: &[&str]| {
        let fixed = ["key", "create", "mine", "--data-dir", data.to_str().unwrap()];
        run(&fixed.iter().chain(more).copied().collect::<Vec<_>>(), &[])
    };
    let (code, stdout, stderr) = make(&[]);
    assert_eq!((code, stdout.as_str()), (125, ""), "{stderr}");
    assert!(stderr.contains("in use by process") && stderr.contains("help:"), "{stderr}");
    assert_eq!(server.stop(), Some(0));
    let (code, stdout, stderr) = make(&[]);
    assert_eq!(code, 0, "{stderr}");
    let expired = make(&["--expires", "1ms", "--json"]);
    let expired: Value = serde_json::from_str(&expired.1).unwrap_or_else(|_| panic!("{expired:?}"));
    server.begin();
    stdout.trim().clone_into(&mut server.key);
    assert_eq!(server.get(&sandbox).expect(200)["state"], "running");
    let old = format!("Authorization: Bearer {}", expired["secret"].as_str().unwrap());
    server.request_without_key("GET", &sandbox, &[&old], b"").problem(401, "unauthorized");
    let nowhere = new_directory();
    let (code, _, stderr) = run(&["key", "create", "x", "--data-dir", nowhere.to_str().unwrap()], &[]);
    assert!(code == 125 && stderr.contains("no store"), "{stderr}");
    assert_eq!(std::fs::read_dir(&nowhere).unwrap().count(), 0);
    std::fs::remove_dir_all(nowhere).unwrap();
}

/// The lines of a JSON log about this route, once there are that many.
fn lines_about(log: &std::path::Path, route: &str, count: usize) -> Vec<Value> {
    let mut found: Vec<Value> = Vec::new();
    http::eventually("it is logged", || {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON"));
        found = lines.filter(|line: &Value| line["route"] == route).collect();
        found.len() >= count
    });
    found
}

#[test]
fn every_request_is_a_line_that_says_who_asked_what_and_holds_no_secret() {
    let mut server = Server::start_with(&["--log-format", "json", "--pool-max", "0"]);
    let log = server.data().join("log");
    assert_eq!(server.stop(), Some(0));
    server.log = Some(log.clone());
    server.begin();
    let sandbox = server.sandbox();
    let id = sandbox.rsplit('/').next().unwrap();
    server.put(&format!("{sandbox}/files?path=private-name"), b"private-content").expect(200);
    server.get("/health").expect(200);
    let run = "/api/v1/runs/run_aaaaaaaaaaaaaaaaaaaaaaaaaa";
    let answer = server.get(run);
    assert_eq!(answer.status, 404);
    server.request_without_key("GET", &sandbox, &["Authorization: Bearer sgr_wrong-key"], b"");
    let [written] = &lines_about(&log, "/api/v1/sandboxes/{id}/files", 1)[..] else { panic!("more than one") };
    let keys = server.get("/api/v1/keys").expect(200);
    for (field, expected) in [
        ("level", json!("INFO")),
        ("method", json!("PUT")),
        ("status", json!(200)),
        ("peer", json!("127.0.0.1")),
        ("sandbox", json!(id)),
        ("key", keys["items"][0]["id"].clone()),
    ] {
        assert_eq!(written[field], expected, "{field}: {written}");
    }
    assert!(written["elapsed_ms"].is_u64() && written["request"].as_str().unwrap().starts_with("req_"), "{written}");
    let of_run = lines_about(&log, "/api/v1/runs/{id}", 1).remove(0);
    assert_eq!(of_run["run"], "run_aaaaaaaaaaaaaaaaaaaaaaaaaa", "{of_run}");
    assert_eq!(of_run["request"], answer.header("x-request-id").unwrap());
    // The client did not authenticate, so the log names no key.
    let refused = lines_about(&log, "/api/v1/sandboxes/{id}", 1).remove(0);
    assert_eq!((&refused["status"], &refused["key"]), (&json!(401), &Value::Null), "{refused}");
    let text = std::fs::read_to_string(&log).unwrap();
    for secret in [server.key.as_str(), "sgr_", "private-name", "private-content", "\"/health\""] {
        assert!(!text.contains(secret), "{secret} in\n{text}");
    }
}

#[test]
fn a_plain_request_to_a_tls_port_and_tls_to_a_plain_one_are_told_in_words() {
    let list = |url: &str| {
        let (code, stdout, stderr) = run(&["sandbox", "list", "--url", url], &[]);
        assert!(code != 0 && stdout.is_empty(), "{stdout}");
        stderr
    };
    let secure = Server::start_with(&["--tls", "true", "--pool-max", "0"]);
    let problem = secure.request_without_key("GET", "/health", &[], b"").expect(400);
    assert_eq!(problem["help"], "use https:// in the URL", "{problem}");
    let told = list(&format!("http://{}", secure.address));
    assert!(told.contains("sent to an HTTPS port") && told.contains("use https://"), "{told}");
    let plain = Server::start_with(&["--pool-max", "0"]);
    let told = list(&format!("https://{}", plain.address));
    assert!(told.contains("speaks plain HTTP, not HTTPS") && told.contains("use http://"), "{told}");
    plain.get("/health").expect(200);
    drop(plain);
    stop_tls(secure);
}

/// The harness has no TLS client, so it can't end sandboxes there; there are none.
fn stop_tls(mut server: Server) {
    server.stop();
}

#[test]
fn what_kubernetes_sets_does_not_keep_it_from_starting() {
    let theirs = [
        ("SAGGAR_PORT", "tcp://10.0.0.1:7420"),
        ("SAGGAR_SERVICE_HOST", "10.0.0.1"),
        ("SAGGAR_PORT_7420_TCP_PORT", "7420"),
    ];
    let (code, stdout, _) = run(&["config", "show"], &theirs);
    assert!(code == 0 && stdout.contains("port"), "{stdout}");
    let (code, _, stderr) = run(&["config", "show"], &[("SAGGAR_PROT", "1")]);
    assert!(code != 0 && stderr.contains("did you mean"), "{stderr}");
}

#[test]
fn tls_is_spoken_with_a_certificate_made_here() {
    let mut server = Server::start_with(&["--tls"]);
    // The line to paste verifies the certificate.
    let curl = server.printed.lines().find(|line| line.contains("curl")).expect("a line to paste").trim();
    let curl = curl.replace("-X POST", "").replace("/api/v1/sandboxes", "/health");
    let pasted = std::process::Command::new("sh").args(["-c", &curl]).output().expect("sh");
    assert!(curl.contains("--cacert") && pasted.stdout.starts_with(b"{\"status\":\"ok\""), "{curl}: {pasted:?}");
    let fingerprint =
        server.printed.lines().find_map(|line| line.strip_prefix("certificate SHA-256 ")).unwrap().to_owned();
    let script = "import hashlib, socket, ssl, sys\n\
        host, port = sys.argv[1].split(':')\n\
        context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE\n\
        context.set_alpn_protocols(['h2', 'http/1.1'] if sys.argv[2] == 'h2' else ['http/1.1'])\n\
        s = context.wrap_socket(socket.create_connection((host, int(port))), server_hostname='localhost')\n\
        print(s.selected_alpn_protocol(), ':'.join('%02X' % b for b in hashlib.sha256(s.getpeercert(True)).digest()))\n\
        if sys.argv[2] != 'h2':\n\
        \x20 s.sendall(b'GET /health HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')\n\
        \x20 print(s.recv(4096).split(b'\\r\\n')[0].decode())\n";
    let ask = |address: &str, alpn: &str| {
        let output =
            std::process::Command::new("python3").args(["-c", script, address, alpn]).output().expect("python3");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(ask(&server.address, "h1"), format!("http/1.1 {fingerprint}\nHTTP/1.1 200 OK\n"));
    assert_eq!(ask(&server.address, "h2"), format!("h2 {fingerprint}\n"));
    // The same certificate after a restart, so that it can be pinned.
    assert_eq!(server.stop(), Some(0));
    server.begin();
    assert!(server.printed.contains(&fingerprint));
    server.stop();
}

#[test]
fn a_data_directory_is_checked_beside_its_server_and_lost_writes_stop_the_next_start() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    let data = server.data();
    let data = data.to_str().unwrap();
    let check = |more: &[&str]| run(&[&["check", "--data-dir", data], more].concat(), &[]);
    let agent = json!({ "agent": {
        "name": "a", "task": "t", "tools": { "ask_human": {} },
        "model": { "provider": "scripted", "script": { "turns": [
            { "text": "", "calls": [{ "tool": "ask_human", "arguments": { "question": "?" } }] }, { "text": "Done." },
        ] } },
    } });
    let asking = server.post("/api/v1/runs", &agent).expect(201)["id"].as_str().unwrap().to_owned();
    let state = |server: &Server| server.get(&format!("/api/v1/runs/{asking}")).expect(200);
    http::eventually("it asks", || state(&server)["state"] == "asking");
    let (code, stdout, stderr) = check(&["--json"]);
    let report: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout} {stderr}"));
    assert_eq!((code, &report["is_sound"], &report["runs"]), (0, &json!(true), &json!(1)), "{report}");
    server.kill();
    let log = server.data().join("saggar.db-wal");
    let mut bytes = std::fs::read(&log).unwrap();
    let middle = bytes.len() - 2000;
    bytes[middle] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let (code, stdout, _) = check(&[]);
    assert!(code == 1 && stdout.contains("acknowledged writes are lost"), "{stdout}");
    let (code, _, stderr) = run(&["serve", "--data-dir", data, "--port", "0"], &[]);
    assert!(code == 125 && stderr.contains("acknowledged writes are lost"), "{stderr}");
    assert!(stderr.contains("saggar check --accept-loss"), "{stderr}");
    let (code, stdout, stderr) = check(&["--accept-loss"]);
    assert!(code == 0 && stdout.contains("accepted the loss"), "{stdout} {stderr}");
    server.begin();
    let blocked = state(&server);
    assert_eq!((&blocked["state"], &blocked["blocked"]["kind"]), (&json!("parked"), &json!("restored")), "{blocked}");
    server.post(&format!("/api/v1/runs/{asking}/cancel"), &json!({})).expect(202);
    http::eventually("it is over", || state(&server)["state"] == "finished");
}
