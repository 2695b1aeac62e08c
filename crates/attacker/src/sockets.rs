//! Attempts with sockets that need no network: unix, abstract, and families that expose rarely used kernel code.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use crate::Attempt;
use crate::out::{AttemptOutcome, Out};
use crate::sys::{call, own};

pub const ATTEMPTS: &[Attempt] = &[
    ("abstract-sockets", abstract_sockets),
    ("host-sockets", host_sockets),
    ("pass-descriptors", pass_descriptors),
    ("socket-families", socket_families),
    ("spoof-peer", spoof_peer),
];

/// The argument is the name of a socket that listens on the host.
fn abstract_sockets(out: &Out, arguments: &[String]) {
    let names = arguments.iter().map(|name| ("a listener of the host", name.as_str()));
    let known = [
        ("X11", "/tmp/.X11-unix/X0"),
        ("D-Bus", "/tmp/dbus-saggar"),
        ("containerd", "/containerd-shim/default/x/shim.sock"),
        ("systemd", "/org/freedesktop/systemd1/notify"),
    ];
    for (member, name) in names.chain(known) {
        let connected = SocketAddr::from_abstract_name(name).and_then(|address| UnixStream::connect_addr(&address));
        out.tried(member, connected);
    }
}

fn host_sockets(out: &Out, _: &[String]) {
    for name in [
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/run/podman/podman.sock",
        "/run/containerd/containerd.sock",
        "/run/crio/crio.sock",
        "/run/libvirt/libvirt-sock",
        "/run/systemd/private",
        "/run/systemd/notify",
        "/run/systemd/journal/socket",
        "/run/dbus/system_bus_socket",
        "/run/user",
        "/run/user/1000/bus",
        "/run/user/1000/wayland-0",
        "/run/user/1000/pipewire-0",
        "/run/user/1000/gnupg/S.gpg-agent",
        "/run/ssh-agent",
        "/run/snapd.socket",
        "/run/udev/control",
        "/tmp/.X11-unix",
        "/dev/log",
        "/run/saggar",
        "/run/utmp",
        "/run/secrets",
    ] {
        out.tried(name, fs::symlink_metadata(name));
    }
    // Reported under other names than their own: output that names the runtime's data directory fails the case.
    for (name, path) in
        [("its own control sockets", "/var/lib/saggar/control"), ("its own store", "/var/lib/saggar/saggar.db")]
    {
        out.tried(name, fs::symlink_metadata(path));
    }
    out.examined("/run is empty", fs::read_dir("/run").is_ok_and(|mut entries| entries.next().is_none()), "");
}

/// Sends a message with a descriptor in it to each stream.
fn pass_descriptors(out: &Out, _: &[String]) {
    for fd in 0..8i32 {
        let passed = send_descriptor(fd, 1);
        out.tried(&format!("pass through {fd}"), passed);
        let mut space = [0u8; 64];
        let mut part = libc::iovec { iov_base: space.as_mut_ptr().cast(), iov_len: 8 };
        let mut control = [0u64; 8];
        // SAFETY: all zeroes is a valid value of this struct of integers and pointers.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = 64;
        out.tried(
            &format!("receive from {fd}"),
            call(libc::SYS_recvmsg, &[fd as usize, &raw mut message as usize, libc::MSG_DONTWAIT as usize]),
        );
    }
    let kinds = (0..3).filter_map(|fd| fs::read_link(format!("/proc/self/fd/{fd}")).ok());
    let sockets = kinds.filter(|kind| kind.to_string_lossy().starts_with("socket:")).count();
    out.examined("no stream is a socket", sockets == 0, &sockets.to_string());
}

