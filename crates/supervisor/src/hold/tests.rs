//! The loop with fake agents and clients: agents that lie, and readers that don't read.

use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use saggar_domain::net::{NetDecision, Protocol, Verdict};
use saggar_domain::{
    Beginning, ByteSize, DeadlineAction, Denial, DenialCode, EndReason, ExecId, ExecSpec, SandboxId, Signal,
    SignalScope, Spec,
};
use saggar_guest::{Decoder, End, FailStage, FromGuest, PROTOCOL, Stream, ToGuest};
use saggar_jail::Signals;

use super::connection::{Connection, Role};
use super::exec::OUTPUT_WINDOW;
use super::happenings::Heard;
use super::moment::Moment;
use super::network::EVENTS_MAX;
use super::{Hold, Holding, Inside, Outcome};
use crate::channel::Channel;
use crate::control::{Client, EventBody, Op, Received, Reply, StartExec, Terms};

/// A loop with a fake agent at the other end of its channel, and a process in place of PID 1.
struct Fake {
    hold: Hold,
    agent: OwnedFd,
    decoder: Decoder<ToGuest>,
    _first: First,
}

/// Stands in for PID 1.
struct First(Child);

impl Fake {
    fn new() -> Self {
        let (channel, agent) = Channel::pair().unwrap();
        let first = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_child(&first);
        let (listener, _) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let hold = Hold::new(Holding {
            sandbox_id: SandboxId::from_random([1; 16]),
            inside: Inside {
                spec: Spec::resolve(serde_json::from_str("{}").unwrap()).unwrap(),
                policy_hash: String::new(),
                unenforced: Vec::new(),
                pid,
                pidfd: pidfd_open(pid, PidfdFlags::empty()).unwrap(),
                questions: None,
                channel,
                group: None,
                network: None,
                counters: Vec::new(),
                changes: None,
                based_on: None,
            },
            listener,
            signals: Signals::block(&[]).unwrap(),
            terms: Terms { ttl_ms: None, then: DeadlineAction::Kill, idle_ms: None },
            is_pooled: false,
            events_before: 0,
        });
        Self { hold, agent, decoder: Decoder::new(), _first: First(first) }
    }

    fn say(&mut self, frames: &[FromGuest]) {
        for frame in frames {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes).unwrap();
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let sent = rustix::net::send(&self.agent, rest, rustix::net::SendFlags::DONTWAIT).unwrap_or(0);
                rest = &rest[sent..];
                self.hold.converse(Moment::now());
            }
        }
        // A read takes a part; this many take everything that a socket holds.
        (0..32).for_each(|_| self.hold.converse(Moment::now()));
    }

    /// Frames that the agent received.
    fn heard(&mut self) -> Vec<ToGuest> {
        let (mut frames, mut bytes) = (Vec::new(), vec![0; 1 << 20]);
        while let Ok((length @ 1.., _)) = recv(&self.agent, &mut bytes[..], RecvFlags::DONTWAIT) {
            let mut input = &bytes[..length];
            while let Some(frame) = self.decoder.next_frame(&mut input).unwrap() {
                frames.push(frame);
            }
        }
        frames
    }

    fn connect(&mut self) -> Client {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::io::ioctl_fionbio(&theirs, true).unwrap();
        let token = self.hold.connections.len() as u64 + 1;
        self.hold.connections.insert(token, Connection::new(theirs, Moment::now()));
        let client = Client::over(ours);
        client.set_patience(Duration::from_secs(20)).unwrap();
        client
    }

    /// Sends a request, and lets the loop handle it.
    fn ask(&mut self, client: &mut Client, op: Op) {
        client.ask(op).unwrap();
        let tokens: Vec<u64> = self.hold.connections.keys().copied().collect();
        for token in tokens {
            self.hold.listen(token, Moment::now());
        }
        self.hold.pump(Moment::now());
    }

    fn exec(&mut self, client: &mut Client) {
        let start = StartExec {
            exec_id: ExecId::from_random([2; 16]),
            spec: ExecSpec {
                argv: vec!["program".to_owned()],
                stdin: true,
                output_bytes: Some(ByteSize::from_bytes(1000)),
                ..ExecSpec::default()
            },
            follow: true,
            is_fed_apart: false,
        };
        self.ask(client, Op::Exec(Box::new(start)));
    }
}

fn is_done(client: &mut Client) -> bool {
    matches!(client.receive().unwrap(), Received::Reply(Reply::Done))
}

