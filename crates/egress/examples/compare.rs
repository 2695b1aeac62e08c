//! Compares requests through a session with direct ones, in interleaved rounds, so that a slower data path is seen:
//!
//! ```sh
//! cargo run --release --package saggar-egress --example compare
//! ```
//!
//! Servers, session and client have a thread each. Trust the differences and the ratios, not the absolute numbers.

#![expect(dead_code, reason = "the world of the tests has more than is measured here")]
#![allow(clippy::unwrap_used, reason = "the world of the tests may panic")]

#[path = "../tests/egress/client.rs"]
mod client;
#[path = "../tests/egress/pki.rs"]
mod pki;
#[path = "../tests/egress/sandbox.rs"]
mod sandbox;
#[path = "../tests/egress/server.rs"]
mod server;
#[path = "../tests/egress/shown.rs"]
mod shown;
#[path = "../tests/egress/world.rs"]
mod world;

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use tokio::net::TcpStream;

use crate::client::{HTTP1, get, http1, send1, tls};
use crate::pki::Trust;
use crate::sandbox::Sandbox;
use crate::server::Server;
use crate::world::World;

const ROUNDS: usize = 7;
const REQUESTS: usize = 1500;
const CONNECTIONS: usize = 60;
const STREAM_BYTES: usize = 200 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Direct,
    Session,
}

/// What is measured; `Way::Direct` reaches the same server.
#[derive(Clone, Copy)]
struct Path {
    name: &'static str,
    host: &'static str,
    port: u16,
    is_inspected: bool,
}

const PATHS: [Path; 3] = [
    Path { name: "plain HTTP", host: "plain.test", port: 80, is_inspected: false },
    Path { name: "TLS, passed through", host: "tunnelled.test", port: 443, is_inspected: false },
    Path { name: "TLS, inspected", host: "inspected.test", port: 443, is_inspected: true },
];

struct Bench {
    world: World,
    sandbox: Sandbox,
    servers: Vec<Arc<Server>>,
}

fn main() {
    let outside = thread_runtime("servers");
    let session = thread_runtime("session");
    let (world, servers) = outside.block_on(async {
        let world = World::new();
        let mut servers = vec![world.http("plain.test").await];
        for host in ["tunnelled.test", "inspected.test"] {
            servers.push(world.https_with(host, Trust::Good, HTTP1).await);
        }
        (world, servers)
    });
    let allow = ["plain.test", "tunnelled.test", "inspected.test/**"];
    let sandbox = session.block_on(Sandbox::allowing(&world, &allow));
    let bench = Bench { world, sandbox, servers };
    let client = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    client.block_on(run(bench));
}

async fn run(mut bench: Bench) {
    for (path, index) in PATHS.into_iter().zip(0..) {
        let requests = rounds(&mut bench, path, index, requests).await;
        println!(
            "{:20} request p50: direct {}, added {}",
            path.name,
            micros(requests.0),
            micros(requests.1 - requests.0)
        );
        let new = rounds(&mut bench, path, index, connections).await;
        println!("{:20} new connection: direct {}, {:.2} x", path.name, micros(new.0), new.1 / new.0);
        let stream = rounds(&mut bench, path, index, stream).await;
        let speed = |seconds: f64| STREAM_BYTES as f64 / seconds / 1e6;
        println!("{:20} stream: direct {:.0} MB/s, {:.2} of it", path.name, speed(stream.0), stream.0 / stream.1);
    }
}

/// Medians over the rounds, direct and through the session, in seconds.
async fn rounds<F, T>(bench: &mut Bench, path: Path, index: usize, measure: F) -> (f64, f64)
where
    F: Fn(Target) -> T,
    T: Future<Output = f64>,
{
    let (mut direct, mut session) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (way, results) in [(Way::Direct, &mut direct), (Way::Session, &mut session)] {
            let target = Target::new(bench, path, index, way).await;
            results.push(measure(target).await);
        }
        while bench.sandbox.try_decision().is_some() {}
    }
    (median(direct), median(session))
}

struct Target {
    path: Path,
    pem: String,
    connections: Vec<TcpStream>,
}

impl Target {
    /// Connections are made ahead where only requests are measured.
    async fn new(bench: &Bench, path: Path, index: usize, way: Way) -> Self {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(match way {
                Way::Direct => {
                    let stream = TcpStream::connect(bench.servers[index].address).await.expect("a server");
                    stream.set_nodelay(true).expect("a socket");
                    stream
                }
                Way::Session => bench.sandbox.dial(path.host, path.port).await,
            });
        }
        let ours = way == Way::Session && path.is_inspected;
        let pem = if ours { &bench.sandbox.ca_pem } else { &bench.world.pki.roots_pem };
        Self { path, pem: pem.clone(), connections }
    }

    async fn connect(&mut self) -> SendRequest<Full<Bytes>> {
        let stream = self.connections.pop().expect("enough connections");
        match self.path.port {
            443 => http1(tls(stream, self.path.host, &self.pem, HTTP1).await.expect("a handshake")).await,
            _ => http1(stream).await,
        }
    }
}

async fn requests(mut target: Target) -> f64 {
    let mut sender = target.connect().await;
    let mut times = Vec::with_capacity(REQUESTS);
    for _ in 0..REQUESTS {
        let started = Instant::now();
        let answer = send1(&mut sender, get(target.path.host, "/")).await;
        times.push(started.elapsed().as_secs_f64());
        assert_eq!(answer.text(), "hello");
    }
    median(times)
}

/// The TLS handshake and one request.
async fn connections(mut target: Target) -> f64 {
    let mut times = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let started = Instant::now();
        let mut sender = target.connect().await;
        send1(&mut sender, get(target.path.host, "/")).await;
        times.push(started.elapsed().as_secs_f64());
    }
    median(times)
}

async fn stream(mut target: Target) -> f64 {
    let mut sender = target.connect().await;
    let answer = sender.send_request(get(target.path.host, "/endless")).await.expect("an answer");
    let mut body = answer.into_body();
    let (started, mut got) = (Instant::now(), 0);
    while got < STREAM_BYTES {
        let frame = body.frame().await.expect("more").expect("a frame");
        got += frame.into_data().map_or(0, |data| data.len());
    }
    started.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn micros(seconds: f64) -> String {
    format!("{:.0} us", seconds * 1e6)
}

/// A runtime whose tasks run on a thread of their own.
fn thread_runtime(name: &'static str) -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build();
    runtime.expect("a runtime")
}
