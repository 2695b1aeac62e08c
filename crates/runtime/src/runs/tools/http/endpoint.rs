//! Tools that an agent's definition declares: an HTTP endpoint, called by the rules, the resolver and the record of the
//! tool `http`. The model chooses the arguments and nothing else: not the host, the method or a header.

use ::http::{HeaderName, Method};
use bytes::Bytes;
use saggar_domain::{Code, HttpEndpoint, Problem};
use saggar_egress::outside::{HttpAddress, Security};
use saggar_engine::{Class, Report, ToolSpec};
use serde_json::{Map, Value};

use super::arguments::{Call, Payload, headers};
use super::{HttpTool, LiveSettings};
use crate::runs::effects::Task;
use crate::runs::tools::report::returned;
use crate::runs::tools::sandbox::RunSandbox;
use crate::runs::tools::tool::or_none;
use crate::runs::tools::{Exits, Tool};

/// Maximum length of a tool's name, as models' providers have it.
const NAME_LEN_MAX: usize = 64;
/// Maximum length of a description, in bytes.
const DESCRIPTION_LEN_MAX: usize = 4096;
/// Headers whose value is a credential.
const CREDENTIALS: [&str; 5] = ["authorization", "cookie", "proxy-authorization", "x-api-key", "x-goog-api-key"];
/// What the JSON type of an argument may be that becomes part of a URL.
const SCALARS: [&str; 4] = ["string", "integer", "number", "boolean"];

/// A declared tool, for one run.
#[derive(Debug)]
pub(in crate::runs) struct Endpoint {
    name: String,
    endpoint: HttpEndpoint,
    http: HttpTool,
}

impl Endpoint {
    /// `None` if the tool isn't a declared one.
    pub(in crate::runs) fn of(
        name: &str,
        tool: &ToolSpec,
        settings: LiveSettings,
        exits: std::sync::Arc<Exits>,
    ) -> Option<Self> {
        let endpoint = HttpEndpoint::clone(tool.endpoint.as_ref()?);
        Some(Self { name: name.to_owned(), endpoint, http: HttpTool::new(settings, exits, tool.egress.clone()) })
    }

    pub(in crate::runs) async fn call(&self, run: &RunSandbox, task: &Task, arguments: &str) -> Report {
        let mut call = match call(&self.name, &self.endpoint, arguments) {
            Ok(call) => call,
            Err(complaint) => return returned(complaint, true),
        };
        if let Some(name) = &self.endpoint.secret {
            call.credential = match run.credential(name).await {
                Ok(credential) => Some(credential),
                Err(report) => return report,
            };
        }
        self.http.make(task, call).await
    }
}

/// Checks a call's arguments. An error is for the model.
pub(in crate::runs) fn check_arguments(name: &str, endpoint: &HttpEndpoint, arguments: &str) -> Result<(), String> {
    read(name, endpoint, arguments).map(drop)
}

fn read(name: &str, endpoint: &HttpEndpoint, arguments: &str) -> Result<Map<String, Value>, String> {
    let invalid = |problem: String| format!("the arguments of {name} are invalid: {problem}");
    let value = serde_json::from_str(or_none(arguments)).map_err(|error| invalid(format!("not JSON ({error})")))?;
    endpoint.schema.check(&value).map_err(|mismatch| invalid(mismatch.to_string()))?;
    match value {
        Value::Object(arguments) => Ok(arguments),
        _ => Err(invalid("they are an object".to_owned())),
    }
}

