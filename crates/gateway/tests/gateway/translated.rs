//! Clients of one wire and providers of another: nothing is lost, and what can't be translated is refused.

use saggar_domain::model::{Message, ModelRequest, Part, ResultPart, Role, RouteName, Stop, ToolResult};
use saggar_gateway::{ClientWire, FailureKind, Streamed};
use serde_json::{Value, json};

use crate::provider::{Provider, sse};
use crate::world::{TestWorld, ask, caller, gateway, text};
use crate::{bound, catalogue};

const ANTHROPIC: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"m","usage":{"input_tokens":10,"cache_read_input_tokens":5,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: ping
data: {"type":"ping"}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"I look."}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"tu_1","name":"shell","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"command\":"}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"\"ls\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":20}}

event: message_stop
data: {"type":"message_stop"}

"#;

const GEMINI: &str = r#"data: {"candidates":[{"content":{"role":"model","parts":[{"text":"think","thought":true}]}}]}

data: {"candidates":[{"content":{"role":"model","parts":[{"text":"I "},{"text":"look."},{"functionCall":{"name":"shell","args":{"command":"ls"}},"thoughtSignature":"U0lH"},{"functionCall":{"name":"shell","args":{}}}]}}],"usageMetadata":{"promptTokenCount":15,"candidatesTokenCount":10,"thoughtsTokenCount":10,"totalTokenCount":35}}

data: {"candidates":[{"content":{"parts":[]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":15,"cachedContentTokenCount":5,"candidatesTokenCount":10,"thoughtsTokenCount":10,"totalTokenCount":35}}

"#;

const RESPONSES: &str = r#"data: {"type":"response.created","response":{"id":"r"}}

data: {"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning","id":"rs"}}

data: {"type":"response.reasoning_summary_text.delta","output_index":0,"summary_index":0,"delta":"hm"}

data: {"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","id":"rs","summary":[],"encrypted_content":"RU5D"}}

data: {"type":"response.output_text.delta","output_index":1,"content_index":0,"delta":"I look."}

data: {"type":"response.output_item.done","output_index":1,"item":{"type":"message","id":"m"}}

data: {"type":"response.output_item.added","output_index":2,"item":{"type":"function_call","id":"fc","call_id":"tu_1","name":"shell"}}

data: {"type":"response.function_call_arguments.delta","output_index":2,"delta":"{\"command\":\"ls\"}"}

data: {"type":"response.output_item.done","output_index":2,"item":{"type":"function_call","id":"fc","call_id":"tu_1","name":"shell","arguments":"{\"command\":\"ls\"}"}}

data: {"type":"response.completed","response":{"id":"r","usage":{"input_tokens":15,"input_tokens_details":{"cached_tokens":5},"output_tokens":20,"output_tokens_details":{"reasoning_tokens":10}}}}

"#;

const CHAT_CALL: &str = r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"hm"}}]}

data: {"choices":[{"index":0,"delta":{"content":"I look."}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"tu_1","type":"function","function":{"name":"shell","arguments":""}}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"command\":\"ls\"}"}}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"tu_1","type":"function","function":{"name":"shell","arguments":"{}"}}]}}]}

data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: {"choices":[],"usage":{"prompt_tokens":15,"prompt_tokens_details":{"cached_tokens":5},"completion_tokens":20}}

data: [DONE]

"#;

fn request() -> ModelRequest {
    let mut request = ModelRequest::new(
        RouteName::parse("m").expect("it is a name"),
        vec![Message::new(Role::User, vec![Part::text("look")])],
    );
    request.sampling.max_tokens = Some(100);
    request
}

