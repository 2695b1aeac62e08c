//! Agents that misbehave. The report of an exec never depends on the agent's cooperation.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use saggar_guest::{End, FromGuest, PROTOCOL};
use saggar_jail::seccomp::Listener;
use saggar_jail::{Jailed, Signals};
use saggar_supervisor::{Attendance, Channel, Ending, ExecOutcome, Sink, Streams};

/// Far less than the supervisor waits for an unkillable process, and far more than a kill takes.
const SOON: Duration = Duration::from_secs(10);

/// Attends an agent that sends these frames and then does nothing, with its channel closed or not.
fn attend(frames: &[FromGuest], is_closed: bool) -> (ExecOutcome, Duration) {
    let mut agent = Command::new("/bin/sleep").arg("1000").spawn().expect("sleep is everywhere");
    let (channel, theirs) = Channel::pair().expect("sockets can be made");
    let mut theirs = UnixStream::from(theirs);
    let mut bytes = Vec::new();
    frames.iter().for_each(|frame| frame.encode(&mut bytes).expect("short"));
    theirs.write_all(&bytes).expect("it fits");
    let kept_open = (!is_closed).then_some(theirs);
    let signals = Signals::block(&[]).expect("no signal is watched");
    let attendance = Attendance {
        jailed: Jailed {
            pid: Pid::from_child(&agent),
            pidfd: pidfd(&agent),
            listener: silent(),
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
        streams: Streams { stdin: None, stdout: Sink::keep(100), stderr: Sink::keep(100), terminal: None },
        network: None,
        asker: None,
    };
    let start = Instant::now();
    let outcome = attendance.run(&mut |_| {}).expect("it can be attended");
    let took = start.elapsed();
    drop(kept_open);
    if outcome.reaped.is_none() {
        agent.kill().expect("it lives");
    }
    // A reaped process can't be waited for again.
    assert_eq!(agent.wait().is_err(), outcome.reaped.is_some());
    (outcome, took)
}

fn pidfd(child: &Child) -> OwnedFd {
    pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("our own child")
}

/// Never sends a notification.
fn silent() -> Listener {
    Listener::from_fd(eventfd(0, EventfdFlags::CLOEXEC).expect("descriptors are left"))
}

#[test]
fn an_agent_that_stays_when_all_is_said_is_dead_when_the_end_is_told() {
    let hello = FromGuest::Hello { protocol: PROTOCOL };
    let started = FromGuest::Started { exec: 1, pid: 2 };
    let exited = FromGuest::Exited { exec: 1, end: End::Code(7) };
    for (frames, is_closed, expected) in [
        (vec![], true, Ending::GuestLost),
        (vec![hello.clone()], true, Ending::GuestLost),
        (vec![hello.clone(), started.clone()], true, Ending::GuestLost),
        (vec![hello.clone(), started.clone(), exited.clone()], true, Ending::Ended(End::Code(7))),
        // Out of order, and it keeps listening.
        (vec![started.clone()], false, Ending::GuestLost),
    ] {
        let (outcome, took) = attend(&frames, is_closed);
        assert_eq!((outcome.ending, outcome.reaped.is_some()), (expected, true), "{frames:?}");
        assert!(took < SOON, "{frames:?}: told after {took:?}");
    }
}