fn second_exec() -> Op {
    let start = serde_json::json!({ "exec_id": ExecId::from_random([3; 16]), "argv": ["second"] });
    Op::Exec(Box::new(serde_json::from_value(start).unwrap()))
}

impl Drop for First {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait(); // As above.
    }
}

const HELLO: FromGuest = FromGuest::Hello { protocol: PROTOCOL };
const STARTED: FromGuest = FromGuest::Started { exec: 1, pid: 7 };
const EXITED: FromGuest = FromGuest::Exited { exec: 1, end: End::Code(0) };
const DESERTED: FromGuest = FromGuest::Deserted { exec: 1 };

fn output(exec: u32, length: u32) -> FromGuest {
    FromGuest::Output { exec, stream: Stream::Stdout, bytes: vec![b'x'; length as usize] }
}

#[test]
fn an_agent_that_says_what_cannot_be_is_given_up() {
    let failed = FromGuest::Failed { exec: 1, stage: FailStage::Program, errno: 2 };
    let gone = FromGuest::TreeGone { exec: 1 };
    let used = FromGuest::Used { exec: 1, cpu_usec: 1, memory_peak: 1 };
    let half = OUTPUT_WINDOW / 2 - 10_000;
    let lies = [
        vec![STARTED],
        vec![FromGuest::Hello { protocol: PROTOCOL + 1 }],
        vec![HELLO, HELLO],
        vec![HELLO, FromGuest::Started { exec: 2, pid: 7 }],
        vec![HELLO, output(1, 1)],
        vec![HELLO, EXITED],
        vec![HELLO, STARTED, STARTED],
        vec![HELLO, STARTED, output(9, 1)],
        vec![HELLO, STARTED, output(1, half), output(1, half), output(1, 20_001)],
        vec![HELLO, STARTED, FromGuest::StdinTaken { exec: 1, bytes: 1 }],
        vec![HELLO, STARTED, failed.clone()],
        vec![HELLO, STARTED, gone.clone()],
        vec![HELLO, STARTED, EXITED, EXITED],
        vec![HELLO, STARTED, EXITED, output(1, 1)],
        vec![HELLO, STARTED, EXITED, gone.clone(), gone.clone()],
        vec![HELLO, STARTED, FromGuest::StorageFull { exec: 2 }],
        vec![HELLO, used.clone()],
        vec![HELLO, STARTED, used.clone(), used.clone()],
        vec![HELLO, STARTED, EXITED, used.clone()],
        vec![HELLO, DESERTED],
        vec![HELLO, STARTED, DESERTED, DESERTED],
        vec![HELLO, STARTED, FromGuest::Deserted { exec: 2 }],
        vec![HELLO, failed.clone(), failed.clone()],
    ];
    for (position, lie) in lies.iter().enumerate() {
        let mut fake = Fake::new();
        let mut client = fake.connect();
        fake.exec(&mut client);
        let (last, truths) = lie.split_last().unwrap();
        fake.say(truths);
        assert_eq!(fake.hold.end, None, "before lie {position}");
        fake.say(std::slice::from_ref(last));
        assert_eq!(fake.hold.end, Some(EndReason::AgentLost), "lie {position}");
    }
}

#[test]
fn bytes_that_are_no_frame_and_an_end_are_the_loss_of_the_agent() {
    let mut fake = Fake::new();
    rustix::net::send(&fake.agent, &[255; 16], rustix::net::SendFlags::empty()).unwrap();
    fake.hold.converse(Moment::now());
    assert_eq!(fake.hold.end, Some(EndReason::AgentLost));
    let mut fake = Fake::new();
    fake.say(&[HELLO]);
    rustix::net::shutdown(&fake.agent, rustix::net::Shutdown::Both).unwrap();
    fake.hold.converse(Moment::now());
    assert_eq!(fake.hold.end, Some(EndReason::AgentLost));
}

