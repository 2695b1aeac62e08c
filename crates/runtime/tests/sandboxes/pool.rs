//! Sandboxes that are made ahead: given away, replaced, found again, and not missed when they die.

use saggar_domain::{Draft, SandboxId};
use saggar_runtime::{Adopted, PoolSize, Settings, Upkeep};

use crate::fake::{Behaviour, Host};
use crate::server::{Place, Server, with_spec};

fn one_ready(settings: &mut Settings) {
    settings.pool = PoolSize { least: 1, most: 1 };
}

/// One that is ready, of a server that makes no others.
pub fn put_ready(server: &Server, host: &Host) -> SandboxId {
    // A server that was killed leaves what it had ready; here it is put there by hand.
    let place = server.sandboxes.settings().data_directory.clone();
    server.run(host.hold_ahead(&place));
    server.run(server.sandboxes.adopt()).unwrap();
    host.held().pop().expect("it is ready")
}

#[test]
fn one_is_kept_ready_given_to_the_first_who_asks_for_nothing_special_and_replaced() {
    let place = Place::new();
    let (server, host) = Server::start_paused(&place, one_ready);
    server.run(async {
        let upkeep = Upkeep::start(&server.sandboxes);
        host.until_held(1).await;
        let ready = host.held();
        let mut spec = Draft::default();
        spec.env.insert("A".into(), "1".into()).unwrap();
        let given = server.create(with_spec(spec), None).await.unwrap().sandbox.asked.id;
        assert_eq!(ready, std::slice::from_ref(&given));
        assert_eq!(
            host.sandbox(&given).env(),
            [("A".into(), "1".into())].into(),
            "the environment comes with the claim"
        );
        host.until_held(2).await;
        upkeep.stop().await;
    });
    assert_eq!((server.rows().len(), server.taken()), (1, 2), "what has no owner has no row, and takes a place");
    server.run(server.sandboxes.drain_pool());
    assert_eq!((host.held().len(), server.taken()), (1, 1));
}

#[test]
fn one_with_wishes_is_made_for_them() {
    let (place, host) = (Place::new(), Host::apart());
    let server = Server::start(&place, &host);
    let ready = put_ready(&server, &host);
    for wishes in
        [r#"{"user": "root"}"#, r#"{"limits": {"memory": "2G"}}"#, r#"{"cwd": "/tmp"}"#, r#"{"strict": true}"#]
    {
        let new = with_spec(serde_json::from_str(wishes).unwrap());
        let made = server.run(server.create(new, None)).unwrap().sandbox.asked.id;
        assert_ne!(made, ready, "{wishes}");
        let permit = server.permit(saggar_runtime::Action::KillSandbox(made));
        server.run(server.sandboxes.kill(&permit)).unwrap();
    }
    let said = r#"{"user": "user", "network": "none", "template": "base", "tier": "namespace", "env": {"A": "1"}}"#;
    let given = server.run(server.create(with_spec(serde_json::from_str(said).unwrap()), None)).unwrap();
    assert_eq!(given.sandbox.asked.id, ready, "the defaults said aloud are no wishes");
}

#[test]
fn one_that_died_while_it_waited_is_made_anew_and_takes_no_place() {
    let (place, host) = (Place::new(), Host::apart());
    let server = Server::start(&place, &host);
    let ready = put_ready(&server, &host);
    host.kill(&ready);
    let made = server.made();
    assert_ne!(made, ready);
    assert_eq!((server.taken(), host.held(), place.entries("control")), (1, vec![made], 1));
}

#[test]
fn what_a_killed_server_had_ready_is_ready_for_the_next() {
    let (place, host) = (Place::new(), Host::apart());
    let server = Server::start(&place, &host);
    let ready = put_ready(&server, &host);
    server.kill();
    let server = Server::start(&place, &host);
    assert_eq!((server.found, server.taken()), (Adopted { ready: 1, ..Adopted::default() }, 1));
    assert_eq!(server.made(), ready);
}

#[test]
fn the_pool_goes_on_after_a_supervisor_that_could_not_be_started() {
    let place = Place::new();
    let (server, host) = Server::start_paused(&place, one_ready);
    host.next(&[Behaviour::DiesTold, Behaviour::Refuses]);
    server.run(async {
        let upkeep = Upkeep::start(&server.sandboxes);
        host.until_held(1).await;
        upkeep.stop().await;
    });
    assert_eq!((host.launched(), server.taken()), (3, 1));
}

#[test]
fn upkeep_ends_a_sandbox_that_nobody_knows() {
    let place = Place::new();
    let (server, host) = Server::start_paused(&place, |_| {});
    server.run(async {
        let data = server.sandboxes.settings().data_directory.clone();
        host.hold_owned(&data).await;
        let upkeep = Upkeep::start(&server.sandboxes);
        host.until_held(0).await;
        upkeep.stop().await;
    });
    assert_eq!((server.taken(), place.entries("control"), server.rows().len()), (0, 0, 0));
}
