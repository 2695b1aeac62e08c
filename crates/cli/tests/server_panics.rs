//! A panic while a request is served fails that request; a panic elsewhere ends the server, and the next one recovers
//! everything.

mod http;

use std::os::unix::process::ExitStatusExt;

use http::{Server, send};
use serde_json::json;

fn restart(server: &mut Server, fails_at: &str) {
    assert_eq!(server.stop(), Some(0));
    fails_at.clone_into(&mut server.fails_at);
    server.begin();
}

#[test]
fn a_request_that_panics_is_answered_and_the_server_goes_on() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    let sandbox = server.sandbox();
    restart(&mut server, "panic keys/list");
    let pid = server.pid();
    for _ in 0..3 {
        let problem = server.get("/api/v1/keys").problem(500, "internal");
        assert!(!problem.to_string().contains("a test wants"), "{problem}");
        assert_eq!(server.sh(&sandbox, "echo on")["stdout"], "on\n");
    }
    assert!(server.ended_now().is_none());
    assert_eq!(server.pid(), pid);
}

#[test]
fn a_panic_in_the_background_ends_the_server_and_the_next_finds_everything() {
    let mut server = Server::start_with(&["--pool-max", "0"]);
    let sandbox = server.sandbox();
    restart(&mut server, "panic create/row");
    let mut connection = server.connect();
    let authorization = server.authorization();
    send(&mut connection, "POST", "/api/v1/sandboxes", &[&authorization], b"");
    const SIGABRT: i32 = 6;
    assert_eq!(server.ended().signal(), Some(SIGABRT));
    server.fails_at.clear();
    server.begin();
    assert_eq!(server.get("/api/v1/sandboxes").expect(200)["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(server.sh(&sandbox, "echo on")["stdout"], "on\n");
    assert_eq!(server.get(&sandbox).expect(200)["state"], json!("running"));
}
