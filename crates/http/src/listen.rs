//! Connections: how many, how long each may be silent, and which protocol is spoken on one.
//!
//! Every wait for a peer has an end: for its first bytes, its TLS handshake, its headers, and for it to take what it asked for. Beyond the
//! cap an idle connection makes room; where none is idle, the new one is told so and closed.

mod connections;
mod foreign;
mod idle;
mod panics;
mod patience;
pub mod tls;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use saggar_api::{Code, PROBLEM_MEDIA_TYPE, Problem};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use self::connections::Connections;
use self::idle::{Counted, Load};
use self::panics::{ContainedExecutor, contained};
use self::patience::Patient;
use crate::request::context::Peer;

pub use self::connections::Bounds;
pub(crate) use self::connections::{Answering, Connection};
pub use self::panics::contain_panics;

/// How long a client may take to say what it speaks, to finish a handshake, and to send the headers of its next request.
const HEADERS_PATIENCE: Duration = Duration::from_secs(10);
/// How long a client may take nothing of what it asked for.
const WRITE_PATIENCE: Duration = Duration::from_secs(60);
/// Most headers of a request.
const HEADERS_MAX: usize = 100;
/// What HTTP/1 may hold of a connection: the headers, and then pieces of a body.
const BUFFER_MAX: usize = 256 * 1024;
/// Most requests at once on one HTTP/2 connection.
const STREAMS_MAX: u32 = 100;
/// Most streams that a client opened and reset before we came to them: more is a flood, and ends the connection.
const RESETS_MAX: usize = 20;
/// What may be under way to us on one HTTP/2 stream, and on all of a connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Headers of one HTTP/2 request, decoded.
const HEADER_LIST_MAX: u32 = 64 * 1024;
/// How often a silent HTTP/2 client is asked whether it is there, and how long it may take to say so.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_PATIENCE: Duration = Duration::from_secs(10);
/// How long an HTTP/2 connection may carry no request. HTTP/1 has the patience for headers.
const IDLE_PATIENCE: Duration = Duration::from_secs(15);
/// What an HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Takes connections until told to stop, then lets those that are there finish what they began, within `grace`.
pub async fn listen(
    listener: TcpListener,
    router: Router,
    tls: Option<TlsAcceptor>,
    bounds: Bounds,
    mut stopping: watch::Receiver<bool>,
    grace: Duration,
) {
    let connections = Connections::new(bounds);
    let full = full();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, mostly. Accepting again at once would spin until there are some.
                tracing::warn!(error = %error, "a connection can't be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(connection) = connections.admit(address.ip()) else {
            if tls.is_none() {
                // It fits the socket's empty buffer; a client that doesn't read it is no loss.
                let _ = stream.try_write(&full);
            }
            continue;
        };
        // Small answers should not wait for more to come.
        let _ = stream.set_nodelay(true);
        let (router, tls, stopping) = (router.clone(), tls.clone(), stopping.clone());
        tokio::spawn(contained(async move {
            let connection = Arc::new(connection);
            let peer = Peer { address: address.ip(), connection: Arc::clone(&connection) };
            let serving = async {
                match tls {
                    Some(tls) => serve_tls(stream, tls, router, peer, stopping).await,
                    None => serve_plain(stream, router, peer, stopping).await,
                }
            };
            tokio::select! {
                () = serving => {}
                () = connection.has_to_leave() => {}
            }
        }));
    }
    drop(listener);
    if tokio::time::timeout(grace, connections.none_left()).await.is_err() {
        tracing::info!("some requests were not finished in time, and are broken off");
    }
}

