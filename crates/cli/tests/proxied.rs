//! Network mode `proxied`, with real programs against a small internet of our own (tests/network/world.py): servers on public,
//! private and metadata addresses in a network namespace. Its log shows what reached a server; what is refused must not.

mod harness;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use harness::{Done, Place, feed, finish};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const WORLD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/network/world.py");

/// A `saggar run --net proxied FLAGS -- sh -c SCRIPT` in the world, started. `prefix` is put before it.
fn start(place: &Place, prefix: &[&str], flags: &[&str], script: &str) -> Child {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "python3", WORLD]).arg(place.path("seen.log")).args(prefix);
    command.arg(env!("CARGO_BIN_EXE_saggar")).args(["run", "--net", "proxied"]).args(flags);
    command.args(["--", "/bin/sh", "-c", script]).env("SAGGAR_DATA_DIR", place.path("data"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("unshare is part of every Linux")
}

fn run(place: &Place, flags: &[&str], script: &str) -> Done {
    finish(start(place, &[], flags, script))
}

/// What servers saw, as `METHOD PATH at ADDRESS`, or `raw at ADDRESS`.
fn seen(place: &Place) -> Vec<String> {
    let text = std::fs::read_to_string(place.path("seen.log")).expect("the world writes it");
    let entry = |line: &str| {
        let entry: Value = serde_json::from_str(line).expect("JSON");
        let server = entry["server"].as_str().expect("an address").to_owned();
        match entry["raw"].as_bool() {
            Some(_) => format!("raw at {server}"),
            None => {
                let word = |name: &str| entry[name].as_str().expect("a request has one").to_owned();
                format!("{} {} at {server}", word("method"), word("path"))
            }
        }
    };
    text.lines().map(entry).collect()
}

#[test]
fn an_allowed_host_answers_and_another_is_refused_with_rule_and_remedy() {
    let place = Place::new();
    let script = "curl -sS http://good.test/plain && curl -sS https://good.test/tls && \
                  curl -sS https://evil.test/tls; curl -sS http://evil.test/plain";
    let done = run(&place, &["--allow", "good.test"], script);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(seen(&place), ["GET /plain at 203.0.113.10", "GET /tls at 203.0.113.10"]);
    for part in ["no rule allows evil.test:443", "no rule allows evil.test:80", "--allow evil.test", "egress/default"] {
        assert!(done.stdout.contains(part), "{part}: {done:?}");
    }
}

#[test]
fn flags_limit_bytes_and_requests() {
    for (flags, rule) in [
        (["--net-requests-per-minute", "2"], "egress/requests-per-minute"),
        (["--net-requests-per-minute-per-host", "2"], "egress/requests-per-minute-per-host"),
        (["--net-bytes", "600"], "egress/bytes"),
        (["--net-bytes-per-host", "600"], "egress/bytes-per-host"),
    ] {
        let place = Place::new();
        let flags = [&["--allow", "good.test"][..], &flags].concat();
        let done = run(&place, &flags, "for n in 1 2 3 4 5; do curl -sS http://good.test/$n; echo; done");
        assert!(done.stdout.contains(&format!("rule: {rule}\n")), "{rule}: {done:?}");
        assert!((1..5).contains(&seen(&place).len()), "{rule}: {:?}", seen(&place));
    }
}

#[test]
fn flags_limit_connections() {
    let script = "import socket\nheld = []\nfor n in range(3):\n    s = socket.create_connection(('good.test', 80), 20)\n    \
                  held.append(s)\n    s.sendall(b'GET / HTTP/1.1\\r\\nHost: good.test\\r\\n\\r\\n')\n    \
                  try:\n        print(s.recv(12)[9:].decode() or 'closed')\n    \
                  except ConnectionResetError:\n        print('closed')";
    for (flag, expected) in
        [("--net-connections", "200\n200\nclosed\n"), ("--net-connections-per-host", "200\n200\n429\n")]
    {
        let place = Place::new();
        let done = run(&place, &["--allow", "good.test", flag, "2"], &format!("/usr/bin/python3 -c \"{script}\""));
        assert_eq!(done.stdout, expected, "{flag}: {done:?}");
        assert_eq!(seen(&place).len(), 2, "{flag}");
    }
}

#[test]
fn without_rules_everything_is_refused() {
    let place = Place::new();
    let done =
        run(&place, &[], "curl -sS http://good.test/; curl -sS https://good.test/; curl -sS http://203.0.113.10/");
    assert_eq!(seen(&place), [""; 0]);
    assert_eq!(done.stdout.matches("egress/default").count(), 3, "{done:?}");
}

#[test]
fn a_program_that_ignores_the_proxy_variables_is_led_to_the_same_rules() {
    let place = Place::new();
    let direct = "import socket, sys\nfor host in sys.argv[1:]:\n    s = socket.create_connection((host, 80), 5)\n    \
                  s.sendall(f'GET /direct HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n'.encode())\n    \
                  print(s.recv(64).split(b' ')[1].decode())";
    let script = format!("/usr/bin/python3 -c \"{direct}\" good.test evil.test 203.0.113.11 169.254.169.254");
    let done = run(&place, &["--allow", "good.test"], &script);
    assert_eq!(done.stdout, "200\n403\n403\n403\n", "{done:?}");
    assert_eq!(seen(&place), ["GET /direct at 203.0.113.10"]);
}

#[test]
fn methods_and_paths_are_decided_per_request_inside_tls() {
    let place = Place::new();
    let script = "for url in ok/1 ok/2/3 no ok/../no ok/%2e%2e/no; do \
                  curl -sS --path-as-is -o /dev/null -w '%{http_code} ' https://good.test/$url; done; \
                  curl -sS -o /dev/null -w '%{http_code}' -X POST -d x https://good.test/ok/1";
    let done = run(&place, &["--allow", "GET good.test/ok/**"], script);
    assert_eq!(done.stdout, "200 200 403 403 403 403", "{done:?}");
    assert_eq!(seen(&place), ["GET /ok/1 at 203.0.113.10", "GET /ok/2/3 at 203.0.113.10"]);
}

#[test]
fn the_usual_clients_trust_an_inspected_host() {
    let place = Place::new();
    let python = "import urllib.request; print(urllib.request.urlopen('https://good.test/python').status)";
    let node = "fetch('https://good.test/node').then(answer => console.log(answer.status))";
    let script = format!(
        "/usr/bin/python3 -c \"{python}\"; if command -v node > /dev/null; then node -e \"{node}\"; fi; \
         wget -q -O /dev/null https://good.test/wget; git ls-remote https://good.test/repository; echo $?"
    );
    let done = run(&place, &["--allow", "GET good.test"], &script);
    let seen = seen(&place);
    for path in ["/python", "/wget", "/repository/info/refs?service=git-upload-pack"] {
        assert!(seen.contains(&format!("GET {path} at 203.0.113.10")), "{path}: {seen:?} {done:?}");
    }
    let has_node = Path::new("/usr/bin/node").exists();
    assert!(!has_node || seen.contains(&"GET /node at 203.0.113.10".to_owned()), "{seen:?} {done:?}");
    assert!(done.stdout.starts_with("200\n") && done.stdout.ends_with("0\n"), "{done:?}");
}

#[test]
fn names_that_lead_inside_are_refused_unless_the_address_is_named() {
    let place = Place::new();
    let script = "for host in private.test metadata.test 10.9.9.9 169.254.169.254; do curl -sS http://$host/; done";
    let flags = ["--allow", "*", "--allow", "private.test", "--allow", "metadata.test", "--allow", "0.0.0.0/0"];
    let done = run(&place, &flags, script);
    assert_eq!(seen(&place), [""; 0], "{done:?}");
    assert_eq!(done.stdout.matches("egress/address-private").count(), 2, "{done:?}");
    assert_eq!(done.stdout.matches("egress/address-metadata").count(), 2, "{done:?}");
    let named = Place::new();
    let done = run(&named, &["--allow", "private.test", "--allow", "10.9.9.9"], "curl -sS http://private.test/named");
    assert_eq!(seen(&named), ["GET /named at 10.9.9.9"], "{done:?}");
}

#[test]
fn rules_for_a_metadata_address_and_for_every_port_start_and_the_self_test_reaches_no_server() {
    let place = Place::new();
    let done = run(&place, &["--allow", "169.254.169.254"], "curl -sS -o /dev/null http://169.254.169.254/named");
    assert_eq!((done.code, seen(&place)), (0, vec!["GET /named at 169.254.169.254".to_owned()]), "{done:?}");
    let every = Place::new();
    let done = run(&every, &["--allow", "*:*"], "true");
    assert_eq!((done.code, seen(&every)), (0, vec![]), "{done:?}");
}

#[test]
fn ipv6_leads_to_the_same_rules() {
    let place = Place::new();
    let script = "curl -6 -sS --noproxy '*' -o /dev/null -w '%{http_code} ' http://good.test/six http://evil.test/six; \
                  curl -sS --noproxy '*' http://[2001:db8::1]/six";
    let done = run(&place, &["--allow", "good.test"], script);
    assert_eq!(seen(&place), ["GET /six at 203.0.113.10"], "{done:?}");
    for part in
        ["200 saggar: denied: no rule allows evil.test:80", "403 saggar: denied: no rule allows [2001:db8::1]:80"]
    {
        assert!(done.stdout.contains(part), "{part}: {done:?}");
    }
}

#[test]
fn many_refusals_do_not_hide_other_denials() {
    let place = Place::new();
    let script = "for number in $(seq 40); do curl -s -o /dev/null http://n$number.test/; done; mount -t tmpfs x /mnt";
    let done = run(&place, &["--json"], script);
    let denials = done.json()["denials"].as_array().expect("a list").clone();
    let is_there = |rule: &str| denials.iter().any(|denial| denial["rule"] == rule);
    assert!(is_there("seccomp/mounts") && is_there("egress/default") && is_there("events/decisions"), "{denials:?}");
    assert!(denials.len() < 40, "{denials:?}");
}

#[test]
fn a_bad_certificate_is_not_laundered() {
    let place = Place::new();
    let script = "curl -sS https://expired.test/; curl -sS https://wrong.test/";
    let done = run(&place, &["--allow", "GET expired.test", "--allow", "GET wrong.test"], script);
    assert_eq!(seen(&place), [""; 0]);
    for part in ["its certificate has expired", "its certificate is for another name"] {
        assert!(done.stdout.contains(part), "{part}: {done:?}");
    }
}

#[test]
fn a_port_of_another_protocol_is_open_only_by_its_number() {
    let place = Place::new();
    let talk = "import socket\ns = socket.create_connection(('good.test', 7000), 30)\nprint(s.recv(9))\ns.sendall(b'x')\nprint(s.recv(9))";
    let script = format!("/usr/bin/python3 -c \"{talk}\"");
    let done = run(&place, &["--allow", "good.test:7000"], &script);
    assert_eq!(done.stdout, "b'hello\\n'\nb'x'\n", "{done:?}");
    let other = Place::new();
    let done = run(&other, &["--allow", "good.test"], &script);
    // It is closed although the program says nothing: it waits for the server.
    assert!(done.stdout.starts_with("b''\n"), "{done:?}");
    assert_eq!(seen(&other), [""; 0]);
}

#[test]
fn datagrams_and_other_protocols_have_no_way() {
    let place = Place::new();
    let script = "import socket\n\
        def tried(what):\n    try:\n        what()\n        print('sent')\n    except OSError as error:\n        print(error.errno)\n\
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
        tried(lambda: udp.sendto(b'x', ('203.0.113.10', 443)))\n\
        tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))\n\
        tried(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))\n";
    let done = run(&place, &["--allow", "*"], &format!("/usr/bin/python3 -c \"{script}\""));
    // EPERM, EPERM, and whichever of EPERM and EAFNOSUPPORT the filter answers.
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert!(matches!(lines[..], ["1", "1", "1" | "97"]), "{done:?}");
}

