//! Models that programs in the sandbox of a run call: the run pays, however many ask at once and whatever is killed.

mod http;
mod provider;
mod runs;

use http::{Server, eventually};
use provider::{KEY, Provider};
use runs::{begin, journal, show, until_completed};
use serde_json::{Value, json};

/// A server with the provider's models, and the provider's key in its vault.
fn serving(provider: &Provider) -> Server {
    let root = http::new_directory();
    let file = provider.models_file(&root, "");
    let server = Server::start_in(root, &["--models-file", file.to_str().expect("plain")]);
    let secret = json!({"value": KEY, "binding": {"rules": ["api.example.com"], "slot": "bearer"}}).to_string();
    let stored =
        server.request("PUT", "/api/v1/secrets/provider", &["Content-Type: application/json"], secret.as_bytes());
    assert_eq!(stored.status, 201, "{}", stored.text());
    server
}

/// An agent that has one line of shell run, in a sandbox with models.
fn agent(line: &str, budget: &Value) -> Value {
    let mut agent = runs::agent(json!([{"calls": [runs::shell(line)]}, {"text": "done"}]));
    agent["agent"]["sandbox"] = json!({"network": "proxied", "models": true});
    agent["agent"]["budget"] = budget.clone();
    agent
}

/// Tokens that a reply of each stream may have.
const REPLY_TOKENS: u64 = 2_000;

/// Opens so many endless streams at once, and prints the statuses that there were once all have one. Ends when `/tmp/go` exists.
fn many_streams(count: u32) -> String {
    format!(
        r#"cat > /tmp/many.py <<'END'
import asyncio, collections, json, os
body = json.dumps({{"model": "endless", "stream": True, "max_tokens": {REPLY_TOKENS}, "messages": [{{"role": "user", "content": "x"}}]}})
head = "POST /v1/chat/completions HTTP/1.1\r\nhost: model.internal\r\nauthorization: Bearer " + os.environ["OPENAI_API_KEY"]
request = (head + "\r\ncontent-type: application/json\r\ncontent-length: " + str(len(body)) + "\r\n\r\n" + body).encode()
async def one():
    reader, writer = await asyncio.open_connection("model.internal", 80)
    writer.write(request)
    status = (await reader.readline()).split()[1].decode()
    said = (await reader.read(2000)).decode() if status != "200" else ""
    return status, said, writer
async def main():
    all = await asyncio.gather(*[one() for _ in range({count})])
    print(json.dumps(collections.Counter(status for status, _, _ in all)))
    print(max(said for _, said, _ in all)[-600:], flush=True)
    while {count} < 10 and not os.path.exists("/tmp/go"):
        await asyncio.sleep(0.05)
asyncio.run(main())
END
python3 /tmp/many.py"#
    )
}

fn calls(server: &Server, run: &str) -> Value {
    show(server, run)["sandbox_models"][0].clone()
}

/// The newest that the journal has about calls in its sandboxes.
fn told(server: &Server, run: &str) -> Value {
    let journal = journal(server, run);
    let told = journal.iter().rev().find(|entry| entry["event"] == "sandbox_called");
    told.map(|entry| entry["calls"].clone()).unwrap_or_default()
}