/// What is said to a connection that is one too many.
fn full() -> Vec<u8> {
    let problem = Problem::new(
        Code::Unavailable,
        "as many connections as may be are open",
        "close some, or try again after Retry-After",
    );
    let body = serde_json::to_string(&problem.retry_after(1)).unwrap_or_default();
    let head = "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n";
    format!("{head}content-type: {PROBLEM_MEDIA_TYPE}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

type Stopping = watch::Receiver<bool>;

async fn serve_tls(stream: TcpStream, tls: TlsAcceptor, router: Router, peer: Peer, stopping: Stopping) {
    match in_time(foreign::is_tls(&stream), &stopping).await {
        Some(Ok(true)) => {}
        Some(Ok(false)) => return foreign::answer_plain_http(stream).await,
        Some(Err(_)) | None => return,
    }
    let Some(Ok(stream)) = in_time(tls.accept(stream), &stopping).await else { return };
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    serve(stream, is_http2, router, peer, stopping).await;
}

async fn serve_plain(mut stream: TcpStream, router: Router, peer: Peer, stopping: Stopping) {
    match in_time(foreign::is_tls(&stream), &stopping).await {
        Some(Ok(false)) => {}
        Some(Ok(true)) => return foreign::refuse_tls(stream, peer.address),
        Some(Err(_)) | None => return,
    }
    let Some(Ok((is_http2, begun))) = in_time(first_bytes(&mut stream), &stopping).await else { return };
    serve(Begun { begun, taken: 0, stream }, is_http2, router, peer, stopping).await;
}

/// What comes of it, unless that takes too long, or the server is told to stop before anything was asked.
async fn in_time<T>(begin: impl Future<Output = T>, stopping: &Stopping) -> Option<T> {
    let mut stopping = stopping.clone();
    tokio::select! {
        outcome = tokio::time::timeout(HEADERS_PATIENCE, begin) => outcome.ok(),
        _ = stopping.wait_for(|stopping| *stopping) => None,
    }
}

/// Reads until it is clear whether HTTP/2 is spoken, and gives back what was read.
async fn first_bytes(stream: &mut TcpStream) -> std::io::Result<(bool, Vec<u8>)> {
    let mut begun = vec![0; PREFACE.len()];
    let mut length = 0;
    loop {
        let more = stream.read(&mut begun[length..]).await?;
        length += more;
        let is_preface = begun[..length] == PREFACE[..length];
        if more == 0 || length == PREFACE.len() || !is_preface {
            begun.truncate(length);
            return Ok((is_preface && length == PREFACE.len(), begun));
        }
    }
}

async fn serve<I>(stream: I, is_http2: bool, router: Router, peer: Peer, mut stopping: Stopping)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = TokioIo::new(Patient::new(stream, WRITE_PATIENCE));
    let service = FromPeer { service: TowerToHyperService::new(router), peer };
    // How a connection ends is the client's affair: it went away, spoke nonsense, or took too long.
    if is_http2 {
        let load = Load::default();
        let service = Counted { service, load: load.clone() };
        let mut connection = pin!(http2().serve_connection(stream, service));
        tokio::select! {
            _ = connection.as_mut() => return,
            () = load.idle(IDLE_PATIENCE) => connection.as_mut().graceful_shutdown(),
            _ = stopping.wait_for(|stopping| *stopping) => connection.as_mut().graceful_shutdown(),
        }
        // As above.
        let _ = connection.await;
    } else {
        let mut connection = pin!(http1().serve_connection(stream, service).with_upgrades());
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = stopping.wait_for(|stopping| *stopping) => connection.as_mut().graceful_shutdown(),
        }
        // As above.
        let _ = connection.await;
    }
}

/// A service whose requests carry who sent them.
struct FromPeer {
    service: TowerToHyperService<Router>,
    peer: Peer,
}

impl Service<Request<Incoming>> for FromPeer {
    type Response = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Response;
    type Error = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Error;
    type Future = <TowerToHyperService<Router> as Service<Request<Incoming>>>::Future;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.peer.clone());
        self.service.call(request)
    }
}

fn http1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_PATIENCE)
        .max_headers(HEADERS_MAX)
        .max_buf_size(BUFFER_MAX)
        .half_close(false);
    builder
}

fn http2() -> http2::Builder<ContainedExecutor> {
    let mut builder = http2::Builder::new(ContainedExecutor);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(RESETS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(HEADER_LIST_MAX)
        .max_send_buf_size(BUFFER_MAX)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_PATIENCE);
    builder
}

/// A stream of which something was read already.
struct Begun {
    begun: Vec<u8>,
    taken: usize,
    stream: TcpStream,
}

impl AsyncRead for Begun {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        let left = &self.begun[self.taken..];
        if left.is_empty() {
            return std::pin::Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let length = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..length]);
        self.taken += length;
        std::task::Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Begun {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        std::pin::Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> std::task::Poll<std::io::Result<usize>> {
        std::pin::Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
