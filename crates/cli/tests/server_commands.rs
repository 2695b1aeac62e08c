//! The commands that talk to a server, against a real one: tests with a scripted server can't show that both sides
//! agree.

mod http;

use std::io::Write;
use std::process::Stdio;

use http::{Server, command, new_directory};

/// Runs a command against the server with this stdin. Returns exit status, stdout, stderr.
fn run(server: &Server, arguments: &[&str], stdin: &[u8]) -> (i32, String, String) {
    let mut child = command(arguments)
        .env("SAGGAR_URL", format!("http://{}", server.address))
        .env("SAGGAR_API_KEY", &server.key)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built");
    // A command that doesn't read its stdin may be gone already.
    let _ = child.stdin.take().expect("it has a pipe").write_all(stdin);
    let output = child.wait_with_output().expect("our own child");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints text");
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

#[test]
fn stdin_reaches_a_program_that_is_followed() {
    let server = Server::start();
    let (code, id, stderr) = run(&server, &["sandbox", "create"], b"");
    assert_eq!(code, 0, "{stderr}");
    let large = vec![b'x'; 300_000];
    for stdin in [&b""[..], b"hello\n", &large] {
        let (code, stdout, stderr) = run(&server, &["sandbox", "exec", id.trim(), "wc", "-c"], stdin);
        assert_eq!((code, stdout.trim()), (0, stdin.len().to_string().as_str()), "{stderr}");
    }
    let (code, stdout, stderr) = run(&server, &["sandbox", "exec", id.trim(), "--stdin", "none", "wc", "-c"], b"hello");
    assert_eq!((code, stdout.trim()), (0, "0"), "{stderr}");
}

#[test]
fn a_key_is_made_used_and_revoked() {
    let mut server = Server::start();
    let (code, secret, stderr) = run(&server, &["key", "create", "ci"], b"");
    assert_eq!(code, 0, "{stderr}");
    let (_, listed, _) = run(&server, &["key", "list"], b"");
    let line = listed.lines().find(|line| line.ends_with("ci")).expect("it is listed");
    let id = line.split_whitespace().next().expect("an id").to_owned();
    let first = std::mem::replace(&mut server.key, secret.trim().to_owned());
    assert_eq!(run(&server, &["sandbox", "list"], b"").0, 0);
    assert_eq!(run(&server, &["key", "revoke", &id], b""), (0, format!("{id} revoked\n"), String::new()));
    assert_eq!(run(&server, &["sandbox", "list"], b"").0, 1);
    server.key = first;
}

#[test]
fn without_room_it_is_said_once_when_to_ask_again() {
    let server = Server::start_with(&["--capacity", "0", "--pool-max", "0"]);
    let (code, _, stderr) = run(&server, &["sandbox", "create"], b"");
    assert_eq!(code, 1, "{stderr}");
    assert_eq!(stderr.matches("try again").count(), 1, "{stderr}");
    assert!(stderr.contains("try again in 1 s"), "{stderr}");
}

#[test]
fn a_program_without_memory_says_what_to_raise() {
    let server = Server::start();
    let (_, id, _) = run(&server, &["sandbox", "create"], b"");
    let hog = ["sandbox", "exec", id.trim(), "--memory", "32M", "--", "python3", "-c", "x = bytearray(10**9)"];
    let (code, _, stderr) = run(&server, &hog, b"");
    assert!(code == 137 && stderr.contains("--memory"), "{code} {stderr}");
}

#[test]
fn a_first_start_that_fails_uses_up_no_key() {
    let server = Server::start();
    let root = new_directory();
    let data = root.join("data");
    let port = server.address.rsplit(':').next().expect("it has a port");
    let output = command(&["serve", "--port", port, "--data-dir", data.to_str().expect("text")])
        .output()
        .expect("the binary was built");
    assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{output:?}");
    let second = Server::start_in(root, &[]);
    assert!(!second.key.is_empty(), "{}", second.printed);
}

#[test]
fn a_run_is_begun_from_the_files_of_the_demo_and_comes_to_its_end() {
    let server = Server::start();
    let agent = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/demo/mender.toml");
    let (code, id, stderr) = run(&server, &["runs", "start", agent], b"");
    assert_eq!(code, 0, "{stderr}");
    let (code, followed, stderr) = run(&server, &["runs", "follow", id.trim()], b"");
    assert_eq!(code, 0, "{stderr}");
    assert!(followed.contains("completed"), "{followed}");
    let (_, shown, _) = run(&server, &["runs", "show", id.trim()], b"");
    assert!(shown.contains("mender") && shown.contains("finished"), "{shown}");
}