#[test]
fn results_and_events_say_what_was_decided() {
    let place = Place::new();
    let events = place.path("events.jsonl");
    let flags = ["--json", "--events", events.to_str().unwrap(), "--allow", "GET good.test", "--deny", "evil.test"];
    let done = run(&place, &flags, "curl -s 'https://good.test/a?secret=1'; curl -s http://evil.test/b");
    let result = done.json();
    let hosts: Vec<_> = result["traffic"]
        .as_array()
        .unwrap()
        .iter()
        .map(|host| (&host["host"], &host["allowed"], &host["denied"]))
        .collect();
    assert_eq!(
        format!("{hosts:?}"),
        r#"[(String("evil.test"), Number(0), Number(1)), (String("good.test"), Number(1), Number(0))]"#
    );
    assert_eq!(result["denials"][0]["rule"], "egress/deny:evil.test", "{result}");
    assert_eq!(result["denials"].as_array().unwrap().len(), 1, "the self-test is not among them: {result}");
    let log = std::fs::read_to_string(&events).unwrap();
    let decisions: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|event: &Value| event["type"] == "decision")
        .collect();
    let told = |decision: &Value| {
        format!("{} {} {} {}", decision["verdict"], decision["host"], decision["path"], decision["rule"])
    };
    let told: Vec<String> = decisions.iter().map(told).collect();
    assert_eq!(
        told,
        [r#""allowed" "good.test" "/a" "GET good.test""#, r#""denied" "evil.test" "/b" "egress/deny:evil.test""#]
    );
    assert!(!log.contains("secret=1"), "the query is not recorded");
}

