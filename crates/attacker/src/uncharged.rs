//! Attempts to hold kernel memory that is charged to no cgroup, and to take flow labels, of which the host has one
//! pool. One try of each kind shows whether it can be repeated; if only the number of tries is bounded, as many as that
//! takes.

use std::fs;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use crate::Attempt;
use crate::out::{AttemptOutcome, Out};
use crate::resources::number;
use crate::sys::{at, call, errno_name, own, path, unheeded};

pub const ATTEMPTS: &[Attempt] = &[
    ("hold-uncharged", hold_uncharged),
    ("stamp-messages", stamp_messages),
    ("never-accept", never_accept),
    ("take-flow-labels", take_flow_labels),
];

const SOL_SOCKET: usize = libc::SOL_SOCKET as usize;
const SOL_TCP: usize = 6;
const SOL_UDP: usize = 17;
const SOL_IPV6: usize = 41;

/// Memory that would stay with a socket or a file, in each known way.
fn hold_uncharged(out: &Out, _: &[String]) {
    cork(out);
    sign_segments(out);
    keep_options(out);
    queue_errors(out);
    enlarge_buffers(out);
    keep_lists(out);
    close_connections(out);
}

fn set(socket: &impl AsRawFd, level: usize, option: usize, value: &[u8]) -> io::Result<usize> {
    let value = (value.as_ptr() as usize, value.len());
    call(libc::SYS_setsockopt, &[socket.as_raw_fd() as usize, level, option, value.0, value.1])
}

fn get(socket: &impl AsRawFd, level: usize, option: usize) -> io::Result<i32> {
    let (mut value, mut length) = (0i32, 4u32);
    let place = [socket.as_raw_fd() as usize, level, option, &raw mut value as usize, &raw mut length as usize];
    call(libc::SYS_getsockopt, &place).map(|_| value)
}

fn socket(family: i32, kind: i32) -> io::Result<OwnedFd> {
    call(libc::SYS_socket, &[family as usize, kind as usize, 0]).map(own)
}

/// A message with these bytes, for the calls that take one.
struct Message {
    _part: Box<libc::iovec>,
    header: libc::msghdr,
}

impl Message {
    fn new(bytes: &mut [u8], control: &mut [u64]) -> Self {
        let mut part = Box::new(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() });
        // SAFETY: all zeroes is a valid value of this struct of integers and pointers.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut *part;
        header.msg_iovlen = 1;
        if !control.is_empty() {
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = size_of_val(control) as _;
        }
        Self { _part: part, header }
    }
}

/// A datagram that is begun and never sent stays in its socket.
fn cork(out: &Out) {
    const MORE: usize = libc::MSG_MORE as usize;
    let mut bytes = [0u8; 1000];
    for (family, address) in [("IPv4", "127.0.0.1:9"), ("IPv6", "[::1]:9")] {
        let Ok(socket) = UdpSocket::bind(address.replace(":9", ":0")).and_then(|socket| {
            socket.connect(address)?;
            Ok(socket)
        }) else {
            out.say(&format!("{family} cork"), AttemptOutcome::Absent, "no such address");
            continue;
        };
        let fd = socket.as_raw_fd() as usize;
        out.tried(&format!("{family} cork"), set(&socket, SOL_UDP, 1, &1i32.to_ne_bytes()));
        unheeded(set(&socket, SOL_UDP, 1, &0i32.to_ne_bytes()));
        let (at, len) = (bytes.as_mut_ptr() as usize, bytes.len());
        out.tried(&format!("{family} sendto with more to come"), call(libc::SYS_sendto, &[fd, at, len, MORE]));
        let message = Message::new(&mut bytes, &mut []);
        let header = &raw const message.header as usize;
        out.tried(&format!("{family} sendmsg with more to come"), call(libc::SYS_sendmsg, &[fd, header, MORE]));
        let many = libc::mmsghdr { msg_hdr: message.header, msg_len: 0 };
        let header = &raw const many as usize;
        out.tried(&format!("{family} sendmmsg with more to come"), call(libc::SYS_sendmmsg, &[fd, header, 1, MORE]));
        out.tried(&format!("{family} plain sendto"), call(libc::SYS_sendto, &[fd, at, len, 0]));
    }
}

