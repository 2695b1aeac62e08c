//! A proxied network as its programs see it. Each test runs in a child with a user and a network namespace of its own.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SendFlags, SocketType, ipproto, socket, sockopt};
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags, set_capabilities, unshare_unsafe};

use super::datagram::{receive_datagram, send_datagram};
use super::gates::{Family, GATE_PORT, Gates, PROXY_PORT, original_destination};
use super::namespace::Network;
use super::rules::Wanted;
use super::trial::attempt;
use crate::sys::exit_now;

const ALL: Wanted = Wanted { is_redirecting: true, is_dropping: true };
const NO_REDIRECT: Wanted = Wanted { is_redirecting: false, is_dropping: true };
const NO_DROP: Wanted = Wanted { is_redirecting: true, is_dropping: false };

#[test]
fn the_trial_passes_and_names_the_part_that_is_missing() {
    in_child(|| {
        attempt(ALL).unwrap();
        assert_eq!(attempt(NO_REDIRECT).unwrap_err().to_string(), "leading an IPv4 connection to its gate");
        assert_eq!(attempt(NO_DROP).unwrap_err().to_string(), "dropping other traffic");
    });
}

#[test]
fn the_trial_passes_as_an_ordinary_user() {
    in_child(|| {
        if rustix::process::geteuid().is_root() {
            // SAFETY: takes integers only. Raw, because the C library's would signal threads that are not in this child.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
            assert_eq!(changed, 0);
        }
        attempt(ALL).unwrap();
    });
}

#[test]
fn connections_arrive_at_the_gate_wherever_they_were_going() {
    inside(ALL, |gates| {
        let [four, six] = both(gates.tcp);
        for target in [
            "1.2.3.4:443",
            "169.254.169.254:80",
            "10.0.0.1:22",
            "192.168.1.1:65535",
            "8.8.8.8:853",
            "198.18.0.1:443",
            "255.1.1.1:80",
        ] {
            let target: SocketAddr = target.parse().unwrap();
            check_arrives(&four, target, target);
            check_arrives(&four, mapped(target), target);
        }
        for target in ["[2001:db8::1]:443", "[fd00:ec2::254]:80", "[64:ff9b::7f00:1]:443", "[fdfe:5a66::1]:1"] {
            let target: SocketAddr = target.parse().unwrap();
            check_arrives(&six, target, target);
        }
    });
}

#[test]
fn without_the_redirect_a_connection_goes_nowhere() {
    inside(NO_REDIRECT, |_gates| {
        for target in ["1.2.3.4:443", "[2001:db8::1]:443"] {
            assert_eq!(TcpStream::connect(target).unwrap_err().kind(), ErrorKind::ConnectionRefused, "{target}");
        }
    });
}

