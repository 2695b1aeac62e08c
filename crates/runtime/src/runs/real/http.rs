//! The tool `http`: one POST, with the step's key as `Idempotency-Key`. Only to where the operator allows, and never encrypted: it is for
//! services of the operator's own on this machine or network, and for measuring.
//!
//! Whoever answers must know the key: that is what its class says. A connection is kept for the next call of the same run.

use std::sync::Arc;

use ::http::{Method, Request, StatusCode, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use saggar_engine::Report;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::super::effects::Task;
use super::{RunSettings, cut, failed, returned};

/// Most bytes of an answer.
const ANSWER_MAX: usize = 256 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    url: String,
    #[serde(default)]
    body: serde_json::Value,
}

/// Calls services by HTTP.
#[derive(Debug)]
pub(super) struct HttpTool {
    settings: Arc<RunSettings>,
    kept: Mutex<Option<Kept>>,
}

/// A connection, and the task that moves its bytes.
#[derive(Debug)]
struct Kept {
    authority: String,
    sender: SendRequest<Full<Bytes>>,
    _connection: JoinSet<()>,
}

impl HttpTool {
    pub(super) fn new(settings: Arc<RunSettings>) -> Self {
        Self { settings, kept: Mutex::default() }
    }

    pub(super) async fn call(&self, task: &Task, arguments: &str) -> Report {
        let arguments: Arguments = match serde_json::from_str(arguments) {
            Ok(arguments) => arguments,
            Err(error) => return returned(format!("http needs \"url\", and may have \"body\" ({error})"), true),
        };
        let Some(uri) = self.allowed(&arguments.url) else {
            return returned(format!("the operator doesn't allow {:?}", arguments.url), true);
        };
        match tokio::time::timeout(task.timeout, self.post(task, &uri, arguments.body.to_string())).await {
            Ok(report) => report,
            Err(_) => Report::Unknown { reason: "no answer came in time".to_owned() },
        }
    }

    fn allowed(&self, url: &str) -> Option<Uri> {
        let uri: Uri = url.parse().ok()?;
        let is_below = |allowed: &String| {
            let Ok(allowed) = allowed.parse::<Uri>() else { return false };
            let is_path = uri.path() == allowed.path()
                || uri.path().starts_with(&format!("{}/", allowed.path().trim_end_matches('/')));
            (uri.scheme_str(), uri.authority()) == (allowed.scheme_str(), allowed.authority()) && is_path
        };
        let is_allowed = uri.scheme_str() == Some("http") && self.settings.http_allowed.iter().any(is_below);
        is_allowed.then_some(uri)
    }

    async fn post(&self, task: &Task, uri: &Uri, body: String) -> Report {
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        let mut kept = self.kept.lock().await;
        let reusable = kept.take().filter(|kept| kept.authority == authority && kept.sender.is_ready());
        let mut connection = match reusable {
            Some(connection) => connection,
            None => match connect(uri, authority.clone()).await {
                Ok(connection) => connection,
                // Nothing was sent.
                Err(error) => return failed("connect", error.to_string(), true),
            },
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(::http::header::HOST, &authority)
            .header(::http::header::CONTENT_TYPE, "application/json")
            .header("idempotency-key", task.key.as_str())
            .body(Full::new(Bytes::from(body)));
        let request = match request {
            Ok(request) => request,
            Err(error) => return returned(format!("that can't be asked: {error}"), true),
        };
        let response = match connection.sender.send_request(request).await {
            Ok(response) => response,
            Err(error) if error.is_canceled() => return failed("connection", "the connection was closed", true),
            Err(error) => return Report::Unknown { reason: format!("the answer was lost: {error}") },
        };
        let status = response.status();
        let mut answer = response.into_body();
        let mut bytes = Vec::new();
        while bytes.len() <= ANSWER_MAX
            && let Some(frame) = answer.frame().await
        {
            match frame {
                Ok(frame) => bytes.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Err(error) => return Report::Unknown { reason: format!("the answer was lost: {error}") },
            }
        }
        if bytes.len() <= ANSWER_MAX {
            *kept = Some(connection);
        }
        let body = cut(bytes, ANSWER_MAX);
        match status {
            status if status.is_success() => returned(body, false),
            StatusCode::TOO_MANY_REQUESTS => failed("too_many_requests", body, true),
            status if status.is_server_error() => Report::Unknown { reason: format!("it answered {status}") },
            status => returned(format!("{status}: {body}"), true),
        }
    }
}

async fn connect(uri: &Uri, authority: String) -> std::io::Result<Kept> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
    let mut moving = JoinSet::new();
    moving.spawn(async move {
        // What goes wrong is told to whoever waits for the answer.
        let _ = connection.await;
    });
    Ok(Kept { authority, sender, _connection: moving })
}