/// The egress process that belongs to a running `saggar run` below `root`.
fn egress_of(root: &Child) -> Pid {
    find_egress(root).expect("there is an egress process")
}

fn find_egress(root: &Child) -> Option<Pid> {
    let is_egress = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.split(|byte| *byte == 0).any(|word| word == b"__egress"))
    };
    let mut waiting = vec![root.id() as i32];
    while let Some(pid) = waiting.pop() {
        if is_egress(&pid) {
            return Pid::from_raw(pid);
        }
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        waiting.extend(children.split_whitespace().map(|child| child.parse::<i32>().expect("a number")));
    }
    None
}

/// Starts a script that says when it is ready and then waits for a line.
fn wait_ready(child: &mut Child) -> BufReader<std::process::ChildStdout> {
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a pipe");
    assert_eq!(line, "ready\n");
    output
}

#[test]
fn a_killed_egress_process_is_replaced_by_one_with_the_same_rules_and_nothing_goes_direct() {
    let place = Place::new();
    let script = "echo ready; read line; curl -sS -m 20 https://good.test/after; \
                  curl -sS -m 20 -d x https://good.test/posted; curl -sS -m 20 --noproxy '*' http://203.0.113.11/direct; exit 3";
    let mut child = start(&place, &[], &["--allow", "GET good.test"], script);
    let mut output = wait_ready(&mut child);
    let egress = egress_of(&child);
    kill_process(egress, Signal::KILL).unwrap();
    feed(&mut child, b"go\n");
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut output, &mut rest).unwrap();
    let done = finish(child);
    // Inspected: the authority of the second process is trusted.
    assert_eq!((seen(&place), done.code), (vec!["GET /after at 203.0.113.10".to_owned()], 3), "{rest} {done:?}");
    assert!(rest.contains("no rule allows POST /posted") && rest.contains("no rule allows 203.0.113.11:80"), "{rest}");
    assert!(done.stderr.contains("the egress process ended") && done.stderr.contains("egress/lost"), "{done:?}");
}