#[test]
fn of_two_hundred_streams_at_once_a_budget_for_ten_lets_ten_begin() {
    let provider = Provider::start();
    let server = serving(&provider);
    // Ten replies, and some tokens for ten prompts and their retries: less than an eleventh reply.
    let tokens = 10 * REPLY_TOKENS + 1_500;
    let run = begin(&server, &agent(&many_streams(200), &json!({"tokens": tokens})));
    let finished = until_completed(&server, &run);
    let result = runs::results(&server, &run).concat();
    assert!(result.contains(r#"\"200\": 10"#) && result.contains(r#"\"429\": 190"#), "{result}");
    assert!(result.contains("the run's budget of tokens is used up"), "{result}");
    // Each that began has been billed once: in the project's account, for the run, and in its journal, or it still will be.
    eventually("all have ended", || calls(&server, &run)["calls"] == 10 && provider.open_streams() == 0);
    let spent = server.get("/v1/models").expect(200)["saggar"].clone();
    assert_eq!(spent["routes"]["endless"]["calls"], 10, "{spent}");
    assert_eq!(spent["routes"]["endless"]["micros"], calls(&server, &run)["micros"]);
    let (told, calls) = (told(&server, &run), calls(&server, &run));
    assert!(told["models"]["endless"]["calls"].as_u64() <= Some(10) && calls["micros"].as_u64() > Some(0), "{told}");
    let url = format!("http://{}", server.address);
    let mut show_it = http::command(&["runs", "show", &run]);
    let shown = show_it.env("SAGGAR_URL", url).env("SAGGAR_API_KEY", &server.key).output().expect("it runs");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("endless, in sandboxes: 10 calls"), "{shown}");
    assert_eq!(finished["outcome"]["outcome"], "completed");
}

#[test]
fn what_programs_in_its_sandbox_spend_is_gone_for_the_run_itself() {
    let provider = Provider::start();
    let server = serving(&provider);
    // The provider bills 1,020 tokens for each, far more than what was set aside: nothing is left for the model's next call.
    let line = r#"for one in 1 2; do curl -s -w '%{http_code}\n' $OPENAI_BASE_URL/chat/completions \
        -H "Authorization: Bearer $OPENAI_API_KEY" -H 'content-type: application/json' \
        -d '{"model": "cheap", "max_tokens": 20, "messages": []}'; done"#;
    let run = begin(&server, &agent(line, &json!({"tokens": 8_000})));
    until_completed(&server, &run);
    assert_eq!(told(&server, &run)["models"]["cheap"]["calls"], 2);
    assert_eq!(calls(&server, &run)["input"], 2_000);
    let run = begin(&server, &agent(line, &json!({"tokens": 5_000})));
    eventually("it ends", || show(&server, &run)["state"] == "finished");
    let outcome = show(&server, &run)["outcome"].clone();
    assert_eq!((&outcome["outcome"], &outcome["budget"]), (&json!("budget_exceeded"), &json!("tokens")), "{outcome}");
    assert_eq!(told(&server, &run)["models"]["cheap"]["calls"], 2);
}

#[test]
fn a_server_that_is_killed_bills_each_call_in_full_and_once() {
    let provider = Provider::start();
    let mut server = serving(&provider);
    let run = begin(&server, &agent(&many_streams(3), &json!({"micros": 1_000_000})));
    eventually("three streams", || provider.open_streams() == 3);
    assert_eq!(calls(&server, &run), Value::Null, "none has ended");
    server.kill();
    server.begin();
    let billed = calls(&server, &run);
    assert_eq!((&billed["calls"], &billed["estimated"]), (&json!(3), &json!(3)), "{billed}");
    assert_eq!(billed["output"], 3 * REPLY_TOKENS, "all that was set aside");
    // $15 for a million tokens of the reply, and the prompt.
    assert!(billed["micros"].as_u64() > Some(3 * 30_000) && billed["micros"].as_u64() < Some(3 * 31_000), "{billed}");
    server.kill();
    server.begin();
    // The line may be running again, in the name of the next attempt: those calls are others.
    let again = calls(&server, &run);
    assert!(again["calls"].as_u64() >= Some(3), "{again}");
    assert_eq!(again["micros"].as_u64().map(|micros| micros % again["calls"].as_u64().unwrap()), Some(0));
    let cancelled = server.post(&format!("/api/v1/runs/{run}/cancel"), &json!({}));
    assert_eq!(cancelled.status, 202, "{}", cancelled.text());
    eventually("it is over", || show(&server, &run)["state"] == "finished");
    // The worker that took it over has recorded what was billed before it decided anything.
    assert!(told(&server, &run)["models"]["endless"]["micros"].as_u64() >= billed["micros"].as_u64());
}

#[test]
fn the_end_of_a_run_ends_and_bills_its_streams() {
    let provider = Provider::start();
    let server = serving(&provider);
    let run = begin(&server, &agent(&many_streams(3), &json!({})));
    eventually("three streams", || provider.open_streams() == 3);
    let cancelled = server.post(&format!("/api/v1/runs/{run}/cancel"), &json!({}));
    assert_eq!(cancelled.status, 202, "{}", cancelled.text());
    eventually("no stream", || provider.open_streams() == 0);
    eventually("they are billed", || calls(&server, &run)["calls"] == 3);
    assert_eq!(show(&server, &run)["outcome"]["outcome"], "cancelled");
}
