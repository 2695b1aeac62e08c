//! What bounds and protects a route: keys in turns, targets that are left alone, rates, and streams of any shape.

use std::collections::BTreeMap;
use std::time::Duration;

use saggar_domain::model::{Micros, UsageSource};
use saggar_gateway::{Answer, ClientWire, FailureKind};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::provider::{Act, Provider, json as whole, sse, status};
use crate::world::{TestWorld, ask, caller, gateway, text};
use crate::{CHAT, bound, catalogue};

fn streamed() -> Value {
    json!({"model": "m", "stream": true, "max_tokens": 120, "messages": [{"role": "user", "content": "x"}]})
}

fn key_of(head: &str) -> String {
    let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with("authorization:"));
    line.and_then(|line| line.rsplit(' ').next()).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn keys_take_turns_and_one_that_the_provider_limits_rests() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let gateway = gateway(&world, &catalogue("openai", provider.port, "keys = [\"one\", \"two\", \"three\"]"));
    let call = || async { text(gateway.answer(caller(), ask(ClientWire::Chat, &streamed())).await).await };
    provider.always(vec![sse(CHAT)]);
    for _ in 0..6 {
        call().await.unwrap();
    }
    let mut used: BTreeMap<String, u32> = BTreeMap::new();
    for seen in provider.requests() {
        *used.entry(key_of(&seen.head)).or_default() += 1;
    }
    assert_eq!(used.into_values().collect::<Vec<_>>(), [2, 2, 2]);
    // The call that meets the limit goes on with another key, and the next ones leave the limited one alone.
    provider.answer(vec![status(429, "retry-after-ms: 1\r\n", "{}")]);
    provider.answer(vec![status(429, "retry-after: 60\r\n", "{}")]);
    call().await.unwrap_err();
    let limited = key_of(&provider.requests().pop().unwrap().head);
    let before = provider.requests().len();
    for _ in 0..6 {
        call().await.unwrap();
    }
    assert!(provider.requests()[before..].iter().all(|seen| key_of(&seen.head) != limited), "{limited} rests");
}