#[test]
fn an_egress_process_that_is_killed_again_and_again_is_given_up_and_the_network_stays_closed() {
    let place = Place::new();
    let script = "echo ready; read line; curl -sS -m 2 http://good.test/; curl -sS -m 2 --noproxy '*' http://203.0.113.10/; exit 3";
    let mut child = start(&place, &[], &["--allow", "good.test", "--allow", "203.0.113.10"], script);
    let mut output = wait_ready(&mut child);
    // It is started again five times within a minute.
    let mut before = None;
    for _ in 0..6 {
        let mut egress = find_egress(&child);
        while egress.is_none() || egress == before {
            std::thread::yield_now();
            egress = find_egress(&child);
        }
        kill_process(egress.unwrap(), Signal::KILL).unwrap();
        before = egress;
    }
    feed(&mut child, b"go\n");
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut output, &mut rest).unwrap();
    let done = finish(child);
    assert_eq!((seen(&place), done.code), (Vec::new(), 3), "{rest} {done:?}");
    assert!(done.stderr.contains("no other one was started"), "{done:?}");
}

#[test]
fn the_egress_process_is_its_own_user_confined_and_gone_with_its_sandbox() {
    let place = Place::new();
    let mut child = start(&place, &[], &["--allow", "good.test"], "echo ready; read line");
    let _output = wait_ready(&mut child);
    let egress = egress_of(&child);
    let about = format!("/proc/{}", egress.as_raw_nonzero());
    let status = std::fs::read_to_string(format!("{about}/status")).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_ne!(field("Uid:").split_whitespace().next(), Some("0"));
    assert_eq!((field("CapEff:").as_str(), field("CapBnd:").as_str()), ("0000000000000000", "0000000000000000"));
    assert_eq!((field("NoNewPrivs:").as_str(), field("Seccomp:").as_str()), ("1", "2"));
    let environment = std::fs::read(format!("{about}/environ")).unwrap();
    assert!(
        !environment.windows(15).any(|part| part == b"SAGGAR_DATA_DIR"),
        "nothing of our environment but the trusted certificates"
    );
    let open: Vec<_> = std::fs::read_dir(format!("{about}/fd"))
        .unwrap()
        .map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap())
        .collect();
    assert!(!open.iter().any(|path| path.starts_with(place.path("data"))), "{open:?}");
    // It is in cgroups of its own if the host has any, and they are removed with it.
    let record = std::fs::read_dir(place.path("data/sandboxes")).unwrap().flatten().find_map(|entry| {
        let name = entry.file_name().into_string().unwrap();
        name.starts_with("sbx_").then(|| std::fs::read_to_string(entry.path()).unwrap())
    });
    let record: Value = serde_json::from_str(record.unwrap().lines().next().unwrap()).unwrap();
    let own: Vec<&str> = record["cgroups"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .filter(|path| path.ends_with("-egress"))
        .collect();
    for path in &own {
        let members = std::fs::read_to_string(format!("{path}/cgroup.procs")).unwrap();
        assert_eq!(members.trim(), egress.as_raw_nonzero().to_string(), "{path}");
    }
    feed(&mut child, b"go\n");
    assert_eq!(finish(child).code, 0);
    assert!(!Path::new(&about).exists());
    assert!(own.iter().all(|path| !Path::new(path).exists()), "{own:?}");
}

#[test]
fn an_ordinary_user_gets_the_same_network() {
    let place = Place::new();
    let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::create_dir_all(place.path("data")).unwrap();
    for path in [place.path(""), place.path("data")] {
        std::fs::set_permissions(path, Clone::clone(&open_to_all)).unwrap();
    }
    harness::copy_program(env!("CARGO_BIN_EXE_saggar"), &place.path("saggar"));
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "python3", WORLD]).arg(place.path("seen.log"));
    command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]).arg(place.path("saggar"));
    command.args(["run", "--net", "proxied", "--allow", "GET good.test", "--", "/bin/sh", "-c"]);
    command.arg("curl -sS -o /dev/null -w '%{http_code} ' https://good.test/user; curl -sS http://evil.test/");
    command.env("SAGGAR_DATA_DIR", place.path("data/of-the-user")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = finish(command.spawn().unwrap());
    assert!(done.stdout.starts_with("200 ") && done.stdout.contains("no rule allows evil.test:80"), "{done:?}");
    assert_eq!(seen(&place), ["GET /user at 203.0.113.10"]);
}