#[test]
fn a_service_of_the_sandbox_does_not_get_connections_to_other_addresses() {
    inside(ALL, |gates| {
        let [four, _] = both(gates.tcp);
        let service = TcpListener::bind("0.0.0.0:443").unwrap();
        check_arrives(&four, "1.2.3.4:443".parse().unwrap(), "1.2.3.4:443".parse().unwrap());
        service.set_nonblocking(true).unwrap();
        assert_eq!(service.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn a_service_can_bind_the_port_of_a_connection_that_goes_out() {
    inside(ALL, |gates| {
        let [four, _] = both(gates.tcp);
        let program = TcpStream::connect("1.2.3.4:8080").unwrap();
        let accepted = accept(&four);
        // The standard library sets SO_REUSEADDR, as most servers do.
        let service = TcpListener::bind("0.0.0.0:8080").unwrap();
        check_exchange(program, accepted, "1.2.3.4:8080".parse().unwrap());
        let program = TcpStream::connect("127.0.0.1:8080").unwrap();
        check_exchange(program, service.accept().unwrap().0, "127.0.0.1:8080".parse().unwrap());
    });
}

#[test]
fn a_source_address_of_ones_own_changes_nothing() {
    inside(ALL, |gates| {
        let [four, _] = both(gates.tcp);
        let target: SocketAddr = "1.2.3.4:443".parse().unwrap();
        for source in ["127.0.0.1:40000", "10.0.0.1:40000", "1.2.3.4:443", "127.0.0.2:53"] {
            let source: SocketAddr = source.parse().unwrap();
            let program = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            sockopt::set_socket_reuseaddr(&program, true).unwrap();
            rustix::net::bind(&program, &source).unwrap();
            if source == target {
                // To itself, which TCP allows: not a way out.
                assert!(rustix::net::connect(&program, &target).is_ok());
                continue;
            }
            rustix::net::connect(&program, &target).unwrap();
            check_exchange(TcpStream::from(program), accept(&four), target);
        }
    });
}

#[test]
fn dns_questions_to_any_address_are_answered_from_there() {
    inside(ALL, |gates| {
        let [four, six] = both(gates.dns_udp);
        for (gate, server) in [
            (&four, "1.1.1.1"),
            (&four, "127.0.0.1"),
            (&four, "127.0.0.53"),
            (&four, "169.254.169.253"),
            (&six, "2606:4700:4700::1111"),
            (&six, "::1"),
        ] {
            let server: IpAddr = server.parse().unwrap();
            for is_connected in [true, false] {
                check_answered(gate, server, is_connected);
            }
        }
        let [four, six] = both(gates.dns_tcp);
        for (gate, server) in [(four, "9.9.9.9:53"), (six, "[2620:fe::fe]:53")] {
            let server: SocketAddr = server.parse().unwrap();
            check_arrives(&gate, server, server);
        }
    });
}

#[test]
fn other_datagrams_are_refused_at_once() {
    inside(ALL, |_gates| {
        for target in ["1.1.1.1:443", "10.0.0.1:5353", "224.0.0.251:5353", "[2001:db8::1]:443", "[ff02::fb]:5353"] {
            assert_eq!(datagram_to(target), Err(libc::EPERM), "{target}");
        }
        // Nor does anything but UDP and TCP pass, even from one who may create such sockets, and to port 53.
        for (kind, protocol) in [(SocketType::RAW, ipproto::ICMP), (SocketType::DGRAM, ipproto::UDPLITE)] {
            match socket(AddressFamily::INET, kind, Some(protocol)) {
                Ok(program) => {
                    let target: SocketAddr = "1.1.1.1:53".parse().unwrap();
                    let sent = rustix::net::sendto(&program, &[8; 16], SendFlags::empty(), &target);
                    assert_eq!(sent, Err(Errno::PERM), "{protocol:?}");
                }
                Err(errno) => assert_eq!(errno, Errno::PROTONOSUPPORT, "{protocol:?}"),
            }
        }
        // Root can bind port 53, and still can't pass for our DNS.
        let program = UdpSocket::bind("127.0.0.2:53").unwrap();
        assert_eq!(program.send_to(b"x", "1.1.1.1:443").unwrap_err().raw_os_error(), Some(libc::EPERM));
    });
    inside(NO_DROP, |_gates| assert_eq!(datagram_to("1.1.1.1:443"), Ok(())));
}

#[test]
fn programs_reach_their_own_services_on_the_loopback() {
    inside(ALL, |_gates| {
        for address in ["127.0.0.1:0", "127.9.9.9:0", "[::1]:0"] {
            let service = TcpListener::bind(address).unwrap();
            let place = service.local_addr().unwrap();
            let program = TcpStream::connect(place).unwrap();
            check_exchange(program, service.accept().unwrap().0, place);

            let (one, other) = (UdpSocket::bind(address).unwrap(), UdpSocket::bind(address).unwrap());
            one.send_to(b"hello", other.local_addr().unwrap()).unwrap();
            let mut buffer = [0; 8];
            assert_eq!(other.recv_from(&mut buffer).unwrap(), (5, one.local_addr().unwrap()));

            // A closed port says so, which takes an ICMP message.
            one.connect(place).unwrap();
            one.send(b"hello").unwrap();
            assert_eq!(one.recv(&mut buffer).unwrap_err().kind(), ErrorKind::ConnectionRefused, "{address}");
        }
    });
}

#[test]
fn the_unspecified_address_is_the_loopback() {
    inside(ALL, |_gates| {
        for (bound, dialled) in [("0.0.0.0:0", "0.0.0.0"), ("[::1]:0", "::")] {
            let service = TcpListener::bind(bound).unwrap();
            let program = TcpStream::connect((dialled, service.local_addr().unwrap().port())).unwrap();
            let (accepted, _) = service.accept().unwrap();
            let place = accepted.local_addr().unwrap();
            assert!(place.ip().is_loopback());
            check_exchange(program, accepted, place);
        }
    });
}

#[test]
fn a_gate_that_is_dialled_directly_and_port_0_are_no_destination() {
    inside(ALL, |gates| {
        for (gate, address) in both(gates.tcp).into_iter().zip(["127.0.0.1", "::1"]) {
            let _program = TcpStream::connect((address, GATE_PORT)).unwrap();
            let accepted = accept(&gate);
            assert_eq!(original_destination(&accepted).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
            assert_eq!(sockopt::ip_original_dst(&accepted).unwrap_err(), Errno::NOENT);
            let nowhere = if address == "::1" { "[2001:db8::1]:0" } else { "1.2.3.4:0" };
            let _program = TcpStream::connect(nowhere);
            assert!(original_destination(&accept(&gate)).is_err(), "{nowhere}");
        }
    });
}

#[test]
fn ports_of_the_gates_cannot_be_stolen() {
    inside(ALL, |_gates| {
        for (kind, port) in [
            (SocketType::STREAM, GATE_PORT),
            (SocketType::STREAM, PROXY_PORT),
            (SocketType::STREAM, 53),
            (SocketType::DGRAM, 53),
        ] {
            for address in
                [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::UNSPECIFIED), Ipv6Addr::LOCALHOST.into()]
            {
                if port == PROXY_PORT && address.is_ipv6() {
                    continue;
                }
                let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
                let thief = socket(family, kind, None).unwrap();
                sockopt::set_socket_reuseaddr(&thief, true).unwrap();
                sockopt::set_socket_reuseport(&thief, true).unwrap();
                let taken = rustix::net::bind(&thief, &SocketAddr::new(address, port));
                assert_eq!(taken, Err(Errno::ADDRINUSE), "{address} {port}");
            }
        }
    });
}

#[test]
fn programs_without_capabilities_have_no_other_kind_of_socket() {
    inside(ALL, |_gates| {
        let none = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }).unwrap();
        for (family, kind, protocol, expected) in [
            (AddressFamily::INET, SocketType::RAW, ipproto::ICMP, Errno::PERM),
            (AddressFamily::INET6, SocketType::RAW, ipproto::ICMPV6, Errno::PERM),
            (AddressFamily::PACKET, SocketType::RAW, Protocol::from_raw(3.try_into().unwrap()), Errno::PERM),
            (AddressFamily::INET, SocketType::DGRAM, ipproto::ICMP, Errno::ACCESS),
        ] {
            assert_eq!(socket(family, kind, Some(protocol)).unwrap_err(), expected, "{family:?} {protocol:?}");
        }
        let program = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mark = super::gates::MARK as i32;
        let marked = crate::sys::set_option(&OwnedFd::from(program), libc::SOL_SOCKET, libc::SO_MARK, mark);
        assert_eq!(marked, Err(Errno::PERM));
    });
}

#[test]
fn root_of_a_sandbox_cannot_change_the_rules() {
    assert!(!crate::ROOT_CAPABILITIES.intersects(CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW));
}

#[test]
fn nothing_is_tracked_and_the_loopback_is_the_only_device() {
    inside(ALL, |gates| {
        let programs: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect("1.2.3.4:443").unwrap()).collect();
        let tracked = std::fs::read_to_string("/proc/net/stat/nf_conntrack").unwrap_or_default();
        let entries = tracked.lines().nth(1).and_then(|line| line.split_ascii_whitespace().next()).unwrap_or("0");
        assert_eq!(u64::from_str_radix(entries, 16), Ok(0));
        let devices = std::fs::read_to_string("/proc/net/dev").unwrap();
        let names: Vec<&str> =
            devices.lines().skip(2).filter_map(|line| line.split(':').next()).map(str::trim).collect();
        assert_eq!(names, ["lo"]);
        drop((gates, programs));
    });
}

#[test]
fn where_ipv6_is_switched_off_there_are_no_ipv6_gates() {
    in_child(|| {
        enter(UnshareFlags::NEWUSER | UnshareFlags::NEWNET);
        std::fs::write("/proc/sys/net/ipv6/conf/lo/disable_ipv6", "1").unwrap();
        crate::sys::loopback_up().unwrap();
        assert!(Family::six().unwrap().is_none());
        Family::four().unwrap();
    });
}

#[test]
fn without_ipv6_gates_no_ipv6_packet_is_sent() {
    in_child(|| {
        enter(UnshareFlags::NEWUSER | UnshareFlags::NEWNET);
        crate::sys::loopback_up().unwrap();
        super::rules::batch(ALL, false).exchange(Some(rustix::net::netlink::NETFILTER)).unwrap();
        super::routes::everything_is_local(true).exchange(super::netlink::ROUTING).unwrap();
        assert_eq!(datagram_to("[::1]:9"), Err(libc::EPERM));
        assert_eq!(datagram_to("[2001:db8::1]:53"), Err(libc::EPERM));
        // A SYN that can't be sent is not reported: the kernel tries again, in vain.
        let program = socket(AddressFamily::INET6, SocketType::STREAM, None).unwrap();
        rustix::io::ioctl_fionbio(&program, true).unwrap();
        let target: SocketAddr = "[2001:db8::1]:443".parse().unwrap();
        assert_eq!(rustix::net::connect(&program, &target), Err(Errno::INPROGRESS));
        let sent = std::fs::read_to_string("/proc/net/snmp6").unwrap();
        let received = sent.lines().find_map(|line| line.strip_prefix("Ip6InReceives")).map(str::trim);
        assert_eq!(received, Some("0"));
    });
}

#[test]
fn bounds_of_a_private_network_hold_for_a_proxied_one() {
    inside(ALL, |_gates| {
        for (name, value) in [
            ("ipv4/tcp_rmem", "4096\t131072\t262144"),
            ("ipv4/tcp_max_tw_buckets", "4096"),
            ("core/tstamp_allow_data", "0"),
            ("ipv4/tcp_tw_reuse", "1"),
            ("ipv4/tcp_wmem", "4096\t65536\t262144"),
        ] {
            // A setting that the kernel doesn't have per namespace doesn't exist here.
            if let Ok(found) = std::fs::read_to_string(format!("/proc/sys/net/{name}")) {
                assert_eq!(found.trim(), value, "{name}");
            }
        }
    });
}

#[test]
fn attempts_in_a_namespace_without_a_way_out_are_counted_from_zero() {
    in_child(|| {
        enter(UnshareFlags::NEWUSER);
        let joined = Network::start_with(None).unwrap().join().unwrap();
        let counters: Vec<File> = joined.counters.into_iter().map(File::from).collect();
        let [four, six] = counters.as_slice() else { panic!("{counters:?}: this test needs a host with IPv6") };
        let unrouted = || (counter(four, "Ip:", "OutNoRoutes"), counter(six, "Ip6OutNoRoutes", "Ip6OutNoRoutes"));
        // Whoever reads them later relies on it.
        assert_eq!(unrouted(), (0, 0));
        for target in ["1.2.3.4:443", "[2001:db8::1]:443"] {
            let target: SocketAddr = target.parse().unwrap();
            assert_eq!(TcpStream::connect(target).unwrap_err().kind(), ErrorKind::NetworkUnreachable);
        }
        let (four, six) = unrouted();
        assert!(four > 0 && six > 0, "{four} {six}");
    });
}

/// A counter of a table of two lines, or of a line of its own.
fn counter(file: &File, first: &str, name: &str) -> u64 {
    let mut bytes = vec![0; 16 * 1024];
    let length = file.read_at(&mut bytes, 0).unwrap();
    let text = std::str::from_utf8(&bytes[..length]).unwrap();
    let mut lines = text.lines().filter(|line| line.split_whitespace().next() == Some(first));
    let names = lines.next().unwrap();
    let at = match lines.next() {
        Some(numbers) => {
            names.split_whitespace().zip(numbers.split_whitespace()).find(|(found, _)| *found == name).unwrap().1
        }
        None => names.split_whitespace().nth(1).unwrap(),
    };
    at.parse().unwrap()
}

/// Runs `act` in a proxied network.
fn inside(wanted: Wanted, act: impl FnOnce(Gates)) {
    in_child(|| {
        enter(UnshareFlags::NEWUSER);
        let gates = Network::start_with(Some(wanted)).unwrap().join().unwrap().gates;
        act(gates.expect("a proxied network has gates"));
    });
}

fn enter(namespaces: UnshareFlags) {
    // SAFETY: the child has one thread, which shares nothing.
    unsafe { unshare_unsafe(namespaces) }.unwrap();
}

/// Runs `act` in a child with one thread. The C library's fork also takes care of locks that another thread holds.
fn in_child(act: impl FnOnce()) {
    // SAFETY: the other threads of a test wait for it, and the C library makes its own state usable in the child.
    match unsafe { libc::fork() } {
        0 => {
            let outcome = catch_unwind(AssertUnwindSafe(act));
            exit_now(if outcome.is_ok() { 0 } else { 1 })
        }
        pid => {
            let (_, status) = waitpid(Pid::from_raw(pid), WaitOptions::empty()).unwrap().expect("it has ended");
            assert_eq!(status.exit_status(), Some(0), "see what the child said above");
        }
    }
}

fn both(gates: Vec<OwnedFd>) -> [OwnedFd; 2] {
    gates.try_into().expect("this test needs a host with IPv6")
}

fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

fn check_arrives(gate: &OwnedFd, dialled: SocketAddr, destination: SocketAddr) {
    let program = TcpStream::connect(dialled).unwrap();
    assert_eq!(program.peer_addr().unwrap(), dialled);
    // Programs that ask for their own address this way can reach themselves there.
    assert!(program.local_addr().unwrap().ip().to_canonical().is_loopback());
    check_exchange(program, accept(gate), destination);
}

/// Data goes both ways; the accepted side knows where the program thinks it is.
fn check_exchange(mut program: TcpStream, mut accepted: TcpStream, place: SocketAddr) {
    if place.ip().is_loopback() {
        assert_eq!(accepted.local_addr().unwrap(), place);
    } else {
        assert_eq!(original_destination(&accepted).unwrap(), place);
    }
    accepted.set_nonblocking(false).unwrap();
    let mut buffer = [0; 4];
    program.write_all(b"ping").unwrap();
    accepted.read_exact(&mut buffer).unwrap();
    accepted.write_all(b"pong").unwrap();
    program.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"pong");
}

