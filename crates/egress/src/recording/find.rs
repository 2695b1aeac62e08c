//! Which recorded answer a request gets.
//!
//! The n-th identical request gets the n-th recorded answer. After the last one, GET and HEAD get it again, because a program may
//! poll more often than it did; any other method is refused, because it would do something that wasn't recorded.

use std::collections::HashMap;
use std::sync::PoisonError;

use saggar_domain::net::{Destination, Refusal, shown_path};

use super::line::{ConnectionKind, Outcome};
use super::read::{Library, Recorded};
use super::redact;
use super::write::{hex, target_of};
use crate::secret::Secrets;

/// How often each request was made. A sandbox can't add to it: only requests that are in the recording count.
pub(super) type Counts = HashMap<usize, usize>;

/// A request to be answered.
pub(crate) struct Asking {
    method: String,
    scheme: &'static str,
    host: String,
    port: u16,
    target: String,
}

/// The number of an exchange, and its parts.
pub(crate) struct Found {
    pub exchange: usize,
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

/// How near a recorded request is, from far to near.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Near {
    Host,
    Path,
    Method,
    Query,
    Body,
}

impl Asking {
    pub fn new(scheme: &'static str, to: &Destination, parts: &http::request::Parts, secrets: &Secrets) -> Self {
        Self {
            method: parts.method.to_string(),
            scheme,
            host: to.host.to_string(),
            port: to.port,
            target: target_of(&parts.uri, secrets),
        }
    }

    fn is_at(&self, exchange: &Recorded) -> bool {
        let request = &exchange.request;
        (request.scheme.as_str(), request.host.as_str(), request.port) == (self.scheme, self.host.as_str(), self.port)
    }

    fn is_like(&self, exchange: &Recorded) -> bool {
        self.is_at(exchange) && exchange.request.method == self.method && exchange.request.target == self.target
    }

    /// For people: without the query, which may hold what isn't theirs.
    fn shown(&self) -> String {
        let Self { method, scheme, host, port, target } = self;
        format!("{} {scheme}://{host}:{port}{}", printable(method, METHOD_MAX), shown_path(target))
    }
}

impl Library {
    /// The answer to a request whose whole body has this hash.
    pub(crate) fn find(&self, asking: &Asking, body: &[u8]) -> Result<Found, Refusal> {
        let body = hex(body);
        let has_body = |exchange: &Recorded| match &exchange.end {
            // A server that answers before it has read the body answers any body like that.
            Some(end) => end.sha256 == body || !end.sent_whole,
            None => false,
        };
        let same: Vec<usize> = (0..self.exchanges.len())
            .filter(|index| asking.is_like(&self.exchanges[*index]) && has_body(&self.exchanges[*index]))
            .collect();
        let Some(first) = same.first() else { return Err(self.missing(asking)) };
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(*first).or_default();
        let is_read = matches!(asking.method.as_str(), "GET" | "HEAD");
        let index = match same.get(*count) {
            Some(index) => *index,
            None if is_read => same[same.len() - 1],
            None => {
                return Err(refusal(
                    asking,
                    &format!("it was recorded {} times, and is made once more", same.len()),
                    "record again; only GET and HEAD may be repeated more often than they were recorded",
                ));
            }
        };
        *count += 1;
        drop(counts);
        let exchange = &self.exchanges[index];
        match &exchange.answer {
            Some(answer) if exchange.is_replayable() => {
                let is_kept = |(_, value): &&(String, String)| value != redact::REMOVED;
                let headers = answer.headers.iter().filter(is_kept).cloned().collect();
                Ok(Found { exchange: index, status: answer.status, headers })
            }
            _ => Err(refusal(asking, &why_not(exchange), "record again")),
        }
    }

    /// Why a connection of another kind isn't replayed.
    pub(crate) fn no_connection(&self, to: &Destination, kind: ConnectionKind) -> Refusal {
        let what = match kind {
            ConnectionKind::Tcp => "bytes that pass as they are",
            ConnectionKind::Websocket => "a WebSocket",
        };
        let host = to.host.to_string();
        let was =
            self.connections.iter().any(|known| (known.port, known.kind) == (to.port, kind) && known.host == host);
        let recorded = if was {
            "the recording names the connection, but not what was said"
        } else {
            "it is not in the recording"
        };
        Refusal::new(
            NOT_RECORDED,
            format!("{to}: {what} can't be replayed; {recorded}"),
            "replay needs requests over HTTP or HTTPS; for another port write the rule with http:// or https://",
        )
    }

