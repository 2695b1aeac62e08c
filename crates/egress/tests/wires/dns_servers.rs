//! The sandbox's DNS over real sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use saggar_egress::dns::{Desk, serve_tcp, serve_udp};
use saggar_egress::names::Names;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::dns::{A, AAAA, question};
use crate::session::Kept;

const PATIENCE: Duration = Duration::from_secs(60);

fn desk() -> Arc<Desk<Kept>> {
    Arc::new(Desk::new(Arc::new(Names::default()), Kept::new(&["*"], &[])))
}

/// A socket that receives for several addresses and says for which, as a gate does.
async fn gate(local: &str) -> UdpSocket {
    let socket = UdpSocket::bind(local).await.unwrap();
    if socket.local_addr().unwrap().is_ipv4() {
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true).unwrap();
    } else {
        setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true).unwrap();
    }
    socket
}

#[tokio::test]
async fn udp_questions_are_answered_from_the_address_they_were_sent_to() {
    // The kernel alone would answer from 127.0.0.1, and the client would never see it.
    for (local, asked) in [("0.0.0.0:0", "127.0.0.7"), ("0.0.0.0:0", "127.0.0.1"), ("[::1]:0", "::1")] {
        let socket = gate(local).await;
        let address = SocketAddr::new(asked.parse().unwrap(), socket.local_addr().unwrap().port());
        let server = tokio::spawn(serve_udp(socket, desk()));
        let client = UdpSocket::bind(if address.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" }).await.unwrap();
        client.connect(address).await.unwrap();
        // Too long, no header, then two good ones: the server goes on.
        client.send(&[0; 4_000]).await.unwrap();
        client.send(&[1]).await.unwrap();
        for kind in [A, AAAA] {
            client.send(&question("a.example", kind)).await.unwrap();
        }
        let mut replies = Vec::new();
        for _ in 0..3 {
            let mut reply = [0; 512];
            let count = timeout(PATIENCE, client.recv(&mut reply)).await.unwrap().unwrap();
            replies.push((reply[3] & 0xf, reply[..count].ends_with(&[198, 18, 0, 1])));
        }
        assert_eq!(replies, [(1, false), (0, true), (0, true)], "{asked}");
        server.abort();
    }
}

#[tokio::test]
async fn a_socket_that_does_not_say_where_questions_were_sent_to_is_given_up() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(socket.local_addr().unwrap()).await.unwrap();
    let server = tokio::spawn(serve_udp(socket, desk()));
    while !server.is_finished() {
        // Refused once the server has ended.
        let _ = client.send(&question("a.example", A)).await;
        tokio::task::yield_now().await;
    }
    let error = server.await.unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
}

async fn tcp_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve_tcp(listener, desk()));
    address
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&u16::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

async fn read_reply(stream: &mut TcpStream) -> Vec<u8> {
    let length = timeout(PATIENCE, stream.read_u16()).await.unwrap().unwrap();
    let mut reply = vec![0; length.into()];
    timeout(PATIENCE, stream.read_exact(&mut reply)).await.unwrap().unwrap();
    reply
}

#[tokio::test]
async fn tcp_questions_are_answered_in_order_however_they_are_cut() {
    let mut stream = TcpStream::connect(tcp_server().await).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let both = [framed(&question("a.example", A)), framed(&question("b.example", A))].concat();
    stream.write_all(&both[..20]).await.unwrap();
    stream.write_all(&both[20..]).await.unwrap();
    for last in [1, 2] {
        assert!(read_reply(&mut stream).await.ends_with(&[198, 18, 0, last]));
    }
}

#[tokio::test]
async fn tcp_messages_beyond_bounds_end_the_connection() {
    let address = tcp_server().await;
    for sent in [framed(&[0; 1_233]), framed(&[]), framed(&[1, 2, 3]), vec![0xff, 0xff]] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&sent).await.unwrap();
        let mut rest = Vec::new();
        // The server may reset what it hasn't read.
        let ended = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.unwrap();
        assert!(ended.is_err() || rest.is_empty(), "{sent:?}");
    }
}

#[tokio::test]
async fn tcp_connections_beyond_the_limit_wait_for_a_place() {
    let address = tcp_server().await;
    let mut held = Vec::new();
    for _ in 0..32 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&framed(&question("a.example", A))).await.unwrap();
        read_reply(&mut stream).await;
        held.push(stream);
    }
    let mut waiting = TcpStream::connect(address).await.unwrap();
    waiting.write_all(&framed(&question("a.example", A))).await.unwrap();
    // Connections that have a place are still served, while the last one isn't.
    held[0].write_all(&framed(&question("a.example", A))).await.unwrap();
    read_reply(&mut held[0]).await;
    let nothing = waiting.try_read(&mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(nothing, Err(std::io::ErrorKind::WouldBlock));
    drop(held.pop());
    assert!(read_reply(&mut waiting).await.ends_with(&[198, 18, 0, 1]));
}
