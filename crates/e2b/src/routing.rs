//! Recognises requests for the inside of a sandbox by E2B's conventions: `{port}-{id}.DOMAIN`, or two headers.

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::header::HOST;
use http::uri::PathAndQuery;
use saggar_api::Code as ApiCode;
use saggar_domain::SandboxId;
use saggar_http::Refusal;
use saggar_http::ports::{self, Destination, NamedBy};

use super::envd;
use super::failure::{CallFailure, Code};
use super::id;
use super::interpreter;
use crate::state::Shared;

/// The port that stands for the agent inside. No program of a sandbox gets requests for it.
const ENVD_PORT: u16 = 49983;
/// The port that stands for the code interpreter. The same goes for it.
pub(crate) const INTERPRETER_PORT: u16 = 49999;
const SANDBOX: &str = "e2b-sandbox-id";
const PORT: &str = "e2b-sandbox-port";
const TOKEN: &str = "x-access-token";

/// The target of a request.
#[derive(Debug)]
pub enum Aim {
    /// The agent inside.
    Agent(SandboxId),
    /// The code interpreter.
    Interpreter(SandboxId),
    /// A port of the sandbox.
    Port(Destination),
    /// An invalid target.
    Nothing(String),
}

/// The target by E2B's conventions; `None` if the request doesn't follow them.
pub fn aim(server: &Shared, request: &Request) -> Option<Aim> {
    let text = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or("?").to_owned());
    let host = text(HOST.as_str());
    let (port, id, named_by) = match host.as_deref().and_then(|host| in_host(host, &server.settings.domain)) {
        Some((port, id)) => (port, id, NamedBy::Host),
        None => (text(PORT).unwrap_or_else(|| ENVD_PORT.to_string()), text(SANDBOX)?, NamedBy::Headers),
    };
    let port = port.parse::<u16>().ok().filter(|port| *port > 0);
    Some(match (id::long(&id), port) {
        (Some(id), Some(ENVD_PORT)) => Aim::Agent(id),
        (Some(id), Some(INTERPRETER_PORT)) => Aim::Interpreter(id),
        (Some(id), Some(port)) => {
            let path = request.uri().path_and_query().cloned();
            let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
            Aim::Port(Destination { id, port, path, named_by })
        }
        (None, _) | (_, None) => Aim::Nothing(id),
    })
}

/// The port and the id in a host name; our own ids begin with `sbx`, and are not handled here.
fn in_host(host: &str, domain: &str) -> Option<(String, String)> {
    let host = host.to_ascii_lowercase();
    let (port, id) = saggar_http::host::name(&host).strip_suffix(domain)?.strip_suffix('.')?.split_once('-')?;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    (is_port && !id.starts_with("sbx")).then(|| (port.to_owned(), id.to_owned()))
}

pub async fn serve(server: Shared, request: Request, aim: Aim) -> Response {
    match aim {
        Aim::Agent(id) => envd::serve(server, request, id).await,
        Aim::Interpreter(id) => interpreter::serve(server, request, id).await,
        Aim::Port(destination) => port(server, request, destination).await,
        Aim::Nothing(id) => CallFailure::gone(&id).plain(),
    }
}

async fn port(server: Shared, mut request: Request, destination: Destination) -> Response {
    let (id, port) = (destination.id.clone(), destination.port);
    let headers = request.headers_mut();
    // Clients send it for any port, and programs inside must not get it.
    let is_ours = headers
        .get(TOKEN)
        .is_some_and(|token| server.sandboxes.is_inside_token(&id, token.to_str().unwrap_or_default()));
    if is_ours {
        headers.remove(TOKEN);
    }
    headers.remove(SANDBOX);
    headers.remove(PORT);
    if server.sandboxes.project_of(&id).is_none() {
        return CallFailure::gone(id::short(&id)).plain();
    }
    let mut response = ports::forward(server.gate.clone(), request, destination).await;
    match response.extensions_mut().remove::<Refusal>() {
        Some(refusal) => in_their_words(refusal, &id, port),
        None => response,
    }
}

fn in_their_words(refusal: Refusal, id: &SandboxId, port: u16) -> Response {
    let id = id::short(id).to_owned();
    match refusal.0.code {
        ApiCode::PortRefused => CallFailure::PortClosed { id, port }.plain(),
        ApiCode::NotFound | ApiCode::SandboxEnded => CallFailure::gone(&id).plain(),
        ApiCode::SandboxPaused => CallFailure::Gone { id, why: ": it is paused; connecting to it resumes it" }.plain(),
        ApiCode::Unauthorized => CallFailure::new(
            Code::PermissionDenied,
            "the sandbox's ports need its traffic access token: send it as 'e2b-traffic-access-token'",
        )
        .plain(),
        _ => refusal.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_names_a_port_and_a_sandbox() {
        let named = |host: &str| in_host(host, "example.com");
        assert_eq!(named("49983-abc.example.com"), Some(("49983".to_owned(), "abc".to_owned())));
        assert_eq!(named("80-ABC.Example.com:7420"), Some(("80".to_owned(), "abc".to_owned())));
        for other in [
            "80-sbx-abc.example.com",
            "api.example.com",
            "x-abc.example.com",
            "80-abc.example.org",
            "127.0.0.1:80",
            "-abc.example.com",
        ] {
            assert_eq!(named(other), None, "{other}");
        }
    }
}
