//! Parses requests and creates the problem if that fails, with the same wording for every endpoint.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::problem::Problem;

/// Maximum length of foreign text that is quoted.
const ECHO_CHARS_MAX: usize = 400;

/// Parses a JSON body. An empty body counts as an empty object, so that it may be left out.
pub fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    object(body).map_err(|why| {
        Problem::invalid(format!("the body is malformed: {why}"), "see the request's schema in /api/v1/openapi.json")
    })
}

/// Parses a JSON object; empty text counts as an empty object. The error may be shown to clients.
pub fn object<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let text = match text.trim_ascii() {
        b"" => b"{}",
        text => text,
    };
    // A list would be taken for the values of an object's fields, in their order.
    if !text.starts_with(b"{") {
        return Err("it is not an object".to_owned());
    }
    serde_json::from_slice(text).map_err(|error| short(&error.to_string()))
}

/// Parses the query of a URL, without its question mark.
pub fn query<T: DeserializeOwned>(query: &str) -> Result<T, Problem> {
    serde_html_form::from_str(query).map_err(|error| {
        Problem::invalid(
            format!("the query is malformed: {}", short(&error.to_string())),
            "see the parameters in /api/v1/openapi.json",
        )
    })
}

/// Formats a query, without its question mark. Only for our own flat types.
pub fn to_query<T: Serialize>(value: &T) -> String {
    serde_html_form::to_string(value).expect("our queries are flat, and their values text")
}

/// Serde's messages quote the input, which may be long.
fn short(text: &str) -> String {
    let mut characters = text.chars();
    let mut short: String = characters.by_ref().take(ECHO_CHARS_MAX).collect();
    if characters.next().is_some() {
        short.push('…');
    }
    short
}
