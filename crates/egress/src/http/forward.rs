//! One request: checked, decided, sent on, and answered.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{COOKIE, EXPECT, HOST, HeaderMap, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::ext::ReasonPhrase;
use hyper::upgrade::OnUpgrade;
use saggar_domain::net::{Destination, Host, OVERRIDE_HEADERS, Passage, Protocol, Refusal, RuleRef, Rules, Wire};
use saggar_jail::Rule;

use crate::http::body::{Body, Taped};
use crate::http::check::{self, Scheme};
use crate::http::conn::{Conn, Mode, Next};
use crate::http::interim::Interim;
use crate::http::upstream::{self, Lease, Obtained, Sender, broken};
use crate::http::{headers, replayed, upgrade};
use crate::record::{Asked, Record, Spent};
use crate::recording::{ConnectionKind, Exchange};
use crate::refuse::{Page, Reader};
use crate::secret::{self, Patterns};
use crate::{ask, passage};

/// What is read of a refused request's body, so that the answer isn't lost in a reset.
const DRAINED_MAX: usize = 1024 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// The server closed a connection that it had kept open, just when the request came. The program's connection is closed,
/// too: it knows whether the request may be sent again.
#[derive(Debug, thiserror::Error)]
#[error("the server closed a kept connection")]
pub(crate) struct Ended;

enum Failure {
    Page(Page),
    Ended,
}

impl From<Page> for Failure {
    fn from(page: Page) -> Self {
        Self::Page(page)
    }
}

impl From<Spent> for Failure {
    fn from(Spent(refusal): Spent) -> Self {
        Self::Page(Page::too_many(refusal))
    }
}

/// Dropping the future ends the exchange with the server.
pub(crate) async fn handle(conn: Arc<Conn>, mut request: Request<Incoming>) -> Result<Response<Body>, Ended> {
    let reader = Reader::of(request.version(), request.headers());
    if matches!(conn.mode, Mode::Proxy) && request.method() == Method::CONNECT {
        return Ok(connect(&conn, request, reader).await);
    }
    let websocket = is_websocket(&request).then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let (to, fault) = match target(&conn, &parts) {
        Ok(to) => (to, None),
        Err(page) => (conn.to.clone().unwrap_or_else(nowhere), Some(page)),
    };
    if let Mode::Show(page) = &conn.mode {
        return Ok(refused(&conn, page, reader, parts.headers.contains_key(EXPECT), body));
    }
    // A proxy's requests name their destination; the others were asked about when they connected.
    if conn.to.is_none() && fault.is_none() {
        ask::settle(&conn.link, &to).await;
    }
    let protocol = match conn.scheme {
        Scheme::Http => Protocol::Http,
        Scheme::Https => Protocol::Https,
    };
    let asked = Asked::Request {
        protocol,
        method: parts.method.clone(),
        path: parts.uri.path_and_query().cloned(),
        is_upgrade: websocket.is_some(),
    };
    let record = Record::new(&conn.link, Arc::clone(&to), asked);
    let rules = conn.link.session().rules();
    let decided = match (fault, &conn.mode) {
        (_, Mode::Refuse(page)) => Err(page.clone()),
        (Some(page), _) => Err(page),
        (None, _) => decide(&conn, &rules, &to, &parts, websocket.is_some()),
    };
    let decided = decided.and_then(|rule| {
        record.allow(rule.0);
        passage::recheck(&conn.link, &record, &rules)?;
        passage::admit(&conn.link, &to, &record)
    });
    let decided = match decided {
        Ok(()) => conn.link.session().until_secrets(&to).await.map_err(Page::not_yet),
        Err(page) => Err(page),
    };
    if let Err(page) = decided {
        record.deny(&page.refusal);
        return Ok(refused(&conn, &page, reader, parts.headers.contains_key(EXPECT), body));
    }
    let is_waiting = parts.headers.contains_key(EXPECT);
    match recorded(&conn, &to, parts, body, &record, websocket).await {
        Ok(response) => Ok(response),
        Err((Failure::Page(page), body)) => Ok(match body {
            Some(body) => refused(&conn, &page, reader, is_waiting, body),
            None => page.response(reader).map(Body::own),
        }),
        Err((Failure::Ended, _)) => Err(Ended),
    }
}

