//! Everything that a session runs can run as a task of its own on any thread. Checked by compiling.

use std::sync::Arc;

use saggar_domain::net::{Destination, Rules};
use saggar_egress::dns::{Desk, serve_tcp, serve_udp};
use saggar_egress::resolve::{DEADLINE, Dialer};
use saggar_egress::{hello, socks};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use crate::session::Kept;

fn check_task<F: Future + Send + 'static>(_: F) {}

#[expect(dead_code, reason = "compiling it is the test")]
fn futures_can_be_tasks(
    (udp, tcp, mut stream): (UdpSocket, TcpListener, TcpStream),
    desk: Arc<Desk<Kept>>,
    dialer: Arc<Dialer>,
    (to, rules): (Destination, Arc<Rules>),
) {
    check_task(serve_udp(udp, Arc::clone(&desk)));
    check_task(serve_tcp(tcp, desk));
    check_task(async move { dialer.dial(&to, &rules, DEADLINE).await });
    check_task(async move {
        let socks = socks::accept(&mut stream, socks::DEADLINE).await;
        let peeked = hello::peek(&mut stream, hello::DEADLINE).await;
        (socks, peeked)
    });
}
