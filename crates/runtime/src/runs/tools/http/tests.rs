//! Services with ambiguous responses, on real sockets.

use std::sync::{Arc, Mutex as Lock};

use saggar_domain::RunId;
use saggar_domain::net::{EgressDraft, NetDecision, Protocol, Verdict};
use saggar_engine::EffectKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::runs::effects::Work;
use crate::runs::real::RunSettings;

/// A service that sends these responses in turn, the last one forever, and closes each connection after a number of
/// them, without announcing it.
struct Service {
    url: String,
    requests: Arc<Lock<Vec<String>>>,
}

impl Service {
    async fn start(answers: &'static [&'static str], answers_per_connection: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/do", listener.local_addr().unwrap());
        let requests: Arc<Lock<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&requests);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                for _ in 0..answers_per_connection {
                    let Some(request) = read_request(&mut stream).await else { break };
                    let count = {
                        let mut seen = seen.lock().unwrap();
                        seen.push(request);
                        seen.len()
                    };
                    let answer = answers[(count - 1).min(answers.len() - 1)];
                    stream.write_all(format!("HTTP/1.1 {answer}").as_bytes()).await.unwrap();
                }
            }
        });
        Self { url, requests }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    fn tool(&self) -> HttpTool {
        tool(&[&self.url], None)
    }

    async fn call(&self, tool: &HttpTool, class: Class, attempt: u32) -> Report {
        let (report, _) = call(tool, class, attempt, &serde_json::json!({ "url": self.url })).await;
        report
    }
}

/// What a call reports, and the decisions about it.
async fn call(
    tool: &HttpTool,
    class: Class,
    attempt: u32,
    arguments: &serde_json::Value,
) -> (Report, Vec<NetDecision>) {
    match tool.call(&task(class, attempt), &arguments.to_string()).await {
        Report::Returned { mut result, snapshot } => {
            let network = std::mem::take(&mut result.network);
            (Report::Returned { result, snapshot }, network)
        }
        Report::Failed { mut failure, usage } => {
            let network = std::mem::take(&mut failure.network);
            (Report::Failed { failure, usage }, network)
        }
        Report::Unknown { reason, network } => (Report::unknown(reason), network),
        other => panic!("{other:?}"),
    }
}

fn tool(allowed: &[&str], egress: Option<EgressDraft>) -> HttpTool {
    let http_allowed = allowed.iter().map(|entry| entry.parse().unwrap()).collect();
    let settings = LiveSettings::new(RunSettings { http_allowed, ..RunSettings::default() });
    HttpTool::new(settings, Arc::default(), egress)
}

async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    // The body of a POST is `null`, and arrives with the headers or after them. Other methods have none here.
    while !bytes.ends_with(b"null") && (bytes.starts_with(b"POST") || !bytes.ends_with(b"\r\n\r\n")) {
        let mut some = [0; 1024];
        match stream.read(&mut some).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&some[..count]),
        }
    }
    String::from_utf8(bytes).ok()
}

fn task(class: Class, attempt: u32) -> Task {
    let key = EffectKey::of(&RunId::from_random([1; 16]), 0, 2);
    let work = Work::CallTool { tool: "http".to_owned(), arguments: String::new() };
    Task { step: 2, attempt, key, class, work, timeout: Duration::from_secs(30), files: Default::default() }
}

const OK: &str = "200 OK\r\ncontent-length: 2\r\n\r\nok";
const CONFLICT: &str = "409 Conflict\r\ncontent-length: 9\r\n\r\nin flight";

#[tokio::test]
async fn a_service_that_closes_its_connections_parks_nothing_and_is_asked_once() {
    for class in [Class::Once, Class::Probeable, Class::Keyed, Class::Pure] {
        let service = Service::start(&[OK], 1).await;
        let tool = service.tool();
        for _ in 0..50 {
            assert_eq!(service.call(&tool, class, 1).await, returned("ok", false), "{class:?}");
        }
        assert_eq!(service.requests().len(), 50, "{class:?}");
    }
}