#[test]
fn a_kill_that_waits_is_answered_when_no_process_is_left() {
    let mut fake = Fake::new();
    let [mut follower, mut waiting, mut other] = [fake.connect(), fake.connect(), fake.connect()];
    fake.exec(&mut follower);
    fake.say(&[HELLO, STARTED]);
    let kill = |wait| Op::Signal {
        exec_id: ExecId::from_random([2; 16]),
        signal: Signal::KILL,
        scope: SignalScope::Tree,
        wait,
    };
    fake.ask(&mut waiting, kill(true));
    fake.ask(&mut other, kill(false));
    // A client that doesn't wait is answered at once; one that waits, not before nothing is left.
    assert!(is_done(&mut other));
    let is_waiting = |fake: &Fake| {
        fake.hold.connections.values().filter(|other| matches!(other.role, Role::Burying { exec: 1 })).count()
    };
    assert_eq!(is_waiting(&fake), 1);
    fake.say(&[DESERTED]);
    fake.hold.pump(Moment::now());
    assert!(is_waiting(&fake) == 0 && is_done(&mut waiting));
    let state = fake.hold.describe().execs.remove(0);
    assert!(state.is_deserted && state.status.is_none());
    fake.say(&[FromGuest::Used { exec: 1, cpu_usec: 2500, memory_peak: 4096 }, EXITED]);
    let usage = fake.hold.describe().execs.remove(0).usage.unwrap();
    assert_eq!((usage.cpu_ms, usage.memory_peak_bytes, usage.processes_peak), (Some(2), Some(4096), None));
    // A client that asks now need not wait.
    fake.ask(&mut waiting, kill(true));
    assert!(is_done(&mut waiting));
}

#[test]
fn a_denial_is_the_execs_whose_process_it_was() {
    let mut fake = Fake::new();
    let [mut one, mut two] = [fake.connect(), fake.connect()];
    fake.exec(&mut one);
    fake.say(&[HELLO, STARTED]);
    fake.ask(&mut two, second_exec());
    fake.say(&[FromGuest::Started { exec: 2, pid: 8 }]);
    let denial =
        |rule: &str| Denial { code: DenialCode::SyscallRefused, rule: rule.to_owned(), message: String::new() };
    fake.hold.note_denial(&[20, 8, 3, 1], &denial("second"));
    fake.hold.note_denial(&[20, 8, 3, 1], &denial("second"));
    // Neither is an ancestor, or nothing can be seen.
    fake.hold.note_denial(&[21, 1], &denial("both"));
    fake.hold.note_denial(&[], &denial("unseen"));
    let rules: Vec<Vec<String>> = fake
        .hold
        .describe()
        .execs
        .into_iter()
        .map(|exec| exec.denials.into_iter().map(|denial| denial.rule).collect())
        .collect();
    assert_eq!(rules, [vec!["both", "unseen"], vec!["second", "both", "unseen"]]);
}

