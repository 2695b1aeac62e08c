//! Builds that copy far more than they may: without a server, through one, and by E2B's way of sending files.
//!
//! The programs run with less address space than the files have bytes, so that nothing can be held in memory.

mod building;
mod harness;
mod http;
#[allow(dead_code)]
#[path = "../../image/tests/images/tar.rs"]
mod tar;

use std::io::Write;
use std::process::{Command, Stdio};

use building::{Context, build, stored, template, template_json};
use harness::image::Image;
use harness::{Done, Place, finish, is_root, not_here};
use http::{Server, eventually};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};
use tar::{Head, Tar};

const LARGE: u64 = 10 << 30;
/// Address space of a program that meets such a file.
const SPACE: u64 = 4 << 30;
const JOBS: &str = "/api/v1/template-jobs";
/// What a server of these tests lets a project send.
const SENT_MAX: &[&str] = &["--import-size-max", "64M", "--public-templates", "tiny"];

/// A file with this size and no content.
fn hole(path: &std::path::Path) {
    std::fs::File::create(path).and_then(|file| file.set_len(LARGE)).expect("holes take no room");
}

/// The same command with limited address space.
fn limited(command: &Command) -> Command {
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--as={SPACE}")).arg("--").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited.current_dir(command.get_current_dir().expect("the place's"));
    limited.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    limited
}

fn check_nothing_is_left(place: &Place) {
    assert_eq!(template_json(place, &["list"])["templates"], json!([]));
    assert!(stored(place).iter().all(|name| name.starts_with("layers/")), "{:?}", stored(place));
    assert_eq!(template(place, &["gc", "--all"]).code, 0);
    assert_eq!(stored(place), Vec::<String>::new());
}

#[test]
fn a_copy_of_ten_gigabytes_is_refused_by_its_size() {
    let place = Place::new();
    let context = Context::new(&place);
    hole(&context.path("big"));
    context.dockerfile("COPY big /big");
    let arguments = ["template", "build", "context", "--name", "demo", "--max-size", "8G"];
    let done: Done = finish(limited(&place.command(arguments)).spawn().expect("util-linux is installed"));
    assert_eq!((done.code, done.stdout.as_str()), (125, ""), "{done:?}");
    for expected in ["step 3 of 3", "it copies more than the 8", "10G are listed so far", "raise --max-size"] {
        assert!(done.stderr.contains(expected), "{expected}: {done:?}");
    }
    check_nothing_is_left(&place);
    // Nothing of it is read if it isn't copied.
    context.write(".dockerignore", "big");
    context.dockerfile("COPY . /all");
    let done = build(&place, &["--max-size", "64M"]);
    assert_eq!(done.code, 0, "{done:?}");
}

#[test]
fn a_file_with_more_in_it_than_its_size_is_refused() {
    if !is_root() {
        return not_here("only root can put such a file into a directory");
    }
    let place = Place::new();
    let context = Context::new(&place);
    context.write("liar", "");
    context.dockerfile("COPY liar /liar");
    let mount = |arguments: &[&str]| {
        let status = Command::new("mount").args(arguments).arg(context.path("liar")).status();
        assert!(status.is_ok_and(|status| status.success()));
    };
    mount(&["--bind", "/proc/kallsyms"]);
    let done = build(&place, &[]);
    let unmounted = Command::new("umount").arg(context.path("liar")).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    assert_eq!((done.code, done.stdout.as_str()), (125, ""), "{done:?}");
    assert!(done.stderr.contains("step 3 of 3") && done.stderr.contains("more in it than its size"), "{done:?}");
    check_nothing_is_left(&place);
}

/// Files that are large only by what they say, or only when they are unpacked; each with the words of its refusal.
fn lies() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let dockerfile = || Tar::new().file("Dockerfile", b"FROM scratch\nCOPY big /big\n");
    let said = dockerfile().add(&Head { size: Some(LARGE), ..Head::new("big", b'0') }, b"").cut();
    let size = LARGE.to_string();
    let holes = dockerfile().pax(&[("GNU.sparse.map", b""), ("GNU.sparse.size", size.as_bytes())]);
    let short = dockerfile().add(&Head { size: Some(1 << 20), ..Head::new("big", b'0') }, b"x").cut();
    let zeroes = vec![0; 32 << 20];
    let packed = dockerfile().file("one", &zeroes).file("two", &zeroes).file("three", &zeroes).end();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&packed).expect("in memory");
    const LARGER: &str = "larger than 64M when uncompressed";
    vec![
        ("a size that doesn't follow", said, LARGER),
        ("a file of holes", holes.file("big", b"").end(), LARGER),
        ("a file that ends early", short, "ends in the middle"),
        ("more than it seems", encoder.finish().expect("in memory"), LARGER),
    ]
}

/// What is in the directories of a server where a build has something.
fn left(server: &Server) -> Vec<String> {
    let projects = std::fs::read_dir(server.data().join("templates")).into_iter().flatten().flatten();
    // The operator's own.
    let projects = projects.filter(|project| project.file_name() != "local");
    let parts = projects.flat_map(|project| {
        ["contexts", "staging", "names", "manifests"].map(|part| project.path().join(part)).into_iter()
    });
    let entries = parts.flat_map(|part| std::fs::read_dir(part).into_iter().flatten().flatten());
    entries.map(|entry| entry.path().display().to_string()).collect()
}