/// A key per peer address, for as many addresses as there are.
fn sign_segments(out: &Out) {
    let Some(socket) = out_of(out, "TCP", socket(libc::AF_INET, libc::SOCK_STREAM)) else { return };
    // A socket address of 128 bytes, flags, a prefix, the length of the key at 130, an interface, and the key at 136.
    let mut request = [0u8; 216];
    request[..8].copy_from_slice(&[libc::AF_INET as u8, 0, 0, 0, 10, 0, 0, 1]);
    request[130] = 80;
    request[136..].fill(1);
    out.tried("TCP_MD5SIG", set(&socket, SOL_TCP, 14, &request));
    (request[128], request[129]) = (1, 24);
    out.tried("TCP_MD5SIG_EXT", set(&socket, SOL_TCP, 32, &request));
    out.tried("TCP_AO_ADD_KEY", set(&socket, SOL_TCP, 38, &[0u8; 288]));
    out.tried("TCP_CORK", set(&socket, SOL_TCP, 3, &0i32.to_ne_bytes()));
}

/// Options as control messages: the kernel keeps their whole text.
fn keep_options(out: &Out) {
    let Some(socket) = out_of(out, "UDP over IPv6", socket(libc::AF_INET6, libc::SOCK_DGRAM)) else { return };
    // A header of 16 bytes (length, level, IPV6_HOPLIMIT), and a number.
    let one = [20u64, 52 << 32 | SOL_IPV6 as u64, 5];
    let text: Vec<u8> = one.iter().cycle().take(3 * 1000).flat_map(|word| word.to_ne_bytes()).collect();
    out.tried("IPV6_2292PKTOPTIONS", set(&socket, SOL_IPV6, 6, &text));
}

/// Errors about sent packets are kept in a queue of their own.
fn queue_errors(out: &Out) {
    for (member, address, level, options) in
        [("errors over IPv4", "127.0.0.1", 0, [11usize, 26]), ("errors over IPv6", "[::1]", SOL_IPV6, [25, 31])]
    {
        let nobody = UdpSocket::bind(format!("{address}:0")).and_then(|socket| socket.local_addr());
        let (Ok(nobody), Ok(socket)) = (nobody, UdpSocket::bind(format!("{address}:0"))) else {
            out.say(member, AttemptOutcome::Absent, "no such address");
            continue;
        };
        for option in options {
            // Whether it is refused or has no effect shows in the queue.
            unheeded(set(&socket, level, option, &1i32.to_ne_bytes()));
        }
        for _ in 0..3 {
            unheeded(socket.send_to(&[0; 500], nobody));
        }
        out.examined(member, !has_waiting_error(&socket), "in the queue of a socket");
    }
    let Some(socket) = out_of(out, "UDP", UdpSocket::bind("127.0.0.1:0")) else { return };
    for (member, option) in [("SO_TIMESTAMPING", 37), ("SO_TIMESTAMPING_NEW", 65)] {
        out.tried(member, set(&socket, SOL_SOCKET, option, &(TX_SOFTWARE | 1 << 4).to_ne_bytes()));
    }
}

const TX_SOFTWARE: u32 = 1 << 1;

fn has_waiting_error(socket: &UdpSocket) -> bool {
    let (mut bytes, mut control) = ([0u8; 600], [0u64; 32]);
    let mut message = Message::new(&mut bytes, &mut control);
    let flags = (libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) as usize;
    call(libc::SYS_recvmsg, &[socket.as_raw_fd() as usize, &raw mut message.header as usize, flags]).is_ok()
}

/// A timestamp requested in the message itself, which no filter can see.
fn stamp_messages(out: &Out, _: &[String]) {
    let Some(socket) = out_of(out, "UDP", UdpSocket::bind("127.0.0.1:0")) else { return };
    let connected = socket.local_addr().and_then(|address| socket.connect(address));
    if out_of(out, "UDP", connected).is_none() {
        return;
    }
    let (mut bytes, mut control) = ([0u8; 500], [20u64, 37 << 32 | SOL_SOCKET as u64, u64::from(TX_SOFTWARE)]);
    let message = Message::new(&mut bytes, &mut control);
    let sent = call(libc::SYS_sendmsg, &[socket.as_raw_fd() as usize, &raw const message.header as usize, 0]);
    if out_of(out, "send", sent).is_some() {
        out.examined("no copy waits", !has_waiting_error(&socket), "in the queue of a socket");
    }
}