#[test]
fn a_reader_that_takes_nothing_is_waited_for_and_then_not() {
    let mut fake = Fake::new();
    let mut client = fake.connect();
    fake.exec(&mut client);
    fake.say(&[HELLO, STARTED]);
    fake.hold.pump(Moment::now());
    fake.heard();
    // As much as the window, the buffer and the socket hold, until no more credit comes.
    let mut sent: u64 = 0;
    let mut credit = i64::from(OUTPUT_WINDOW);
    let mut is_told = true;
    while is_told || credit >= 4096 {
        let length = credit.min(4096) as u32;
        if length > 0 {
            fake.say(&[output(1, length)]);
            (sent, credit) = (sent + u64::from(length), credit - i64::from(length));
        }
        fake.hold.pump(Moment::now());
        is_told = false;
        for frame in fake.heard() {
            if let ToGuest::OutputTaken { bytes, .. } = frame {
                (credit, is_told) = (credit + i64::from(bytes), true);
            }
        }
    }
    assert_eq!(fake.hold.end, None);
    let much_later = Moment::now() + Duration::from_secs(31);
    fake.hold.revisit(much_later);
    fake.hold.pump(much_later);
    let told: u32 = fake
        .heard()
        .iter()
        .map(|frame| match frame {
            ToGuest::OutputTaken { bytes, .. } => *bytes,
            _ => 0,
        })
        .sum();
    assert!(told > OUTPUT_WINDOW / 2, "{told}");
    fake.say(&[EXITED]);
    let (mut received, mut missed) = (0, 0);
    client.set_patience(Duration::from_millis(10)).unwrap();
    loop {
        fake.hold.pump(Moment::now());
        match client.receive() {
            Ok(Received::Output { offset, bytes, .. }) => {
                assert_eq!(offset, received + missed);
                received += bytes.len() as u64;
            }
            Ok(Received::Reply(Reply::Gap { bytes, .. })) => missed += bytes,
            Ok(Received::Reply(Reply::Started(_))) => {}
            Ok(Received::Reply(Reply::Exited(_))) => break,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(missed > 0);
    assert_eq!(received + missed, sent);
}

/// Feeds a program this many bytes, then lets `then` act on the feeder. Returns what reached the agent once `is_done`
/// holds.
fn fed(
    count: usize,
    then: impl FnOnce(&mut Fake, Client) -> Option<Client>,
    is_done: impl Fn(usize, bool) -> bool,
) -> usize {
    let mut fake = Fake::new();
    let mut client = fake.connect();
    fake.exec(&mut client);
    fake.say(&[HELLO, STARTED]);
    fake.hold.pump(Moment::now());
    fake.heard();
    client.feed(&vec![b'x'; count]).unwrap();
    let _client = then(&mut fake, client);
    let (mut passed, mut is_over, mut taken) = (0, false, 0);
    for _ in 0..1000 {
        fake.hold.listen(1, Moment::now());
        fake.hold.revisit(Moment::now());
        fake.hold.pump(Moment::now());
        for frame in fake.heard() {
            match frame {
                ToGuest::Stdin { bytes, .. } => passed += bytes.len(),
                ToGuest::StdinEnd { .. } => is_over = true,
                _ => {}
            }
        }
        assert!(passed - taken <= saggar_guest::STDIN_WINDOW);
        if is_done(passed, is_over) {
            break;
        }
        if passed > taken {
            fake.say(&[FromGuest::StdinTaken { exec: 1, bytes: (passed - taken) as u32 }]);
            taken = passed;
        }
    }
    passed
}

#[test]
fn stdin_is_passed_on_as_the_program_takes_it() {
    let end = |fake: &mut Fake, mut client: Client| {
        fake.ask(&mut client, Op::StdinEnd { exec_id: None });
        Some(client)
    };
    assert_eq!(fed(100_000, end, |_, is_over| is_over), 100_000);
}

#[test]
fn what_somebody_fed_gets_there_though_they_are_gone_and_the_program_prints() {
    let leave = |fake: &mut Fake, client: Client| {
        drop(client);
        fake.say(&[output(1, 1000)]);
        fake.hold.pump(Moment::now());
        None
    };
    assert_eq!(fed(100_000, leave, |passed, _| passed == 100_000), 100_000);
}

#[test]
fn the_loop_ends_with_the_agent_and_tells_those_who_follow() {
    let mut fake = Fake::new();
    let mut client = fake.connect();
    fake.exec(&mut client);
    fake.say(&[HELLO, STARTED, output(1, 5)]);
    let mut late = fake.connect();
    fake.ask(
        &mut late,
        Op::Attach(crate::control::Attach {
            exec_id: ExecId::from_random([2; 16]),
            from: Beginning::Start,
            stdin: false,
        }),
    );
    fake.say(&[HELLO]);
    let Outcome::Ended(held) = fake.hold.run() else { panic!("nothing asked it to begin again") };
    assert!(held.reaped.is_some());
    assert_eq!((held.last_word.reason, held.last_word.execs.len()), (EndReason::AgentLost, 1));
    assert!(matches!(late.receive().unwrap(), Received::Reply(Reply::Started(_))));
    let mut seen = Vec::new();
    while let Received::Output { bytes, .. } = late.receive().unwrap() {
        seen.extend(bytes);
    }
    assert_eq!(seen, b"xxxxx");
}

#[test]
fn decisions_that_come_too_fast_are_told_as_sums_by_host() {
    let mut fake = Fake::new();
    let decision = |host: &str| NetDecision {
        host: host.to_owned(),
        address: None,
        port: 443,
        protocol: Protocol::Tls,
        method: None,
        path: None,
        verdict: Verdict::Denied,
        rule: "egress/default".to_owned(),
        reason: None,
        secrets: Vec::new(),
        bytes_up: 1,
        bytes_down: 0,
        duration_ms: 0,
        connection: None,
        times: 1,
    };
    let now = Moment::now();
    for _ in 0..EVENTS_MAX + 10 {
        fake.hold.note_decision(decision("a.test"), None, now);
    }
    fake.hold.note_decision(decision("b.test"), None, now);
    // Also if nothing comes any more.
    let until = fake.hold.decisions_told.next().unwrap();
    fake.hold.tick_network(until);
    let mut after = 0;
    let told = std::iter::from_fn(|| {
        fake.hold.happenings.next(&mut after).map(|heard| match heard {
            Heard::Event(event) => match &event.body {
                EventBody::Decision { decision, .. } => Some((decision.host.clone(), decision.times)),
                _ => None,
            },
            Heard::Gone(_) => None,
        })
    });
    let told: Vec<_> = told.flatten().collect();
    assert_eq!(told[told.len() - 3..], [("a.test".to_owned(), 1), ("a.test".to_owned(), 10), ("b.test".to_owned(), 1)]);
    assert_eq!(fake.hold.decisions_told.next(), None);
}
