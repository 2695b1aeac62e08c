//! Making a sandbox: a supervisor that fails leaves nothing, and one request makes one sandbox.

use saggar_domain::{Code, Draft, EndReason, SandboxState, User};
use saggar_runtime::Fault;

use crate::fake::{Behaviour, Host, Step};
use crate::server::{Place, Server, plain, reason, with_spec};

fn spec(json: &str) -> Draft {
    serde_json::from_str(json).unwrap()
}

/// Nothing is left of a sandbox that could not be made, and the same request can be made again.
fn check_failed_start(server: &Server, host: &Host, place: &Place, behaviour: Behaviour) {
    host.next(&[behaviour]);
    let refused = server.run(server.create(plain(), Some("the-key"))).unwrap_err();
    match behaviour {
        Behaviour::Refuses => {
            assert!(matches!(refused, Fault::Refused(problem) if problem.code == Code::UnenforcedLimit))
        }
        _ => assert!(matches!(refused, Fault::Internal { .. }), "{behaviour:?}: {refused:?}"),
    }
    let rows = server.rows();
    assert_eq!(rows.iter().map(reason).collect::<Vec<_>>(), [Some(EndReason::StartFailed)], "{behaviour:?}");
    assert_eq!((server.taken(), host.held(), place.entries("creating")), (0, vec![], 0), "{behaviour:?}");
    let made = server.run(server.create(plain(), Some("the-key"))).unwrap();
    assert!(!made.is_replay && made.sandbox.life.state() == SandboxState::Running);
    assert_eq!((server.taken(), host.held()), (1, vec![made.sandbox.asked.id]));
}

#[test]
fn a_supervisor_that_fails_before_it_is_ready_leaves_nothing_and_gives_its_place_back() {
    for behaviour in [Behaviour::CannotBeStarted, Behaviour::DiesUntold, Behaviour::DiesTold, Behaviour::Refuses] {
        let (place, host) = (Place::new(), Host::apart());
        check_failed_start(&Server::start(&place, &host), &host, &place, behaviour);
    }
}

#[test]
fn a_supervisor_that_never_gets_ready_is_killed_and_gives_its_place_back() {
    for behaviour in [Behaviour::Hangs, Behaviour::Babbles] {
        let place = Place::new();
        let (server, host) = Server::start_paused(&place, |_| {});
        check_failed_start(&server, &host, &place, behaviour);
        assert_eq!(host.alive(), 1, "{behaviour:?}: only the second lives");
    }
}

#[test]
fn a_supervisor_that_dies_as_soon_as_it_is_ready_is_lost_and_gives_its_place_back() {
    let (place, host) = (Place::new(), Host::apart());
    let server = Server::start(&place, &host);
    host.next(&[Behaviour::DiesReady]);
    let id = server.made();
    assert_eq!(server.end_of(&id), EndReason::SupervisorLost);
    assert_eq!((server.taken(), place.entries("control")), (0, 0));
}

#[test]
fn the_spec_reaches_the_supervisor_whole_and_the_row_without_its_environment() {
    let (place, host) = (Place::new(), Host::apart());
    let server = Server::start(&place, &host);
    let asked = spec(
        r#"{"template": "base", "env": {"A": "1"}, "cwd": "/tmp", "user": "root", "network": "none", "strict": true,
            "limits": {"memory": "512M", "cpus": 0.5, "pids": 64, "disk": "100M", "files": 256, "output": "64K"}}"#,
    );
    let id = server.run(server.create(with_spec(asked.clone()), None)).unwrap().sandbox.asked.id;
    assert_eq!(host.sandbox(&id).start().spec, asked);
    let stored = server.row(&id).unwrap().asked.spec;
    assert_eq!(stored, Draft { env: Default::default(), ..asked });
    // A server that comes after reads it too.
    server.kill();
    let server = Server::start(&place, &host);
    let permit = server.permit(saggar_runtime::Action::Exec(id));
    assert_eq!(server.sandboxes.default_user(&permit), User::Root);
}

#[test]
fn what_cannot_be_made_is_refused_before_anything_is_started() {
    let (place, host) = (Place::new(), Host::apart());
    let server = Server::start(&place, &host);
    for (json, code, named) in [
        (r#"{"workspace": "/home"}"#, Code::InvalidValue, "workspace"),
        (r#"{"mounts": [{"host": "/etc", "guest": "/data"}]}"#, Code::InvalidValue, "mounts"),
        (r#"{"network": "host"}"#, Code::UnsupportedCapability, "network"),
        (r#"{"egress": {"allow": ["a.example"]}}"#, Code::Contradiction, "network rules"),
        (r#"{"tier": "vm"}"#, Code::UnsupportedCapability, "tier"),
        (r#"{"limits": {"memory": "1K"}}"#, Code::InvalidValue, "memory"),
    ] {
        let Err(Fault::Refused(problem)) = server.run(server.create(with_spec(spec(json)), None)) else {
            panic!("{json} is not refused");
        };
        assert!(problem.code == code && problem.message.contains(named), "{json}: {problem:?}");
    }
    let unknown = server.run(server.create(with_spec(spec(r#"{"template": "mine"}"#)), None));
    assert!(matches!(&unknown, Err(Fault::NoSuchTemplate(problem)) if problem.message.contains("mine")), "{unknown:?}");
    assert_eq!((host.launched(), server.rows().len(), server.taken()), (0, 0, 0));
}

#[test]
fn a_key_that_is_repeated_makes_one_sandbox_during_and_after() {
    let (place, host) = (Place::new(), Host::apart());
    let server = Server::start(&place, &host);
    host.stop_at(Step::Told);
    let (first, second) = server.run(async {
        let again = async {
            host.stopped().await;
            let again = server.create(plain(), Some("the-key")).await;
            host.go_on();
            again
        };
        tokio::join!(server.create(plain(), Some("the-key")), again)
    });
    let first = first.unwrap();
    assert!(matches!(second, Err(Fault::InProgress)), "{second:?}");
    let third = server.run(server.create(plain(), Some("the-key"))).unwrap();
    assert_eq!((third.is_replay, &third.sandbox.asked.id), (true, &first.sandbox.asked.id));
    assert_eq!(third.access_token, first.access_token);
    let other = with_spec(spec(r#"{"user": "root"}"#));
    assert!(matches!(server.run(server.create(other, Some("the-key"))), Err(Fault::IdempotencyMismatch)));
    assert_eq!((host.launched(), server.rows().len(), server.taken()), (1, 1, 1));
}

#[test]
fn past_the_capacity_nothing_is_started_and_a_place_that_is_free_again_is_given() {
    let (place, host) = (Place::new(), Host::apart());
    let server = Server::start_with(&place, &host, |settings| settings.capacity = 1);
    let first = server.run(server.create(plain(), Some("the-key"))).unwrap().sandbox.asked.id;
    assert!(matches!(server.run(server.create(plain(), None)), Err(Fault::Capacity { .. })));
    assert!(server.run(server.create(plain(), Some("the-key"))).unwrap().is_replay, "it needs no room");
    assert_eq!((host.launched(), server.rows().len()), (1, 1));
    let permit = server.permit(saggar_runtime::Action::KillSandbox(first.clone()));
    server.run(server.sandboxes.kill(&permit)).unwrap();
    assert_eq!((server.end_of(&first), server.taken()), (EndReason::Killed, 0));
    server.made();
}
