//! `saggar sandbox shell` on a terminal, and which output of a sandbox reaches a terminal.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod harness;
mod scripted;
mod traces;

use std::net::TcpListener;
use std::sync::mpsc;

use harness::{PATIENCE, Place, finish};
use rustix::process::Signal;
use rustix::termios::LocalModes;
use scripted::{EXEC, SANDBOX, Scripted, exec, exited, problem, sandbox, started, stream, value};
use serde_json::json;
use traces::signal;
use traces::terminal::Terminal;
use tungstenite::Message;

/// A server for one shell: reports what it receives, and sends what it is told to.
struct ShellServer {
    url: String,
    heard: mpsc::Receiver<String>,
    say: mpsc::SyncSender<Message>,
}

impl ShellServer {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (hear, heard) = mpsc::sync_channel(64);
        let (say, said) = mpsc::sync_channel::<Message>(64);
        std::thread::spawn(move || {
            let (mut first, _) = listener.accept().unwrap();
            let mut piece = [0; 65536];
            let count = std::io::Read::read(&mut first, &mut piece).unwrap();
            hear.send(String::from_utf8_lossy(&piece[..count]).into_owned()).unwrap();
            std::io::Write::write_all(&mut first, &value(&exec("running", None, None))).unwrap();
            drop(first);
            let (second, _) = listener.accept().unwrap();
            let mut socket = tungstenite::accept(second).unwrap();
            socket.send(Message::Text(started().to_string().into())).unwrap();
            // Each received message is answered with what the test has queued before.
            while let Ok(message) = socket.read() {
                if message.is_close() {
                    break;
                }
                let answers: Vec<Message> = said.try_iter().collect();
                hear.send(message.to_string()).unwrap();
                for answer in answers {
                    socket.send(answer).unwrap();
                }
            }
        });
        Self { url, heard, say }
    }

    fn hear(&self) -> String {
        self.heard.recv_timeout(PATIENCE).unwrap()
    }
}

fn shell(place: &Place, url: &str) -> std::process::Command {
    let mut command = place.command(["sandbox", "shell", SANDBOX]);
    command.env("SAGGAR_URL", url).env("HOME", place.path("home")).env_remove("XDG_CONFIG_HOME");
    command
}