/// The same conversation on every wire: a run gets the same parts, and what the provider wants back goes back as it came.
#[tokio::test]
async fn a_run_gets_the_same_reply_from_every_provider() {
    for (kind, stream, back) in [
        ("anthropic", ANTHROPIC, r#"{"signature":"c2ln","thinking":"hm","type":"thinking"}"#),
        ("gemini", GEMINI, r#""thoughtSignature":"U0lH""#),
        ("openai\"\n# wire = \"responses", RESPONSES, r#""encrypted_content":"RU5D""#),
        ("compatible", CHAT_CALL, r#""tool_call_id":"tu_1_2""#),
    ] {
        let (provider, (slot, host)) = (Provider::start().await, bound());
        let world = TestWorld::new(slot, host);
        let mut catalogue = catalogue(kind, provider.port, "");
        if kind.contains("responses") {
            catalogue = catalogue.replace("model = \"real-model\"", "model = \"real-model\", wire = \"responses\"");
        }
        let gateway = gateway(&world, &catalogue);
        provider.always(vec![sse(stream)]);
        let mut followed = String::new();
        let first = gateway
            .call(caller(), request(), |streamed| {
                if let Streamed::Text(text) = streamed {
                    followed.push_str(&text);
                }
            })
            .await
            .unwrap();
        assert_eq!((followed.as_str(), first.stop), ("I look.", Stop::ToolCalls), "{kind}");
        let usage = &first.usage;
        assert_eq!((usage.input, usage.cached_read, usage.output), (15, 5, 20), "{kind}: {usage:?}");
        // 10 · $3 + 5 · $0.3 + 20 · $15 per million, rounded up.
        assert_eq!(usage.cost.0, 30 + 2 + 300, "{kind}");
        let calls: Vec<_> = first.calls().cloned().collect();
        assert_eq!((calls[0].name.as_str(), calls[0].arguments.as_str()), ("shell", r#"{"command":"ls"}"#), "{kind}");
        let ids: std::collections::BTreeSet<_> = calls.iter().map(|call| &call.id).collect();
        assert_eq!(ids.len(), calls.len(), "{kind}: every call has an id of its own");
        let mut next = request();
        next.messages.push(Message::new(Role::Assistant, first.parts.clone()));
        let result = |call: &saggar_domain::model::ToolCall| {
            let content = vec![ResultPart::Text { text: "a.txt".to_owned() }];
            Part::ToolResult(ToolResult { call: call.id.clone(), content, is_error: false })
        };
        next.messages.push(Message::new(Role::User, calls.iter().map(result).collect()));
        gateway.call(caller(), next.clone(), |_| {}).await.unwrap();
        let sent = provider.requests()[1].body.to_string();
        assert!(sent.contains(back), "{kind}: {sent}");
        // Another model gets nothing of it.
        let other = catalogue.replace("real-model", "other-model");
        self::gateway(&world, &other).call(caller(), next, |_| {}).await.unwrap();
        let sent = provider.requests()[2].body.to_string();
        assert!(kind == "compatible" || !sent.contains(back), "{kind}: {sent}");
    }
}

fn events(text: &str) -> Vec<Value> {
    text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect()
}

#[tokio::test]
async fn clients_of_each_wire_get_the_answer_of_any_provider() {
    for (kind, stream) in [("anthropic", ANTHROPIC), ("gemini", GEMINI), ("compatible", CHAT_CALL)] {
        let (provider, (slot, host)) = (Provider::start().await, bound());
        let world = TestWorld::new(slot, host);
        let gateway = gateway(&world, &catalogue(kind, provider.port, ""));
        provider.always(vec![sse(stream)]);
        let asked = async |wire, mut body: Value, is_stream: bool| {
            body["model"] = json!("m");
            body["stream"] = json!(is_stream);
            text(gateway.answer(caller(), ask(wire, &body)).await).await.unwrap()
        };
        if kind != "compatible" {
            let body = json!({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "x"}], "stream_options": {"include_usage": true}});
            let whole: Value = serde_json::from_str(&asked(ClientWire::Chat, body.clone(), false).await).unwrap();
            let choice = &whole["choices"][0];
            assert_eq!(
                (&choice["message"]["content"], &choice["finish_reason"]),
                (&json!("I look."), &json!("tool_calls"))
            );
            assert_eq!(
                (&whole["usage"]["prompt_tokens"], &whole["usage"]["completion_tokens"]),
                (&json!(15), &json!(20))
            );
            let streamed = asked(ClientWire::Chat, body, true).await;
            let chunks = events(&streamed);
            assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
            assert_eq!(chunks.iter().filter(|chunk| chunk["choices"][0]["delta"]["role"].is_string()).count(), 1);
            let last = chunks.last().unwrap();
            assert_eq!((&last["usage"]["total_tokens"], &last["choices"]), (&json!(35), &json!([])), "{streamed}");
        }
        if kind != "anthropic" {
            let body = json!({"max_tokens": 9, "system": "s", "messages": [{"role": "user", "content": "x"}]});
            let whole: Value = serde_json::from_str(&asked(ClientWire::Anthropic, body.clone(), false).await).unwrap();
            assert_eq!((&whole["stop_reason"], &whole["type"]), (&json!("tool_use"), &json!("message")), "{whole}");
            assert_eq!(
                (&whole["usage"]["input_tokens"], &whole["usage"]["cache_read_input_tokens"]),
                (&json!(10), &json!(5))
            );
            let streamed = events(&asked(ClientWire::Anthropic, body, true).await);
            let kinds: Vec<_> = streamed.iter().map(|event| event["type"].as_str().unwrap_or_default()).collect();
            assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("message_start", "message_stop"));
            let starts = kinds.iter().filter(|kind| **kind == "content_block_start").count();
            assert_eq!(starts, kinds.iter().filter(|kind| **kind == "content_block_stop").count(), "{kinds:?}");
        }
        let body = json!({"input": "x", "instructions": "s"});
        let whole: Value = serde_json::from_str(&asked(ClientWire::Responses, body.clone(), false).await).unwrap();
        assert_eq!(whole["status"], "completed", "{whole}");
        let streamed = events(&asked(ClientWire::Responses, body, true).await);
        let numbers: Vec<_> = streamed.iter().filter_map(|event| event["sequence_number"].as_u64()).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
        let last = streamed.last().unwrap();
        assert_eq!(last["type"], "response.completed");
        assert_eq!(last["response"]["output"].as_array().unwrap().len(), whole["output"].as_array().unwrap().len());
    }
}

/// A client that has never heard of signatures returns ids, and they carry what the provider needs.
#[tokio::test]
async fn signatures_survive_a_wire_without_a_field_for_them() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let gateway = gateway(&world, &catalogue("gemini", provider.port, ""));
    provider.always(vec![sse(GEMINI)]);
    let first = json!({"model": "m", "messages": [{"role": "user", "content": "x"}]});
    let whole: Value =
        serde_json::from_str(&text(gateway.answer(caller(), ask(ClientWire::Chat, &first)).await).await.unwrap())
            .unwrap();
    let message = whole["choices"][0]["message"].clone();
    let results = message["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| json!({"role": "tool", "tool_call_id": call["id"], "content": "a"}));
    let mut messages = vec![json!({"role": "user", "content": "x"}), message.clone()];
    messages.extend(results);
    let next = json!({"model": "m", "messages": messages});
    text(gateway.answer(caller(), ask(ClientWire::Chat, &next)).await).await.unwrap();
    let contents = &provider.requests()[1].body["contents"];
    let parts = contents[1]["parts"].as_array().unwrap();
    let signed: Vec<_> = parts.iter().filter(|part| part["thoughtSignature"] == "U0lH").collect();
    assert_eq!(signed.len(), 1, "on exactly the part it came on: {contents}");
    assert_eq!(signed[0]["functionCall"]["args"], json!({"command": "ls"}));
    assert_eq!(contents[2]["parts"].as_array().unwrap().len(), 2, "both results in one turn: {contents}");
}

#[tokio::test]
async fn what_cannot_be_translated_is_refused_by_name() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let gateway = gateway(&world, &catalogue("anthropic", provider.port, ""));
    let with = |name: &str, value: Value| {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "x"}]});
        body[name] = value;
        body
    };
    for (body, field) in [
        (with("n", json!(2)), "n"),
        (with("logprobs", json!(true)), "logprobs"),
        (with("brand_new", json!(1)), "brand_new"),
        (with("tools", json!([{"type": "custom"}])), "tools.0.type"),
        (
            with("messages", json!([{"role": "user", "content": [{"type": "input_audio"}]}])),
            "messages.0.content.0.type",
        ),
        (with("seed", json!(1)), "seed"),
    ] {
        let failure = gateway.answer(caller(), ask(ClientWire::Chat, &body)).await.unwrap_err();
        assert_eq!((failure.kind, failure.field.as_deref()), (FailureKind::InvalidRequest, Some(field)), "{failure}");
    }
    assert_eq!(provider.requests().len(), 0);
    let failure = gateway.answer(caller(), ask(ClientWire::Chat, &json!({"model": "nope"}))).await.unwrap_err();
    assert!(failure.kind == FailureKind::NotFound && failure.message.contains("there are: m"), "{failure}");
}
