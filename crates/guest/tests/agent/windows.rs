//! How much output the agent sends ahead.

use std::io::Write;

use saggar_guest::{End, ExecRequest, FromGuest, SignalScope, Stream, ToGuest};

use crate::host::{Host, command, shell};

fn with_window(request: ExecRequest, window: u32) -> ExecRequest {
    ExecRequest { output_window: Some(window), ..request }
}

/// Takes outputs of exec 1 until there are this many bytes of them.
fn take(host: &mut Host, bytes: usize) {
    let mut taken = 0;
    while taken < bytes {
        match host.next() {
            FromGuest::Output { exec: 1, bytes, .. } => taken += bytes.len(),
            other => panic!("unexpected: {other:?}"),
        }
    }
    assert_eq!(taken, bytes);
}

/// The agent has no more frames about exec 1: another exec's frames come next.
fn check_quiet(host: &mut Host, probe: u32) {
    host.send(ToGuest::Exec(ExecRequest { exec: probe, ..command(&["true"]) }));
    for expected in ["Started", "Exited", "TreeGone"] {
        let frame = host.next();
        let exec = match frame {
            FromGuest::Started { exec, .. } | FromGuest::Exited { exec, .. } | FromGuest::TreeGone { exec } => exec,
            other => panic!("no {expected} but {other:?}"),
        };
        assert_eq!(exec, probe);
    }
}

#[test]
fn a_program_that_floods_is_held_until_there_is_credit() {
    const WINDOW: usize = 100_000;
    let mut host = Host::start();
    host.begin(with_window(command(&["yes"]), WINDOW as u32));
    take(&mut host, WINDOW);
    check_quiet(&mut host, 2);
    host.send(ToGuest::OutputTaken { exec: 1, bytes: 10 });
    take(&mut host, 10);
    check_quiet(&mut host, 3);
    host.send(ToGuest::OutputTaken { exec: 1, bytes: WINDOW as u32 });
    take(&mut host, WINDOW);
    host.send(ToGuest::Signal { exec: 1, signal: 9, scope: SignalScope::Tree });
    // What is left in its pipe is held back as well, and with it the report of its end.
    check_quiet(&mut host, 4);
    let credit = |host: &mut Host| host.send(ToGuest::OutputTaken { exec: 1, bytes: WINDOW as u32 });
    credit(&mut host);
    loop {
        match host.next() {
            FromGuest::Output { bytes, .. } => {
                host.send(ToGuest::OutputTaken { exec: 1, bytes: bytes.len() as u32 });
            }
            FromGuest::Exited { exec: 1, end } => break assert_eq!(end, End::Signal { signal: 9, core: false }),
            other => panic!("unexpected: {other:?}"),
        }
    }
    assert_eq!(host.next(), FromGuest::TreeGone { exec: 1 });
}

#[test]
fn the_window_is_for_both_streams_together_and_all_arrives() {
    let script = "head -c 300000 /dev/zero & head -c 300000 /dev/zero >&2; wait";
    let mut host = Host::start();
    host.begin(with_window(shell(script), 1000));
    let (mut stdout, mut stderr, mut unpaid) = (0, 0, 0);
    let end = loop {
        match host.next() {
            FromGuest::Output { stream, bytes, .. } => {
                match stream {
                    Stream::Stdout => stdout += bytes.len(),
                    Stream::Stderr => stderr += bytes.len(),
                }
                unpaid += bytes.len();
                assert!(unpaid <= 1000, "{unpaid} bytes without credit");
                if unpaid > 500 {
                    host.send(ToGuest::OutputTaken { exec: 1, bytes: unpaid as u32 });
                    unpaid = 0;
                }
            }
            FromGuest::Exited { end, .. } => break end,
            other => panic!("unexpected: {other:?}"),
        }
    };
    assert_eq!((stdout, stderr, end), (300_000, 300_000, End::Code(0)));
}

#[test]
fn a_program_that_ends_within_its_window_needs_no_credit() {
    let outcome = Host::start().run(with_window(shell("echo out; echo err >&2"), 8));
    assert_eq!((&*outcome.stdout, &*outcome.stderr), (&b"out\n"[..], &b"err\n"[..]));
}

#[test]
fn more_credit_than_was_used_ends_the_agent() {
    let mut host = Host::start();
    host.begin(with_window(command(&["sleep", "1000"]), 1000));
    host.send(ToGuest::OutputTaken { exec: 1, bytes: 1 });
    assert_eq!(host.wait_for_leave(), 11);
}

#[test]
fn credit_without_a_window_means_nothing() {
    let mut host = Host::start();
    host.begin(ExecRequest { stdin: true, ..command(&["cat"]) });
    host.send(ToGuest::OutputTaken { exec: 1, bytes: 1 });
    host.send(ToGuest::StdinEnd { exec: 1 });
    assert_eq!(host.finish().end, End::Code(0));
}

#[test]
fn what_is_left_goes_on_writing_and_is_not_told() {
    // The daemon writes far more than a pipe holds, after the program has ended, and then creates a file.
    let scratch = crate::host::Scratch::new();
    let (go, done) = (scratch.path().join("go"), scratch.path().join("done"));
    let name = std::ffi::CString::new(go.to_str().unwrap()).unwrap();
    // SAFETY: the path is a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let daemon = format!("read x <{}; head -c 1000000 /dev/zero && : >{}", go.display(), done.display());
    let mut host = Host::start();
    host.begin(shell(&format!("setsid sh -c '{daemon}' & exit 0")));
    let outcome = host.finish_program();
    assert_eq!((outcome.stdout.len(), outcome.end), (0, End::Code(0)));
    std::fs::OpenOptions::new().write(true).open(&go).unwrap().write_all(b"\n").unwrap();
    assert_eq!(host.next(), FromGuest::TreeGone { exec: 1 });
    assert!(done.exists());
}
