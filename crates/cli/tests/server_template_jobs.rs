//! Templates through a server: listed, named and removed by a project; imported by jobs that are bounded, told about and cancelled,
//! from registries that the operator allows alone.

mod harness;
mod http;
#[allow(dead_code)]
#[path = "../../image/tests/images/image.rs"]
mod image;
#[allow(dead_code)]
#[path = "../../image/tests/images/tar.rs"]
mod tar;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::process::Stdio;

use harness::{is_root, not_here};
use http::{Server, command, eventually};
use image::Image;
use serde_json::{Value, json};
use tar::{Head, Tar};

const TEMPLATES: &str = "/api/v1/templates";
const JOBS: &str = "/api/v1/template-jobs";
const SANDBOXES: &str = "/api/v1/sandboxes";

/// A shell and a file, as an archive of an image layout.
fn archive(greeting: &str) -> Vec<u8> {
    let busybox = std::fs::read("/bin/busybox").expect("make setup-test installs it");
    let programs = ["sh", "cat", "sleep"]
        .iter()
        .fold(Tar::new().add(&Head { mode: 0o755, ..Head::new("bin/busybox", b'0') }, &busybox), |tar, name| {
            tar.link(&format!("bin/{name}"), "busybox")
        });
    let place = http::new_directory();
    Image::new([programs.end(), Tar::new().file("greeting", greeting.as_bytes()).end()]).layout(&place.join("oci"));
    let file = place.join("image.tar");
    let packed = Command::new("tar").arg("-cf").arg(&file).arg("-C").arg(place.join("oci")).arg(".").status();
    assert!(packed.expect("tar is there").success());
    let bytes = std::fs::read(&file).expect("it was written");
    std::fs::remove_dir_all(&place).expect("ours");
    bytes
}

fn upload(server: &Server, name: &str, archive: &[u8]) -> Value {
    let path = format!("{JOBS}/upload?name={name}");
    let job = server.request("POST", &path, &["Content-Type: application/x-tar"], archive).expect(202);
    ended(server, &job)
}

/// The job when it is over.
fn ended(server: &Server, job: &Value) -> Value {
    let path = format!("{JOBS}/{}", job["id"].as_str().unwrap_or_else(|| panic!("{job}")));
    let mut last = Value::Null;
    eventually("the job is over", || {
        last = server.get(&path).expect(200);
        !matches!(last["state"].as_str(), Some("running" | "waiting"))
    });
    last
}