/// The request of a call. An error is for the model.
fn call(name: &str, endpoint: &HttpEndpoint, arguments: &str) -> Result<Call, String> {
    let mut left = read(name, endpoint, arguments)?;
    let invalid = |what: &str, problem: &str| format!("the arguments of {name} are invalid: {what:?} {problem}");
    let mut url = String::new();
    for part in parts(&endpoint.url) {
        match part {
            UrlPart::Text(text) => url.push_str(text),
            UrlPart::Argument(argument) => {
                let value = left.remove(argument).ok_or_else(|| invalid(argument, "is missing"))?;
                match scalar(&value).filter(|text| !text.is_empty()) {
                    Some(text) => url.push_str(&encoded(&text)),
                    None => return Err(invalid(argument, "is a text, a number, true or false, and not empty")),
                }
            }
        }
    }
    let method = method(endpoint).ok_or_else(|| format!("{:?} is not a method", endpoint.method))?;
    let payload = if has_body(&method) {
        Payload::Json(Bytes::from(Value::Object(left).to_string()))
    } else {
        let mut mark = if url.contains('?') { '&' } else { '?' };
        for (argument, value) in left.iter().filter(|(_, value)| !value.is_null()) {
            let value = scalar(value).ok_or_else(|| invalid(argument, "is a text, a number, true or false"))?;
            url.push_str(&format!("{mark}{}={}", encoded(argument), encoded(&value)));
            mark = '&';
        }
        Payload::None
    };
    // An argument may be a dot segment, or have a slash in it: what could mean another path is refused there.
    let address = HttpAddress::parse(&url).map_err(|error| {
        format!("the arguments of {name} are invalid: the URL that they lead to is not allowed: {error}")
    })?;
    let fixed = endpoint.headers.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect();
    let key_header = endpoint.idempotency_header.as_deref();
    let key_header = key_header.map(|name| HeaderName::from_bytes(name.as_bytes())).transpose();
    let key_header = key_header.map_err(|_| "its idempotency header is not a header".to_owned())?;
    Ok(Call { address, method, headers: headers(&fixed)?, payload, key_header, credential: None })
}

fn method(endpoint: &HttpEndpoint) -> Option<Method> {
    Method::from_bytes(endpoint.method.as_bytes()).ok()
}

fn has_body(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::DELETE | Method::OPTIONS)
}

enum UrlPart<'a> {
    Text(&'a str),
    /// `{name}`.
    Argument(&'a str),
}

fn parts(url: &str) -> Vec<UrlPart<'_>> {
    let mut parts = Vec::new();
    let mut rest = url;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((argument, after)) = after.split_once('}') else { break };
        parts.extend([UrlPart::Text(before), UrlPart::Argument(argument)]);
        rest = after;
    }
    parts.push(UrlPart::Text(rest));
    parts
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Percent-encoded, but for what no part of a URL gives a meaning.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => encoded.push(char::from(byte)),
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

/// The class of an endpoint whose author says nothing: what only reads may be repeated, and anything else may not.
pub(in crate::runs) fn default_class(endpoint: &HttpEndpoint) -> Class {
    match endpoint.method.as_str() {
        "GET" | "HEAD" | "OPTIONS" => Class::Pure,
        _ if endpoint.idempotency_header.is_some() => Class::Keyed,
        _ => Class::Once,
    }
}

