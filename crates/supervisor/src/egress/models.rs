//! How a sandbox's connection to the models of its server gets there.
//!
//! ```text
//!  server ── models, with one end of a pair ──▶ egress process       once
//!  server ◀── whose it is, with a stream ────── egress process       for each connection
//! ```
//! No name of any filesystem leads to the server's end, and only the egress process knows which sandbox a connection belongs to. So
//! what it says needs no proof. When the server is gone, so is its end, and the other one says so at once.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};
use saggar_domain::SandboxId;
use serde::{Deserialize, Serialize};

use super::wire::receive_with;

const VERSION: u32 = 1;

/// Whose connection is attached.
#[derive(Serialize, Deserialize)]
struct Arrival {
    v: u32,
    sandbox_id: SandboxId,
}

/// The server's end, and the one that the egress process gets. Neither blocks.
pub fn model_sockets() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// Connects a sandbox to the server's models. Doesn't wait: [`Errno::AGAIN`] if the server has many connections to take first.
pub fn call_models(socket: BorrowedFd<'_>, sandbox_id: &SandboxId) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let arrival = Arrival { v: VERSION, sandbox_id: sandbox_id.clone() };
    let bytes = serde_json::to_vec(&arrival).map_err(|_| Errno::INVAL)?;
    let descriptors = [theirs.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let has_room = control.push(SendAncillaryMessage::ScmRights(&descriptors));
    debug_assert!(has_room, "there is room for one");
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[std::io::IoSlice::new(&bytes)], &mut control, flags)?;
    Ok(ours)
}

/// The next connection, and whose it is; `None` once the egress process is gone. Doesn't wait.
pub fn next_model_caller(socket: BorrowedFd<'_>) -> Result<Option<(SandboxId, OwnedFd)>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let (bytes, mut descriptors) = receive_with(socket, RecvFlags::DONTWAIT, &mut space)?;
    let Some(bytes) = bytes else { return Ok(None) };
    let arrival: Arrival = serde_json::from_slice(&bytes).map_err(|_| Errno::BADMSG)?;
    let stream = descriptors.pop().filter(|_| arrival.v == VERSION).ok_or(Errno::BADMSG)?;
    Ok(Some((arrival.sandbox_id, stream)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(letter: char) -> SandboxId {
        SandboxId::parse(&format!("sbx_{}", letter.to_string().repeat(26))).unwrap()
    }

    #[test]
    fn a_connection_arrives_with_the_name_of_its_sandbox() {
        let (server, egress) = model_sockets().unwrap();
        let streams = ['a', 'b'].map(|letter| call_models(egress.as_fd(), &sandbox(letter)).unwrap());
        for (stream, letter) in streams.iter().zip(['a', 'b']) {
            let (whose, theirs) = next_model_caller(server.as_fd()).unwrap().unwrap();
            rustix::io::write(stream, b"x").unwrap();
            let mut got = [0; 2];
            assert_eq!((whose, rustix::io::read(&theirs, &mut got).unwrap()), (sandbox(letter), 1));
        }
        assert_eq!(next_model_caller(server.as_fd()).unwrap_err(), Errno::AGAIN);
    }

    #[test]
    fn a_packet_without_a_connection_or_of_another_form_is_an_error_and_harms_no_other() {
        let (server, egress) = model_sockets().unwrap();
        for wrong in [&b"{}"[..], b"not json", br#"{"v": 1, "sandbox_id": "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa"}"#] {
            rustix::net::send(&egress, wrong, SendFlags::NOSIGNAL).unwrap();
            assert_eq!(next_model_caller(server.as_fd()).unwrap_err(), Errno::BADMSG, "{wrong:?}");
        }
        let _stream = call_models(egress.as_fd(), &sandbox('a')).unwrap();
        assert!(next_model_caller(server.as_fd()).unwrap().is_some());
    }

    #[test]
    fn each_side_sees_that_the_other_is_gone() {
        let (server, egress) = model_sockets().unwrap();
        let stream = call_models(egress.as_fd(), &sandbox('a')).unwrap();
        drop(server);
        let error = call_models(egress.as_fd(), &sandbox('a')).unwrap_err();
        assert!([Errno::PIPE, Errno::CONNRESET].contains(&error), "{error}");
        // Nobody had taken it.
        assert_eq!(rustix::io::read(&stream, &mut [0; 1]).unwrap(), 0);
        let (server, egress) = model_sockets().unwrap();
        drop(egress);
        assert!(next_model_caller(server.as_fd()).unwrap().is_none());
    }
}
