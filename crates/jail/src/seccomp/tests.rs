//! The compiled program is run by a small interpreter over synthetic calls, then once by the kernel.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::arch::{self, nr};
use super::rules::{self, Answer, Group};
use super::{Filter, Listener, Notification, Refusal, Verdict, verdict};
use crate::plan::SetIds;

const AUDIT_ARCH_I386: u32 = 0x4000_0003;
/// Possible garbage in the half of a register that the kernel drops.
const HIGH: u64 = 0xDEAD_BEEF_0000_0000;
const O_CREAT: u64 = libc::O_CREAT as u64;
const O_TMPFILE: u64 = libc::O_TMPFILE as u64;
const FLAGGED: u64 = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64;
const UNIX: u64 = libc::AF_UNIX as u64;
const INET: u64 = libc::AF_INET as u64;
const INET6: u64 = libc::AF_INET6 as u64;
const STREAM: u64 = libc::SOCK_STREAM as u64;
const DGRAM: u64 = libc::SOCK_DGRAM as u64;
const RAW: u64 = libc::SOCK_RAW as u64;
const SEQPACKET: u64 = libc::SOCK_SEQPACKET as u64;
const PTHREAD_FLAGS: u64 = 0x3D0F00;
const CORE: u64 = libc::RLIMIT_CORE as u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallOutcome {
    Allowed,
    Silent(Errno),
    Telling(Group, Errno),
    Moot,
    Bounded,
    Killed,
}

use CallOutcome::{Allowed, Bounded, Moot, Silent, Telling};

