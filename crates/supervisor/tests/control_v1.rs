//! Supervisors outlive the server that started them, so a new server must understand an old supervisor, and must not
//! send anything that it doesn't understand.
//!
//! `golden/control-v1.jsonl` contains the frames of a version 1 supervisor and its client, one per line. It must never
//! change.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

use saggar_domain::{
    Beginning, Code, DeadlineAction, EndReason, ExecStatus, Offsets, OutputStream, SandboxState, Signal, SignalScope,
};
use saggar_supervisor::control::{CONTROL, EventBody, Op, Reply, Request, Start, Target};
use serde_json::Value;

const GOLDEN: &str = include_str!("golden/control-v1.jsonl");
/// Requests as version 1 writes them, every field of them.
const REQUESTS: &str = include_str!("golden/control-v1-requests.jsonl");

fn lines(kind: &str) -> Vec<Value> {
    let all = GOLDEN.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter_map(|mut line| line.get_mut(kind).map(Value::take)).collect()
}

#[test]
fn what_version_1_answers_is_understood() {
    let replies: Vec<Reply> = lines("reply").into_iter().map(|line| serde_json::from_value(line).unwrap()).collect();
    let mut seen = Vec::new();
    for reply in replies {
        seen.push(match reply {
            Reply::Ready(description) | Reply::Described(description) => {
                assert_eq!(
                    (description.protocol, description.state, description.then),
                    (1, SandboxState::Paused, DeadlineAction::Pause)
                );
                assert_eq!((description.execs.len(), description.last_event), (1, 7));
                assert_eq!(description.guest_protocol, 2);
                let exec = &description.execs[0];
                assert!(exec.usage.is_none() && exec.denials.is_empty() && !exec.is_deserted);
                "described"
            }
            Reply::Started(state) => {
                assert_eq!((state.pid, state.status), (12, None));
                "started"
            }
            Reply::Gap { stream, bytes } => {
                assert_eq!((stream, bytes), (OutputStream::Stderr, 4096));
                "gap"
            }
            Reply::Exited(state) => {
                assert_eq!((state.status, state.exit_code), (Some(ExecStatus::Exited), Some(3)));
                "exited"
            }
            Reply::Opened => "opened",
            Reply::Still(_) | Reply::WentOn { .. } | Reply::Environment { .. } => panic!("no answer of version 1"),
            Reply::Done => "done",
            Reply::Used(report) => {
                assert_eq!((report.now.memory_bytes, report.samples.len()), (Some(1_048_576), 1));
                "used"
            }
            Reply::Event(event) => {
                assert!(matches!(event.body, EventBody::Ending { reason: EndReason::Idle }));
                "event"
            }
            Reply::EventsGone { through } => {
                assert_eq!(through, 5);
                "events_gone"
            }
            Reply::Killed(last) => {
                assert_eq!((last.reason, last.execs[0].stdout.as_str()), (EndReason::Killed, "aGk="));
                "killed"
            }
            Reply::Error(problem) => {
                assert_eq!(problem.code, Code::SandboxPaused);
                "error"
            }
        });
    }
    let all =
        ["described", "started", "gap", "exited", "opened", "done", "used", "event", "events_gone", "killed", "error"];
    assert_eq!(seen, all);
}