/// For which destination the request is, if that is where its connection leads.
fn target(conn: &Conn, parts: &Parts) -> Result<Arc<Destination>, Page> {
    match &conn.to {
        Some(to) => check::agrees(parts, conn.scheme, to, &conn.authority).map(|()| Arc::clone(to)),
        None => check::proxied(parts).map(Arc::new),
    }
}

fn decide(conn: &Conn, rules: &Rules, to: &Destination, parts: &Parts, is_websocket: bool) -> Result<RuleRef, Page> {
    check::framing(parts, &conn.framing)?;
    if let Passage::Denied(refusal) = rules.connection(to) {
        // TLS would be refused too.
        return Err(Page::denied(conn.link.explained(to, refusal)));
    }
    if conn.scheme == Scheme::Http && rules.wire(to) == Wire::Tls {
        let message = format!("plain HTTP to {to}, where TLS is expected");
        return Err(Page::denied(Refusal::new("egress/protocol", message, "use https")));
    }
    if !Rule::EgressRequests.is_on() {
        return Ok(RuleRef(Rule::EgressRequests.name()));
    }
    let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let decided = match is_websocket {
        true => rules.upgrade(to, path),
        false => rules.request(to, parts.method.as_str(), path),
    };
    decided.map_err(Page::denied)
}

/// An exchange, written to the session's recording or answered from it, if it has one. What is recorded is what the sandbox sent, before
/// anything is put in, and what it got.
async fn recorded(
    conn: &Arc<Conn>,
    to: &Arc<Destination>,
    parts: Parts,
    body: Incoming,
    record: &Arc<Record>,
    websocket: Option<OnUpgrade>,
) -> Result<Response<Body>, (Failure, Option<Incoming>)> {
    let session = conn.link.session();
    if let Some(library) = session.library() {
        let replayed = replayed::answer(conn, to, library, &parts, body, record, websocket.is_some()).await;
        return replayed.map_err(|(page, body)| (page.into(), body));
    }
    let tape = match session.recorder() {
        Some(recorder) if websocket.is_none() => {
            Some(recorder.exchange(conn.scheme.as_str(), to, &parts, &session.secrets()))
        }
        Some(recorder) => {
            recorder.connection(to, ConnectionKind::Websocket);
            None
        }
        None => None,
    };
    let answered = exchange(conn, to, parts, body, record, websocket, tape.as_ref()).await;
    let Some(tape) = tape else { return answered };
    match answered {
        Ok(response) => {
            tape.answered(response.status(), response.headers());
            Ok(response.map(|body| Body::Taped(Box::new(Taped::new(body, tape, false)))))
        }
        Err((failure, body)) => {
            tape.failed(match &failure {
                Failure::Page(page) => &page.refusal.message,
                Failure::Ended => "the server closed a kept connection",
            });
            Err((failure, body))
        }
    }
}