#[test]
fn keys_and_sizes_go_in_output_comes_out_and_the_terminal_is_put_back() {
    let (place, terminal, server) = (Place::new(), Terminal::open(), ShellServer::new());
    let before = format!("{:?}", terminal.modes());
    let child = terminal.start(shell(&place, &server.url));
    let request = server.hear();
    assert!(request.contains(r#""tty":{"rows":33,"cols":101}"#) && request.contains(r#""TERM":"vt220""#), "{request}");
    server.say.send(Message::Binary(b"\x01\x1b]0;title\x07$ ".to_vec().into())).unwrap();
    terminal.type_in(b"a");
    // Until raw mode is on, the terminal itself keeps typed text back for a whole line.
    assert_eq!(server.hear(), "a");
    assert!(terminal.read("$ ").contains("\x1b]0;title\x07"), "escapes are the point of a terminal");
    assert!(!terminal.modes().local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG));
    terminal.type_in(b"\x03");
    assert_eq!(server.hear(), "\x03", "Ctrl-C is a key like any other");
    terminal.resize(40, 120);
    server.say.send(Message::Text(exited("exited", Some(5), None).to_string().into())).unwrap();
    signal(&child, Signal::WINCH);
    assert_eq!(server.hear(), r#"{"type":"resize","rows":40,"cols":120}"#);
    assert_eq!(finish(child).code, 5);
    assert_eq!(format!("{:?}", terminal.modes()), before);
}

#[test]
fn an_exec_on_a_terminal_has_one_that_shows_the_screen_and_with_tty_everything() {
    for (flags, shown) in [(&[][..], "\x1b[2J$ "), (&["--tty"], "\x1b]0;title\x07\x1b[2J$ ")] {
        let (place, terminal, server) = (Place::new(), Terminal::open(), ShellServer::new());
        let mut command = place.command([&["sandbox", "exec", SANDBOX], flags, &["python3", "-q"]].concat());
        command.env("SAGGAR_URL", &server.url).env("HOME", place.path("home")).env_remove("XDG_CONFIG_HOME");
        let child = terminal.start(command);
        let request = server.hear();
        for part in
            [r#""tty":{"rows":33,"cols":101}"#, r#""TERM":"vt220""#, r#""command":["python3","-q"]"#, r#""stdin":true"#]
        {
            assert!(request.contains(part), "{part} is not in {request}");
        }
        server.say.send(Message::Binary(b"\x01\x1b]0;title\x07\x1b[2J$ ".to_vec().into())).unwrap();
        terminal.type_in(b"a");
        assert_eq!(server.hear(), "a");
        // Text typed before raw mode is echoed.
        assert_eq!(terminal.read("$ ").trim_start_matches('a'), shown, "{flags:?}");
        server.say.send(Message::Text(exited("exited", Some(5), None).to_string().into())).unwrap();
        terminal.type_in(b"b");
        assert_eq!(finish(child).code, 5);
    }
}

#[test]
fn told_to_end_it_puts_the_terminal_back_and_says_how_to_find_the_program() {
    let (place, terminal, server) = (Place::new(), Terminal::open(), ShellServer::new());
    let before = format!("{:?}", terminal.modes());
    let child = terminal.start(shell(&place, &server.url));
    server.hear();
    terminal.type_in(b"x");
    server.hear();
    signal(&child, Signal::TERM);
    terminal.read(&format!("saggar sandbox logs {SANDBOX} {EXEC} -f"));
    assert_eq!(finish(child).code, 125);
    assert_eq!(format!("{:?}", terminal.modes()), before);
}

#[test]
fn on_a_terminal_what_a_program_prints_does_not_act_on_it() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let output = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x1b[31mred\x1b[0m last";
    let server = Scripted::new(move |_, connection| {
        let events = stream(&[
            ("0-0", started()),
            ("9-0", json!({"type": "stdout", "text": output})),
            ("9-0", exited("exited", Some(0), None)),
        ]);
        std::io::Write::write_all(connection, &events).unwrap();
    });
    let mut command = place.command(["sandbox", "exec", SANDBOX, "--stdin", "none", "--", "x"]);
    command.env("SAGGAR_URL", &server.url);
    let child = terminal.start(command);
    assert_eq!(terminal.read("last"), "\x1b[31mred\x1b[0m last");
    assert_eq!(finish(child).code, 0);
}

#[test]
fn on_a_terminal_a_table_is_no_wider_than_it() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let mut wide = sandbox("running");
    for index in 0..20 {
        wide["labels"][format!("label{index}")] = "some value".into();
    }
    let server = Scripted::new(move |_, connection| {
        std::io::Write::write_all(connection, &value(&json!({"items": [wide], "next_cursor": null}))).unwrap();
    });
    let mut command = place.command(["sandbox", "list"]);
    command.env("SAGGAR_URL", &server.url);
    let child = terminal.start(command);
    let said = terminal.read("…");
    assert!(said.lines().all(|line| line.trim_end().chars().count() <= 101), "{said}");
    assert_eq!(finish(child).code, 0);
}

#[test]
fn a_shell_that_is_refused_leaves_the_terminal_alone() {
    let (place, terminal) = (Place::new(), Terminal::open());
    let before = format!("{:?}", terminal.modes());
    let server = Scripted::new(|_, connection| {
        std::io::Write::write_all(connection, &problem(409, "sandbox_ended", "it has ended")).unwrap();
    });
    let child = terminal.start(shell(&place, &server.url));
    terminal.read("it has ended (sandbox_ended)");
    assert_eq!(finish(child).code, 126);
    assert_eq!(format!("{:?}", terminal.modes()), before);
}
