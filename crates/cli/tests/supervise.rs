//! Execs in a held sandbox: `saggar __supervise`, driven over its control socket on the real kernel.

mod harness;

use harness::held::{Seen, follow, held, program};
use harness::{Place, is_root, not_here};
use saggar_domain::{
    Beginning, ByteSize, Code, Count, EndReason, ExecLimits, ExecStatus, Offsets, OutputStream, Signal, SignalScope,
    TerminalSize, Timeout, User,
};
use saggar_supervisor::control::{Attach, Client, Op, Received, Reply};

#[test]
fn an_exec_is_started_followed_and_ended() {
    let place = Place::new();
    let supervisor = held(&place);
    assert_eq!(supervisor.ready.sandbox_id, supervisor.sandbox);
    let seen = supervisor.sh("echo out; echo err >&2; exit 3");
    assert_eq!((seen.stdout, seen.stderr), (b"out\n".to_vec(), b"err\n".to_vec()));
    let end = seen.end.unwrap();
    assert_eq!((end.status, end.exit_code, end.signal), (Some(ExecStatus::Exited), Some(3), None));
    assert_eq!((end.stdout_bytes, end.stderr_bytes, end.stdout_dropped), (4, 4, 0));
    let last_word = supervisor.kill();
    assert_eq!(last_word.reason, EndReason::Killed);
    assert_eq!(place.records(), Vec::<String>::new());
}

#[test]
fn execs_run_side_by_side_and_keep_apart() {
    let place = Place::new();
    let supervisor = held(&place);
    let mut start = program(&["/bin/sh", "-c", "read word; echo first $word"]);
    start.spec.stdin = true;
    let (mut first, _) = supervisor.exec(start);
    assert_eq!(supervisor.sh("echo second").stdout, b"second\n");
    first.feed(b"went on\n").unwrap();
    assert_eq!(follow(&mut first).stdout, b"first went on\n");
}

#[test]
fn stdin_arrives_whole_and_ends() {
    let place = Place::new();
    let supervisor = held(&place);
    let mut start = program(&["/bin/sh", "-c", "wc -c; md5sum </dev/null >/dev/null"]);
    start.spec.stdin = true;
    let (mut client, _) = supervisor.exec(start);
    for _ in 0..16 {
        client.feed(&vec![b'x'; 100_000]).unwrap();
    }
    client.ask(Op::StdinEnd { exec_id: None }).unwrap();
    assert_eq!(String::from_utf8(follow(&mut client).stdout).unwrap().trim(), "1600000");
}

#[test]
fn who_follows_from_the_first_byte_may_leave_the_feeding_to_another() {
    let place = Place::new();
    let supervisor = held(&place);
    // More than is kept: a later follower would have missed its beginning.
    let mut start = program(&["/bin/sh", "-c", "head -c 3000000 /dev/zero; read word; echo $word"]);
    (start.spec.stdin, start.is_fed_apart) = (true, true);
    let (mut follower, state) = supervisor.exec(start);
    let mut feeder = supervisor.client();
    feeder.ask(attach(&state.exec_id, Beginning::Now, true)).unwrap();
    assert!(matches!(feeder.receive().unwrap(), Received::Reply(Reply::Started(_))));
    feeder.feed(b"apart\n").unwrap();
    // It reads nothing, and must not delay the other.
    drop(feeder);
    let seen = follow(&mut follower);
    assert_eq!((seen.stdout.len(), seen.gaps), (3_000_006, [0, 0]));
    assert!(seen.stdout.ends_with(b"apart\n"));
}

