//! Decisions about the network: among the events, bounded apart from them, and summed up; and rules that are replaced.

use saggar_domain::net::{EgressDraft, HostTraffic, NetDecision, Protocol, Verdict};
use saggar_domain::{Ingress, PolicyHash, SandboxId};
use saggar_store::{
    Changed, DECISIONS_PER_VERDICT_MAX, EVENTS_PER_SANDBOX_MAX, Error, JsonText, LastWords, PageLimit, SandboxPatch,
    Store, StoredDecision, TRAFFIC_HOSTS_MAX,
};

use crate::fixture::{NOW, Scratch, ending, event, insert, random, sandbox, store_with_project};

pub fn decision(seq: u64, host: &str, verdict: Verdict) -> StoredDecision {
    let decision = NetDecision {
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
        bytes_up: 3,
        bytes_down: 5,
        duration_ms: 1,
        connection: None,
        times: 1,
    };
    StoredDecision { seq, at: NOW, body: JsonText::of(&decision).unwrap(), decision }
}

async fn fresh(scratch: &Scratch) -> (Store, SandboxId) {
    let (store, project) = store_with_project(scratch).await;
    let owner = sandbox(&project);
    insert(&store, &owner).await;
    (store, owner.id)
}

async fn numbers(store: &Store, id: &SandboxId) -> Vec<u64> {
    let mut seen = Vec::new();
    loop {
        let page = store.events_after(id.clone(), seen.last().copied(), PageLimit::MAX).await.unwrap();
        if page.events.is_empty() {
            return seen;
        }
        seen.extend(page.events.iter().map(|event| event.seq));
    }
}

#[tokio::test]
async fn a_decision_that_stands_for_many_counts_as_many() {
    let scratch = Scratch::new();
    let (store, id) = fresh(&scratch).await;
    let mut many = decision(1, "a.example", Verdict::Denied);
    many.decision.times = 7;
    store.append_decisions(id.clone(), vec![many, decision(2, "a.example", Verdict::Denied)]).await.unwrap();
    let sums = store.traffic(id).await.unwrap();
    assert_eq!(sums.iter().map(|sum| (sum.allowed, sum.denied)).collect::<Vec<_>>(), [(0, 8)]);
}

#[tokio::test]
async fn decisions_are_among_the_events_in_order_and_a_second_report_changes_nothing() {
    let scratch = Scratch::new();
    let (store, id) = fresh(&scratch).await;
    let two = vec![decision(2, "a.example", Verdict::Allowed), decision(3, "b.example", Verdict::Denied)];
    for _ in 0..2 {
        store.append_heard(id.clone(), vec![event(1), event(4)], two.clone()).await.unwrap();
    }
    assert_eq!(numbers(&store, &id).await, [1, 2, 3, 4]);
    store.append_decisions(id.clone(), vec![decision(5, "a.example", Verdict::Allowed)]).await.unwrap();
    assert_eq!(store.last_event(id.clone()).await, Ok(Some(5)));
    let last = LastWords { events: vec![event(6)], decisions: two, execs: vec![], ending: ending(NOW) };
    assert_eq!(store.write_last_words(id.clone(), last).await, Ok(Changed::Done));
    let sum = |host: &str, allowed, denied| HostTraffic {
        allowed,
        denied,
        bytes_up: 3 * (allowed + denied),
        bytes_down: 5 * (allowed + denied),
        ..HostTraffic::new(host.to_owned(), 443)
    };
    assert_eq!(store.traffic(id.clone()).await, Ok(vec![sum("a.example", 2, 0), sum("b.example", 0, 1)]));
    let page = store.events_after(id.clone(), Some(1), PageLimit::parse(2).unwrap()).await.unwrap();
    assert_eq!((page.events.len(), page.newest), (2, Some(6)));
    let orphan =
        store.append_decisions(SandboxId::from_random(random()), vec![decision(1, "a", Verdict::Denied)]).await;
    assert_eq!(orphan, Err(Error::Missing { what: "the sandbox" }));
}

