//! What providers do wrong: each has a defined outcome and the right bill.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use saggar_domain::model::{Message, ModelRequest, Part, Role, UsageSource};
use saggar_domain::secret::Slot;
use saggar_gateway::{Answer, ClientWire, FailureKind};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::provider::{Act, Provider, json as whole, sse, status};
use crate::world::{TestWorld, ask, caller, gateway, inside, text};
use crate::{CHAT, bound, catalogue};

const BEGUN: &str = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"some text of it\"},\"finish_reason\":null}]}\n\n";

fn streamed() -> Value {
    json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "x"}]})
}

#[tokio::test]
async fn a_stream_that_ends_in_the_middle_is_an_error_and_is_billed_by_an_estimate() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let gateway = gateway(&world, &catalogue("openai", provider.port, ""));
    let error = "data: {\"error\":{\"message\":\"boom\",\"code\":500}}\n\n";
    for (events, outcome) in [
        // A clean end without the terminator, and one in the middle of an event.
        (BEGUN.to_owned(), "torn"),
        (format!("{BEGUN}data: {{\"cho"), "torn"),
        (format!("{BEGUN}{error}data: [DONE]\n\n"), "upstream"),
        (format!("{BEGUN}data: not json\n\n"), "upstream"),
        // The terminator without a reason is what Ollama does when it breaks.
        (format!("{BEGUN}data: [DONE]\n\n"), "torn"),
    ] {
        let before = world.bills().len();
        provider.answer(vec![sse(&events)]);
        let got = text(gateway.answer(caller(), ask(ClientWire::Chat, &streamed())).await).await.unwrap();
        assert!(got.contains("some text of it") && got.contains("data: {\"error\":{"), "{outcome}: {got}");
        assert_eq!(provider.requests().len(), before + 1, "nothing is tried again once it has begun");
        let bill = world.booked(before + 1).await.pop().unwrap();
        assert_eq!((bill.outcome, bill.usage.source, bill.usage.output), (outcome, UsageSource::Estimated, 5), "{got}");
        assert!(bill.usage.input > 0 && bill.usage.cost.0 > 0);
    }
}

