//! Budgets and limits: nothing is overshot, however many ask at once.

use saggar_domain::model::{Message, Micros, ModelRequest, Part, Role, UsageSource};
use saggar_gateway::{ClientWire, FailureKind, Gateway};
use serde_json::{Value, json};

use crate::provider::{Act, Provider, json as whole, sse};
use crate::world::{PROJECT, RUN_LEAVES, TestWorld, ask, caller, gateway, inside, text};
use crate::{CHAT, bound, catalogue};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_streams_on_a_budget_for_ten_spend_no_more() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    // The provider bills 720, and the prompt of this request is counted as much less: the rest is what it bills beyond its reservation.
    let budget = format!("{}\n[budgets.default]\ndollars = \"0.02\"\n", catalogue("openai", provider.port, ""));
    let gateway = gateway(&world, &budget);
    provider.always(vec![sse(CHAT)]);
    let body = json!({"model": "m", "stream": true, "max_tokens": 120, "messages": [{"role": "user", "content": "x"}]});
    let estimate = {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..1_000 {
            let (gateway, body) = (gateway.clone(), body.clone());
            tasks.spawn(async move { text(gateway.answer(caller(), ask(ClientWire::Chat, &body)).await).await });
        }
        let (mut done, mut refused) = (0, 0);
        while let Some(outcome) = tasks.join_next().await {
            match outcome.unwrap() {
                Ok(_) => done += 1,
                Err(failure) => {
                    assert_eq!((failure.kind, failure.kind.status()), (FailureKind::Budget, 429), "{failure}");
                    refused += 1;
                }
            }
        }
        assert_eq!(done + refused, 1_000);
        assert!(done >= 10 && refused > 900, "{done} {refused}");
        done
    };
    let bills = world.booked(estimate).await;
    let beyond: u64 = bills.iter().map(|bill| bill.usage.cost.0).sum::<u64>();
    assert_eq!(world.spent(), Micros(beyond));
    // Each was reserved at 120 · $15 and a prompt: more than what was billed, so that the limit holds exactly.
    assert!(world.spent() <= Micros(20_000), "{}", world.spent());
    assert_eq!(provider.requests()[0].body["max_tokens"], 120, "what is reserved is what may be written");
}

/// A reply in the background costs after its call has ended, and what the provider has kept is counted nowhere.
#[tokio::test]
async fn what_could_not_be_billed_or_is_of_other_projects_is_refused() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let file = catalogue("openai", provider.port, "")
        .replace("model = \"real-model\"", "model = \"real-model\", wire = \"responses\"");
    let gateway = gateway(&world, &file);
    for (name, value) in [
        ("background", json!(true)),
        ("background", json!("yes")),
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!({"id": "conv_1"})),
        ("prompt", json!({"id": "pmpt_1"})),
    ] {
        let mut body = json!({"model": "m", "input": "x"});
        body[name] = value;
        let failure = gateway.answer(caller(), ask(ClientWire::Responses, &body)).await.unwrap_err();
        assert_eq!((failure.kind, failure.field.as_deref()), (FailureKind::InvalidRequest, Some(name)), "{failure}");
    }
    let many = Value::Array(vec![json!(0); 1 << 20]);
    let body = json!({"model": "m", "input": "x", "metadata": many});
    let failure = gateway.answer(caller(), ask(ClientWire::Responses, &body)).await.unwrap_err();
    assert_eq!((failure.kind, provider.requests().len()), (FailureKind::TooLarge, 0), "{failure}");
}

#[tokio::test]
async fn a_request_without_a_limit_gets_one_if_there_is_a_budget() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let catalogue = catalogue("openai", provider.port, "");
    let more = format!("{catalogue}\n[budgets.{PROJECT}]\ndollars = 1\nperiod = \"day\"\n");
    provider.always(vec![sse(CHAT)]);
    let body = json!({"model": "m", "stream": true, "messages": []});
    text(gateway(&world, &catalogue).answer(caller(), ask(ClientWire::Chat, &body)).await).await.unwrap();
    text(gateway(&world, &more).answer(caller(), ask(ClientWire::Chat, &body)).await).await.unwrap();
    let limits: Vec<_> = provider.requests().iter().map(|seen| seen.body["max_completion_tokens"].clone()).collect();
    assert_eq!(limits, [json!(null), json!(32_768)]);
}

