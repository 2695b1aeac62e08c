//! What a project can learn from how much work its imports and builds are: nothing about other projects. Work is counted, not timed: requests to a
//! registry, files that are asked for, steps that run.

mod harness;
mod http;
#[allow(dead_code)]
#[path = "../../image/tests/images/image.rs"]
mod image;
#[allow(dead_code)]
#[path = "../../image/tests/images/tar.rs"]
mod tar;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use harness::{is_root, not_here};
use http::{Answer, Server, command, eventually};
use image::Image;
use serde_json::{Value, json};
use tar::{Head, Tar};

const JOBS: &str = "/api/v1/template-jobs";
const JSON: &str = "Content-Type: application/json";
const TAR: &str = "Content-Type: application/x-tar";

/// A registry with one image that counts what it is asked. It ends with the test's process.
struct Registry {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Registry {
    fn start(image: &Image) -> Self {
        let parts = image.parts();
        let mut contents = BTreeMap::from([("/v2/team/app/manifests/1".to_owned(), parts.manifest.bytes.clone())]);
        contents.insert(format!("/v2/team/app/manifests/{}", parts.manifest.digest), parts.manifest.bytes);
        for blob in [parts.config].into_iter().chain(parts.layers) {
            contents.insert(format!("/v2/team/app/blobs/{}", blob.digest), blob.bytes);
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it listens");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        std::thread::spawn(move || {
            listener.incoming().for_each(|stream| answer(stream.expect("loopback works"), &contents, &heard));
        });
        Self { address, asked }
    }

    /// What it was asked since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().expect("its thread doesn't panic"))
    }
}

fn answer(mut stream: TcpStream, contents: &BTreeMap<String, Vec<u8>>, heard: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(stream.try_clone().expect("loopback works")).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    lines.find(String::is_empty);
    let target = first.split(' ').nth(1).expect("a request has a target").to_owned();
    let (status, body) = contents.get(&target).map_or(("404 No", &[][..]), |body| ("200 OK", body));
    heard.lock().expect("its thread doesn't panic").push(target);
    let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    // The client may have seen enough.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

fn tools() -> Image {
    let busybox = std::fs::read("/bin/busybox").expect("make setup-test installs it");
    let head = Head { mode: 0o755, ..Head::new("bin/busybox", b'0') };
    let programs = Tar::new().add(&head, &busybox).link("bin/sh", "busybox").link("bin/cat", "busybox");
    Image::new([programs.end(), Tar::new().file("greeting", b"hello").end()])
}

/// A client of one project.
struct Client<'a> {
    server: &'a Server,
    key: String,
}

impl Client<'_> {
    fn ask(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Answer {
        let authorization = format!("Authorization: Bearer {}", self.key);
        self.server.request_without_key(method, path, &[&authorization, kind], body)
    }

    /// As E2B's clients ask.
    fn ask_e2b(&self, method: &str, path: &str, body: &Value) -> Answer {
        let key = format!("X-API-Key: {}", self.key);
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.server.request_without_key(method, path, &[&key, JSON], &body)
    }

    /// The log of a job that has succeeded, without the ids of what it made: they depend on the time.
    fn done(&self, begun: &Answer) -> Vec<String> {
        let path = format!("{JOBS}/{}", begun.expect(202)["id"].as_str().expect("an id"));
        let mut job = Value::Null;
        eventually("the job is over", || {
            job = self.ask("GET", &path, JSON, b"").expect(200);
            !matches!(job["state"].as_str(), Some("running" | "waiting"))
        });
        assert_eq!(job["state"], "succeeded", "{job}");
        let log = self.ask("GET", &format!("{path}/log"), JSON, b"").expect(200);
        let made = job["template"].as_str().expect("an id");
        let lines = log["items"].as_array().expect("lines").iter();
        lines.map(|line| line["text"].as_str().expect("a text").replace(made, "ID")).collect()
    }

    fn import(&self, registry: &Registry) -> Vec<String> {
        let body = json!({ "source": format!("{}/team/app:1", registry.address), "name": "tools" });
        self.done(&self.ask("POST", &format!("{JOBS}/import"), JSON, body.to_string().as_bytes()))
    }

    fn build(&self) -> Vec<String> {
        let dockerfile = b"FROM tools\nWORKDIR /srv\nCOPY app app\nRUN cat app /greeting > made; echo ran\n";
        let context = Tar::new().file("Dockerfile", dockerfile).file("app", b"copied").end();
        self.done(&self.ask("POST", &format!("{JOBS}/build?name=built"), TAR, &context))
    }

    /// Where files for a step go, and whether they are there already.
    fn link(&self, hash: &str) -> (String, Value) {
        let told = self.ask_e2b("GET", &format!("/templates/any/files/{hash}"), &Value::Null).expect(201);
        let url = told["url"].as_str().expect("a link").to_owned();
        (format!("/{}", url.splitn(4, '/').nth(3).expect("it has a path")), told["present"].clone())
    }
}

/// Two projects of a server that fetches from this registry.
fn with_two(registry: &Registry, check: impl FnOnce(&Client<'_>, &Client<'_>)) {
    let mut server = Server::start_with(&["--import-registries", &format!("http://{}", registry.address)]);
    let first = server.key.clone();
    assert_eq!(server.stop(), Some(0));
    let made = command(&["key", "create", "theirs", "--project", "other", "--data-dir"]).arg(server.data()).output();
    let made = made.expect("the binary was built");
    assert!(made.status.success(), "{made:?}");
    server.begin();
    let second = String::from_utf8(made.stdout).expect("it prints text").trim().to_owned();
    check(&Client { server: &server, key: first }, &Client { server: &server, key: second });
}

