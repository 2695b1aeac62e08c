//! Reads messages requests of clients.

use saggar_domain::model::{
    Image, ImageSource, JsonSchema, Message, ModelRequest, Origin, OutputFormat, Part, ReasoningEffort, ResultPart,
    Role, Sampling, ToolCall, ToolChoice, ToolDefinition, ToolResult, Verbatim, Wire,
};
use serde_json::Value;

use crate::failure::Failure;
use crate::fields::Fields;
use crate::wire::carried;
use crate::wire::chat::ask::{millionths, route};

/// Fields that don't change what is answered.
const IGNORED: &[&str] = &["stream", "metadata", "cache_control"];

/// `origin` is who will get the request: reasoning of a client that has it from there goes back.
pub(crate) fn read(body: Value, origin: &Origin) -> Result<ModelRequest, Failure> {
    let mut fields = Fields::of(body, "")?;
    fields.ignore(IGNORED);
    let route = route(&mut fields)?;
    let mut messages = Vec::new();
    if let Some(system) = fields.take("system") {
        let parts = blocks(system, "system", origin)?;
        messages.push(Message::new(Role::System, parts));
    }
    let items = fields.list("messages")?.ok_or_else(|| fields.missing("messages"))?;
    for (index, item) in items.into_iter().enumerate() {
        let path = format!("messages.{index}");
        let mut message = Fields::of(item, &path)?;
        let role = match message.needed_text("role")?.as_str() {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "system" => Role::System,
            other => return Err(Failure::invalid(format!("{other:?} is not a role")).about(format!("{path}.role"))),
        };
        let content = message.take("content").ok_or_else(|| message.missing("content"))?;
        message.finish()?;
        messages.push(Message::new(role, blocks(content, &format!("{path}.content"), origin)?));
    }
    let mut request = ModelRequest::new(route, messages);
    request.tools = tools(&mut fields)?;
    (request.tool_choice, request.parallel_calls) = tool_choice(&mut fields)?;
    let max_tokens = fields.whole("max_tokens")?.ok_or_else(|| fields.missing("max_tokens"))?;
    request.sampling = Sampling {
        max_tokens: Some(max_tokens),
        temperature: millionths(&mut fields, "temperature")?,
        top_p: millionths(&mut fields, "top_p")?,
        top_k: fields.whole("top_k")?.and_then(|top_k| u32::try_from(top_k).ok()),
        stop: stop(&mut fields)?,
        ..Sampling::default()
    };
    thinking(&mut fields, &mut request.sampling)?;
    if let Some(mut config) = fields.object("output_config")? {
        if let Some(effort) = config.text("effort")? {
            let effort = ReasoningEffort::parse(&effort).ok_or_else(|| config.untranslatable("effort"))?;
            request.sampling.reasoning = Some(effort);
        }
        if let Some(mut format) = config.object("format")? {
            if format.needed_text("type")? != "json_schema" {
                return Err(format.untranslatable("type"));
            }
            let schema = JsonSchema(format.take("schema").ok_or_else(|| format.missing("schema"))?);
            format.finish()?;
            request.output = OutputFormat::Schema { name: "answer".to_owned(), schema, strict: Some(true) };
        }
        config.finish()?;
    }
    if let Some(tier) = fields.take("service_tier")
        && tier != "auto"
        && tier != "standard_only"
    {
        return Err(fields.untranslatable("service_tier"));
    }
    fields.finish()?;
    Ok(request)
}