fn check_answered(gate: &OwnedFd, server: IpAddr, is_connected: bool) {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let program = UdpSocket::bind((any, 0)).unwrap();
    let server_at = SocketAddr::new(server, 53);
    if is_connected {
        program.connect(server_at).unwrap();
        program.send(b"question").unwrap();
    } else {
        program.send_to(b"question", server_at).unwrap();
    }
    wait(gate);
    let mut buffer = [0; 16];
    let question = receive_datagram(gate, &mut buffer).unwrap();
    assert_eq!((&buffer[..question.length], question.to), (&b"question"[..], server));
    send_datagram(gate, b"answer", question.to, question.from).unwrap();
    wait(&program);
    assert_eq!(program.recv_from(&mut buffer).unwrap(), (6, server_at));
}

fn datagram_to(target: &str) -> Result<(), i32> {
    let target: SocketAddr = target.parse().unwrap();
    let any: IpAddr = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let sent = UdpSocket::bind((any, 0)).unwrap().send_to(b"x", target);
    sent.map(|_| ()).map_err(|error| error.raw_os_error().unwrap())
}

fn accept(gate: &OwnedFd) -> TcpStream {
    wait(gate);
    TcpStream::from(rustix::net::accept(gate).unwrap())
}

fn wait(socket: &impl AsFd) {
    let mut polls = [PollFd::new(socket, PollFlags::IN)];
    let ready = poll(&mut polls, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap();
    assert_eq!(ready, 1, "nothing arrived at {}", socket.as_fd().as_raw_fd());
}