#[tokio::test]
async fn what_fails_before_the_first_byte_is_tried_again_within_bounds() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let gateway = gateway(&world, &catalogue("openai", provider.port, ""));
    // The wait that the provider asks for is kept.
    provider.answer(vec![status(429, "retry-after-ms: 300\r\n", r#"{"error":{"message":"slow down"}}"#)]);
    provider.answer(vec![sse("data: {\"error\":{\"message\":\"overloaded\"}}\n\n")]);
    provider.answer(vec![sse(CHAT)]);
    let begun = Instant::now();
    let got = text(gateway.answer(caller(), ask(ClientWire::Chat, &streamed())).await).await.unwrap();
    assert!(got.contains("Hi") && !got.contains("error"), "{got}");
    assert!(begun.elapsed() >= Duration::from_millis(300) && provider.requests().len() == 3);
    // One that asks for more than a moment is told to the client.
    provider.answer(vec![status(429, "retry-after: 77\r\n", "{}")]);
    let failure = gateway.answer(caller(), ask(ClientWire::Chat, &streamed())).await.unwrap_err();
    assert_eq!((failure.kind, failure.retry_after), (FailureKind::RateLimited, Some(Duration::from_secs(77))));
    assert_eq!(provider.requests().len(), 4);
    // A bad request stays one, with the provider's reason.
    provider.answer(vec![status(400, "", r#"{"error":{"message":"bad schema"}}"#)]);
    let failure = gateway.answer(caller(), ask(ClientWire::Chat, &streamed())).await.unwrap_err();
    assert_eq!((failure.kind, provider.requests().len()), (FailureKind::InvalidRequest, 5));
    assert!(failure.message.contains("bad schema"), "{failure}");
}

#[tokio::test]
async fn answers_that_are_none_are_refused_and_the_fallback_answers() {
    let (provider, backup, (slot, host)) = (Provider::start().await, Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let catalogue = format!(
        r#"
        [providers.p]
        kind = "openai"
        url = "http://127.0.0.1:{}"
        [providers.backup]
        kind = "compatible"
        url = "http://127.0.0.1:{}/v1"
        [models.m]
        targets = [{{ provider = "p", model = "a" }}]
        fallbacks = [{{ provider = "backup", model = "b" }}]
        "#,
        provider.port, backup.port
    );
    backup.always(vec![sse(CHAT)]);
    let huge = format!("data: \"{}\"\n\n", "x".repeat(9 << 20));
    for wrong in [
        status(500, "", "<html>"),
        status(529, "", "{}"),
        whole(r#"{"choices":[]}"#),
        Act::Send("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi".to_owned()),
        Act::Send("garbage\r\n\r\n".to_owned()),
        Act::Send(String::new()),
        sse(""),
        sse("data: {not json}\n\n"),
        sse(&huge),
        Act::Send(format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(1 << 20))),
        status(401, "", r#"{"error":{"message":"no"}}"#),
        status(302, "location: http://169.254.169.254/\r\n", ""),
    ] {
        let gateway = gateway(&world, &catalogue);
        provider.answer(vec![wrong.clone()]);
        let got = text(gateway.answer(caller(), ask(ClientWire::Chat, &streamed())).await).await;
        assert!(got.as_ref().is_ok_and(|got| got.contains("Hi")), "{:.80?}: {got:?}", wrong);
    }
    assert_eq!((provider.requests().len(), backup.requests().len()), (12, 12));
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_providers_stream_within_100_ms() {
    let (mut provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let gateway = gateway(&world, &catalogue("openai", provider.port, ""));
    provider.always(vec![sse(BEGUN), Act::WaitForClose]);
    let Answer::Stream { mut pieces, .. } = gateway.answer(caller(), ask(ClientWire::Chat, &streamed())).await.unwrap()
    else {
        panic!("it is a stream")
    };
    assert!(pieces.recv().await.is_some());
    let left = Instant::now();
    drop(pieces);
    let closed = timeout(Duration::from_secs(10), provider.closed.recv()).await.unwrap().unwrap();
    assert!(closed - left < Duration::from_millis(100), "{:?}", closed - left);
    let bill = world.booked(1).await.pop().unwrap();
    assert_eq!((bill.outcome, bill.usage.source, bill.usage.output), ("cancelled", UsageSource::Estimated, 5));
    // The same before the answer begins.
    let waits = Arc::new(Notify::new());
    provider.always(vec![Act::WaitForClose]);
    let call = tokio::spawn({
        let (gateway, waits) = (gateway.clone(), Arc::clone(&waits));
        async move {
            waits.notify_one();
            // It is aborted before it ends.
            let _ = gateway.answer(caller(), ask(ClientWire::Chat, &streamed())).await;
        }
    });
    waits.notified().await;
    while provider.requests().len() < 2 {
        tokio::task::yield_now().await;
    }
    let left = Instant::now();
    call.abort();
    let closed = timeout(Duration::from_secs(10), provider.closed.recv()).await.unwrap().unwrap();
    assert!(closed - left < Duration::from_millis(100), "{:?}", closed - left);
    let bill = world.booked(2).await.pop().unwrap();
    assert_eq!((bill.outcome, bill.usage.output), ("cancelled", 0));
    assert!(bill.usage.input > 0, "the prompt was read");
}

#[tokio::test]
async fn the_end_of_a_run_ends_the_calls_of_its_sandboxes_within_100_ms() {
    let (mut provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let gateway = gateway(&world, &catalogue("openai", provider.port, ""));
    // In the middle of a stream, also of one that its client doesn't read, and before an answer has begun.
    for (acts, reads) in [
        (vec![sse(BEGUN), Act::WaitForClose], true),
        (vec![sse(&BEGUN.repeat(100)), Act::WaitForClose], false),
        (vec![Act::WaitForClose], true),
    ] {
        provider.always(acts.clone());
        let before = provider.requests().len();
        let call = tokio::spawn({
            let gateway = gateway.clone();
            async move { gateway.answer(inside(), ask(ClientWire::Chat, &streamed())).await }
        });
        while provider.requests().len() == before {
            tokio::task::yield_now().await;
        }
        let mut stream = None;
        if acts.len() > 1 {
            let Answer::Stream { pieces, .. } = call.await.unwrap().unwrap() else { panic!("it is a stream") };
            stream = Some(pieces);
            world.run_ends.notify_one();
        } else {
            world.run_ends.notify_one();
            let failure = call.await.unwrap().unwrap_err();
            assert_eq!((failure.kind, failure.message.as_str()), (FailureKind::Cancelled, "the run is over"));
        }
        let over = Instant::now();
        let closed = timeout(Duration::from_secs(10), provider.closed.recv()).await.unwrap().unwrap();
        assert!(closed.saturating_duration_since(over) < Duration::from_millis(100), "{:?}", closed - over);
        if let Some(mut pieces) = stream.filter(|_| reads) {
            let mut all = Vec::new();
            while let Some(piece) = pieces.recv().await {
                all.extend_from_slice(&piece);
            }
            assert!(String::from_utf8_lossy(&all).contains("the run is over"));
        }
    }
    assert!(world.booked(3).await.iter().all(|bill| bill.outcome == "cancelled"));
}

#[tokio::test]
async fn a_call_that_is_dropped_is_billed_for_all_that_has_come() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let gateway = gateway(&world, &catalogue("openai", provider.port, ""));
    // In the middle of the answer.
    provider.answer(vec![sse(BEGUN), Act::WaitForClose]);
    let came = Arc::new(Notify::new());
    let call = tokio::spawn({
        let (gateway, came) = (gateway.clone(), Arc::clone(&came));
        let messages = vec![Message::new(Role::User, vec![Part::text("x")])];
        let request = ModelRequest::new("m".parse().unwrap(), messages);
        async move { gateway.call(caller(), request, |_| came.notify_one()).await }
    });
    came.notified().await;
    call.abort();
    let bill = world.booked(1).await.pop().unwrap();
    assert_eq!((bill.outcome, bill.usage.source, bill.usage.output), ("cancelled", UsageSource::Estimated, 5));
    // While it is being booked.
    provider.answer(vec![whole(r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9}}"#)]);
    let call = tokio::spawn({
        let gateway = gateway.clone();
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "x"}]});
        async move { gateway.answer(caller(), ask(ClientWire::Chat, &body)).await }
    });
    // The first time was for the call before.
    world.booking.notified().await;
    world.booking.notified().await;
    call.abort();
    let bill = world.booked(2).await.pop().unwrap();
    assert_eq!((bill.outcome, bill.usage.input, bill.usage.output), ("ok", 7, 9));
}

#[tokio::test]
async fn a_provider_that_is_silent_is_given_up() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let times = "first_byte_timeout = \"100ms\"\nidle_timeout = \"100ms\"";
    let gateway =
        gateway(&world, &catalogue("openai", provider.port, times).replace("[models.m]", "[models.m]\nretries = 0"));
    provider.answer(vec![Act::WaitForClose]);
    let failure = gateway.answer(caller(), ask(ClientWire::Chat, &streamed())).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Timeout);
    provider.answer(vec![sse(BEGUN), Act::WaitForClose]);
    let got = text(gateway.answer(caller(), ask(ClientWire::Chat, &streamed())).await).await.unwrap();
    assert!(got.contains("some text") && got.contains("error"), "{got}");
    assert_eq!(world.booked(2).await.pop().unwrap().outcome, "timeout");
}

#[tokio::test]
async fn a_key_goes_nowhere_but_where_it_is_bound_and_is_never_repeated() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    // To a name, a key goes only over TLS and by its binding.
    for url in ["http://models.example", "https://models.example", "https://api.example.com.evil.example"] {
        let catalogue = format!(
            "[providers.p]\nkind = \"openai\"\nurl = \"{url}\"\nkeys = [\"k\"]\n[models.m]\nretries = 0\ntargets = [{{ provider = \"p\", model = \"a\" }}]"
        );
        let failure =
            gateway(&world, &catalogue).answer(caller(), ask(ClientWire::Chat, &streamed())).await.unwrap_err();
        assert!(failure.message.contains("can't be used") && !failure.message.contains("canary"), "{url}: {failure}");
    }
    let echo = r#"{"error":{"message":"wrong key canary-k"}}"#;
    let header =
        TestWorld::new(Slot::Header { name: "x-api-key".to_owned(), prefix: String::new() }, "api.example.com");
    let gateway = gateway(&header, &catalogue("anthropic", provider.port, "keys = [\"k\"]"));
    provider.always(vec![status(401, "", echo)]);
    let body = json!({"model": "m", "max_tokens": 5, "messages": []});
    let failure = gateway.answer(caller(), ask(ClientWire::Anthropic, &body)).await.unwrap_err();
    assert!(!failure.message.contains("canary"), "{failure}");
    let head = &provider.requests()[0].head;
    assert!(head.contains("x-api-key: canary-k") && head.contains("anthropic-version: 2023-06-01"), "{head}");
}

#[tokio::test]
async fn a_slow_target_is_hedged_and_both_are_billed() {
    let (mut slow, fast, (slot, host)) = (Provider::start().await, Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let catalogue = format!(
        r#"
        [providers.slow]
        kind = "openai"
        url = "http://127.0.0.1:{}"
        [providers.fast]
        kind = "openai"
        url = "http://127.0.0.1:{}"
        [models.m]
        hedge_after = "50ms"
        targets = [{{ provider = "slow", model = "a", prices = {{ input = "1000", output = "1" }} }}]
        fallbacks = [{{ provider = "fast", model = "b" }}]
        "#,
        slow.port, fast.port
    );
    slow.always(vec![Act::WaitForClose]);
    fast.answer(vec![sse(CHAT)]);
    // Neither answers before the client leaves.
    fast.always(vec![Act::WaitForClose]);
    let gateway = gateway(&world, &catalogue);
    let got = text(gateway.answer(caller(), ask(ClientWire::Chat, &streamed())).await).await.unwrap();
    assert!(got.contains("Hi"), "{got}");
    timeout(Duration::from_secs(10), slow.closed.recv()).await.unwrap().unwrap();
    let bill = world.booked(1).await.pop().unwrap();
    assert!(bill.usage.cost.0 > 0 && bill.usage.source == UsageSource::Estimated, "{bill:?}");
    assert!(bill.usage.input > 1000, "the prompts of both: {bill:?}");
    let call = tokio::spawn({
        let gateway = gateway.clone();
        async move { gateway.answer(caller(), ask(ClientWire::Chat, &streamed())).await }
    });
    while fast.requests().len() < 2 {
        tokio::task::yield_now().await;
    }
    call.abort();
    let left = world.booked(2).await.pop().unwrap();
    let prompt = bill.usage.input - 1000;
    assert_eq!((left.outcome, left.usage.input), ("cancelled", 2 * prompt), "{left:?}, and before {bill:?}");
}

#[tokio::test]
async fn a_key_that_a_stream_repeats_in_an_error_is_not_repeated() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let begun = |wire: &str| match wire {
        "chat" => BEGUN,
        "anthropic" => {
            "data: {\"type\":\"message_start\",\"message\":{}}\n\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"some text\"}}\n\n"
        }
        "gemini" => "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"some text\"}]}}]}\n\n",
        _ => "data: {\"type\":\"response.created\",\"response\":{}}\n\n",
    };
    for (kind, wire) in [("openai", "chat"), ("openai", "responses"), ("anthropic", "anthropic"), ("gemini", "gemini")]
    {
        let mut file =
            catalogue(kind, provider.port, "keys = [\"key-one\"]").replace("[models.m]", "[models.m]\nretries = 0");
        if wire == "responses" {
            file = file.replace("model = \"real-model\"", "model = \"real-model\", wire = \"responses\"");
        }
        let gateway = gateway(&world, &file);
        // In the middle of a text, and where the text is cut.
        for text in ["wrong key canary-key-one. Go away".to_owned(), format!("{}canary-key-one", "x".repeat(294))] {
            let error = match wire {
                "responses" => {
                    json!({"type": "response.failed", "response": {"error": {"code": "x", "message": text}}})
                }
                _ => json!({"type": "error", "error": {"message": text, "code": 500}}),
            };
            for before in ["", begun(wire)] {
                provider.answer(vec![sse(&format!("{before}data: {error}\n\n"))]);
                let got = self::text(gateway.answer(caller(), ask(ClientWire::Chat, &streamed())).await).await;
                let got = got.unwrap_or_else(|failure| failure.to_string());
                assert!(got.contains("failed while it answered") && got.contains("(key"), "{wire}: {got}");
                assert!(!got.contains("canary"), "{wire}: {got}");
            }
        }
    }
}

/// Projects may share the operator's key, and no program of theirs is to learn it from a provider that shows what it was sent.
#[tokio::test]
async fn a_key_that_a_provider_repeats_in_an_answer_is_not_repeated() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let gateway = gateway(&world, &catalogue("openai", provider.port, "keys = [\"key-one\"]"));
    let said = "Bearer canary-key-one, you said";
    let piece = json!({"choices": [{"index": 0, "delta": {"content": said}, "finish_reason": "stop"}]});
    let reply = json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1}});
    let plain = json!({"model": "m", "messages": [{"role": "user", "content": "x"}]});
    for wire in [ClientWire::Chat, ClientWire::Anthropic] {
        for (body, is_stream) in [(streamed(), true), (plain.clone(), false)] {
            let as_stream = is_stream || wire == ClientWire::Anthropic;
            provider.answer(vec![match as_stream {
                true => sse(&format!("data: {piece}\n\ndata: [DONE]\n\n")),
                false => crate::provider::json(&reply.to_string()),
            }]);
            let mut body = body;
            body["max_tokens"] = json!(100);
            let got = text(gateway.answer(caller(), ask(wire, &body)).await).await.unwrap();
            assert!(got.contains("Bearer (key), you said") && !got.contains("canary"), "{wire:?} {is_stream}: {got}");
        }
    }
}