/// A call, its leading arguments, and the expected outcome.
type Case = (u32, &'static [u64], CallOutcome);

#[rustfmt::skip]
const CASES: &[Case] = &[
    (nr::read, &[0, 1, 2], Allowed),
    (nr::execve, &[], Allowed),
    (nr::mseal, &[], Allowed),
    (nr::io_setup, &[], Silent(Errno::NOSYS)),
    (nr::io_pgetevents, &[], Silent(Errno::NOSYS)),
    (nr::prlimit64, &[0, 7], Allowed),
    (nr::prlimit64, &[12, 7], Allowed),
    (nr::prlimit64, &[HIGH | 1, 7], Telling(Group::Ptrace, Errno::PERM)),
    (nr::prlimit64, &[0, 7, 1, 1], Allowed),
    (nr::prlimit64, &[0, CORE, 0, 1], Allowed),
    (nr::prlimit64, &[0, CORE, 0, HIGH], Allowed),
    (nr::prlimit64, &[0, HIGH | CORE, 1, 0], Moot),
    (nr::prlimit64, &[12, CORE, HIGH, 0], Moot),
    (nr::prlimit64, &[0, CORE, 1, 1], Silent(Errno::PERM)),
    (nr::prlimit64, &[0, CORE, HIGH, HIGH], Silent(Errno::PERM)),
    (nr::prlimit64, &[0, CORE, 1, HIGH], Silent(Errno::PERM)),
    (nr::prlimit64, &[1, CORE, 1, 0], Telling(Group::Ptrace, Errno::PERM)),
    (nr::sched_setscheduler, &[0, 1], Allowed),
    (nr::sched_setscheduler, &[HIGH | 1, 5], Telling(Group::Ptrace, Errno::PERM)),
    (nr::sched_setaffinity, &[1], Telling(Group::Ptrace, Errno::PERM)),
    (nr::sched_setparam, &[1], Telling(Group::Ptrace, Errno::PERM)),
    (nr::sched_setattr, &[1], Telling(Group::Ptrace, Errno::PERM)),
    (nr::setpriority, &[0, 0, 19], Allowed),
    (nr::setpriority, &[1, 12, 19], Allowed),
    (nr::setpriority, &[0, HIGH | 1, 19], Telling(Group::Ptrace, Errno::PERM)),
    (nr::setpriority, &[2, 0, 19], Telling(Group::Ptrace, Errno::PERM)),
    (nr::ioprio_set, &[1, 0, 0], Allowed),
    (nr::ioprio_set, &[2, 7, 0], Allowed),
    (nr::ioprio_set, &[1, 1, 0], Telling(Group::Ptrace, Errno::PERM)),
    (nr::ioprio_set, &[3, 1000, 0], Telling(Group::Ptrace, Errno::PERM)),
    (nr::setrlimit, &[7, 1], Allowed),
    (nr::setrlimit, &[HIGH | CORE, 1], Moot),

    (nr::clone, &[PTHREAD_FLAGS], Allowed),
    (nr::clone, &[libc::SIGCHLD as u64], Allowed),
    (nr::clone, &[HIGH | PTHREAD_FLAGS], Allowed),
    (nr::clone, &[libc::CLONE_NEWUSER as u64 | libc::SIGCHLD as u64], Telling(Group::Namespaces, Errno::PERM)),
    (nr::clone, &[HIGH | libc::CLONE_NEWNS as u64], Telling(Group::Namespaces, Errno::PERM)),
    (nr::clone, &[libc::CLONE_NEWCGROUP as u64], Telling(Group::Namespaces, Errno::PERM)),
    (nr::clone, &[libc::CLONE_NEWNET as u64], Telling(Group::Namespaces, Errno::PERM)),
    (nr::unshare, &[libc::CLONE_FILES as u64 | libc::CLONE_FS as u64], Allowed),
    (nr::unshare, &[libc::CLONE_NEWPID as u64], Telling(Group::Namespaces, Errno::PERM)),
    (nr::unshare, &[0x80], Telling(Group::Namespaces, Errno::PERM)),
    (nr::setns, &[3, 0], Telling(Group::Namespaces, Errno::PERM)),
    (nr::clone3, &[], Silent(Errno::NOSYS)),

    (nr::mount, &[], Telling(Group::Mounts, Errno::PERM)),
    (nr::chroot, &[], Telling(Group::Mounts, Errno::PERM)),
    (nr::open_tree_attr, &[], Telling(Group::Mounts, Errno::PERM)),
    (nr::mount_setattr, &[], Telling(Group::Mounts, Errno::PERM)),
    (nr::statmount, &[], Silent(Errno::NOSYS)),
    (nr::open_by_handle_at, &[], Telling(Group::Handles, Errno::PERM)),
    (nr::name_to_handle_at, &[], Telling(Group::Handles, Errno::PERM)),
    (nr::ptrace, &[], Telling(Group::Ptrace, Errno::PERM)),
    (nr::process_vm_writev, &[], Telling(Group::Ptrace, Errno::PERM)),
    (nr::pidfd_getfd, &[], Telling(Group::Ptrace, Errno::PERM)),
    (nr::pidfd_open, &[], Allowed),
    (nr::keyctl, &[], Telling(Group::Keyrings, Errno::PERM)),
    (nr::bpf, &[], Telling(Group::Bpf, Errno::PERM)),
    (nr::perf_event_open, &[], Telling(Group::Perf, Errno::PERM)),
    (nr::userfaultfd, &[], Telling(Group::Userfaultfd, Errno::PERM)),
    (nr::io_uring_setup, &[], Silent(Errno::NOSYS)),
    (nr::io_uring_enter, &[], Silent(Errno::NOSYS)),
    (nr::io_uring_register, &[], Silent(Errno::NOSYS)),
    (nr::finit_module, &[], Telling(Group::Modules, Errno::PERM)),
    (nr::kexec_file_load, &[], Telling(Group::Modules, Errno::PERM)),
    (nr::reboot, &[], Telling(Group::System, Errno::PERM)),
    (nr::iopl, &[], Telling(Group::System, Errno::PERM)),
    (nr::uselib, &[], Silent(Errno::NOSYS)),
    (nr::clock_settime, &[], Telling(Group::Clock, Errno::PERM)),
    (nr::clock_gettime, &[], Allowed),
    (nr::sethostname, &[], Telling(Group::Hostname, Errno::PERM)),
    (nr::mbind, &[], Silent(Errno::PERM)),
    (nr::move_pages, &[], Telling(Group::MemoryPolicy, Errno::PERM)),
    (nr::vmsplice, &[], Telling(Group::MemoryPolicy, Errno::PERM)),
    (nr::memfd_secret, &[], Silent(Errno::NOSYS)),
    (nr::memfd_create, &[], Allowed),
    (nr::memfd_create, &[0, 3], Allowed),
    (nr::memfd_create, &[0, HIGH | 4], Silent(Errno::NOMEM)),
    (nr::memfd_create, &[0, 4 | 21 << 26], Silent(Errno::NOMEM)),
    (nr::memfd_create, &[0, 0xFFFF_FFFF], Silent(Errno::INVAL)),
    (nr::memfd_create, &[0, 4 | 0x20], Silent(Errno::INVAL)),
    (nr::mmap, &[0, 4096, 3, 0x22, u64::MAX, 0], Allowed),
    (nr::mmap, &[0x40000, 0x40000, 3, 2, 3, 0], Allowed),
    (nr::mmap, &[0, 4096, 3, 0x40022, u64::MAX, 0], Silent(Errno::NOMEM)),
    (nr::mmap, &[0, 4096, 3, HIGH | 0x40021 | 30 << 26, u64::MAX, 0], Silent(Errno::NOMEM)),
    (nr::shmget, &[0, 4096, 0o1600], Allowed),
    (nr::shmget, &[0, 4096, HIGH | 0o5600], Silent(Errno::NOMEM)),

    (nr::personality, &[0], Allowed),
    (nr::personality, &[0xFFFF_FFFF], Allowed),
    (nr::personality, &[u64::MAX], Allowed),
    (nr::personality, &[0x004_0000], Telling(Group::Personality, Errno::PERM)),
    (nr::personality, &[0x040_0000], Telling(Group::Personality, Errno::PERM)),

    (nr::chmod, &[0, 0o755], Allowed),
    (nr::chmod, &[0, 0o1777], Allowed),
    (nr::chmod, &[0o6000, 0o644], Allowed),
    (nr::chmod, &[0, 0o4755], Telling(Group::SetidBits, Errno::PERM)),
    (nr::chmod, &[0, HIGH | 0o2755], Telling(Group::SetidBits, Errno::PERM)),
    (nr::fchmod, &[3, 0o4000], Telling(Group::SetidBits, Errno::PERM)),
    (nr::fchmodat, &[3, 0, 0o2000, 0], Telling(Group::SetidBits, Errno::PERM)),
    (nr::fchmodat, &[3, 0, 0o644, 0o6000], Allowed),
    (nr::fchmodat2, &[3, 0, 0o6755, 0], Telling(Group::SetidBits, Errno::PERM)),
    (nr::creat, &[0, 0o4755], Telling(Group::SetidBits, Errno::PERM)),
    (nr::creat, &[0, 0o644], Allowed),
    (nr::open, &[0, 0, 0o7777], Allowed),
    (nr::open, &[0, libc::O_DIRECTORY as u64, 0o7777], Allowed),
    (nr::open, &[0, O_CREAT, 0o644], Allowed),
    (nr::open, &[0, O_CREAT, 0o4755], Telling(Group::SetidBits, Errno::PERM)),
    (nr::open, &[0, O_TMPFILE, 0o2755], Telling(Group::SetidBits, Errno::PERM)),
    (nr::openat, &[3, 0, 0, u64::MAX], Allowed),
    (nr::openat, &[3, 0, O_CREAT, 0o1644], Allowed),
    (nr::openat, &[3, 0, HIGH | O_CREAT, HIGH | 0o2644], Telling(Group::SetidBits, Errno::PERM)),
    (nr::openat, &[3, 0, O_TMPFILE, 0o4644], Telling(Group::SetidBits, Errno::PERM)),
    (nr::openat2, &[], Silent(Errno::NOSYS)),
    (nr::file_setattr, &[], Silent(Errno::NOSYS)),

    (nr::mknod, &[0, 0o644], Allowed),
    (nr::mknod, &[0, 0o010644], Allowed),
    (nr::mknod, &[0, 0o104755], Telling(Group::SetidBits, Errno::PERM)),
    (nr::mknod, &[0, 0o020644], Telling(Group::DeviceNodes, Errno::PERM)),
    (nr::mknod, &[0, 0o024644], Telling(Group::SetidBits, Errno::PERM)),
    (nr::mknodat, &[3, 0, 0o140644], Allowed),
    (nr::mknodat, &[3, 0, HIGH | 0o060644], Telling(Group::DeviceNodes, Errno::PERM)),
    (nr::renameat2, &[3, 0, 3, 0, 1], Allowed),
    (nr::renameat2, &[3, 0, 3, 0, 4], Telling(Group::DeviceNodes, Errno::PERM)),
    (nr::renameat2, &[3, 0, 3, 0, 5], Telling(Group::DeviceNodes, Errno::PERM)),

    (nr::fcntl, &[1024, libc::F_SETLK as u64], Allowed),
    (nr::fcntl, &[3, 1025], Allowed),
    (nr::fcntl, &[3, HIGH | 1024], Telling(Group::Leases, Errno::PERM)),
    (nr::fcntl, &[3, 1040], Telling(Group::Leases, Errno::PERM)),

    (nr::socket, &[UNIX, STREAM, 0], Allowed),
    (nr::socket, &[UNIX, SEQPACKET | FLAGGED, 0], Allowed),
    (nr::socket, &[HIGH | INET, HIGH | STREAM | FLAGGED, HIGH | 6], Allowed),
    (nr::socket, &[INET6, DGRAM | FLAGGED, 17], Allowed),
    (nr::socket, &[INET, STREAM, 262], Silent(Errno::PROTONOSUPPORT)),
    (nr::socket, &[INET, STREAM, 132], Telling(Group::Sockets, Errno::PROTONOSUPPORT)),
    (nr::socket, &[INET, DGRAM | FLAGGED, 1], Telling(Group::Sockets, Errno::PROTONOSUPPORT)),
    (nr::socket, &[INET6, DGRAM, 58], Telling(Group::Sockets, Errno::PROTONOSUPPORT)),
    (nr::socket, &[INET, RAW | FLAGGED, 255], Telling(Group::Sockets, Errno::PERM)),
    (nr::socket, &[INET, 10, 0], Telling(Group::Sockets, Errno::PERM)),
    (nr::socket, &[INET, SEQPACKET, 132], Silent(Errno::PROTONOSUPPORT)),
    (nr::socket, &[INET, 6, 33], Silent(Errno::SOCKTNOSUPPORT)),
    (nr::socket, &[HIGH | libc::AF_NETLINK as u64, RAW | FLAGGED, 0], Silent(Errno::OPNOTSUPP)),
    (nr::socket, &[libc::AF_PACKET as u64, RAW, 0], Telling(Group::Sockets, Errno::AFNOSUPPORT)),
    (nr::socket, &[libc::AF_VSOCK as u64, STREAM, 0], Telling(Group::Sockets, Errno::AFNOSUPPORT)),
    (nr::socket, &[libc::AF_ALG as u64, SEQPACKET, 0], Telling(Group::Sockets, Errno::AFNOSUPPORT)),
    (nr::socketpair, &[UNIX, DGRAM], Allowed),
    (nr::socketpair, &[libc::AF_TIPC as u64, DGRAM], Telling(Group::Sockets, Errno::AFNOSUPPORT)),

    (nr::setsockopt, &[3, 1, 2], Allowed),
    (nr::setsockopt, &[3, 1, 35], Allowed),
    (nr::setsockopt, &[3, 6, 26], Allowed),
    (nr::setsockopt, &[3, HIGH | 1, HIGH | 26], Telling(Group::Bpf, Errno::PERM)),
    (nr::setsockopt, &[3, 1, 50], Telling(Group::Bpf, Errno::PERM)),
    (nr::setsockopt, &[3, 1, 51], Telling(Group::Bpf, Errno::PERM)),
    (nr::setsockopt, &[3, 1, 52], Telling(Group::Bpf, Errno::PERM)),
    (nr::setsockopt, &[3, HIGH, HIGH | 35], Silent(Errno::NODEV)),
    (nr::setsockopt, &[3, 0, 46], Silent(Errno::NODEV)),
    (nr::setsockopt, &[3, 41, 20], Silent(Errno::NODEV)),
    (nr::setsockopt, &[3, 41, 26], Allowed),

    (nr::ioctl, &[0, libc::TIOCGWINSZ as u64], Allowed),
    (nr::ioctl, &[0x5412, 0x5401], Allowed),
    (nr::ioctl, &[0, 0x5412], Telling(Group::TtyIoctls, Errno::PERM)),
    (nr::ioctl, &[0, HIGH | 0x541C], Telling(Group::TtyIoctls, Errno::PERM)),
    (nr::ioctl, &[0, 0x541D], Telling(Group::TtyIoctls, Errno::PERM)),
    (nr::ioctl, &[0, 0x5423], Telling(Group::TtyIoctls, Errno::PERM)),
    (nr::ioctl, &[3, 0x800C_6613], Telling(Group::Keyrings, Errno::PERM)),
    (nr::ioctl, &[3, HIGH | 0xC050_6617], Telling(Group::Keyrings, Errno::PERM)),
    (nr::ioctl, &[3, 0xC040_6618], Telling(Group::Keyrings, Errno::PERM)),
    (nr::ioctl, &[3, 0xC040_6619], Telling(Group::Keyrings, Errno::PERM)),
    (nr::ioctl, &[3, 0xC009_6616], Allowed),
    (nr::seccomp, &[1, 0], Allowed),
    (nr::seccomp, &[2, 8], Allowed),
    (nr::seccomp, &[1, 1], Allowed),
    (nr::seccomp, &[HIGH | 1, HIGH | 2], Silent(Errno::INVAL)),
    (nr::seccomp, &[1, 2 | 16], Silent(Errno::INVAL)),
    (nr::seccomp, &[1, 2 | 8], Telling(Group::SeccompListener, Errno::PERM)),
    (nr::seccomp, &[HIGH | 1, HIGH | 9], Telling(Group::SeccompListener, Errno::PERM)),
    (nr::prctl, &[libc::PR_SET_NAME as u64], Allowed),
    (nr::prctl, &[libc::PR_SET_SECCOMP as u64, 2], Allowed),
    (nr::prctl, &[HIGH | 35], Telling(Group::Prctl, Errno::PERM)),

    (nr::setsockopt, &[3, 17, 1], Telling(Group::Corking, Errno::NOPROTOOPT)),
    (nr::setsockopt, &[3, HIGH | 17, HIGH | 1], Telling(Group::Corking, Errno::NOPROTOOPT)),
    (nr::setsockopt, &[3, 17, 103], Allowed),
    (nr::setsockopt, &[3, 6, 1], Allowed),
    (nr::setsockopt, &[3, 6, 3], Allowed),
    (nr::setsockopt, &[3, 6, 14], Telling(Group::TcpKeys, Errno::NOPROTOOPT)),
    (nr::setsockopt, &[3, 6, 32], Telling(Group::TcpKeys, Errno::NOPROTOOPT)),
    (nr::setsockopt, &[3, 6, 38], Telling(Group::TcpKeys, Errno::NOPROTOOPT)),
    (nr::setsockopt, &[3, 41, 32], Telling(Group::FlowLabels, Errno::NOPROTOOPT)),
    (nr::setsockopt, &[3, 41, 6], Telling(Group::PacketOptions, Errno::NOPROTOOPT)),
    (nr::setsockopt, &[3, 41, 26], Allowed),
    (nr::setsockopt, &[3, 1, 37], Silent(Errno::NOPROTOOPT)),
    (nr::setsockopt, &[3, 1, 65], Silent(Errno::NOPROTOOPT)),
    (nr::setsockopt, &[3, 1, 29], Allowed),
    (nr::setsockopt, &[3, 0, 11], Moot),
    (nr::setsockopt, &[3, 0, 26], Moot),
    (nr::setsockopt, &[3, 41, 25], Moot),
    (nr::setsockopt, &[3, 41, 31], Moot),
    (nr::setsockopt, &[3, 1, 8], Moot),
    (nr::setsockopt, &[3, 1, 7], Allowed),
    (nr::sendto, &[3, 4, 5, 0x4040], Allowed),
    (nr::sendto, &[3, 4, 5, HIGH | 0x8040], Telling(Group::Corking, Errno::OPNOTSUPP)),
    (nr::sendmsg, &[3, 4, 0x4000, 0x8000], Allowed),
    (nr::sendmsg, &[3, 4, 0x8000], Telling(Group::Corking, Errno::OPNOTSUPP)),
    (nr::sendmmsg, &[3, 4, 0x8000, 0], Allowed),
    (nr::sendmmsg, &[3, 4, 1, 0x8000], Telling(Group::Corking, Errno::OPNOTSUPP)),
    (nr::listen, &[3, 128], Bounded),
    (nr::setxattr, &[1, 2, 3, 228], Allowed),
    (nr::setxattr, &[1, 2, 3, 235], Allowed),
    (nr::setxattr, &[1, 2, 3, 236], Telling(Group::LargeAcls, Errno::NOSPC)),
    (nr::lsetxattr, &[1, 2, 3, 244], Telling(Group::LargeAcls, Errno::NOSPC)),
    (nr::fsetxattr, &[1, 2, 3, 252], Telling(Group::LargeAcls, Errno::NOSPC)),
    (nr::fsetxattr, &[1, 2, 3, 256], Allowed),
    (nr::fsetxattr, &[1, 2, 3, 260], Telling(Group::LargeAcls, Errno::NOSPC)),
    (nr::setxattr, &[1, 2, 3, 2048], Allowed),
    (nr::setxattr, &[1, 2, 3, 65532], Telling(Group::LargeAcls, Errno::NOSPC)),
    (nr::setxattrat, &[], Silent(Errno::NOSYS)),

    (nr::_sysctl, &[], Silent(Errno::NOSYS)),
    (nr::listns, &[], Silent(Errno::NOSYS)),
    (380, &[], Silent(Errno::NOSYS)),
    (471, &[], Silent(Errno::NOSYS)),
    (100_000, &[], Silent(Errno::NOSYS)),
    (u32::MAX, &[], Silent(Errno::NOSYS)),
    (arch::FOREIGN_ABI_BIT, &[], Silent(Errno::NOSYS)),
    (arch::FOREIGN_ABI_BIT | nr::getpid, &[], Silent(Errno::NOSYS)),
];

#[test]
fn each_call_is_decided_as_written() {
    let filter = Filter::compile(SetIds::Refused);
    let wrong: Vec<_> = CASES
        .iter()
        .map(|&(number, args, expected)| (number, args, expected, outcome(&filter, arch::AUDIT_ARCH, number, args)))
        .filter(|(.., expected, actual)| expected != actual)
        .collect();
    assert_eq!(wrong, []);
}

#[test]
fn a_call_in_another_convention_ends_the_process() {
    let filter = Filter::compile(SetIds::Refused);
    for number in [0, nr::read, nr::mount, nr::open, u32::MAX] {
        assert_eq!(outcome(&filter, AUDIT_ARCH_I386, number, &[]), CallOutcome::Killed);
    }
}

#[test]
fn switching_a_group_off_allows_what_it_alone_refused_and_nothing_else() {
    let whole = Filter::compile(SetIds::Refused);
    for &group in Group::ALL {
        let without = Filter::compile_without(&[group]);
        let mut changes = 0;
        for arch in [arch::AUDIT_ARCH, AUDIT_ARCH_I386] {
            for &(number, args, _) in CASES {
                let (before, after) = (outcome(&whole, arch, number, args), outcome(&without, arch, number, args));
                if before == after {
                    continue;
                }
                changes += 1;
                match group {
                    Group::ForeignAbi => assert_eq!(before, CallOutcome::Killed),
                    _ => assert_eq!((arch, group_of(number, args)), (arch::AUDIT_ARCH, Some(group))),
                }
            }
        }
        assert!(changes > 0, "removing {} changes nothing", group.name());
    }
}

#[test]
fn powerless_set_id_bits_are_allowed_and_nothing_else_is() {
    let (usual, relaxed) = (Filter::compile(SetIds::Refused), Filter::compile(SetIds::Powerless));
    let outcomes = |number, args| [&usual, &relaxed].map(|filter| outcome(filter, arch::AUDIT_ARCH, number, args));
    assert_eq!(outcomes(nr::fchmod, &[3, 0o4755])[1], Allowed);
    assert_eq!(outcomes(nr::mknodat, &[3, 0, 0o106755])[1], Allowed);
    for &(number, args, _) in CASES {
        let [before, after] = outcomes(number, args);
        assert!(before == after || group_of(number, args) == Some(Group::SetidBits), "{number} {args:x?}");
    }
}

#[test]
fn the_search_finds_what_a_plain_lookup_finds() {
    let patterns: Vec<Vec<u64>> = CASES.iter().map(|(_, args, _)| args.to_vec()).chain([vec![u64::MAX; 6]]).collect();
    let filter = Filter::compile(SetIds::Refused);
    for number in 0..600 {
        for args in &patterns {
            let padded = padded(args);
            let expected = match rules::rule_of(number).iter().find(|clause| clause.applies(&padded)) {
                None => Allowed,
                Some(clause) => match clause.answer {
                    Answer::Silent(errno) => Silent(errno),
                    Answer::Telling(errno) => Telling(clause.group, errno),
                    Answer::Moot => Moot,
                    Answer::Bounded => Bounded,
                },
            };
            let actual = outcome(&filter, arch::AUDIT_ARCH, number, args);
            assert_eq!(actual, expected, "{number} {:?} {args:x?}", arch::name(number));
        }
    }
}

#[test]
fn every_known_call_has_exactly_one_rule() {
    let mut listed: Vec<u32> =
        rules::TABLE.iter().chain(arch::LEGACY).flat_map(|(_, numbers)| *numbers).copied().collect();
    listed.sort_unstable();
    let known: Vec<u32> = arch::NAMES.iter().map(|(number, _)| *number).collect();
    assert_eq!(listed, known);
}

#[test]
fn the_program_is_short_and_its_walk_shorter() {
    let filter = Filter::compile(SetIds::Refused);
    let longest = (0..600).map(|number| run(&filter, arch::AUDIT_ARCH, number, &[0; 6]).1).max();
    println!("{} instructions, at most {longest:?} on the way to an answer", filter.program().len());
    assert!(filter.program().len() < 1024);
    assert!(longest < Some(64));
}

#[test]
fn group_names_are_distinct_and_rules_carry_them() {
    let mut names: Vec<&str> = Group::ALL.iter().map(|group| group.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Group::ALL.len());
    for group in Group::ALL {
        assert_eq!(group.rule(), format!("seccomp/{}", group.name()));
    }
}

/// What the child of the kernel test tries, and the error it must get.
const TRIED: &[(u32, [u64; 3], Errno)] = &[
    (nr::bpf, [0, 0, 0], Errno::PERM),
    (nr::io_uring_setup, [1, 0, 0], Errno::NOSYS),
    (nr::clone3, [0, 0, 0], Errno::NOSYS),
    (nr::fchmod, [u64::MAX, 0o4755, 0], Errno::PERM),
    (nr::fchmod, [u64::MAX, 0o755, 0], Errno::BADF),
    (nr::socket, [libc::AF_VSOCK as u64, STREAM, 0], Errno::AFNOSUPPORT),
    (600, [0, 0, 0], Errno::NOSYS),
];

#[test]
fn the_kernel_tells_the_host_and_the_host_answers() {
    let filter = Filter::compile(SetIds::Refused);
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    // SAFETY: the child makes system calls only, on memory prepared before the fork, and leaves by _exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        // Our end must belong to the parent alone, or a failing parent would leave the child waiting forever.
        drop(ours);
        let code = confined(&filter, theirs);
        // SAFETY: ends this process without running the test harness's handlers.
        unsafe { libc::_exit(code) };
    }
    drop(theirs);
    let listener = Listener::from_fd(receive_fd(ours.as_fd()));

    let mut heard = Vec::new();
    while heard.len() < 3 {
        let mut ready = [PollFd::new(&listener, PollFlags::IN)];
        let count = poll(&mut ready, Some(&Timespec { tv_sec: 30, tv_nsec: 0 })).unwrap();
        assert_eq!((count, ready[0].revents()), (1, PollFlags::IN), "heard {heard:?}");
        let Some(notification) = listener.receive().unwrap() else {
            continue;
        };
        assert_eq!(notification.pid, child.cast_unsigned());
        let Verdict::Refuse(refusal) = verdict(&notification) else { panic!("{notification:?} is bounded") };
        listener.refuse(&notification, refusal.errno).unwrap();
        heard.push(refusal);
    }

    let mut status = 0;
    // SAFETY: the child is ours and was not waited for; `status` is a valid place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0), "place of the first wrong answer");
    assert_eq!(
        heard,
        [
            Refusal { syscall: "bpf", rule: "seccomp/bpf", errno: Errno::PERM },
            Refusal { syscall: "fchmod", rule: "seccomp/setid-bits", errno: Errno::PERM },
            Refusal { syscall: "socket", rule: "seccomp/sockets", errno: Errno::AFNOSUPPORT },
        ]
    );
}

