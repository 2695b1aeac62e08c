//! Connections of the sandbox as they arrive: what the supervisor has to know to find the exec that made one.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};
use saggar_jail::is_peer_open;
use saggar_supervisor::egress::Connected;
use tokio::net::TcpStream;

/// Counts the connections of a session.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    last: AtomicU64,
}

impl Arrivals {
    /// A connection that was accepted just now; `None` if it is over already.
    pub fn note(&self, stream: &TcpStream, client: SocketAddr) -> Option<Connected> {
        let server = stream.local_addr().ok()?;
        // Before the look at the connection: whoever has it open then was there at this time.
        let now = clock_gettime(ClockId::Boottime);
        let at_ns = now.tv_sec.unsigned_abs().saturating_mul(1_000_000_000).saturating_add(now.tv_nsec.unsigned_abs());
        let is_open = is_peer_open(stream);
        let connection = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        Some(Connected { connection, client, server, at_ns, is_open })
    }
}
