//! One HTTP connection of a program in the sandbox.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use saggar_domain::net::{Destination, Passage, Protocol, Refusal};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::http::body::Body;
use crate::http::check::{self, Scheme};
use crate::http::forward::{self, Ended};
use crate::http::framing::{Framed, Framing};
use crate::http::upgrade::Upgrade;
use crate::http::upstream::Upstreams;
use crate::limits::{STREAMS_MAX, Windows};
use crate::link::Link;
use crate::passage::{Client, Opening};
use crate::record::{Asked, Record};
use crate::refuse::Page;
use crate::tasks::{OwnedTasks, Tasks};

pub(crate) struct Conn {
    pub link: Arc<Link>,
    pub tasks: Tasks,
    /// Where the connection leads. A proxy's requests name their own destination.
    pub to: Option<Arc<Destination>>,
    /// The destination as a `Host` header has it.
    pub authority: HeaderValue,
    pub scheme: Scheme,
    pub mode: Mode,
    pub upstreams: Upstreams,
    pub framing: Arc<Framing>,
    was_used: AtomicBool,
    next: Mutex<Option<Next>>,
}

pub(crate) enum Mode {
    /// Each request is decided.
    Forward,
    /// The same, for requests that name their destination, and CONNECT.
    Proxy,
    /// Each request is answered with this page, and recorded as denied.
    Refuse(Page),
    /// Each request is answered with this page. The connection is in the records already.
    Show(Page),
}

/// What a connection becomes after HTTP.
pub(crate) enum Next {
    Upgrade(Upgrade),
    Connect(Opening, OnUpgrade),
}

impl Conn {
    pub fn new(link: Arc<Link>, to: Option<Arc<Destination>>, scheme: Scheme, mode: Mode) -> Self {
        let authority = to.as_ref().map(|to| check::authority(to, scheme)).unwrap_or_default();
        Self {
            link,
            tasks: Tasks::default(),
            to,
            // A canonical host is plain ASCII.
            authority: HeaderValue::from_str(&authority).unwrap_or_else(|_| HeaderValue::from_static("")),
            scheme,
            mode,
            upstreams: Upstreams::for_http1(),
            framing: Arc::default(),
            was_used: AtomicBool::new(false),
            next: Mutex::default(),
        }
    }

    /// Called before the answer that ends HTTP.
    pub fn after(&self, next: Next) {
        self.framing.end();
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
    }

    /// Until the connection ends or is cut. Cancelling ends everything that belongs to it.
    pub async fn serve_http1<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let conn = Arc::new(self);
        let _tasks = OwnedTasks(conn.tasks.clone());
        let serving = async {
            let served = conn.http1(stream).await;
            match conn.take_next() {
                Some(Next::Upgrade(upgrade)) => upgrade.run().await,
                Some(Next::Connect(..)) | None => conn.ended(served.err()),
            }
        };
        tokio::select! {
            () = serving => {}
            () = conn.link.until_cut() => {}
        }
    }

    pub async fn serve_http2<S>(mut self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.upstreams = Upstreams::for_http2(self.scheme);
        let conn = Arc::new(self);
        let _tasks = OwnedTasks(conn.tasks.clone());
        let session = conn.link.session();
        let head_bytes = u32::try_from(session.limits.head_bytes).unwrap_or(u32::MAX);
        let windows = Windows::near(session.open_connections());
        let serving = http2::Builder::new(conn.tasks.clone())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .initial_stream_window_size(windows.stream)
            .initial_connection_window_size(windows.connection)
            .max_send_buf_size(windows.stream as usize)
            .max_header_list_size(head_bytes)
            .auto_date_header(false)
            .serve_connection(TokioIo::new(stream), Service(Arc::clone(&conn)));
        tokio::select! {
            served = serving => conn.ended(served.err()),
            () = conn.link.until_cut() => {}
        }
    }

    /// A proxy's connection: until it ends, or becomes a tunnel by CONNECT.
    pub async fn serve_proxy(self, stream: TcpStream) -> Option<(Opening, Client)> {
        let conn = Arc::new(self);
        let _tasks = OwnedTasks(conn.tasks.clone());
        let serving = async {
            let served = conn.http1(stream).await;
            match conn.take_next() {
                Some(Next::Upgrade(upgrade)) => upgrade.run().await,
                Some(Next::Connect(opening, client)) => {
                    let parts = client.await.ok()?.downcast::<TokioIo<Framed<TcpStream>>>().ok()?;
                    let stream = parts.io.into_inner().into_inner();
                    return Some((opening, Client { stream, ahead: parts.read_buf.to_vec() }));
                }
                None => conn.ended(served.err()),
            }
            None
        };
        tokio::select! {
            became = serving => became,
            () = conn.link.until_cut() => None,
        }
    }

    async fn http1<S>(self: &Arc<Self>, stream: S) -> hyper::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limits = &self.link.session().limits;
        let stream = Framed::new(stream, Arc::clone(&self.framing));
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_time)
            .max_buf_size(limits.head_bytes)
            .auto_date_header(false)
            .serve_connection(TokioIo::new(stream), Service(Arc::clone(self)))
            .with_upgrades()
            .await
    }

    /// Records what no request was recorded for: bytes that are no request, or a denied destination that was asked nothing.
    fn ended(&self, error: Option<hyper::Error>) {
        if matches!(self.mode, Mode::Show(_)) {
            return;
        }
        let protocol = match (self.scheme, &self.mode) {
            (_, Mode::Proxy) => Protocol::Connect,
            (Scheme::Http, _) => Protocol::Http,
            (Scheme::Https, _) => Protocol::Https,
        };
        let denied = match self.to.as_ref().map(|to| (to, self.link.session().rules().connection(to))) {
            Some((to, Passage::Denied(refusal))) if !self.was_used.load(Ordering::Relaxed) => {
                Some(self.link.explained(to, refusal))
            }
            _ => None,
        };
        let malformed = error.filter(|error| error.is_parse() || error.is_parse_too_large()).map(|error| {
            Refusal::new(
                "egress/malformed-request",
                format!("the request is not valid HTTP: {error}"),
                "check the program",
            )
        });
        if let Some(refusal) = denied.or(malformed) {
            let to = self.to.clone().unwrap_or_else(forward::nowhere);
            Record::new(&self.link, to, Asked::Connection(protocol)).deny(&refusal);
        }
    }

    fn take_next(&self) -> Option<Next> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

struct Service(Arc<Conn>);

impl hyper::service::Service<Request<Incoming>> for Service {
    type Response = Response<Body>;
    type Error = Ended;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Ended>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.0.was_used.store(true, Ordering::Relaxed);
        Box::pin(forward::handle(Arc::clone(&self.0), request))
    }
}
