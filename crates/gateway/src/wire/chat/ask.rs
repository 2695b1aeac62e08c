//! Reads chat completions requests of clients.

use saggar_domain::model::{
    Image, ImageDetail, ImageSource, JsonSchema, Message, Millionths, ModelRequest, Origin, OutputFormat, Part,
    ReasoningEffort, ResultPart, Role, RouteName, Sampling, ToolCall, ToolChoice, ToolDefinition, ToolResult,
};
use serde_json::Value;

use crate::failure::Failure;
use crate::fields::Fields;
use crate::wire::carried;

/// Fields that don't change what is answered.
const IGNORED: &[&str] = &[
    "stream",
    "stream_options",
    "user",
    "metadata",
    "store",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
];

pub(crate) fn read(body: Value, _origin: &Origin) -> Result<ModelRequest, Failure> {
    let mut fields = Fields::of(body, "")?;
    fields.ignore(IGNORED);
    let route = route(&mut fields)?;
    let items = fields.list("messages")?.ok_or_else(|| fields.missing("messages"))?;
    let mut messages = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        message(Fields::of(item, &format!("messages.{index}"))?, &mut messages)?;
    }
    let mut request = ModelRequest::new(route, messages);
    request.tools = tools(&mut fields)?;
    request.tool_choice = tool_choice(&mut fields)?;
    request.parallel_calls = fields.flag("parallel_tool_calls")?;
    request.sampling = sampling(&mut fields)?;
    request.output = output(&mut fields)?;
    // Values that ask for what happens anyway.
    for (name, plain) in
        [("n", Value::from(1)), ("logprobs", Value::from(false)), ("service_tier", Value::from("auto"))]
    {
        if let Some(value) = fields.take(name)
            && value != plain
            && value != "default"
        {
            return Err(fields.untranslatable(name));
        }
    }
    fields.finish()?;
    Ok(request)
}

pub(crate) fn route(fields: &mut Fields) -> Result<RouteName, Failure> {
    let name = fields.needed_text("model")?;
    name.parse().map_err(|complaint: String| Failure::invalid(complaint).about("model"))
}

fn message(mut fields: Fields, messages: &mut Vec<Message>) -> Result<(), Failure> {
    let role = fields.needed_text("role")?;
    fields.ignore(&["name"]);
    let message = match role.as_str() {
        "system" | "developer" => Message::new(Role::System, parts(&mut fields, "content")?),
        "user" => Message::new(Role::User, parts(&mut fields, "content")?),
        "assistant" => Message::new(Role::Assistant, assistant(&mut fields)?),
        "tool" => {
            let id = fields.needed_text("tool_call_id")?;
            let (call, _) = carried::split(&id);
            let content = parts(&mut fields, "content")?;
            let content = content.into_iter().map(|part| match part {
                Part::Text { text, .. } => Ok(ResultPart::Text { text }),
                Part::Image(image) => Ok(ResultPart::Image(image)),
                _ => Err(fields.untranslatable("content")),
            });
            let result =
                ToolResult { call: call.to_owned(), content: content.collect::<Result<_, _>>()?, is_error: false };
            fields.finish()?;
            // Results of one turn belong into one message.
            if let Some(Message { role: Role::User, parts }) = messages.last_mut()
                && parts.iter().all(|part| matches!(part, Part::ToolResult(_)))
            {
                parts.push(Part::ToolResult(result));
            } else {
                messages.push(Message::new(Role::User, vec![Part::ToolResult(result)]));
            }
            return Ok(());
        }
        other => return Err(Failure::invalid(format!("{:?} is not a role", other)).about(fields.at("role"))),
    };
    fields.finish()?;
    messages.push(message);
    Ok(())
}

fn assistant(fields: &mut Fields) -> Result<Vec<Part>, Failure> {
    // What clients of other servers keep of a reply.
    fields.ignore(&["annotations", "audio", "reasoning", "reasoning_content", "reasoning_details"]);
    let mut all = parts(fields, "content")?;
    if let Some(text) = fields.text("refusal")? {
        all.push(Part::Refusal { text });
    }
    for (index, call) in fields.list("tool_calls")?.unwrap_or_default().into_iter().enumerate() {
        let mut call = Fields::of(call, &fields.at(&format!("tool_calls.{index}")))?;
        call.ignore(&["index"]);
        if let Some(kind) = call.text("type")?
            && kind != "function"
        {
            return Err(call.untranslatable("type"));
        }
        let id = call.needed_text("id")?;
        let mut function = call.object("function")?.ok_or_else(|| call.missing("function"))?;
        let (name, arguments) = (function.needed_text("name")?, function.text("arguments")?.unwrap_or_default());
        function.finish()?;
        call.finish()?;
        let (id, verbatim) = carried::split(&id);
        all.push(Part::ToolCall(ToolCall { id: id.to_owned(), name, arguments, verbatim }));
    }
    Ok(all)
}

