//! A server that dies between two steps of making, giving away, pausing or ending a sandbox, and what the next one makes of it.

use saggar_domain::{EndReason, SandboxState};
use saggar_runtime::{Action, Adopted, Keep};

use crate::fake::{Behaviour, Host, Step};
use crate::server::{Place, Server, plain, reason};

/// A server that makes a sandbox, and goes no further when the supervisor is at this step.
fn stop_making(step: Step, key: Option<&str>) -> (Place, Host, Server) {
    stop_making_one(Behaviour::Good, step, key)
}

fn stop_making_one(behaviour: Behaviour, step: Step, key: Option<&str>) -> (Place, Host, Server) {
    let (place, host) = (Place::new(), Host::apart());
    host.next(&[behaviour]);
    let server = Server::start(&place, &host);
    host.stop_at(step);
    server.run(async {
        tokio::select! {
            made = server.create(plain(), key) => panic!("{made:?}"),
            () = host.stopped() => {}
        }
    });
    (place, host, server)
}

/// Nothing is left of the first, and the request can be made again.
fn check_nothing_left(place: &Place, host: &Host, server: &Server, key: Option<&str>) {
    assert_eq!(server.found, Adopted { ended: 1, ..Adopted::default() });
    assert_eq!((server.rows().len(), server.taken(), host.held()), (1, 0, vec![]));
    assert_eq!(["control", "ended", "creating"].map(|directory| place.entries(directory)), [0; 3]);
    let again = server.run(server.create(plain(), key)).unwrap();
    assert!(!again.is_replay && again.sandbox.life.state() == SandboxState::Running, "{again:?}");
}

#[test]
fn a_supervisor_whose_server_dies_before_it_is_ready_leaves_nothing() {
    for step in [Step::Launched, Step::Told, Step::Listening] {
        for key in [Some("the-key"), None] {
            let (place, host, server) = stop_making(step, key);
            server.kill();
            host.go_on();
            host.wait_ended();
            let server = Server::start(&place, &host);
            check_nothing_left(&place, &host, &server, key);
        }
    }
}

#[test]
fn a_supervisor_that_is_asked_while_it_ends_unheard_was_never_made() {
    for key in [Some("the-key"), None] {
        let (place, host, server) = stop_making_one(Behaviour::EndsSlowly, Step::Listening, key);
        server.kill();
        host.go_on();
        host.wait_ending();
        let server = Server::start(&place, &host);
        assert_eq!(server.rows().iter().map(reason).collect::<Vec<_>>(), [Some(EndReason::StartFailed)]);
        check_nothing_left(&place, &host, &server, key);
    }
}

#[test]
fn the_last_words_of_one_that_a_live_process_makes_are_left_to_that_process() {
    let (place, host, _maker) = stop_making(Step::Listening, Some("the-key"));
    host.go_on();
    host.wait_ready(1);
    host.end(&host.held()[0], EndReason::OutOfMemory);
    let other = Server::start_beside(&place, &host);
    assert_eq!((other.found, other.rows()[0].life.state()), (Adopted::default(), SandboxState::Creating));
    assert_eq!(place.entries("ended"), 1);
}

#[test]
fn a_supervisor_that_is_slower_than_the_next_server_leaves_nothing() {
    for key in [Some("the-key"), None] {
        let (place, host, server) = stop_making(Step::Told, key);
        server.kill();
        // Still stopped: to this server it does not exist.
        let server = Server::start(&place, &host);
        assert_eq!(server.rows().iter().map(reason).collect::<Vec<_>>(), [Some(EndReason::StartFailed)]);
        host.go_on();
        host.wait_ended();
        server.kill();
        let server = Server::start(&place, &host);
        assert_eq!((server.found, server.taken(), place.entries("ended")), (Adopted::default(), 0, 0));
        assert_eq!(server.rows().iter().map(reason).collect::<Vec<_>>(), [Some(EndReason::StartFailed)]);
    }
}

#[test]
fn a_supervisor_that_was_ready_is_kept_for_a_client_that_can_ask_again_and_ended_otherwise() {
    for key in [Some("the-key"), None] {
        let (place, host, server) = stop_making(Step::Listening, key);
        host.go_on();
        host.wait_ready(1);
        // It has not read that, and never will.
        server.kill();
        let server = Server::start(&place, &host);
        let rows = server.rows();
        match key {
            Some(key) => {
                assert_eq!((server.found, server.taken()), (Adopted { live: 1, ..Adopted::default() }, 1));
                assert_eq!(rows[0].life.state(), SandboxState::Running);
                let again = server.run(server.create(plain(), Some(key))).unwrap();
                assert_eq!((again.is_replay, &again.sandbox.asked.id), (true, &rows[0].asked.id));
            }
            None => {
                let found = Adopted { strangers: 1, ..Adopted::default() };
                assert_eq!((server.found, server.taken(), host.held()), (found, 0, vec![]));
                assert!(reason(&rows[0]).is_some());
                assert_eq!((place.entries("control"), place.entries("ended")), (0, 0));
            }
        }
        assert_eq!((rows.len(), host.launched(), place.entries("creating")), (1, 1, 0));
    }
}

#[test]
fn one_given_to_a_client_that_was_never_told_is_ended() {
    let (place, host) = (Place::new(), Host::apart());
    let server = Server::start(&place, &host);
    let ready = crate::pool::put_ready(&server, &host);
    host.stop_at(Step::Claimed);
    server.run(async {
        tokio::select! {
            made = server.create(plain(), Some("the-key")) => panic!("{made:?}"),
            () = host.stopped() => {}
        }
    });
    server.kill();
    host.go_on();
    let server = Server::start(&place, &host);
    assert_eq!((server.found, host.held()), (Adopted { strangers: 1, ..Adopted::default() }, vec![]));
    let made = server.run(server.create(plain(), Some("the-key"))).unwrap();
    assert!(!made.is_replay && made.sandbox.asked.id != ready);
}

#[test]
fn one_frozen_by_a_server_that_died_over_it_is_paused() {
    let (place, host) = (Place::new(), Host::apart());
    let server = Server::start(&place, &host);
    let id = server.made();
    host.stop_at(Step::Paused);
    let permit = server.permit(Action::ChangeSandbox(id.clone()));
    server.run(async {
        tokio::select! {
            paused = server.sandboxes.pause(&permit, Keep::Memory) => panic!("{paused:?}"),
            () = host.stopped() => {}
        }
    });
    server.kill();
    host.go_on();
    let server = Server::start(&place, &host);
    assert_eq!(server.row(&id).unwrap().life.state(), SandboxState::Paused);
}

#[test]
fn one_ended_by_a_server_that_died_over_it_ends_as_it_was_asked_to() {
    let (place, host) = (Place::new(), Host::apart());
    let server = Server::start(&place, &host);
    let id = server.made();
    host.stop_at(Step::Dead);
    let permit = server.permit(Action::KillSandbox(id.clone()));
    server.run(async {
        tokio::select! {
            killed = server.sandboxes.kill(&permit) => panic!("{killed:?}"),
            () = host.stopped() => {}
        }
    });
    server.kill();
    host.go_on();
    let server = Server::start(&place, &host);
    assert_eq!((server.end_of(&id), server.taken()), (EndReason::Killed, 0));
    assert_eq!((place.entries("control"), place.entries("ended")), (0, 0));
    // Asked again, it is the same end.
    let permit = server.permit(Action::KillSandbox(id));
    assert_eq!(reason(&server.run(server.sandboxes.kill(&permit)).unwrap()), Some(EndReason::Killed));
}
