//! Connections to servers, for one connection of a program.
//!
//! Nothing is shared between connections of programs: one upstream connection for each is faster than a pool, and no request
//! waits for another program's. A client of HTTP/1.1 asks one thing after the other, so one connection is enough. A client of
//! HTTP/2 shares one HTTP/2 connection, or a few of HTTP/1.1 if the server has nothing better.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use saggar_domain::net::{Destination, MODEL_HOST, Refusal, Rules};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::budget::HostSlot;
use crate::http::body::Body;
use crate::http::check::Scheme;
use crate::http::conn::Conn;
use crate::http::heads::Heads;
use crate::limits::{UPSTREAMS_PER_CONNECTION, Windows};
use crate::passage;
use crate::record::Record;
use crate::refuse::Page;
use crate::tls;

pub(crate) struct Upstreams {
    kept: Mutex<Vec<Http1>>,
    /// Connections of HTTP/1.1 in use at once.
    places: Arc<Semaphore>,
    /// Locked while the first connection is made, so that streams that come together don't make one each.
    http2: tokio::sync::Mutex<Option<Http2>>,
    may_speak_http2: AtomicBool,
}

pub(crate) enum Sender {
    Http1(Http1, OwnedSemaphorePermit),
    Http2(http2::SendRequest<Body>),
}

pub(crate) struct Obtained {
    pub sender: Sender,
    /// It has served a request before, so the server may be about to close it.
    pub is_reused: bool,
}

pub(crate) struct Http1 {
    pub sender: http1::SendRequest<Body>,
    at: At,
}

struct Http2 {
    sender: http2::SendRequest<Body>,
    at: At,
}

/// Where a connection leads, and under which rules its address was checked.
struct At {
    to: Arc<Destination>,
    /// None of the server's models, which have no address.
    address: Option<IpAddr>,
    rules: Arc<Rules>,
    slot: Arc<HostSlot>,
}

/// A connection in use. It can be used again when this is dropped.
pub(crate) struct Lease {
    conn: Arc<Conn>,
    http1: Option<Http1>,
    _place: OwnedSemaphorePermit,
}

impl Upstreams {
    pub fn for_http1() -> Self {
        Self::new(1, false)
    }

    pub fn for_http2(scheme: Scheme) -> Self {
        Self::new(UPSTREAMS_PER_CONNECTION, scheme == Scheme::Https)
    }

    fn new(places: usize, may_speak_http2: bool) -> Self {
        Self {
            kept: Mutex::default(),
            places: Arc::new(Semaphore::new(places)),
            http2: tokio::sync::Mutex::default(),
            may_speak_http2: AtomicBool::new(may_speak_http2),
        }
    }

    fn take(&self, to: &Destination, rules: &Arc<Rules>) -> Option<Http1> {
        let mut kept = self.kept();
        kept.retain(|http1| !http1.sender.is_closed());
        let index = kept.iter().position(|http1| *http1.at.to == *to)?;
        let mut http1 = kept.remove(index);
        drop(kept);
        http1.at.is_allowed(rules).then_some(http1)
    }

