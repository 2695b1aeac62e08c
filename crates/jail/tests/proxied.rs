//! A whole sandbox with a proxied network: the gates come out, and stay out of reach inside.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use saggar_jail::{
    Fence, Gates, Identity, Jailed, NetworkPlan, Op, Plan, SealedProgram, SetIds, Supplies, original_destination, spawn,
};

#[test]
fn gates_are_handed_out_and_lead_from_inside_to_the_holder() {
    in_child(|| {
        for identity in identities() {
            let sandbox = Sandbox::start(identity, NetworkPlan::Proxied);
            let Gates { tcp, proxy: _proxy, dns_udp, dns_tcp, probes: _probes } =
                sandbox.0.gates.as_ref().expect("it is proxied");
            assert!(!tcp.is_empty() && tcp.len() == dns_udp.len() && tcp.len() == dns_tcp.len(), "{identity:?}");
            for (gate, target) in tcp.iter().zip(["169.254.169.254:80", "[2001:db8::1]:443"]) {
                let target: SocketAddr = target.parse().unwrap();
                let connected = sandbox.inside(|| if TcpStream::connect(target).is_ok() { 0 } else { 1 });
                assert_eq!(connected, 0, "{identity:?} {target}");
                wait(gate);
                let (accepted, _) = TcpListener::from(gate.try_clone().unwrap()).accept().unwrap();
                assert_eq!(original_destination(&accepted).unwrap(), target, "{identity:?}");
            }
            let refused = sandbox.inside(|| {
                let program = UdpSocket::bind("0.0.0.0:0").unwrap();
                let sent = program.send_to(b"x", "1.1.1.1:443");
                sent.map_or_else(|error| error.raw_os_error().unwrap() as u8, |_| 0)
            });
            assert_eq!(refused, libc::EPERM, "{identity:?}");
        }
    });
}

#[test]
fn no_process_inside_has_a_gate_or_the_right_to_change_the_rules() {
    in_child(|| {
        for identity in identities() {
            let sandbox = Sandbox::start(identity, NetworkPlan::Proxied);
            let pid = sandbox.0.pid.as_raw_nonzero();
            let gates = sandbox.0.gates.as_ref().unwrap();
            let inodes: Vec<u64> = gates
                .tcp
                .iter()
                .chain([&gates.proxy])
                .chain(&gates.dns_udp)
                .chain(&gates.dns_tcp)
                .map(|gate| rustix::fs::fstat(gate).unwrap().st_ino)
                .collect();
            for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
                let link = std::fs::read_link(entry.unwrap().path()).unwrap().display().to_string();
                assert!(!inodes.iter().any(|inode| link == format!("socket:[{inode}]")), "{identity:?}: {link}");
            }
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            for set in ["CapPrm", "CapBnd"] {
                let line = status.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':')).unwrap();
                let bits = u64::from_str_radix(line.trim(), 16).unwrap();
                let network = rustix::thread::CapabilitySet::NET_ADMIN | rustix::thread::CapabilitySet::NET_RAW;
                assert_eq!(bits & network.bits(), 0, "{identity:?} {set}");
            }
        }
    });
}

#[test]
fn other_networks_have_no_gates() {
    in_child(|| {
        for network in [NetworkPlan::None, NetworkPlan::Host] {
            assert!(Sandbox::start(identities()[0], network).0.gates.is_none(), "{network:?}");
        }
    });
}

/// Runs `act` in a child with one thread, which starting a sandbox needs.
fn in_child(act: impl FnOnce()) {
    let act = || {
        act();
        0
    };
    assert_eq!(forked(act), 0, "see what the child said above");
}

/// The exit status of a child that runs `act`.
fn forked(act: impl FnOnce() -> u8) -> i32 {
    const PANICKED: u8 = 255;
    // SAFETY: the other threads of a test wait for it, and the C library makes its own state usable in the child.
    match unsafe { libc::fork() } {
        0 => {
            let outcome = catch_unwind(AssertUnwindSafe(act)).unwrap_or(PANICKED);
            // SAFETY: takes an integer and does not return.
            unsafe { libc::_exit(outcome.into()) }
        }
        pid => {
            let (_, status) =
                waitpid(Pid::from_raw(pid), WaitOptions::empty()).expect("our own child").expect("it has ended");
            status.exit_status().expect("it was not killed")
        }
    }
}

/// What this user may have. An ordinary user's is the last.
fn identities() -> Vec<Identity> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let single = |inside| Identity::Single { inside, uid: uid.as_raw(), gid: gid.as_raw() };
    let mut identities = vec![single(0), single(1000)];
    if uid.is_root() {
        identities.push(Identity::Range { base: 700_000_000 });
    }
    identities
}

/// Killed when dropped.
struct Sandbox(Jailed);

impl Sandbox {
    fn start(identity: Identity, network: NetworkPlan) -> Self {
        let (_ours, channel) = rustix::pipe::pipe().expect("descriptors are left");
        let plan = Plan {
            identity,
            network,
            hostname: "sandbox".into(),
            storage_bytes: 1 << 20,
            storage_inodes: 64,
            ops: vec![Op::Directory { path: "dev".into(), mode: 0o755, owner: 0 }, Op::Device { name: "null".into() }],
            fence: Fence::default(),
            processors: None,
            set_ids: SetIds::Refused,
            files: 64,
            processes: None,
            cgroup: None,
            channel,
        };
        let supplies = || {
            let guest = SealedProgram::new("guest", &waiting_program())?;
            Ok(Supplies { tasks: Vec::new(), guest, views: Vec::new() })
        };
        Self(spawn(&plan, supplies).expect("this host can start sandboxes"))
    }

    /// Runs `act` in a process in the sandbox's network; what it answers fits an exit status.
    fn inside(&self, act: impl FnOnce() -> u8) -> i32 {
        let place = |name: &str| {
            let path = format!("/proc/{}/ns/{name}", self.0.pid.as_raw_nonzero());
            open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).expect("our own process")
        };
        let (user, network) = (place("user"), place("net"));
        forked(|| {
            if !rustix::process::geteuid().is_root() {
                move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User)).expect("it is ours");
            }
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).expect("it is ours");
            act()
        })
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        kill_process(self.0.pid, Signal::KILL).expect("it lives");
        waitpid(Some(self.0.pid), WaitOptions::empty()).expect("our own child");
    }
}

/// The smallest program that waits for ever: an ELF header, one segment, and `pause` in a loop.
fn waiting_program() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const CODE: &[u8] = &[0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7]; // mov eax, 34; syscall; jmp back
    const HEADERS: u64 = 64 + 56;
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let mut half = |values: &[u16]| bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    half(&[2, 62, 1, 0]);
    for value in [BASE + HEADERS, 64, 0] {
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend(0u32.to_le_bytes());
    for value in [64u16, 56, 1, 64, 0, 0] {
        bytes.extend(value.to_le_bytes());
    }
    for value in [1u32, 5] {
        bytes.extend(value.to_le_bytes());
    }
    let length = HEADERS + CODE.len() as u64;
    for value in [0, BASE, BASE, length, length, 4096] {
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend(CODE);
    bytes
}

fn wait(socket: &OwnedFd) {
    let mut polls = [PollFd::new(socket, PollFlags::IN)];
    let ready = poll(&mut polls, Some(&Timespec { tv_sec: 10, tv_nsec: 0 }));
    assert_eq!(ready, Ok(1), "nothing arrived");
}
