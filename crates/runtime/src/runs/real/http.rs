//! The tool `http`: one POST, with the step's key as `Idempotency-Key`. Only to URLs that the operator allows, and
//! without encryption: it is for the operator's own services on this machine or network, and for benchmarks.
//! Redirects are not followed.
//!
//! A keyed service must deduplicate by the key: its class promises that. So a keyed call may be sent again: over a
//! new connection if a kept one turns out to be closed, and later if the service is still busy with the same key. A
//! call that may be sent only once gets a new connection: on a kept one, a service that closed it can't be
//! distinguished from one that got the request and died.

use std::time::Duration;

use ::http::{Method, Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use saggar_engine::{Class, Report, RetryPolicy};
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::super::effects::Task;
use super::address::HttpAddress;
use super::{LiveSettings, cut, failed, returned};
use crate::sandboxes::random;

/// Maximum size of a response, in bytes.
const ANSWER_MAX: usize = 256 * 1024;
/// Retries of a service that is busy with the same key. The call's own time limit bounds them.
const BUSY_RETRY: RetryPolicy = RetryPolicy { attempts_max: u32::MAX, first_ms: 200, most_ms: 5000 };
/// How long a conflict is taken for the first attempt still being processed, if the service sends no Retry-After.
const IN_FLIGHT_MAX: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    url: String,
    #[serde(default)]
    body: serde_json::Value,
}

#[derive(Debug)]
pub(super) struct HttpTool {
    settings: LiveSettings,
    kept: Mutex<Option<Kept>>,
}

/// A connection, and the task that drives it.
#[derive(Debug)]
struct Kept {
    authority: String,
    sender: SendRequest<Full<Bytes>>,
    _connection: JoinSet<()>,
}

#[derive(Debug)]
struct Answer {
    status: StatusCode,
    body: String,
    retry_after: Option<RetryAfter>,
}

#[derive(Clone, Copy, Debug)]
enum RetryAfter {
    Seconds(u64),
    /// A date, or anything else: the delay is our choice.
    Later,
}

impl HttpTool {
    pub(super) fn new(settings: LiveSettings) -> Self {
        Self { settings, kept: Mutex::default() }
    }

    pub(super) async fn call(&self, task: &Task, arguments: &str) -> Report {
        let deadline = Instant::now() + task.timeout;
        let arguments: Arguments = match serde_json::from_str(arguments) {
            Ok(arguments) => arguments,
            Err(error) => return returned(format!("http needs \"url\", and may have \"body\" ({error})"), true),
        };
        let address = match HttpAddress::parse(&arguments.url) {
            Ok(address) => address,
            Err(error) => return returned(format!("the URL {:?} is not allowed: {error}", arguments.url), true),
        };
        if !self.settings.get().http_allowed.iter().any(|allowed| address.is_below(allowed)) {
            return returned(format!("the operator doesn't allow {address}: see the setting http_allowed"), true);
        }
        let body = Bytes::from(arguments.body.to_string());
        match timeout_at(deadline, self.until_answered(task, &address, body, deadline)).await {
            Ok(report) => report,
            Err(_) => Report::Unknown { reason: "the service did not respond in time".to_owned() },
        }
    }

    /// Repeats the request until there is a response to the call, and not only to one attempt.
    async fn until_answered(&self, task: &Task, address: &HttpAddress, body: Bytes, deadline: Instant) -> Report {
        let begun = Instant::now();
        let (mut tries, mut is_redo) = (0, task.attempt > 1);
        loop {
            let answer = match self.post(task, address, body.clone()).await {
                Ok(answer) => answer,
                Err(report) => return report,
            };
            tries += 1;
            let wait = BUSY_RETRY.wait_ms(tries, u64::from_ne_bytes(random())).unwrap_or(BUSY_RETRY.most_ms);
            let wait = match answer.retry_after {
                Some(RetryAfter::Seconds(seconds)) => Duration::from_millis(wait).max(Duration::from_secs(seconds)),
                Some(RetryAfter::Later) | None => Duration::from_millis(wait),
            };
            let is_soon = Instant::now() + wait < deadline;
            if !is_soon || !answer.is_of_a_busy_service(task.class, is_redo, begun.elapsed()) {
                return answer.report();
            }
            sleep(wait).await;
            is_redo = true;
        }
    }