fn parts(fields: &mut Fields, name: &str) -> Result<Vec<Part>, Failure> {
    let items = match fields.take(name) {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => return Ok(vec![Part::text(text)]),
        Some(Value::Array(items)) => items,
        Some(_) => {
            return Err(
                Failure::invalid(format!("{} is neither text nor a list", fields.at(name))).about(fields.at(name))
            );
        }
    };
    let parts = items.into_iter().enumerate().map(|(index, item)| {
        let mut part = Fields::of(item, &fields.at(&format!("{name}.{index}")))?;
        part.ignore(&["prompt_cache_breakpoint"]);
        let kind = part.needed_text("type")?;
        let read = match kind.as_str() {
            "text" => Part::text(part.needed_text("text")?),
            "refusal" => Part::Refusal { text: part.needed_text("refusal")? },
            "image_url" => {
                let mut image = part.object("image_url")?.ok_or_else(|| part.missing("image_url"))?;
                let url = image.needed_text("url")?;
                let detail = detail(&mut image)?;
                image.finish()?;
                Part::Image(Image { source: image_source(&url), detail })
            }
            _ => return Err(part.untranslatable("type")),
        };
        part.finish()?;
        Ok(read)
    });
    parts.collect()
}

pub(crate) fn detail(fields: &mut Fields) -> Result<Option<ImageDetail>, Failure> {
    Ok(match fields.text("detail")?.as_deref() {
        None => None,
        Some("auto") => Some(ImageDetail::Auto),
        Some("low") => Some(ImageDetail::Low),
        Some("high") => Some(ImageDetail::High),
        Some(_) => return Err(fields.untranslatable("detail")),
    })
}

/// A URL, or the data that is in it.
pub(crate) fn image_source(url: &str) -> ImageSource {
    let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    match data {
        Some((media_type, data)) => ImageSource::Data { media_type: media_type.to_owned(), data: data.to_owned() },
        None => ImageSource::Url(url.to_owned()),
    }
}

fn tools(fields: &mut Fields) -> Result<Vec<ToolDefinition>, Failure> {
    let items = fields.list("tools")?.unwrap_or_default();
    let tools = items.into_iter().enumerate().map(|(index, item)| {
        let mut tool = Fields::of(item, &format!("tools.{index}"))?;
        if tool.needed_text("type")? != "function" {
            return Err(tool.untranslatable("type"));
        }
        let function = tool.object("function")?.ok_or_else(|| tool.missing("function"))?;
        tool.finish()?;
        definition(function)
    });
    tools.collect()
}

pub(crate) fn definition(mut function: Fields) -> Result<ToolDefinition, Failure> {
    let name = function.needed_text("name")?;
    let description = function.text("description")?.unwrap_or_default();
    let empty = || serde_json::json!({"type": "object", "properties": {}});
    let parameters = JsonSchema(function.take("parameters").unwrap_or_else(empty));
    let strict = function.flag("strict")?;
    function.finish()?;
    Ok(ToolDefinition { name, description, parameters, strict })
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
        Some(choice) => match choice["function"]["name"].as_str() {
            Some(name) => Ok(ToolChoice::Named(name.to_owned())),
            None => Err(fields.untranslatable("tool_choice")),
        },
    }
}

fn sampling(fields: &mut Fields) -> Result<Sampling, Failure> {
    let max_tokens = fields.whole("max_completion_tokens")?;
    let older = fields.whole("max_tokens")?;
    Ok(Sampling {
        max_tokens: max_tokens.or(older),
        temperature: millionths(fields, "temperature")?,
        top_p: millionths(fields, "top_p")?,
        top_k: None,
        presence_penalty: millionths(fields, "presence_penalty")?,
        frequency_penalty: millionths(fields, "frequency_penalty")?,
        seed: fields.take("seed").and_then(|seed| seed.as_i64()),
        stop: stop(fields)?,
        reasoning: effort(fields.text("reasoning_effort")?.as_deref(), fields, "reasoning_effort")?,
        reasoning_tokens_max: None,
    })
}

pub(crate) fn effort(text: Option<&str>, fields: &Fields, name: &str) -> Result<Option<ReasoningEffort>, Failure> {
    text.map(|text| ReasoningEffort::parse(text).ok_or_else(|| fields.untranslatable(name))).transpose()
}

pub(crate) fn millionths(fields: &mut Fields, name: &str) -> Result<Option<Millionths>, Failure> {
    let number = fields.number(name)?;
    number.map(|number| Millionths::from_f64(number).ok_or_else(|| fields.untranslatable(name))).transpose()
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, Failure> {
    match fields.take("stop") {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Array(items)) => items
            .into_iter()
            .map(|item| item.as_str().map(str::to_owned).ok_or_else(|| fields.untranslatable("stop")))
            .collect(),
        Some(_) => Err(fields.untranslatable("stop")),
    }
}

fn output(fields: &mut Fields) -> Result<OutputFormat, Failure> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(OutputFormat::Text) };
    let kind = format.needed_text("type")?;
    let output = match kind.as_str() {
        "text" => OutputFormat::Text,
        "json_object" => OutputFormat::Json,
        "json_schema" => schema(format.object("json_schema")?.ok_or_else(|| format.missing("json_schema"))?)?,
        _ => return Err(format.untranslatable("type")),
    };
    format.finish()?;
    Ok(output)
}

pub(crate) fn schema(mut fields: Fields) -> Result<OutputFormat, Failure> {
    fields.ignore(&["type", "description"]);
    let name = fields.text("name")?.unwrap_or_else(|| "answer".to_owned());
    let schema = JsonSchema(fields.take("schema").ok_or_else(|| fields.missing("schema"))?);
    let strict = fields.flag("strict")?;
    fields.finish()?;
    Ok(OutputFormat::Schema { name, schema, strict })
}