/// On failure gives the program's body back, if none of it was sent.
async fn exchange(
    conn: &Arc<Conn>,
    to: &Arc<Destination>,
    mut parts: Parts,
    body: Incoming,
    record: &Arc<Record>,
    websocket: Option<OnUpgrade>,
    tape: Option<&Arc<Exchange>>,
) -> Result<Response<Body>, (Failure, Option<Incoming>)> {
    let session = conn.link.session();
    let up = head_len(&parts.headers) + parts.uri.path_and_query().map_or(1, |path| path.as_str().len());
    let obtained = match upstream::obtain(conn, to, record, false).await {
        Ok(obtained) => obtained,
        Err(page) => return Err((page.into(), Some(body))),
    };
    // Only now: secrets may have been replaced while the server was dialled. What goes into the request and what is searched for in
    // the answer come from the same ones.
    let secrets = session.secrets();
    // In this order: a session that loses its secrets says so before.
    if let Err(refusal) = session.until_secrets(to).await {
        record.deny(&refusal);
        return Err((Page::not_yet(refusal).into(), Some(body)));
    }
    let chosen = match secrets.choose(conn.scheme, to, &parts, websocket.is_some()) {
        Ok(chosen) => chosen,
        Err(refusal) => {
            record.deny(&refusal);
            return Err((Page::denied(refusal).into(), Some(body)));
        }
    };
    if let Some(name) = chosen.misplaced(&parts) {
        record.fail(format!(
            "the request has the placeholder of the secret {name}, which is not for it; it was left as it is"
        ));
    }
    if let Err(spent) = record.take_up(up) {
        return Err((spent.into(), Some(body)));
    }
    headers::strip_request(&mut parts.headers);
    if conn.link.session().rules().restricts(to) {
        headers::remove_folded(&mut parts.headers, |name| OVERRIDE_HEADERS.contains(&name));
    }
    if websocket.is_some() {
        upgrade::ask(&mut parts.headers);
    }
    parts.extensions.clear();
    // Also if this request gets none: the server may have kept one that it got before.
    let scrub = secrets.values().filter(|_| !chosen.is_empty() || session.rules().is_bound(to)).cloned();
    if scrub.is_some() {
        headers::ask_for_plain_answer(&mut parts.headers);
    }
    record.use_secrets(chosen.names());
    let host = authority(conn, to);
    let body = match secret::fill(session, &chosen, to, &host, &mut parts, body, record).await {
        Ok(body) => body,
        Err((page, body)) => return Err((page.into(), body)),
    };
    let body = match tape {
        Some(tape) => Body::Taped(Box::new(Taped::new(body, Arc::clone(tape), true))),
        None => body,
    };
    let response = send(conn, to, record, obtained, Request::from_parts(parts, body)).await;
    let answered = response.and_then(|(mut response, lease)| {
        let Some(patterns) = scrub else { return answer(conn, to, record, response, lease, websocket, None) };
        let is_encoded = headers::is_encoded(response.headers());
        let has_content = !response.body().is_end_stream() || response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if is_encoded && has_content {
            return Err(encoded(to, record).into());
        }
        headers::scrub(response.headers_mut(), &patterns);
        response.extensions_mut().remove::<ReasonPhrase>();
        answer(conn, to, record, response, lease, websocket, Some(patterns))
    });
    answered.map_err(|failure| (failure, None))
}

async fn send(
    conn: &Arc<Conn>,
    to: &Arc<Destination>,
    record: &Arc<Record>,
    mut obtained: Obtained,
    mut request: Request<Body>,
) -> Result<(Response<Incoming>, Option<Lease>), Failure> {
    let interim = Interim::watch(&mut request, record);
    loop {
        let is_reused = obtained.is_reused;
        let error = match obtained.sender {
            Sender::Http1(mut http1, place) => {
                shape_http1(&mut request, &authority(conn, to));
                let sent = tokio::select! {
                    sent = http1.sender.try_send_request(request) => sent,
                    page = interim.ended(to) => return Err(page.into()),
                };
                match sent {
                    Ok(response) => return Ok((response, Some(Lease::new(conn, http1, place)))),
                    Err(error) => error,
                }
            }
            Sender::Http2(mut http2) => {
                shape_http2(&mut request, conn.scheme, &authority(conn, to));
                match http2.try_send_request(request).await {
                    Ok(response) => return Ok((response, None)),
                    Err(error) => error,
                }
            }
        };
        let mut error = error;
        match error.take_message() {
            // Nothing of it was sent.
            Some(unsent) if is_reused => {
                request = unsent;
                obtained = upstream::obtain(conn, to, record, true).await?;
            }
            Some(_) | None => {
                let error = error.into_error();
                // The program's own fault is the better reason.
                if let Some(page) = record.broken_off() {
                    return Err(page.clone().into());
                }
                let page = broken(to, record, &error);
                // A fault in the answer is the server's; it was not in the middle of closing.
                let is_ending = is_reused && !error.is_parse() && !to.is_of_models();
                return Err(if is_ending { Failure::Ended } else { page.into() });
            }
        }
    }
}

fn answer(
    conn: &Arc<Conn>,
    to: &Destination,
    record: &Arc<Record>,
    response: Response<Incoming>,
    lease: Option<Lease>,
    websocket: Option<OnUpgrade>,
    scrub: Option<Arc<Patterns>>,
) -> Result<Response<Body>, Failure> {
    record.take_down(head_len(response.headers()))?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(client) = websocket.filter(|_| headers::wants_websocket(response.headers())) else {
            let message = format!("{to} changed to a protocol that was not asked for");
            record.fail(message.clone());
            return Err(Page::failed(Refusal::new("egress/upstream", message, "check the server")).into());
        };
        let (response, upgrade) = upgrade::accept(client, response, Arc::clone(record), scrub);
        conn.after(Next::Upgrade(upgrade));
        return Ok(response);
    }
    let (mut parts, body) = response.into_parts();
    headers::strip_response(&mut parts.headers);
    parts.version = Version::HTTP_11;
    Ok(Response::from_parts(parts, Body::down(body, Arc::clone(record), lease, scrub.as_ref())))
}