    fn keep(&self, http1: Http1) {
        if http1.sender.is_closed() {
            return;
        }
        let mut kept = self.kept();
        if kept.len() >= UPSTREAMS_PER_CONNECTION {
            kept.remove(0);
        }
        kept.push(http1);
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Http1>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl At {
    /// Whether rules that came after the connection still allow its address.
    fn is_allowed(&mut self, rules: &Arc<Rules>) -> bool {
        if Arc::ptr_eq(&self.rules, rules) {
            return true;
        }
        self.rules = Arc::clone(rules);
        self.address.is_none_or(|address| rules.address(&self.to, address).is_ok())
    }

    fn note(&self, record: &Record) {
        record.hold(Arc::clone(&self.slot));
        if let Some(address) = self.address {
            record.dialled(address);
        }
    }
}

impl Lease {
    pub fn new(conn: &Arc<Conn>, http1: Http1, place: OwnedSemaphorePermit) -> Self {
        Self { conn: Arc::clone(conn), http1: Some(http1), _place: place }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(http1) = self.http1.take() {
            self.conn.upstreams.keep(http1);
        }
    }
}

/// A connection to `to`: a kept one, unless `fresh` is asked for, or a new one.
pub(crate) async fn obtain(
    conn: &Arc<Conn>,
    to: &Arc<Destination>,
    record: &Record,
    fresh: bool,
) -> Result<Obtained, Page> {
    let upstreams = &conn.upstreams;
    let rules = conn.link.session().rules();
    if upstreams.may_speak_http2.load(Ordering::Relaxed) {
        let mut http2 = upstreams.http2.lock().await;
        if let Some(known) = http2.as_mut()
            && !fresh
            && !known.sender.is_closed()
            && known.at.is_allowed(&rules)
        {
            known.at.note(record);
            return Ok(Obtained { sender: Sender::Http2(known.sender.clone()), is_reused: true });
        }
        // Another stream may have found out meanwhile that the server has no HTTP/2.
        if upstreams.may_speak_http2.load(Ordering::Relaxed) {
            match connect(conn, to, rules, record).await? {
                Connected::Http2(connected) => {
                    let sender = connected.sender.clone();
                    *http2 = Some(connected);
                    return Ok(Obtained { sender: Sender::Http2(sender), is_reused: false });
                }
                Connected::Http1(connected) => {
                    upstreams.may_speak_http2.store(false, Ordering::Relaxed);
                    drop(http2);
                    let place = place(upstreams).await?;
                    return Ok(Obtained { sender: Sender::Http1(connected, place), is_reused: false });
                }
            }
        }
    }
    let place = place(upstreams).await?;
    while !fresh && let Some(mut kept) = upstreams.take(to, &rules) {
        // The driver may still be reading the end of the last answer.
        if kept.sender.ready().await.is_ok() {
            kept.at.note(record);
            return Ok(Obtained { sender: Sender::Http1(kept, place), is_reused: true });
        }
    }
    match connect(conn, to, rules, record).await? {
        Connected::Http1(connected) => Ok(Obtained { sender: Sender::Http1(connected, place), is_reused: false }),
        Connected::Http2(connected) => Ok(Obtained { sender: Sender::Http2(connected.sender), is_reused: false }),
    }
}

async fn place(upstreams: &Upstreams) -> Result<OwnedSemaphorePermit, Page> {
    Arc::clone(&upstreams.places)
        .acquire_owned()
        .await
        .map_err(|_closed| Page::failed(Refusal::new("egress/upstream", "the connection is closing", "connect again")))
}

enum Connected {
    Http1(Http1),
    Http2(Http2),
}

async fn connect(
    conn: &Arc<Conn>,
    to: &Arc<Destination>,
    rules: Arc<Rules>,
    record: &Record,
) -> Result<Connected, Page> {
    let session = conn.link.session();
    let slot = passage::hold(&conn.link, to, record)?;
    if let Some(models) = session.models.as_ref().filter(|_| to.is_of_models()) {
        record.hold(Arc::clone(&slot));
        let at = At { to: Arc::clone(to), address: None, rules, slot };
        let stream = timeout(session.limits.connect_time, models.connect()).await;
        let stream = stream.ok().and_then(Result::ok).ok_or_else(|| no_models(record))?;
        return http1_over(conn, stream, at, record).await;
    }
    let dialled = passage::dial_held(&conn.link, to, record, Arc::clone(&slot)).await?;
    let at = At { to: Arc::clone(to), address: Some(dialled.address.ip()), rules, slot };
    if conn.scheme == Scheme::Http {
        return http1_over(conn, dialled.stream, at, record).await;
    }
    let offers_http2 = conn.upstreams.may_speak_http2.load(Ordering::Relaxed);
    let connected = async {
        let failure = |what: String| Refusal::new("egress/upstream-tls", what, "try again later");
        let tls = session.upstream_tls().map_err(|error| failure(format!("TLS can't be prepared: {error}")))?;
        let config = if offers_http2 { &tls.http1_and_2 } else { &tls.http1 };
        match timeout(session.limits.connect_time, tls::connect(config, to, dialled.stream)).await {
            Ok(connected) => connected,
            Err(_elapsed) => Err(failure(format!("{to} did not complete the TLS handshake in time"))),
        }
    };
    let stream = connected.await;
    let stream = stream.map_err(|refusal| {
        record.fail(refusal.message.clone());
        Page::failed(refusal)
    })?;
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        return http2_over(conn, stream, at, record).await;
    }
    http1_over(conn, stream, at, record).await
}

async fn http1_over<S>(conn: &Arc<Conn>, stream: S, at: At, record: &Record) -> Result<Connected, Page>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = http1::Builder::new()
        .max_buf_size(conn.link.session().limits.head_bytes)
        .handshake::<_, Body>(TokioIo::new(stream))
        .await;
    let (sender, driver) = handshake.map_err(|error| broken(&at.to, record, &error))?;
    conn.tasks.spawn(async move {
        // Requests report their errors themselves.
        let _ = driver.with_upgrades().await;
    });
    Ok(Connected::Http1(Http1 { sender, at }))
}

async fn http2_over<S>(conn: &Arc<Conn>, stream: S, at: At, record: &Record) -> Result<Connected, Page>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let session = conn.link.session();
    let head_bytes = u32::try_from(session.limits.head_bytes).unwrap_or(u32::MAX);
    let windows = Windows::far(session.budgets.connections());
    let handshake = http2::Builder::new(conn.tasks.clone())
        .timer(TokioTimer::new())
        .initial_stream_window_size(windows.stream)
        .initial_connection_window_size(windows.connection)
        .max_header_list_size(head_bytes)
        .handshake::<_, Body>(TokioIo::new(Heads::new(stream)))
        .await;
    let (sender, driver) = handshake.map_err(|error| broken(&at.to, record, &error))?;
    conn.tasks.spawn(async move {
        // Requests report their errors themselves.
        let _ = driver.await;
    });
    Ok(Connected::Http2(Http2 { sender, at }))
}

/// The server is away. Clients of models try again after this status.
fn no_models(record: &Record) -> Page {
    let message = format!("the server behind {MODEL_HOST} is not there, so no model can be called");
    record.fail(message.clone());
    Page::not_yet(Refusal::new("egress/models", message, "try again in a moment: it may be starting anew"))
}

/// An answer that can't be understood, or none.
pub(crate) fn broken(to: &Destination, record: &Record, error: &hyper::Error) -> Page {
    if to.is_of_models() {
        return no_models(record);
    }
    let what = if error.is_parse_too_large() {
        "its answer has too many or too long headers"
    } else if error.is_parse() {
        "its answer is not valid HTTP"
    } else if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        "it closed the connection without an answer"
    } else {
        "the connection broke"
    };
    record.fail(format!("{to}: {what}"));
    Page::failed(Refusal::new("egress/upstream", format!("{to} failed: {what}"), "try again, or check the server"))
}