#[tokio::test]
async fn a_limit_of_requests_is_told_with_the_time_to_wait() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let limited = format!("{}\n[limits.default]\nrequests_per_minute = 1\n", catalogue("openai", provider.port, ""));
    let gateway = gateway(&world, &limited);
    provider.always(vec![sse(CHAT)]);
    let body = json!({"model": "m", "stream": true, "messages": []});
    text(gateway.answer(caller(), ask(ClientWire::Chat, &body)).await).await.unwrap();
    let failure = gateway.answer(caller(), ask(ClientWire::Chat, &body)).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::RateLimited);
    assert!(failure.retry_after.is_some_and(|wait| wait.as_secs() > 50), "{failure:?}");
}

#[tokio::test]
async fn counting_tokens_at_a_provider_counts_as_a_request() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let limits = |limits: &str| format!("{}\n[limits.default]\n{limits}\n", catalogue("anthropic", provider.port, ""));
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "x"}]});
    let count = |gateway: Gateway| {
        let body = body.clone();
        async move { gateway.count_tokens(caller(), ask(ClientWire::Anthropic, &body)).await }
    };
    provider.always(vec![whole(r#"{"input_tokens":77}"#)]);
    let twice = gateway(&world, &limits("requests_per_minute = 2\nconcurrent = 1"));
    assert_eq!(count(twice.clone()).await.unwrap(), 77);
    assert_eq!(count(twice.clone()).await.unwrap(), 77, "the place of the first is free again");
    let failure = count(twice).await.unwrap_err();
    assert_eq!((failure.kind, provider.requests().len()), (FailureKind::RateLimited, 2), "{failure}");
    // One that is under way has a place, and gives it back when its client leaves.
    let one = gateway(&world, &limits("concurrent = 1"));
    provider.always(vec![Act::WaitForClose]);
    let waiting = tokio::spawn(count(one.clone()));
    while provider.requests().len() < 3 {
        tokio::task::yield_now().await;
    }
    let failure = count(one.clone()).await.unwrap_err();
    assert!(failure.kind == FailureKind::RateLimited && failure.message.contains("calls at once"), "{failure}");
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    provider.always(vec![whole(r#"{"input_tokens":77}"#)]);
    assert_eq!(count(one).await.unwrap(), 77);
}

#[tokio::test]
async fn a_reply_has_one_limit_whatever_names_a_request_gives_it() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    provider.always(vec![sse(CHAT)]);
    let gateways = |kind: &str| {
        let file = format!("{}\n[budgets.default]\ndollars = 100\n", catalogue(kind, provider.port, ""));
        gateway(&world, &file)
    };
    let with = |fields: &Value| {
        let mut body = json!({"model": "m", "stream": true, "messages": []});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    for (kind, fields, expected) in [
        ("openai", json!({"max_completion_tokens": 1, "max_tokens": 1_000_000}), json!({"max_completion_tokens": 1})),
        ("ollama", json!({"max_completion_tokens": 1, "max_tokens": 1_000_000}), json!({"max_tokens": 1})),
        ("openai", json!({"max_completion_tokens": null, "max_tokens": 7}), json!({"max_tokens": 7})),
        ("openai", json!({"max_output_tokens": 1}), json!({"max_completion_tokens": 32_768})),
        (
            "compatible",
            json!({"max_tokens": 7, "n_predict": 9, "MAX_TOKENS": 9, "max_toKENſ": 9, "max_to\u{212a}ens": 9, "N": 9, "n": 2}),
            json!({"max_tokens": 7, "n": 2}),
        ),
    ] {
        text(gateways(kind).answer(caller(), ask(ClientWire::Chat, &with(&fields))).await).await.unwrap();
        let mut sent = provider.requests().pop().unwrap().body;
        let plain = ["model", "stream", "messages", "stream_options"];
        sent.as_object_mut().unwrap().retain(|name, _| !plain.contains(&name.as_str()));
        assert_eq!(sent, expected, "{kind}: {fields}");
    }
    let before = provider.requests().len();
    for (name, wrong) in [
        ("max_tokens", json!(1e6)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!("5")),
        ("max_completion_tokens", json!(-1)),
        ("n", json!(2.0)),
        ("n", json!(0)),
        ("n", json!(1_025)),
    ] {
        let body = with(&json!({name: wrong}));
        let failure = gateways("openai").answer(caller(), ask(ClientWire::Chat, &body)).await.unwrap_err();
        assert_eq!((failure.kind, failure.field.as_deref()), (FailureKind::InvalidRequest, Some(name)), "{failure}");
    }
    assert_eq!(provider.requests().len(), before);
}

#[tokio::test]
async fn a_provider_that_writes_far_too_much_is_cut_off_for_every_client() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let gateway = gateway(&world, &catalogue("compatible", provider.port, ""));
    let chunk =
        |text: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
    let long = format!("{}{}", chunk("some text"), chunk(&"x".repeat(1_000)));
    provider.always(vec![sse(&long), Act::WaitForClose]);
    let messages = json!([{"role": "user", "content": "x"}]);
    for (wire, body) in [
        (ClientWire::Chat, json!({"model": "m", "max_tokens": 5, "messages": messages, "stream": true})),
        (ClientWire::Anthropic, json!({"model": "m", "max_tokens": 5, "messages": messages, "stream": true})),
        (ClientWire::Anthropic, json!({"model": "m", "max_tokens": 5, "messages": messages})),
    ] {
        let got = text(gateway.answer(caller(), ask(wire, &body)).await).await;
        let got = got.unwrap_or_else(|failure| failure.to_string());
        assert!(got.contains("was cut off"), "{got}");
    }
    let mut request = ModelRequest::new("m".parse().unwrap(), vec![Message::new(Role::User, vec![Part::text("x")])]);
    request.sampling.max_tokens = Some(5);
    let failure = gateway.call(caller(), request, |_| {}).await.unwrap_err();
    assert!(failure.kind == FailureKind::Budget && failure.usage.is_some(), "{failure:?}");
    assert!(world.booked(4).await.iter().all(|bill| bill.outcome == "budget"), "{:?}", world.bills());
}

#[tokio::test]
async fn a_count_that_no_model_can_have_is_not_believed() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let file = format!("{}\n[budgets.default]\ndollars = \"1\"\n", catalogue("openai", provider.port, ""));
    let gateway = gateway(&world, &file);
    let most = u64::MAX;
    for usage in [
        json!({"prompt_tokens": most, "completion_tokens": 2}),
        json!({"prompt_tokens": 2, "completion_tokens": 100_000_001_u64}),
        json!({"prompt_tokens": most, "completion_tokens": most, "prompt_tokens_details": {"cached_tokens": most}}),
    ] {
        let reply = json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
            "usage": usage});
        let last = json!({"choices": [], "usage": usage});
        for is_stream in [false, true] {
            provider.answer(vec![match is_stream {
                false => whole(&reply.to_string()),
                true => sse(&format!(
                    "data: {}\n\ndata: {last}\n\ndata: [DONE]\n\n",
                    json!({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]})
                )),
            }]);
            let body = json!({"model": "m", "stream": is_stream, "max_tokens": 100, "messages": [{"role": "user", "content": "x"}]});
            text(gateway.answer(caller(), ask(ClientWire::Chat, &body)).await).await.unwrap();
        }
    }
    let bills = world.booked(6).await;
    assert!(
        bills.iter().all(|bill| bill.usage.source == UsageSource::Estimated && bill.usage.tokens() < 1_000),
        "{bills:?}"
    );
    assert!(world.spent() < Micros(100_000), "{}", world.spent());
}