    fn missing(&self, asking: &Asking) -> Refusal {
        let nearest = self
            .exchanges
            .iter()
            .filter(|exchange| asking.is_at(exchange))
            .map(|exchange| (nearness(asking, exchange), exchange))
            // Of equal ones the first.
            .reduce(|best, next| if next.0 > best.0 { next } else { best });
        let (why, help) = match nearest {
            None => (format!("no request to {}:{} is in the recording", asking.host, asking.port), RECORD_AGAIN),
            Some((Near::Host, other)) => (format!("the nearest is another path: {}", shown(other)), RECORD_AGAIN),
            Some((Near::Path, other)) => (format!("the nearest has another method: {}", shown(other)), RECORD_AGAIN),
            Some((Near::Method, other)) => {
                let names = differing(&asking.target, &other.request.target);
                (
                    format!("the nearest has another query: {names}"),
                    "make the query the same in every run, or record again",
                )
            }
            Some((Near::Query | Near::Body, other)) => match &other.end {
                None => (why_not(other), "record again"),
                Some(_) => (
                    "the nearest has another body".to_owned(),
                    "make the body the same in every run (no times, no random ids), or record again",
                ),
            },
        };
        refusal(asking, &why, help)
    }
}

const NOT_RECORDED: &str = "egress/not-recorded";
/// Maximum length of a method in a message.
const METHOD_MAX: usize = 32;
/// The same for the reason of a failure.
const REASON_MAX: usize = 300;
const RECORD_AGAIN: &str = "record again with this request, or check what the program asks for";

fn refusal(asking: &Asking, why: &str, help: &str) -> Refusal {
    Refusal::new(NOT_RECORDED, format!("{} is not in the recording: {why}", asking.shown()), help)
}

fn why_not(exchange: &Recorded) -> String {
    match &exchange.end {
        None => "the recording ends in the middle of this exchange".to_owned(),
        Some(end) if end.outcome == Outcome::Failed => {
            let reason = printable(end.reason.as_deref().unwrap_or("the reason is not known"), REASON_MAX);
            format!("the exchange failed when it was recorded: {reason}")
        }
        Some(_) => "the recorded exchange has no answer".to_owned(),
    }
}

fn nearness(asking: &Asking, exchange: &Recorded) -> Near {
    let path = |target: &str| target.split('?').next().unwrap_or_default().to_owned();
    let request = &exchange.request;
    if path(&request.target) != path(&asking.target) {
        Near::Host
    } else if request.method != asking.method {
        Near::Path
    } else if request.target != asking.target {
        Near::Method
    } else if exchange.end.is_none() {
        Near::Query
    } else {
        Near::Body
    }
}

fn shown(exchange: &Recorded) -> String {
    format!("{} {}", printable(&exchange.request.method, METHOD_MAX), shown_path(&exchange.request.target))
}

/// The names of the parameters that differ, without their values.
fn differing(asked: &str, recorded: &str) -> String {
    let parameters = |target: &str| -> Vec<String> {
        let query = target.split_once('?').map_or("", |(_, query)| query);
        query.split('&').filter(|parameter| !parameter.is_empty()).map(str::to_owned).collect()
    };
    let (asked, recorded) = (parameters(asked), parameters(recorded));
    let only = |these: &[String], those: &[String]| -> Vec<String> {
        these.iter().filter(|parameter| !those.contains(parameter)).map(|text| name_of(text)).collect()
    };
    let mut names = only(&asked, &recorded);
    names.extend(only(&recorded, &asked));
    names.sort();
    names.dedup();
    names.truncate(8);
    if names.is_empty() { "the same parameters in another order".to_owned() } else { names.join(", ") }
}

fn name_of(parameter: &str) -> String {
    let name = parameter.split('=').next().unwrap_or_default();
    shown_path(&name.chars().take(40).collect::<String>())
}

/// The file may have been edited, and a message is printed.
fn printable(text: &str, most: usize) -> String {
    text.chars().take(most).map(|character| if matches!(character, ' '..='~') { character } else { '?' }).collect()
}
