//! Reads responses requests of clients.

use saggar_domain::model::{
    Image, ImageSource, Message, ModelRequest, Origin, OutputFormat, Part, ResultPart, Role, Sampling, ToolCall,
    ToolChoice, ToolDefinition, ToolResult, Verbatim, Wire,
};
use serde_json::Value;

use crate::failure::Failure;
use crate::fields::Fields;
use crate::wire::carried;
use crate::wire::chat::ask::{definition, detail, effort, image_source, millionths, route, schema};

/// Fields that don't change what is answered. Nothing is stored here, whatever `store` says: `previous_response_id` is refused.
const IGNORED: &[&str] = &[
    "stream",
    "stream_options",
    "user",
    "metadata",
    "store",
    "include",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "truncation",
];

pub(crate) fn read(body: Value, origin: &Origin) -> Result<ModelRequest, Failure> {
    let mut fields = Fields::of(body, "")?;
    fields.ignore(IGNORED);
    let route = route(&mut fields)?;
    let mut messages = Vec::new();
    if let Some(text) = fields.text("instructions")? {
        messages.push(Message::new(Role::System, vec![Part::text(text)]));
    }
    match fields.take("input") {
        Some(Value::String(text)) => messages.push(Message::new(Role::User, vec![Part::text(text)])),
        Some(Value::Array(items)) => {
            for (index, item) in items.into_iter().enumerate() {
                self::item(item, &format!("input.{index}"), origin, &mut messages)?;
            }
        }
        _ => return Err(fields.missing("input")),
    }
    let mut request = ModelRequest::new(route, messages);
    request.tools = tools(&mut fields)?;
    request.tool_choice = tool_choice(&mut fields)?;
    request.parallel_calls = fields.flag("parallel_tool_calls")?;
    request.sampling = Sampling {
        max_tokens: fields.whole("max_output_tokens")?,
        temperature: millionths(&mut fields, "temperature")?,
        top_p: millionths(&mut fields, "top_p")?,
        ..Sampling::default()
    };
    if let Some(mut reasoning) = fields.object("reasoning")? {
        reasoning.ignore(&["summary", "generate_summary"]);
        let text = reasoning.text("effort")?;
        request.sampling.reasoning = effort(text.as_deref(), &reasoning, "effort")?;
        reasoning.finish()?;
    }
    if let Some(mut text) = fields.object("text")? {
        if let Some(mut format) = text.object("format")? {
            request.output = match format.needed_text("type")?.as_str() {
                "text" => OutputFormat::Text,
                "json_object" => OutputFormat::Json,
                "json_schema" => schema(format)?,
                _ => return Err(format.untranslatable("type")),
            };
        }
        text.finish()?;
    }
    if let Some(tier) = fields.take("service_tier")
        && tier != "auto"
        && tier != "default"
    {
        return Err(fields.untranslatable("service_tier"));
    }
    if fields.flag("background")? == Some(true) {
        return Err(fields.untranslatable("background"));
    }
    fields.finish()?;
    Ok(request)
}