#[tokio::test]
async fn a_program_in_a_sandbox_of_a_run_is_held_to_what_the_run_leaves() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let gateway = gateway(&world, &catalogue("openai", provider.port, ""));
    provider.always(vec![sse(CHAT)]);
    let body = |tokens: Value| json!({"model": "m", "stream": true, "max_completion_tokens": tokens, "messages": []});
    // One that names no limit gets the one that was set aside for it.
    text(gateway.answer(inside(), ask(ClientWire::Chat, &body(Value::Null))).await).await.unwrap();
    assert_eq!(provider.requests()[0].body["max_completion_tokens"], 32_768);
    let too_much = body(json!(RUN_LEAVES + 1));
    let failure = gateway.answer(inside(), ask(ClientWire::Chat, &too_much)).await.unwrap_err();
    assert_eq!((failure.kind, provider.requests().len()), (FailureKind::Budget, 1), "{failure}");
    assert!(failure.message.contains("the run's budget of tokens is used up: 100000 are left"), "{failure}");
    // A caller outside of a run has no such budget.
    text(gateway.answer(caller(), ask(ClientWire::Chat, &too_much)).await).await.unwrap();
    let bills = world.booked(2).await;
    assert_eq!((bills.len(), bills[0].is_reserved, bills[1].is_reserved), (2, true, false));
}
