//! The rules: which system calls are refused, when, and with what answer.
//!
//! A rule is a list of clauses. The first that applies refuses the call; if none does, the call is allowed. Each clause
//! belongs to a group, which is named in denials and can be switched off by a mutation check.
//!
//! Checks look at the low 32 bits of an argument. That is exact, not an approximation, for every argument tested here,
//! because the kernel itself drops the rest:
//! - families, socket types, protocols, levels, socket options, flags of sends, open flags, rename flags, prctl options: declared `int` or `unsigned int`;
//! - modes: `umode_t`, 16 bits, and the masks lie within them;
//! - ioctl and fcntl commands, seccomp operations and flags, personalities, resources: `unsigned int`;
//! - flags of memfd_create and shmget: `unsigned int` and `int`; flags of mmap: `unsigned long`, and the bit lies in the lower half;
//! - sizes of attributes: `size_t`, and the kernel refuses more than 65536;
//! - flags of clone: `unsigned long`, of which the kernel uses the lower 32 bits; flags of unshare: `unsigned long`,
//!   every defined bit lies in the lower half and the kernel refuses undefined ones.
//!
//! Addresses are only ever compared with null, and then both halves are checked.
//!
//! Answers: EPERM for calls that exist and are refused; ENOSYS for unknown calls, and for those that programs have a
//! fallback for (clone3, io_uring); for sockets, the answer of a kernel without that family or protocol.

use rustix::io::Errno;

use super::arch::{self, nr};
use super::sockets::{SENDMMSG, SENDMSG, SENDTO, SETSOCKOPT, SOCKET, SOCKETPAIR};

/// The rule for any number, listed or not.
pub(super) fn rule_of(number: u32) -> Rule {
    TABLE.iter().chain(arch::LEGACY).find(|(_, numbers)| numbers.contains(&number)).map_or(UNLISTED, |(rule, _)| *rule)
}

/// Clauses in order of precedence; an empty list allows.
pub(super) type Rule = &'static [Clause];

pub(super) const ALLOWED: Rule = &[];
pub(super) const UNLISTED: Rule = &[silent(Group::Unlisted, Errno::NOSYS)];

macro_rules! groups {
    ($($(#[$doc:meta])* $name:ident = $rule:literal),+ $(,)?) => {
        /// A set of refusals with one reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Group { $($(#[$doc])* $name),+ }

        impl Group {
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The stable id that denials carry, such as `seccomp/mounts`.
            pub const fn rule(self) -> &'static str {
                match self { $(Self::$name => concat!("seccomp/", $rule)),+ }
            }

            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $rule),+ }
            }
        }
    };
}

