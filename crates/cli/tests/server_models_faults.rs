//! Runs on models that fail or misbehave: each has a defined outcome, the right bill and the right journal.

mod http;
mod model_standin;
mod runs;

use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Server, eventually};
use model_standin::serving::{agent, assert_key_is_nowhere, calling, server, shell, spending};
use model_standin::{Standin, Turn};
use runs::{begin, events, journal, results, said, show, until_completed, until_state};
use serde_json::{Value, json};

/// What a good reply costs: 100 tokens at $3 a million, and 10 at $15.
const GOOD: u64 = 450;
/// The beginning of a stream, with fifteen bytes of text.
const BEGUN: &str = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"some text of it\"}}]}\n\n";

/// Routes to the same provider that is given up soon, and whose every call is tried at most so often.
const HASTY: &str = r#"
[models.hasty]
retries = 0
targets = [{ provider = "hasty", model = "real-chat", prices = { input = "3", output = "15" } }]
"#;

fn hasty(standin: &Standin) -> String {
    let port = standin.port;
    format!(
        "[providers.hasty]\nkind = \"openai\"\nurl = \"http://127.0.0.1:{port}/v1\"\nkeys = [\"openai\"]\nfirst_byte_timeout = \"4s\"\n{HASTY}"
    )
}

/// What a run has recorded of its costs, attempts that failed included.
fn recorded(server: &Server, run: &str) -> u64 {
    journal(server, run).iter().filter_map(|entry| entry["usage"]["micros"].as_u64()).sum()
}

fn spent(server: &Server) -> u64 {
    spending(server)["spent_micros"].as_u64().expect("a number")
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Billed {
    Nothing,
    /// The prompt, as it is counted here.
    Prompt,
    /// The prompt and the text that came, at five tokens for fifteen bytes.
    Part,
}

/// A provider that answers the first request with this, and the others as it should.
fn at_first(wrong: Turn) -> Standin {
    let asked = AtomicUsize::new(0);
    Standin::saying(move |_, _| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => wrong.clone(),
        _ => Turn::says("It is done."),
    })
}

#[test]
fn what_a_provider_does_wrong_once_is_recorded_billed_and_made_good() {
    let error = "data: {\"error\":{\"message\":\"boom\",\"code\":500}}\n\n";
    for (what, wrong, code, billed) in [
        ("429", Turn::refused(429, "retry-after-ms: 10\r\n", "{}"), "rate_limited", Billed::Nothing),
        ("500", Turn::refused(500, "", "<html>"), "upstream", Billed::Nothing),
        ("529", Turn::refused(529, "", "{}"), "overloaded", Billed::Nothing),
        ("another type", Turn::refused(200, "content-type: text/html\r\n", "hi"), "upstream", Billed::Nothing),
        ("no stream", Turn::refused(200, "content-type: application/json\r\n", "{}"), "upstream", Billed::Nothing),
        ("garbage", Turn::streams("data: {not json}\n\n"), "upstream", Billed::Nothing),
        ("a huge event", Turn::streams(&format!("data: \"{}\"\n\n", "x".repeat(9 << 20))), "upstream", Billed::Nothing),
        ("an empty stream", Turn::streams(""), "torn", Billed::Prompt),
        ("a torn stream", Turn::streams(BEGUN), "torn", Billed::Part),
        ("an error in a stream", Turn::streams(&format!("{BEGUN}{error}")), "upstream", Billed::Part),
        ("garbage in a stream", Turn::streams(&format!("{BEGUN}data: no\n\n")), "upstream", Billed::Part),
        ("silence", Turn::silent(), "timeout", Billed::Prompt),
    ] {
        let standin = at_first(wrong);
        let server = server(&standin, &format!("{}[budgets.default]\ndollars = 1\n", hasty(&standin)));
        let run = begin(&server, &agent("hasty", json!({ "budget": { "micros": 900_000 } })));
        let finished = until_completed(&server, &run);
        assert_eq!(finished["outcome"]["answer"]["text"], "It is done.", "{what}");
        let failed = events(&server, &run, "step_failed");
        let (first, late) = failed.split_first().unwrap_or_else(|| panic!("{what}: no attempt failed"));
        assert_eq!((&first["failure"]["code"], &first["attempt"]), (&json!(code), &json!(1)), "{what}");
        // On a slow machine a good answer may come too late: that attempt is told and billed as any other.
        assert!(late.iter().all(|attempt| attempt["failure"]["code"] == "timeout"), "{what}: {failed:?}");
        let usage = |field: &str| first["usage"][field].as_u64().unwrap_or(0);
        let (tokens, micros) = (usage("tokens"), usage("micros"));
        let bill = GOOD + failed.iter().filter_map(|attempt| attempt["usage"]["micros"].as_u64()).sum::<u64>();
        // A prompt costs $3 a million; the text adds five tokens at $15.
        match billed {
            Billed::Nothing => assert_eq!((tokens, micros), (0, 0), "{what}"),
            Billed::Prompt => assert!(tokens > 20 && micros == 3 * tokens, "{what}: {tokens} {micros}"),
            Billed::Part => assert!(tokens > 20 && micros == 3 * (tokens - 5) + 75, "{what}: {tokens} {micros}"),
        }
        assert_eq!(standin.asked().len(), failed.len() + 1, "{what}");
        // The run, the project and the provider agree, and nothing stays set aside.
        assert_eq!((recorded(&server, &run), spent(&server)), (bill, bill), "{what}");
        assert_eq!(spending(&server)["set_aside_micros"], 0, "{what}");
        let estimated = usize::from(billed != Billed::Nothing) + late.len();
        assert_eq!(spending(&server)["routes"]["hasty"]["estimated"], estimated, "{what}");
        let replay = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
        assert_eq!(replay["divergence"], Value::Null, "{what}: {replay}");
        assert_key_is_nowhere(&server);
    }
}

