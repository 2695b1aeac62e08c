//! The dialer against real servers on the loopback: which address it reaches, and which it refuses.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use saggar_domain::net::{Destination, parse_authority};
use saggar_egress::resolve::{DialError, Dialer, LookupError, Upstream};
use tokio::net::TcpListener;

use crate::nameserver::{Answer, Data, Nameserver};
use crate::session::rules;

const PATIENCE: Duration = Duration::from_secs(60);

fn to(host: &str, port: u16) -> Destination {
    parse_authority(format!("{host}:{port}").as_bytes(), None).unwrap()
}

fn at(address: &'static str) -> Data {
    Data::Address(address)
}

fn records(list: &[(&'static str, Data)]) -> Answer {
    Answer::Records(list.iter().map(|(owner, data)| (*owner, 60, *data)).collect())
}

/// A listener and a rule that opens the loopback at its port, to names below `test` too.
async fn listener() -> (TcpListener, u16, Vec<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port, vec![format!("*.test:{port}"), format!("127.0.0.1:{port}")])
}

struct Outcome(Result<SocketAddr, DialError>);

impl Outcome {
    #[track_caller]
    fn reached(self, address: &str, port: u16) {
        let expected = SocketAddr::new(address.parse().unwrap(), port);
        match self.0 {
            Ok(reached) => assert_eq!(reached, expected),
            Err(error) => panic!("{error}"),
        }
    }

    #[track_caller]
    fn refused(self, rule: &str, at: Option<&str>) {
        let expected: Option<IpAddr> = at.map(|address| address.parse().unwrap());
        match self.0 {
            Err(DialError::Refused { refusal, address }) => {
                assert_eq!((refusal.rule.as_str(), address), (rule, expected));
            }
            other => panic!("not refused: {other:?}"),
        }
    }

    #[track_caller]
    fn lookup_failed(self) -> LookupError {
        match self.0 {
            Err(DialError::Lookup(error)) => error,
            other => panic!("the lookup didn't fail: {other:?}"),
        }
    }
}

async fn dial(dialer: &Dialer, destination: &Destination, allow: &[String]) -> Outcome {
    let allow: Vec<&str> = allow.iter().map(String::as_str).collect();
    let dialed = dialer.dial(destination, &rules(&allow, &[]), PATIENCE).await;
    Outcome(dialed.map(|dialed| {
        assert_eq!(dialed.stream.peer_addr().unwrap(), dialed.address);
        dialed.address
    }))
}

fn dialer(servers: &[&Nameserver]) -> Dialer {
    Dialer::new(Upstream::new(servers.iter().map(|server| server.address).collect(), []))
}

#[tokio::test]
async fn a_name_leads_to_the_checked_address() {
    let (_listener, port, allow) = listener().await;
    let chain = |length: usize| {
        let names: Vec<&'static str> = [
            "c0.test", "c1.test", "c2.test", "c3.test", "c4.test", "c5.test", "c6.test", "c7.test", "c8.test",
            "c9.test",
        ]
        .to_vec();
        let mut list: Vec<(&'static str, Data)> =
            (0..length).map(|index| (names[index], Data::Alias(names[index + 1]))).collect();
        list.push((names[length], at("127.0.0.1")));
        records(&list)
    };
    let server = Nameserver::start(&[
        ("plain.test", records(&[("plain.test", at("127.0.0.1"))])),
        ("upper.test", records(&[("UPPER.Test", at("127.0.0.1"))])),
        (
            "mixed.test",
            records(&[
                ("mixed.test", at("10.0.0.1")),
                ("mixed.test", at("169.254.169.254")),
                ("mixed.test", at("fd00::1")),
                ("mixed.test", at("127.0.0.1")),
            ]),
        ),
        (
            "alias.test",
            records(&[("alias.test", Data::Alias("_any.other.test")), ("_any.other.test", at("127.0.0.1"))]),
        ),
        ("c0.test", chain(8)),
        ("large.test", Answer::TooLarge(vec![("large.test", 60, at("127.0.0.1"))])),
        ("forged.test", Answer::Forged("127.0.0.9".parse().unwrap(), vec![("forged.test", 60, at("127.0.0.1"))])),
        ("six.test", records(&[("six.test", at("::1")), ("six.test", at("127.0.0.1"))])),
    ])
    .await;
    let dialer = dialer(&[&server]);
    for name in ["plain.test", "upper.test", "mixed.test", "alias.test", "c0.test", "large.test", "forged.test"] {
        println!("{name}");
        dial(&dialer, &to(name, port), &allow).await.reached("127.0.0.1", port);
    }
    // Nothing listens at the IPv6 address: the next one is tried at once.
    let both = [allow, vec![format!("[::1]:{port}")]].concat();
    dial(&dialer, &to("six.test", port), &both).await.reached("127.0.0.1", port);
}

#[tokio::test]
async fn special_addresses_are_refused_behind_any_name() {
    let (listener, port, _) = listener().await;
    let server = Nameserver::start(&[
        ("loop.test", records(&[("loop.test", at("127.0.0.1"))])),
        ("metadata.test", records(&[("metadata.test", at("169.254.169.254"))])),
        ("alias.test", records(&[("alias.test", Data::Alias("inside.test")), ("inside.test", at("10.0.0.1"))])),
        ("mapped.test", records(&[("mapped.test", at("::ffff:127.0.0.1"))])),
        ("six.test", records(&[("six.test", at("::1"))])),
        ("fake.test", records(&[("fake.test", at("198.18.0.1"))])),
    ])
    .await;
    let dialer =
        Dialer::new(Upstream::new(vec![server.address], [("127.0.0.1".parse().unwrap(), "hosts.test".to_owned())]));
    let allow = vec![format!("*.test:{port}"), format!("localhost:{port}")];
    for (name, rule, address) in [
        ("loop.test", "egress/address-loopback", "127.0.0.1"),
        ("metadata.test", "egress/address-metadata", "169.254.169.254"),
        ("alias.test", "egress/address-private", "10.0.0.1"),
        ("mapped.test", "egress/address-embedded", "::ffff:127.0.0.1"),
        ("six.test", "egress/address-loopback", "::1"),
        ("fake.test", "egress/address-benchmark", "198.18.0.1"),
        ("hosts.test", "egress/address-loopback", "127.0.0.1"),
        ("localhost", "egress/address-loopback", "::1"),
    ] {
        println!("{name}");
        dial(&dialer, &to(name, port), &allow).await.refused(rule, Some(address));
    }
    listener_saw_nothing(&listener).await;
}

#[tokio::test]
async fn an_address_that_is_not_allowed_is_never_dialled_beside_one_that_is() {
    let (_listener, port, allow) = listener().await;
    // Both would be tried first, and would answer.
    let forbidden = [
        TcpListener::bind(format!("[::1]:{port}")).await.unwrap(),
        TcpListener::bind(format!("127.0.0.2:{port}")).await.unwrap(),
    ];
    let answers = [("a.test", at("::1")), ("a.test", at("127.0.0.2")), ("a.test", at("127.0.0.1"))];
    let server = Nameserver::start(&[("a.test", records(&answers))]).await;
    dial(&dialer(&[&server]), &to("a.test", port), &allow).await.reached("127.0.0.1", port);
    for listener in &forbidden {
        listener_saw_nothing(listener).await;
    }
}

async fn listener_saw_nothing(listener: &TcpListener) {
    // A connection to the listener that is ours: the first that it accepts, if there was no other.
    let ours = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (_stream, from) = listener.accept().await.unwrap();
    assert_eq!(from, ours.local_addr().unwrap());
}

#[tokio::test]
async fn nothing_is_asked_about_a_name_that_is_not_allowed() {
    let unfollowed = records(&[("unfollowed.test", Data::Alias("end.other.test"))]);
    let server = Nameserver::start(&[("unfollowed.test", unfollowed)]).await;
    let dialer = dialer(&[&server]);
    let allow = vec!["good.test:443".to_owned()];
    dial(&dialer, &to("evil.test", 443), &allow).await.refused("egress/default", None);
    dial(&dialer, &to("good.test", 8443), &allow).await.refused("egress/default", None);
    dial(&dialer, &to("good.test", 443), &allow).await.lookup_failed();
    assert_eq!(server.take(), ["good.test"]);
    // A resolver gives the whole chain of aliases; nobody is asked about its end.
    dial(&dialer, &to("unfollowed.test", 443), &["unfollowed.test:443".to_owned()]).await.lookup_failed();
    assert_eq!(server.take(), ["unfollowed.test"]);
}

#[tokio::test]
async fn literals_are_checked_like_names() {
    let (_listener, port, allow) = listener().await;
    let dialer = dialer(&[]);
    dial(&dialer, &to("127.0.0.1", port), &allow).await.reached("127.0.0.1", port);
    let any = vec![format!("*:{port}")];
    let refused = dial(&dialer, &to("127.0.0.1", port), &any).await.0;
    assert!(matches!(refused, Err(DialError::Refused { .. })), "{refused:?}");
}

#[tokio::test]
async fn bad_answers_leave_the_name_without_an_address() {
    let server = Nameserver::start(&[
        ("stray.test", records(&[("other.test", at("127.0.0.1"))])),
        (
            "circle.test",
            records(&[("circle.test", Data::Alias("round.test")), ("round.test", Data::Alias("circle.test"))]),
        ),
        ("endless.test", records(&[("endless.test", Data::Alias("endless.test"))])),
        ("empty.test", records(&[])),
        ("refused.test", Answer::Code(5)),
        ("failed.test", Answer::Code(2)),
    ])
    .await;
    let dialer = dialer(&[&server]);
    let allow = vec!["*.test:443".to_owned()];
    for (name, found) in [
        ("stray.test", true),
        ("empty.test", true),
        ("missing.test", true),
        ("circle.test", false),
        ("endless.test", false),
        ("refused.test", false),
        ("failed.test", false),
    ] {
        let error = dial(&dialer, &to(name, 443), &allow).await.lookup_failed();
        let name = name.parse().unwrap();
        match (found, &error) {
            (true, LookupError::NotFound(about)) | (false, LookupError::Failed { name: about, .. }) => {
                assert_eq!(*about, name)
            }
            _ => panic!("{name}: {error}"),
        }
    }
}

#[tokio::test]
async fn a_server_that_fails_leaves_it_to_the_next() {
    let (_listener, port, allow) = listener().await;
    let good = Nameserver::start(&[
        ("a.test", records(&[("a.test", at("127.0.0.1"))])),
        ("b.test", records(&[("b.test", at("127.0.0.1"))])),
    ])
    .await;
    let garbage = vec![0xc0, 0xff, 0, 1];
    for bad in [Answer::Code(2), Answer::Code(5), Answer::Silence, Answer::Garbage(1, garbage)] {
        let bad = Nameserver::start(&[("a.test", bad.clone()), ("b.test", bad)]).await;
        let dialer = dialer(&[&bad, &good]);
        dial(&dialer, &to("a.test", port), &allow).await.reached("127.0.0.1", port);
        assert_eq!(bad.take(), ["a.test"]);
        // The one that answered is asked first from then on.
        dial(&dialer, &to("b.test", port), &allow).await.reached("127.0.0.1", port);
        assert_eq!(bad.take(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn an_answer_is_kept_for_its_time() {
    let (_listener, port, allow) = listener().await;
    // A time of 0 counts as some seconds: this test takes less.
    let server = Nameserver::start(&[("a.test", Answer::Records(vec![("a.test", 0, at("127.0.0.1"))]))]).await;
    let dialer = dialer(&[&server]);
    for asked in [&["a.test"][..], &[]] {
        dial(&dialer, &to("a.test", port), &allow).await.reached("127.0.0.1", port);
        assert_eq!(server.take(), asked);
    }
    // What is kept is still checked.
    let without = vec![format!("*.test:{port}")];
    dial(&dialer, &to("a.test", port), &without).await.refused("egress/address-loopback", Some("127.0.0.1"));
}

#[tokio::test]
async fn connections_at_the_same_time_share_a_lookup() {
    let (_listener, port, allow) = listener().await;
    let server = Nameserver::start(&[("a.test", records(&[("a.test", at("127.0.0.1"))]))]).await;
    let dialer = dialer(&[&server]);
    let destination = to("a.test", port);
    let dial = || dial(&dialer, &destination, &allow);
    let (first, second, third) = tokio::join!(dial(), dial(), dial());
    for outcome in [first, second, third] {
        outcome.reached("127.0.0.1", port);
    }
    assert_eq!(server.count(), 2, "one question for each family");
}

#[tokio::test]
async fn hosts_entries_come_before_name_servers() {
    let (_listener, port, allow) = listener().await;
    let server = Nameserver::start(&[]).await;
    let hosts = [("127.0.0.1", "Known.test."), ("192.0.2.1", "not a name"), ("192.0.2.1", "under_score.test")];
    let hosts = hosts.map(|(address, name)| (address.parse().unwrap(), name.to_owned()));
    let dialer = Dialer::new(Upstream::new(vec![server.address], hosts));
    dial(&dialer, &to("known.test", port), &allow).await.reached("127.0.0.1", port);
    assert_eq!(server.take(), Vec::<String>::new());
}

#[tokio::test]
async fn labels_below_a_wildcard_are_limited() {
    let server = Nameserver::start(&[]).await;
    let dialer = dialer(&[&server]);
    let exact = "a.b.c.d.e.f.g.h.i.exact.test";
    let allow = vec!["*.wild.test".to_owned(), exact.to_owned()];
    dial(&dialer, &to("a.b.c.d.e.f.g.h.wild.test", 443), &allow).await.lookup_failed();
    dial(&dialer, &to(exact, 443), &allow).await.lookup_failed();
    server.take();
    dial(&dialer, &to("a.b.c.d.e.f.g.h.i.wild.test", 443), &allow).await.refused("egress/wildcard-labels", None);
    assert_eq!(server.take(), Vec::<String>::new());
}

#[tokio::test]
async fn new_names_are_looked_up_at_a_limited_rate() {
    let server = Nameserver::start(&[]).await;
    let dialer = dialer(&[&server]);
    let allow = vec!["*.test".to_owned()];
    for index in 0..5_000 {
        let error = dial(&dialer, &to(&format!("n{index}.test"), 443), &allow).await.lookup_failed();
        if error == LookupError::Rate {
            assert!(index >= 500, "refused after {index}");
            return;
        }
    }
    panic!("no limit");
}

#[tokio::test]
async fn an_address_that_does_not_answer_does_not_hold_up_the_next() {
    // A listener whose queue is full drops what comes: the connection neither succeeds nor fails.
    let live = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = live.local_addr().unwrap().port();
    let deaf = tokio::net::TcpSocket::new_v4().unwrap();
    deaf.bind(SocketAddr::new("127.0.0.1".parse().unwrap(), port)).unwrap();
    let deaf = deaf.listen(1).unwrap();
    let mut fillers = Vec::new();
    while let Ok(Ok(stream)) =
        tokio::time::timeout(Duration::from_millis(300), tokio::net::TcpStream::connect(deaf.local_addr().unwrap()))
            .await
    {
        fillers.push(stream);
    }
    let server =
        Nameserver::start(&[("a.test", records(&[("a.test", at("127.0.0.1")), ("a.test", at("127.0.0.2"))]))]).await;
    let allow = vec![format!("*.test:{port}"), format!("127.0.0.0/8:{port}")];
    dial(&dialer(&[&server]), &to("a.test", port), &allow).await.reached("127.0.0.2", port);
}

#[tokio::test]
async fn the_whole_dial_has_a_deadline() {
    let server = Nameserver::start(&[("a.test", Answer::Silence)]).await;
    let dialer = dialer(&[&server]);
    let dialed = dialer.dial(&to("a.test", 443), &rules(&["*.test"], &[]), Duration::from_millis(10)).await;
    assert!(matches!(dialed, Err(DialError::TooLate { .. })), "{dialed:?}");
}

#[tokio::test]
async fn a_host_without_name_servers_says_so() {
    let error = dial(&dialer(&[]), &to("a.test", 443), &["*.test".to_owned()]).await.lookup_failed();
    assert_eq!(error, LookupError::NoServers);
}