#[tokio::test]
async fn a_kept_connection_is_used_again_where_a_call_may_be_repeated() {
    for (class, is_kept) in [(Class::Keyed, true), (Class::Pure, true), (Class::Once, false)] {
        let service = Service::start(&[OK], 1000).await;
        let tool = service.tool();
        assert_eq!(service.call(&tool, class, 1).await, returned("ok", false));
        assert_eq!(tool.kept.lock().await.is_some(), is_kept, "{class:?}");
        let closes = service.requests()[0].contains("connection: close");
        assert_eq!(closes, !is_kept, "{class:?}");
    }
}

#[tokio::test]
async fn a_conflict_of_a_redo_is_waited_out_and_of_a_first_try_is_the_answer() {
    let conflict = || returned("409 Conflict: in flight", true);
    for (class, attempt, expected, requests) in [
        (Class::Keyed, 2, returned("ok", false), 3),
        (Class::Keyed, 1, conflict(), 1),
        (Class::Pure, 2, conflict(), 1),
        (Class::Once, 2, conflict(), 1),
    ] {
        let service = Service::start(&[CONFLICT, CONFLICT, OK], 1000).await;
        assert_eq!(service.call(&service.tool(), class, attempt).await, expected, "{class:?} {attempt}");
        assert_eq!(service.requests().len(), requests, "{class:?} {attempt}");
    }
}

#[tokio::test]
async fn a_conflict_that_stays_is_given_as_the_answer_in_time() {
    // The second asks for more patience than the call has left.
    const STAYS: &str = "409 Conflict\r\nretry-after: 3600\r\ncontent-length: 9\r\n\r\nin flight";
    let service = Service::start(&[CONFLICT, STAYS], 1000).await;
    let report = service.call(&service.tool(), Class::Keyed, 2).await;
    assert_eq!(report, returned("409 Conflict: in flight", true));
    assert_eq!(service.requests().len(), 2);
}

