//! Writes chat completions requests for providers. Always for a stream, with its usage.

use saggar_domain::model::{
    Image, ImageDetail, ImageSource, Message, ModelRequest, OutputFormat, Part, ResultPart, Role, ToolChoice,
};
use serde_json::{Map, Value, json};

use crate::catalogue::Dialect;
use crate::failure::Failure;
use crate::wire::PutTo;

pub(crate) fn body(request: &ModelRequest, to: &PutTo) -> Result<Value, Failure> {
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| drop(body.insert(name.to_owned(), value));
    set("model", json!(to.origin.model));
    let mut messages = Vec::new();
    for message in &request.messages {
        write_message(message, &mut messages)?;
    }
    set("messages", Value::Array(messages));
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            let mut function =
                json!({"name": tool.name, "description": tool.description, "parameters": tool.parameters.0});
            if let Some(strict) = tool.strict {
                function["strict"] = json!(strict);
            }
            json!({"type": "function", "function": function})
        });
        set("tools", tools.collect());
        set("tool_choice", choice(&request.tool_choice));
        if let Some(parallel) = request.parallel_calls {
            set("parallel_tool_calls", json!(parallel));
        }
    }
    let sampling = &request.sampling;
    if sampling.max_tokens.is_some() || to.is_limited {
        set(limit_name(to.dialect), json!(to.output_tokens));
    }
    for (name, value) in [
        ("temperature", sampling.temperature),
        ("top_p", sampling.top_p),
        ("presence_penalty", sampling.presence_penalty),
        ("frequency_penalty", sampling.frequency_penalty),
    ] {
        if let Some(value) = value {
            set(name, json!(value.to_f64()));
        }
    }
    if let Some(top_k) = sampling.top_k {
        match to.dialect {
            Dialect::Compatible | Dialect::Ollama => set("top_k", json!(top_k)),
            Dialect::OpenAi | Dialect::Anthropic | Dialect::Gemini => return Err(cannot("top_k")),
        }
    }
    if let Some(seed) = sampling.seed {
        set("seed", json!(seed));
    }
    if !sampling.stop.is_empty() {
        set("stop", json!(sampling.stop));
    }
    if let Some(effort) = sampling.reasoning {
        set("reasoning_effort", json!(effort.as_str()));
    }
    match &request.output {
        OutputFormat::Text => {}
        OutputFormat::Json => set("response_format", json!({"type": "json_object"})),
        OutputFormat::Schema { name, schema, strict } => {
            let mut json_schema = json!({"name": name, "schema": schema.0});
            if let Some(strict) = strict {
                json_schema["strict"] = json!(strict);
            }
            set("response_format", json!({"type": "json_schema", "json_schema": json_schema}));
        }
    }
    set("stream", json!(true));
    set("stream_options", json!({"include_usage": true}));
    Ok(Value::Object(body))
}

/// The field that limits a reply.
pub(crate) fn limit_name(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::OpenAi | Dialect::Anthropic | Dialect::Gemini => "max_completion_tokens",
        // Ollama ignores the newer one, and all others know both.
        Dialect::Compatible | Dialect::Ollama => "max_tokens",
    }
}

fn write_message(message: &Message, messages: &mut Vec<Value>) -> Result<(), Failure> {
    match message.role {
        Role::System => messages.push(json!({"role": "system", "content": content(&message.parts)?})),
        Role::Assistant => {
            let (mut text, mut calls, mut refusal) = (String::new(), Vec::new(), None);
            for part in &message.parts {
                match part {
                    Part::Text { text: more, .. } => text.push_str(more),
                    Part::Refusal { text } => refusal = Some(text.clone()),
                    Part::ToolCall(call) => calls.push(json!({
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    })),
                    // Chat completions has no field for what a model thought.
                    Part::Reasoning { .. } | Part::Provider { .. } => {}
                    Part::Image(_) | Part::ToolResult(_) => return Err(cannot("an image in an assistant's message")),
                }
            }
            let mut written =
                json!({"role": "assistant", "content": if text.is_empty() { Value::Null } else { json!(text) }});
            if !calls.is_empty() {
                written["tool_calls"] = Value::Array(calls);
            }
            if let Some(refusal) = refusal {
                written["refusal"] = json!(refusal);
            }
            // A turn of which nothing is left.
            if written["content"].is_null() && written.get("tool_calls").is_none() && written.get("refusal").is_none() {
                written["content"] = json!("");
            }
            messages.push(written);
        }
        Role::User => {
            let mut others = Vec::new();
            for part in &message.parts {
                let Part::ToolResult(result) = part else {
                    others.push(part.clone());
                    continue;
                };
                let (mut text, mut images) = (String::new(), Vec::new());
                for part in &result.content {
                    match part {
                        ResultPart::Text { text: more } => text.push_str(more),
                        ResultPart::Image(image) => images.push(Part::Image(image.clone())),
                    }
                }
                if result.is_error {
                    text.insert_str(0, "Error: ");
                }
                messages.push(json!({"role": "tool", "tool_call_id": result.call, "content": text}));
                // Tools answer with text alone; images follow as the user's.
                others.extend(images);
            }
            if !others.is_empty() {
                messages.push(json!({"role": "user", "content": content(&others)?}));
            }
        }
    }
    Ok(())
}

fn content(parts: &[Part]) -> Result<Value, Failure> {
    if let [Part::Text { text, .. }] = parts {
        return Ok(json!(text));
    }
    parts
        .iter()
        .map(|part| match part {
            Part::Text { text, .. } => Ok(json!({"type": "text", "text": text})),
            Part::Image(image) => Ok(json!({"type": "image_url", "image_url": image_url(image)})),
            Part::ToolCall(_)
            | Part::ToolResult(_)
            | Part::Reasoning { .. }
            | Part::Refusal { .. }
            | Part::Provider { .. } => Err(cannot("this part of a user's message")),
        })
        .collect()
}

fn image_url(image: &Image) -> Value {
    let mut written = json!({"url": url(image)});
    if let Some(detail) = image.detail {
        written["detail"] = json!(detail_name(detail));
    }
    written
}

pub(crate) fn url(image: &Image) -> String {
    match &image.source {
        ImageSource::Data { media_type, data } => format!("data:{media_type};base64,{data}"),
        ImageSource::Url(url) => url.clone(),
    }
}

pub(crate) fn detail_name(detail: ImageDetail) -> &'static str {
    match detail {
        ImageDetail::Auto => "auto",
        ImageDetail::Low => "low",
        ImageDetail::High => "high",
    }
}

fn choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => json!("auto"),
        ToolChoice::None => json!("none"),
        ToolChoice::Any => json!("required"),
        ToolChoice::Named(name) => json!({"type": "function", "function": {"name": name}}),
    }
}

pub(crate) fn cannot(what: &str) -> Failure {
    Failure::invalid(format!(
        "{what} can't be translated for the provider of this model: leave it out, or use a model of another provider"
    ))
}