#[test]
fn what_is_asked_is_what_version_1_was_asked() {
    let requests: Vec<Request> =
        lines("request").into_iter().map(|line| serde_json::from_value(line).unwrap()).collect();
    assert!(requests.iter().all(|request| request.v == 1 && request.v <= CONTROL));
    for (request, line) in requests.iter().zip(lines("request")) {
        // Every old message must still be written the same way: a field may be added, but none removed or changed.
        let now = serde_json::to_value(request).unwrap();
        for (name, value) in line.as_object().unwrap() {
            assert_eq!(now.get(name), Some(value), "{line}");
        }
    }
    let ops: Vec<&Op> = requests.iter().map(|request| &request.op).collect();
    assert!(matches!(ops[0], Op::Describe));
    assert!(matches!(ops[1], Op::Exec(start) if start.spec.argv == ["true"] && start.follow));
    assert!(
        matches!(ops[2], Op::Attach(attach) if attach.from == Beginning::Offsets(Offsets { stdout: 5, stderr: 0 }))
    );
    assert!(matches!(ops[3], Op::Signal { signal: Signal::TERM, scope: SignalScope::Tree, .. }));
    assert!(matches!(ops[4], Op::Open { target: Target::Port(80), .. }));
    assert!(matches!(ops[5], Op::Resume { terms: None }));
    assert!(matches!(ops[6], Op::Kill));
}

#[test]
fn every_field_of_a_request_is_written_as_version_1_writes_it() {
    for line in REQUESTS.lines() {
        let request: Request = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_value(&request).unwrap(), serde_json::from_str::<Value>(line).unwrap());
    }
}

#[test]
fn a_field_that_a_request_has_too_many_is_passed_over() {
    let known: Value = serde_json::from_str(REQUESTS.lines().nth(1).unwrap()).unwrap();
    let mut newer = known.clone();
    newer["colour"] = "blue".into();
    newer["tty"]["depth"] = 24.into();
    newer["limits"]["gpus"] = 1.into();
    let read: Request = serde_json::from_value(newer).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), known);
}

#[test]
fn an_answer_says_its_state_and_its_stream_as_in_version_1() {
    for stream in [1, 2] {
        let line = serde_json::json!({"gap": {"stream": stream, "bytes": 5}});
        let reply: Reply = serde_json::from_value(line.clone()).unwrap();
        assert_eq!(serde_json::to_value(&reply).unwrap(), line);
    }
    let described = lines("reply").remove(0);
    for state in ["running", "paused", "ending"] {
        let mut line = described.clone();
        line["described"]["state"] = state.into();
        let reply: Reply = serde_json::from_value(line).unwrap();
        let again = serde_json::to_value(&reply).unwrap();
        assert_eq!((&again["described"]["state"], &again["described"]["then"]), (&state.into(), &"pause".into()));
    }
}

#[test]
fn what_is_newer_than_its_reader_is_no_error() {
    let event: EventBody = serde_json::from_str(r#"{"type":"from_the_future","what":1}"#).unwrap();
    assert_eq!(event, EventBody::Unknown);
    let reply = r#"{"error":{"code":"from_the_future","message":"m","help":"h","more":true}}"#;
    assert!(matches!(serde_json::from_str(reply).unwrap(), Reply::Error(problem) if problem.code == Code::Internal));
}

/// What servers of version 1 told supervisors to hold. A server whose binary was replaced while it ran starts supervisors of the new
/// version, so these must go on being read.
const STARTS: &str = include_str!("golden/start-v1.jsonl");

#[test]
fn what_version_1_told_a_supervisor_to_hold_is_understood_and_said_again() {
    for line in STARTS.lines() {
        let start: Start = serde_json::from_str(line).unwrap();
        assert_eq!((start.v, start.data_directory.as_os_str()), (1, "/srv/data".as_ref()));
        let mut before: Value = serde_json::from_str(line).unwrap();
        // An empty environment is no longer said.
        let spec = before["spec"].as_object_mut().unwrap();
        if spec.get("env") == Some(&serde_json::json!({})) {
            spec.remove("env");
        }
        assert_eq!(serde_json::to_value(&start).unwrap(), before);
    }
}

#[test]
fn a_supervisor_refuses_a_spec_that_it_does_not_understand_whole() {
    let line = STARTS.lines().next().unwrap().replace(r#""network":"none""#, r#""rules":["none"]"#);
    let error = serde_json::from_str::<Start>(&line).unwrap_err().to_string();
    assert!(error.contains("unknown field `rules`"), "{error}");
}
