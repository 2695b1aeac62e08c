//! The tool `http`: one request, with the step's key as `Idempotency-Key`. Only where the operator's rules and the agent's allow
//! it, through the resolver, the checked dial and the strict TLS of sandboxes. Each request is decided before anything is dialled,
//! and the decision is part of the result. Redirects are not followed.
//!
//! A keyed service must deduplicate by the key: its class promises that. So a keyed call may be sent again: over a
//! new connection if a kept one turns out to be closed, and later if the service is still busy with the same key. A
//! call that may be sent only once gets a new connection: on a kept one, a service that closed it can't be
//! distinguished from one that got the request and died.

mod allowed;
mod arguments;
mod endpoint;
mod exits;
mod record;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ::http::{Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use saggar_domain::net::{EgressDraft, OVERRIDE_HEADERS, Refusal, Rules};
use saggar_egress::outside::{ConnectError, HttpAddress, Security};
use saggar_egress::secret::Credential;
use saggar_engine::{AgentSpec, Class, Report, RetryPolicy};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use super::hands::{Hands, LiveSettings};
use super::report::{cut, failed, returned};
use super::tool::{Needs, Performer, Performing, Tool};
use crate::runs::effects::Task;
use crate::sandboxes::random;
use allowed::{Allowed, decide};
use arguments::{Call, Payload};
use record::Record;

pub use allowed::HttpRule;
#[cfg(test)]
pub(super) use arguments::Arguments;
pub(in crate::runs) use endpoint::{Endpoint, check as check_endpoint, check_arguments, default_class};
pub(crate) use exits::Exits;

/// Maximum size of a response, in bytes.
const ANSWER_MAX: usize = 256 * 1024;
/// Retries of a service that is busy with the same key. The call's own time limit bounds them.
const BUSY_RETRY: RetryPolicy = RetryPolicy { attempts_max: u32::MAX, first_ms: 200, most_ms: 5000 };
/// How long a conflict is taken for the first attempt still being processed, if the service sends no Retry-After.
const IN_FLIGHT_MAX: Duration = Duration::from_secs(60);

/// How long a connection may take.
const CONNECT_TIME: Duration = Duration::from_secs(30);
/// The longest delay that a service can ask for, in seconds: none is added to a clock that can't count it.
const RETRY_AFTER_MAX: u64 = 24 * 60 * 60;

pub(super) const TOOL: Tool = Tool {
    name: "http",
    description: "Sends one HTTP request and returns the body of the answer. Redirects are not followed.",
    schema: r#"{
        "type": "object",
        "properties": {
            "url": {"type": "string", "description": "https://host/path or http://host:port/path"},
            "method": {"type": ["string", "null"], "description": "POST unless you give one."},
            "headers": {"type": "object", "additionalProperties": {"type": "string"}},
            "body": {"description": "Any JSON value, sent as JSON."},
            "text": {"type": ["string", "null"], "description": "A body that is sent as it is, instead of body."}
        },
        "required": ["url"],
        "additionalProperties": false
    }"#,
    // The key goes with every request.
    class: Class::Keyed,
    class_of: None,
    is_parallel: true,
    risk: 60,
    timeout: Duration::from_secs(10 * 60),
    needs: Needs::Network,
    performer: Performer::Executor { call: perform, probe: None },
};

fn perform<'a>(hands: &'a Hands, task: &'a Task, arguments: &'a str) -> Performing<'a> {
    Box::pin(hands.http.call(task, arguments))
}

#[derive(Debug)]
pub(in crate::runs) struct HttpTool {
    settings: LiveSettings,
    exits: Arc<Exits>,
    /// The agent's own rules.
    egress: Option<EgressDraft>,
    kept: Mutex<Option<Kept>>,
}

/// A connection, and the task that drives it.
#[derive(Debug)]
struct Kept {
    security: Security,
    authority: String,
    /// Checked again before it is used again: rules may have changed.
    address: IpAddr,
    sender: SendRequest<Full<Bytes>>,
    _connection: JoinSet<()>,
}

/// What a call may do.
struct Bounds {
    operator: Allowed,
    agent: Option<Rules>,
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
    pub(in crate::runs) fn of(agent: &AgentSpec, settings: LiveSettings, exits: Arc<Exits>) -> Self {
        let egress = agent.tools.get(TOOL.name).and_then(|tool| tool.egress.clone());
        Self::new(settings, exits, egress)
    }

    fn new(settings: LiveSettings, exits: Arc<Exits>, egress: Option<EgressDraft>) -> Self {
        Self { settings, exits, egress, kept: Mutex::default() }
    }

    async fn call(&self, task: &Task, arguments: &str) -> Report {
        match Call::parse(arguments) {
            Ok(call) => self.make(task, call).await,
            Err(complaint) => returned(complaint, true),
        }
    }