#[tokio::test]
async fn a_service_that_says_when_to_come_back_is_asked_then() {
    for busy in [
        "503 Busy\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n",
        "429 Busy\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n",
    ] {
        let answers: &'static [&'static str] = Box::leak(Box::new([busy, CONFLICT, OK]));
        let service = Service::start(answers, 1000).await;
        assert_eq!(service.call(&service.tool(), Class::Keyed, 1).await, returned("ok", false), "{busy}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_an_address_that_is_not_allowed_is_not_called() {
    let service = Service::start(&["302 Found\r\nlocation: /admin\r\ncontent-length: 0\r\n\r\n"], 1000).await;
    let tool = service.tool();
    assert_eq!(service.call(&tool, Class::Keyed, 1).await, returned("302 Found; redirects are not followed: ", true));
    for url in [format!("{}/../admin", service.url), service.url.replace("/do", "/admin")] {
        let report = tool.call(&task(Class::Keyed, 1), &serde_json::json!({ "url": url }).to_string()).await;
        assert!(matches!(&report, Report::Returned { result, .. } if result.is_error), "{report:?}");
    }
    assert_eq!(service.requests().len(), 1);
}

#[tokio::test]
async fn every_method_and_header_is_sent_and_recorded_with_its_rule() {
    let service = Service::start(&["200 OK\r\nx-answer: 7\r\ncontent-length: 0\r\n\r\n"], 1000).await;
    let authority = service.url.trim_start_matches("http://").trim_end_matches("/do");
    let tool = tool(&[&format!("GET {authority}"), &format!("HEAD,DELETE {authority}/do")], None);
    let url = format!("{}?token=hidden", service.url);
    for (method, expected) in [("GET", ""), ("DELETE", ""), ("HEAD", "x-answer: 7\ncontent-length: 0\n")] {
        let headers = serde_json::json!({ "X-Own": "1", "X-HTTP-Method-Override": "PUT" });
        let arguments = serde_json::json!({ "url": url, "method": method, "headers": headers });
        let (report, network) = call(&tool, Class::Keyed, 1, &arguments).await;
        assert_eq!(report, returned(expected, false), "{method}");
        let [decision] = &network[..] else { panic!("{network:?}") };
        assert_eq!((decision.verdict, decision.protocol), (Verdict::Allowed, Protocol::Http));
        assert_eq!((decision.method.as_deref(), decision.path.as_deref()), (Some(method), Some("/do")));
        assert_eq!(decision.address, Some("127.0.0.1".parse().unwrap()));
        assert!(decision.rule.contains(method), "{decision:?}");
        assert!(decision.bytes_up > 0);
    }
    for request in service.requests() {
        assert!(request.contains("x-own: 1\r\n") && request.contains("idempotency-key: "), "{request}");
        assert!(request.contains(" /do?token=hidden HTTP/1.1") && !request.contains("override"), "{request}");
    }
    let (report, network) = call(&tool, Class::Keyed, 1, &serde_json::json!({ "url": url, "method": "PUT" })).await;
    assert!(matches!(&report, Report::Returned { result, .. } if result.is_error), "{report:?}");
    assert_eq!((network[0].verdict, network[0].rule.as_str()), (Verdict::Denied, "egress/default"));
    assert_eq!(service.requests().len(), 3);
}

#[tokio::test]
async fn a_call_that_fails_or_whose_outcome_is_unknown_leaves_a_decision_too() {
    let refusing = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = format!("http://{}/do", refusing.local_addr().unwrap());
    drop(refusing);
    let service = Service::start(&["500 Broken\r\ncontent-length: 0\r\n\r\n"], 1).await;
    let busy = Service::start(&["429 Busy\r\ncontent-length: 4\r\n\r\nbusy"], 1).await;
    for (url, is_failure, reason) in
        [(&closed, true, "127.0.0.1"), (&busy.url, true, "busy"), (&service.url, false, "it answered 500")]
    {
        let (report, network) = call(&tool(&[url], None), Class::Once, 1, &serde_json::json!({ "url": url })).await;
        assert_eq!(matches!(report, Report::Failed { .. }), is_failure, "{report:?}");
        let [decision] = &network[..] else { panic!("{url}: {network:?}") };
        assert_eq!((decision.verdict, decision.host.as_str()), (Verdict::Allowed, "127.0.0.1"));
        assert!(decision.reason.as_ref().is_some_and(|told| told.contains(reason)), "{decision:?}");
    }
}

#[tokio::test]
async fn rules_that_change_between_two_attempts_of_a_call_are_obeyed() {
    let service = Service::start(&[CONFLICT, OK], 1000).await;
    let settings =
        LiveSettings::new(RunSettings { http_allowed: vec![service.url.parse().unwrap()], ..RunSettings::default() });
    let tool = HttpTool::new(settings.clone(), Arc::default(), None);
    let arguments = serde_json::json!({ "url": service.url });
    let calling = call(&tool, Class::Keyed, 2, &arguments);
    let forbidding = async {
        while service.requests().is_empty() {
            tokio::task::yield_now().await;
        }
        settings.set(RunSettings::default());
    };
    let ((report, network), ()) = tokio::join!(calling, forbidding);
    assert!(matches!(&report, Report::Returned { result, .. } if result.is_error), "{report:?}");
    assert_eq!((network[0].verdict, network[0].rule.as_str()), (Verdict::Denied, "egress/address-own"));
    assert_eq!(service.requests().len(), 1);
}

#[tokio::test]
async fn an_agent_has_rules_of_its_own_beside_the_operators() {
    let service = Service::start(&[OK], 1000).await;
    let authority = service.url.trim_start_matches("http://").trim_end_matches("/do");
    let rules = |allow: &[&str], deny: &[&str]| {
        let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Some(EgressDraft::of(parse(allow), parse(deny)))
    };
    for (egress, rule) in [
        (rules(&[authority], &[]), None),
        (rules(&["*"], &[]), Some("egress/address-own")),
        (rules(&[], &[]), Some("egress/address-own")),
        (rules(&[authority], &["POST 127.0.0.1"]), Some("egress/deny:POST 127.0.0.1")),
    ] {
        let tool = tool(&[&service.url], egress);
        let (report, network) = call(&tool, Class::Keyed, 1, &serde_json::json!({ "url": service.url })).await;
        match rule {
            None => assert_eq!(report, returned("ok", false)),
            Some(rule) => {
                assert_eq!(network[0].rule, rule);
                assert!(matches!(&report, Report::Returned { result, .. } if result.is_error), "{report:?}");
            }
        }
    }
    assert_eq!(service.requests().len(), 1);
}

#[tokio::test]
async fn what_a_call_must_not_say_is_refused_before_anything_is_dialled() {
    let service = Service::start(&[OK], 1000).await;
    let tool = service.tool();
    for (name, value) in [
        ("Host", serde_json::json!("evil.example")),
        ("Idempotency-Key", serde_json::json!("other")),
        ("Content-Length", serde_json::json!("3")),
        ("Transfer-Encoding", serde_json::json!("chunked")),
        ("X-Line", serde_json::json!("a\r\nX: b")),
        ("X Space", serde_json::json!("a")),
        ("X-Number", serde_json::json!(1)),
    ] {
        let arguments = serde_json::json!({ "url": service.url, "headers": { name: value } });
        let (report, _) = call(&tool, Class::Keyed, 1, &arguments).await;
        assert!(matches!(&report, Report::Returned { result, .. } if result.is_error), "{name}: {report:?}");
    }
    for arguments in [
        serde_json::json!({ "url": service.url, "method": "GE T" }),
        serde_json::json!({ "url": service.url, "method": "TRACE" }),
        serde_json::json!({ "url": service.url, "body": 1, "text": "x" }),
        serde_json::json!({ "url": service.url, "unknown": 1 }),
    ] {
        let (report, _) = call(&tool, Class::Keyed, 1, &arguments).await;
        assert!(matches!(&report, Report::Returned { result, .. } if result.is_error), "{arguments}: {report:?}");
    }
    assert_eq!(service.requests().len(), 0);
}

#[tokio::test]
async fn an_answer_of_a_gibibyte_is_cut_and_its_connection_closed() {
    const WHOLE: usize = 1 << 30;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/do", listener.local_addr().unwrap());
    let sending = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await.unwrap();
        stream.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {WHOLE}\r\n\r\n").as_bytes()).await.unwrap();
        let (piece, mut sent) = ([0x1b_u8; 64 * 1024], 0);
        while sent < WHOLE && stream.write_all(&piece).await.is_ok() {
            sent += piece.len();
        }
        sent
    });
    let (report, network) = call(&tool(&[&url], None), Class::Once, 1, &serde_json::json!({ "url": url })).await;
    let Report::Returned { result, .. } = report else { panic!("{report:?}") };
    let text = result.content.as_text().unwrap();
    assert_eq!(text.len(), ANSWER_MAX + "\n(truncated after 262144 bytes)".len());
    assert!(text.starts_with('\u{1b}') && text.ends_with("(truncated after 262144 bytes)"));
    let sent = sending.await.unwrap();
    assert!(sent < WHOLE / 8, "the service could send {sent} bytes");
    assert!((network[0].bytes_down as usize) < WHOLE / 8);
}

