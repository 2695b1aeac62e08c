//! Writes responses requests for providers. Nothing is stored there: encrypted reasoning comes back with each turn.

use saggar_domain::model::{
    ModelRequest, OutputFormat, Part, ResultPart, Role, ToolChoice, ToolResult, Verbatim, Wire,
};
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::wire::PutTo;
use crate::wire::chat::put::{cannot, detail_name, url};

pub(crate) fn body(request: &ModelRequest, to: &PutTo) -> Result<Value, Failure> {
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| drop(body.insert(name.to_owned(), value));
    set("model", json!(to.origin.model));
    let mut input = Vec::new();
    for message in &request.messages {
        items(message.role, &message.parts, to, &mut input)?;
    }
    set("input", Value::Array(input));
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            json!({
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters.0,
                "strict": tool.strict.unwrap_or(false),
            })
        });
        set("tools", tools.collect());
        set(
            "tool_choice",
            match &request.tool_choice {
                ToolChoice::Auto => json!("auto"),
                ToolChoice::None => json!("none"),
                ToolChoice::Any => json!("required"),
                ToolChoice::Named(name) => json!({"type": "function", "name": name}),
            },
        );
        if let Some(parallel) = request.parallel_calls {
            set("parallel_tool_calls", json!(parallel));
        }
    }
    let sampling = &request.sampling;
    if sampling.max_tokens.is_some() || to.is_limited {
        set("max_output_tokens", json!(to.output_tokens));
    }
    for (name, value) in [("temperature", sampling.temperature), ("top_p", sampling.top_p)] {
        if let Some(value) = value {
            set(name, json!(value.to_f64()));
        }
    }
    for (name, is_given) in [
        ("top_k", sampling.top_k.is_some()),
        ("seed", sampling.seed.is_some()),
        ("stop", !sampling.stop.is_empty()),
        ("presence_penalty", sampling.presence_penalty.is_some_and(|penalty| penalty.0 != 0)),
        ("frequency_penalty", sampling.frequency_penalty.is_some_and(|penalty| penalty.0 != 0)),
    ] {
        if is_given {
            return Err(cannot(name).about(name));
        }
    }
    if let Some(effort) = sampling.reasoning {
        set("reasoning", json!({"effort": effort.as_str()}));
    }
    match &request.output {
        OutputFormat::Text => {}
        OutputFormat::Json => set("text", json!({"format": {"type": "json_object"}})),
        OutputFormat::Schema { name, schema, strict } => {
            let strict = strict.unwrap_or(true);
            let format = json!({"type": "json_schema", "name": name, "schema": schema.0, "strict": strict});
            set("text", json!({"format": format}));
        }
    }
    set("store", json!(false));
    set("include", json!(["reasoning.encrypted_content"]));
    set("stream", json!(true));
    Ok(Value::Object(body))
}

fn items(role: Role, parts: &[Part], to: &PutTo, input: &mut Vec<Value>) -> Result<(), Failure> {
    let role_name = match role {
        Role::System => "developer",
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    let mut content = Vec::new();
    let flush = |content: &mut Vec<Value>, input: &mut Vec<Value>| {
        if !content.is_empty() {
            input.push(json!({"type": "message", "role": role_name, "content": std::mem::take(content)}));
        }
    };
    for part in parts {
        match part {
            Part::Text { text, .. } if role == Role::Assistant => {
                content.push(json!({"type": "output_text", "text": text, "annotations": []}));
            }
            Part::Text { text, .. } => content.push(json!({"type": "input_text", "text": text})),
            Part::Refusal { text } => content.push(json!({"type": "refusal", "refusal": text})),
            Part::Image(image) => {
                let detail = image.detail.map_or("auto", detail_name);
                content.push(json!({"type": "input_image", "image_url": url(image), "detail": detail}));
            }
            Part::ToolCall(call) => {
                flush(&mut content, input);
                input.push(json!({
                    "type": "function_call",
                    "call_id": call.id,
                    "name": call.name,
                    "arguments": call.arguments,
                }));
            }
            Part::ToolResult(result) => {
                flush(&mut content, input);
                input.push(output(result));
            }
            Part::Reasoning { verbatim, .. } => {
                flush(&mut content, input);
                input.extend(verbatim.as_ref().and_then(|verbatim| own(verbatim, to)));
            }
            Part::Provider { verbatim } => {
                flush(&mut content, input);
                input.extend(own(verbatim, to));
            }
        }
    }
    flush(&mut content, input);
    Ok(())
}

fn own(verbatim: &Verbatim, to: &PutTo) -> Option<Value> {
    verbatim.is_for(Wire::Responses, to.origin).then(|| serde_json::from_str(&verbatim.data).ok()).flatten()
}

fn output(result: &ToolResult) -> Value {
    let has_images = result.content.iter().any(|part| matches!(part, ResultPart::Image(_)));
    let prefix = if result.is_error { "Error: " } else { "" };
    let output = if has_images {
        let parts = result.content.iter().map(|part| match part {
            ResultPart::Text { text } => json!({"type": "input_text", "text": format!("{prefix}{text}")}),
            ResultPart::Image(image) => json!({"type": "input_image", "image_url": url(image)}),
        });
        parts.collect()
    } else {
        let texts = result.content.iter().filter_map(|part| match part {
            ResultPart::Text { text } => Some(text.as_str()),
            ResultPart::Image(_) => None,
        });
        json!(format!("{prefix}{}", texts.collect::<String>()))
    };
    json!({"type": "function_call_output", "call_id": result.call, "output": output})
}
