//! DNS over UDP.
//!
//! Questions to any address arrive at one socket, and an answer must leave from the address that its question was sent to.
//! The jail's datagrams carry that address; the socket needs `IP_PKTINFO` or `IPV6_RECVPKTINFO` for it, as the gates have.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use saggar_jail::{Datagram, receive_datagram, send_datagram};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use crate::dns::desk::{Desk, Session};
use crate::dns::question::QUESTION_MAX;

/// Failures in a row after which the socket is given up. Single ones happen: memory is short for a moment.
const FAILURES_MAX: u32 = 100;

/// Answers until the socket fails for good. Dropping the future at any time stops it.
pub async fn serve<S: Session>(socket: UdpSocket, desk: Arc<Desk<S>>) -> io::Error {
    // One byte more than a question may have, so that a longer one is seen to be longer.
    let mut buffer = [0; QUESTION_MAX + 1];
    let mut failures = 0;
    loop {
        match socket.async_io(Interest::READABLE, || receive_datagram(&socket, &mut buffer)).await {
            Ok(Datagram { length, from, to }) => {
                failures = 0;
                if let Some(reply) = desk.answer(&buffer[..length], Instant::now()) {
                    // A client that doesn't get its answer asks again; waiting for room would hold up all others.
                    let _ = send_datagram(&socket, &reply, to, from);
                }
            }
            Err(error) => {
                failures += 1;
                if failures == FAILURES_MAX {
                    return error;
                }
                tokio::task::yield_now().await;
            }
        }
    }
}
