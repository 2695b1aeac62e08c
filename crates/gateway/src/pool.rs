//! Connections to providers, kept for the next call. HTTP/1.1: one call at a time on each.
//!
//! Every connection is dialled through the checks of `egress`, by the rules of its provider alone. A call that is dropped closes its
//! connection at once, which is how a provider learns that nobody wants the rest.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use saggar_domain::net::Rules;
use saggar_egress::outside::{HttpAddress, Security};
use tokio::task::JoinHandle;

use crate::failure::{Failure, FailureKind};
use crate::world::World;

/// How long an idle connection is kept. Providers close theirs after a minute or more.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Idle connections of one provider.
const KEPT_MAX: usize = 256;
/// Maximum size of the headers of an answer, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Pool {
    idle: Mutex<HashMap<String, Vec<Idle>>>,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Instant,
}

#[derive(Debug)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// Held, so that the connection lives as long as this.
    _driver: Driver,
}

/// Closes the connection when it is dropped.
#[derive(Debug)]
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A connection that is in use. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct InUse {
    provider: String,
    connection: Connection,
}

pub(crate) struct Way<'a> {
    pub provider: &'a str,
    pub address: &'a HttpAddress,
    pub rules: &'a Rules,
    pub connect_timeout: Duration,
}

impl Pool {
    /// Sends a request and waits for the head of its answer. May be cancelled at any await; that closes the connection.
    pub(crate) async fn send(
        &self,
        world: &dyn World,
        way: &Way<'_>,
        request: &Request<Bytes>,
    ) -> Result<(Response<Incoming>, InUse), Failure> {
        while let Some(mut kept) = self.take(way.provider) {
            if kept.sender.ready().await.is_err() {
                continue;
            }
            match kept.sender.send_request(copy(request)).await {
                Ok(response) => return Ok((response, self.in_use(way, kept))),
                // It was closed before anything was sent.
                Err(error) if error.is_canceled() || error.is_closed() => continue,
                // The usual end of an idle connection: the request was sent into a connection that the provider had closed. No part
                // of an answer came, and it is sent once more over a new one.
                Err(error) if error.is_incomplete_message() => break,
                Err(error) => return Err(broken(way, &error)),
            }
        }
        let mut connection = Box::pin(connect(world, way)).await?;
        match connection.sender.send_request(copy(request)).await {
            Ok(response) => Ok((response, self.in_use(way, connection))),
            Err(error) => Err(broken(way, &error)),
        }
    }

    /// Keeps a connection whose answer has been read to its end.
    pub(crate) fn give_back(&self, used: InUse) {
        let InUse { provider, connection } = used;
        if connection.sender.is_closed() {
            return;
        }
        let now = Instant::now();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle.entry(provider).or_default();
        kept.retain(|idle| now.duration_since(idle.since) < IDLE_MAX);
        if kept.len() < KEPT_MAX {
            kept.push(Idle { connection, since: now });
        }
    }

    fn take(&self, provider: &str) -> Option<Connection> {
        let now = Instant::now();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = idle.get_mut(provider)?;
        while let Some(Idle { connection, since }) = kept.pop() {
            if now.duration_since(since) < IDLE_MAX && !connection.sender.is_closed() {
                return Some(connection);
            }
        }
        None
    }

    fn in_use(&self, way: &Way<'_>, connection: Connection) -> InUse {
        InUse { provider: way.provider.to_owned(), connection }
    }
}

fn copy(request: &Request<Bytes>) -> Request<Full<Bytes>> {
    let mut copied = Request::new(Full::new(request.body().clone()));
    request.method().clone_into(copied.method_mut());
    request.uri().clone_into(copied.uri_mut());
    request.headers().clone_into(copied.headers_mut());
    copied
}

async fn connect(world: &dyn World, way: &Way<'_>) -> Result<Connection, Failure> {
    let failed = |what: String| {
        Failure::new(FailureKind::Upstream, format!("provider {} can't be reached: {what}", way.provider))
    };
    let out = world.way_out().await.map_err(failed)?;
    let rules = way.rules.clone().with_own_addresses(out.own);
    let (to, security): (_, Security) = (way.address.to(), way.address.security());
    // Large futures are boxed: each would lie in those of all its callers, on a small stack.
    let connected = Box::pin(out.outside.connect(to, &rules, security, way.connect_timeout)).await;
    let connected = connected.map_err(|error| failed(error.to_string()))?;
    let handshake =
        Builder::new().max_buf_size(HEAD_BYTES_MAX.max(8192)).handshake(TokioIo::new(connected.stream)).await;
    let (sender, driver) = handshake.map_err(|error| failed(error.to_string()))?;
    let driver = tokio::spawn(async move {
        // Errors are reported to the call.
        let _ = driver.await;
    });
    Ok(Connection { sender, _driver: Driver(driver) })
}

fn broken(way: &Way<'_>, error: &hyper::Error) -> Failure {
    let what = if error.is_parse_too_large() {
        "its answer has too many or too long headers"
    } else if error.is_parse() {
        "its answer is not valid HTTP"
    } else {
        "it closed the connection without an answer"
    };
    Failure::new(FailureKind::Upstream, format!("provider {} failed: {what}", way.provider))
}
