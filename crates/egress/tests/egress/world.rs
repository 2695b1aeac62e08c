//! The servers outside, and the way to them.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use saggar_domain::net::{Destination, Passage, Rules};
use saggar_egress::dial::Dial;
use saggar_egress::resolve::{DialError, Dialed};
use tokio::net::TcpStream;

use crate::pki::{Pki, Trust};
use crate::server::Server;

/// A documentation address: public to the rules, and nobody's.
pub const PUBLIC: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7));

pub struct World {
    pub pki: Pki,
    routes: Arc<Routes>,
}

/// Leads `host:port` to a server on loopback, as a resolver and the internet would.
#[derive(Default)]
pub struct Routes(Mutex<HashMap<String, SocketAddr>>, std::sync::atomic::AtomicUsize, tokio::sync::Notify);

impl World {
    pub fn new() -> Self {
        Self { pki: Pki::new(), routes: Arc::default() }
    }

    pub async fn https(&self, host: &str) -> Arc<Server> {
        self.https_with(host, Trust::Good, &["h2", "http/1.1"]).await
    }

    pub async fn https_with(&self, host: &str, trust: Trust, alpn: &[&str]) -> Arc<Server> {
        let server = Server::start(Some(self.pki.server(host, trust, alpn))).await;
        self.lead(&format!("{host}:443"), &server);
        server
    }

    pub async fn http(&self, host: &str) -> Arc<Server> {
        let server = Server::start(None).await;
        self.lead(&format!("{host}:80"), &server);
        server
    }

    pub async fn echo(&self, to: &str) -> Arc<Server> {
        let server = Server::start_echo().await;
        self.lead(to, &server);
        server
    }

    pub fn lead(&self, to: &str, server: &Server) {
        self.routes.0.lock().unwrap().insert(to.to_owned(), server.address);
    }

    /// How often something outside was asked for.
    pub fn dials(&self) -> usize {
        self.routes.1.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// Lets one connection to held.test through.
    pub fn release(&self) {
        self.routes.2.notify_one();
    }

    pub fn dial(&self) -> Arc<dyn Dial> {
        Arc::clone(&self.routes) as Arc<dyn Dial>
    }
}

impl Dial for Routes {
    fn dial<'a>(
        &'a self,
        to: &'a Destination,
        rules: &'a Rules,
        _within: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<Dialed, DialError>> + Send + 'a>> {
        self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Box::pin(async move {
            assert_ne!(to.to_string(), "panic.test:80", "a panic while a connection is served");
            if let Passage::Denied(refusal) = rules.connection(to) {
                return Err(DialError::Refused { refusal: Box::new(refusal), address: None });
            }
            rules
                .address(to, PUBLIC)
                .map_err(|refusal| DialError::Refused { refusal: Box::new(refusal), address: Some(PUBLIC) })?;
            if to.to_string() == "held.test:443" {
                self.2.notified().await;
            }
            let route = self.0.lock().unwrap().get(&to.to_string()).copied();
            let connected = match route {
                Some(address) => TcpStream::connect(address).await,
                None => Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
            };
            let stream = connected.map_err(|source| DialError::Connect { to: to.clone(), source })?;
            stream.set_nodelay(true).unwrap();
            Ok(Dialed { stream, address: SocketAddr::new(PUBLIC, to.port) })
        })
    }
}
