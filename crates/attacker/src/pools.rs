//! Attempts on kernel pools that the whole host shares, and on memory that the kernel charges to no cgroup.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use crate::Attempt;
use crate::out::Out;
use crate::sys::{at, call, errno_name, open, own, path, unheeded};

pub const ATTEMPTS: &[Attempt] = &[
    ("filter-sockets", filter_sockets),
    ("join-groups", join_groups),
    ("huge-pages", huge_pages),
    ("take-leases", take_leases),
    ("open-terminals", open_terminals),
    ("lock-ranges", lock_ranges),
];

fn set(socket: i32, level: usize, option: usize, value: usize, length: usize) -> io::Result<usize> {
    call(libc::SYS_setsockopt, &[socket as usize, level, option, value, length])
}

/// All compiled filters come out of one pool, without which no process on the host can confine itself. Each filter here
/// passes everything.
fn filter_sockets(out: &Out, _: &[String]) {
    let pass = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: u32::MAX };
    let program = libc::sock_fprog { len: 1, filter: (&raw const pass).cast_mut() };
    let none = -1i32;
    let (at_program, at_none) = (&raw const program as usize, &raw const none as usize);
    let sockets = [
        ("UDP", UdpSocket::bind("127.0.0.1:0").map(std::os::fd::OwnedFd::from)),
        ("unix", std::os::unix::net::UnixDatagram::unbound().map(std::os::fd::OwnedFd::from)),
    ];
    for (kind, socket) in sockets {
        let Some(socket) = out_of(out, kind, socket) else { continue };
        for (member, level, option, value, length) in [
            ("SO_ATTACH_FILTER", 1usize, 26usize, at_program, size_of::<libc::sock_fprog>()),
            ("SO_ATTACH_BPF", 1, 50, at_none, 4),
            ("SO_ATTACH_REUSEPORT_CBPF", 1, 51, at_program, size_of::<libc::sock_fprog>()),
            ("SO_ATTACH_REUSEPORT_EBPF", 1, 52, at_none, 4),
            ("SO_ATTACH_FILTER with high bits", 1 | 1 << 32, 26 | 1 << 32, at_program, size_of::<libc::sock_fprog>()),
        ] {
            out.tried(&format!("{kind} {member}"), set(socket.as_raw_fd(), level, option, value, length));
        }
    }
}

/// Reports an outcome only if there is no socket.
fn out_of<T>(out: &Out, kind: &str, made: io::Result<T>) -> Option<T> {
    made.map_err(|error| out.tried::<()>(kind, Err(error))).ok()
}

/// Memberships take memory that is charged to no cgroup, and each lookup searches the whole list.
fn join_groups(out: &Out, _: &[String]) {
    const LOOPBACK: u32 = 1;
    let group = u32::from_ne_bytes([239, 1, 2, 3]);
    let any = [group, 0, LOOPBACK];
    let from = [group, 0, u32::from_ne_bytes([127, 0, 0, 1])];
    if let Some(socket) = out_of(out, "UDP", UdpSocket::bind("0.0.0.0:0")) {
        let socket = socket.as_raw_fd();
        out.tried("IP_ADD_MEMBERSHIP", set(socket, 0, 35, any.as_ptr() as usize, 12));
        out.tried("IP_ADD_SOURCE_MEMBERSHIP", set(socket, 0, 39, from.as_ptr() as usize, 12));
        // An interface, and a socket address of 128 bytes.
        let mut request = [0u32; 34];
        (request[0], request[2], request[3]) = (LOOPBACK, libc::AF_INET as u32, group);
        out.tried("MCAST_JOIN_GROUP", set(socket, 0, 42, request.as_ptr() as usize, 136));
    }
    if let Some(socket) = out_of(out, "UDP over IPv6", UdpSocket::bind("[::]:0")) {
        let socket = socket.as_raw_fd();
        let mut request = [0u32; 5];
        (request[0], request[3], request[4]) = (u32::from_ne_bytes([0xff, 5, 0, 0]), 7, LOOPBACK);
        out.tried("IPV6_ADD_MEMBERSHIP", set(socket, 41, 20, request.as_ptr() as usize, 20));
    }
}

