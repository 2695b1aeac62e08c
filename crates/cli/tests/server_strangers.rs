//! Sandboxes without an owner: those in a server's pool, and unknown ones, which became ready after the process that
//! created them had died and its successor had looked for sandboxes.

mod harness;
mod http;

use harness::PATIENCE;
use harness::held::{FOR_EVER, Supervisor, start_in};
use http::{Server, eventually};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use saggar_supervisor::control::{Client, Description, Op, Reply};

/// Whether its supervisor ends in time.
fn ends(stranger: &Supervisor) -> bool {
    let pidfd = pidfd_open(Pid::from_child(&stranger.child), PidfdFlags::empty()).expect("our own child");
    let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)).expect("a pidfd can be polled") > 0
}

#[test]
fn what_gets_ready_when_nobody_waits_for_it_is_found_and_ended() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let ours = server.sandbox();
    let start = |is_pooled| start_in(&server.data(), serde_json::json!({}), FOR_EVER, is_pooled).expect("it starts");
    let strangers = [true, false].map(start);
    for stranger in &strangers {
        assert!(ends(stranger), "{stranger:?} is leaked");
    }
    // They are written before the supervisor ends, and removed by the process that has read them.
    let ended = server.data().join("ended");
    eventually("no last words are left", || std::fs::read_dir(&ended).expect("ours").count() == 0);
    assert_eq!(server.get(&ours).expect(200)["state"], "running");
}

/// The supervisors in the pool, once there is one.
fn ready(server: &Server) -> Vec<Description> {
    let mut found = Vec::new();
    eventually("a sandbox is kept ready", || {
        let sockets = std::fs::read_dir(server.data().join("control")).expect("ours");
        let describe = |socket: std::fs::DirEntry| match Client::connect(&socket.path()).ok()?.request(Op::Describe) {
            Ok(Reply::Described(description)) => Some(*description),
            _ => None,
        };
        found = sockets.filter_map(|socket| describe(socket.ok()?)).filter(|ready| !ready.is_claimed).collect();
        !found.is_empty()
    });
    found
}

#[test]
fn one_that_died_while_it_waited_is_not_given_to_anybody() {
    let server = Server::start_with(&["--pool-min", "1", "--pool-max", "1"]);
    for supervisor in ready(&server) {
        let pid = Pid::from_raw(supervisor.pid.cast_signed()).expect("a process");
        kill_process(pid, Signal::KILL).expect("it lives");
    }
    let sandbox = server.sandbox();
    assert_eq!(server.sh(&sandbox, "echo alive")["stdout"], "alive\n");
}

#[test]
fn one_that_was_kept_ready_is_its_owners_alone_and_has_what_was_asked_for() {
    let mut server = Server::start_with(&["--pool-min", "1", "--pool-max", "1"]);
    let kept = ready(&server).remove(0).sandbox_id.to_string();
    let body = serde_json::json!({ "env": { "OWNER": "me" }, "ttl": "1h" });
    let created = server.request(
        "POST",
        "/api/v1/sandboxes",
        &["Idempotency-Key: k", "Content-Type: application/json"],
        body.to_string().as_bytes(),
    );
    let sandbox = created.expect(201);
    assert_eq!(sandbox["id"], kept.as_str(), "it was made anew though one was ready");
    let path = format!("/api/v1/sandboxes/{kept}");
    // Inserted together with its start in one step, it is intact after any crash of the server.
    server.kill();
    server.begin();
    assert_eq!(server.get(&path).expect(200)["state"], "running");
    assert_eq!(server.sh(&path, "echo $OWNER")["stdout"], "me\n");
    let again = server.request(
        "POST",
        "/api/v1/sandboxes",
        &["Idempotency-Key: k", "Content-Type: application/json"],
        body.to_string().as_bytes(),
    );
    assert_eq!(again.expect(201)["id"], kept.as_str());
    assert!(ready(&server).iter().all(|other| other.sandbox_id.to_string() != kept));
}

#[test]
fn who_does_not_answer_a_new_server_is_not_taken_for_dead() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    let sandbox = server.sandbox();
    let socket = format!("{}.sock", sandbox.rsplit('/').next().expect("an id"));
    let asked = Client::connect(&server.data().join("control").join(socket)).expect("it lives").request(Op::Describe);
    let Ok(Reply::Described(supervisor)) = asked else { panic!("{asked:?}") };
    let pid = Pid::from_raw(supervisor.pid.cast_signed()).expect("a process");
    server.kill();
    kill_process(pid, Signal::STOP).expect("it lives");
    server.begin();
    assert_eq!(server.get("/api/v1/sandboxes").expect(200)["items"][0]["state"], "running");
    kill_process(pid, Signal::CONT).expect("it lives");
    assert_eq!(server.sh(&sandbox, "echo slow")["stdout"], "slow\n");
    server.delete(&sandbox).expect(200);
}
