//! The system calls of a confined service: those of an asynchronous runtime with sockets, and no others.
//!
//! Everything else answers EPERM, and calls for which the C library has an older one to fall back to answer ENOSYS. The
//! filter applies to threads that are started later, too.

use std::mem::offset_of;

use libc::{seccomp_data, sock_filter};
use rustix::io::Errno;

use crate::sys::checked;

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xC000_003E;
/// Marks a call of the x32 ABI, whose audit constant is the same.
#[cfg(target_arch = "x86_64")]
const FOREIGN_ABI_BIT: u32 = 0x4000_0000;

/// Calls that are allowed whatever their arguments. None takes a path or another process.
#[rustfmt::skip] // One idea to a line.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64, libc::SYS_close,
    libc::SYS_connect, libc::SYS_accept, libc::SYS_accept4, libc::SYS_bind, libc::SYS_shutdown,
    libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_sendmmsg, libc::SYS_recvmmsg,
    libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_getsockopt,
    libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_ppoll,
    libc::SYS_eventfd2, libc::SYS_pipe2, libc::SYS_splice, libc::SYS_timerfd_create, libc::SYS_timerfd_settime,
    libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_brk,
    libc::SYS_futex, libc::SYS_set_robust_list, libc::SYS_set_tid_address, libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity, libc::SYS_membarrier,
    libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_sigaltstack,
    libc::SYS_restart_syscall, libc::SYS_exit, libc::SYS_exit_group,
    libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_clock_nanosleep, libc::SYS_nanosleep,
    libc::SYS_gettimeofday, libc::SYS_getrandom,
    libc::SYS_getpid, libc::SYS_gettid, libc::SYS_getppid, libc::SYS_getuid, libc::SYS_geteuid,
    libc::SYS_getgid, libc::SYS_getegid,
];

#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[libc::c_long] =
    &[libc::SYS_poll, libc::SYS_epoll_wait, libc::SYS_time, libc::SYS_arch_prctl, libc::SYS_dup2];

/// Calls that the C library replaces by an older one. Their arguments are in memory, where a filter can't see them.
const ABSENT: &[libc::c_long] = &[libc::SYS_clone3, libc::SYS_rseq, libc::SYS_openat2];

/// A new thread, in no new namespace.
const THREAD: i32 = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;
/// The type of a socket, without its flags.
const SOCKET_TYPE: u32 = 0xf;
const PR_SET_VMA: u32 = 0x5356_4d41;

/// A condition on one argument: its lower half under a mask is one of these. All such arguments are ints.
struct Test {
    argument: usize,
    mask: u32,
    values: Vec<u32>,
}

fn test(argument: usize, mask: u32, values: &[i32]) -> Test {
    Test { argument, mask, values: values.iter().map(|value| *value as u32).collect() }
}

/// Calls that are allowed if all conditions hold.
fn conditional() -> Vec<(libc::c_long, Vec<Test>)> {
    let whole = u32::MAX;
    let not_executable = || vec![test(2, libc::PROT_EXEC as u32, &[0])];
    let own = rustix::process::getpid().as_raw_nonzero().get();
    vec![
        // Internet sockets only. Unix sockets are received, not created: none can be connected to a path or a name.
        (
            libc::SYS_socket,
            vec![
                test(0, whole, &[libc::AF_INET, libc::AF_INET6]),
                test(1, SOCKET_TYPE, &[libc::SOCK_STREAM, libc::SOCK_DGRAM]),
                test(2, whole, &[0, libc::IPPROTO_TCP, libc::IPPROTO_UDP]),
            ],
        ),
        // A runtime's own wake-up channel. Unlike datagram sockets, a pair of streams can't be connected elsewhere.
        (libc::SYS_socketpair, vec![test(0, whole, &[libc::AF_UNIX]), test(1, SOCKET_TYPE, &[libc::SOCK_STREAM])]),
        (
            libc::SYS_setsockopt,
            vec![test(1, whole, &[libc::SOL_SOCKET, libc::IPPROTO_TCP, libc::IPPROTO_IP, libc::IPPROTO_IPV6])],
        ),
        (libc::SYS_mmap, not_executable()),
        (libc::SYS_mprotect, not_executable()),
        (libc::SYS_clone, vec![test(0, (THREAD | NAMESPACES) as u32, &[THREAD])]),
        (libc::SYS_ioctl, vec![test(1, whole, &[libc::FIONBIO])]),
        (
            libc::SYS_fcntl,
            vec![test(1, whole, &[libc::F_GETFL, libc::F_SETFL, libc::F_GETFD, libc::F_SETFD, libc::F_DUPFD_CLOEXEC])],
        ),
        (libc::SYS_prctl, vec![test(0, whole, &[libc::PR_SET_NAME, PR_SET_VMA as i32])]),
        (libc::SYS_tgkill, vec![test(0, whole, &[own])]),
    ]
}

/// Puts the caller, and every thread that it starts, under the filter. Needs no_new_privs.
pub(super) fn install() -> Result<(), Errno> {
    let program = compile();
    let len = u16::try_from(program.len()).map_err(|_| Errno::TOOBIG)?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: `program` points at `len` initialised instructions that outlive the call; the kernel copies them and writes
    // to neither.
    checked(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) })
        .map(|_| ())
}

fn compile() -> Vec<sock_filter> {
    let mut code = vec![load(offset_of!(seccomp_data, arch))];
    code.extend([jump(libc::BPF_JEQ, AUDIT_ARCH, 1, 0), answer(libc::SECCOMP_RET_KILL_PROCESS)]);
    code.push(load(offset_of!(seccomp_data, nr)));
    code.extend([jump(libc::BPF_JGE, FOREIGN_ABI_BIT, 0, 1), answer(libc::SECCOMP_RET_KILL_PROCESS)]);
    for number in ALLOWED.iter().chain(ALLOWED_HERE) {
        code.extend([jump(libc::BPF_JEQ, *number as u32, 0, 1), answer(libc::SECCOMP_RET_ALLOW)]);
    }
    for number in ABSENT {
        code.extend([jump(libc::BPF_JEQ, *number as u32, 0, 1), refusal(libc::ENOSYS)]);
    }
    for (number, tests) in conditional() {
        let body: Vec<sock_filter> = tests.iter().flat_map(checks).chain([answer(libc::SECCOMP_RET_ALLOW)]).collect();
        let length = u8::try_from(body.len()).expect("conditions are short");
        code.push(jump(libc::BPF_JEQ, number as u32, 0, length));
        code.extend(body);
    }
    code.push(refusal(libc::EPERM));
    code
}

/// Goes on after the last instruction if the condition holds, and otherwise refuses.
fn checks(test: &Test) -> Vec<sock_filter> {
    // The lower half comes first on the architectures that are built for.
    let place = offset_of!(seccomp_data, args) + test.argument * size_of::<u64>();
    let mut code = vec![load(place), instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, test.mask)];
    let count = test.values.len();
    for (place, value) in test.values.iter().enumerate() {
        // Over the other comparisons and the refusal.
        let beyond = u8::try_from(count - place).expect("conditions have few values");
        code.push(jump(libc::BPF_JEQ, *value, beyond, 0));
    }
    code.push(refusal(libc::EPERM));
    code
}

fn load(offset: usize) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32)
}

fn answer(value: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, value)
}

fn refusal(errno: i32) -> sock_filter {
    answer(libc::SECCOMP_RET_ERRNO | errno as u32)
}

fn jump(comparison: u32, value: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { jt, jf, ..instruction(libc::BPF_JMP | comparison | libc::BPF_K, value) }
}

fn instruction(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}