fn thinking(fields: &mut Fields, sampling: &mut Sampling) -> Result<(), Failure> {
    let Some(mut thinking) = fields.object("thinking")? else { return Ok(()) };
    thinking.ignore(&["display"]);
    match thinking.needed_text("type")?.as_str() {
        "disabled" => sampling.reasoning = Some(ReasoningEffort::None),
        "adaptive" | "between_tools" => {}
        "enabled" => sampling.reasoning_tokens_max = thinking.whole("budget_tokens")?,
        _ => return Err(thinking.untranslatable("type")),
    }
    thinking.finish()
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, Failure> {
    let items = fields.list("stop_sequences")?.unwrap_or_default();
    items
        .into_iter()
        .map(|item| item.as_str().map(str::to_owned).ok_or_else(|| fields.untranslatable("stop_sequences")))
        .collect()
}

fn blocks(content: Value, path: &str, origin: &Origin) -> Result<Vec<Part>, Failure> {
    match content {
        Value::String(text) => Ok(vec![Part::text(text)]),
        Value::Array(items) => {
            items.into_iter().enumerate().map(|(index, item)| block(item, &format!("{path}.{index}"), origin)).collect()
        }
        _ => Err(Failure::invalid(format!("{path} is neither text nor a list")).about(path)),
    }
}

fn block(item: Value, path: &str, origin: &Origin) -> Result<Part, Failure> {
    let whole = item.clone();
    let mut fields = Fields::of(item, path)?;
    fields.ignore(&["cache_control"]);
    let kind = fields.needed_text("type")?;
    let part = match kind.as_str() {
        "text" => {
            fields.ignore(&["citations"]);
            Part::text(fields.needed_text("text")?)
        }
        "image" => Part::Image(image(&mut fields)?),
        "tool_use" => {
            fields.ignore(&["caller"]);
            let id = fields.needed_text("id")?;
            let (id, verbatim) = carried::split(&id);
            let arguments = fields.take("input").unwrap_or_else(|| Value::Object(serde_json::Map::new()));
            let name = fields.needed_text("name")?;
            Part::ToolCall(ToolCall { id: id.to_owned(), name, arguments: arguments.to_string(), verbatim })
        }
        "tool_result" => Part::ToolResult(result(&mut fields, path, origin)?),
        "thinking" => {
            let text = fields.text("thinking")?.unwrap_or_default();
            let signature = fields.text("signature")?.unwrap_or_default();
            // Ours names who made it; any other is of a client that has it from this very wire.
            let verbatim = match carried::split(&signature) {
                ("", Some(verbatim)) => Some(verbatim),
                _ if signature.is_empty() => None,
                _ => Some(own(&whole, origin)),
            };
            Part::Reasoning { text, verbatim }
        }
        "redacted_thinking" => {
            let data = fields.text("data")?.unwrap_or_default();
            match carried::split(&data) {
                ("", Some(verbatim)) => Part::Provider { verbatim },
                _ => Part::Provider { verbatim: own(&whole, origin) },
            }
        }
        _ => return Err(fields.untranslatable("type")),
    };
    fields.finish()?;
    Ok(part)
}

/// Data that this wire's own provider has made.
fn own(block: &Value, origin: &Origin) -> Verbatim {
    Verbatim { wire: Wire::Anthropic, origin: origin.clone(), data: block.to_string() }
}

fn result(fields: &mut Fields, path: &str, origin: &Origin) -> Result<ToolResult, Failure> {
    let id = fields.needed_text("tool_use_id")?;
    let (call, _) = carried::split(&id);
    let parts = match fields.take("content") {
        None => Vec::new(),
        Some(content) => blocks(content, &format!("{path}.content"), origin)?,
    };
    let content = parts.into_iter().map(|part| match part {
        Part::Text { text, .. } => Ok(ResultPart::Text { text }),
        Part::Image(image) => Ok(ResultPart::Image(image)),
        _ => Err(fields.untranslatable("content")),
    });
    let content = content.collect::<Result<_, _>>()?;
    Ok(ToolResult { call: call.to_owned(), content, is_error: fields.flag("is_error")?.unwrap_or(false) })
}

fn image(fields: &mut Fields) -> Result<Image, Failure> {
    let mut source = fields.object("source")?.ok_or_else(|| fields.missing("source"))?;
    let read = match source.needed_text("type")?.as_str() {
        "base64" => {
            ImageSource::Data { media_type: source.needed_text("media_type")?, data: source.needed_text("data")? }
        }
        "url" => ImageSource::Url(source.needed_text("url")?),
        _ => return Err(source.untranslatable("type")),
    };
    source.finish()?;
    Ok(Image { source: read, detail: None })
}

fn tools(fields: &mut Fields) -> Result<Vec<ToolDefinition>, Failure> {
    let items = fields.list("tools")?.unwrap_or_default();
    let tools = items.into_iter().enumerate().map(|(index, item)| {
        let mut tool = Fields::of(item, &format!("tools.{index}"))?;
        tool.ignore(&["cache_control", "eager_input_streaming", "defer_loading", "input_examples"]);
        if let Some(kind) = tool.text("type")?
            && kind != "custom"
        {
            return Err(tool.untranslatable("type"));
        }
        let read = ToolDefinition {
            name: tool.needed_text("name")?,
            description: tool.text("description")?.unwrap_or_default(),
            parameters: JsonSchema(tool.take("input_schema").ok_or_else(|| tool.missing("input_schema"))?),
            strict: tool.flag("strict")?,
        };
        tool.finish()?;
        Ok(read)
    });
    tools.collect()
}

fn tool_choice(fields: &mut Fields) -> Result<(ToolChoice, Option<bool>), Failure> {
    let Some(mut choice) = fields.object("tool_choice")? else { return Ok((ToolChoice::Auto, None)) };
    let kind = choice.needed_text("type")?;
    let read = match kind.as_str() {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Any,
        "none" => ToolChoice::None,
        "tool" => ToolChoice::Named(choice.needed_text("name")?),
        _ => return Err(choice.untranslatable("type")),
    };
    let parallel = choice.flag("disable_parallel_tool_use")?.map(|is_disabled| !is_disabled);
    choice.finish()?;
    Ok((read, parallel))
}