#[tokio::test]
async fn a_target_that_fails_five_times_in_a_row_is_left_alone() {
    let (provider, backup, (slot, host)) = (Provider::start().await, Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let file = format!(
        r#"
        [providers.p]
        kind = "openai"
        url = "http://127.0.0.1:{}"
        [providers.backup]
        kind = "openai"
        url = "http://127.0.0.1:{}"
        [models.m]
        targets = [{{ provider = "p", model = "a" }}]
        fallbacks = [{{ provider = "backup", model = "b" }}]
        [models.alone]
        retries = 0
        targets = [{{ provider = "p", model = "a" }}]
        "#,
        provider.port, backup.port
    );
    let gateway = gateway(&world, &file);
    provider.always(vec![status(500, "", "{}")]);
    backup.always(vec![sse(CHAT)]);
    for _ in 0..8 {
        let got = text(gateway.answer(caller(), ask(ClientWire::Chat, &streamed())).await).await.unwrap();
        assert!(got.contains("Hi"), "{got}");
    }
    assert_eq!((provider.requests().len(), backup.requests().len()), (5, 8));
    // A route without another target says so at once, and when to come back.
    let mut alone = streamed();
    alone["model"] = json!("alone");
    let failure = gateway.answer(caller(), ask(ClientWire::Chat, &alone)).await.unwrap_err();
    assert_eq!((failure.kind, provider.requests().len()), (FailureKind::Overloaded, 5), "{failure}");
    assert!(failure.retry_after.is_some(), "{failure:?}");
}

#[tokio::test]
async fn tokens_and_calls_at_once_are_limited_for_each_project() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let limits = |limits: &str| {
        gateway(&world, &format!("{}\n[limits.default]\n{limits}\n", catalogue("openai", provider.port, "")))
    };
    let mut other = caller();
    other.project = saggar_domain::ProjectId::parse("prj_aaaaaaaaaaaaaaaaaaaaaaaaac").unwrap();
    // 120 tokens of the reply and a few of the prompt.
    provider.always(vec![sse(CHAT)]);
    let tokens = limits("tokens_per_minute = 200");
    text(tokens.answer(caller(), ask(ClientWire::Chat, &streamed())).await).await.unwrap();
    let failure = tokens.answer(caller(), ask(ClientWire::Chat, &streamed())).await.unwrap_err();
    assert!(failure.kind == FailureKind::RateLimited && failure.message.contains("tokens per minute"), "{failure}");
    assert!(failure.retry_after.is_some_and(|wait| wait > Duration::from_secs(1)), "{failure:?}");
    text(tokens.answer(other.clone(), ask(ClientWire::Chat, &streamed())).await).await.unwrap();
    // A place is taken until the stream has ended or is left.
    provider.always(vec![sse(CHAT), Act::WaitForClose]);
    let one = limits("concurrent = 1");
    let open = one.answer(caller(), ask(ClientWire::Chat, &streamed())).await.unwrap();
    let failure = one.answer(caller(), ask(ClientWire::Chat, &streamed())).await.unwrap_err();
    assert!(failure.kind == FailureKind::RateLimited && failure.message.contains("calls at once"), "{failure}");
    let elsewhere = one.answer(other, ask(ClientWire::Chat, &streamed())).await.unwrap();
    drop((open, elsewhere));
    world.booked(4).await;
    provider.always(vec![sse(CHAT)]);
    loop {
        // Its place is free a moment after it is booked.
        match text(one.answer(caller(), ask(ClientWire::Chat, &streamed())).await).await {
            Ok(_) => break,
            Err(failure) => assert_eq!(failure.kind, FailureKind::RateLimited, "{failure}"),
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_streams_that_are_left_in_the_middle_overshoot_a_budget_for_ten_by_nothing() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    // Room for ten: each sets aside 120 · $15 and a prompt of a few tokens.
    let once = catalogue("openai", provider.port, "").replace("[models.m]", "[models.m]\nretries = 0");
    let gateway = gateway(&world, &format!("{once}\n[budgets.default]\ndollars = \"0.0195\"\n"));
    let begun = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"some text of it\"}}]}\n\n";
    provider.always(vec![sse(begun), Act::WaitForClose]);
    let mut calls = JoinSet::new();
    for _ in 0..1_000 {
        let gateway = gateway.clone();
        calls.spawn(async move { gateway.answer(caller(), ask(ClientWire::Chat, &streamed())).await });
    }
    let mut open = Vec::new();
    while let Some(outcome) = calls.join_next().await {
        match outcome.unwrap() {
            Ok(answer) => open.push(answer),
            Err(failure) => assert_eq!(failure.kind, FailureKind::Budget, "{failure}"),
        }
    }
    assert_eq!((open.len(), provider.requests().len()), (10, 10), "none is under way beyond the budget");
    for answer in &mut open {
        let Answer::Stream { pieces, .. } = answer else { panic!("it is a stream") };
        assert!(pieces.recv().await.is_some());
    }
    let count = open.len();
    drop(open);
    let bills = world.booked(count).await;
    assert_eq!(bills.len(), count);
    for bill in &bills {
        // Five tokens of text, and no count of the provider's.
        assert_eq!((bill.outcome, bill.usage.source, bill.usage.output), ("cancelled", UsageSource::Estimated, 5));
    }
    let billed: u64 = bills.iter().map(|bill| bill.usage.cost.0).sum();
    assert!(world.spent() == Micros(billed) && billed > 0 && billed < 19_500, "{billed}");
}

#[tokio::test]
async fn attempts_that_come_to_nothing_fit_the_budget_with_their_prompts() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    // A call has three attempts, one at each target, and each is billed for a prompt of about $0.003. What may be written costs next to
    // nothing.
    let target = |model: &str| {
        format!("{{ provider = \"p\", model = \"{model}\", prices = {{ input = \"3\", output = \"15\" }} }}")
    };
    let file = format!(
        "[providers.p]\nkind = \"openai\"\nurl = \"http://127.0.0.1:{}\"\nfirst_byte_timeout = \"50ms\"\n\
         [models.m]\ntargets = [{}]\nfallbacks = [{}, {}]\n[budgets.default]\ndollars = \"0.06\"\n",
        provider.port,
        target("one"),
        target("two"),
        target("three"),
    );
    let gateway = gateway(&world, &file);
    provider.always(vec![Act::WaitForClose]);
    let body = json!({"model": "m", "stream": true, "max_tokens": 1, "messages": [{"role": "user", "content": "x".repeat(3_000)}]});
    let mut calls = JoinSet::new();
    for _ in 0..100 {
        let (gateway, body) = (gateway.clone(), body.clone());
        calls.spawn(async move { gateway.answer(caller(), ask(ClientWire::Chat, &body)).await });
    }
    let mut silent = 0;
    while let Some(outcome) = calls.join_next().await {
        match outcome.unwrap().unwrap_err().kind {
            FailureKind::Timeout => silent += 1,
            kind => assert!(matches!(kind, FailureKind::Budget | FailureKind::Overloaded), "{kind:?}"),
        }
    }
    world.booked(silent).await;
    assert!(silent > 0 && provider.requests().len() > silent, "some were tried again");
    // The provider bills the prompt of each request that it got, at most as we count it.
    let prompt = world.bills().iter().map(|bill| bill.usage.cost.0).max().unwrap() / 3;
    let billed = provider.requests().len() as u64 * prompt;
    assert!(prompt > 3_000 && billed <= 60_000 && world.spent() <= Micros(60_000), "{billed} {}", world.spent());
}

#[tokio::test]
async fn calls_of_tools_with_the_same_id_stay_apart() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let gateway = gateway(&world, &catalogue("openai", provider.port, ""));
    let call = |index: u32, name: &str| {
        json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": index, "id": "same", "type": "function",
            "function": {"name": name, "arguments": format!("{{\"n\":{index}}}")}}]}}]})
    };
    let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 9, "completion_tokens": 4}});
    let events: String =
        [call(0, "look"), call(1, "jump"), end].iter().map(|event| format!("data: {event}\n\n")).collect();
    provider.always(vec![sse(&format!("{events}data: [DONE]\n\n"))]);
    // To a client of another wire, and whole: both calls are there, with the arguments of each.
    let body = json!({"model": "m", "max_tokens": 120, "messages": [{"role": "user", "content": "x"}],
        "tools": [{"name": "look", "input_schema": {"type": "object"}}, {"name": "jump", "input_schema": {"type": "object"}}]});
    let got = text(gateway.answer(caller(), ask(ClientWire::Anthropic, &body)).await).await.unwrap();
    let got: Value = serde_json::from_str(&got).unwrap();
    let calls: Vec<_> = got["content"].as_array().unwrap().iter().filter(|part| part["type"] == "tool_use").collect();
    assert_eq!(calls.len(), 2, "{got}");
    assert_eq!((&calls[0]["name"], &calls[0]["input"]), (&json!("look"), &json!({"n": 0})));
    assert_eq!((&calls[1]["name"], &calls[1]["input"]), (&json!("jump"), &json!({"n": 1})));
}

