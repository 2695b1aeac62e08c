//! The cost table of a project against the provider's own bill: cached and reasoning tokens, retries, fallbacks, streams that break and
//! clients that leave. Where the provider gave its count, both agree to the millionth; where it didn't, ours is an estimate that says so,
//! and is not below the provider's.

mod http;
mod model_standin;
mod runs;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http::{Server, eventually};
use model_standin::serving::{agent, calling, server, shell, spending};
use model_standin::{Asked, Standin, Turn};
use runs::{begin, journal, until_completed};
use serde_json::{Value, json};

/// What the provider bills, by its name of the model.
type Ledger = Arc<Mutex<BTreeMap<String, Bill>>>;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bill {
    calls: u64,
    input: u64,
    cached: u64,
    output: u64,
    reasoning: u64,
    /// A tenth of a millionth of a dollar.
    tenths: u64,
}

/// Routes whose second target is another provider, and a model whose reasoning has a price of its own.
const MORE: &str = r#"
[models.careful]
targets = [{ provider = "openai", model = "broken-chat", prices = { input = "3", output = "15", cached_read = "0.3" } }]
fallbacks = [{ provider = "anthropic", model = "other-claude", prices = { input = "4", output = "20", cached_read = "0.4" } }]
[models.thinking]
retries = 2
targets = [{ provider = "openai", model = "thinking", prices = { input = "3", output = "15", cached_read = "0.3", reasoning = "20" } }]
[models.breaking]
retries = 0
targets = [{ provider = "openai", model = "breaking", prices = { input = "3", output = "15", cached_read = "0.3" } }]
[budgets.default]
dollars = 10
"#;

/// Dollars per million tokens of input, cached input, output and reasoning, in tenths.
fn prices(model: &str) -> [u64; 4] {
    match model {
        "other-claude" => [40, 4, 200, 200],
        "thinking" => [30, 3, 150, 200],
        _ => [30, 3, 150, 150],
    }
}

/// The provider's count: four bytes of the conversation are a token, and so are four of its text.
fn counted(asked: &Asked, turn: Turn) -> Turn {
    let input = asked.body.to_string().len() as u64 / 4;
    let output = 7
        + turn.text.len() as u64 / 4
        + turn.calls.iter().map(|(_, arguments)| arguments.len() as u64 / 4).sum::<u64>();
    // Anthropic's wire doesn't say what thinking has used.
    let reasoning = if asked.path == "/v1/messages" { 0 } else { 5 };
    Turn { input, cached: input / 3, output, reasoning, ..turn }
}

fn bill(ledger: &Ledger, asked: &Asked, turn: &Turn) {
    let model = asked.body["model"].as_str().expect("it has one").to_owned();
    let [input, cached, output, reasoning] = prices(&model);
    let mut ledger = ledger.lock().expect("no test panics inside");
    let bill = ledger.entry(model).or_default();
    bill.calls += 1;
    bill.input += turn.input;
    bill.cached += turn.cached;
    bill.output += turn.output;
    bill.reasoning += turn.reasoning;
    let tenths = (turn.input - turn.cached) * input
        + turn.cached * cached
        + (turn.output - turn.reasoning) * output
        + turn.reasoning * reasoning;
    // Each call is rounded up to a millionth.
    bill.tenths += tenths.div_ceil(10) * 10;
}

/// A provider that keeps books. Of the model `thinking` every second request is refused, of `breaking` every stream breaks, and
/// `broken-chat` fails.
fn provider(ledger: &Ledger) -> Standin {
    let (ledger, asked_thinking) = (Arc::clone(ledger), AtomicUsize::new(0));
    let replies = [calling(vec![shell("echo one")]), Turn::says("It is done, and this is a long answer.")];
    Standin::saying(move |count, asked| {
        let reply = replies.get(count).cloned().unwrap_or_default();
        let turn = match asked.body["model"].as_str() {
            Some("broken-chat") => return Turn::refused(503, "", "{}"),
            Some("thinking") if asked_thinking.fetch_add(1, Ordering::SeqCst) % 2 == 0 => {
                return Turn::refused(429, "retry-after-ms: 1\r\n", "{}");
            }
            Some("breaking") => counted(asked, reply).torn(),
            _ => counted(asked, reply),
        };
        bill(&ledger, asked, &turn);
        turn
    })
}

fn route(server: &Server, name: &str) -> Value {
    spending(server)["routes"][name].clone()
}

/// What the server has of a route, in the provider's terms.
fn booked(server: &Server, name: &str) -> Bill {
    let sum = route(server, name);
    let number = |field: &str| sum[field].as_u64().unwrap_or_else(|| panic!("{field}: {sum}"));
    Bill {
        calls: number("calls"),
        input: number("input"),
        cached: number("cached"),
        output: number("output"),
        reasoning: number("reasoning"),
        tenths: number("micros") * 10,
    }
}

/// What a run has recorded of its costs, in tenths.
fn recorded(server: &Server, run: &str) -> u64 {
    journal(server, run).iter().filter_map(|entry| entry["usage"]["micros"].as_u64()).sum::<u64>() * 10
}