#[test]
fn what_a_provider_refuses_for_good_ends_the_run_with_its_reason_and_costs_nothing() {
    for (status, said, code, attempts) in [
        (400, "bad schema", "invalid_request", 1),
        (404, "no such model", "not_found", 1),
        (500, "boom", "upstream", 3),
    ] {
        let body = json!({ "error": { "message": said } }).to_string();
        let standin = Standin::of(vec![Turn::refused(status, "", &body)]);
        let server = server(&standin, "");
        let run = begin(&server, &agent("chat", json!({})));
        let finished = until_state(&server, &run, "finished");
        let outcome = &finished["outcome"];
        assert_eq!((&outcome["outcome"], &outcome["failure"]["code"]), (&json!("failed"), &json!(code)), "{outcome}");
        assert!(outcome["failure"]["message"].as_str().is_some_and(|text| text.contains(said)), "{outcome}");
        assert_eq!((standin.asked().len(), recorded(&server, &run), spent(&server)), (attempts, 0, 0), "{status}");
    }
}

/// The results of tools in the last request.
fn told(standin: &Standin) -> Vec<Value> {
    let last = standin.asked().pop().expect("it was asked").body;
    let messages = last["messages"].as_array().expect("a list").clone();
    messages.into_iter().filter(|message| message["role"] == "tool").collect()
}

#[test]
fn calls_with_the_same_id_stay_apart() {
    let twins = Turn { is_ambiguous: true, ..calling(vec![shell("echo one"), shell("echo two")]) };
    let standin = Standin::of(vec![twins, Turn::says("It is done.")]);
    let server = server(&standin, "");
    let run = begin(&server, &agent("chat", json!({})));
    until_completed(&server, &run);
    let mut printed: Vec<String> = results(&server, &run).iter().map(|text| said(text)["stdout"].to_string()).collect();
    printed.sort();
    assert_eq!(printed, [r#""one\n""#, r#""two\n""#]);
    let told = told(&standin);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].to_string().contains("one") && told[1].to_string().contains("two"),
        "in the model's order: {told:?}"
    );
    assert_ne!(told[0]["tool_call_id"], told[1]["tool_call_id"], "providers refuse two results for one id");
}

#[test]
fn calls_that_cannot_be_made_are_answered_and_the_run_goes_on() {
    for (tool, arguments, complaint) in [
        ("hammer", "{}", "hammer"),
        ("shell", "{\"command\":", "JSON"),
        ("shell", "{\"comand\": \"ls\"}", "command"),
        ("shell", "[]", "object"),
        ("shell", "", "command"),
    ] {
        let standin = Standin::of(vec![Turn::calls(&[(tool, arguments)]), Turn::says("It is done.")]);
        let server = server(&standin, "");
        let run = begin(&server, &agent("chat", json!({})));
        until_completed(&server, &run);
        let told = told(&standin);
        assert!(told.len() == 1 && told[0].to_string().contains(complaint), "{tool} {arguments}: {told:?}");
        assert_eq!(show(&server, &run)["sandbox_id"], Value::Null, "{tool} {arguments}: nothing was performed");
    }
}

#[test]
fn a_model_that_repeats_itself_is_stopped() {
    let standin = Standin::saying(|_, _| calling(vec![shell("echo again")]));
    let server = server(&standin, "");
    let run = begin(&server, &agent("chat", json!({ "repeats_max": 3 })));
    let finished = until_state(&server, &run, "finished");
    assert_eq!(finished["outcome"]["outcome"], "loop", "{finished}");
    assert_eq!(standin.asked().len(), 4, "three calls were made, and the fourth was not");
    assert_eq!((recorded(&server, &run), spent(&server)), (4 * GOOD, 4 * GOOD));
}

