//! A port worker: relays bytes between a stream and a listener on a TCP port of the sandbox.
//!
//! The end of one side is passed on as the end of that direction only. The worker is done when both directions are, or
//! when one side is gone.

use alloc::vec;
use alloc::vec::Vec;
use core::ffi::c_int;

use saggar_guest::PortPreface;

use super::sys::{self, Errno, Fd, Wait};

/// Maximum number of bytes held for each direction.
const BUFFER_LEN: usize = 64 * 1024;

/// How often one direction may fill and empty its buffer before the other's turn.
const TURNS_MAX: usize = 16;

/// How long a listener has to accept a connection.
const CONNECT_MILLIS: u16 = 10_000;

/// Connects, reports the result, and relays until both sides are done.
pub(super) fn serve(stream: &Fd, port: u16) {
    let preface = |preface: PortPreface| stream.write(&preface.encode());
    let connection = match connect(stream, port) {
        Ok(connection) => connection,
        Err(errno) => {
            // A host that is gone needs no reason.
            let _ = preface(PortPreface::Refused(errno.0));
            return;
        }
    };
    if preface(PortPreface::Connected).is_ok() && stream.set_nonblocking().is_ok() {
        relay(stream, &connection);
    }
}

/// Connects to the IPv4 loopback address, then to that of IPv6. If both fail the error is the first one's, unless only
/// the second is meaningful.
fn connect(stream: &Fd, port: u16) -> Result<Fd, Errno> {
    let four = libc::sockaddr_in {
        sin_family: libc::AF_INET as _,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_be_bytes([127, 0, 0, 1]).to_be() },
        sin_zero: [0; 8],
    };
    let mut loopback = [0; 16];
    loopback[15] = 1;
    let six = libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as _,
        sin6_port: port.to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: loopback },
        sin6_scope_id: 0,
    };
    let first = connect_to(stream, libc::AF_INET, (&raw const four).cast(), size_of_val(&four));
    first.or_else(|errno| {
        connect_to(stream, libc::AF_INET6, (&raw const six).cast(), size_of_val(&six)).map_err(|_| errno)
    })
}

/// The address must be of this family and length.
fn connect_to(stream: &Fd, family: c_int, address: *const libc::sockaddr, length: usize) -> Result<Fd, Errno> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes numbers only.
    let socket = Fd::returned(unsafe { libc::socket(family, kind, 0) })?;
    // SAFETY: the caller's pointer is to an address of this length.
    let result = sys::check(unsafe { libc::connect(socket.raw(), address, length as libc::socklen_t) });
    match result {
        Ok(()) => return Ok(socket),
        Err(Errno(libc::EINPROGRESS)) => {}
        Err(errno) => return Err(errno),
    }
    let mut entries = [entry(&socket, libc::POLLOUT), entry(stream, 0)];
    sys::poll(&mut entries, Wait::Millis(CONNECT_MILLIS))?;
    match (entries[0].revents, entries[1].revents) {
        (0, 0) => return Err(Errno(libc::ETIMEDOUT)),
        (0, _) => return Err(Errno(libc::ECANCELED)),
        (_, _) => {}
    }
    let mut errno: c_int = 0;
    let mut errno_len = size_of::<c_int>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_ERROR);
    // SAFETY: the option is an int, and the length says so.
    sys::check(unsafe { libc::getsockopt(socket.raw(), level, option, (&raw mut errno).cast(), &raw mut errno_len) })?;
    if errno == 0 { Ok(socket) } else { Err(Errno(errno)) }
}

fn entry(fd: &Fd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd: fd.raw(), events, revents: 0 }
}

fn relay(stream: &Fd, connection: &Fd) {
    let mut inward = Direction::new();
    let mut outward = Direction::new();
    loop {
        if inward.pump(stream, connection).is_err() || outward.pump(connection, stream).is_err() {
            return;
        }
        if inward.is_over() && outward.is_over() {
            return;
        }
        let mut entries = [
            entry(stream, inward.reading() | outward.writing()),
            entry(connection, outward.reading() | inward.writing()),
        ];
        // A side that is not waited for would still report, again and again, that it was closed. The host's is watched
        // once everything it has sent is delivered, since nothing then reads what still comes.
        let watches_host = inward.is_over();
        if entries[0].events == 0 && !watches_host {
            entries[0].fd = -1;
        }
        if entries[1].events == 0 {
            entries[1].fd = -1;
        }
        let is_host_gone = |entries: &[libc::pollfd; 2]| watches_host && entries[0].revents & libc::POLLHUP != 0;
        if sys::poll(&mut entries, Wait::Forever).is_err() || is_host_gone(&entries) {
            return;
        }
    }
}

/// One direction of the relay.
struct Direction {
    buffer: Vec<u8>,
    // INVARIANT: start <= end <= buffer.len().
    start: usize,
    end: usize,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// The source has ended, and the rest of the buffer is still to be written.
    Ending,
    Over,
}

impl Direction {
    fn new() -> Direction {
        Direction { buffer: vec![0; BUFFER_LEN], start: 0, end: 0, phase: Phase::Open }
    }

    fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    fn reading(&self) -> libc::c_short {
        if self.phase == Phase::Open && self.start == self.end { libc::POLLIN } else { 0 }
    }

    fn writing(&self) -> libc::c_short {
        if self.start < self.end { libc::POLLOUT } else { 0 }
    }

    /// Moves as much as possible without waiting. An error means that one side is gone.
    fn pump(&mut self, from: &Fd, to: &Fd) -> Result<(), Errno> {
        for _ in 0..TURNS_MAX {
            while self.start < self.end {
                match to.write(&self.buffer[self.start..self.end]) {
                    Ok(count) => self.start += count,
                    Err(Errno(libc::EAGAIN)) => return Ok(()),
                    // A side that no longer reads may still send.
                    Err(Errno(libc::EPIPE)) => {
                        // SAFETY: takes numbers only. The sender learns that its data is no longer read.
                        unsafe { libc::shutdown(from.raw(), libc::SHUT_RD) };
                        self.phase = Phase::Over;
                        self.start = self.end;
                        return Ok(());
                    }
                    Err(errno) => return Err(errno),
                }
            }
            match self.phase {
                Phase::Open => {}
                Phase::Ending => {
                    // SAFETY: takes numbers only. It is no error if the other side is already gone.
                    unsafe { libc::shutdown(to.raw(), libc::SHUT_WR) };
                    self.phase = Phase::Over;
                    return Ok(());
                }
                Phase::Over => return Ok(()),
            }
            match from.read(&mut self.buffer) {
                Ok(0) => self.phase = Phase::Ending,
                Ok(count) => (self.start, self.end) = (0, count),
                Err(Errno(libc::EAGAIN)) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}