    /// Makes a call whose parts are valid.
    async fn make(&self, task: &Task, call: Call) -> Report {
        let deadline = Instant::now() + task.timeout;
        let mut record = Record::new(&call);
        let answered = timeout_at(deadline, self.until_answered(task, &call, &mut record, deadline)).await;
        record.into(answered.unwrap_or_else(|_| Report::unknown("the service did not respond in time")))
    }

    async fn bounds(&self) -> Result<Bounds, saggar_domain::Problem> {
        let own = self.exits.own_addresses().await?;
        let agent = self.egress.clone().map(Rules::new).transpose()?;
        let agent = agent.map(|rules| rules.with_own_addresses(own.clone()));
        Ok(Bounds { operator: Allowed::new(&self.settings.get().http_allowed, own)?, agent })
    }

    /// Repeats the request until there is a response to the call, and not only to one attempt.
    async fn until_answered(&self, task: &Task, call: &Call, record: &mut Record, deadline: Instant) -> Report {
        let begun = Instant::now();
        let (mut tries, mut is_redo) = (0, task.attempt > 1);
        loop {
            // For each attempt: the operator may have changed the rules meanwhile.
            let bounds = match self.bounds().await {
                Ok(bounds) => bounds,
                Err(problem) => return failed("network", problem.message, true),
            };
            if let Err((refusal, whose)) = bounds.decide(call, record) {
                return record.refused(&refusal, whose);
            }
            let answer = match self.send(task, call, &bounds, record).await {
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
    async fn send(&self, task: &Task, call: &Call, bounds: &Bounds, record: &mut Record) -> Result<Answer, Report> {
        let (address, authority) = (&call.address, call.address.authority());
        let rules = bounds.operator.rules_to_dial(address);
        let is_ready = |kept: &Kept| {
            kept.authority == authority
                && kept.security == address.security()
                && kept.sender.is_ready()
                && rules.address(address.to(), kept.address).is_ok()
                && bounds.agent_allows(address, kept.address).is_ok()
        };
        // Taken, and not held: calls that are made beside this one wait for nothing.
        let kept = self.kept.lock().await.take();
        let mut reusable = kept.filter(|kept| may_repeat(task.class) && is_ready(kept));
        loop {
            let request = request(task, call, bounds)?;
            let request = match &call.credential {
                None => request,
                Some(credential) => {
                    let filled = credential.put(address, request);
                    let filled = filled.map_err(|refusal| record.refused(&refusal, Whose::Secret))?;
                    record.use_secret(credential.name().clone());
                    filled
                }
            };
            let is_reused = reusable.is_some();
            let mut connection = match reusable.take() {
                Some(connection) => connection,
                // If it fails, nothing was sent.
                None => self.connect(call, &rules, bounds, record).await?,
            };
            record.dialled(connection.address);
            record.up(&request, call);
            let response = match connection.sender.send_request(request).await {
                Ok(response) => response,
                // It is unknown whether the service got the request before it closed the connection, so it is
                // repeated with the same key.
                Err(_) if is_reused => continue,
                Err(error) if error.is_canceled() => {
                    return Err(failed("connection", "the connection was closed", true));
                }
                Err(error) => return Err(Report::unknown(format!("the response was lost: {error}"))),
            };
            let (status, retry_after) = (response.status(), RetryAfter::of(response.headers()));
            let patterns = call.credential.as_ref().and_then(Credential::patterns);
            let headers = call.wants_headers().then(|| {
                let shown = arguments::shown(response.headers());
                let scrubbed = patterns.and_then(|patterns| patterns.scrubbed(shown.as_bytes()));
                scrubbed.map_or(shown, |scrubbed| String::from_utf8_lossy(&scrubbed).into_owned())
            });
            if patterns.is_some() && response.headers().contains_key(header::CONTENT_ENCODING) {
                // What can't be read can't be searched for the secret.
                return Err(Report::unknown(
                    "the service answered with a compressed body, although it was asked not to",
                ));
            }
            let mut answer = response.into_body();
            let mut bytes = Vec::new();
            let mut scrubber = call.credential.as_ref().and_then(Credential::scrubber);
            while bytes.len() <= ANSWER_MAX
                && let Some(frame) = answer.frame().await
            {
                let data = match frame {
                    Ok(frame) => frame.into_data().unwrap_or_default(),
                    Err(error) => return Err(Report::unknown(format!("the response was lost: {error}"))),
                };
                match &mut scrubber {
                    None => bytes.extend_from_slice(&data),
                    Some(scrubber) => bytes.extend_from_slice(&scrubber.push(data)),
                }
            }
            // What it holds back of an answer that is longer may be the beginning of the secret.
            if let Some(mut scrubber) = scrubber.filter(|_| bytes.len() <= ANSWER_MAX) {
                bytes.extend_from_slice(&scrubber.finish());
            }
            if bytes.len() <= ANSWER_MAX && may_repeat(task.class) {
                *self.kept.lock().await = Some(connection);
            }
            record.down(bytes.len());
            let body = headers.unwrap_or_else(|| cut(bytes, ANSWER_MAX));
            return Ok(Answer { status, body, retry_after });
        }
    }

    /// If it fails, nothing was sent.
    async fn connect(&self, call: &Call, rules: &Rules, bounds: &Bounds, record: &mut Record) -> Result<Kept, Report> {
        let address = &call.address;
        let outside = self.exits.outside().await.map_err(|problem| failed("network", problem.message, true))?;
        let connected = outside.connect(address.to(), rules, address.security(), CONNECT_TIME).await;
        let connection = connected.map_err(|error| match error {
            ConnectError::Refused { refusal, address } => {
                record.refused_at(address);
                record.refused(&refusal, Whose::Operator)
            }
            // A certificate that is not trusted now won't be soon.
            ConnectError::Tls(refusal) => record.failed(&refusal),
            other @ (ConnectError::Dial(_) | ConnectError::Handshake(_)) => failed("connect", other.to_string(), true),
        })?;
        if let Err(refusal) = bounds.agent_allows(address, connection.address) {
            record.refused_at(Some(connection.address));
            return Err(record.refused(&refusal, Whose::Agent));
        }
        let handshake = handshake(TokioIo::new(connection.stream)).await;
        let (sender, driver) = handshake.map_err(|error| failed("connect", error.to_string(), true))?;
        let mut moving = JoinSet::new();
        moving.spawn(async move {
            // Errors are reported to the caller that waits for the response.
            let _ = driver.await;
        });
        let (security, authority) = (address.security(), address.authority());
        Ok(Kept { security, authority, address: connection.address, sender, _connection: moving })
    }
}

/// Whose rules forbid a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Operator,
    Agent,
    /// The binding of its secret.
    Secret,
}

impl Bounds {
    /// Both must allow it; the record names the operator's rule.
    fn decide(&self, call: &Call, record: &mut Record) -> Result<(), (Refusal, Whose)> {
        let method = call.method.as_str();
        let rule = self.operator.decide(&call.address, method).map_err(|refusal| (refusal, Whose::Operator))?;
        if let Some(agent) = &self.agent {
            decide(agent, &call.address, method).map_err(|refusal| (refusal, Whose::Agent))?;
        }
        record.allow(rule.0);
        Ok(())
    }

    fn agent_allows(&self, address: &HttpAddress, dialled: IpAddr) -> Result<(), Refusal> {
        self.agent.as_ref().map_or(Ok(()), |rules| rules.address(address.to(), dialled))
    }

    fn restricts(&self, address: &HttpAddress) -> bool {
        self.operator.restricts(address) || self.agent.as_ref().is_some_and(|rules| rules.restricts(address.to()))
    }
}

fn request(task: &Task, call: &Call, bounds: &Bounds) -> Result<Request<Full<Bytes>>, Report> {
    let mut request = Request::builder()
        .method(&call.method)
        .uri(call.address.target())
        .header(header::HOST, call.address.authority());
    if let Some(name) = &call.key_header {
        request = request.header(name, task.key.as_str());
    }
    if call.credential.is_some() {
        request = request.header(header::ACCEPT_ENCODING, "identity");
    }
    if !may_repeat(task.class) {
        request = request.header(header::CONNECTION, "close");
    }
    let body = match &call.payload {
        Payload::None => Bytes::new(),
        Payload::Json(body) | Payload::Text(body) => body.clone(),
    };
    if let Some(kind) = call.content_type() {
        request = request.header(header::CONTENT_TYPE, kind);
    }
    for (name, value) in &call.headers {
        let is_encoding = call.credential.is_some() && name == header::ACCEPT_ENCODING;
        let is_override = bounds.restricts(&call.address) && OVERRIDE_HEADERS.contains(&name.as_str());
        if !(is_encoding || is_override) {
            request = request.header(name, value);
        }
    }
    request.body(Full::new(body)).map_err(|error| returned(format!("the request is invalid: {error}"), true))
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
            status if status.is_server_error() => Report::unknown(format!("it answered {status}")),
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
        let seconds = value.trim().parse::<u64>();
        Some(seconds.map_or(Self::Later, |seconds| Self::Seconds(seconds.min(RETRY_AFTER_MAX))))
    }
}

/// Whether sending it twice has the effect of sending it once.
fn may_repeat(class: Class) -> bool {
    match class {
        Class::Pure | Class::Model | Class::Keyed => true,
        Class::Probeable | Class::Once => false,
    }
}

#[cfg(test)]
mod tests;