#[test]
fn a_follower_that_goes_away_kills_nothing_and_another_goes_on() {
    let place = Place::new();
    let supervisor = held(&place);
    let mut start = program(&["/bin/sh", "-c", "echo one; read word; echo two $word"]);
    start.spec.stdin = true;
    let (mut client, state) = supervisor.exec(start);
    let Received::Output { bytes, .. } = client.receive().unwrap() else { panic!("no output") };
    assert_eq!(bytes, b"one\n");
    let refused = supervisor.request(attach(&state.exec_id, Beginning::Start, true));
    assert!(matches!(refused, Reply::Error(problem) if problem.code == Code::TooMany));
    drop(client);
    // The end of the first is noticed before the second is examined, or the second waits for it.
    let mut client = harness::held::until(|| {
        let mut client = supervisor.client();
        client.ask(attach(&state.exec_id, Beginning::Offsets(Offsets { stdout: 2, stderr: 0 }), true)).unwrap();
        match client.receive().unwrap() {
            Received::Reply(Reply::Started(_)) => {
                let Received::Output { offset, bytes, .. } = client.receive().unwrap() else { panic!("no output") };
                assert_eq!((offset, bytes), (2, b"e\n".to_vec()));
                Some(client)
            }
            Received::Reply(Reply::Error(problem)) if problem.code == Code::TooMany => None,
            other => panic!("{other:?}"),
        }
    });
    client.feed(b"three\n").unwrap();
    let Received::Output { offset, bytes, .. } = client.receive().unwrap() else { panic!("no output") };
    assert_eq!((offset, bytes), (4, b"two three\n".to_vec()));
}

#[test]
fn finished_output_is_read_from_anywhere_and_a_gap_is_told() {
    let place = Place::new();
    let supervisor = held(&place);
    let mut start = program(&["/bin/sh", "-c", "head -c 10000 /dev/zero; printf err >&2"]);
    start.spec.output_bytes = Some(ByteSize::from_bytes(1003));
    start.follow = false;
    let (_, state) = supervisor.exec(start);
    let attached = |from| {
        let mut client = supervisor.client();
        client.ask(attach(&state.exec_id, from, false)).unwrap();
        rest(&mut client)
    };
    harness::held::until(|| attached(Beginning::Now).end.filter(|end| end.status.is_some()));
    let whole = attached(Beginning::Offsets(Offsets { stdout: 0, stderr: 0 }));
    let counts = (whole.gaps, whole.stdout.len(), whole.stderr.as_slice());
    assert!(matches!(counts, ([9000, 0], 1000, b"err")), "{counts:?}");
    assert_eq!(attached(Beginning::Offsets(Offsets { stdout: 9999, stderr: 3 })).stdout.len(), 1);
    assert_eq!(attached(Beginning::Start).stdout.len(), 1000);
    let beyond =
        supervisor.request(attach(&state.exec_id, Beginning::Offsets(Offsets { stdout: 10001, stderr: 0 }), false));
    assert!(matches!(beyond, Reply::Error(problem) if problem.code == Code::InvalidValue));
    let unknown = supervisor.request(attach(&program(&["x"]).exec_id, Beginning::Start, false));
    assert!(matches!(unknown, Reply::Error(problem) if problem.code == Code::NoSuchExec));
}

#[test]
fn a_slow_follower_makes_the_program_wait_and_loses_nothing() {
    let place = Place::new();
    let supervisor = held(&place);
    let mut start = program(&["/bin/sh", "-c", "head -c 8000000 /dev/zero; echo done >&2"]);
    // Far less than is printed: if the reader were not waited for, there would be a gap.
    start.spec.output_bytes = Some(ByteSize::from_bytes(1000));
    let (mut client, _) = supervisor.exec(start);
    for _ in 0..50 {
        assert!(matches!(supervisor.request(Op::Describe), Reply::Described(_)));
    }
    let Reply::Described(described) = supervisor.request(Op::Describe) else { panic!("not described") };
    assert!(described.execs[0].status.is_none() && described.execs[0].stdout_bytes < 4_000_000, "{described:?}");
    let seen = follow(&mut client);
    assert_eq!((seen.stdout.len(), seen.stderr.as_slice(), seen.gaps), (8_000_000, &b"done\n"[..], [0, 0]));
}

