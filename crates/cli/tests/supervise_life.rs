//! The life of a held sandbox: its deadlines, pauses, owner, events and streams, and that nothing is left over.

mod harness;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use harness::held::{FOR_EVER, Supervisor, ask_in, held, program, start, until};
use harness::{Place, is_root, not_here};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use saggar_domain::{Code, DeadlineAction, EndReason, ExecStatus, SandboxState, User};
use saggar_supervisor::control::{Client, Description, Event, EventBody, Final, Op, Received, Reply, Target, Terms};

#[test]
fn a_kill_leaves_nothing_and_the_last_word_stays() {
    let place = Place::new();
    let supervisor = held(&place);
    supervisor.sh("echo kept; setsid sleep 1000 >/dev/null 2>&1 &");
    let mut start = program(&["/bin/sh", "-c", "echo running; exec sleep 1000"]);
    start.follow = true;
    let (mut follower, _) = supervisor.exec(start);
    assert!(matches!(follower.receive().unwrap(), Received::Output { bytes, .. } if bytes == b"running\n"));
    let sandbox = supervisor.sandbox.clone();
    let inside = tree(&supervisor);
    assert!(inside.len() > 2, "{inside:?}");
    let last_word = supervisor.kill();
    let alive: Vec<Pid> = inside.into_iter().filter(|pid| test_kill_process(*pid).is_ok()).collect();
    assert_eq!(alive, []);
    assert_eq!(place.records(), Vec::<String>::new());
    assert_eq!(names(&place, "data/control"), Vec::<String>::new());
    assert_eq!(cgroups_of(sandbox.as_str()), 0);
    let end = follower.receive().unwrap();
    assert!(
        matches!(&end, Received::Reply(Reply::Exited(end)) if end.status == Some(ExecStatus::Cancelled)),
        "{end:?}"
    );
    let kept = ended(&place, &sandbox);
    assert_eq!((kept.reason, kept.execs.len(), kept.is_claimed), (EndReason::Killed, 2, true));
    assert_eq!((last_word.ended_ms, last_word.execs[0].stdout.as_str()), (kept.ended_ms, "a2VwdAo="));
    let ending = |event: &Event| event.body == EventBody::Ending { reason: EndReason::Killed };
    assert!(kept.events.iter().any(ending), "{:?}", kept.events);
}

#[test]
fn it_ends_when_its_time_is_up_or_nobody_uses_it() {
    for (ttl_ms, idle_ms, reason) in [(Some(200), None, EndReason::TimedOut), (None, Some(200), EndReason::Idle)] {
        let place = Place::new();
        let terms = Terms { ttl_ms, then: DeadlineAction::Kill, idle_ms };
        let mut supervisor = start(&place, serde_json::json!({}), terms, false).unwrap();
        supervisor.wait();
        assert_eq!(ended(&place, &supervisor.sandbox).reason, reason);
    }
}

#[test]
fn a_followed_program_is_use_and_new_terms_hold() {
    let place = Place::new();
    let terms = Terms { ttl_ms: Some(3_600_000), then: DeadlineAction::Kill, idle_ms: Some(300) };
    let mut supervisor = start(&place, serde_json::json!({}), terms, false).unwrap();
    let mut start = program(&["/bin/sh", "-c", "sleep 1; echo woke; read word"]);
    start.spec.stdin = true;
    let (mut client, _) = supervisor.exec(start);
    assert!(matches!(client.receive().unwrap(), Received::Output { bytes, .. } if bytes == b"woke\n"));
    let described = described(supervisor.request(Op::SetTerms { terms: FOR_EVER }));
    assert_eq!((described.ttl_left_ms, described.idle_ms), (None, None));
    let terms = Terms { ttl_ms: Some(1), then: DeadlineAction::Kill, idle_ms: None };
    // It may be gone before it can answer.
    let _ = supervisor.client().request(Op::SetTerms { terms });
    supervisor.wait();
    assert_eq!(ended(&place, &supervisor.sandbox).reason, EndReason::TimedOut);
}