#[test]
fn replies_with_nothing_in_them_end_the_run_and_each_is_paid_for() {
    let standin = Standin::saying(|_, _| Turn::says(""));
    let server = server(&standin, "");
    let run = begin(&server, &agent("chat", json!({ "corrections_max": 1 })));
    let finished = until_state(&server, &run, "finished");
    assert_eq!(finished["outcome"]["failure"]["code"], "empty_reply", "{finished}");
    assert_eq!((standin.asked().len(), recorded(&server, &run), spent(&server)), (2, 2 * GOOD, 2 * GOOD));
}

#[test]
fn control_characters_of_a_result_reach_the_journal_and_not_the_model() {
    let line = r"printf '\033[31mred\007\000\377 end'";
    let standin = Standin::of(vec![calling(vec![shell(line)]), Turn::says("It is done.")]);
    let server = server(&standin, "");
    let run = begin(&server, &agent("chat", json!({})));
    until_completed(&server, &run);
    assert_eq!(said(&results(&server, &run)[0])["stdout"], "\u{1b}[31mred\u{7}\0\u{fffd} end");
    let told = told(&standin);
    let text = told[0]["content"].as_str().expect("a text");
    assert!(text.contains("red") && text.contains(" end"), "{text}");
    assert!(text.chars().all(|c| !c.is_control() || c == '\n'), "{text:?}");
}

/// Peak memory of the server, in KiB.
fn memory_most(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("every process has one");
    most.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn heavy_a_result_of_a_gibibyte_of_control_characters_is_cut_and_bounded_everywhere() {
    let read = ("files".to_owned(), json!({ "op": "read", "path": "/tmp/big" }).to_string());
    let standin = Standin::of(vec![
        calling(vec![shell("truncate -s 1G /tmp/big")]),
        calling(vec![read, shell("cat /tmp/big")]),
        Turn::says("It is done."),
    ]);
    let server = server(&standin, "");
    let run = begin(&server, &agent("chat", json!({ "tools": { "shell": {}, "files": {} } })));
    until_completed(&server, &run);
    let told = told(&standin);
    let texts: Vec<&str> = told.iter().filter_map(|message| message["content"].as_str()).collect();
    let [_, file, program] = texts.as_slice() else { panic!("{} results", texts.len()) };
    assert!(file.contains("(truncated after 262144 bytes)") && file.len() < 300 << 10, "{}", file.len());
    assert!(file.chars().all(|c| !c.is_control() || c == '\n'));
    // 64 KiB are kept, each byte as six letters of JSON.
    assert!(program.contains("\"bytes_dropped\":1073676288") && program.len() < 500 << 10, "{}", program.len());
    let most = memory_most(&server);
    assert!(most < 160 << 10, "the server had {most} KiB");
}

#[test]
fn a_cancelled_run_ends_its_stream_at_once_and_what_came_is_billed() {
    let standin = Standin::of(vec![Turn::says("It is done.")]);
    let server = server(&standin, "[budgets.default]\ndollars = 1\n");
    standin.hold(true);
    let run = begin(&server, &agent("chat", json!({ "budget": { "micros": 900_000 } })));
    standin.until_held(1);
    server.post(&format!("/api/v1/runs/{run}/cancel"), &Value::Null);
    // The provider sees its client leave while it still holds the answer back.
    standin.until_left(1);
    let finished = until_state(&server, &run, "finished");
    assert_eq!(finished["outcome"]["outcome"], "cancelled");
    eventually("it is booked", || spending(&server)["set_aside_micros"] == 0);
    let booked = spent(&server);
    assert!(booked > 0 && booked < 15_000, "the prompt and a part of the text: {booked}");
    // The run has no count of it: until it ends, what was set aside counts as spent, and that is more.
    let abandoned = events(&server, &run, "step_abandoned");
    assert_eq!((abandoned.len(), &abandoned[0]["step"], recorded(&server, &run)), (1, &json!(1), 0));
    let reserved = events(&server, &run, "step_intended")[0]["reserved"]["micros"].as_u64().expect("a number");
    assert!(booked < reserved, "{booked} of {reserved}");
}

#[test]
fn a_run_out_of_time_ends_its_stream_and_what_came_is_billed() {
    let standin = Standin::of(vec![Turn::says("It is done.")]);
    let server = server(&standin, "[budgets.default]\ndollars = 1\n");
    standin.hold(true);
    let run = begin(&server, &agent("chat", json!({ "budget": { "time": "2s" } })));
    standin.until_held(1);
    standin.until_left(1);
    let finished = until_state(&server, &run, "finished");
    assert_eq!(
        (&finished["outcome"]["outcome"], &finished["outcome"]["budget"]),
        (&json!("budget_exceeded"), &json!("wall_ms")),
        "{finished}"
    );
    eventually("it is booked", || spending(&server)["set_aside_micros"] == 0);
    assert!(spent(&server) > 0);
}
