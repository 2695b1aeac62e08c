//! The client over TLS: accepted certificates, and HTTP versions.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

use std::convert::Infallible;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair};
use saggar_api::client::{CertificateFault, Client, ClientOptions, Error};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// A server with a self-signed certificate, which uses the client's preferred protocol of these. It responds with the
/// HTTP version of the request.
async fn server(protocols: &[&str]) -> (String, Vec<u8>) {
    server_with(protocols, CertificateParams::new(["localhost".to_owned()]).unwrap()).await
}

async fn server_with(protocols: &[&str], params: CertificateParams) -> (String, Vec<u8>) {
    let pair = KeyPair::generate().unwrap();
    let cert = params.self_signed(&pair).unwrap();
    let key = PrivateKeyDer::Pkcs8(pair.serialize_der().into());
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
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
    (url, cert.pem().into_bytes())
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

fn named(name: &str, certificate_names: &[&str]) -> CertificateParams {
    let names: Vec<String> = certificate_names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

async fn fault(url: String, certificates: Vec<u8>) -> CertificateFault {
    let client = Client::new(ClientOptions { certificates, ..ClientOptions::new(url) }).unwrap();
    match client.health().await {
        Err(Error::Untrusted { fault, .. }) => fault,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_certificate_that_was_not_named_is_refused() {
    let (url, _) = server_with(&["http/1.1"], named("a", &["localhost"])).await;
    // A trusted certificate of the same name has another key, like the one that a new certificate has replaced.
    for other in ["a", "b"] {
        let (_, others) = server_with(&["http/1.1"], named(other, &["localhost"])).await;
        assert_eq!(fault(url.clone(), others).await, CertificateFault::UnknownIssuer, "{other}");
    }
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let (url, certificates) = server(&["http/1.1"]).await;
    let url = url.replace("localhost", "127.0.0.1");
    let (expected, presented) = ("127.0.0.1".to_owned(), vec!["localhost".to_owned()]);
    assert_eq!(fault(url, certificates).await, CertificateFault::OtherName { expected, presented });
}

#[tokio::test]
async fn what_openssl_makes_by_default_is_refused_by_its_fault() {
    let mut authority = named("localhost", &["localhost"]);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let (url, certificates) = server_with(&["http/1.1"], authority).await;
    assert_eq!(fault(url, certificates).await, CertificateFault::Authority);
    let (url, certificates) = server_with(&["http/1.1"], named("localhost", &[])).await;
    assert_eq!(fault(url, certificates).await, CertificateFault::NoNames);
}

#[test]
fn what_is_no_certificate_is_told() {
    let certificates = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec();
    let options = ClientOptions { certificates, ..ClientOptions::new("https://localhost:1") };
    assert!(matches!(Client::new(options), Err(Error::Certificates(_))));
    let key = KeyPair::generate().unwrap().serialize_pem().into_bytes();
    let options = ClientOptions { certificates: key, ..ClientOptions::new("https://localhost:1") };
    assert!(matches!(Client::new(options), Err(Error::Certificates(_))), "a key is no certificate");
}