#[test]
fn what_is_paused_stands_still_and_goes_on() {
    let place = Place::new();
    let supervisor = held(&place);
    let mut start = program(&["/bin/sh", "-c", "while :; do echo tick; sleep 0.01; done"]);
    start.follow = false;
    supervisor.exec(start);
    let ticks = |described: &Description| described.execs[0].stdout_bytes;
    until(|| Some(described(supervisor.request(Op::Describe))).filter(|described| ticks(described) > 0));
    let paused = match supervisor.request(Op::Pause) {
        Reply::Error(problem) => {
            assert_eq!(problem.code, Code::UnsupportedCapability);
            return not_here("no cgroup that can be frozen");
        }
        reply => described(reply),
    };
    assert_eq!(paused.state, SandboxState::Paused);
    for op in [Op::Exec(Box::new(program(&["/bin/true"]))), Op::Open { target: Target::Files, user: User::User }] {
        assert!(matches!(supervisor.request(op), Reply::Error(problem) if problem.code == Code::SandboxPaused));
    }
    assert_eq!(described(supervisor.request(Op::Pause)).state, SandboxState::Paused);
    // Output that was in transit when it froze has arrived by the first of these; then there is no more.
    let still = described(supervisor.request(Op::Describe));
    assert!(tree(&supervisor).iter().all(|pid| is_stopped(*pid)));
    assert_eq!(ticks(&described(supervisor.request(Op::Describe))), ticks(&still));
    let resumed = described(supervisor.request(Op::Resume { terms: None }));
    assert_eq!(resumed.state, SandboxState::Running);
    until(|| Some(described(supervisor.request(Op::Describe))).filter(|described| ticks(described) > ticks(&still)));
    assert_eq!(described(supervisor.request(Op::Pause)).state, SandboxState::Paused);
    let inside = tree(&supervisor);
    assert_eq!(supervisor.kill().reason, EndReason::Killed);
    assert!(inside.iter().all(|pid| test_kill_process(*pid).is_err()));
}

#[test]
fn it_pauses_by_itself_and_a_resume_gives_it_time_again() {
    let place = Place::new();
    let terms = Terms { ttl_ms: Some(300), then: DeadlineAction::Pause, idle_ms: None };
    let supervisor = match start(&place, serde_json::json!({}), terms, false) {
        Ok(supervisor) => supervisor,
        Err(reply) => {
            assert!(matches!(*reply, Reply::Error(problem) if problem.code == Code::UnsupportedCapability));
            return not_here("no cgroup that can be frozen");
        }
    };
    let paused = until(|| {
        Some(described(supervisor.request(Op::Describe))).filter(|described| described.state == SandboxState::Paused)
    });
    assert_eq!(paused.ttl_left_ms, Some(0));
    let resumed = described(supervisor.request(Op::Resume { terms: Some(FOR_EVER) }));
    assert_eq!((resumed.state, resumed.ttl_left_ms), (SandboxState::Running, None));
    assert_eq!(supervisor.sh("echo awake").stdout, b"awake\n");
    let bodies: Vec<EventBody> = supervisor.kill().events.into_iter().map(|event| event.body).collect();
    assert!(
        bodies.contains(&EventBody::Paused { by_itself: true }) && bodies.contains(&EventBody::Resumed),
        "{bodies:?}"
    );
}

#[test]
fn what_is_made_ahead_waits_for_its_owner() {
    let place = Place::new();
    let brief = Terms { ttl_ms: Some(60_000), then: DeadlineAction::Pause, idle_ms: Some(1) };
    let supervisor = start(&place, serde_json::json!({}), brief, true).unwrap();
    assert!(!supervisor.ready.is_claimed);
    assert!(supervisor.ready.ttl_left_ms.is_some_and(|left| (1..=60_000).contains(&left)));
    assert_eq!(supervisor.sh("echo ${WHOSE-nobody}").stdout, b"nobody\n");
    let claim = || Op::Claim {
        terms: FOR_EVER,
        env: [("WHOSE".to_owned(), "mine".to_owned())].into(),
        egress: None,
        uses_secrets: false,
    };
    assert!(described(supervisor.request(claim())).is_claimed);
    assert!(matches!(supervisor.request(claim()), Reply::Error(problem) if problem.code == Code::Contradiction));
    assert_eq!(supervisor.sh("echo ${WHOSE-nobody}").stdout, b"mine\n");
    drop(supervisor);
    let unwanted = start(&place, serde_json::json!({}), brief, true).unwrap();
    assert_eq!(unwanted.kill().reason, EndReason::Unclaimed);
}

