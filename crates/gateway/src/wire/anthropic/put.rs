//! Writes messages requests for providers.

use saggar_domain::model::{
    Image, ImageSource, ModelRequest, OutputFormat, Part, ReasoningEffort, ResultPart, Role, ToolChoice, ToolResult,
    Verbatim, Wire,
};
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::wire::PutTo;
use crate::wire::chat::put::cannot;

pub(crate) fn body(request: &ModelRequest, to: &PutTo) -> Result<Value, Failure> {
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| drop(body.insert(name.to_owned(), value));
    set("model", json!(to.origin.model));
    let (mut system, mut messages) = (Vec::new(), Vec::<(&str, Vec<Value>)>::new());
    for message in &request.messages {
        let mut blocks = Vec::with_capacity(message.parts.len());
        for part in &message.parts {
            blocks.extend(block(part, to)?);
        }
        let role = match message.role {
            Role::System if messages.is_empty() => {
                system.extend(blocks);
                continue;
            }
            // Later instructions keep their place.
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        // A message of nothing is refused, and turns of one role belong together: results first.
        if blocks.is_empty() {
            continue;
        }
        match messages.last_mut() {
            Some((last, all)) if *last == role && role == "user" => {
                let is_result = |block: &Value| block["type"] == "tool_result";
                let (results, others): (Vec<_>, Vec<_>) = blocks.into_iter().partition(is_result);
                let at = all.iter().take_while(|block| is_result(block)).count();
                all.splice(at..at, results);
                all.extend(others);
            }
            Some((last, all)) if *last == role => all.extend(blocks),
            _ => messages.push((role, blocks)),
        }
    }
    if !system.is_empty() {
        set("system", Value::Array(system));
    }
    set("messages", messages.into_iter().map(|(role, content)| json!({"role": role, "content": content})).collect());
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            let mut written = json!({"name": tool.name, "input_schema": tool.parameters.0});
            if !tool.description.is_empty() {
                written["description"] = json!(tool.description);
            }
            if let Some(strict) = tool.strict {
                written["strict"] = json!(strict);
            }
            written
        });
        set("tools", tools.collect());
        let mut choice = match &request.tool_choice {
            ToolChoice::Auto => json!({"type": "auto"}),
            ToolChoice::None => json!({"type": "none"}),
            ToolChoice::Any => json!({"type": "any"}),
            ToolChoice::Named(name) => json!({"type": "tool", "name": name}),
        };
        if request.parallel_calls == Some(false) && request.tool_choice != ToolChoice::None {
            choice["disable_parallel_tool_use"] = json!(true);
        }
        set("tool_choice", choice);
    }
    let sampling = &request.sampling;
    // Always required.
    set("max_tokens", json!(to.output_tokens));
    for (name, value) in [("temperature", sampling.temperature), ("top_p", sampling.top_p)] {
        if let Some(value) = value {
            set(name, json!(value.to_f64()));
        }
    }
    if let Some(top_k) = sampling.top_k {
        set("top_k", json!(top_k));
    }
    for (name, is_given) in [
        ("presence_penalty", sampling.presence_penalty.is_some_and(|penalty| penalty.0 != 0)),
        ("frequency_penalty", sampling.frequency_penalty.is_some_and(|penalty| penalty.0 != 0)),
        ("seed", sampling.seed.is_some()),
    ] {
        if is_given {
            return Err(cannot(name).about(name));
        }
    }
    if !sampling.stop.is_empty() {
        set("stop_sequences", json!(sampling.stop));
    }
    let mut config = Map::new();
    if let Some(tokens) = sampling.reasoning_tokens_max {
        set("thinking", json!({"type": "enabled", "budget_tokens": tokens}));
    } else {
        match sampling.reasoning {
            None => {}
            Some(ReasoningEffort::None) => set("thinking", json!({"type": "disabled"})),
            Some(effort) => {
                set("thinking", json!({"type": "adaptive"}));
                let effort = if effort == ReasoningEffort::Minimal { ReasoningEffort::Low } else { effort };
                config.insert("effort".to_owned(), json!(effort.as_str()));
            }
        }
    }
    match &request.output {
        OutputFormat::Text => {}
        OutputFormat::Json => return Err(cannot("response_format json_object").about("response_format")),
        OutputFormat::Schema { schema, .. } => {
            config.insert("format".to_owned(), json!({"type": "json_schema", "schema": schema.0}));
        }
    }
    if !config.is_empty() {
        set("output_config", Value::Object(config));
    }
    set("stream", json!(true));
    Ok(Value::Object(body))
}

/// `None` for what another provider has made.
fn block(part: &Part, to: &PutTo) -> Result<Option<Value>, Failure> {
    Ok(match part {
        // Empty text is refused.
        Part::Text { text, .. } if text.is_empty() => None,
        Part::Text { text, .. } | Part::Refusal { text } => Some(json!({"type": "text", "text": text})),
        Part::Image(image) => Some(written_image(image)),
        Part::ToolCall(call) => {
            let input: Value = match call.arguments.trim() {
                "" => json!({}),
                text => serde_json::from_str(text).ok().filter(Value::is_object).ok_or_else(|| {
                    Failure::invalid(format!(
                        "the arguments of tool call {:?} are not a JSON object, and this model's provider accepts no others",
                        call.id
                    ))
                })?,
            };
            Some(json!({"type": "tool_use", "id": call_id(&call.id), "name": call.name, "input": input}))
        }
        Part::ToolResult(result) => Some(written_result(result)),
        Part::Reasoning { verbatim, .. } => verbatim.as_ref().and_then(|verbatim| own(verbatim, to)),
        Part::Provider { verbatim } => own(verbatim, to),
    })
}

fn own(verbatim: &Verbatim, to: &PutTo) -> Option<Value> {
    verbatim.is_for(Wire::Anthropic, to.origin).then(|| serde_json::from_str(&verbatim.data).ok()).flatten()
}

/// An id as this wire allows it: letters, digits, `_` and `-`.
fn call_id(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' }).collect()
}

fn written_result(result: &ToolResult) -> Value {
    let content: Vec<Value> = result
        .content
        .iter()
        .filter_map(|part| match part {
            ResultPart::Text { text } if text.is_empty() => None,
            ResultPart::Text { text } => Some(json!({"type": "text", "text": text})),
            ResultPart::Image(image) => Some(written_image(image)),
        })
        .collect();
    let mut written = json!({"type": "tool_result", "tool_use_id": call_id(&result.call), "content": content});
    if result.is_error {
        written["is_error"] = json!(true);
    }
    written
}

fn written_image(image: &Image) -> Value {
    let source = match &image.source {
        ImageSource::Data { media_type, data } => json!({"type": "base64", "media_type": media_type, "data": data}),
        ImageSource::Url(url) => json!({"type": "url", "url": url}),
    };
    json!({"type": "image", "source": source})
}
