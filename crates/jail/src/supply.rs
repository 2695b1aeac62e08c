//! Handing supplies to the child: one message with the filter in it and the descriptors attached.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::memfd::SealedProgram;
use crate::plan::Supplies;
use crate::seccomp::Filter;

/// Memory, processes, CPU and the freezer in hierarchies of their own, and the agent.
const DESCRIPTORS_MAX: usize = 5;

/// What arrived.
pub(crate) struct Delivery {
    pub(crate) supplies: Supplies,
    pub(crate) filter: Filter,
}

/// Sends everything; the agent's image goes first.
pub(crate) fn send(socket: &OwnedFd, supplies: &Supplies, filter: &Filter) -> Result<(), Errno> {
    let descriptors: Vec<BorrowedFd<'_>> =
        std::iter::once(supplies.guest.as_fd()).chain(supplies.tasks.iter().map(AsFd::as_fd)).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if descriptors.len() > DESCRIPTORS_MAX || !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Errno::NOBUFS);
    }
    sendmsg(socket, &[IoSlice::new(&filter.to_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Waits for everything.
pub(crate) fn receive(socket: &OwnedFd) -> Result<Delivery, Errno> {
    let mut bytes = vec![0u8; Filter::BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let length = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    if descriptors.is_empty() {
        // An end of file: the parent is gone, or gave up.
        return Err(Errno::PIPE);
    }
    let guest = SealedProgram::from_sealed(descriptors.remove(0))?;
    let filter = Filter::from_bytes(&bytes[..length]).ok_or(Errno::BADMSG)?;
    Ok(Delivery { supplies: Supplies { tasks: descriptors, guest }, filter })
}
