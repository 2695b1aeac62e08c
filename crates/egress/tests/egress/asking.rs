//! Questions about hosts that no rule allows, and what their answers open.

use std::net::SocketAddr;

use http::StatusCode;
use saggar_egress::limits::Limits;
use saggar_supervisor::egress::{FromEgress, HostAnswer};
use tokio::time::timeout;

use crate::client::{get, http1, plain, request, send1};
use crate::sandbox::{DEADLINE, Sandbox, rules};
use crate::world::World;

async fn asking(world: &World, allow: &[&str]) -> Sandbox {
    Sandbox::prepared(world, allow, Limits::default(), |session| session.ask()).await
}

/// The next question: its number, what it is about, and who asks.
async fn question(sandbox: &mut Sandbox) -> (u64, String, SocketAddr) {
    let notice = timeout(DEADLINE, sandbox.session.notice()).await.expect("in time");
    let Some(FromEgress::Question { question, host, port, client }) = notice else { panic!("{notice:?}") };
    (question, format!("{host}:{port}"), client)
}

#[tokio::test]
async fn an_answer_allows_the_host_for_the_session_and_addresses_are_still_checked() {
    let world = World::new();
    let server = world.http("good.test").await;
    let mut sandbox = asking(&world, &[]).await;
    let stream = sandbox.dial("good.test", 80).await;
    let client = stream.local_addr().unwrap();
    let waiting = tokio::spawn(async move { send1(&mut http1(stream).await, get("good.test", "/")).await });
    let (number, about, asker) = question(&mut sandbox).await;
    assert_eq!((about.as_str(), asker), ("good.test:80", client));
    assert_eq!(server.connections(), 0, "nothing is dialled before the answer");
    sandbox.session.answer(number, HostAnswer::AllowHost);
    assert_eq!(waiting.await.unwrap().text(), "hello");
    // No second question.
    assert_eq!(send1(&mut plain(&sandbox, "good.test").await, get("good.test", "/")).await.text(), "hello");
    assert!(sandbox.session.rules().draft().allow.iter().any(|rule| rule.to_string() == "good.test"));
}

#[tokio::test]
async fn connections_to_one_host_share_a_question_and_a_refusal_says_what_was_answered() {
    let world = World::new();
    let mut sandbox = asking(&world, &[]).await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let stream = sandbox.dial("good.test", 80).await;
        waiting.push(tokio::spawn(async move { send1(&mut http1(stream).await, get("good.test", "/")).await }));
    }
    let (number, ..) = question(&mut sandbox).await;
    // The others join it before it is answered, or ask again.
    sandbox.session.answer(number, HostAnswer::Deny);
    let mut asked = 1;
    while waiting.iter().any(|task| !task.is_finished()) {
        tokio::select! {
            Some(FromEgress::Question { question, .. }) = sandbox.session.notice() => {
                asked += 1;
                sandbox.session.answer(question, HostAnswer::Deny);
            }
            () = tokio::task::yield_now() => {}
        }
    }
    assert!(asked <= 3);
    for task in waiting {
        let answer = task.await.unwrap();
        assert_eq!((answer.status, answer.rule()), (StatusCode::FORBIDDEN, "egress/default"));
        assert!(answer.text().contains("no rule allows good.test:80, and you said no when asked"), "{}", answer.text());
    }
    for (answer, why) in [
        (HostAnswer::NoTerminal, "there is no terminal to ask on"),
        (HostAnswer::TooMany, "too many questions"),
        (HostAnswer::TooLate, "nobody answered"),
    ] {
        let stream = sandbox.dial("good.test", 80).await;
        let waiting = tokio::spawn(async move { send1(&mut http1(stream).await, get("good.test", "/")).await });
        let (number, ..) = question(&mut sandbox).await;
        sandbox.session.answer(number, answer);
        let page = waiting.await.unwrap();
        assert!(page.text().contains(why), "{}", page.text());
    }
}

#[tokio::test]
async fn what_was_allowed_once_ends_with_its_connection() {
    let world = World::new();
    world.http("good.test").await;
    let mut sandbox = asking(&world, &[]).await;
    for _ in 0..2 {
        let stream = sandbox.dial("good.test", 80).await;
        let waiting = tokio::spawn(async move {
            let mut sender = http1(stream).await;
            let first = send1(&mut sender, get("good.test", "/1")).await;
            let second = send1(&mut sender, get("good.test", "/2")).await;
            (first.status, second.status)
        });
        let (number, ..) = question(&mut sandbox).await;
        sandbox.session.answer(number, HostAnswer::AllowOnce);
        assert_eq!(waiting.await.unwrap(), (StatusCode::OK, StatusCode::OK));
        // The connection's end takes the rule away.
        while !sandbox.session.rules().draft().allow.is_empty() {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_proxys_requests_are_asked_about_one_by_one() {
    let world = World::new();
    world.http("good.test").await;
    let mut sandbox = asking(&world, &[]).await;
    let stream = tokio::net::TcpStream::connect(sandbox.proxy).await.unwrap();
    let waiting =
        tokio::spawn(
            async move { send1(&mut http1(stream).await, request("GET", "http://good.test/", "good.test")).await },
        );
    let (number, about, _) = question(&mut sandbox).await;
    assert_eq!(about, "good.test:80");
    sandbox.session.answer(number, HostAnswer::AllowHost);
    assert_eq!(waiting.await.unwrap().text(), "hello");
}

#[tokio::test]
async fn deny_rules_special_addresses_and_restricted_hosts_are_never_asked_about() {
    let world = World::new();
    world.http("good.test").await;
    let mut sandbox = asking(&world, &["GET good.test/open"]).await;
    sandbox.session.replace_rules(rules(&["GET good.test/open"], &["evil.test"]));
    for (host, path) in [("evil.test", "/"), ("good.test", "/closed")] {
        let answer = send1(&mut plain(&sandbox, host).await, get(host, path)).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN);
    }
    for address in ["10.1.2.3", "169.254.169.254", "127.0.0.1"] {
        let stream = sandbox.dial_address(address.parse().unwrap(), 80).await;
        let answer = send1(&mut http1(stream).await, get(address, "/")).await;
        assert!(answer.rule().starts_with("egress/address-"), "{}", answer.text());
    }
    tokio::select! {
        biased;
        notice = sandbox.session.notice() => panic!("{notice:?}"),
        () = std::future::ready(()) => {}
    }
}