/// A server whose processes have little address space.
fn server() -> Server {
    let server = Server::start_with(SENT_MAX);
    Image::in_data(&server.data()).system().named("tiny");
    let limit = Rlimit { current: Some(SPACE), maximum: Some(SPACE) };
    prlimit(Pid::from_raw(server.pid() as i32), Resource::As, limit).expect("our own child");
    server
}

fn ended(server: &Server, path: &str, is_over: impl Fn(&Value) -> bool, headers: &[&str]) -> Value {
    let mut last = Value::Null;
    eventually("the build is over", || {
        last = server.request_without_key("GET", path, headers, b"").expect(200);
        is_over(&last)
    });
    last
}

#[test]
fn a_server_refuses_files_that_are_larger_than_they_may_be() {
    if !is_root() {
        return not_here("sandboxes of a server need root");
    }
    let server = server();
    let authorization = server.authorization();
    for (name, archive, expected) in lies() {
        let path = format!("{JOBS}/build?name=demo");
        let job = server.request("POST", &path, &["Content-Type: application/x-tar"], &archive).expect(202);
        let path = format!("{JOBS}/{}", job["id"].as_str().expect("an id"));
        let over = |job: &Value| !matches!(job["state"].as_str(), Some("running" | "waiting"));
        let job = ended(&server, &path, over, &[&authorization]);
        let detail = job["problem"]["detail"].as_str().unwrap_or_else(|| panic!("{name}: {job}"));
        assert!(detail.contains(expected), "{name}: {job}");
        assert_eq!(left(&server), Vec::<String>::new(), "{name}");
    }
    // More than may be sent is refused by what is announced.
    let headers = ["Content-Type: application/x-tar", "Content-Length: 10737418240"];
    let refused = server.request("POST", &format!("{JOBS}/build?name=demo"), &headers, b"");
    assert_eq!(refused.status, 413, "{}", refused.text());
    assert!(refused.text().contains("64M") || refused.text().contains("67108864"), "{}", refused.text());
}

#[test]
fn the_command_line_shows_why_a_server_refuses_a_large_context() {
    if !is_root() {
        return not_here("sandboxes of a server need root");
    }
    let server = server();
    let place = Place::new();
    let context = Context::new(&place);
    hole(&context.path("big"));
    context.dockerfile("COPY big /big");
    let mut command = place.command(["template", "build", "context", "--name", "demo", "--server"]);
    command.env("SAGGAR_URL", format!("http://{}", server.address)).env("SAGGAR_API_KEY", &server.key);
    let done = finish(limited(&command).spawn().expect("util-linux is installed"));
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("the body is larger than 67108864 bytes"), "{done:?}");
    assert_eq!(left(&server), Vec::<String>::new());
}

#[test]
fn files_that_e2bs_clients_send_have_the_same_bounds() {
    if !is_root() {
        return not_here("sandboxes of a server need root");
    }
    let server = server();
    let key = server.authorization().replace("Authorization: Bearer ", "X-API-Key: ");
    let ask = |method: &str, path: &str, body: &Value| {
        server.request_without_key(method, path, &[&key, "Content-Type: application/json"], body.to_string().as_bytes())
    };
    let link = |hash: &str| {
        let told =
            server.request_without_key("GET", &format!("/templates/demo/files/{hash}"), &[&key], b"").expect(201);
        let url = told["url"].as_str().expect("a link").to_owned();
        format!("/{}", url.splitn(4, '/').nth(3).expect("a path"))
    };
    // What is announced as too large is not waited for.
    let refused = server.request_without_key("PUT", &link(&"f".repeat(64)), &["Content-Length: 10737418240"], b"");
    assert_eq!(refused.status, 413, "{}", refused.text());
    for (number, (name, archive, expected)) in lies().into_iter().enumerate() {
        let hash = format!("{number:064x}");
        let sent = server.request_without_key("PUT", &link(&hash), &[], &archive);
        assert_eq!(sent.status, 200, "{name}: {}", sent.text());
        let announced = ask("POST", "/v3/templates", &json!({ "name": "demo" })).expect(202);
        let build = announced["buildID"].as_str().expect("an id");
        let step = json!({ "type": "COPY", "args": ["big", "/big"], "filesHash": hash });
        let asked = json!({ "fromTemplate": "tiny", "steps": [step] });
        let begun = ask("POST", &format!("/v2/templates/demo/builds/{build}"), &asked);
        assert_eq!(begun.status, 202, "{name}: {}", begun.text());
        let path = format!("/templates/demo/builds/{build}/status");
        let told =
            ended(&server, &path, |told| !matches!(told["status"].as_str(), Some("building" | "waiting")), &[&key]);
        assert_eq!(told["status"], "error", "{name}: {told}");
        let reason = told["reason"]["message"].as_str().unwrap_or_else(|| panic!("{name}: {told}"));
        assert!(reason.contains(expected), "{name}: {reason}");
        assert_eq!(left(&server), Vec::<String>::new(), "{name}");
    }
}
