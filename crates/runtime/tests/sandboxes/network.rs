//! Network rules of a running sandbox: in the row first, then in force; and the decisions about its network, stored.

use std::sync::atomic::Ordering;

use saggar_domain::net::{EgressDraft, NetDecision, Protocol, Verdict};
use saggar_domain::{Draft, ExecId, NetworkMode, SandboxId, Spec};
use saggar_runtime::{Action, Fault, Permit};
use saggar_store::PageLimit;
use saggar_supervisor::control::EventBody;

use crate::fake::Host;
use crate::server::{Place, Server, with_spec};

fn rules(allow: &str) -> EgressDraft {
    serde_json::from_value(serde_json::json!({ "allow": [allow] })).unwrap()
}

fn proxied(allow: &str) -> Draft {
    let mut draft = Draft { network: Some(NetworkMode::Proxied), egress: rules(allow), ..Draft::default() };
    draft.env.insert("TOKEN".into(), "s3cr3t".into()).unwrap();
    draft
}

/// A server with a proxied sandbox whose rules allow a.example.
fn with_one() -> (Place, Host, Server, SandboxId, Permit) {
    let (place, host) = (Place::new(), Host::apart());
    let server = Server::start(&place, &host);
    let id = server.run(server.create(with_spec(proxied("a.example")), None)).unwrap().sandbox.asked.id;
    let permit = server.permit(Action::ChangeSandbox(id.clone()));
    (place, host, server, id, permit)
}

#[test]
fn new_rules_are_in_force_and_in_the_row_when_they_are_acknowledged() {
    let (_place, host, server, id, permit) = with_one();
    assert_eq!(host.sandbox(&id).egress(), Some(rules("a.example")));
    let row = server.run(server.sandboxes.set_egress(&permit, rules("b.example"))).unwrap();
    assert_eq!(host.sandbox(&id).egress(), Some(rules("b.example")));
    assert_eq!(row.asked.spec.egress, rules("b.example"));
    // The hash is that of a sandbox which was made with these rules.
    let made = Spec::resolve(proxied("b.example")).unwrap().policy_hash();
    assert_eq!(row.asked.policy_hash, Some(made));
    let none = server.run(server.sandboxes.set_egress(&permit, EgressDraft::default())).unwrap();
    assert_eq!((host.sandbox(&id).egress(), none.asked.spec.egress), (Some(Default::default()), Default::default()));
}

#[test]
fn rules_that_are_refused_change_nothing() {
    let (_place, host, server, id, permit) = with_one();
    let unknown = server.run(server.sandboxes.set_egress(&permit, rules("@nothing")));
    assert!(matches!(&unknown, Err(Fault::Refused(problem)) if problem.message.contains("@nothing")), "{unknown:?}");
    assert_eq!(host.sandbox(&id).egress(), Some(rules("a.example")));
    assert_eq!(server.row(&id).unwrap().asked.spec.egress, rules("a.example"));
    let plain = server.made();
    let permit = server.permit(Action::ChangeSandbox(plain.clone()));
    let refused = server.run(server.sandboxes.set_egress(&permit, rules("b.example")));
    assert!(
        matches!(&refused, Err(Fault::Conflict { what, help }) if what.contains("is none") && help.contains("proxied")),
        "{refused:?}"
    );
    assert_eq!(server.row(&plain).unwrap().asked.spec.egress, EgressDraft::default());
}

#[test]
fn a_server_that_died_before_the_supervisor_had_the_rules_leaves_them_to_the_next_one() {
    let (place, host, server, id, _) = with_one();
    let hash = Spec::resolve(proxied("b.example")).unwrap().policy_hash();
    server.run(server.sandboxes.store().set_egress(id.clone(), rules("b.example"), None, hash)).unwrap();
    server.kill();
    assert_eq!(host.sandbox(&id).egress(), Some(rules("a.example")));
    let server = Server::start(&place, &host);
    assert_eq!(host.sandbox(&id).egress(), Some(rules("b.example")), "before the first request");
    assert_eq!(server.row(&id).unwrap().asked.spec.egress, rules("b.example"));
}

