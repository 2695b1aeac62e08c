//! Forwards one request to a program inside, and its response back.
//!
//! Each request has its own connection into the sandbox, so that nothing leaks from one request to another.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::header::{CONNECTION, HOST, ORIGIN, UPGRADE};
use http::{HeaderValue, StatusCode, Uri, Version};
use http_body_util::BodyExt;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use saggar_api::Code;
use saggar_runtime::{OpenPort, Permit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use super::token::{self, Shown};
use super::{Destination, headers};
use crate::access;
use crate::gate::{Gate, Shared};
use crate::refusal::Refusal;
use crate::request::context;

/// Time limit for the program inside to begin its response.
const ANSWER_PATIENCE: Duration = Duration::from_secs(300);
/// How often traffic is recorded as activity.
const TOUCH_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of headers of a response from inside.
const HEADERS_MAX: usize = 256;
/// Buffer for a response from inside, its headers included.
const BUFFER_MAX: usize = 256 * 1024;

/// Forwards an authorised request.
pub async fn forward(server: Shared, request: Request, destination: Destination) -> Response {
    match try_forward(server, request, destination).await {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(),
    }
}

async fn try_forward(server: Shared, mut request: Request, destination: Destination) -> Result<Response, Refusal> {
    let upgrade = headers::upgrade(request.headers());
    let shown = token::shown(request.headers(), &destination.path);
    let token = shown.as_ref().map(Shown::token);
    let permit = access::port(&server, request.headers(), token, &destination.id, destination.port).await?;
    if matches!(shown, Some(Shown::Cookie(_))) && upgrade.is_some() {
        check_page(&request)?;
    }
    if token::becomes_cookie(shown.as_ref(), request.method(), upgrade.is_some()) {
        let token = token.unwrap_or_default();
        return Ok(token::to_cookie(token, &destination, server.settings.tls));
    }
    let OpenPort { stream, host } = server.sandboxes.connect_port(&permit).await?;
    let ours = hyper::upgrade::on(&mut request);
    let request = inside(&server, request, &destination, host.as_deref(), upgrade.as_ref())?;
    let traffic = Traffic::default();
    let mut response = exchange(stream, request, &destination, &traffic).await?;
    let theirs = hyper::upgrade::on(&mut response);
    let (mut parts, body) = response.into_parts();
    let upgraded = parts.headers.get(UPGRADE).cloned();
    headers::clean_answer(&mut parts.headers, &destination.named_by);
    parts.version = Version::HTTP_11;
    if parts.status != StatusCode::SWITCHING_PROTOCOLS {
        let watched = traffic.clone();
        let body = body.map_frame(move |frame| {
            watched.note();
            frame
        });
        touch_while(server, permit, traffic);
        return Ok(Response::from_parts(parts, Body::new(body)));
    }
    let (Some(_), Some(upgraded)) = (upgrade, upgraded) else {
        return Err(broken(&destination, "changed the protocol without a request"));
    };
    parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    parts.headers.insert(UPGRADE, upgraded);
    let held = context::hold();
    tokio::spawn(async move {
        let _held = held;
        let (Ok(ours), Ok(theirs)) = tokio::join!(ours, theirs) else { return };
        let mut ours = Noted { stream: TokioIo::new(ours), traffic: traffic.clone() };
        let mut theirs = TokioIo::new(theirs);
        touch_while(server.clone(), permit, traffic);
        tokio::select! {
            // If one side ends, the other gets the end of the stream.
            _ = tokio::io::copy_bidirectional(&mut ours, &mut theirs) => {}
            () = server.stops() => {}
        }
    });
    Ok(Response::from_parts(parts, Body::empty()))
}

/// Browsers send cookies with any request, so its origin must show that it comes from our page.
fn check_page(request: &Request) -> Result<(), Refusal> {
    let text = |name| request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let origin = text(ORIGIN).and_then(|origin| origin.split_once("://")).map(|(_, host)| host.to_ascii_lowercase());
    let host = text(HOST).map(str::to_ascii_lowercase);
    if origin.is_some() && origin == host {
        return Ok(());
    }
    Err(Refusal::new(
        Code::Forbidden,
        "a page of another origin may not open a WebSocket with a cookie",
        "send the token as `Saggar-Access-Token`",
    ))
}

/// The request in the form that the program inside gets.
fn inside(
    server: &Gate,
    mut request: Request,
    destination: &Destination,
    mask: Option<&str>,
    upgrade: Option<&HeaderValue>,
) -> Result<Request, Refusal> {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).map(str::to_owned);
    let path = token::without(&destination.path);
    *request.uri_mut() = Uri::from(path);
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    headers::strip_connection(headers);
    headers::strip_credentials(headers);
    headers::address(headers, destination, host.as_deref(), mask, server.settings.tls);
    if let Some(upgrade) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, upgrade.clone());
    }
    Ok(request)
}

async fn exchange(
    stream: UnixStream,
    request: Request,
    destination: &Destination,
    traffic: &Traffic,
) -> Result<http::Response<hyper::body::Incoming>, Refusal> {
    let mut builder = http1::Builder::new();
    builder.max_headers(HEADERS_MAX).max_buf_size(BUFFER_MAX);
    let handshake = builder.handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|_| broken(destination, "closed the connection"))?;
    // It ends with either side; the caller sees how.
    tokio::spawn(connection.with_upgrades());
    let watched = traffic.clone();
    let request = request.map(|body| {
        Body::new(body.map_frame(move |frame| {
            watched.note();
            frame
        }))
    });
    match tokio::time::timeout(ANSWER_PATIENCE, sender.send_request(request)).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(_)) => Err(broken(destination, "closed the connection, or doesn't use HTTP")),
        Err(_) => Err(Refusal::new(
            Code::SandboxTimeout,
            format!("the program on port {} of sandbox {} does not respond", destination.port, destination.id),
            "check the program inside",
        )),
    }
}

fn broken(destination: &Destination, what: &str) -> Refusal {
    Refusal::new(
        Code::PortRefused,
        format!("the program on port {} of sandbox {} {what}", destination.port, destination.id),
        "check the program inside",
    )
}

/// Whether there was traffic since the last check.
#[derive(Clone, Debug, Default)]
struct Traffic(Arc<AtomicBool>);

impl Traffic {
    fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Records traffic as activity of the sandbox, as long as another reference to `traffic` exists.
fn touch_while(server: Shared, permit: Permit, traffic: Traffic) {
    tokio::spawn(async move {
        let seen = Arc::downgrade(&traffic.0);
        drop(traffic);
        loop {
            tokio::time::sleep(TOUCH_EVERY).await;
            let Some(passed) = seen.upgrade() else { return };
            if passed.swap(false, Ordering::Relaxed) {
                server.sandboxes.touch(&permit).await;
            }
        }
    });
}

/// A stream whose traffic is recorded.
struct Noted<I> {
    stream: I,
    traffic: Traffic,
}

impl<I: AsyncRead + Unpin> AsyncRead for Noted<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if outcome.is_ready() {
            self.traffic.note();
        }
        outcome
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Noted<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.traffic.note();
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