/// A call of a client, as a stream.
fn ask(server: &Server, model: &str) -> String {
    let body = json!({ "model": model, "stream": true, "max_tokens": 500, "messages": [{ "role": "user", "content": "Say something." }] });
    server.post("/v1/chat/completions", &body).text()
}

#[test]
fn the_cost_of_every_route_is_what_its_provider_bills() {
    let ledger = Ledger::default();
    let standin = provider(&ledger);
    let server = server(&standin, MORE);
    let bills = |model: &str| ledger.lock().expect("no test panics inside").get(model).copied().unwrap_or_default();
    let models = [
        ("chat", "real-chat"),
        ("responses", "real-responses"),
        ("anthropic", "real-claude"),
        ("careful", "other-claude"),
        ("thinking", "thinking"),
    ];
    for (name, model) in models {
        let run = begin(&server, &agent(name, json!({ "budget": { "micros": 5_000_000 } })));
        until_completed(&server, &run);
        let of_run = bills(model);
        assert_eq!(of_run.calls, 2, "{name}");
        assert_eq!(recorded(&server, &run), of_run.tenths, "{name}: the run's journal");
        assert!(ask(&server, name).ends_with("data: [DONE]\n\n"), "{name}");
        let of_all = bills(model);
        assert!(of_all.cached > 0 && of_all.calls == 3, "{name}");
        eventually("it is booked", || booked(&server, name).calls == 3);
        assert_eq!(booked(&server, name), of_all, "{name}: the project's table");
        assert_eq!(route(&server, name)["estimated"], 0, "{name}");
    }
    assert!(bills("thinking").reasoning > 0);
    let in_all: u64 = models.iter().map(|(_, model)| bills(model).tenths).sum();
    assert_eq!(spending(&server)["spent_micros"].as_u64().expect("a number") * 10, in_all);
    // Streams that break, and a client that leaves in the middle: the provider bills them, and never says how much.
    let got = ask(&server, "breaking");
    assert!(got.contains("\"error\""), "{got}");
    standin.hold(true);
    {
        let mut connection = server.connect();
        let body = json!({ "model": "breaking", "stream": true, "max_tokens": 500, "messages": [{ "role": "user", "content": "Say something." }] });
        let authorization = server.authorization();
        let headers = [authorization.as_str(), "Content-Type: application/json"];
        http::send(&mut connection, "POST", "/v1/chat/completions", &headers, body.to_string().as_bytes());
        standin.until_held(1);
    }
    standin.until_left(1);
    eventually("both are booked", || booked(&server, "breaking").calls == 2);
    let (ours, theirs) = (booked(&server, "breaking"), bills("breaking"));
    assert_eq!((route(&server, "breaking")["estimated"].as_u64(), theirs.calls), (Some(2), 2));
    assert!(ours.input >= theirs.input, "{ours:?} {theirs:?}");
    assert_eq!(spending(&server)["set_aside_micros"], 0, "nothing stays set aside");
}

/// Clients at once, most of which are refused.
const CROWD: usize = 400;

#[test]
fn a_crowd_of_streams_on_a_budget_for_ten_gets_ten_and_spends_no_more_when_half_of_them_are_killed() {
    let standin = Standin::of(vec![Turn::says("This is an answer of some words.")]);
    // Each sets aside 120 tokens at $15 a million, and a prompt of less than 60 at $3.
    let server = server(&standin, "[budgets.default]\ndollars = \"0.02\"\n");
    standin.hold(true);
    let body =
        json!({ "model": "chat", "stream": true, "max_tokens": 120, "messages": [{ "role": "user", "content": "x" }] })
            .to_string();
    let authorization = server.authorization();
    let headers = [authorization.as_str(), "Content-Type: application/json"];
    let mut crowd: Vec<_> = (0..CROWD).map(|_| server.connect()).collect();
    for connection in &mut crowd {
        http::send(connection, "POST", "/v1/chat/completions", &headers, body.as_bytes());
    }
    let mut open = Vec::new();
    for connection in crowd {
        let mut reader = std::io::BufReader::new(connection);
        match http::read_head(&mut reader).0 {
            200 => open.push(reader),
            status => assert_eq!(status, 429, "refused for the budget"),
        }
    }
    assert_eq!((open.len(), standin.asked().len()), (10, 10), "none is under way beyond the budget");
    assert!(
        standin
            .asked()
            .iter()
            .all(|asked| asked.body["max_completion_tokens"] == 120 || asked.body["max_tokens"] == 120)
    );
    // Half of them are killed; the others come to their end.
    standin.until_held(10);
    open.truncate(5);
    standin.until_left(5);
    standin.hold(false);
    for reader in &mut open {
        let mut text = String::new();
        while let Some(chunk) = http::read_chunk(reader) {
            text.push_str(&String::from_utf8_lossy(&chunk));
        }
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    }
    eventually("all are booked", || booked(&server, "chat").calls == 10);
    let (sum, spent) = (route(&server, "chat"), spending(&server));
    assert_eq!((&sum["estimated"], &spent["set_aside_micros"]), (&json!(5), &json!(0)), "{sum}");
    // The five that ended were billed by the provider's count, at 100 and 10 tokens.
    let spent = spent["spent_micros"].as_u64().expect("a number");
    assert!(spent > 5 * 450 && spent < 20_000, "{spent}");
}
