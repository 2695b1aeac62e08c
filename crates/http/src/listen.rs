//! Connections: their number, their timeouts, and protocol detection.
//!
//! Every wait for a peer has a time limit: for its first bytes, its TLS handshake, its headers, and for reading the
//! response. If the limit of connections is reached, an idle one is closed; if none is idle, the new one gets an
//! error and is closed.

mod caller;
mod connections;
mod foreign;
mod idle;
mod panics;
mod patience;
pub mod tls;
mod unix;

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
use saggar_domain::SandboxId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;

use self::connections::Connections;
use self::idle::{Counted, Load};
use self::panics::{ContainedExecutor, contained};
use self::patience::Patient;
use crate::request::context::Peer;

pub use self::caller::Caller;
pub use self::connections::Bounds;
pub(crate) use self::connections::{Answering, Connection};
pub use self::panics::contain_panics;
pub use self::unix::{LocalSocket, LocalSocketError};

/// Time limit for a client's first bytes, for the handshake, and for the headers of its next request.
const HEADERS_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum time in which a client reads nothing of its response.
const WRITE_PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of headers of a request.
const HEADERS_MAX: usize = 100;
/// HTTP/1 read buffer: the headers, and then pieces of a body.
const BUFFER_MAX: usize = 256 * 1024;
/// Maximum number of concurrent requests on one HTTP/2 connection.
const STREAMS_MAX: u32 = 100;
/// Maximum number of streams that a client opened and reset before we handled them: more is a flood, and ends the
/// connection.
const RESETS_MAX: usize = 20;
/// Receive windows of one HTTP/2 stream, and of a whole connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// Maximum size of the decoded headers of one HTTP/2 request.
const HEADER_LIST_MAX: u32 = 64 * 1024;
/// Interval of pings to a silent HTTP/2 client, and the time limit of its reply.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum time of an HTTP/2 connection without a request. HTTP/1 has the time limit of headers.
const IDLE_PATIENCE: Duration = Duration::from_secs(15);
/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Accepts connections until told to stop, then lets requests in progress finish, within `grace`.
pub async fn listen(
    listener: TcpListener,
    local: Option<LocalSocket>,
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
            accepted = listener.accept() => accepted.map(|(stream, address)| (Arrived::Tcp(stream), Caller::Network(address.ip()))),
            accepted = unix::accept(local.as_ref()) => accepted.map(|(stream, caller)| (Arrived::Unix(stream), caller)),
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        let (stream, caller) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Usually out of descriptors. Accepting again at once would spin until there are some.
                tracing::warn!(error = %error, "accepting a connection failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(connection) = connections.admit(caller.clone()) else {
            // It fits the socket's empty buffer; a client that doesn't read it doesn't matter.
            let _ = match &stream {
                Arrived::Tcp(stream) if tls.is_none() => stream.try_write(&full),
                Arrived::Tcp(_) => Ok(0),
                Arrived::Unix(stream) => stream.try_write(&full),
            };
            continue;
        };
        let peer = Peer { caller, connection: Arc::new(connection) };
        let (router, tls, stopping) = (router.clone(), tls.clone(), stopping.clone());
        tokio::spawn(contained(async move {
            let connection = Arc::clone(&peer.connection);
            let serving = async {
                match (stream, tls) {
                    (Arrived::Tcp(stream), tls) => {
                        // Small responses should not wait for more data.
                        let _ = stream.set_nodelay(true);
                        match tls {
                            Some(tls) => serve_tls(stream, tls, router, peer, stopping).await,
                            None => serve_plain(stream, router, peer, stopping).await,
                        }
                    }
                    (Arrived::Unix(stream), _) => serve_begun(stream, router, peer, stopping).await,
                }
            };
            tokio::select! {
                () = serving => {}
                () = connection.has_to_leave() => {}
            }
        }));
    }
    drop((listener, local));
    if tokio::time::timeout(grace, connections.none_left()).await.is_err() {
        tracing::info!("interrupted requests that did not finish within the grace period");
    }
}