/// Refuses a declaration that could only fail later, or that contradicts itself.
pub(in crate::runs) fn check(name: &str, tool: &ToolSpec, endpoint: &HttpEndpoint) -> Result<(), Problem> {
    let wrong = |field: &str, message: &str, help: &str| {
        Err(Problem::new(Code::InvalidValue, format!("tools.{name}{field}: {message}"), help))
    };
    if Tool::find(name).is_some() {
        return wrong("", "it has the name of a built-in tool, and declares another", "give it a name of its own");
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !(1..=NAME_LEN_MAX).contains(&name.len()) || !name.bytes().all(is_name) {
        return wrong("", "models don't accept this name", "use 1 to 64 letters, digits, `_` and `-`");
    }
    if !(1..=DESCRIPTION_LEN_MAX).contains(&endpoint.description.len()) {
        return wrong(".description", "it has no text, or too much", "say in a few sentences what the tool does");
    }
    let Some(method) = method(endpoint) else {
        return wrong(".method", "it is not a method", "use GET, POST, PUT, PATCH or DELETE");
    };
    if ["CONNECT", "TRACE", "TRACK"].contains(&method.as_str())
        || method.as_str().bytes().any(|b| b.is_ascii_lowercase())
    {
        return wrong(".method", "this method can't be called", "use GET, POST, PUT, PATCH or DELETE");
    }
    if endpoint.schema.as_value()["type"] != "object" {
        return wrong(".schema", "it doesn't describe an object", "begin it with type = \"object\"");
    }
    check_url(name, endpoint, &method)?;
    for (header, value) in &endpoint.headers {
        if CREDENTIALS.contains(&header.to_ascii_lowercase().as_str()) {
            let help = "store the value with `saggar secret set`, and name it here: secret = \"NAME\"";
            return wrong(".headers", &format!("{header} would be a credential in the open"), help);
        }
        let one = [(header.clone(), Value::from(value.as_str()))].into_iter().collect();
        if let Err(problem) = headers(&one) {
            return wrong(".headers", &problem, "correct it, or leave it out");
        }
    }
    if let Some(header) = &endpoint.idempotency_header {
        let is_taken = endpoint.headers.keys().any(|other| other.eq_ignore_ascii_case(header));
        let is_credential = CREDENTIALS.contains(&header.to_ascii_lowercase().as_str());
        let value = [(header.clone(), Value::from("k"))].into_iter().collect();
        let is_own = header.eq_ignore_ascii_case("idempotency-key");
        if is_taken || is_credential || (!is_own && headers(&value).is_err()) {
            return wrong(".idempotency_header", "the key of a call can't go there", "use \"Idempotency-Key\"");
        }
    }
    match tool.class {
        Class::Keyed if endpoint.idempotency_header.is_none() => wrong(
            ".class",
            "a call of the class `keyed` is repeated with its key, and there is no header for the key",
            "set idempotency_header to the header by which the service recognises a repeated request, or use the class `once`",
        ),
        Class::Probeable => {
            wrong(".class", "an endpoint can't be asked whether a call was done", "use `pure`, `keyed` or `once`")
        }
        Class::Pure | Class::Keyed | Class::Once | Class::Model => Ok(()),
    }
}

/// The URL, and the arguments that become a part of it.
fn check_url(name: &str, endpoint: &HttpEndpoint, method: &Method) -> Result<(), Problem> {
    let wrong = |message: String, help: &str| {
        Err(Problem::new(Code::InvalidValue, format!("tools.{name}.url: {message}"), help.to_owned()))
    };
    let path = endpoint.url.find("://").and_then(|at| Some(at + 3 + endpoint.url[at + 3..].find('/')?));
    let (before, after) = endpoint.url.split_at(path.unwrap_or(endpoint.url.len()));
    let query = after.find('?').map_or("", |at| &after[at..]);
    if [before, query].iter().any(|part| part.contains(['{', '}'])) {
        let help = "put `{NAME}` into the path, and fix the host: the model must not choose where a call goes";
        return wrong("only its path may have arguments".to_owned(), help);
    }
    let filled: String = parts(&endpoint.url)
        .iter()
        .map(|part| match part {
            UrlPart::Text(text) => text,
            UrlPart::Argument(_) => "x",
        })
        .collect();
    let address = match HttpAddress::parse(&filled) {
        Ok(address) => address,
        Err(error) => return wrong(error.to_string(), "write it like https://api.example.com/v1/items/{id}"),
    };
    if let (Some(secret), Security::Plain) = (&endpoint.secret, address.security()) {
        let help = "use https://, or leave `secret` out";
        return wrong(format!("the secret {secret} would be sent unencrypted"), help);
    }
    let schema = endpoint.schema.as_value();
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let types = |argument: &str| -> Vec<&str> {
        match &schema["properties"][argument]["type"] {
            Value::String(one) => vec![one],
            Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    };
    let mut in_path = Vec::new();
    for part in parts(&endpoint.url) {
        let UrlPart::Argument(argument) = part else { continue };
        let types = types(argument);
        if !required.contains(&argument) || types.is_empty() || !types.iter().all(|kind| SCALARS.contains(kind)) {
            let help = "describe it in `schema`, name it in `required`, and give it the type string, integer, number or boolean";
            return wrong(format!("{{{argument}}} is not a required argument that fits into a path"), help);
        }
        in_path.push(argument);
    }
    if !has_body(method) {
        let is_scalar = |kind: &&str| SCALARS.contains(kind) || *kind == "null";
        let is_long = |argument: &&str| {
            let types = types(argument);
            !in_path.contains(argument) && (types.is_empty() || !types.iter().all(is_scalar))
        };
        if let Some(argument) = endpoint.schema.properties().find(is_long) {
            let help = "give it the type string, integer, number or boolean, or use a method with a body, such as POST";
            return wrong(format!("a {method} request has no place for the argument {argument:?}"), help);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