#[test]
fn without_a_follower_nothing_waits_and_the_newest_is_kept() {
    let place = Place::new();
    let supervisor = held(&place);
    let mut start = program(&["/bin/sh", "-c", "head -c 4000000 /dev/zero; printf last"]);
    start.follow = false;
    supervisor.exec(start);
    let end = harness::held::until(|| match supervisor.request(Op::Describe) {
        Reply::Described(described) => described.execs.into_iter().find(|exec| exec.status.is_some()),
        other => panic!("{other:?}"),
    });
    assert_eq!((end.stdout_bytes, end.stdout_dropped), (4_000_004, 4_000_004 - (1 << 20)));
}

#[test]
fn a_terminal_has_the_size_it_is_given() {
    let place = Place::new();
    let supervisor = held(&place);
    let mut start = program(&["/bin/sh", "-c", "stty size; read word; stty size; echo $TERM"]);
    (start.spec.stdin, start.spec.tty) = (true, Some(TerminalSize { rows: 30, cols: 100 }));
    let exec_id = start.exec_id.clone();
    let (mut client, _) = supervisor.exec(start);
    let mut text = String::new();
    while !text.contains("30 100") {
        let Received::Output { bytes, .. } = client.receive().unwrap() else { panic!("ended early: {text:?}") };
        text += &String::from_utf8(bytes).unwrap();
    }
    client.ask(Op::Resize { exec_id, size: TerminalSize { rows: 11, cols: 22 } }).unwrap();
    client.feed(b"\n").unwrap();
    let rest = loop {
        match client.receive().unwrap() {
            Received::Output { bytes, .. } => text += &String::from_utf8(bytes).unwrap(),
            Received::Reply(Reply::Exited(_)) => break text,
            other => panic!("{other:?}"),
        }
    };
    assert!(rest.contains("11 22") && rest.contains("xterm-256color"), "{rest:?}");
}

#[test]
fn a_signal_to_the_tree_reaches_what_was_left_behind() {
    let place = Place::new();
    let supervisor = held(&place);
    let seen = supervisor.sh("setsid sleep 1000 >/dev/null 2>&1 & setsid sleep 1000 >/dev/null 2>&1 & exit 0");
    let exec_id = seen.end.unwrap().exec_id;
    let leaves = |wanted: bool| {
        harness::held::until(|| match supervisor.request(Op::Describe) {
            Reply::Described(described) => (described.execs[0].leaves_processes == wanted).then_some(()),
            other => panic!("{other:?}"),
        });
    };
    leaves(true);
    let reply = supervisor.request(Op::Signal { exec_id, signal: Signal::KILL, scope: SignalScope::Tree, wait: false });
    assert!(matches!(reply, Reply::Done));
    leaves(false);
}

#[test]
fn an_exec_that_takes_too_long_is_ended_with_all_it_started() {
    let place = Place::new();
    let supervisor = held(&place);
    let mut start = program(&["/bin/sh", "-c", "sleep 1000 & sleep 1000"]);
    start.spec.timeout = Some(Timeout::millis(50));
    let end = follow(&mut supervisor.exec(start).0).end.unwrap();
    assert_eq!((end.status, end.exit_code, end.signal), (Some(ExecStatus::TimedOut), None, None));
    assert_eq!(supervisor.sh("pgrep sleep || echo none").stdout, b"none\n");
}

#[test]
fn what_cannot_be_started_is_said_and_the_sandbox_goes_on() {
    let place = Place::new();
    let supervisor = held(&place);
    let mut elsewhere = program(&["/bin/true"]);
    elsewhere.spec.cwd = Some("/not/there".to_owned());
    let mut relative = program(&["/bin/true"]);
    relative.spec.cwd = Some("not/absolute".to_owned());
    let mut twice = program(&["/bin/true"]);
    twice.exec_id = supervisor.sh("exit 0").end.unwrap().exec_id;
    for (start, code) in [
        (program(&["/no/such/program"]), Code::ProgramNotFound),
        (program(&["/etc/passwd"]), Code::ProgramNotExecutable),
        (program(&[]), Code::InvalidValue),
        (elsewhere, Code::InvalidCwd),
        (relative, Code::InvalidValue),
        (twice, Code::InvalidValue),
    ] {
        let reply = supervisor.request(Op::Exec(Box::new(start)));
        assert!(matches!(&reply, Reply::Error(problem) if problem.code == code), "{code:?}: {reply:?}");
    }
    assert_eq!(supervisor.sh("echo still here").stdout, b"still here\n");
}

