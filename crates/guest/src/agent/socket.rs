//! Socket operations besides plain reading and writing: descriptors attached to bytes, packets, and writing without a
//! signal.

use alloc::vec::Vec;
use core::ffi::c_int;
use core::mem::MaybeUninit;

use saggar_guest::JOINS_MAX;

use super::sys::{self, Errno, Fd};

/// Room for the descriptors of one frame, in words for the alignment of the kernel's headers.
const CONTROL_WORDS: usize = 2 + JOINS_MAX.div_ceil(2);

/// Two connected ends that preserve message boundaries.
pub(super) fn pair() -> Result<(Fd, Fd), Errno> {
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: socketpair writes two descriptors into an array of two.
    sys::check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
    Ok((Fd::received(ends[0]), Fd::received(ends[1])))
}

/// Reads once, and appends the received descriptors; `EMSGSIZE` if the kernel had to drop some.
pub(super) fn receive(socket: &Fd, buffer: &mut [u8], descriptors: &mut Vec<Fd>) -> Result<usize, Errno> {
    let mut control = [0u64; CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeroes are a valid, empty msghdr. (One of the C libraries has private padding in it, so no literal.)
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let count = sys::retry(|| {
        // SAFETY: the message points to one writable slice and to one writable array, with their lengths.
        unsafe { libc::recvmsg(socket.raw(), &raw mut message, libc::MSG_CMSG_CLOEXEC) }
    })?;
    // SAFETY: the kernel has filled the control buffer up to msg_controllen, and the macros stay within it. Each
    // descriptor in it is new and owned by this process; they may be unaligned.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let first = libc::CMSG_DATA(header).cast::<c_int>();
                for position in 0..bytes / size_of::<c_int>() {
                    descriptors.push(Fd::received(first.add(position).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 { Err(Errno(libc::EMSGSIZE)) } else { Ok(count) }
}

/// Writes as much as possible without waiting.
pub(super) fn send_now(socket: &Fd, bytes: &[u8]) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    sys::retry(|| {
        // SAFETY: the pointer and the length are those of one readable slice.
        unsafe { libc::send(socket.raw(), bytes.as_ptr().cast(), bytes.len(), flags) }
    })
}
