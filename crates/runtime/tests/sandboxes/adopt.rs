//! What a new server finds: supervisors that live, that have ended, that are gone and that say nothing.

use saggar_domain::{EndReason, SandboxId, SandboxState};
use saggar_runtime::{Action, Adopted, Keep};

use crate::fake::Host;
use crate::server::{Place, Server};

/// One sandbox, to which something happens while no server is there.
fn check_found(meanwhile: impl FnOnce(&Host, &SandboxId), found: Adopted) -> (Place, Host, Server, SandboxId) {
    let (place, host) = (Place::new(), Host::apart());
    let server = Server::start(&place, &host);
    let id = server.made();
    server.kill();
    meanwhile(&host, &id);
    let server = Server::start(&place, &host);
    assert_eq!(server.found, found);
    (place, host, server, id)
}

const LIVE: Adopted = Adopted { live: 1, ready: 0, ended: 0, strangers: 0 };
const ENDED: Adopted = Adopted { live: 0, ready: 0, ended: 1, strangers: 0 };

#[test]
fn one_that_lives_is_adopted_and_can_be_paused_resumed_and_ended() {
    let (place, host, server, id) = check_found(|_, _| {}, LIVE);
    assert_eq!(server.taken(), 1);
    let permit = server.permit(Action::ChangeSandbox(id.clone()));
    let paused = server.run(server.sandboxes.pause(&permit, Keep::Memory)).unwrap();
    assert_eq!(paused.life.state(), SandboxState::Paused);
    assert_eq!(host.sandbox(&id).state(), SandboxState::Paused);
    let resumed = server.run(server.sandboxes.resume(&permit, None)).unwrap();
    assert_eq!(resumed.life.state(), SandboxState::Running);
    server.run(server.sandboxes.kill(&server.permit(Action::KillSandbox(id.clone())))).unwrap();
    assert_eq!((server.end_of(&id), server.taken(), host.held()), (EndReason::Killed, 0, vec![]));
    assert_eq!((place.entries("control"), place.entries("ended")), (0, 0));
}

#[test]
fn one_that_was_paused_meanwhile_is_so_in_its_row() {
    let (_place, _host, server, id) = check_found(|host, id| host.sandbox(id).pause_by_itself(), LIVE);
    assert_eq!(server.row(&id).unwrap().life.state(), SandboxState::Paused);
}

#[test]
fn one_that_ended_by_itself_meanwhile_ends_as_its_last_words_say() {
    let (place, _host, server, id) = check_found(|host, id| host.end(id, EndReason::TimedOut), ENDED);
    assert_eq!((server.end_of(&id), server.taken()), (EndReason::TimedOut, 0));
    assert_eq!((place.entries("control"), place.entries("ended")), (0, 0), "its words are stored");
    let permit = server.permit(Action::ReadSandbox(id));
    let events = server.run(server.sandboxes.events(&permit, None, saggar_store::PageLimit::MAX)).unwrap().0.events;
    assert!(events.iter().any(|event| event.body.as_str().contains("timed_out")), "{events:?}");
}

#[test]
fn one_that_was_killed_meanwhile_is_lost() {
    let (place, _host, server, id) = check_found(Host::kill, ENDED);
    assert_eq!((server.end_of(&id), server.taken(), place.entries("control")), (EndReason::SupervisorLost, 0, 0));
}

#[test]
fn one_that_ends_or_dies_while_a_server_watches_gives_its_place_back() {
    for (how, expected) in [
        ((|host: &Host, id: &SandboxId| host.end(id, EndReason::Idle)) as fn(&Host, &SandboxId), EndReason::Idle),
        (Host::kill, EndReason::SupervisorLost),
    ] {
        let (place, host) = (Place::new(), Host::apart());
        let server = Server::start(&place, &host);
        let id = server.made();
        how(&host, &id);
        assert_eq!((server.end_of(&id), server.taken(), place.entries("control")), (expected, 0, 0));
    }
}

#[test]
fn one_that_says_nothing_is_not_taken_for_dead() {
    let (place, host) = (Place::new(), Host::apart());
    let server = Server::start(&place, &host);
    let id = server.made();
    server.kill();
    host.set_mute(&id, true);
    let server = Server::start_impatient(&place, &host);
    assert_eq!((server.found, server.taken()), (LIVE, 1));
    assert_eq!(server.row(&id).unwrap().life.state(), SandboxState::Running);
    host.set_mute(&id, false);
    server.run(async { tokio::time::resume() });
    server.run(server.sandboxes.describe(&server.permit(Action::ReadSandbox(id)))).unwrap();
}
