//! Sandboxes that are held: `saggar __supervise`, driven over its control socket against the real kernel.

mod harness;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use harness::{PATIENCE, Place};
use saggar_domain::{ExecId, ExecStatus, SandboxId};
use saggar_supervisor::control::{
    CONTROL, Client, Description, ExecState, Final, Op, Received, Reply, Start, StartExec, Terms, Then, encode_json,
};

/// A supervisor and its sandbox.
struct Supervisor {
    child: Child,
    sandbox: SandboxId,
    ready: Box<Description>,
    socket: std::path::PathBuf,
}

const FOR_EVER: Terms = Terms { ttl_ms: None, then: Then::Kill, idle_ms: None };

fn unique() -> [u8; 16] {
    let mut bits = [0; 16];
    rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty()).unwrap();
    bits
}

fn start(place: &Place, spec: serde_json::Value, terms: Terms, is_pooled: bool) -> Result<Supervisor, Reply> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let sandbox = SandboxId::from_random(unique());
    let mut command = place.command(["__supervise"]);
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut starter = Client::over(OwnedFd::from(ours));
    starter.set_patience(PATIENCE).unwrap();
    let data_directory = place.path("data");
    let start = Start { v: CONTROL, data_directory, sandbox_id: sandbox.clone(), spec, terms, is_pooled };
    let mut bytes = Vec::new();
    encode_json(&mut bytes, &start).unwrap();
    starter.send(&bytes).unwrap();
    match starter.receive().unwrap() {
        Received::Reply(Reply::Ready(ready)) => {
            let socket = place.path(&format!("data/control/{sandbox}.sock"));
            Ok(Supervisor { child, sandbox, ready, socket })
        }
        Received::Reply(other) => {
            child.wait().unwrap();
            Err(other)
        }
        other => panic!("{other:?}"),
    }
}

fn held(place: &Place) -> Supervisor {
    start(place, serde_json::json!({}), FOR_EVER, false).unwrap()
}

fn program(argv: &[&str]) -> StartExec {
    StartExec {
        exec_id: ExecId::from_random(unique()),
        argv: argv.iter().map(|argument| (*argument).to_owned()).collect(),
        env: Default::default(),
        cwd: None,
        user: None,
        stdin: false,
        tty: None,
        timeout_ms: None,
        limits: None,
        output_bytes: None,
        follow: true,
    }
}

/// What a followed exec gave.
#[derive(Debug, Default)]
struct Seen {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    gaps: [u64; 2],
    end: Option<ExecState>,
}

impl Supervisor {
    fn client(&self) -> Client {
        let client = Client::connect(&self.socket).unwrap();
        client.set_patience(PATIENCE).unwrap();
        client
    }

    fn request(&self, op: Op) -> Reply {
        self.client().request(op).unwrap()
    }

    fn exec(&self, start: StartExec) -> (Client, Box<ExecState>) {
        let mut client = self.client();
        match client.request(Op::Exec(Box::new(start))).unwrap() {
            Reply::Started(state) => (client, state),
            other => panic!("{other:?}"),
        }
    }

    fn sh(&self, script: &str) -> Seen {
        follow(&mut self.exec(program(&["/bin/sh", "-c", script])).0)
    }

    fn kill(mut self) -> Final {
        let Reply::Killed(last_word) = self.request(Op::Kill) else { panic!("not killed") };
        self.wait();
        *last_word
    }

    fn wait(&mut self) {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < PATIENCE, "the supervisor hangs");
            std::thread::yield_now();
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn follow(client: &mut Client) -> Seen {
    let mut seen = Seen::default();
    loop {
        match client.receive().unwrap() {
            Received::Output { stream: 1, offset, bytes } => {
                assert_eq!(offset, seen.stdout.len() as u64 + seen.gaps[0]);
                seen.stdout.extend(bytes);
            }
            Received::Output { offset, bytes, .. } => {
                assert_eq!(offset, seen.stderr.len() as u64 + seen.gaps[1]);
                seen.stderr.extend(bytes);
            }
            Received::Reply(Reply::Gap { stream, bytes }) => seen.gaps[usize::from(stream) - 1] += bytes,
            Received::Reply(Reply::Exited(end)) => {
                seen.end = Some(*end);
                return seen;
            }
            Received::End => return seen,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_exec_is_started_followed_and_ended() {
    let place = Place::new();
    let supervisor = held(&place);
    assert_eq!(supervisor.ready.sandbox_id, supervisor.sandbox);
    let seen = supervisor.sh("echo out; echo err >&2; exit 3");
    assert_eq!((seen.stdout, seen.stderr), (b"out\n".to_vec(), b"err\n".to_vec()));
    let end = seen.end.unwrap();
    assert_eq!((end.status, end.exit_code, end.leaves_processes), (Some(ExecStatus::Exited), Some(3), false));
    let last_word = supervisor.kill();
    assert_eq!(last_word.reason, saggar_domain::EndReason::Killed);
    assert_eq!(place.records(), Vec::<String>::new());
}