fn send_descriptor(over: i32, descriptor: i32) -> io::Result<usize> {
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // A control header of 16 bytes (length, level, kind) and one descriptor.
    let mut control = [20u64, (libc::SCM_RIGHTS as u64) << 32 | libc::SOL_SOCKET as u64, descriptor as u64];
    // SAFETY: all zeroes is a valid value of this struct of integers and pointers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = 24;
    call(
        libc::SYS_sendmsg,
        &[over as usize, &raw const message as usize, (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize],
    )
}

fn socket_families(out: &Out, _: &[String]) {
    let netlink = libc::AF_NETLINK;
    for (member, family, kind, protocol) in [
        ("netlink route", netlink, libc::SOCK_RAW, 0),
        ("netlink audit", netlink, libc::SOCK_RAW, 9),
        ("netlink netfilter", netlink, libc::SOCK_RAW, 12),
        ("netlink uevent", netlink, libc::SOCK_RAW, 15),
        ("netlink diag", netlink, libc::SOCK_RAW, 4),
        ("netlink crypto", netlink, libc::SOCK_RAW, 21),
        ("netlink generic", netlink, libc::SOCK_RAW, 16),
        ("netlink xfrm", netlink, libc::SOCK_RAW, 6),
        ("packet", libc::AF_PACKET, libc::SOCK_RAW, 0x300),
        ("packet cooked", libc::AF_PACKET, libc::SOCK_DGRAM, 0x300),
        ("alg", 38, libc::SOCK_SEQPACKET, 0),
        ("key", 15, libc::SOCK_RAW, 2),
        ("xdp", 44, libc::SOCK_RAW, 0),
        ("rds", 21, libc::SOCK_SEQPACKET, 0),
        ("tipc", 30, libc::SOCK_SEQPACKET, 0),
        ("can", 29, libc::SOCK_RAW, 1),
        ("bluetooth", 31, libc::SOCK_RAW, 1),
        ("smc", 43, libc::SOCK_STREAM, 0),
        ("vsock", 40, libc::SOCK_STREAM, 0),
        ("ib", 27, libc::SOCK_DGRAM, 0),
        ("pppox", 24, libc::SOCK_STREAM, 0),
        ("llc", 26, libc::SOCK_DGRAM, 0),
        ("ax25", 3, libc::SOCK_DGRAM, 0),
        ("ipx", 4, libc::SOCK_DGRAM, 0),
        ("appletalk", 5, libc::SOCK_DGRAM, 0),
        ("x25", 9, libc::SOCK_SEQPACKET, 0),
        ("nfc", 39, libc::SOCK_SEQPACKET, 0),
        ("kcm", 41, libc::SOCK_DGRAM, 0),
        ("qipcrtr", 42, libc::SOCK_DGRAM, 0),
        ("phonet", 35, libc::SOCK_DGRAM, 0),
        ("caif", 37, libc::SOCK_SEQPACKET, 0),
        ("isdn", 34, libc::SOCK_RAW, 0),
        ("rxrpc", 33, libc::SOCK_DGRAM, 2),
        ("mctp", 45, libc::SOCK_DGRAM, 0),
        ("unspecified", 0, libc::SOCK_STREAM, 0),
    ] {
        out.tried(member, call(libc::SYS_socket, &[family as usize, kind as usize, protocol as usize]).map(own));
    }
    for (member, family) in [("unix", libc::AF_UNIX), ("inet", libc::AF_INET)] {
        out.tried(member, call(libc::SYS_socket, &[family as usize, libc::SOCK_STREAM as usize, 0]).map(own));
    }
    let mut pair = [0i32; 2];
    out.tried(
        "tipc pair",
        call(libc::SYS_socketpair, &[30, libc::SOCK_SEQPACKET as usize, 0, pair.as_mut_ptr() as usize]),
    );
}

/// Claims another identity in the credentials of a message.
fn spoof_peer(out: &Out, _: &[String]) {
    let Ok((here, _there)) = UnixStream::pair() else { return };
    for (member, pid, uid) in
        [("as PID 1", 1u32, call(libc::SYS_getuid, &[]).unwrap_or(0) as u32), ("as uid 0", std::process::id(), 0u32)]
    {
        if pid == std::process::id() && uid as usize == call(libc::SYS_getuid, &[]).unwrap_or(0) {
            out.say(member, AttemptOutcome::Absent, "that is who we are");
            continue;
        }
        let mut byte = 0u8;
        let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let mut control =
            [28u64, 2u64 << 32 | libc::SOL_SOCKET as u64, u64::from(uid) << 32 | u64::from(pid), u64::from(uid)];
        // SAFETY: all zeroes is a valid value of this struct of integers and pointers.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = 32;
        out.tried(
            member,
            call(
                libc::SYS_sendmsg,
                &[here.as_raw_fd() as usize, &raw const message as usize, libc::MSG_DONTWAIT as usize],
            ),
        );
    }
    let mut peer = [0u32; 3];
    let mut length = 12u32;
    let asked = call(
        libc::SYS_getsockopt,
        &[
            here.as_raw_fd() as usize,
            libc::SOL_SOCKET as usize,
            libc::SO_PEERCRED as usize,
            peer.as_mut_ptr() as usize,
            &raw mut length as usize,
        ],
    );
    out.examined("a peer is told in our own numbers", asked.is_ok() && peer[0] == std::process::id(), "");
}
