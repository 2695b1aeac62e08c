//! A server of the world. It answers by path, counts what reaches it, and waits for the test where order matters.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;

pub type Body = BoxBody<Bytes, hyper::Error>;

/// What a server saw of a request.
#[derive(Clone, Debug)]
pub struct Seen {
    pub target: String,
    pub version: Version,
    pub headers: HeaderMap,
}

pub struct Server {
    pub address: SocketAddr,
    pub connections: AtomicUsize,
    pub requests: Mutex<Vec<Seen>>,
    /// The test lets the server send one more piece of a stream.
    pub go: Semaphore,
}

impl Server {
    pub async fn start(tls: Option<Arc<ServerConfig>>) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self::new(&listener);
        let serving = Arc::clone(&server);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                serving.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(Arc::clone(&serving).connection(stream, tls.clone()));
            }
        });
        server
    }

    /// Sends back what it gets, byte by byte, without any protocol; says goodbye after the end.
    pub async fn start_echo() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self::new(&listener);
        let serving = Arc::clone(&server);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                serving.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                        if stream.write_all(&buffer[..count]).await.is_err() {
                            return;
                        }
                    }
                    // The client may be gone.
                    let _ = stream.write_all(b"goodbye").await;
                });
            }
        });
        server
    }

    /// Sends the same bytes over and over, as soon as something came.
    pub async fn start_repeating(piece: &'static [u8]) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self::new(&listener);
        let serving = Arc::clone(&server);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let serving = Arc::clone(&serving);
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    if stream.read(&mut buffer).await.is_ok() {
                        while stream.write_all(piece).await.is_ok() {}
                        serving.go.add_permits(1);
                    }
                });
            }
        });
        server
    }

    /// Speaks HTTP/2, and sends interim answers to its first request without end.
    pub async fn start_hinting(tls: Arc<ServerConfig>) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self::new(&listener);
        let serving = Arc::clone(&server);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, serving) = (Arc::clone(&tls), Arc::clone(&serving));
                tokio::spawn(async move {
                    let Ok(mut stream) = TlsAcceptor::from(tls).accept(stream).await else { return };
                    // Empty settings; then the whole request has come with the first bytes or soon after.
                    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
                    let mut got = Vec::new();
                    // A frame with headers on stream 1.
                    while !got.windows(6).any(|window| window[0] == 1 && window[2..] == [0, 0, 0, 1]) {
                        got.push(stream.read_u8().await.unwrap());
                    }
                    // `:status: 103`, on stream 1.
                    let hint = [0, 0, 5, 1, 4, 0, 0, 0, 1, 8, 3, b'1', b'0', b'3'];
                    while stream.write_all(&hint).await.is_ok() && stream.flush().await.is_ok() {}
                    serving.go.add_permits(1);
                });
            }
        });
        server
    }

    /// Answers with fixed bytes in TLS and closes the connection without TLS's own goodbye.
    pub async fn start_abrupt(tls: Arc<ServerConfig>, answer: &'static [u8]) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self::new(&listener);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let tls = Arc::clone(&tls);
                tokio::spawn(async move {
                    let Ok(mut stream) = TlsAcceptor::from(tls).accept(stream).await else { return };
                    let mut buffer = [0; 4096];
                    if stream.read(&mut buffer).await.is_ok() {
                        stream.write_all(answer).await.unwrap();
                        stream.flush().await.unwrap();
                        let (mut socket, _) = stream.into_inner();
                        socket.shutdown().await.unwrap();
                    }
                });
            }
        });
        server
    }

    /// Answers each connection with fixed bytes, as soon as something came.
    pub async fn start_fixed(answer: Vec<u8>) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self::new(&listener);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let answer = answer.clone();
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    if stream.read(&mut buffer).await.is_ok() {
                        // The client may have seen enough.
                        let _ = stream.write_all(&answer).await;
                    }
                });
            }
        });
        server
    }

    fn new(listener: &TcpListener) -> Arc<Self> {
        Arc::new(Self {
            address: listener.local_addr().unwrap(),
            connections: AtomicUsize::new(0),
            requests: Mutex::default(),
            go: Semaphore::new(0),
        })
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.requests.lock().unwrap().clone()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    async fn connection(self: Arc<Self>, stream: TcpStream, tls: Option<Arc<ServerConfig>>) {
        let service = {
            let server = Arc::clone(&self);
            service_fn(move |request| {
                let server = Arc::clone(&server);
                async move { Ok::<_, Infallible>(server.answer(request).await) }
            })
        };
        let Some(tls) = tls else {
            // Clients see what fails.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades().await;
            return;
        };
        let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await else { return };
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            // Clients see what fails.
            let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        } else {
            // Clients see what fails.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades().await;
        }
    }

    async fn answer(self: Arc<Self>, mut request: Request<Incoming>) -> Response<Body> {
        self.requests.lock().unwrap().push(Seen {
            target: request.uri().to_string(),
            version: request.version(),
            headers: request.headers().clone(),
        });
        match request.uri().path() {
            "/echo" => Response::new(request.into_body().boxed()),
            "/redirect" => {
                let mut response = Response::new(text(""));
                *response.status_mut() = StatusCode::FOUND;
                response.headers_mut().insert("location", HeaderValue::from_static("https://denied.test/"));
                response
            }
            path if path.starts_with("/shown") => crate::shown::answer(request).await,
            "/stream" => self.stream(),
            "/endless" => Response::new(endless()),
            "/trailers" => trailers(request).await,
            "/whole" => match request.into_body().collect().await {
                Ok(_) => Response::new(text("whole")),
                // The connection is gone, and so is this answer.
                Err(_) => Response::new(text("")),
            },
            "/hop" => {
                let mut response = Response::new(text("hop"));
                response.headers_mut().insert("proxy-authenticate", HeaderValue::from_static("Basic"));
                response.headers_mut().insert("x-end", HeaderValue::from_static("1"));
                response
            }
            "/websocket" => {
                let accept = tokio_tungstenite::tungstenite::handshake::derive_accept_key(
                    request.headers()["sec-websocket-key"].as_bytes(),
                );
                let upgrade = hyper::upgrade::on(&mut request);
                tokio::spawn(websocket_echo(upgrade));
                let mut response = Response::new(text(""));
                *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                for (name, value) in [("connection", "Upgrade"), ("upgrade", "websocket")] {
                    response.headers_mut().insert(name, HeaderValue::from_static(value));
                }
                response.headers_mut().insert("sec-websocket-accept", accept.parse().unwrap());
                response
            }
            _ => Response::new(text("hello")),
        }
    }

    /// One piece for each permit that the test gives.
    fn stream(self: Arc<Self>) -> Response<Body> {
        let (sender, receiver) = mpsc::channel::<Result<Frame<Bytes>, hyper::Error>>(1);
        tokio::spawn(async move {
            loop {
                self.go.acquire().await.unwrap().forget();
                if sender.send(Ok(Frame::data(Bytes::from_static(b"data: piece\n\n")))).await.is_err() {
                    return;
                }
            }
        });
        let mut response = Response::new(BodyExt::boxed(StreamBody::new(stream_of(receiver))));
        response.headers_mut().insert("content-type", HeaderValue::from_static("text/event-stream"));
        response
    }
}