#[test]
fn an_exec_has_an_environment_a_user_and_a_directory_of_its_own() {
    let place = Place::new();
    let spec = serde_json::json!({"env": {"A": "spec", "B": "spec"}});
    let supervisor = harness::held::start(&place, spec, harness::held::FOR_EVER, false).unwrap();
    let mut start = program(&["/bin/sh", "-c", "echo $A $B $(pwd) ${SAGGAR_DATA_DIR-none}"]);
    start.spec.env = [("B".to_owned(), "exec".to_owned())].into();
    start.spec.cwd = Some("/tmp".to_owned());
    assert_eq!(follow(&mut supervisor.exec(start).0).stdout, b"spec exec /tmp none\n");
    if !is_root() {
        return not_here("only root can give a sandbox two users");
    }
    let mut start = program(&["/bin/sh", "-c", "id -u; pwd"]);
    start.spec.user = Some(User::Root);
    assert_eq!(follow(&mut supervisor.exec(start).0).stdout, b"0\n/root\n");
}

#[test]
fn what_the_supervisor_does_with_signals_is_not_inherited() {
    let place = Place::new();
    let supervisor = held(&place);
    for signal in ["HUP", "INT", "QUIT", "TERM", "PIPE"] {
        let seen = supervisor.sh(&format!("kill -{signal} $$; echo survived"));
        assert_eq!(
            (seen.stdout.as_slice(), seen.end.unwrap().status),
            (&b""[..], Some(ExecStatus::Signaled)),
            "{signal}"
        );
    }
}

#[test]
fn an_exec_has_limits_of_its_own_and_only_it_feels_them() {
    let place = Place::new();
    let supervisor = held(&place);
    let hungry = "head -c 100000000 /dev/zero | tail -c 100000000 | wc -c";
    let mut start = program(&["/bin/sh", "-c", "head -c 100000000 /dev/zero | tail -c 100000000 >/dev/null"]);
    start.spec.limits =
        Some(ExecLimits { memory: Some(ByteSize::mebibytes(20)), pids: Some(Count::new(10)), cpus: None });
    let mut client = supervisor.client();
    match client.request(Op::Exec(Box::new(start))).unwrap() {
        Reply::Started(_) => {}
        Reply::Error(problem) => {
            assert_eq!(problem.code, Code::UnsupportedCapability);
            return not_here("no cgroup controllers of version 1");
        }
        other => panic!("{other:?}"),
    }
    let end = follow(&mut client).end.unwrap();
    assert_eq!(end.status, Some(ExecStatus::OutOfMemory), "{end:?}");
    assert_eq!(supervisor.sh(hungry).stdout, b"100000000\n");
    let portions = || harness::cgroups_of(supervisor.sandbox.as_str()).iter().any(|path| path.join("exec-1").exists());
    harness::held::until(|| (!portions()).then_some(()));
}

fn attach(exec_id: &saggar_domain::ExecId, from: Beginning, stdin: bool) -> Op {
    Op::Attach(Attach { exec_id: exec_id.clone(), from, stdin })
}

/// Like [`follow`], for a reader that starts in the middle.
fn rest(client: &mut Client) -> Seen {
    let mut seen = Seen::default();
    loop {
        match client.receive().expect("ours") {
            Received::Output { stream: OutputStream::Stdout, bytes, .. } => seen.stdout.extend(bytes),
            Received::Output { bytes, .. } => seen.stderr.extend(bytes),
            Received::Reply(Reply::Gap { stream, bytes }) => seen.gaps[usize::from(stream.number()) - 1] += bytes,
            Received::Reply(Reply::Exited(end)) => seen.end = Some(*end),
            // The description comes before the output.
            Received::Reply(Reply::Started(_)) => {}
            Received::End => return seen,
            other => panic!("{other:?}"),
        }
    }
}
