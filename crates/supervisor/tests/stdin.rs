//! How much of stdin is read ahead, whatever the agent claims.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use saggar_guest::{FromGuest, PROTOCOL};
use saggar_jail::seccomp::Listener;
use saggar_jail::{Jailed, Signals};
use saggar_supervisor::{Attendance, Channel, Sink, Streams};

/// More than the buffers on the way, and much less than the input.
const AHEAD_MAX: u64 = 4 << 20;
const STDIN_LEN: u64 = 1 << 30;

#[test]
fn an_agent_that_claims_to_read_does_not_make_the_supervisor_hold_all_of_stdin() {
    let mut agent = Command::new("/bin/sleep").arg("1000").spawn().expect("sleep is everywhere");
    let (channel, theirs) = Channel::pair().expect("sockets can be made");
    // A sparse file of zeroes; both descriptors share one position.
    let stdin = rustix::fs::memfd_create("stdin", MemfdFlags::CLOEXEC).expect("memory is left");
    rustix::fs::ftruncate(&stdin, STDIN_LEN).expect("our own");
    let position = stdin.try_clone().expect("descriptors are left");
    let signals = Signals::block(&[]).expect("no signal is watched");
    let attendance = Attendance {
        jailed: Jailed {
            pid: Pid::from_child(&agent),
            pidfd: pidfd_open(Pid::from_child(&agent), PidfdFlags::empty()).expect("our own child"),
            listener: Listener::from_fd(eventfd(0, EventfdFlags::CLOEXEC).expect("descriptors are left")),
            layer: None,
            changes: None,
            gates: None,
            kept: Vec::new(),
            counters: Vec::new(),
        },
        channel,
        exec: 1,
        deadline: Instant::now() + Duration::from_secs(60),
        memory_bytes: 1 << 30,
        signals: &signals,
        streams: Streams { stdin: Some(stdin), stdout: Sink::keep(0), stderr: Sink::keep(0), terminal: None },
        network: None,
        asker: None,
    };
    let claims = std::thread::spawn(|| claim(theirs));
    attendance.run(&mut |_| {}).expect("it can be attended");
    claims.join().expect("it doesn't panic");
    assert!(agent.wait().is_err(), "it was reaped already");
    let ahead = rustix::fs::tell(position.as_fd()).expect("our own");
    assert!(ahead < AHEAD_MAX, "{ahead} bytes were read for an agent that reads none");
}

/// Claims for half a second that everything was taken, and reads nothing.
fn claim(theirs: OwnedFd) {
    let mut theirs = UnixStream::from(theirs);
    let frames = |frames: &[FromGuest]| {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.encode(&mut bytes).expect("short"));
        bytes
    };
    let start = Instant::now();
    let mut said =
        theirs.write_all(&frames(&[FromGuest::Hello { protocol: PROTOCOL }, FromGuest::Started { exec: 1, pid: 2 }]));
    while said.is_ok() && start.elapsed() < Duration::from_millis(500) {
        said = theirs.write_all(&frames(&[FromGuest::StdinTaken { exec: 1, bytes: 64 << 10 }]));
    }
}