#[test]
fn rules_that_a_supervisor_does_not_confirm_are_sent_again() {
    let (place, host, server, id, _) = with_one();
    server.kill();
    host.set_mute(&id, true);
    let server = Server::start_impatient(&place, &host);
    let permit = server.permit(Action::ChangeSandbox(id.clone()));
    // Its time is paused, so it doesn't wait for long.
    let unheard = server.run(server.sandboxes.set_egress(&permit, rules("b.example")));
    assert!(unheard.is_err(), "{unheard:?}");
    assert_eq!(server.row(&id).unwrap().asked.spec.egress, rules("b.example"), "what was asked for last");
    host.set_mute(&id, false);
    server.run(async { tokio::time::resume() });
    server.run(server.sandboxes.confirm_networks());
    assert_eq!(host.sandbox(&id).egress(), Some(rules("b.example")));
}

#[test]
fn a_supervisor_that_does_not_respond_delays_the_rules_of_no_other() {
    let (place, host, server, one, _) = with_one();
    let two = server.run(server.create(with_spec(proxied("a.example")), None)).unwrap().sandbox.asked.id;
    let both = [one, two];
    let hash = Spec::resolve(proxied("b.example")).unwrap().policy_hash();
    for id in &both {
        server.run(server.sandboxes.store().set_egress(id.clone(), rules("b.example"), None, hash.clone())).unwrap();
    }
    server.kill();
    let set_mute = |is_mute| both.iter().for_each(|id| host.set_mute(id, is_mute));
    set_mute(true);
    let server = Server::start_impatient(&place, &host);
    server.run(async { tokio::time::resume() });
    // They respond only when both were asked. If one had to wait for the other, the other's time would be over.
    let rulings = || both.each_ref().map(|id| host.sandbox(id).rulings.load(Ordering::SeqCst));
    let asked = async {
        while rulings().contains(&0) {
            tokio::task::yield_now().await;
        }
        set_mute(false);
    };
    server.run(async { tokio::join!(server.sandboxes.confirm_networks(), asked) });
    for id in &both {
        assert_eq!(host.sandbox(id).egress(), Some(rules("b.example")));
    }
    // Rules that are not confirmed would be sent again.
    server.run(server.sandboxes.confirm_networks());
    assert_eq!(rulings(), [1, 1]);
}

fn decision(host: &str, verdict: Verdict) -> Box<NetDecision> {
    Box::new(NetDecision {
        host: host.to_owned(),
        address: None,
        port: 443,
        protocol: Protocol::Tls,
        method: None,
        path: None,
        verdict,
        rule: "r".to_owned(),
        reason: None,
        secrets: Vec::new(),
        bytes_up: 1,
        bytes_down: 2,
        duration_ms: 3,
        connection: None,
        times: 1,
    })
}

#[test]
fn decisions_are_stored_as_they_happen_and_when_a_sandbox_has_ended_meanwhile() {
    let (place, host, server, id, _) = with_one();
    let permit = server.permit(Action::ReadSandbox(id.clone()));
    let exec_id = ExecId::from_random([7; 16]);
    let tell = |name: &str, verdict| {
        let body = EventBody::Decision { exec_id: Some(exec_id.clone()), decision: decision(name, verdict) };
        host.sandbox(&id).tell(body);
    };
    tell("a.example", Verdict::Allowed);
    assert!(server.run(server.sandboxes.next_event(&permit, 1)).unwrap());
    let sums = server.run(server.sandboxes.traffic(&permit)).unwrap().1;
    assert_eq!((sums.len(), sums[0].host.as_str(), sums[0].allowed), (1, "a.example", 1));
    server.kill();
    tell("b.example", Verdict::Denied);
    host.end(&id, saggar_domain::EndReason::Idle);
    let server = Server::start(&place, &host);
    let permit = server.permit(Action::ReadSandbox(id));
    let sums = server.run(server.sandboxes.traffic(&permit)).unwrap().1;
    assert_eq!(sums.iter().map(|sum| (sum.allowed, sum.denied)).collect::<Vec<_>>(), [(1, 0), (0, 1)]);
    let (page, run) = server.run(server.sandboxes.events(&permit, None, PageLimit::MAX)).unwrap();
    let told: Vec<_> = page.events.iter().filter(|event| event.body.as_str().contains("decision")).collect();
    assert_eq!((told.len(), run), (2, None));
    assert!(told[0].body.as_str().contains(exec_id.as_str()), "{told:?}");
}