fn enlarge_buffers(out: &Out) {
    for (member, family, kind) in [
        ("UDP", libc::AF_INET, libc::SOCK_DGRAM),
        ("TCP", libc::AF_INET, libc::SOCK_STREAM),
        ("unix", libc::AF_UNIX, libc::SOCK_STREAM),
    ] {
        let Some(socket) = out_of(out, member, socket(family, kind)) else { continue };
        let before = get(&socket, SOL_SOCKET, libc::SO_RCVBUF as usize).unwrap_or(0);
        unheeded(set(&socket, SOL_SOCKET, libc::SO_RCVBUF as usize, &(8i32 << 20).to_ne_bytes()));
        let after = get(&socket, SOL_SOCKET, libc::SO_RCVBUF as usize).unwrap_or(i32::MAX);
        out.examined(&format!("{member} receive buffer"), after <= before, &format!("{} KiB", after >> 10));
    }
}

/// An access control list with this many entries for one user, in addition to the four required ones.
fn list(entries: usize) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let id = call(libc::SYS_getuid, &[]).unwrap_or(0) as u32;
    let users = std::iter::repeat_n((2u16, id), entries);
    let all = std::iter::once((1u16, NOBODY)).chain(users).chain([(4, NOBODY), (16, NOBODY), (32, NOBODY)]);
    let entries = all.flat_map(|(tag, id)| {
        let [a, b] = tag.to_ne_bytes();
        let [c, d, e, f] = id.to_ne_bytes();
        [a, b, 7, 0, c, d, e, f]
    });
    2u32.to_ne_bytes().into_iter().chain(entries).collect()
}

/// Access control lists on files in memory.
fn keep_lists(out: &Out) {
    let directory = path("/tmp/listed");
    unheeded(fs::create_dir("/tmp/listed"));
    let memory = path("listed");
    let memory = call(libc::SYS_memfd_create, &[at(&memory), 0]).map(own);
    let (access, default, other) =
        (path("system.posix_acl_access"), path("system.posix_acl_default"), path("user.probe"));
    let (large, larger, small) = (list(25), list(8000), list(3));
    let by_name = |call_number: libc::c_long, name: &std::ffi::CString, value: &[u8]| {
        call(call_number, &[at(&directory), at(name), value.as_ptr() as usize, value.len(), 0])
    };
    out.tried("large list", by_name(libc::SYS_setxattr, &access, &large));
    out.tried("very large list", by_name(libc::SYS_setxattr, &access, &larger));
    out.tried("large list for what is made in it", by_name(libc::SYS_lsetxattr, &default, &large));
    if let Some(memory) = out_of(out, "memfd", memory) {
        let place = [memory.as_raw_fd() as usize, at(&access), larger.as_ptr() as usize, larger.len(), 0];
        out.tried("very large list on a memfd", call(libc::SYS_fsetxattr, &place));
    }
    const SETXATTRAT: libc::c_long = 463;
    let request = [larger.as_ptr() as u64, larger.len() as u64];
    let place = [crate::sys::CWD, at(&directory), 0, at(&access), request.as_ptr() as usize, 16];
    out.tried("very large list by setxattrat", call(SETXATTRAT, &place));
    out.tried("small list", by_name(libc::SYS_setxattr, &access, &small));
    // Kernels before 6.6 have no such attributes in memory.
    out.tried("attribute of 2048 bytes", by_name(libc::SYS_setxattr, &other, &[b'x'; 2048]));
}

/// The kernel remembers a closed connection for a minute.
fn close_connections(out: &Out) {
    const COUNT: usize = 5000;
    const MOST: u64 = 4200;
    let Some(listener) = out_of(out, "TCP", TcpListener::bind("127.0.0.1:0")) else { return };
    let closed = listener.local_addr().and_then(|address| {
        (0..COUNT).try_for_each(|_| {
            let here = TcpStream::connect(address)?;
            let there = listener.accept()?;
            drop(here);
            drop(there);
            Ok(())
        })
    });
    if out_of(out, "connections", closed).is_none() {
        return;
    }
    let counts = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let mut words = counts.split_ascii_whitespace().skip_while(|word| *word != "tw").skip(1);
    let remembered: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(u64::MAX);
    out.examined("closed connections are forgotten", remembered <= MOST, &remembered.to_string());
}