fn names(server: &Server) -> Vec<String> {
    let list = server.get(TEMPLATES).expect(200);
    let items = list["items"].as_array().unwrap_or_else(|| panic!("{list}")).clone();
    items.iter().map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn an_uploaded_image_is_listed_named_used_and_removed() {
    let server = Server::start();
    let job = upload(&server, "demo:1", &archive("hello"));
    assert_eq!((job["state"].as_str(), job["steps"].as_u64()), (Some("succeeded"), Some(2)), "{job}");
    assert_eq!(names(&server), ["demo:1"]);
    let log = server.get(&format!("{JOBS}/{}/log", job["id"].as_str().expect("an id"))).expect(200);
    let lines: Vec<&str> =
        log["items"].as_array().expect("lines").iter().filter_map(|line| line["text"].as_str()).collect();
    assert!(lines[0].starts_with("layer 1 of 2: sha256:"), "{lines:?}");
    assert!(lines.last().is_some_and(|line| line.starts_with("imported demo:1: sha256:")), "{lines:?}");
    let mut events =
        server.follow("GET", &format!("{JOBS}/{}/log?from=1", job["id"].as_str().expect("an id")), &[], b"");
    let mut followed = Vec::new();
    while let Some(event) = events.next() {
        followed.push(event.data["text"].as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(followed, lines[1..]);
    // Another name, and what each says.
    server
        .request("PUT", &format!("{TEMPLATES}/demo"), &["Content-Type: application/json"], br#"{"from": "demo:1"}"#)
        .expect(200);
    let shown = server.get(&format!("{TEMPLATES}/demo")).expect(200);
    assert_eq!((&shown["id"], shown["public"].as_bool()), (&job["template"], Some(false)), "{shown}");
    assert_eq!(shown["contents"]["layers"].as_array().map(Vec::len), Some(2), "{shown}");
    let sandbox = server.sandbox_with(&json!({ "template": "demo" }));
    assert_eq!(server.sh(&sandbox, "cat /greeting")["stdout"], "hello");
    let removed = |name: &str| server.delete(&format!("{TEMPLATES}/{name}")).expect(200)["template"].clone();
    assert_eq!(removed("demo:1"), "named");
    assert_eq!(removed("demo"), "in_use");
    assert_eq!(server.sh(&sandbox, "cat /greeting")["stdout"], "hello", "what runs keeps its template");
    server.get(&format!("{TEMPLATES}/demo")).problem(404, "not_found");
    server.delete(&format!("{TEMPLATES}/demo")).problem(404, "not_found");
    server.delete(&sandbox);
    assert_eq!(names(&server), [""; 0]);
    let layers = || {
        let projects = std::fs::read_dir(server.data().join("templates")).expect("there is one").flatten();
        projects.flat_map(|project| std::fs::read_dir(project.path().join("layers")).into_iter().flatten()).count()
    };
    eventually("the template is gone with its last sandbox", || layers() == 0);
    let missing =
        server.request("PUT", &format!("{TEMPLATES}/x"), &["Content-Type: application/json"], br#"{"from": "demo"}"#);
    missing.problem(404, "not_found");
    let built_in = server.request(
        "PUT",
        &format!("{TEMPLATES}/base"),
        &["Content-Type: application/json"],
        br#"{"from": "demo"}"#,
    );
    built_in.problem(404, "not_found");
}

#[test]
fn a_template_that_only_waiting_sandboxes_use_is_removed_with_its_name() {
    let server = Server::start_with(&["--pool-max", "2"]);
    upload(&server, "demo", &archive("one"));
    let greeting = |server: &Server| {
        let sandbox = server.sandbox_with(&json!({ "template": "demo" }));
        let seen = server.sh(&sandbox, "cat /greeting")["stdout"].as_str().map(str::to_owned);
        server.delete(&sandbox);
        seen
    };
    let supervisors = || std::fs::read_dir(server.data().join("control")).map_or(0, Iterator::count);
    assert_eq!(greeting(&server).as_deref(), Some("one"));
    // Demand brings one that waits for the next.
    eventually("one is ready", || supervisors() == 1);
    assert_eq!(greeting(&server).as_deref(), Some("one"));
    eventually("one is ready", || supervisors() >= 1);
    // The name moves. New sandboxes don't start from the template that it named before.
    upload(&server, "demo", &archive("two"));
    assert_eq!(greeting(&server).as_deref(), Some("two"));
    eventually("one is ready", || supervisors() >= 1);
    let removed = server.delete(&format!("{TEMPLATES}/demo")).expect(200);
    assert_eq!(removed["template"], "gone", "sandboxes that wait are no reason to keep it");
    assert_eq!(supervisors(), 0);
    server.post(SANDBOXES, &json!({ "template": "demo" })).problem(404, "not_found");
}

#[test]
fn one_project_learns_nothing_about_the_templates_and_jobs_of_another() {
    let mut server = Server::start();
    let job = upload(&server, "mine", &archive("hello"));
    assert_eq!(server.stop(), Some(0));
    let made =
        http::command(&["key", "create", "theirs", "--project", "other", "--data-dir"]).arg(server.data()).output();
    let made = made.expect("the binary was built");
    assert!(made.status.success(), "{made:?}");
    server.begin();
    let key = format!("Authorization: Bearer {}", String::from_utf8(made.stdout).expect("it prints text").trim());
    let ask = |method: &str, path: &str, body: &[u8]| {
        server.request_without_key(method, path, &[&key, "Content-Type: application/json"], body)
    };
    assert_eq!(ask("GET", TEMPLATES, b"").expect(200)["items"], json!([]));
    assert_eq!(ask("GET", JOBS, b"").expect(200)["items"], json!([]));
    let id = job["id"].as_str().expect("an id");
    let unknown = "job_aaaaaaaaaaaaaaaaaaaaaaaaaa";
    for (method, path, body) in [
        ("GET", "/api/v1/templates/NAME", ""),
        ("DELETE", "/api/v1/templates/NAME", ""),
        ("PUT", "/api/v1/templates/x", r#"{"from": "NAME"}"#),
        ("POST", "/api/v1/sandboxes", r#"{"template": "NAME"}"#),
        ("GET", "/api/v1/template-jobs/JOB", ""),
        ("DELETE", "/api/v1/template-jobs/JOB", ""),
        ("GET", "/api/v1/template-jobs/JOB/log", ""),
    ] {
        let told = |name: &str, job: &str| {
            let (path, body) = (path.replace("NAME", name).replace("JOB", job), body.replace("NAME", name));
            let problem = ask(method, &path, body.as_bytes()).problem(404, "not_found");
            problem["detail"].as_str().unwrap_or_else(|| panic!("{problem}")).replace(name, "NAME").replace(job, "JOB")
        };
        assert_eq!(told("mine", id), told("nowhere", unknown), "{method} {path}");
    }
    // The same content again: its layers are the other project's, and are not shared.
    let path = format!("{JOBS}/upload?name=mine");
    let theirs = server
        .request_without_key("POST", &path, &[&key, "Content-Type: application/x-tar"], &archive("hello"))
        .expect(202);
    let mut log = Value::Null;
    eventually("the job is over", || {
        log = ask("GET", &format!("{JOBS}/{}/log", theirs["id"].as_str().expect("an id")), b"").expect(200);
        log["state"] == "succeeded"
    });
    assert!(!log.to_string().contains("already stored"), "{log}");
}

#[test]
fn registries_are_what_the_operator_allows() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it listens").port();
    let refused = |server: &Server, source: &str| {
        let problem = server.post(&format!("{JOBS}/import"), &json!({ "source": source, "name": "x" }));
        let problem = problem.problem(422, "unsupported_capability");
        problem["detail"].as_str().unwrap_or_else(|| panic!("{problem}")).to_owned()
    };
    let server = Server::start();
    assert_eq!(refused(&server, "docker://ghcr.io/a/b:1"), "this server does not fetch images from ghcr.io:443");
    drop(server);
    let server = Server::start_with(&["--import-registries", &format!("http://127.0.0.1:{port},ghcr.io")]);
    for host in ["localhost", "127.0.0.2", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254", "10.0.0.1"] {
        let source = format!("docker://{host}:{port}/a/b:1");
        assert!(refused(&server, &source).starts_with("this server does not fetch images from"), "{source}");
    }
    // The registry that is allowed leads elsewhere: that is checked again, and nothing connects there.
    let elsewhere = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    elsewhere.set_nonblocking(true).expect("it can");
    let other = elsewhere.local_addr().expect("it listens").port();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the server connects");
        let mut asked = [0; 4096];
        let count = stream.read(&mut asked).expect("it asks");
        write!(stream, "HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:{other}/secret\r\nContent-Length: 0\r\n\r\n")
            .expect("it listens");
        String::from_utf8_lossy(&asked[..count]).into_owned()
    });
    let source = format!("127.0.0.1:{port}/a/b:1");
    let started = server
        .post(&format!("{JOBS}/import"), &json!({ "source": source, "username": "u", "password": "canary-1" }))
        .expect(202);
    let job = ended(&server, &started);
    assert_eq!((job["state"].as_str(), job["name"].as_str()), (Some("failed"), Some("b:1")), "{job}");
    let detail = job["problem"]["detail"].as_str().unwrap_or_else(|| panic!("{job}"));
    assert!(detail.contains(&format!("does not fetch images from 127.0.0.1:{other}")), "{job}");
    assert!(answering.join().expect("it answered").starts_with("GET /v2/a/b/manifests/1"));
    let nobody = elsewhere.accept().expect_err("nobody connects there");
    assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
    // The password is nowhere on the disk and in no answer.
    let kept = Command::new("grep").args(["-r", "canary-1"]).arg(server.data()).output().expect("grep is there");
    assert_eq!(String::from_utf8_lossy(&kept.stdout), "");
    assert!(!job.to_string().contains("canary"), "{job}");
    let wrong = server.post(&format!("{JOBS}/import"), &json!({ "source": source, "password": 12_345_678 }));
    assert!(!wrong.text().contains("12345678"), "{}", wrong.text());
}

#[test]
fn jobs_are_bounded_cancelled_and_end_with_their_server() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it listens").port();
    let flags = [
        "--import-registries",
        &format!("http://127.0.0.1:{port}"),
        "--template-jobs-per-project",
        "1",
        "--import-size-max",
        "64K",
    ];
    let mut server = Server::start_with(&flags);
    let import = json!({ "source": format!("127.0.0.1:{port}/a/b:1") });
    let first = server.post(&format!("{JOBS}/import"), &import).expect(202);
    // The registry is silent: the job waits for it.
    let silent = listener.accept().expect("the server connects");
    server.post(&format!("{JOBS}/import"), &import).problem(429, "capacity");
    let too_large =
        server.request("POST", &format!("{JOBS}/upload?name=x"), &["Content-Type: application/x-tar"], &[0; 70_000]);
    too_large.problem(413, "too_large");
    let path = format!("{JOBS}/{}", first["id"].as_str().expect("an id"));
    server.delete(&path).expect(200);
    drop(silent);
    assert_eq!(ended(&server, &first)["state"], "cancelled");
    let second = server.post(&format!("{JOBS}/import"), &import).expect(202);
    let silent = listener.accept().expect("the server connects");
    server.kill();
    drop(silent);
    server.begin_with(&flags);
    let job = server.get(&format!("{JOBS}/{}", second["id"].as_str().expect("an id"))).expect(200);
    assert_eq!(job["state"], "failed", "{job}");
    assert_eq!(job["problem"]["detail"], "the server stopped before the job had ended", "{job}");
    assert_eq!(server.get(JOBS).expect(200)["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(names(&server), [""; 0]);
}

/// An archive with a Dockerfile.
fn context(dockerfile: &str) -> Vec<u8> {
    Tar::new().file("Dockerfile", dockerfile.as_bytes()).file("app", b"copied").end()
}

fn build(server: &Server, name: &str, dockerfile: &str) -> Value {
    let path = format!("{JOBS}/build?name={name}&arg=WHO%3Dyou");
    server.request("POST", &path, &["Content-Type: application/x-tar"], &context(dockerfile)).expect(202)
}

#[test]
fn a_dockerfile_is_built_cached_and_its_failures_are_told() {
    if !is_root() {
        return not_here("sandboxes of a server need root");
    }
    let server = Server::start();
    upload(&server, "demo", &archive("hello"));
    let steps = "FROM demo\nARG WHO\nCOPY app /app\nRUN cat /app /greeting > /made; echo \"for $WHO\" >> /made\n";
    let lines = |job: &Value| {
        let log = server.get(&format!("{JOBS}/{}/log", job["id"].as_str().expect("an id"))).expect(200);
        log["items"]
            .as_array()
            .expect("lines")
            .iter()
            .filter_map(|line| line["text"].as_str().map(str::to_owned))
            .collect::<Vec<_>>()
    };
    let first = ended(&server, &build(&server, "built", steps));
    assert_eq!(
        (first["state"].as_str(), first["kind"].as_str()),
        (Some("succeeded"), Some("build")),
        "{first} {:?}",
        lines(&first)
    );
    let sandbox = server.sandbox_with(&json!({ "template": "built" }));
    assert_eq!(server.sh(&sandbox, "cat /made")["stdout"], "copiedhellofor you\n");
    let again = ended(&server, &build(&server, "again", steps));
    assert_eq!(again["template"], first["template"], "{again}");
    assert_eq!(lines(&again).iter().filter(|line| *line == "cached").count(), 2, "{:?}", lines(&again));
    let broken = ended(&server, &build(&server, "broken", "FROM demo\nRUN echo why; exit 3\n"));
    assert_eq!((broken["state"].as_str(), broken["problem"]["step"].as_str()), (Some("failed"), Some("1")), "{broken}");
    assert!(broken["problem"]["detail"].as_str().is_some_and(|detail| detail.contains("why")), "{broken}");
    let unknown = ended(&server, &build(&server, "x", "FROM nothing\n"));
    assert_eq!(unknown["state"], "failed", "{unknown}");
    let refused = ended(&server, &build(&server, "x", "FROM demo\nONBUILD RUN x\n"));
    assert!(refused["problem"]["detail"].as_str().is_some_and(|detail| detail.contains("line 2")), "{refused}");
    assert_eq!(names(&server), ["again", "built", "demo"]);
}

#[test]
fn a_build_is_cancelled_and_ends_with_its_server() {
    if !is_root() {
        return not_here("sandboxes of a server need root");
    }
    let mut server = Server::start();
    upload(&server, "demo", &archive("hello"));
    let waiting = "FROM demo\nRUN echo begun; while sleep 1; do echo on; done\n";
    let begun = |server: &Server, job: &Value| {
        let path = format!("{JOBS}/{}/log", job["id"].as_str().expect("an id"));
        eventually("the step runs", || server.get(&path).text().contains("\"begun\""));
    };
    let job = build(&server, "one", waiting);
    begun(&server, &job);
    server.delete(&format!("{JOBS}/{}", job["id"].as_str().expect("an id"))).expect(200);
    assert_eq!(ended(&server, &job)["state"], "cancelled");
    // This one says nothing more.
    let job = build(&server, "two", "FROM demo\nRUN echo begun; exec sleep 3000\n");
    begun(&server, &job);
    server.kill();
    // Before another server could do anything about it.
    eventually("no sandbox of the build is left", || {
        std::fs::read_dir(server.data().join("sandboxes")).map_or(true, |records| records.count() == 0)
    });
    server.begin();
    assert_eq!(ended(&server, &job)["problem"]["detail"], "the server stopped before the job had ended");
    assert_eq!(names(&server), ["demo"]);
    let contexts = std::fs::read_dir(server.data().join("templates")).expect("there are some").flatten();
    assert!(contexts.map(|project| project.path().join("contexts")).all(|place| !place.exists()));
}

#[test]
fn the_command_line_builds_on_a_server_and_ctrl_c_cancels() {
    if !is_root() {
        return not_here("sandboxes of a server need root");
    }
    let server = Server::start();
    upload(&server, "demo", &archive("hello"));
    let root = http::new_directory();
    let context = root.join("context");
    std::fs::create_dir_all(context.join("src")).expect("ours");
    let command = |arguments: &[&str]| {
        let mut command = http::command(&["template", "build", "--server"]);
        command.env("SAGGAR_URL", format!("http://{}", server.address)).env("SAGGAR_API_KEY", &server.key);
        command.args(arguments).current_dir(&root).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let build = |arguments: &[&str]| {
        let output = command(arguments).output().expect("it was built");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    for (name, text) in [
        (
            "Dockerfile",
            "FROM demo AS one\nARG WHO\nCOPY . /copied\nRUN cat /copied/src/app > /made; echo $WHO >> /made\nFROM one\nRUN touch /two\n",
        ),
        (".dockerignore", "secret\nDockerfile\n"),
        ("secret", "canary"),
        ("src/app", "app\n"),
    ] {
        std::fs::write(context.join(name), text).expect("ours");
    }
    let (code, out, err) = build(&["context", "--name", "built", "--build-arg", "WHO=you", "--target", "one"]);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.starts_with("built built: sha256:") && err.contains("RUN cat"), "{out}{err}");
    let sandbox = server.sandbox_with(&json!({ "template": "built" }));
    let listed = server.sh(&sandbox, "cat /made; ls -A /copied; test -e /two && echo two");
    assert_eq!(listed["stdout"], "app\nyou\n.dockerignore\nsrc\n", "{listed}");
    // A Dockerfile from elsewhere is no part of what is copied.
    std::fs::write(root.join("Other"), "FROM demo\nCOPY . /copied\nRUN ls -A /copied > /made\n").expect("ours");
    let (code, out, err) = build(&["context", "--name", "other", "-f", "Other"]);
    assert_eq!(code, Some(0), "{out}{err}");
    let sandbox = server.sandbox_with(&json!({ "template": "other" }));
    assert_eq!(server.sh(&sandbox, "cat /made")["stdout"], ".dockerignore\nsrc\n");
    let (code, _, err) = build(&["context", "--name", "x", "--memory", "1G"]);
    assert!(code == Some(125) && err.contains("--memory is a setting of the server"), "{err}");
    std::fs::write(context.join("Dockerfile"), "FROM demo\nRUN echo why; exit 3\n").expect("ours");
    let (code, _, err) = build(&["context", "--name", "x"]);
    assert!(code == Some(1) && err.contains("why"), "{err}");
    std::fs::write(context.join("Dockerfile"), "FROM demo\nRUN echo begun; exec sleep 3000\n").expect("ours");
    let mut child = command(&["context", "--name", "x"]).spawn().expect("it was built");
    let mut said = std::io::BufReader::new(child.stderr.take().expect("it has a pipe"));
    let mut line = String::new();
    while !line.contains("begun") || line.contains("RUN") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut said, &mut line).expect("ours") > 0, "it ended");
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).expect("small")).expect("not zero");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("ours");
    assert_eq!(child.wait().expect("ours").code(), Some(1));
    let jobs = server.get(JOBS).expect(200);
    assert!(jobs["items"].as_array().expect("a list").iter().any(|job| job["state"] == "cancelled"), "{jobs}");
    assert_eq!(names(&server), ["built", "demo", "other"]);
    std::fs::remove_dir_all(&root).expect("ours");
}

#[test]
fn the_command_line_manages_the_templates_of_a_server() {
    if !is_root() {
        return not_here("sandboxes of a server need root");
    }
    let server = Server::start();
    let file = http::new_directory().join("tools.tar");
    std::fs::write(&file, archive("hello")).expect("ours");
    let template = |arguments: &[&str]| {
        let mut command = http::command(&["template", "--server"]);
        command.env("SAGGAR_URL", format!("http://{}", server.address)).env("SAGGAR_API_KEY", &server.key);
        let output = command.args(arguments).output().expect("it was built");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, out, err) = template(&["import", file.to_str().expect("text")]);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.starts_with("imported tools: sha256:"), "{out}");
    assert!(err.contains("layer 1 of 2"), "{err}");
    let (_, out, _) = template(&["tag", "tools", "tools:stable"]);
    assert!(out.starts_with("tools:stable leads to sha256:"), "{out}");
    let (_, out, _) = template(&["list"]);
    let firsts: Vec<&str> = out.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(firsts, ["NAME", "tools", "tools:stable"], "{out}");
    let (_, out, _) = template(&["show", "tools"]);
    assert!(out.contains("platform  linux/"), "{out}");
    let (_, out, _) = template(&["rm", "tools"]);
    assert_eq!(out, "removed tools; other names lead to the template\n");
    let (_, out, _) = template(&["rm", "tools:stable"]);
    assert_eq!(out, "removed tools:stable and the template\n");
    let (code, _, err) = template(&["rm", "tools"]);
    assert_eq!(code, Some(1), "{err}");
    let (code, _, err) = template(&["gc"]);
    assert_eq!((code, err.contains("on its own host")), (Some(125), true), "{err}");
    std::fs::remove_dir_all(file.parent().expect("it is in one")).expect("ours");
}

#[test]
fn a_project_builds_on_what_the_operator_shares_and_on_nothing_else() {
    if !is_root() {
        return not_here("sandboxes of a server need root");
    }
    let server = Server::start_with(&["--public-templates", "shared"]);
    let file = server.data().join("image.tar");
    std::fs::write(&file, archive("operator")).expect("ours");
    for name in ["shared", "hidden"] {
        let mut import = command(&["template", "import", "--name", name]);
        let done = import.arg(&file).arg("--data-dir").arg(server.data()).output().expect("built");
        assert!(done.status.success(), "{done:?}");
    }
    let built = ended(&server, &build(&server, "mine", "FROM shared\nRUN cat /greeting > /made\n"));
    assert_eq!(built["state"], "succeeded", "{built}");
    let sandbox = server.sandbox_with(&json!({ "template": "mine" }));
    assert_eq!(server.sh(&sandbox, "cat /made")["stdout"], "operator");
    assert_eq!(names(&server), ["mine", "shared"]);
    // The operator's copy may go: what was built has its layers.
    server.delete(&sandbox);
    let removed = command(&["template", "rm", "shared", "--data-dir"]).arg(server.data()).output().expect("built");
    assert!(removed.status.success(), "{removed:?}");
    let sandbox = server.sandbox_with(&json!({ "template": "mine" }));
    assert_eq!(server.sh(&sandbox, "cat /made /greeting")["stdout"], "operatoroperator");
    // What isn't shared is told like what doesn't exist.
    let told = |name: &str| {
        let job = ended(&server, &build(&server, "x", &format!("FROM {name}\n")));
        assert_eq!(job["state"], "failed", "{job}");
        job["problem"]["detail"].as_str().expect("a detail").replace(name, "NAME")
    };
    assert_eq!(told("hidden"), told("absent"));
}

#[test]
fn a_secret_is_a_registrys_password_only_where_it_is_bound_to() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it listens").port();
    let server = Server::start_with(&["--import-registries", &format!("http://127.0.0.1:{port},ghcr.io")]);
    let secret = json!({ "value": "canary-2", "binding": { "rules": ["ghcr.io"], "slot": "bearer" } });
    let stored = server.request(
        "PUT",
        "/api/v1/secrets/registry",
        &["Content-Type: application/json"],
        secret.to_string().as_bytes(),
    );
    assert_eq!(stored.status, 201, "{}", stored.text());
    let source = format!("127.0.0.1:{port}/a/b:1");
    let import = |body: Value| server.post(&format!("{JOBS}/import"), &body);
    import(json!({ "source": source, "username": "u", "secret": "absent" })).problem(404, "not_found");
    for wrong in [
        json!({ "source": source, "secret": "registry" }),
        json!({ "source": source, "username": "u" }),
        json!({ "source": source, "username": "u", "secret": "registry", "password": "x" }),
    ] {
        import(wrong).problem(400, "invalid_request");
    }
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the server connects");
        let mut asked = [0; 4096];
        let count = stream.read(&mut asked).expect("it asks");
        write!(stream, "HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\n\r\n")
            .expect("it listens");
        listener.set_nonblocking(true).expect("it can");
        (String::from_utf8_lossy(&asked[..count]).into_owned(), listener)
    });
    let started = import(json!({ "source": source, "username": "u", "secret": "registry" })).expect(202);
    let job = ended(&server, &started);
    let detail = job["problem"]["detail"].as_str().unwrap_or_else(|| panic!("{job}"));
    assert!(detail.contains("never sent without TLS"), "{job}");
    let (asked, listener) = answering.join().expect("it answered");
    assert!(!asked.to_ascii_lowercase().contains("authorization"), "{asked}");
    assert!(listener.accept().is_err(), "it isn't asked again");
    let kept = Command::new("grep").args(["-r", "canary-2"]).arg(server.data()).output().expect("grep is there");
    assert_eq!(String::from_utf8_lossy(&kept.stdout), "");
}

