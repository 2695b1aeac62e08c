//! Connects to the first of several addresses that answers (RFC 8305, "happy eyeballs").
//!
//! Families take turns, IPv6 first. An address gets a head start of [`HEAD_START`] before the next one is tried beside it; a
//! failure starts the next one at once. Attempts that lose are dropped, which closes them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

const HEAD_START: Duration = Duration::from_millis(250);
/// Addresses that are tried.
const TRIED_MAX: usize = 8;

/// The caller bounds the time. Fails with the last error if none answers; `addresses` must not be empty.
pub(super) async fn connect(addresses: &[IpAddr], port: u16) -> io::Result<(TcpStream, SocketAddr)> {
    let mut waiting = interleave(addresses).map(|address| SocketAddr::new(address, port));
    let mut attempts = JoinSet::new();
    let mut last = io::Error::other("there is no address to connect to");
    loop {
        if let Some(address) = waiting.next() {
            attempts.spawn(async move { TcpStream::connect(address).await.map(|stream| (stream, address)) });
        } else if attempts.is_empty() {
            return Err(last);
        }
        let next_is_waiting = waiting.len() > 0;
        let ended = if next_is_waiting {
            timeout(HEAD_START, attempts.join_next()).await.ok().flatten()
        } else {
            attempts.join_next().await
        };
        match ended {
            Some(Ok(Ok(connected))) => return Ok(connected),
            Some(Ok(Err(error))) => last = error,
            Some(Err(error)) => last = io::Error::other(error),
            None => {}
        }
    }
}

fn interleave(addresses: &[IpAddr]) -> std::vec::IntoIter<IpAddr> {
    let mut v6 = addresses.iter().filter(|address| address.is_ipv6());
    let mut v4 = addresses.iter().filter(|address| address.is_ipv4());
    let mut order: Vec<IpAddr> = Vec::new();
    while order.len() < addresses.len() {
        order.extend(v6.next());
        order.extend(v4.next());
    }
    order.truncate(TRIED_MAX);
    order.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns_and_the_number_is_bounded() {
        let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let order = |texts: &[&str]| interleave(&parse(texts)).collect::<Vec<_>>();
        assert_eq!(
            order(&["192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1"]),
            parse(&["2001:db8::1", "192.0.2.1", "192.0.2.2", "192.0.2.3"])
        );
        assert_eq!(order(&["2001:db8::1", "2001:db8::2"]), parse(&["2001:db8::1", "2001:db8::2"]));
        assert!(order(&[]).is_empty());
        assert_eq!(interleave(&[IpAddr::from([192, 0, 2, 1]); 40]).len(), TRIED_MAX);
    }
}