/// Opens many listeners whose connections are never accepted, and fills these. The argument is a bound in MiB.
fn never_accept(out: &Out, arguments: &[String]) {
    const LISTENERS: usize = 100;
    const CONNECTIONS: usize = 40;
    let most = number(arguments, 0) << 20;
    let piece = vec![0u8; 1 << 16];
    let (mut listeners, mut written, mut refused) = (Vec::new(), 0, None);
    'all: for _ in 0..LISTENERS {
        let listener = match TcpListener::bind("127.0.0.1:0") {
            Ok(listener) => listener,
            Err(error) => {
                refused = Some(error);
                break;
            }
        };
        let Ok(address) = listener.local_addr() else { break };
        listeners.push(listener);
        for _ in 0..CONNECTIONS {
            // Non-blocking: a full queue doesn't answer.
            let Ok(client) = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK) else { break 'all };
            let local = [u16::from_ne_bytes([127, 0]), u16::from_ne_bytes([0, 1])];
            let place = [libc::AF_INET as u16, address.port().to_be(), local[0], local[1], 0, 0, 0, 0];
            unheeded(call(libc::SYS_connect, &[client.as_raw_fd() as usize, place.as_ptr() as usize, 16]));
            let mut client = TcpStream::from(client);
            let before = written;
            while let Ok(count) = client.write(&piece) {
                written += count;
            }
            // The data it sent stays with the other end.
            drop(client);
            if written == before || written > 4 * most {
                break;
            }
        }
        if written > 4 * most {
            break;
        }
    }
    out.examined("some connections can wait", written > 0, &format!("{} KiB", written >> 10));
    out.examined("what waits is bounded", written <= most, &format!("{} MiB", written >> 20));
    let name = refused.and_then(|error| error.raw_os_error()).map_or("", errno_name);
    out.examined("listeners have an end", listeners.len() < LISTENERS, name);
    out.examined("there are some", listeners.len() > 5, &listeners.len().to_string());
    drop(listeners);
    // What was closed is given back.
    out.tried("a listener afterwards", TcpListener::bind("127.0.0.1:0"));
    let place = "/tmp/listened";
    unheeded(fs::remove_file(place));
    out.tried("a unix listener", std::os::unix::net::UnixListener::bind(place));
    let datagrams = UdpSocket::bind("127.0.0.1:0");
    if let Some(datagrams) = out_of(out, "UDP", datagrams) {
        out.tried("listen on UDP", call(libc::SYS_listen, &[datagrams.as_raw_fd() as usize, 1]));
    }
    out.tried("listen on a file", call(libc::SYS_listen, &[0, 1]));
    out.tried("listen on nothing", call(libc::SYS_listen, &[9999, 1]));
}

/// There are 4096 for the whole host. Takes one if that works, and releases it at the end.
fn take_flow_labels(out: &Out, _: &[String]) {
    const IPV6_FLOWLABEL_MGR: usize = 32;
    let Some(socket) = out_of(out, "UDP over IPv6", socket(libc::AF_INET6, libc::SOCK_DGRAM)) else { return };
    // An address of 16 bytes, a label, an action (get), a share (exclusive), flags (create), times and padding.
    let mut request = [0u8; 32];
    request[15] = 1;
    request[16..20].copy_from_slice(&0x000A_B123u32.to_be_bytes());
    (request[20], request[21], request[22]) = (0, 1, 1);
    out.tried("a flow label", set(&socket, SOL_IPV6, IPV6_FLOWLABEL_MGR, &request));
    request[16..20].fill(0);
    out.tried("any flow label", set(&socket, SOL_IPV6, IPV6_FLOWLABEL_MGR, &request));
}

/// Reports an outcome only if there is none.
fn out_of<T>(out: &Out, kind: &str, made: io::Result<T>) -> Option<T> {
    made.map_err(|error| out.tried::<()>(kind, Err(error))).ok()
}