#[test]
fn a_server_that_dies_while_it_removes_a_template_leaves_it_whole_or_removes_the_rest_later() {
    let mut server = Server::start();
    let log = server.data().with_extension("log");
    let points = [
        "remove/name",
        "remove/unnamed",
        "remove/manifest",
        "collect/manifests",
        "collect/removed",
        "collect/removing",
        "collect/layer",
    ];
    for point in points {
        // An import removes what is left over. Besides it, the server does so by itself, but later.
        upload(&server, "kept", &archive("kept"));
        assert_eq!(stored_of_projects(&server), ["layers", "layers", "manifests", "names"], "before {point}");
        upload(&server, "demo", &archive("hello"));
        server.kill();
        server.fails_at = format!("kill {point}");
        server.log = Some(log.clone());
        server.begin();
        let authorization = server.authorization();
        let mut connection = server.connect();
        http::send(&mut connection, "DELETE", &format!("{TEMPLATES}/demo"), &[&authorization], b"");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&server.ended()), Some(9), "{point}");
        server.fails_at = String::new();
        server.begin();
        assert_eq!(names(&server), ["kept"], "{point}");
        let sandbox = server.sandbox_with(&json!({ "template": "kept" }));
        assert_eq!(server.sh(&sandbox, "cat /greeting")["stdout"], "kept", "{point}");
        server.delete(&sandbox);
    }
    eventually("the rest is gone", || stored_of_projects(&server) == ["layers", "layers", "manifests", "names"]);
    eventually("it is counted", || {
        let told = std::fs::read_to_string(&log).expect("ours");
        told.contains("removed what interrupted work on templates left") && told.contains("interrupted=1")
    });
    std::fs::remove_file(&log).expect("ours");
}

/// The kind of everything in the stores of all projects, sorted.
fn stored_of_projects(server: &Server) -> Vec<&'static str> {
    let mut kinds = Vec::new();
    for project in std::fs::read_dir(server.data().join("templates")).expect("there is one").flatten() {
        for kind in ["layers", "manifests", "names", "staging"] {
            let entries = std::fs::read_dir(project.path().join(kind)).into_iter().flatten();
            kinds.extend(entries.map(|_| kind));
        }
    }
    kinds
}