#[test]
fn what_nobody_comes_for_ends_by_itself_and_leaves_nothing() {
    let place = Place::new();
    // Paused it would wait forever: a sandbox without an owner can only end.
    let brief = Terms { ttl_ms: Some(200), then: DeadlineAction::Pause, idle_ms: None };
    let mut forgotten = start(&place, serde_json::json!({}), brief, true).unwrap();
    forgotten.wait();
    let last_word = ended(&place, &forgotten.sandbox);
    assert_eq!((last_word.reason, last_word.is_claimed), (EndReason::Unclaimed, false));
    assert_eq!(place.records(), Vec::<String>::new());
    assert_eq!(cgroups_of(forgotten.sandbox.as_str()), 0);
}

#[test]
fn events_come_as_they_happen_and_again_from_any_number() {
    let place = Place::new();
    let supervisor = held(&place);
    let mut listener = supervisor.client();
    listener.ask(Op::Events { after: 0 }).unwrap();
    let first = event(&mut listener);
    assert!(first.seq == 1 && matches!(first.body, EventBody::Started { .. }));
    // A system call that is refused and reported.
    supervisor.sh("unshare -m true 2>/dev/null; exit 0");
    let mut events = vec![first];
    while !matches!(events.last().unwrap().body, EventBody::ExecEnded(_)) {
        events.push(event(&mut listener));
    }
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| match event.body {
            EventBody::Started { .. } => "started",
            EventBody::ExecStarted { .. } => "exec started",
            EventBody::ExecEnded(_) => "exec ended",
            EventBody::Denial { .. } => "denial",
            _ => "other",
        })
        .collect();
    assert_eq!(kinds, ["started", "exec started", "denial", "exec ended"]);
    let mut again = supervisor.client();
    again.ask(Op::Events { after: 2 }).unwrap();
    assert_eq!([event(&mut again), event(&mut again)], [events[2].clone(), events[3].clone()]);
}

#[test]
fn usage_is_told() {
    let place = Place::new();
    let supervisor = held(&place);
    supervisor.sh("head -c 3000000 /dev/zero > /tmp/file");
    let Reply::Used(used) = supervisor.request(Op::Usage) else { panic!("no usage") };
    assert!(used.now.disk_bytes.is_some_and(|bytes| bytes >= 3_000_000), "{used:?}");
    if !is_root() || harness::cgroups().is_empty() {
        return not_here("no cgroup counts memory and processes here");
    }
    assert!(used.now.memory_bytes.is_some_and(|bytes| bytes > 0), "{used:?}");
    // Only the agent, once the keeper of the exec's tree has gone.
    harness::held::until(|| {
        let Reply::Used(used) = supervisor.request(Op::Usage) else { panic!("no usage") };
        (used.now.processes == Some(1)).then_some(())
    });
}