#[tokio::test]
async fn a_call_that_can_not_be_booked_is_booked_later_and_once() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let gateway = gateway(&world, &catalogue("openai", provider.port, ""));
    world.unbooked.store(3, SeqCst);
    provider.answer(vec![sse(CHAT)]);
    let got = text(gateway.answer(inside(), ask(ClientWire::Chat, &streamed())).await).await.unwrap();
    assert!(got.contains("Hi") && world.bills().is_empty(), "its client does not wait: {got}");
    assert_eq!(world.booked(1).await[0].outcome, "ok");
    assert_eq!(world.unbooked.load(SeqCst), 0);
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_a_failed_call_up_only_for_a_while() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let gateway = gateway(&world, &catalogue("openai", provider.port, ""));
    // More pieces than fit between the two.
    let mut acts = vec![sse(BEGUN)];
    acts.extend((0..300).map(|_| Act::Send(BEGUN.replace("some text of it", ""))));
    acts.push(Act::WaitForClose);
    provider.answer(acts);
    let answer = gateway.answer(inside(), ask(ClientWire::Chat, &streamed())).await.unwrap();
    let Answer::Stream { pieces, .. } = answer else { panic!("it is a stream") };
    let full = async {
        while pieces.len() < pieces.max_capacity() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(20), full).await.expect("nothing more fits");
    world.run_ends.notify_one();
    world.booked(1).await;
    let ended = async {
        while pieces.sender_strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(20), ended).await.expect("the call has ended");
}
