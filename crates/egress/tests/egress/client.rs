//! Programs in the sandbox: TLS and HTTP clients, and bytes as they are.

use std::sync::Arc;

use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::ext::ReasonPhrase;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::sandbox::{DEADLINE, Sandbox};

pub const HTTP1: &[&str] = &["http/1.1"];
pub const HTTP2: &[&str] = &["h2"];

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub phrase: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
}

impl Answer {
    pub fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap()
    }

    pub fn rule(&self) -> &str {
        self.headers.get("x-saggar-rule").map_or("", |rule| rule.to_str().unwrap())
    }
}

/// A client that trusts the authorities in `pem` and nothing else.
pub async fn tls(
    stream: TcpStream,
    name: &str,
    pem: &str,
    alpn: &[&str],
) -> Result<TlsStream<TcpStream>, std::io::Error> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    timeout(DEADLINE, TlsConnector::from(Arc::new(config)).connect(name, stream)).await.unwrap()
}

pub async fn http1<S>(stream: S) -> http1::SendRequest<Full<Bytes>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, driver) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(driver.with_upgrades());
    sender
}

pub async fn http2<S>(stream: S) -> http2::SendRequest<Full<Bytes>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, driver) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(driver);
    sender
}

/// A connection to an inspected or denied host, by HTTP/1.1.
pub async fn https1(sandbox: &Sandbox, host: &str) -> http1::SendRequest<Full<Bytes>> {
    let stream = tls(sandbox.dial(host, 443).await, host, &sandbox.ca_pem, HTTP1).await.unwrap();
    http1(stream).await
}

pub async fn https2(sandbox: &Sandbox, host: &str) -> http2::SendRequest<Full<Bytes>> {
    let stream = tls(sandbox.dial(host, 443).await, host, &sandbox.ca_pem, HTTP2).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    http2(stream).await
}

pub async fn plain(sandbox: &Sandbox, host: &str) -> http1::SendRequest<Full<Bytes>> {
    http1(sandbox.dial(host, 80).await).await
}

pub fn request(method: &str, uri: &str, host: &str) -> Request<Full<Bytes>> {
    with_body(method, uri, host, "")
}

pub fn with_body(method: &str, uri: &str, host: &str, body: &str) -> Request<Full<Bytes>> {
    let request = Request::builder().method(method).uri(uri);
    let request = if host.is_empty() { request } else { request.header("host", host) };
    request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()
}

pub fn get(host: &str, path: &str) -> Request<Full<Bytes>> {
    request("GET", path, host)
}

pub async fn send1(sender: &mut http1::SendRequest<Full<Bytes>>, request: Request<Full<Bytes>>) -> Answer {
    timeout(DEADLINE, sender.ready()).await.expect("in time").expect("an open connection");
    let response = timeout(DEADLINE, sender.send_request(request)).await.expect("in time").expect("an answer");
    collect(response).await
}

pub async fn send2(sender: &mut http2::SendRequest<Full<Bytes>>, request: Request<Full<Bytes>>) -> Answer {
    let response = timeout(DEADLINE, sender.send_request(request)).await.expect("in time").expect("an answer");
    collect(response).await
}

pub async fn collect(response: http::Response<Incoming>) -> Answer {
    let (parts, body) = response.into_parts();
    let phrase = parts.extensions.get::<ReasonPhrase>().map(|phrase| phrase.as_bytes().to_vec());
    let body = timeout(DEADLINE, body.collect()).await.expect("in time").expect("a whole body");
    Answer {
        status: parts.status,
        phrase: phrase.map(|phrase| String::from_utf8(phrase).unwrap()).unwrap_or_default(),
        headers: parts.headers,
        trailers: body.trailers().cloned(),
        body: body.to_bytes().to_vec(),
    }
}

/// Sends bytes as they are and reads until the other side closes.
pub async fn raw(mut stream: impl AsyncRead + AsyncWrite + Unpin, bytes: &[u8]) -> String {
    // The other side may refuse before it has read everything.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    // It may end with a reset; what came before counts.
    let _ = timeout(DEADLINE, stream.read_to_end(&mut answer)).await.expect("the connection to end");
    String::from_utf8_lossy(&answer).into_owned()
}
