//! Requests read from what was sent, and the problem when they can't be: the same words for every endpoint.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::problem::Problem;

/// Longest piece of someone else's text that is told back.
const ECHO_CHARS_MAX: usize = 400;

/// Reads a JSON body. An empty body is an empty object, so that a request that needs nothing can say nothing.
pub fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    object(body).map_err(|why| {
        Problem::invalid(format!("the body can't be read: {why}"), "see the request's schema in /api/v1/openapi.json")
    })
}

/// Reads an object from JSON; nothing at all is an empty one. Why not, is said in words that may be told.
pub fn object<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let text = match text.trim_ascii() {
        b"" => b"{}",
        text => text,
    };
    // A list would be taken for the values of an object's fields, in their order.
    if !text.starts_with(b"{") {
        return Err("it is no object".to_owned());
    }
    serde_json::from_slice(text).map_err(|error| short(&error.to_string()))
}

/// Reads the query of a URL, without its question mark.
pub fn query<T: DeserializeOwned>(query: &str) -> Result<T, Problem> {
    serde_html_form::from_str(query).map_err(|error| {
        Problem::invalid(
            format!("the query can't be read: {}", short(&error.to_string())),
            "see the parameters in /api/v1/openapi.json",
        )
    })
}

/// Writes a query, without its question mark. Only for our own flat types.
pub fn to_query<T: Serialize>(value: &T) -> String {
    serde_html_form::to_string(value).expect("our queries are flat, and their values text")
}

/// What serde says quotes what was sent, which may be long.
fn short(text: &str) -> String {
    let mut characters = text.chars();
    let mut short: String = characters.by_ref().take(ECHO_CHARS_MAX).collect();
    if characters.next().is_some() {
        short.push('…');
    }
    short
}