    /// One request and its response, or a report without one.
    async fn post(&self, task: &Task, address: &HttpAddress, body: Bytes) -> Result<Answer, Report> {
        let authority = address.authority();
        let mut kept = self.kept.lock().await;
        let is_ready = |kept: &Kept| kept.authority == authority && kept.sender.is_ready();
        let mut reusable = kept.take().filter(|kept| may_repeat(task.class) && is_ready(kept));
        loop {
            let is_reused = reusable.is_some();
            let mut connection = match reusable.take() {
                Some(connection) => connection,
                // If it fails, nothing was sent.
                None => connect(address).await.map_err(|error| failed("connect", error.to_string(), true))?,
            };
            let mut request = Request::builder()
                .method(Method::POST)
                .uri(address.target())
                .header(header::HOST, &authority)
                .header(header::CONTENT_TYPE, "application/json")
                .header("idempotency-key", task.key.as_str());
            if !may_repeat(task.class) {
                request = request.header(header::CONNECTION, "close");
            }
            let request = request
                .body(Full::new(body.clone()))
                .map_err(|error| returned(format!("the request is invalid: {error}"), true))?;
            let response = match connection.sender.send_request(request).await {
                Ok(response) => response,
                // It is unknown whether the service got the request before it closed the connection, so it is
                // repeated with the same key.
                Err(_) if is_reused => continue,
                Err(error) if error.is_canceled() => {
                    return Err(failed("connection", "the connection was closed", true));
                }
                Err(error) => return Err(Report::Unknown { reason: format!("the response was lost: {error}") }),
            };
            let (status, retry_after) = (response.status(), RetryAfter::of(response.headers()));
            let mut answer = response.into_body();
            let mut bytes = Vec::new();
            while bytes.len() <= ANSWER_MAX
                && let Some(frame) = answer.frame().await
            {
                match frame {
                    Ok(frame) => bytes.extend_from_slice(&frame.into_data().unwrap_or_default()),
                    Err(error) => return Err(Report::Unknown { reason: format!("the response was lost: {error}") }),
                }
            }
            if bytes.len() <= ANSWER_MAX && may_repeat(task.class) {
                *kept = Some(connection);
            }
            return Ok(Answer { status, body: cut(bytes, ANSWER_MAX), retry_after });
        }
    }
}

impl Answer {
    /// Whether the response only says that the service is busy, and nothing about the call.
    fn is_of_a_busy_service(&self, class: Class, is_redo: bool, waited: Duration) -> bool {
        match self.status {
            _ if class != Class::Keyed => false,
            // For a first attempt a conflict is the result. For a later one the first may still be in progress.
            StatusCode::CONFLICT | StatusCode::TOO_EARLY => {
                is_redo && (self.retry_after.is_some() || waited < IN_FLIGHT_MAX)
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => self.retry_after.is_some(),
            _ => false,
        }
    }

    fn report(self) -> Report {
        let Self { status, body, .. } = self;
        match status {
            status if status.is_success() => returned(body, false),
            StatusCode::TOO_MANY_REQUESTS => failed("too_many_requests", body, true),
            status if status.is_server_error() => Report::Unknown { reason: format!("it answered {status}") },
            status if status.is_redirection() => {
                returned(format!("{status}; redirects are not followed: {body}"), true)
            }
            status => returned(format!("{status}: {body}"), true),
        }
    }
}

impl RetryAfter {
    fn of(headers: &::http::HeaderMap) -> Option<Self> {
        let value = headers.get(header::RETRY_AFTER)?.to_str().unwrap_or_default();
        Some(value.trim().parse().map_or(Self::Later, Self::Seconds))
    }
}

/// Whether sending it twice has the effect of sending it once.
fn may_repeat(class: Class) -> bool {
    match class {
        Class::Pure | Class::Model | Class::Keyed => true,
        Class::Probeable | Class::Once => false,
    }
}

async fn connect(address: &HttpAddress) -> std::io::Result<Kept> {
    let stream = TcpStream::connect(address.endpoint()).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
    let mut moving = JoinSet::new();
    moving.spawn(async move {
        // Errors are reported to the caller that waits for the response.
        let _ = connection.await;
    });
    Ok(Kept { authority: address.authority(), sender, _connection: moving })
}

#[cfg(test)]
mod tests;