/// An answer to a request with a secret in which the value could not be found.
fn encoded(to: &Destination, record: &Record) -> Page {
    let message = format!("{to} sent a compressed answer to a request with a secret, and was asked not to");
    record.fail(message.clone());
    Page::failed(Refusal::new(
        "egress/secret-answer",
        message,
        "let the server send it uncompressed, or bind the secret to other paths",
    ))
}

/// `CONNECT` to the proxy. Success is answered even if the destination is denied: no client shows the body of an answer to
/// CONNECT, but all show the answer to the request that follows.
async fn connect(conn: &Arc<Conn>, mut request: Request<Incoming>, reader: Reader) -> Response<Body> {
    let client = hyper::upgrade::on(&mut request);
    let (parts, _) = request.into_parts();
    let opened = match check::connected(&parts) {
        Ok(to) => passage::open(&conn.link, to).await,
        Err(page) => {
            Record::new(&conn.link, nowhere(), Asked::Connection(Protocol::Connect)).deny(&page.refusal);
            Err(page)
        }
    };
    match opened {
        Ok(opening) => {
            conn.after(Next::Connect(opening, client));
            Response::new(Body::empty())
        }
        Err(page) => page.response(reader).map(Body::own),
    }
}

fn refused(conn: &Conn, page: &Page, reader: Reader, is_waiting: bool, body: Incoming) -> Response<Body> {
    // Otherwise HTTP/1.1 would end in a reset of the connection, HTTP/2 in one of the stream, and curl would show that instead. A
    // client that waits for 100 Continue has sent nothing; reading would ask it to.
    if !is_waiting && !body.is_end_stream() {
        conn.tasks.spawn(async move {
            // Whatever ends it: the rest stays unread, and the connection is closed.
            let _ = tokio::time::timeout(DRAIN_TIME, drain(body)).await;
        });
    }
    page.response(reader).map(Body::own)
}

async fn drain(mut body: Incoming) {
    let mut drained = 0;
    while drained < DRAINED_MAX
        && let Some(Ok(frame)) = body.frame().await
    {
        drained += frame.data_ref().map_or(0, |data| data.len());
    }
}

/// In HTTP/1.1 the line has the path alone, and the host is in a header: the name that was decided about, in canonical form.
fn shape_http1(request: &mut Request<Body>, authority: &HeaderValue) {
    let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
    *request.version_mut() = Version::HTTP_11;
    request.headers_mut().insert(HOST, authority.clone());
    join_cookies(request.headers_mut());
}

fn shape_http2(request: &mut Request<Body>, scheme: Scheme, authority: &HeaderValue) {
    let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let uri = Uri::builder().scheme(scheme.as_str()).authority(authority.as_bytes()).path_and_query(path);
    if let Ok(uri) = uri.build() {
        *request.uri_mut() = uri;
    }
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(HOST);
}

/// HTTP/2 may split them, HTTP/1.1 has one header.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let all: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

fn authority(conn: &Conn, to: &Destination) -> HeaderValue {
    if conn.to.is_some() {
        return conn.authority.clone();
    }
    // A canonical host is plain ASCII.
    HeaderValue::from_str(&check::authority(to, conn.scheme)).unwrap_or_else(|_| HeaderValue::from_static(""))
}

fn is_websocket(request: &Request<Incoming>) -> bool {
    request.method() == Method::GET
        && request.version() == Version::HTTP_11
        && headers::wants_websocket(request.headers())
}

/// About the size of a head on the wire.
pub(super) fn head_len(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

/// Where a request wanted to go that can't be understood.
pub(crate) fn nowhere() -> Arc<Destination> {
    Arc::new(Destination { host: Host::V4(Ipv4Addr::UNSPECIFIED), port: 0 })
}
