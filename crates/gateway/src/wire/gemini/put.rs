//! Writes generateContent requests.

use std::collections::BTreeMap;

use saggar_domain::model::{
    ImageSource, ModelRequest, OutputFormat, Part, ReasoningEffort, ResultPart, Role, ToolChoice, Verbatim, Wire,
};
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::wire::PutTo;
use crate::wire::chat::put::cannot;

pub(crate) fn body(request: &ModelRequest, to: &PutTo) -> Result<Value, Failure> {
    let mut body = Map::new();
    let (mut system, mut contents) = (Vec::new(), Vec::<(&str, Vec<Value>)>::new());
    // Results name the function, and calls elsewhere only have ids.
    let mut names = BTreeMap::new();
    for message in &request.messages {
        let mut parts = Vec::with_capacity(message.parts.len());
        for part in &message.parts {
            if let Part::ToolCall(call) = part {
                names.insert(call.id.clone(), call.name.clone());
            }
            self::part(part, to, &names, &mut parts)?;
        }
        let role = match message.role {
            Role::System => {
                system.extend(parts);
                continue;
            }
            Role::User => "user",
            Role::Assistant => "model",
        };
        if parts.is_empty() {
            continue;
        }
        match contents.last_mut() {
            Some((last, all)) if *last == role => all.extend(parts),
            _ => contents.push((role, parts)),
        }
    }
    if !system.is_empty() {
        body.insert("systemInstruction".to_owned(), json!({"parts": system}));
    }
    let contents = contents.into_iter().map(|(role, parts)| json!({"role": role, "parts": parts}));
    body.insert("contents".to_owned(), contents.collect());
    if !request.tools.is_empty() {
        let declarations: Vec<Value> = request
            .tools
            .iter()
            .map(|tool| {
                json!({"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters.0})
            })
            .collect();
        body.insert("tools".to_owned(), json!([{"functionDeclarations": declarations}]));
        let config = match &request.tool_choice {
            ToolChoice::Auto => json!({"mode": "AUTO"}),
            ToolChoice::None => json!({"mode": "NONE"}),
            ToolChoice::Any => json!({"mode": "ANY"}),
            ToolChoice::Named(name) => json!({"mode": "ANY", "allowedFunctionNames": [name]}),
        };
        body.insert("toolConfig".to_owned(), json!({"functionCallingConfig": config}));
        if request.parallel_calls == Some(false) {
            return Err(cannot("parallel_tool_calls false").about("parallel_tool_calls"));
        }
    }
    body.insert("generationConfig".to_owned(), generation(request, to));
    Ok(Value::Object(body))
}

fn generation(request: &ModelRequest, to: &PutTo) -> Value {
    let (sampling, mut config) = (&request.sampling, Map::new());
    let mut set = |name: &str, value: Value| drop(config.insert(name.to_owned(), value));
    if sampling.max_tokens.is_some() || to.is_limited {
        set("maxOutputTokens", json!(to.output_tokens));
    }
    for (name, value) in [
        ("temperature", sampling.temperature),
        ("topP", sampling.top_p),
        ("presencePenalty", sampling.presence_penalty),
        ("frequencyPenalty", sampling.frequency_penalty),
    ] {
        if let Some(value) = value {
            set(name, json!(value.to_f64()));
        }
    }
    if let Some(top_k) = sampling.top_k {
        set("topK", json!(top_k));
    }
    if let Some(seed) = sampling.seed {
        set("seed", json!(seed));
    }
    if !sampling.stop.is_empty() {
        set("stopSequences", json!(sampling.stop));
    }
    match &request.output {
        OutputFormat::Text => {}
        OutputFormat::Json => set("responseMimeType", json!("application/json")),
        OutputFormat::Schema { schema, .. } => {
            set("responseMimeType", json!("application/json"));
            set("responseJsonSchema", schema.0.clone());
        }
    }
    let mut thinking = Map::new();
    if let Some(tokens) = sampling.reasoning_tokens_max {
        thinking.insert("thinkingBudget".to_owned(), json!(tokens));
    } else if let Some(effort) = sampling.reasoning {
        match effort {
            ReasoningEffort::None => drop(thinking.insert("thinkingBudget".to_owned(), json!(0))),
            ReasoningEffort::Minimal | ReasoningEffort::Low | ReasoningEffort::Medium | ReasoningEffort::High => {
                thinking.insert("thinkingLevel".to_owned(), json!(effort.as_str()));
            }
            ReasoningEffort::Xhigh | ReasoningEffort::Max => {
                thinking.insert("thinkingLevel".to_owned(), json!("high"));
            }
        }
    }
    if !thinking.is_empty() {
        set("thinkingConfig", Value::Object(thinking));
    }
    Value::Object(config)
}

fn part(part: &Part, to: &PutTo, names: &BTreeMap<String, String>, parts: &mut Vec<Value>) -> Result<(), Failure> {
    match part {
        Part::Text { text, verbatim } => parts.push(signed(json!({"text": text}), verbatim.as_ref(), to)),
        Part::Refusal { text } => parts.push(json!({"text": text})),
        Part::Image(image) => parts.push(match &image.source {
            ImageSource::Data { media_type, data } => json!({"inlineData": {"mimeType": media_type, "data": data}}),
            ImageSource::Url(url) => json!({"fileData": {"fileUri": url}}),
        }),
        Part::ToolCall(call) => {
            let args: Value = match call.arguments.trim() {
                "" => json!({}),
                text => serde_json::from_str(text).ok().filter(Value::is_object).ok_or_else(|| {
                    Failure::invalid(format!(
                        "the arguments of tool call {:?} are not a JSON object, and this model's provider accepts no others",
                        call.id
                    ))
                })?,
            };
            let written = json!({"functionCall": {"id": call.id, "name": call.name, "args": args}});
            parts.push(signed(written, call.verbatim.as_ref(), to));
        }
        Part::ToolResult(result) => {
            let name = names.get(&result.call).ok_or_else(|| {
                Failure::invalid(format!("the result of tool call {:?} comes without the call", result.call))
            })?;
            let (mut text, mut images) = (String::new(), Vec::new());
            for part in &result.content {
                match part {
                    ResultPart::Text { text: more } => text.push_str(more),
                    ResultPart::Image(image) => images.push(Part::Image(image.clone())),
                }
            }
            let response = if result.is_error { json!({"error": text}) } else { json!({"output": text}) };
            parts.push(json!({"functionResponse": {"id": result.call, "name": name, "response": response}}));
            for image in &images {
                self::part(image, to, names, parts)?;
            }
        }
        // Thoughts don't go back; what is signed is on the other parts.
        Part::Reasoning { .. } => {}
        Part::Provider { verbatim } => {
            if verbatim.is_for(Wire::Gemini, to.origin) {
                parts.extend(serde_json::from_str::<Value>(&verbatim.data).ok());
            }
        }
    }
    Ok(())
}

/// With the signature that came on this very part.
fn signed(mut written: Value, verbatim: Option<&Verbatim>, to: &PutTo) -> Value {
    if let Some(verbatim) = verbatim.filter(|verbatim| verbatim.is_for(Wire::Gemini, to.origin))
        && let Ok(data) = serde_json::from_str::<Value>(&verbatim.data)
    {
        written["thoughtSignature"] = data["thoughtSignature"].clone();
    }
    written
}