#[test]
fn an_answer_to_a_caller_that_died_is_no_error() {
    let filter = Filter::compile(SetIds::Refused);
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    // SAFETY: as in the test above.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        drop(ours);
        let code = confined(&filter, theirs);
        // SAFETY: as in the test above.
        unsafe { libc::_exit(code) };
    }
    drop(theirs);
    let listener = Listener::from_fd(receive_fd(ours.as_fd()));
    let notification = listener.receive().unwrap().expect("the child waits in its first call");
    // SAFETY: the child is ours and was not waited for.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    // SAFETY: as above; the status is not wanted.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    assert!(listener.refuse(&notification, Errno::PERM).is_ok());
}

/// The child: confines itself, hands over the listener, and tries. Returns 0 if every answer was right, else the
/// position of the first wrong one, from 1.
fn confined(filter: &Filter, channel: OwnedFd) -> i32 {
    // SAFETY: takes no pointers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return 100;
    }
    let Ok(listener) = filter.install() else { return 101 };
    let fds = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    if sendmsg(&channel, &[IoSlice::new(b"l")], &mut control, SendFlags::empty()).is_err() {
        return 102;
    }
    // If a copy stayed here, the listener would outlive the parent, and calls would never be answered.
    drop(listener);
    for (place, (number, args, expected)) in (1..).zip(TRIED) {
        // SAFETY: every call in the list is refused before it uses its arguments as pointers.
        let answer = unsafe { libc::syscall(i64::from(*number), args[0], args[1], args[2]) };
        if answer != -1 || std::io::Error::last_os_error().raw_os_error() != Some(expected.raw_os_error()) {
            return place;
        }
    }
    0
}