#[test]
fn a_port_inside_is_reached_and_a_closed_one_refuses() {
    let place = Place::new();
    let supervisor = held(&place);
    let script = "use IO::Socket::INET; $|=1; $s=IO::Socket::INET->new(LocalAddr=>'127.0.0.1',LocalPort=>8080,Listen=>1) or die; \
                  print \"up\\n\"; $c=$s->accept; $l=<$c>; print $c uc $l;";
    let (mut server, _) = supervisor.exec(program(&["/usr/bin/perl", "-e", script]));
    assert!(matches!(server.receive().unwrap(), Received::Output { bytes, .. } if bytes == b"up\n"));
    let mut stream = open(&supervisor, Target::Port(8080));
    let mut preface = [9; 5];
    stream.read_exact(&mut preface).unwrap();
    assert_eq!(preface, [0; 5]);
    stream.write_all(b"hello\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "HELLO\n");
    open(&supervisor, Target::Port(8081)).read_exact(&mut preface).unwrap();
    assert_eq!(preface[0], 1);
}

#[test]
fn a_session_about_files_answers() {
    const STORAGE_REQUEST: u8 = 0x2f;
    const STORAGE_REPLY: u8 = 0xa8;
    let place = Place::new();
    let supervisor = held(&place);
    let mut stream = open(&supervisor, Target::Files);
    stream.write_all(&[8, 0, 0, 0, STORAGE_REQUEST, 4, 0, 0, 0]).unwrap();
    stream.write_all(b"/tmp").unwrap();
    let mut header = [0; 5];
    stream.read_exact(&mut header).unwrap();
    let mut payload = vec![0; usize::from(header[0])];
    stream.read_exact(&mut payload).unwrap();
    assert_eq!(header[4], STORAGE_REPLY, "{payload:?}");
}

#[test]
fn a_sandbox_dies_with_its_supervisor_and_the_reaper_removes_the_rest() {
    let place = Place::new();
    let mut supervisor = held(&place);
    supervisor.sh("setsid sleep 1000 >/dev/null 2>&1 &");
    let inside = tree(&supervisor);
    supervisor.child.kill().unwrap();
    supervisor.wait();
    until(|| inside.iter().all(|pid| !is_alive(*pid)).then_some(()));
    assert_eq!(place.records().len(), 1);
    assert_eq!(place.run(&[], &["/bin/true"]).code, 0);
    assert_eq!((place.records().len(), names(&place, "data/control").len()), (0, 0));
    assert_eq!(cgroups_of(supervisor.sandbox.as_str()), 0);
}

#[test]
fn sigterm_ends_it_in_order_and_sighup_does_not() {
    let place = Place::new();
    let mut supervisor = held(&place);
    let pid = Pid::from_child(&supervisor.child);
    for signal in [Signal::HUP, Signal::INT] {
        kill_process(pid, signal).unwrap();
    }
    assert_eq!(supervisor.sh("echo alive").stdout, b"alive\n");
    kill_process(pid, Signal::TERM).unwrap();
    supervisor.wait();
    assert_eq!(ended(&place, &supervisor.sandbox).reason, EndReason::Killed);
    assert_eq!((place.records().len(), names(&place, "data/control").len()), (0, 0));
}

#[test]
fn one_whose_starter_dies_before_it_is_ready_ends_and_leaves_nothing() {
    let place = Place::new();
    let (mut child, starter, sandbox) = ask_in(&place.path("data"), serde_json::json!({}), FOR_EVER, false);
    drop(starter);
    until(|| child.try_wait().expect("our own child"));
    assert_eq!(ended(&place, &sandbox).reason, EndReason::Killed);
    assert_eq!((place.records().len(), names(&place, "data/control").len()), (0, 0));
}

#[test]
fn what_cannot_be_made_is_refused_and_leaves_nothing() {
    let place = Place::new();
    for (spec, code) in [
        (serde_json::json!({"netwrok": "none"}), Code::InvalidSpec),
        (serde_json::json!({"tier": "vm"}), Code::UnsupportedCapability),
        (serde_json::json!({"workspace": "/not/there"}), Code::InvalidWorkspace),
        (serde_json::json!([]), Code::InvalidSpec),
    ] {
        let reply = start(&place, spec.clone(), FOR_EVER, false).unwrap_err();
        assert!(matches!(&*reply, Reply::Error(problem) if problem.code == code), "{spec}: {reply:?}");
    }
    assert_eq!((place.records().len(), names(&place, "data/control").len()), (0, 0));
}

#[test]
fn what_is_not_the_protocol_is_answered_and_bounded() {
    let place = Place::new();
    let supervisor = held(&place);
    let json = |text: &str| [&(text.len() as u32).to_le_bytes()[..], &[0], text.as_bytes()].concat();
    for (bytes, code) in [
        (json("{\"v\": 1, \"op\": \"fly\"}"), Code::InvalidValue),
        (json("{\"v\": 99, \"op\": \"fly\"}"), Code::UnsupportedProtocol),
        (json("not json"), Code::InvalidValue),
        (vec![0, 0, 0, 0, 7], Code::InvalidValue),
        (vec![255, 255, 255, 255, 0], Code::InvalidValue),
        (vec![0, 0, 0, 0, 2], Code::InvalidValue),
        (json("{\"v\": 1, \"op\": \"stdin_end\"}"), Code::InvalidValue),
    ] {
        let mut client = supervisor.client();
        client.send(&bytes).unwrap();
        let received = client.receive().unwrap();
        assert!(matches!(&received, Received::Reply(Reply::Error(problem)) if problem.code == code), "{received:?}");
    }
    // A client that never finishes its request delays no other client.
    let mut slow = supervisor.client();
    slow.send(&[0, 0]).unwrap();
    assert_eq!(supervisor.sh("echo served").stdout, b"served\n");
}

#[test]
fn whoever_holds_all_streams_open_keeps_nobody_from_ending_it() {
    let place = Place::new();
    let supervisor = held(&place);
    let mut streams = Vec::new();
    let refused = loop {
        let mut client = supervisor.client();
        client.ask(Op::Events { after: 0 }).unwrap();
        match client.receive().unwrap() {
            Received::Reply(Reply::Event(_)) => streams.push(client),
            other => break other,
        }
        assert!(streams.len() <= 256, "no end to streams");
    };
    assert!(matches!(&refused, Received::Reply(Reply::Error(problem)) if problem.code == Code::TooMany), "{refused:?}");
    let idle: Vec<Client> = (0..40).map(|_| supervisor.client()).collect();
    drop(idle);
    until(|| match supervisor.client().request(Op::Describe) {
        Ok(Reply::Described(_)) => Some(()),
        // The dropped connections have not been noticed yet.
        Ok(Reply::Error(problem)) if problem.code == Code::TooMany => None,
        Err(_) => None,
        other => panic!("{other:?}"),
    });
    assert_eq!(supervisor.kill().reason, EndReason::Killed);
}

#[test]
fn a_data_directory_may_have_a_long_path() {
    let place = Place::new();
    let long = "d".repeat(120);
    std::fs::create_dir_all(place.path(&long)).unwrap();
    let supervisor =
        harness::held::start_in(&place.path(&format!("{long}/data")), serde_json::json!({}), FOR_EVER, false).unwrap();
    assert_eq!(supervisor.sh("echo here").stdout, b"here\n");
    supervisor.kill();
}

fn described(reply: Reply) -> Description {
    match reply {
        Reply::Described(described) => *described,
        other => panic!("{other:?}"),
    }
}

fn event(client: &mut Client) -> Event {
    match client.receive().expect("ours") {
        Received::Reply(Reply::Event(event)) => *event,
        other => panic!("{other:?}"),
    }
}

fn open(supervisor: &Supervisor, target: Target) -> UnixStream {
    let mut client = supervisor.client();
    let reply = client.request(Op::Open { target, user: User::User }).expect("ours");
    assert!(matches!(reply, Reply::Opened), "{reply:?}");
    let stream = UnixStream::from(client.take_descriptor().expect("it comes with the reply"));
    stream.set_read_timeout(Some(harness::PATIENCE)).expect("ours");
    stream
}

fn ended(place: &Place, sandbox: &saggar_domain::SandboxId) -> Final {
    let text = std::fs::read_to_string(place.path(&format!("data/ended/{sandbox}.json"))).expect("it was written");
    serde_json::from_str(&text).expect("it is JSON")
}

fn names(place: &Place, directory: &str) -> Vec<String> {
    let entries = std::fs::read_dir(place.path(directory)).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn cgroups_of(sandbox: &str) -> usize {
    harness::cgroups_of(sandbox).len()
}

/// Every process under the supervisor.
fn tree(supervisor: &Supervisor) -> Vec<Pid> {
    let mut found = vec![Pid::from_child(&supervisor.child)];
    let mut position = 0;
    while let Some(pid) = found.get(position) {
        let path = format!("/proc/{pid}/task/{pid}/children", pid = pid.as_raw_nonzero());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        found.extend(text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)));
        position += 1;
    }
    found.remove(0);
    found
}

fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// A frozen process doesn't run, and its CPU time stands still.
fn is_stopped(pid: Pid) -> bool {
    let state = |pid: Pid| std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let before = state(pid);
    before == state(pid) && !before.contains(") R ")
}