/// The same for connections that are handed over, of programs in sandboxes.
pub async fn listen_inside(
    mut arriving: mpsc::Receiver<(SandboxId, UnixStream)>,
    router: Router,
    bounds: Bounds,
    mut stopping: watch::Receiver<bool>,
    grace: Duration,
) {
    let connections = Connections::new(bounds);
    loop {
        let (sandbox, stream) = tokio::select! {
            Some(arrived) = arriving.recv() => arrived,
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        let caller = Caller::Sandbox(sandbox);
        // One that is closed unanswered is told to try again by the egress process.
        let Some(connection) = connections.admit(caller.clone()) else { continue };
        let peer = Peer { caller, connection: Arc::new(connection) };
        let (router, stopping) = (router.clone(), stopping.clone());
        tokio::spawn(contained(async move {
            let connection = Arc::clone(&peer.connection);
            tokio::select! {
                () = serve_begun(stream, router, peer, stopping) => {}
                () = connection.has_to_leave() => {}
            }
        }));
    }
    drop(arriving);
    // Who is not done by then is told to try again, too.
    let _ = tokio::time::timeout(grace, connections.none_left()).await;
}

/// A new connection.
enum Arrived {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The response to a connection beyond the limit.
fn full() -> Vec<u8> {
    let problem = Problem::new(
        Code::Unavailable,
        "the limit of open connections is reached",
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

async fn serve_plain(stream: TcpStream, router: Router, peer: Peer, stopping: Stopping) {
    match in_time(foreign::is_tls(&stream), &stopping).await {
        Some(Ok(false)) => {}
        Some(Ok(true)) => return foreign::refuse_tls(stream, peer.caller),
        Some(Err(_)) | None => return,
    }
    serve_begun(stream, router, peer, stopping).await;
}

/// Without TLS: on a loopback address, behind a proxy, or on a socket that never leaves this host.
async fn serve_begun<I>(mut stream: I, router: Router, peer: Peer, stopping: Stopping)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(Ok((is_http2, begun))) = in_time(first_bytes(&mut stream), &stopping).await else { return };
    serve(Begun { begun, taken: 0, stream }, is_http2, router, peer, stopping).await;
}

/// The result, unless it takes too long, or the server stops before a request arrived.
async fn in_time<T>(begin: impl Future<Output = T>, stopping: &Stopping) -> Option<T> {
    let mut stopping = stopping.clone();
    tokio::select! {
        outcome = tokio::time::timeout(HEADERS_PATIENCE, begin) => outcome.ok(),
        _ = stopping.wait_for(|stopping| *stopping) => None,
    }
}

/// Reads until it is clear whether the client uses HTTP/2, and returns the bytes.
async fn first_bytes(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<(bool, Vec<u8>)> {
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
    // Errors of a connection are the client's: it disconnected, violated the protocol, or took too long.
    if is_http2 {
        let load = Load::default();
        let service = Counted { service, load: load.clone() };
        let mut connection = pin!(http2().serve_connection(stream, service));
        tokio::select! {
            _ = connection.as_mut() => return,
            () = load.idle(IDLE_PATIENCE) => connection.as_mut().graceful_shutdown(),
            _ = stopping.wait_for(|stopping| *stopping) => connection.as_mut().graceful_shutdown(),
        }
        // Errors of a connection are the client's, as above.
        let _ = connection.await;
    } else {
        let mut connection = pin!(http1().serve_connection(stream, service).with_upgrades());
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = stopping.wait_for(|stopping| *stopping) => connection.as_mut().graceful_shutdown(),
        }
        // Errors of a connection are the client's, as above.
        let _ = connection.await;
    }
}

/// A service whose requests have the peer's address.
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

/// A stream of which some bytes were already read.
struct Begun<I> {
    begun: Vec<u8>,
    taken: usize,
    stream: I,
}

impl<I: AsyncRead + Unpin> AsyncRead for Begun<I> {
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

impl<I: AsyncWrite + Unpin> AsyncWrite for Begun<I> {
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
