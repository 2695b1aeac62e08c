//! A small internet for proxied sandboxes to be tried against: servers on public, private and metadata addresses, in a network
//! namespace of this process. The process that starts it joins that namespace, and reads what the servers saw from standard output.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::thread;
use std::time::Duration;

use crate::sys::{call, own};
use std::os::fd::AsRawFd;

/// A host that cases allow, one that they don't, and two that no name and no wide rule may lead to.
pub const ALLOWED: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
pub const DENIED: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 11);
pub const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 9);
pub const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

const TCP_PORTS: [u16; 5] = [22, 53, 80, 443, 7000];
const UDP_PORTS: [u16; 4] = [53, 443, 853, 5353];
/// What every server answers.
pub const GREETING: &str = "hello from the world";
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves until standard input ends. The first line says that it is ready.
pub fn serve() -> io::Result<()> {
    call(libc::SYS_unshare, &[libc::CLONE_NEWNET as usize])?;
    loopback_up()?;
    for address in [ALLOWED, PRIVATE, METADATA] {
        route(address)?;
    }
    for address in [ALLOWED, DENIED, PRIVATE, METADATA, Ipv4Addr::LOCALHOST] {
        for port in TCP_PORTS {
            let listener = TcpListener::bind((address, port))?;
            thread::spawn(move || accept(&listener, address, port));
        }
        for port in UDP_PORTS {
            let socket = UdpSocket::bind((address, port))?;
            thread::spawn(move || hear(&socket, address, port));
        }
    }
    say("ready");
    let mut rest = Vec::new();
    io::stdin().lock().read_to_end(&mut rest).map(drop)
}

fn accept(listener: &TcpListener, address: Ipv4Addr, port: u16) {
    while let Ok((mut stream, _)) = listener.accept() {
        say(&format!("tcp {address} {port}"));
        thread::spawn(move || {
            // A client that says nothing gets no answer.
            if stream.set_read_timeout(Some(PATIENCE)).is_err() {
                return;
            }
            let mut some = [0; 4096];
            if !matches!(stream.read(&mut some), Ok(1..)) {
                return;
            }
            let length = GREETING.len();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
            let head = if port == 80 { head } else { String::new() };
            // The client may be gone.
            drop(stream.write_all(format!("{head}{GREETING}").as_bytes()));
        });
    }
}

fn hear(socket: &UdpSocket, address: Ipv4Addr, port: u16) {
    let mut some = [0; 2048];
    while socket.recv(&mut some).is_ok() {
        say(&format!("udp {address} {port}"));
    }
}

fn say(line: &str) {
    let mut out = io::stdout().lock();
    // There is no reader any more: this process is about to end.
    drop(writeln!(out, "{line}").and_then(|()| out.flush()));
}

fn loopback_up() -> io::Result<()> {
    let socket = own(call(libc::SYS_socket, &[libc::AF_INET as usize, libc::SOCK_DGRAM as usize, 0])?);
    // struct ifreq: 16 bytes of name, then the flags.
    let mut request = [0u8; 40];
    request[..2].copy_from_slice(b"lo");
    request[16..18].copy_from_slice(&((libc::IFF_UP | libc::IFF_RUNNING) as u16).to_ne_bytes());
    let arguments = [socket.as_raw_fd() as usize, libc::SIOCSIFFLAGS as usize, request.as_ptr() as usize];
    call(libc::SYS_ioctl, &arguments).map(drop)
}

/// `local ADDRESS/24 dev lo`: a route, and no address of an interface, which would be one of the host's own.
fn route(address: Ipv4Addr) -> io::Result<()> {
    let [a, b, c, _] = address.octets();
    let mut message = Vec::new();
    // struct nlmsghdr: length, type, flags, number, sender; struct rtmsg; the destination; the device.
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_CREATE | libc::NLM_F_ACK) as u16;
    message.extend(44u32.to_ne_bytes());
    message.extend(libc::RTM_NEWROUTE.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    let (table, scope) = (libc::RT_TABLE_LOCAL, libc::RT_SCOPE_HOST);
    message.extend([libc::AF_INET as u8, 24, 0, 0, table, libc::RTPROT_STATIC, scope, libc::RTN_LOCAL, 0, 0, 0, 0]);
    message.extend(8u16.to_ne_bytes());
    message.extend(libc::RTA_DST.to_ne_bytes());
    message.extend([a, b, c, 0]);
    message.extend(8u16.to_ne_bytes());
    message.extend(libc::RTA_OIF.to_ne_bytes());
    message.extend(1u32.to_ne_bytes());
    let kind = (libc::SOCK_RAW | libc::SOCK_CLOEXEC) as usize;
    let socket = own(call(libc::SYS_socket, &[libc::AF_NETLINK as usize, kind, 0])?);
    let fd = socket.as_raw_fd() as usize;
    call(libc::SYS_sendto, &[fd, message.as_ptr() as usize, message.len(), 0, 0, 0])?;
    let mut answer = [0u8; 64];
    call(libc::SYS_recvfrom, &[fd, answer.as_mut_ptr() as usize, answer.len(), 0, 0, 0])?;
    match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}