groups! {
    /// Creating or entering a namespace: a new user namespace would give back all capabilities.
    Namespaces = "namespaces",
    /// Changing or listing the mount table, and leaving the root.
    Mounts = "mounts",
    /// File handles, which name inodes outside the root.
    Handles = "handles",
    /// Reading, writing or controlling another process.
    Ptrace = "ptrace",
    /// The kernel's keyrings, which are not isolated per process tree, and keys of filesystems, which stay until they
    /// are unmounted.
    Keyrings = "keyrings",
    /// Loading programs into the kernel, including socket filters: the whole host has one pool for their compiled code.
    Bpf = "bpf",
    /// Performance counters, a side channel with a long list of bugs.
    Perf = "perf",
    /// Stalling the kernel in a page fault at will.
    Userfaultfd = "userfaultfd",
    /// io_uring, whose system calls no filter sees.
    IoUring = "io-uring",
    /// Asynchronous IO, which has one pool for the whole host.
    Aio = "aio",
    /// Loading kernel code.
    Modules = "modules",
    /// Administration of the machine.
    System = "system",
    /// Setting the machine's clock.
    Clock = "clock",
    /// Setting the host and domain name.
    Hostname = "hostname",
    /// Placing or moving pages between memory nodes, and giving pages away.
    MemoryPolicy = "memory-policy",
    /// Pages from the host's own reserve, which no memory limit counts.
    HugePages = "huge-pages",
    /// Execution domains, which can turn off randomisation or make readable pages executable.
    Personality = "personality",
    /// Setuid and setgid bits, which outlive the sandbox in a workspace.
    SetidBits = "setid-bits",
    /// Device nodes and whiteouts.
    DeviceNodes = "device-nodes",
    /// Leases on files, which block other programs that open them.
    Leases = "leases",
    /// Every socket except unix, TCP and UDP; and joining multicast groups, whose memory is charged to no cgroup.
    Sockets = "sockets",
    /// Datagrams collected piece by piece: the pending data is charged to no cgroup.
    Corking = "corking",
    /// Keys that sign TCP segments, one for each peer address: charged to no cgroup.
    TcpKeys = "tcp-keys",
    /// Errors and timestamps queued in a socket, with a copy of the sent data: charged to no cgroup.
    ErrorQueues = "error-queues",
    /// Options for all packets of a socket, in a form that the kernel keeps as a whole: charged to no cgroup.
    PacketOptions = "packet-options",
    /// The size of a receive buffer. What an unaccepted connection receives is charged to no cgroup.
    ReceiveBuffers = "receive-buffers",
    /// Listening: the number of connections that may wait to be accepted. The host makes the call, and counts.
    Listeners = "listeners",
    /// IPv6 flow labels, of which the host has one pool of 4096.
    FlowLabels = "flow-labels",
    /// Access control lists with many entries, which are charged to no cgroup on a tmpfs.
    LargeAcls = "large-acls",
    /// Typing into, or taking over, the terminal.
    TtyIoctls = "tty-ioctls",
    /// Becoming the listener that answers refused calls.
    SeccompListener = "seccomp-listener",
    /// Entries in the host's audit log, for calls of the program's choice.
    Audit = "audit",
    /// Rewriting the memory map the kernel reports for a process.
    Prctl = "prctl",
    /// Changing the core limit, whose value stops the kernel from starting the host's core handler.
    CoreLimit = "core-limit",
    /// Numbers that are not in this table.
    Unlisted = "unlisted",
    /// System calls through another ABI: 32-bit, x32. Checked before the table.
    ForeignAbi = "foreign-abi",
}

/// One refusal: applies if all its tests hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clause {
    pub group: Group,
    pub answer: Answer,
    /// An array rather than a slice, so that const functions that take argument positions can make clauses.
    pub tests: [Option<Test>; 3],
}

impl Clause {
    pub fn applies(&self, args: &[u64; 6]) -> bool {
        self.tests.iter().flatten().all(|test| test.holds(args))
    }

    pub const fn when(self, test: Test) -> Self {
        Self { tests: [Some(test), None, None], ..self }
    }

    pub const fn when_both(self, first: Test, second: Test) -> Self {
        Self { tests: [Some(first), Some(second), None], ..self }
    }

    const fn when_all(self, first: Test, second: Test, third: Test) -> Self {
        Self { tests: [Some(first), Some(second), Some(third)], ..self }
    }
}

/// How a refusal is answered. Success is used only if the effect that the program wants already holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The kernel answers, with this error.
    Silent(Errno),
    /// The host records it and answers with this error.
    Telling(Errno),
    /// The kernel answers with success, and nothing happens.
    Moot,
    /// The host makes the call within a bound, or answers with an error.
    Bounded,
}

impl Answer {
    pub const fn errno(self) -> Errno {
        match self {
            Self::Silent(errno) | Self::Telling(errno) => errno,
            // Such a call is never refused through here; fail closed in any case.
            Self::Moot | Self::Bounded => Errno::NOSYS,
        }
    }
}

/// A test of one argument: of its low 32 bits, unless it is an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Test {
    pub arg: u8,
    pub mask: u32,
    pub values: Values,
}

