//! Forwards requests to ports of sandboxes: addressed by path, by headers, or by host name.
//!
//! The program inside gets the request unchanged, except for connection headers and credentials, which were only
//! meant for us. Responses are treated the same way. A page that is reached by path shares our origin, so the browser
//! is told to isolate it.

mod forward;
mod headers;
mod token;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::header::HOST;
use http::uri::PathAndQuery;
use saggar_api::{Code, route};
use saggar_domain::SandboxId;

use crate::gate::{Gate, Shared};
use crate::refusal::Refusal;
use crate::request::extract::{path_sandbox, path_text};
use crate::request::host;

pub use forward::forward;
pub(crate) use token::shown_token;

/// The target of a request.
#[derive(Debug)]
pub struct Destination {
    pub id: SandboxId,
    pub port: u16,
    /// The path inside, and the query.
    pub path: PathAndQuery,
    pub named_by: NamedBy,
}

/// How a request names its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// By the path, which begins with this.
    Path(String),
    Headers,
    /// By the host name.
    Host,
}

/// A request whose path names a port.
pub async fn by_path(State(server): State<Shared>, request: Request) -> Response {
    match destination(request).await {
        Ok((request, destination)) => forward(server, request, destination).await,
        Err(refusal) => refusal.into_response(),
    }
}

async fn destination(request: Request) -> Result<(Request, Destination), Refusal> {
    let (mut parts, body) = request.into_parts();
    let id = path_sandbox(&mut parts).await?;
    let text = path_text(&mut parts, "port").await.unwrap_or_default();
    let port = port_number(&text)?;
    // Uses the raw text of the path, because decoding the rest is up to the program inside.
    let path = parts.uri.path();
    let prefix_len = path.match_indices('/').nth(6).map_or(path.len(), |(at, _)| at);
    let (prefix, rest) = path.split_at(prefix_len);
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let rest = if rest.is_empty() { "/" } else { rest };
    let inside =
        PathAndQuery::try_from(format!("{rest}{query}")).map_err(|_| Refusal::invalid("the path is invalid", ""))?;
    let destination = Destination { id, port, path: inside, named_by: NamedBy::Path(prefix.to_owned()) };
    Ok((Request::from_parts(parts, body), destination))
}

/// The target by the headers or the host name; `None` if the request is for us.
pub fn named_by_headers(server: &Gate, request: &Request) -> Result<Option<Destination>, Refusal> {
    let inside = || request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let text = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or("?").to_owned());
    match (text(route::header::SANDBOX), text(route::header::PORT)) {
        (None, None) => {}
        (Some(id), Some(port)) => {
            let port = port_number(&port)?;
            let id = SandboxId::parse(&id).ok_or_else(|| Refusal::not_found("sandbox", &id))?;
            return Ok(Some(Destination { id, port, path: inside(), named_by: NamedBy::Headers }));
        }
        (Some(_), None) | (None, Some(_)) => {
            return Err(Refusal::invalid(
                "Saggar-Sandbox and Saggar-Port must be sent together, and one is missing",
                "send both",
            ));
        }
    }
    let host = text(HOST.as_str()).unwrap_or_default().to_ascii_lowercase();
    let label = host::name(&host).strip_suffix(&server.settings.domain).and_then(|name| name.strip_suffix('.'));
    let Some((port, id)) = label.and_then(|label| label.split_once('-')) else { return Ok(None) };
    if !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    let port = port_number(port)?;
    // Strictly, host names have no underscores, though they are common.
    let id = id.replacen("sbx-", "sbx_", 1);
    let id = SandboxId::parse(&id).ok_or_else(|| Refusal::not_found("sandbox", &id))?;
    Ok(Some(Destination { id, port, path: inside(), named_by: NamedBy::Host }))
}

fn port_number(text: &str) -> Result<u16, Refusal> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let port = if is_number { text.parse().ok().filter(|port| *port > 0) } else { None };
    port.ok_or_else(|| Refusal::new(Code::NotFound, "invalid port", "use a port from 1 to 65535"))
}