fn stream_of(
    receiver: mpsc::Receiver<Result<Frame<Bytes>, hyper::Error>>,
) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, hyper::Error>> {
    futures_util::stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) })
}

fn endless() -> Body {
    let piece = Bytes::from(vec![b'x'; 16 * 1024]);
    let pieces = futures_util::stream::repeat_with(move || Ok(Frame::data(piece.clone())));
    BodyExt::boxed(StreamBody::new(pieces))
}

/// As gRPC does: the status comes after the body.
async fn trailers(request: Request<Incoming>) -> Response<Body> {
    let got = request.into_body().collect().await.unwrap().to_bytes();
    let mut after = HeaderMap::new();
    after.insert("grpc-status", HeaderValue::from_static("0"));
    let frames = futures_util::stream::iter([Ok(Frame::data(got)), Ok(Frame::trailers(after))]);
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(frames)));
    response.headers_mut().insert("trailer", HeaderValue::from_static("grpc-status"));
    response
}

async fn websocket_echo(upgrade: hyper::upgrade::OnUpgrade) {
    use futures_util::{SinkExt as _, StreamExt as _};
    let Ok(upgraded) = upgrade.await else { return };
    let role = tokio_tungstenite::tungstenite::protocol::Role::Server;
    let mut socket = tokio_tungstenite::WebSocketStream::from_raw_socket(TokioIo::new(upgraded), role, None).await;
    while let Some(Ok(message)) = socket.next().await {
        if message.is_text() && socket.send(message).await.is_err() {
            return;
        }
    }
}

fn text(text: &'static str) -> Body {
    if text.is_empty() {
        return Empty::new().map_err(|never| match never {}).boxed();
    }
    Full::new(Bytes::from_static(text.as_bytes())).map_err(|never| match never {}).boxed()
}