impl Test {
    fn holds(&self, args: &[u64; 6]) -> bool {
        let whole = args[usize::from(self.arg)];
        let masked = whole as u32 & self.mask;
        match self.values {
            Values::OneOf(values) => values.contains(&masked),
            Values::NoneOf(values) => !values.contains(&masked),
            Values::NotNull => whole != 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Values {
    OneOf(&'static [u32]),
    NoneOf(&'static [u32]),
    /// An address that is not null. Its low half alone may be zero, so the whole is checked, whatever the mask.
    NotNull,
}

pub(super) const fn silent(group: Group, errno: Errno) -> Clause {
    Clause { group, answer: Answer::Silent(errno), tests: [None; 3] }
}

pub(super) const fn telling(group: Group, errno: Errno) -> Clause {
    Clause { group, answer: Answer::Telling(errno), tests: [None; 3] }
}

pub(super) const fn moot(group: Group) -> Clause {
    Clause { group, answer: Answer::Moot, tests: [None; 3] }
}

const fn bounded(group: Group) -> Clause {
    Clause { group, answer: Answer::Bounded, tests: [None; 3] }
}

/// Refuses a mode with a setuid or setgid bit.
pub(super) const fn setid_mode(mode: u8) -> Clause {
    telling(Group::SetidBits, Errno::PERM).when(any_bit(mode, SETID_BITS))
}

/// The same for an open that may create; otherwise the kernel ignores the mode, which may be garbage.
pub(super) const fn setid_create(flags: u8, mode: u8) -> Clause {
    telling(Group::SetidBits, Errno::PERM).when_both(any_bit(flags, CREATING_FLAGS), any_bit(mode, SETID_BITS))
}

/// Refuses the two device types; whiteouts are character devices too.
pub(super) const fn device_node(mode: u8) -> Clause {
    telling(Group::DeviceNodes, Errno::PERM).when(Test {
        arg: mode,
        mask: libc::S_IFMT,
        values: Values::OneOf(&[libc::S_IFCHR, libc::S_IFBLK]),
    })
}

pub(super) const fn any_bit(arg: u8, mask: u32) -> Test {
    Test { arg, mask, values: Values::NoneOf(&[0]) }
}

pub(super) const fn one_of(arg: u8, values: &'static [u32]) -> Test {
    Test { arg, mask: u32::MAX, values: Values::OneOf(values) }
}

pub(super) const fn none_of(arg: u8, values: &'static [u32]) -> Test {
    Test { arg, mask: u32::MAX, values: Values::NoneOf(values) }
}

const fn not_null(arg: u8) -> Test {
    Test { arg, mask: u32::MAX, values: Values::NotNull }
}

const SETID_BITS: u32 = libc::S_ISUID | libc::S_ISGID;
/// O_CREAT, and the bit that only O_TMPFILE has; the rest of O_TMPFILE is O_DIRECTORY.
const CREATING_FLAGS: u32 = libc::O_CREAT as u32 | 0o20000000;
/// NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
const NAMESPACE_FLAGS: u32 = 0x7E02_0000;
/// In clone this bit is part of the exit signal, so only unshare can request it.
const CLONE_NEWTIME: u32 = 0x80;
const PERSONALITY_LINUX: u32 = 0;
const PERSONALITY_QUERY: u32 = u32::MAX;
const PR_SET_MM: u32 = 35;
const AGENT_PID: u32 = 1;
const PRIO_USER: u32 = 2;
const IOPRIO_WHO_USER: u32 = 3;
const RLIMIT_CORE: u32 = libc::RLIMIT_CORE as u32;
const MAP_HUGETLB: u32 = libc::MAP_HUGETLB as u32;
const MFD_HUGETLB: u32 = libc::MFD_HUGETLB;
/// All but MFD_CLOEXEC, MFD_ALLOW_SEALING, MFD_HUGETLB, MFD_NOEXEC_SEAL, MFD_EXEC and the size of huge pages.
const MFD_UNKNOWN: u32 = !(0x1F | 0x3F << 26);
const SHM_HUGETLB: u32 = 0o4000;
const RENAME_WHITEOUT: u32 = 1 << 2;
/// F_SETLEASE, and F_SETDELEG of Linux 6.19, which does the same for directories too.
const LEASING_COMMANDS: &[u32] = &[1024, 1040];
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541C;
const TIOCCONS: u32 = 0x541D;
const TIOCSETD: u32 = 0x5423;
/// FS_IOC_SET_ENCRYPTION_POLICY, FS_IOC_ADD_ENCRYPTION_KEY, and FS_IOC_REMOVE_ENCRYPTION_KEY, for one user and for all
/// users.
const KEY_IOCTLS: &[u32] = &[0x800C_6613, 0xC050_6617, 0xC040_6618, 0xC040_6619];

/// The size of a list of `n` entries is `4 + 8 * n`, and the kernel refuses every other size. With 28 entries the
/// kernel's own copy fits 256 bytes, and a directory with two of them takes less than half of what it is charged for.
/// The name is behind a pointer, so attributes of other kinds are refused too if they have such a size. ext4 gives the
/// same answer if it has no room for an attribute.
const SET_ATTRIBUTE: Rule = &[
    telling(Group::LargeAcls, Errno::NOSPC).when_both(ACL_SIZE, any_bit(3, !0xFF)),
    telling(Group::LargeAcls, Errno::NOSPC).when(one_of(3, &[236, 244, 252])),
];
const ACL_SIZE: Test = Test { arg: 3, mask: 7, values: Values::OneOf(&[4]) };

const FILTERING: Test = one_of(0, &[libc::SECCOMP_SET_MODE_FILTER]);

const SECCOMP: Rule = &[
    telling(Group::SeccompListener, Errno::PERM)
        .when_both(FILTERING, any_bit(1, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER as u32)),
    // Silent, as from a kernel that doesn't know the flag: programs that would like a log do without.
    silent(Group::Audit, Errno::INVAL).when_both(FILTERING, any_bit(1, libc::SECCOMP_FILTER_FLAG_LOG as u32)),
];

/// The agent (PID 1) may run under the program's own uid, and the program could then lower its priority. Other processes
/// are not restricted.
const SCHEDULE: Rule = &[telling(Group::Ptrace, Errno::PERM).when(one_of(0, &[AGENT_PID]))];
/// The same for calls that first say which kind of id the number is. A user's processes include the agent.
const SET_PRIORITY: Rule = &[
    telling(Group::Ptrace, Errno::PERM).when(one_of(1, &[AGENT_PID])),
    telling(Group::Ptrace, Errno::PERM).when(one_of(0, &[PRIO_USER])),
];
const SET_IO_PRIORITY: Rule = &[
    telling(Group::Ptrace, Errno::PERM).when(one_of(1, &[AGENT_PID])),
    telling(Group::Ptrace, Errno::PERM).when(one_of(0, &[IOPRIO_WHO_USER])),
];

/// At a core limit of one byte the kernel doesn't start the host's handler; at zero it does. So the limit can't be
/// changed. Programs set it to zero to prevent cores, and some exit if that fails. There are no cores anyway, so they
/// get success.
const SETRLIMIT: Rule = &[moot(Group::CoreLimit).when(one_of(0, &[RLIMIT_CORE]))];

const PRLIMIT: Rule = &[
    // The agent (PID 1) may run under the program's own uid, and the program could then set its limits. Other processes
    // are not restricted.
    telling(Group::Ptrace, Errno::PERM).when(one_of(0, &[AGENT_PID])),
    // A program that also wants the old limit would get none back, so this fails.
    silent(Group::CoreLimit, Errno::PERM).when_all(one_of(1, &[RLIMIT_CORE]), not_null(2), not_null(3)),
    moot(Group::CoreLimit).when_both(one_of(1, &[RLIMIT_CORE]), not_null(2)),
];

/// Every call that all our architectures have, each exactly once.
#[rustfmt::skip] // One idea to a line, not one number.
pub(super) const TABLE: &[(Rule, &[u32])] = &[
    (ALLOWED, ORDINARY),

    (&[telling(Group::Namespaces, Errno::PERM).when(any_bit(0, NAMESPACE_FLAGS))], &[nr::clone]),
    (&[telling(Group::Namespaces, Errno::PERM).when(any_bit(0, NAMESPACE_FLAGS | CLONE_NEWTIME))], &[nr::unshare]),
    (&[telling(Group::Namespaces, Errno::PERM)], &[nr::setns]),
    // clone3 has its flags behind a pointer; the C libraries fall back to clone.
    (&[silent(Group::Namespaces, Errno::NOSYS)], &[nr::clone3, nr::listns]),

    (&[telling(Group::Mounts, Errno::PERM)], &[
        nr::mount, nr::umount2, nr::pivot_root, nr::chroot,
        nr::open_tree, nr::open_tree_attr, nr::move_mount, nr::mount_setattr,
        nr::fsopen, nr::fsconfig, nr::fsmount, nr::fspick,
    ]),
    (&[silent(Group::Mounts, Errno::NOSYS)], &[nr::statmount, nr::listmount]),

    (&[telling(Group::Handles, Errno::PERM)], &[nr::name_to_handle_at, nr::open_by_handle_at]),
    (&[telling(Group::Ptrace, Errno::PERM)], &[
        nr::ptrace, nr::process_vm_readv, nr::process_vm_writev, nr::kcmp,
        nr::pidfd_getfd, nr::process_madvise, nr::process_mrelease,
    ]),
    (&[telling(Group::Keyrings, Errno::PERM)], &[nr::add_key, nr::request_key, nr::keyctl]),
    (&[telling(Group::Bpf, Errno::PERM)], &[nr::bpf]),
    (&[telling(Group::Perf, Errno::PERM)], &[nr::perf_event_open]),
    (&[telling(Group::Userfaultfd, Errno::PERM)], &[nr::userfaultfd]),
    (SCHEDULE, &[nr::sched_setaffinity, nr::sched_setparam, nr::sched_setscheduler, nr::sched_setattr]),
    (SET_PRIORITY, &[nr::setpriority]),
    (SET_IO_PRIORITY, &[nr::ioprio_set]),
    (PRLIMIT, &[nr::prlimit64]),
    (SETRLIMIT, &[nr::setrlimit]),
    // Silent: databases try it and do without.
    (&[silent(Group::Aio, Errno::NOSYS)], &[
        nr::io_setup, nr::io_destroy, nr::io_submit, nr::io_cancel, nr::io_getevents, nr::io_pgetevents,
    ]),
    // Silent: node and others probe for it at every start.
    (&[silent(Group::IoUring, Errno::NOSYS)], &[nr::io_uring_setup, nr::io_uring_enter, nr::io_uring_register]),
    (&[telling(Group::Modules, Errno::PERM)], &[
        nr::init_module, nr::finit_module, nr::delete_module, nr::kexec_load, nr::kexec_file_load,
    ]),
    (&[telling(Group::System, Errno::PERM)], &[
        nr::reboot, nr::swapon, nr::swapoff, nr::acct, nr::quotactl, nr::quotactl_fd, nr::syslog, nr::vhangup,
        nr::lookup_dcookie, nr::fanotify_init, nr::fanotify_mark, nr::lsm_set_self_attr,
    ]),
    (&[silent(Group::System, Errno::NOSYS)], &[nr::nfsservctl]),
    (&[telling(Group::Clock, Errno::PERM)], &[nr::settimeofday, nr::clock_settime, nr::adjtimex, nr::clock_adjtime]),
    (&[telling(Group::Hostname, Errno::PERM)], &[nr::sethostname, nr::setdomainname]),

    // Silent: numeric libraries give this advice whenever they allocate and ignore the answer.
    (&[silent(Group::MemoryPolicy, Errno::PERM)], &[nr::mbind, nr::set_mempolicy, nr::set_mempolicy_home_node]),
    (&[telling(Group::MemoryPolicy, Errno::PERM)], &[nr::migrate_pages, nr::move_pages, nr::vmsplice]),
    (&[silent(Group::MemoryPolicy, Errno::NOSYS)], &[nr::memfd_secret]),

    // Silent: programs fall back to ordinary pages if the reserve is empty, as it is on most hosts.
    (&[silent(Group::HugePages, Errno::NOMEM).when(any_bit(3, MAP_HUGETLB))], &[nr::mmap]),
    // A browser sets every bit to learn which ones the kernel knows, and gives up on another answer than the kernel's.
    (&[
        silent(Group::HugePages, Errno::INVAL).when_both(any_bit(1, MFD_HUGETLB), any_bit(1, MFD_UNKNOWN)),
        silent(Group::HugePages, Errno::NOMEM).when(any_bit(1, MFD_HUGETLB)),
    ], &[nr::memfd_create]),
    (&[silent(Group::HugePages, Errno::NOMEM).when(any_bit(2, SHM_HUGETLB))], &[nr::shmget]),

    (&[telling(Group::Personality, Errno::PERM).when(none_of(0, &[PERSONALITY_LINUX, PERSONALITY_QUERY]))],
        &[nr::personality]),

    (&[setid_mode(1)], &[nr::fchmod]),
    (&[setid_mode(2)], &[nr::fchmodat, nr::fchmodat2]),
    (&[setid_create(2, 3)], &[nr::openat]),
    (&[setid_mode(2), device_node(2)], &[nr::mknodat]),
    // The mode of openat2 is behind a pointer; programs that use it fall back to openat.
    (&[silent(Group::SetidBits, Errno::NOSYS)], &[nr::openat2, nr::file_getattr, nr::file_setattr]),
    // A whiteout is a kind of device node, and needs no privilege.
    (&[telling(Group::DeviceNodes, Errno::PERM).when(any_bit(4, RENAME_WHITEOUT))], &[nr::renameat2]),

    (&[telling(Group::Leases, Errno::PERM).when(one_of(1, LEASING_COMMANDS))], &[nr::fcntl]),

    (SET_ATTRIBUTE, &[nr::setxattr, nr::lsetxattr, nr::fsetxattr]),
    // Its size is behind a pointer. Kernels before 6.13 don't have it.
    (&[silent(Group::LargeAcls, Errno::NOSYS)], &[nr::setxattrat]),

    (SOCKET, &[nr::socket]),
    (SOCKETPAIR, &[nr::socketpair]),
    (SETSOCKOPT, &[nr::setsockopt]),
    (SENDTO, &[nr::sendto]),
    (SENDMSG, &[nr::sendmsg]),
    (SENDMMSG, &[nr::sendmmsg]),
    (&[bounded(Group::Listeners)], &[nr::listen]),
    (&[
        telling(Group::TtyIoctls, Errno::PERM).when(one_of(1, &[TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD])),
        telling(Group::Keyrings, Errno::PERM).when(one_of(1, KEY_IOCTLS)),
    ], &[nr::ioctl]),
    (SECCOMP, &[nr::seccomp]),
    // Syscall user dispatch stays allowed: it only sends the caller's own calls to its own handler, before any runs.
    (&[telling(Group::Prctl, Errno::PERM).when(one_of(0, &[PR_SET_MM]))], &[nr::prctl]),

    (UNLISTED, &[nr::lsm_get_self_attr, nr::lsm_list_modules]),
];

/// What shells, compilers, interpreters, databases and browsers need. If a call needs privileges (chown, setuid,
/// capset, setpriority), the kernel decides, and there are none.
#[rustfmt::skip]
const ORDINARY: &[u32] = &[
    // Files: descriptors and contents.
    nr::read, nr::write, nr::readv, nr::writev, nr::pread64, nr::pwrite64, nr::preadv, nr::pwritev, nr::preadv2,
    nr::pwritev2, nr::lseek, nr::close, nr::close_range, nr::dup, nr::dup3, nr::pipe2, nr::flock,
    nr::fsync, nr::fdatasync, nr::sync, nr::syncfs, nr::sync_file_range, nr::truncate, nr::ftruncate, nr::fallocate,
    nr::fadvise64, nr::readahead, nr::sendfile, nr::splice, nr::tee, nr::copy_file_range, nr::cachestat,
    // Files: names and attributes.
    nr::fstat, nr::newfstatat, nr::statx, nr::statfs, nr::fstatfs, nr::faccessat, nr::faccessat2, nr::getdents64,
    nr::getcwd, nr::chdir, nr::fchdir, nr::umask, nr::mkdirat, nr::unlinkat, nr::linkat, nr::symlinkat,
    nr::readlinkat, nr::renameat, nr::fchown, nr::fchownat, nr::utimensat,
    nr::getxattr, nr::lgetxattr, nr::fgetxattr, nr::getxattrat, nr::listxattr, nr::llistxattr, nr::flistxattr, nr::listxattrat, nr::removexattr,
    nr::lremovexattr, nr::fremovexattr, nr::removexattrat,
    nr::inotify_init1, nr::inotify_add_watch, nr::inotify_rm_watch,
    // Memory.
    nr::brk, nr::munmap, nr::mremap, nr::mprotect, nr::madvise, nr::msync, nr::mincore, nr::mlock,
    nr::mlock2, nr::munlock, nr::mlockall, nr::munlockall, nr::remap_file_pages, nr::mseal,
    nr::pkey_alloc, nr::pkey_free, nr::pkey_mprotect, nr::map_shadow_stack, nr::get_mempolicy, nr::membarrier,
    // Processes and threads.
    nr::execve, nr::execveat, nr::exit, nr::exit_group, nr::wait4, nr::waitid, nr::gettid, nr::getpid, nr::getppid,
    nr::getpgid, nr::setpgid, nr::getsid, nr::setsid, nr::set_tid_address, nr::set_robust_list, nr::get_robust_list,
    nr::rseq, nr::futex, nr::futex_wait, nr::futex_wake, nr::futex_requeue, nr::futex_waitv, nr::pidfd_open,
    nr::getcpu, nr::getrusage, nr::times, nr::restart_syscall,
    nr::getrlimit, nr::getpriority, nr::ioprio_get,
    nr::sched_yield, nr::sched_getaffinity, nr::sched_getparam, nr::sched_getscheduler, nr::sched_getattr,
    nr::sched_get_priority_min, nr::sched_get_priority_max, nr::sched_rr_get_interval,
    // Identity and confinement.
    nr::getuid, nr::geteuid, nr::getgid, nr::getegid, nr::getresuid, nr::getresgid, nr::getgroups, nr::setuid,
    nr::setgid, nr::setreuid, nr::setregid, nr::setresuid, nr::setresgid, nr::setfsuid, nr::setfsgid, nr::setgroups,
    nr::capget, nr::capset, nr::landlock_create_ruleset, nr::landlock_add_rule, nr::landlock_restrict_self,
    // Signals.
    nr::kill, nr::tkill, nr::tgkill, nr::pidfd_send_signal, nr::rt_sigaction, nr::rt_sigprocmask, nr::rt_sigreturn,
    nr::rt_sigpending, nr::rt_sigsuspend, nr::rt_sigtimedwait, nr::rt_sigqueueinfo, nr::rt_tgsigqueueinfo,
    nr::sigaltstack, nr::signalfd4,
    // Sockets, once made.
    nr::bind, nr::accept, nr::accept4, nr::connect, nr::shutdown, nr::getsockname, nr::getpeername,
    nr::getsockopt, nr::recvfrom, nr::recvmsg, nr::recvmmsg,
    // Waiting and time.
    nr::ppoll, nr::pselect6, nr::epoll_create1, nr::epoll_ctl, nr::epoll_pwait, nr::epoll_pwait2, nr::eventfd2,
    nr::nanosleep, nr::clock_nanosleep, nr::clock_gettime, nr::clock_getres, nr::gettimeofday, nr::getitimer,
    nr::setitimer, nr::timer_create, nr::timer_settime, nr::timer_gettime, nr::timer_getoverrun, nr::timer_delete,
    nr::timerfd_create, nr::timerfd_settime, nr::timerfd_gettime,
    // System V and POSIX communication, in the sandbox's own namespace.
    nr::shmat, nr::shmctl, nr::shmdt, nr::semget, nr::semop, nr::semtimedop, nr::semctl,
    nr::msgget, nr::msgsnd, nr::msgrcv, nr::msgctl,
    nr::mq_open, nr::mq_unlink, nr::mq_timedsend, nr::mq_timedreceive, nr::mq_notify, nr::mq_getsetattr,
    // About the machine.
    nr::uname, nr::sysinfo, nr::getrandom,
];
