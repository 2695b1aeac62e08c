//! The client over TLS: accepted certificates, and HTTP versions.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

use std::convert::Infallible;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use saggar_api::client::{Client, ClientOptions, Error};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// A server with a self-signed certificate, which uses the client's preferred protocol of these. It responds with the
/// HTTP version of the request.
async fn server(protocols: &[&str]) -> (String, Vec<u8>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that doesn't trust the certificate disconnects here.
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let service = service_fn(async |request: Request<Incoming>| {
                let body = format!(r#"{{"status":"ok","version":"{:?}"}}"#, request.version());
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(body))))
            });
            let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
            // The client ends its connection.
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        }
    });
    (url, made.cert.pem().into_bytes())
}

#[tokio::test]
async fn a_certificate_that_was_named_is_taken_and_the_newest_http_both_speak() {
    for (protocols, version) in [(&["h2", "http/1.1"][..], "HTTP/2.0"), (&["http/1.1"], "HTTP/1.1"), (&[], "HTTP/1.1")]
    {
        let (url, certificates) = server(protocols).await;
        let client = Client::new(ClientOptions { certificates, ..ClientOptions::new(url) }).unwrap();
        assert_eq!(client.health().await.unwrap().version, version);
    }
}

#[tokio::test]
async fn a_certificate_that_was_not_named_is_refused() {
    let (url, _) = server(&["http/1.1"]).await;
    let (_, others) = server(&["http/1.1"]).await;
    let client = Client::new(ClientOptions { certificates: others, ..ClientOptions::new(url) }).unwrap();
    let error = client.health().await.unwrap_err();
    // Commands distinguish this error from a missing server by its kind.
    let is_it = |source: &std::io::Error| {
        source.kind() == std::io::ErrorKind::InvalidData && source.to_string().contains("certificate")
    };
    assert!(matches!(&error, Error::Connect { source, .. } if is_it(source)), "{error:?}");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let (url, certificates) = server(&["http/1.1"]).await;
    let url = url.replace("localhost", "127.0.0.1");
    let client = Client::new(ClientOptions { certificates, ..ClientOptions::new(url) }).unwrap();
    assert!(matches!(client.health().await, Err(Error::Connect { .. })));
}

#[test]
fn what_is_no_certificate_is_told() {
    let certificates = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec();
    let options = ClientOptions { certificates, ..ClientOptions::new("https://localhost:1") };
    assert!(matches!(Client::new(options), Err(Error::Certificates(_))));
}
