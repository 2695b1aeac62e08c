//! Sends supplies to the child: one message with the descriptors attached, containing their counts, the names of the
//! views, and the filter.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::cgroup::View;
use crate::memfd::SealedProgram;
use crate::plan::Supplies;
use crate::seccomp::Filter;

/// Memory, processes, CPU and the freezer in separate hierarchies, views of the first three, and the agent.
const DESCRIPTORS_MAX: usize = 8;
/// The number of cgroups to join, and the number of views.
const COUNTS_LEN: usize = 2;

pub(crate) struct Delivery {
    pub(crate) supplies: Supplies,
    pub(crate) filter: Filter,
}

/// Sends everything; the agent's image goes first.
pub(crate) fn send(socket: &OwnedFd, supplies: &Supplies, filter: &Filter) -> Result<(), Errno> {
    let descriptors: Vec<BorrowedFd<'_>> = std::iter::once(supplies.guest.as_fd())
        .chain(supplies.tasks.iter().map(AsFd::as_fd))
        .chain(supplies.views.iter().map(|(_, mount)| mount.as_fd()))
        .collect();
    // At most DESCRIPTORS_MAX of both, so the casts keep the values.
    let mut head = vec![supplies.tasks.len() as u8, supplies.views.len() as u8];
    head.extend(supplies.views.iter().map(|(view, _)| *view as u8));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if descriptors.len() > DESCRIPTORS_MAX || !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Errno::NOBUFS);
    }
    let program = filter.to_bytes();
    let message = [IoSlice::new(&head), IoSlice::new(&program)];
    sendmsg(socket, &message, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

pub(crate) fn receive(socket: &OwnedFd) -> Result<Delivery, Errno> {
    let mut bytes = vec![0u8; COUNTS_LEN + View::ALL.len() + Filter::BYTES_MAX];
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
        // End of file: the parent died or gave up.
        return Err(Errno::PIPE);
    }
    let guest = SealedProgram::from_sealed(descriptors.remove(0))?;
    let (counts, rest) = bytes[..length].split_at_checked(COUNTS_LEN).ok_or(Errno::BADMSG)?;
    let (tasks, views) = (usize::from(counts[0]), usize::from(counts[1]));
    let (names, filter) = rest.split_at_checked(views).ok_or(Errno::BADMSG)?;
    if descriptors.len() != tasks + views {
        return Err(Errno::BADMSG);
    }
    let mounts = descriptors.split_off(tasks);
    let names = names.iter().map(|name| View::from_number(*name).ok_or(Errno::BADMSG));
    let views = names.zip(mounts).map(|(name, mount)| Ok((name?, mount))).collect::<Result<_, Errno>>()?;
    let filter = Filter::from_bytes(filter).ok_or(Errno::BADMSG)?;
    Ok(Delivery { supplies: Supplies { tasks: descriptors, guest, views }, filter })
}
