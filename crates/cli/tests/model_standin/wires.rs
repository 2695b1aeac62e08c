//! The wires: how many replies a conversation has, and a reply as a stream of events.

use serde_json::{Value, json};

use super::Turn;

/// Data that a provider wants back exactly as it came.
pub const SIGNATURE: &str = "c2lnbmF0dXJl";

/// The replies that a request's conversation has.
pub fn replies_in(body: &Value) -> usize {
    let messages = body["messages"].as_array();
    if let Some(messages) = messages {
        return messages.iter().filter(|message| message["role"] == "assistant").count();
    }
    // In responses a reply is several items; a run of them is one.
    let is_ours = |item: &Value| {
        matches!(item["type"].as_str(), Some("function_call" | "reasoning")) || item["role"] == "assistant"
    };
    let items: Vec<bool> = body["input"].as_array().into_iter().flatten().map(is_ours).collect();
    let begins = items.iter().enumerate().filter(|(at, ours)| **ours && (*at == 0 || !items[at - 1]));
    begins.count()
}

/// The events of a reply, each with what ends it.
pub fn events(path: &str, turn: &Turn) -> Vec<String> {
    match path {
        "/v1/chat/completions" => chat(turn),
        "/v1/responses" => responses(turn),
        "/v1/messages" => anthropic(turn),
        other => panic!("nobody asks for {other}"),
    }
}

fn data(event: &Value) -> String {
    format!("data: {event}\n\n")
}

fn id(turn: &Turn, at: usize) -> String {
    let at = if turn.is_ambiguous { 0 } else { at };
    format!("call_{}_{at}", turn.calls.len())
}

fn chat(turn: &Turn) -> Vec<String> {
    let delta = |delta: Value| data(&json!({"id": "c", "choices": [{"index": 0, "delta": delta}]}));
    let mut events = vec![delta(json!({"role": "assistant", "content": ""}))];
    for piece in pieces(&turn.text) {
        events.push(delta(json!({"content": piece})));
    }
    for (index, (name, arguments)) in turn.calls.iter().enumerate() {
        let function = json!({"name": name, "arguments": ""});
        let call = json!({"index": index, "id": id(turn, index), "type": "function", "function": function});
        events.push(delta(json!({"tool_calls": [call]})));
        for piece in pieces(arguments) {
            events.push(delta(json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})));
        }
    }
    let stop =
        turn.stop.clone().unwrap_or_else(|| if turn.calls.is_empty() { "stop" } else { "tool_calls" }.to_owned());
    events.push(data(&json!({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": stop}]})));
    let mut usage = json!({"prompt_tokens": turn.input, "completion_tokens": turn.output});
    if turn.cached + turn.reasoning > 0 {
        usage["prompt_tokens_details"] = json!({"cached_tokens": turn.cached});
        usage["completion_tokens_details"] = json!({"reasoning_tokens": turn.reasoning});
    }
    events.push(data(&json!({"id": "c", "choices": [], "usage": usage})));
    events.push("data: [DONE]\n\n".to_owned());
    events
}

fn responses(turn: &Turn) -> Vec<String> {
    let mut events = vec![data(&json!({"type": "response.created", "response": {"id": "r"}}))];
    let thought = json!({"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": SIGNATURE});
    events.push(data(
        &json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "id": "rs"}}),
    ));
    events.push(data(&json!({"type": "response.output_item.done", "output_index": 0, "item": thought})));
    let mut place = 1;
    if !turn.text.is_empty() {
        for piece in pieces(&turn.text) {
            events.push(data(&json!({"type": "response.output_text.delta", "output_index": place, "content_index": 0, "delta": piece})));
        }
        let item = json!({"type": "message", "id": "m"});
        events.push(data(&json!({"type": "response.output_item.done", "output_index": place, "item": item})));
        place += 1;
    }
    for (index, (name, arguments)) in turn.calls.iter().enumerate() {
        let item = json!({"type": "function_call", "id": "fc", "call_id": id(turn, index), "name": name});
        events.push(data(&json!({"type": "response.output_item.added", "output_index": place, "item": item})));
        for piece in pieces(arguments) {
            events.push(data(
                &json!({"type": "response.function_call_arguments.delta", "output_index": place, "delta": piece}),
            ));
        }
        let mut done = item.clone();
        done["arguments"] = json!(arguments);
        events.push(data(&json!({"type": "response.output_item.done", "output_index": place, "item": done})));
        place += 1;
    }
    let mut usage = json!({"input_tokens": turn.input, "output_tokens": turn.output});
    if turn.cached + turn.reasoning > 0 {
        usage["input_tokens_details"] = json!({"cached_tokens": turn.cached});
        usage["output_tokens_details"] = json!({"reasoning_tokens": turn.reasoning});
    }
    let mut end = json!({"type": "response.completed", "response": {"id": "r", "usage": usage}});
    if let Some(stop) = &turn.stop {
        end["type"] = json!("response.incomplete");
        end["response"]["incomplete_details"] = json!({"reason": stop});
    }
    events.push(data(&end));
    events
}

fn anthropic(turn: &Turn) -> Vec<String> {
    let event = |event: Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().expect("it has one"));
    // What is read from the cache is counted apart.
    let usage =
        json!({"input_tokens": turn.input - turn.cached, "cache_read_input_tokens": turn.cached, "output_tokens": 1});
    let mut events = vec![event(json!({"type": "message_start", "message": {"id": "m", "usage": usage}}))];
    let mut index = 0;
    let mut block = |start: Value, deltas: Vec<Value>| {
        events.push(event(json!({"type": "content_block_start", "index": index, "content_block": start})));
        for delta in deltas {
            events.push(event(json!({"type": "content_block_delta", "index": index, "delta": delta})));
        }
        events.push(event(json!({"type": "content_block_stop", "index": index})));
        index += 1;
    };
    block(
        json!({"type": "thinking", "thinking": "", "signature": ""}),
        vec![
            json!({"type": "thinking_delta", "thinking": "hm"}),
            json!({"type": "signature_delta", "signature": SIGNATURE}),
        ],
    );
    if !turn.text.is_empty() {
        let deltas = pieces(&turn.text).into_iter().map(|piece| json!({"type": "text_delta", "text": piece}));
        block(json!({"type": "text", "text": ""}), deltas.collect());
    }
    for (at, (name, arguments)) in turn.calls.iter().enumerate() {
        let deltas =
            pieces(arguments).into_iter().map(|piece| json!({"type": "input_json_delta", "partial_json": piece}));
        block(json!({"type": "tool_use", "id": id(turn, at), "name": name, "input": {}}), deltas.collect());
    }
    let stop =
        turn.stop.clone().unwrap_or_else(|| if turn.calls.is_empty() { "end_turn" } else { "tool_use" }.to_owned());
    events.push(event(
        json!({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": turn.output}}),
    ));
    events.push(event(json!({"type": "message_stop"})));
    events
}

/// A text in two pieces.
fn pieces(text: &str) -> Vec<&str> {
    let middle = (0..=text.len() / 2).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let (one, other) = text.split_at(middle);
    [one, other].into_iter().filter(|piece| !piece.is_empty()).collect()
}
