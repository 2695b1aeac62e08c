//! The server is killed between any two steps: acknowledged work survives, nothing exists twice, and nothing is left
//! behind.

mod harness;
mod http;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;

use harness::cgroups_of;
use http::{Server, eventually, send};
use saggar_supervisor::control::{Client, Op, Reply};
use serde_json::{Value, json};

const SANDBOXES: &str = "/api/v1/sandboxes";
const ALL: &str = "/api/v1/sandboxes?state=creating,running,paused,ended&limit=1000";

/// Points at which creating a sandbox can be interrupted, and how many sandboxes live afterwards if no key was given.
const CREATE: [(&str, usize); 6] = [
    ("create/admitted", 0),
    ("create/row", 0),
    ("create/spawned", 0),
    ("create/asked", 0),
    ("create/ready", 0),
    // Its row says that it runs: it has an owner who can list it, and a deadline.
    ("create/running", 1),
];
/// The same for a sandbox from the pool.
const CLAIM: [(&str, usize); 3] = [("claim/taken", 0), ("claim/claimed", 0), ("claim/row", 1)];

/// A server with an acknowledged sandbox that has to survive everything.
struct Survivor {
    server: Server,
    kept: String,
    /// Size of the pool.
    ready: usize,
}

impl Survivor {
    fn start(ready: usize) -> Self {
        let count = ready.to_string();
        let server = Server::start_with(&["--pool-min", &count, "--pool-max", &count]);
        let kept = server.sandbox_with(&json!({ "ttl": "10m" }));
        server.sh(&kept, "echo still here > /tmp/mark");
        Self { server, kept, ready }
    }

    /// Sends a request to a server that is killed while handling it, and starts the next.
    fn cut_off(&mut self, point: &str, method: &str, path: &str, headers: &[&str], body: &Value) {
        // A successor adopts the pool before it answers requests.
        eventually("some are ready", || {
            self.files("control").len() == self.others(SANDBOXES).len() + 1 + self.ready && self.all_answer()
        });
        self.server.kill();
        self.server.fails_at = format!("kill {point}");
        self.server.begin();
        let authorization = self.server.authorization();
        let all: Vec<&str> =
            headers.iter().copied().chain([authorization.as_str(), "Content-Type: application/json"]).collect();
        let mut connection = self.server.connect();
        send(&mut connection, method, path, &all, body.to_string().as_bytes());
        let mut answer = Vec::new();
        // Reset or closed: a response would have arrived before.
        let _ = connection.read_to_end(&mut answer);
        assert_eq!(String::from_utf8_lossy(&answer), "", "{point}");
        assert_eq!(self.server.ended().signal(), Some(9), "{point}");
        self.server.fails_at.clear();
        self.server.begin();
        assert_eq!(self.server.sh(&self.kept, "cat /tmp/mark")["stdout"], "still here\n", "{point}");
    }

    /// Live sandboxes, without the one that existed before.
    fn others(&self, list: &str) -> Vec<Value> {
        let page = self.server.get(list).expect(200);
        let items = page["items"].as_array().expect("a list");
        items.iter().filter(|item| !self.kept.ends_with(item["id"].as_str().unwrap_or("?"))).cloned().collect()
    }

    /// Whether every supervisor answers. One that does has told its server that it is ready; a socket alone is there earlier.
    fn all_answer(&self) -> bool {
        let sockets = self.files("control").into_iter().map(|name| self.server.data().join("control").join(name));
        sockets.map(|socket| Client::connect(&socket)).all(|connected| {
            connected.is_ok_and(|mut client| matches!(client.request(Op::Describe), Ok(Reply::Described(_))))
        })
    }

    /// Names in a directory of the data directory.
    fn files(&self, name: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.server.data().join(name)).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    fn end_others(&self) {
        for row in self.others(SANDBOXES) {
            self.server.delete(&format!("{SANDBOXES}/{}", row["id"].as_str().expect("an id"))).expect(200);
        }
    }

    /// Only live sandboxes have anything on this host.
    fn check_nothing_left(&mut self) {
        let mut ids: Vec<String> =
            self.others(ALL).iter().filter_map(|row| Some(row["id"].as_str()?.to_owned())).collect();
        ids.push(self.kept.rsplit('/').next().expect("an address").to_owned());
        self.end_others();
        self.server.delete(&self.kept).expect(200);
        // A sandbox that became ready after its maker died is ended by the periodic reaper.
        eventually("only those are left that are ready", || self.files("control").len() == self.ready);
        assert_eq!(self.server.stop(), Some(0));
        for name in ["control", "sandboxes", "ended", "creating"] {
            eventually(&format!("nothing is in {name}"), || self.files(name).is_empty());
        }
        let data = self.server.data();
        let left: Vec<std::path::PathBuf> = ids.iter().flat_map(|id| cgroups_of(id)).collect();
        assert_eq!(left, Vec::<std::path::PathBuf>::new());
        eventually("no process has anything of it open", || holders(&data).is_empty());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
        assert!(!mounts.contains(data.to_str().expect("a plain name")), "{mounts}");
        self.server.begin();
        assert_eq!(self.others(SANDBOXES), Vec::<Value>::new());
    }
}