fn receive_fd(channel: BorrowedFd<'_>) -> OwnedFd {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(channel, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    control
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
        .expect("the child sends its listener, or has exited with 100 to 102")
}

/// The group whose clause decides this call.
fn group_of(number: u32, args: &[u64]) -> Option<Group> {
    rules::rule_of(number).iter().find(|clause| clause.applies(&padded(args))).map(|clause| clause.group)
}

fn padded(args: &[u64]) -> [u64; 6] {
    std::array::from_fn(|place| args.get(place).copied().unwrap_or(0))
}

fn outcome(filter: &Filter, arch: u32, number: u32, args: &[u64]) -> CallOutcome {
    let args = padded(args);
    let (value, _) = run(filter, arch, number, &args);
    let data = value & libc::SECCOMP_RET_DATA;
    match value & libc::SECCOMP_RET_ACTION_FULL {
        libc::SECCOMP_RET_ALLOW => Allowed,
        libc::SECCOMP_RET_KILL_PROCESS => CallOutcome::Killed,
        libc::SECCOMP_RET_ERRNO if data == 0 => Moot,
        libc::SECCOMP_RET_ERRNO => Silent(Errno::from_raw_os_error(data as i32)),
        libc::SECCOMP_RET_USER_NOTIF => {
            let refusal = match verdict(&Notification { id: 0, pid: 0, nr: number, args }) {
                Verdict::Refuse(refusal) => refusal,
                Verdict::Bound(_) => return Bounded,
            };
            let group = Group::ALL.iter().find(|group| group.rule() == refusal.rule);
            Telling(*group.expect("verdicts name a group"), refusal.errno)
        }
        other => panic!("the filter returned {other:#x}"),
    }
}

/// Interprets the program; returns its result and the number of instructions.
fn run(filter: &Filter, arch: u32, number: u32, args: &[u64; 6]) -> (u32, usize) {
    let mut data = [0; 16];
    (data[0], data[1]) = (number, arch);
    for (place, arg) in args.iter().enumerate() {
        (data[4 + 2 * place], data[5 + 2 * place]) = (*arg as u32, (*arg >> 32) as u32);
    }
    let (mut accumulator, mut next, mut steps) = (0, 0, 0);
    loop {
        let instruction = filter.program()[next];
        (next, steps) = (next + 1, steps + 1);
        let condition = match instruction.code {
            0x20 => {
                accumulator = data[instruction.k as usize / 4];
                continue;
            }
            0x54 => {
                accumulator &= instruction.k;
                continue;
            }
            0x05 => {
                next += instruction.k as usize;
                continue;
            }
            0x06 => return (instruction.k, steps),
            0x15 => accumulator == instruction.k,
            0x35 => accumulator >= instruction.k,
            0x45 => accumulator & instruction.k != 0,
            other => panic!("instruction {other:#x} is unexpected"),
        };
        next += usize::from(if condition { instruction.jt } else { instruction.jf });
    }
}
