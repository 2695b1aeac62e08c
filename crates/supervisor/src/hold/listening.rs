//! The connections of clients: which are accepted, read and dropped.
//!
//! INVARIANT: the number of connections and what they hold are bounded, and one that neither asks nor reads is dropped.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{SocketFlags, accept_with};
use saggar_domain::{Code, Problem};

use crate::control::Reply;

use super::connection::{Connection, Read, Role};
use super::holder::Hold;
use super::moment::Moment;

/// Maximum number of connections that are streams.
pub(super) const STREAMS_MAX: usize = 256;
/// Maximum number of connections: a few more, so that a client that uses up all streams can't keep others from
/// describing or killing the sandbox.
const CONNECTIONS_MAX: usize = STREAMS_MAX + 16;
/// Maximum number of connections accepted in one round.
const ACCEPTED_PER_ROUND: usize = 16;
/// How long a connection may be without a request, and its reader without reading an answer.
pub(super) const CONNECTION_PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of incomplete requests on all connections together.
const REQUESTS_MAX: usize = 16 * 1024 * 1024;

impl Hold {
    /// Whether this connection is polled for reading.
    pub(super) fn is_read(&self, connection: &Connection) -> bool {
        if connection.is_over {
            return false;
        }
        match &connection.role {
            Role::Asking => !connection.has_unsent(),
            Role::Following(following) => !self.is_backed_up(following.exec),
            Role::Hearing { .. }
            | Role::Burying { .. }
            | Role::Ruling
            | Role::BeginningAgain
            | Role::Stilling
            | Role::Dying
            | Role::Leaving => true,
            Role::Starting { .. } => false,
        }
    }

    /// Whether a closed connection is kept only for output, so that its hang-up ends it.
    pub(super) fn is_watched(&self, connection: &Connection) -> bool {
        connection.is_over
            && match connection.role {
                Role::Following(_)
                | Role::Hearing { .. }
                | Role::Burying { .. }
                | Role::Ruling
                | Role::BeginningAgain
                | Role::Dying => true,
                // Nothing more is sent on it, so its end is the end of the stillness.
                Role::Stilling => false,
                Role::Asking | Role::Leaving | Role::Starting { .. } => false,
            }
    }

    pub(super) fn accept(&mut self, now: Moment) {
        for _ in 0..ACCEPTED_PER_ROUND {
            let Ok(fd) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else { return };
            if !is_ours(&fd) {
                continue;
            }
            let mut connection = Connection::new(fd, now);
            if self.connections.len() >= CONNECTIONS_MAX {
                connection.say(&Reply::Error(too_many_connections()));
                // If this fails, the client learns it from the end of the connection.
                let _ = connection.flush(now);
                continue;
            }
            self.last_connection += 1;
            self.connections.insert(self.last_connection, connection);
            // Most have already sent their request when they are accepted.
            self.listen(self.last_connection, now);
        }
    }

    pub(super) fn listen(&mut self, token: u64, now: Moment) {
        let held: usize = self.connections.values().map(|connection| connection.decoder.held()).sum();
        let Some(connection) = self.connections.get(&token) else { return };
        let is_read = self.is_read(connection);
        let Some(connection) = self.connections.get_mut(&token) else { return };
        // A closed connection is waited for only until it takes what is left, or hangs up.
        let is_gone = connection.is_over && !connection.has_unsent();
        if is_gone || held > REQUESTS_MAX || (is_read && connection.read(&mut self.buffer, now) == Read::Broken) {
            self.connections.remove(&token);
            return;
        }
        self.heed(token, now);
    }

    /// Checks connections that may have a complete frame waiting, and drops those that took too long.
    pub(super) fn revisit(&mut self, now: Moment) {
        // Connections added in the meantime get their turn too; each turn removes a frame, so this ends.
        while let Some(token) = self.revisit.pop_front() {
            self.heed(token, now);
        }
        self.connections.retain(|_, connection| {
            let (has_unsent, is_late) = (connection.has_unsent(), now.since(connection.moved) >= CONNECTION_PATIENCE);
            match &mut connection.role {
                Role::Asking => (has_unsent || !connection.is_over) && !is_late,
                Role::Leaving => has_unsent && !is_late,
                Role::Following(following) => {
                    following.is_lossy |= has_unsent && is_late;
                    true
                }
                Role::Stilling => !connection.is_over,
                Role::Starting { .. }
                | Role::Hearing { .. }
                | Role::Burying { .. }
                | Role::Ruling
                | Role::BeginningAgain
                | Role::Dying => true,
            }
        });
        self.end_stillness(now);
    }
}

/// Only root and the supervisor's own user may send requests.
pub(super) fn is_ours(fd: &OwnedFd) -> bool {
    rustix::net::sockopt::socket_peercred(fd)
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

pub(super) fn too_many_connections() -> Problem {
    Problem::new(
        Code::TooMany,
        format!("this sandbox already has {STREAMS_MAX} open connections"),
        "close some, or wait until others are closed",
    )
}