/// Huge pages come from a reserve that an administrator set aside. A descriptor of such a file takes none yet, and
/// works even if the reserve is empty.
fn huge_pages(out: &Out, _: &[String]) {
    const LENGTH: usize = 2 << 20;
    let name = path("huge");
    for (member, flags) in [("memfd", 4usize), ("memfd of 2 MiB pages", 4 | 21 << 26)] {
        out.tried(member, call(libc::SYS_memfd_create, &[at(&name), flags]).map(own));
    }
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    for (member, flags) in [("mapping", libc::MAP_HUGETLB), ("mapping of 2 MiB pages", libc::MAP_HUGETLB | 21 << 26)] {
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags) as usize;
        let mapped = call(libc::SYS_mmap, &[0, LENGTH, protection, flags, usize::MAX, 0]);
        if let Ok(start) = &mapped {
            unheeded(call(libc::SYS_munmap, &[*start, LENGTH]));
        }
        out.tried(member, mapped);
    }
    let shared = call(libc::SYS_shmget, &[0, LENGTH, libc::IPC_CREAT as usize | 0o4600]);
    if let Ok(id) = &shared {
        unheeded(call(libc::SYS_shmctl, &[*id, libc::IPC_RMID as usize, 0]));
    }
    out.tried("shared memory", shared);
}

/// Opening a leased file blocks until its holder reacts. A lease is released at once if it is granted at all.
fn take_leases(out: &Out, _: &[String]) {
    for (member, file) in [("a new file", "/workspace/leased"), ("git's configuration", "/workspace/.git/config")] {
        // An existing file need not be created, and a protected one can't be.
        let file = open(file, libc::O_RDONLY, 0).or_else(|_| open(file, libc::O_RDWR | libc::O_CREAT, 0o644));
        let Some(file) = out_of(out, member, file) else { continue };
        for (kind, lease) in [("read", libc::F_RDLCK), ("write", libc::F_WRLCK)] {
            let fd = file.as_raw_fd() as usize;
            out.tried(&format!("{kind} lease on {member}"), call(libc::SYS_fcntl, &[fd, 1024, lease as usize]));
            unheeded(call(libc::SYS_fcntl, &[fd, 1024, libc::F_UNLCK as usize]));
        }
    }
}

/// More than any program needs, and few compared to the host's.
fn open_terminals(out: &Out, _: &[String]) {
    const MOST: usize = 80;
    let mut kept = Vec::new();
    let refused = (0..MOST)
        .find_map(|_| open("/dev/ptmx", libc::O_RDWR | libc::O_NOCTTY, 0).map(|terminal| kept.push(terminal)).err());
    let name = refused.and_then(|error| error.raw_os_error()).map_or("", errno_name);
    out.examined("terminals have an end", kept.len() < MOST, name);
    out.examined("there are some", kept.len() > 8, "");
}

/// Locks every second byte of a file, so that no two locks can be merged. A few thousand show that nothing counts them;
/// each takes about 200 bytes.
fn lock_ranges(out: &Out, _: &[String]) {
    const COUNT: i64 = 4000;
    // F_OFD_SETLK: the lock belongs to the open file and ends with it.
    const SET_LOCK: usize = 37;
    let Some(file) = out_of(out, "file", open("/tmp/locked", libc::O_RDWR | libc::O_CREAT, 0o600)) else { return };
    let locked = (0..COUNT).try_for_each(|place| {
        // SAFETY: all zeroes is a valid value of this struct of integers.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as _;
        (lock.l_start, lock.l_len) = (2 * place, 1);
        call(libc::SYS_fcntl, &[file.as_raw_fd() as usize, SET_LOCK, &raw const lock as usize]).map(|_| ())
    });
    out.tried("thousands of locks on one file", locked);
}