/// Processes that have a file of this directory open.
fn holders(data: &std::path::Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let has = |process: &std::fs::DirEntry| {
        let files = std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        files.into_iter().any(|file| std::fs::read_link(file.path()).is_ok_and(|target| target.starts_with(data)))
    };
    processes.filter(has).map(|process| process.file_name().to_string_lossy().into_owned()).collect()
}

/// Kills the server at each point of a create. Repeating the request with its key gives exactly one sandbox as
/// requested; without a key, no ownerless sandbox remains.
fn check_create(ready: usize, points: &[(&str, usize)]) {
    let mut survivor = Survivor::start(ready);
    let body = json!({ "env": { "GIVEN": "once" }, "ttl": "10m" });
    for (point, live) in points {
        survivor.cut_off(point, "POST", SANDBOXES, &[], &body);
        let states: Vec<Value> = survivor.others(ALL).iter().map(|row| row["state"].clone()).collect();
        assert!(!states.contains(&json!("creating")), "{point}: {states:?}");
        assert_eq!(survivor.others(SANDBOXES).len(), *live, "{point}: {states:?}");
        survivor.end_others();

        let key = format!("Idempotency-Key: {}", point.replace('/', "-"));
        survivor.cut_off(point, "POST", SANDBOXES, &[&key], &body);
        let server = &survivor.server;
        let repeat = || {
            server.request("POST", SANDBOXES, &[&key, "Content-Type: application/json"], body.to_string().as_bytes())
        };
        let made = repeat().expect(201);
        let sandbox = format!("{SANDBOXES}/{}", made["id"].as_str().expect("an id"));
        assert_eq!(made["state"], "running", "{point}");
        assert_eq!(server.sh(&sandbox, "echo $GIVEN")["stdout"], "once\n", "{point}");
        assert_eq!(repeat().expect(201)["id"], made["id"], "{point}");
        assert_eq!(survivor.others(SANDBOXES).len(), 1, "{point}");
        survivor.end_others();
    }
    survivor.check_nothing_left();
}

#[test]
fn killed_at_any_step_of_a_create() {
    check_create(0, &CREATE);
}

#[test]
fn killed_at_any_step_of_giving_away_one_that_was_ready() {
    check_create(1, &CLAIM);
}

#[test]
fn killed_at_any_step_of_an_end() {
    let mut survivor = Survivor::start(0);
    for point in ["kill/begun", "kill/dead", "end/row", "end/forgotten"] {
        let sandbox = survivor.server.sandbox_with(&json!({ "ttl": "10m" }));
        let exec = survivor.server.sh(&sandbox, "echo kept")["id"].as_str().expect("an id").to_owned();
        survivor.cut_off(point, "DELETE", &sandbox, &[], &json!({}));
        let ended = survivor.server.delete(&sandbox).expect(200);
        assert_eq!((&ended["state"], &ended["ended"]["reason"]), (&json!("ended"), &json!("killed")), "{point}");
        let stored = survivor.server.get(&format!("{sandbox}/execs/{exec}")).expect(200);
        assert_eq!(stored["stdout"], "kept\n", "{point}");
    }
    survivor.check_nothing_left();
}

#[test]
fn killed_at_any_step_of_a_pause_and_a_resume() {
    let mut survivor = Survivor::start(0);
    let sandbox = survivor.server.sandbox_with(&json!({ "ttl": "10m" }));
    if survivor.server.post(&format!("{sandbox}/pause"), &json!({})).status == 422 {
        eprintln!("NOT RUN HERE: this host has no freezer");
        return;
    }
    let state = |survivor: &Survivor| survivor.server.get(&sandbox).expect(200)["state"].clone();
    let (pause, resume) = (format!("{sandbox}/pause"), format!("{sandbox}/resume"));
    for (pausing, resuming) in
        [("pause/frozen", "resume/thawed"), ("pause/row", "resume/row"), ("pause/row", "resume/terms")]
    {
        survivor.cut_off(resuming, "POST", &resume, &[], &json!({ "ttl": "9m" }));
        assert_eq!(state(&survivor), "running", "{resuming}");
        assert_eq!(survivor.server.sh(&sandbox, "echo on")["stdout"], "on\n", "{resuming}");
        survivor.cut_off(pausing, "POST", &pause, &[], &json!({}));
        assert_eq!(state(&survivor), "paused", "{pausing}");
    }
    survivor.check_nothing_left();
}