#[tokio::test]
async fn refusals_displace_neither_what_was_allowed_nor_other_events() {
    let scratch = Scratch::new();
    let (store, id) = fresh(&scratch).await;
    store.append_events(id.clone(), vec![event(1)]).await.unwrap();
    let allowed = vec![decision(2, "good.example", Verdict::Allowed)];
    store.append_decisions(id.clone(), allowed).await.unwrap();
    let last = 2 + EVENTS_PER_SANDBOX_MAX + DECISIONS_PER_VERDICT_MAX;
    for from in (3..=last).step_by(1000) {
        let many = (from..=last.min(from + 999)).map(|seq| {
            // As many hosts as it likes.
            decision(seq, &format!("{}.example", seq % (3 * TRAFFIC_HOSTS_MAX)), Verdict::Denied)
        });
        store.append_decisions(id.clone(), many.collect()).await.unwrap();
    }
    // Events may be few, but their numbers are far apart.
    store.append_events(id.clone(), vec![event(last + 1)]).await.unwrap();
    let oldest = last - DECISIONS_PER_VERDICT_MAX + 1;
    let expected: Vec<u64> = [1, 2].into_iter().chain(oldest..=last + 1).collect();
    assert_eq!(numbers(&store, &id).await, expected);
    // Decisions that are dropped are counted all the same, and hosts beyond the bound are counted together.
    let sums = store.traffic(id.clone()).await.unwrap();
    assert_eq!(sums.len() as u64, TRAFFIC_HOSTS_MAX + 2);
    assert_eq!(sums.iter().map(|sum| sum.denied).sum::<u64>(), last - 2);
    assert!(sums.iter().any(|sum| (sum.host.as_str(), sum.allowed) == ("good.example", 1)), "{sums:?}");
    store.append_decisions(id.clone(), vec![decision(last + 2, "late.example", Verdict::Allowed)]).await.unwrap();
    let sums = store.traffic(id).await.unwrap();
    assert!(sums.iter().any(|sum| (sum.host.as_str(), sum.allowed) == ("late.example", 1)), "{sums:?}");
}

#[tokio::test]
async fn rules_are_replaced_with_the_hash_that_covers_them_and_nothing_else_changes() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let owner = sandbox(&project);
    insert(&store, &owner).await;
    let egress: EgressDraft = serde_json::from_str(r#"{"allow":["@pypi"],"deny":["10.0.0.0/8"]}"#).unwrap();
    let hash = PolicyHash::parse(&format!("sha256:{}", "cd".repeat(32))).unwrap();
    let set = || store.set_egress(owner.id.clone(), egress.clone(), None, hash.clone());
    assert_eq!(set().await, Ok(Changed::Done));
    let found = store.sandbox(project.clone(), owner.id.clone()).await.unwrap().unwrap().asked;
    let mut expected = owner.clone();
    expected.spec.egress = egress.clone();
    expected.policy_hash = Some(hash.clone());
    assert_eq!(found, expected);
    store.end_sandbox(owner.id.clone(), ending(NOW)).await.unwrap();
    assert_eq!(set().await, Ok(Changed::Otherwise(saggar_domain::SandboxState::Ended)));
    let nowhere = SandboxId::from_random(random());
    assert_eq!(store.set_egress(nowhere, egress.clone(), None, hash.clone()).await, Ok(Changed::Absent));
}

#[tokio::test]
async fn ingress_reads_back_and_is_replaced() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let ingress: Ingress = serde_json::from_str(r#"{"allow":[80],"host":"localhost:${PORT}"}"#).unwrap();
    let mut owner = sandbox(&project);
    owner.ingress = ingress.clone();
    insert(&store, &owner).await;
    let read = async || store.sandbox(project.clone(), owner.id.clone()).await.unwrap().unwrap().asked.ingress;
    assert_eq!(read().await, ingress);
    store.patch_sandbox(owner.id.clone(), SandboxPatch::default()).await.unwrap();
    assert_eq!(read().await, ingress);
    let open = SandboxPatch { ingress: Some(Ingress::default()), ..SandboxPatch::default() };
    store.patch_sandbox(owner.id.clone(), open).await.unwrap();
    assert_eq!(read().await, Ingress::default());
}