#[tokio::test]
async fn an_event_that_is_too_large_ends_a_stream_with_an_error_and_a_large_one_passes() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let gateway = gateway(&world, &catalogue("openai", provider.port, ""));
    let mut body = streamed();
    body["max_tokens"] = json!(10_000_000);
    let chunk = |length: usize| {
        format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n", "x".repeat(length))
    };
    provider.answer(vec![sse(&format!("{}{CHAT}", chunk(7 << 20)))]);
    let got = text(gateway.answer(caller(), ask(ClientWire::Chat, &body)).await).await.unwrap();
    assert!(got.len() > 7 << 20 && got.ends_with("data: [DONE]\n\n"), "{}", got.len());
    provider.answer(vec![sse(&chunk(3)), sse(&chunk(9 << 20))]);
    let got = text(gateway.answer(caller(), ask(ClientWire::Chat, &body)).await).await.unwrap();
    assert!(got.len() < 10_000 && got.contains("data: {\"error\":{"), "{:.300}", got);
    let bill = world.booked(2).await.pop().unwrap();
    assert_eq!((bill.outcome, bill.usage.source), ("upstream", UsageSource::Estimated));
}

#[tokio::test]
async fn a_key_is_the_operators_or_the_projects_as_the_file_says() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    provider.always(vec![whole(
        r#"{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}],"usage":{}}"#,
    )]);
    let body = json!({"model": "m", "messages": []});
    let own = catalogue("openai", provider.port, "keys = [\"k\"]");
    let shared = format!("keys_project = \"prj_aaaaaaaaaaaaaaaaaaaaaaaaac\"\n{own}");
    for (file, project) in [(own, crate::world::PROJECT), (shared, "prj_aaaaaaaaaaaaaaaaaaaaaaaaac")] {
        text(gateway(&world, &file).answer(caller(), ask(ClientWire::Chat, &body)).await).await.unwrap();
        assert_eq!(world.asked_for_keys().pop().unwrap().as_str(), project);
    }
}