fn item(item: Value, path: &str, origin: &Origin, messages: &mut Vec<Message>) -> Result<(), Failure> {
    let whole = item.clone();
    let mut fields = Fields::of(item, path)?;
    fields.ignore(&["status"]);
    let kind = fields.text("type")?.unwrap_or_else(|| "message".to_owned());
    let (role, parts) = match kind.as_str() {
        "message" => {
            fields.ignore(&["id", "phase"]);
            let role = match fields.needed_text("role")?.as_str() {
                "user" => Role::User,
                "assistant" => Role::Assistant,
                "system" | "developer" => Role::System,
                other => return Err(Failure::invalid(format!("{other:?} is not a role")).about(fields.at("role"))),
            };
            (role, parts(&mut fields, "content")?)
        }
        "function_call" => {
            fields.ignore(&["id", "namespace"]);
            let id = fields.needed_text("call_id")?;
            let (id, verbatim) = carried::split(&id);
            let (name, arguments) = (fields.needed_text("name")?, fields.text("arguments")?.unwrap_or_default());
            (Role::Assistant, vec![Part::ToolCall(ToolCall { id: id.to_owned(), name, arguments, verbatim })])
        }
        "function_call_output" => {
            fields.ignore(&["id"]);
            let id = fields.needed_text("call_id")?;
            let (call, _) = carried::split(&id);
            let content = parts(&mut fields, "output")?.into_iter().map(|part| match part {
                Part::Text { text, .. } => Ok(ResultPart::Text { text }),
                Part::Image(image) => Ok(ResultPart::Image(image)),
                _ => Err(fields.untranslatable("output")),
            });
            let content = content.collect::<Result<_, _>>()?;
            (Role::User, vec![Part::ToolResult(ToolResult { call: call.to_owned(), content, is_error: false })])
        }
        "reasoning" => {
            fields.ignore(&["id"]);
            let mut text = String::new();
            for name in ["summary", "content"] {
                for part in fields.list(name)?.unwrap_or_default() {
                    text.push_str(part["text"].as_str().unwrap_or_default());
                }
            }
            let encrypted = fields.text("encrypted_content")?.unwrap_or_default();
            let verbatim = match carried::split(&encrypted) {
                ("", Some(verbatim)) => Some(verbatim),
                _ if encrypted.is_empty() => None,
                _ => Some(Verbatim { wire: Wire::Responses, origin: origin.clone(), data: whole.to_string() }),
            };
            (Role::Assistant, vec![Part::Reasoning { text, verbatim }])
        }
        _ => return Err(fields.untranslatable("type")),
    };
    fields.finish()?;
    // Items of one turn are one message.
    match messages.last_mut() {
        Some(last) if last.role == role && (role == Role::Assistant || is_result(&parts) && is_result(&last.parts)) => {
            last.parts.extend(parts);
        }
        _ => messages.push(Message::new(role, parts)),
    }
    Ok(())
}

fn is_result(parts: &[Part]) -> bool {
    parts.iter().all(|part| matches!(part, Part::ToolResult(_)))
}

fn parts(fields: &mut Fields, name: &str) -> Result<Vec<Part>, Failure> {
    let items = match fields.take(name) {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => return Ok(vec![Part::text(text)]),
        Some(Value::Array(items)) => items,
        Some(_) => return Err(fields.untranslatable(name)),
    };
    let read = items.into_iter().enumerate().map(|(index, item)| {
        let mut part = Fields::of(item, &fields.at(&format!("{name}.{index}")))?;
        part.ignore(&["annotations", "logprobs", "prompt_cache_breakpoint"]);
        let read = match part.needed_text("type")?.as_str() {
            "input_text" | "output_text" => Part::text(part.needed_text("text")?),
            "refusal" => Part::Refusal { text: part.needed_text("refusal")? },
            "input_image" => {
                let source = match part.text("image_url")? {
                    Some(url) => image_source(&url),
                    None => return Err(part.untranslatable("file_id")),
                };
                let source: ImageSource = source;
                Part::Image(Image { source, detail: detail(&mut part)? })
            }
            _ => return Err(part.untranslatable("type")),
        };
        part.finish()?;
        Ok(read)
    });
    read.collect()
}

fn tools(fields: &mut Fields) -> Result<Vec<ToolDefinition>, Failure> {
    let items = fields.list("tools")?.unwrap_or_default();
    let tools = items.into_iter().enumerate().map(|(index, item)| {
        let mut tool = Fields::of(item, &format!("tools.{index}"))?;
        if tool.needed_text("type")? != "function" {
            return Err(tool.untranslatable("type"));
        }
        definition(tool)
    });
    tools.collect()
}

fn tool_choice(fields: &mut Fields) -> Result<ToolChoice, Failure> {
    match fields.take("tool_choice") {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Any),
            _ => Err(fields.untranslatable("tool_choice")),
        },
        Some(choice) => match (choice["type"].as_str(), choice["name"].as_str()) {
            (Some("function"), Some(name)) => Ok(ToolChoice::Named(name.to_owned())),
            _ => Err(fields.untranslatable("tool_choice")),
        },
    }
}