#[test]
fn an_import_asks_the_registry_for_everything_whatever_other_projects_have() {
    let registry = Registry::start(&tools());
    with_two(&registry, |mine, theirs| {
        let first = mine.import(&registry);
        let asked = registry.take();
        assert!(asked.iter().filter(|target| target.contains("/blobs/")).count() >= 3, "{asked:?}");
        // The project itself has the layers now.
        let again = mine.import(&registry);
        let asked_again = registry.take();
        assert!(asked_again.len() < asked.len(), "{asked_again:?}");
        assert!(again.iter().any(|line| line.contains("already stored")), "{again:?}");
        // Another one has none.
        assert_eq!(theirs.import(&registry), first);
        assert_eq!(registry.take(), asked);
    });
}

#[test]
fn a_build_runs_every_step_whatever_other_projects_have_built() {
    if !is_root() {
        return not_here("sandboxes of a server need root");
    }
    let registry = Registry::start(&tools());
    with_two(&registry, |mine, theirs| {
        mine.import(&registry);
        let first = mine.build();
        assert!(first.iter().any(|line| line == "ran") && !first.iter().any(|line| line == "cached"), "{first:?}");
        let again = mine.build();
        assert_eq!(again.iter().filter(|line| *line == "cached").count(), 3, "{again:?}");
        theirs.import(&registry);
        assert_eq!(theirs.build(), first);
        // Nor does it matter what is removed elsewhere.
        for name in ["built", "tools"] {
            assert_eq!(mine.ask("DELETE", &format!("/api/v1/templates/{name}"), JSON, b"").status, 200);
        }
        assert_eq!(theirs.build(), again);
    });
}

#[test]
fn files_that_one_project_sent_are_unknown_to_another() {
    let registry = Registry::start(&tools());
    with_two(&registry, |mine, theirs| {
        let hash = "a".repeat(64);
        let (path, present) = mine.link(&hash);
        assert_eq!(present, false);
        let sent = mine.server.request_without_key("PUT", &path, &[], &Tar::new().file("app", b"x").end());
        assert_eq!(sent.status, 200, "{}", sent.text());
        assert_eq!(mine.link(&hash).1, true);
        let (path, present) = theirs.link(&hash);
        assert_eq!(present, false);
        // A build that names them fails as if nobody had them.
        theirs.import(&registry);
        let reason = |hash: &str| {
            let announced = theirs.ask_e2b("POST", "/v3/templates", &json!({ "name": "x" })).expect(202);
            let path = format!("/templates/x/builds/{}", announced["buildID"].as_str().expect("an id"));
            let step = json!({ "type": "COPY", "args": ["app", "/app"], "filesHash": hash });
            let body = json!({ "fromTemplate": "tools", "steps": [step] });
            assert_eq!(theirs.ask_e2b("POST", &format!("/v2{path}"), &body).status, 202);
            let mut told = Value::Null;
            eventually("the build is over", || {
                told = theirs.ask_e2b("GET", &format!("{path}/status"), &Value::Null).expect(200);
                told["status"] == "error"
            });
            told["reason"]["message"].as_str().expect("a reason").replace(hash, "HASH")
        };
        assert_eq!(reason(&hash), reason(&"b".repeat(64)));
        // Each sends its own.
        let sent = theirs.server.request_without_key("PUT", &path, &[], &Tar::new().file("app", b"y").end());
        assert_eq!(sent.status, 200, "{}", sent.text());
        assert_eq!(theirs.link(&hash).1, true);
    });
}

#[test]
fn names_of_another_project_are_told_to_e2bs_clients_like_names_that_do_not_exist() {
    let registry = Registry::start(&tools());
    with_two(&registry, |mine, theirs| {
        mine.import(&registry);
        let announced = mine.ask_e2b("POST", "/v3/templates", &json!({ "name": "waiting" })).expect(202);
        let build = announced["buildID"].as_str().expect("an id");
        let unknown = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa";
        let assign = json!({ "target": "NAME", "tags": ["x"] });
        let unassign = json!({ "name": "NAME", "tags": ["latest"] });
        for (method, path, body) in [
            ("GET", "/templates/NAME", Value::Null),
            ("DELETE", "/templates/NAME", Value::Null),
            ("GET", "/templates/aliases/NAME", Value::Null),
            ("GET", "/templates/NAME/tags", Value::Null),
            ("GET", "/templates/NAME/tags/count", Value::Null),
            ("GET", "/templates/NAME/tags/exists?tag=default", Value::Null),
            ("POST", "/templates/tags", assign),
            ("DELETE", "/templates/tags", unassign),
            ("POST", "/v2/sandboxes", json!({ "templateID": "NAME", "timeout": 60 })),
            ("GET", "/templates/waiting/builds/BUILD/status", Value::Null),
            ("GET", "/templates/waiting/builds/BUILD/logs", Value::Null),
            ("POST", "/v2/templates/waiting/builds/BUILD", json!({ "fromTemplate": "tools", "steps": [] })),
        ] {
            let told = |name: &str, build: &str| {
                let filled = |text: &str| text.replace("NAME", name).replace("BUILD", build);
                let body: Value = serde_json::from_str(&filled(&body.to_string())).expect("it was JSON");
                let answer = theirs.ask_e2b(method, &filled(path), &body);
                (answer.status, answer.text().replace(name, "NAME").replace(build, "BUILD"))
            };
            let (status, text) = told("tools", build);
            assert!((400..500).contains(&status), "{method} {path}: {status} {text}");
            assert_eq!((status, text), told("nowhr", unknown), "{method} {path}");
        }
    });
}