#[tokio::test]
async fn a_delay_that_no_clock_can_count_ends_a_call_and_nothing_else() {
    const NEVER: &str = "503 Busy\r\nretry-after: 18446744073709551615\r\ncontent-length: 0\r\n\r\n";
    let service = Service::start(&[NEVER, OK], 1).await;
    let report = service.call(&service.tool(), Class::Keyed, 1).await;
    assert_eq!(report, Report::unknown("it answered 503 Service Unavailable"));
    assert_eq!(service.requests().len(), 1);
}

/// A run may have several calls open at once, and one that waits must not be told that its service was silent.
#[tokio::test]
async fn calls_beside_each_other_do_not_wait_for_one_another() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/do", listener.local_addr().unwrap());
    tokio::spawn(async move {
        // Answers once both have asked.
        let mut streams = Vec::new();
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await.unwrap();
            streams.push(stream);
        }
        for mut stream in streams {
            stream.write_all(format!("HTTP/1.1 {OK}").as_bytes()).await.unwrap();
        }
    });
    let (tool, arguments) = (tool(&[&url], None), serde_json::json!({ "url": url }));
    let one = || async {
        let task = Task { timeout: Duration::from_secs(5), ..task(Class::Keyed, 1) };
        tool.call(&task, &arguments.to_string()).await
    };
    let (first, second) = tokio::join!(one(), one());
    for report in [first, second] {
        assert!(matches!(&report, Report::Returned { result, .. } if !result.is_error), "{report:?}");
    }
}
