//! Attempts by system call alone: namespaces, keys, loading code into the kernel, clocks, other ABIs.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;

use crate::Attempt;
use crate::out::{AttemptOutcome, Out, out_of_child};
use crate::sys::{ChildEnd, at, call, errno_name, in_child, open, own, path, pause_ms, unheeded, wait};

pub const ATTEMPTS: &[Attempt] = &[
    ("make-namespaces", make_namespaces),
    ("join-namespaces", join_namespaces),
    ("use-keyrings", use_keyrings),
    ("privileged-calls", privileged_calls),
    ("use-io-uring", use_io_uring),
    ("foreign-conventions", foreign_conventions),
    ("spoof-supervisor", spoof_supervisor),
    ("set-names-and-clocks", set_names_and_clocks),
    ("see-host-ipc", see_host_ipc),
    ("flood-denials", flood_denials),
    ("sleep-after-refusals", sleep_after_refusals),
];

const NAMESPACES: &[(&str, i32)] = &[
    ("user", libc::CLONE_NEWUSER),
    ("mount", libc::CLONE_NEWNS),
    ("pid", libc::CLONE_NEWPID),
    ("network", libc::CLONE_NEWNET),
    ("ipc", libc::CLONE_NEWIPC),
    ("uts", libc::CLONE_NEWUTS),
    ("cgroup", libc::CLONE_NEWCGROUP),
];
const CLONE_NEWTIME: usize = 0x80;

fn make_namespaces(out: &Out, _: &[String]) {
    for (name, flag) in NAMESPACES {
        // In a child, so that a success changes nothing for the next one.
        out_of_child(out, &format!("unshare {name}"), || call(libc::SYS_unshare, &[*flag as usize]));
        out.tried(&format!("clone {name}"), clone((*flag | libc::SIGCHLD) as usize));
        out.tried(&format!("clone3 {name}"), clone3(*flag as u64));
    }
    out_of_child(out, "unshare time", || call(libc::SYS_unshare, &[CLONE_NEWTIME]));
    out_of_child(out, "unshare user and mount", || {
        call(libc::SYS_unshare, &[(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) as usize])
    });
    out.tried("clone with high bits", clone((libc::CLONE_NEWUSER | libc::SIGCHLD) as usize | 1 << 40));
    out.tried("clone3 plain", clone3(0));
}

fn ended(child: usize) {
    if child == 0 {
        // SAFETY: ends the new process at once; no code of the parent runs in it.
        unsafe { libc::_exit(0) }
    }
    wait(child as libc::pid_t);
}

fn clone(flags: usize) -> io::Result<()> {
    call(libc::SYS_clone, &[flags, 0, 0, 0, 0]).map(ended)
}

fn clone3(flags: u64) -> io::Result<()> {
    let arguments = [flags, 0, 0, 0, libc::SIGCHLD as u64, 0, 0, 0];
    call(libc::SYS_clone3, &[arguments.as_ptr() as usize, 64]).map(ended)
}

fn join_namespaces(out: &Out, _: &[String]) {
    for name in ["mnt", "pid", "net", "user", "ipc", "uts", "cgroup"] {
        out.tried_on_first(&format!("open /proc/1/ns/{name}"), open(&format!("/proc/1/ns/{name}"), libc::O_RDONLY, 0));
        match open(&format!("/proc/self/ns/{name}"), libc::O_RDONLY, 0) {
            Ok(namespace) => out_of_child(out, &format!("setns {name}"), || {
                call(libc::SYS_setns, &[namespace.as_raw_fd() as usize, 0])
            }),
            Err(error) => {
                out.tried::<()>(&format!("setns {name}"), Err(error));
            }
        }
    }
    if let Ok(pidfd) = call(libc::SYS_pidfd_open, &[1, 0]).map(own) {
        out_of_child(out, "setns by pidfd of 1", || {
            call(libc::SYS_setns, &[pidfd.as_raw_fd() as usize, libc::CLONE_NEWNS as usize])
        });
    } else {
        out.say("setns by pidfd of 1", AttemptOutcome::Refused, "no pidfd");
    }
}

fn use_keyrings(out: &Out, _: &[String]) {
    let (kind, name) = (path("user"), path("saggar-probe"));
    let session = -3isize as usize;
    // Comes first, before an attempt to get another keyring.
    let mut text = [0u8; 256];
    match call(libc::SYS_keyctl, &[6, session, text.as_mut_ptr() as usize, text.len(), 0]) {
        Ok(_) => {
            // Type, user, group, permissions, name. Another user's id has no number in here; without a session keyring
            // the kernel uses the user's own.
            let text = String::from_utf8_lossy(&text);
            let fields: Vec<&str> = text.trim_end_matches('\0').split(';').collect();
            let is_own = fields.get(1).is_some_and(|user| *user != "65534") && fields.last() == Some(&"_ses");
            out.examined("the session keyring is the sandbox's", is_own, "");
        }
        Err(error) => {
            out.tried::<()>("the session keyring is the sandbox's", Err(error));
        }
    }
    out.tried("add_key", call(libc::SYS_add_key, &[at(&kind), at(&name), at(&name), 4, session]));
    out.tried("request_key", call(libc::SYS_request_key, &[at(&kind), at(&name), 0, session]));
    for (member, operation, key) in [
        ("get session keyring", 0usize, session),
        ("get user keyring", 0, -4isize as usize),
        ("join session keyring", 1, 0),
        ("describe", 6, session),
        ("read", 11, session),
        ("get persistent", 22, usize::MAX),
    ] {
        out.tried(&format!("keyctl {member}"), call(libc::SYS_keyctl, &[operation, key, 0, 0, 0]));
    }
    // For filesystems that encrypt. Without an argument none of these does anything.
    for (member, command) in [
        ("set a policy of encryption", 0x800C_6613usize),
        ("add a key to the filesystem", 0xC050_6617),
        ("add a key, with high bits", 0x1_C050_6617),
        ("remove a key", 0xC040_6618),
        ("remove a key of everybody", 0xC040_6619),
    ] {
        let directory = open("/tmp", libc::O_RDONLY, 0);
        let fd = directory.as_ref().map_or(usize::MAX, |directory| directory.as_raw_fd() as usize);
        out.tried(member, call(libc::SYS_ioctl, &[fd, command, 0]));
    }
}

/// `lsm_list_modules`: harmless, and not on any allowlist.
const SYS_LSM_LIST_MODULES: libc::c_long = 461;

/// Privileged calls that sandboxed programs never need. The arguments make each of them fail or do nothing if it gets
/// through.
fn privileged_calls(out: &Out, _: &[String]) {
    let zeroes = [0u64; 32];
    let buffer = zeroes.as_ptr() as usize;
    let (nowhere, empty) = (path("/nonexistent/saggar-probe"), path(""));
    let own_pid = std::process::id() as usize;
    let (mut modules, mut modules_length) = ([0u64; 32], 256u32);
    let calls: &[(&str, libc::c_long, &[usize])] = &[
        ("bpf", libc::SYS_bpf, &[5, buffer, 128]),
        ("bpf map", libc::SYS_bpf, &[0, buffer, 128]),
        ("perf_event_open", libc::SYS_perf_event_open, &[buffer, 0, usize::MAX, usize::MAX, 0]),
        ("userfaultfd", libc::SYS_userfaultfd, &[1]),
        (
            "lsm_list_modules",
            SYS_LSM_LIST_MODULES,
            &[modules.as_mut_ptr() as usize, &raw mut modules_length as usize, 0],
        ),
        ("kexec_load", libc::SYS_kexec_load, &[0, 0, buffer, 0xFFFF]),
        ("kexec_file_load", libc::SYS_kexec_file_load, &[usize::MAX, usize::MAX, 0, 0, 0xFFFF]),
        ("init_module", libc::SYS_init_module, &[buffer, 0, at(&empty)]),
        ("finit_module", libc::SYS_finit_module, &[usize::MAX, at(&empty), 0]),
        ("delete_module", libc::SYS_delete_module, &[at(&nowhere), libc::O_NONBLOCK as usize]),
        ("iopl", libc::SYS_iopl, &[3]),
        ("ioperm", libc::SYS_ioperm, &[0x3ff, 1, 1]),
        ("swapon", libc::SYS_swapon, &[at(&nowhere), 0]),
        ("swapoff", libc::SYS_swapoff, &[at(&nowhere)]),
        // Without the two magic numbers this does nothing.
        ("reboot", libc::SYS_reboot, &[0, 0, 0, 0]),
        ("acct", libc::SYS_acct, &[at(&nowhere)]),
        ("quotactl", libc::SYS_quotactl, &[0x80_0001, at(&nowhere), 0, buffer]),
        ("quotactl_fd", 443, &[usize::MAX, 0, 0, 0]),
        ("lookup_dcookie", libc::SYS_lookup_dcookie, &[0, buffer, 8]),
        ("move_pages", libc::SYS_move_pages, &[0, 0, 0, 0, 0, 0]),
        ("migrate_pages", libc::SYS_migrate_pages, &[0, 0, 0, 0]),
        ("mbind", libc::SYS_mbind, &[0, 0, 0, 0, 0, 0]),
        ("set_mempolicy", libc::SYS_set_mempolicy, &[0, 0, 0]),
        ("vmsplice", libc::SYS_vmsplice, &[1, 0, 0, 0]),
        ("modify_ldt", libc::SYS_modify_ldt, &[0, buffer, 0]),
        ("personality ADDR_NO_RANDOMIZE", libc::SYS_personality, &[0x004_0000]),
        ("personality READ_IMPLIES_EXEC", libc::SYS_personality, &[0x040_0000]),
        ("personality 32-bit", libc::SYS_personality, &[8]),
        ("process_madvise", libc::SYS_process_madvise, &[usize::MAX, 0, 0, 4, 0]),
        ("process_mrelease", 448, &[usize::MAX, 0]),
        ("pidfd_getfd", libc::SYS_pidfd_getfd, &[usize::MAX, 0, 0]),
        ("memfd_secret", 447, &[0]),
        ("kcmp", libc::SYS_kcmp, &[own_pid, 1, 2, 0, 0]),
        ("fanotify_init", libc::SYS_fanotify_init, &[0, 0]),
        ("vhangup", libc::SYS_vhangup, &[]),
        ("nfsservctl", libc::SYS_nfsservctl, &[]),
        ("_sysctl", libc::SYS__sysctl, &[0]),
        ("uselib", libc::SYS_uselib, &[at(&nowhere)]),
        ("ustat", libc::SYS_ustat, &[0, buffer]),
        ("sysfs", libc::SYS_sysfs, &[3, 0, 0]),
        ("syslog", libc::SYS_syslog, &[10, 0, 0]),
        ("number 1000", 1000, &[]),
        ("number 511", 511, &[]),
    ];
    for (name, number, arguments) in calls {
        // vhangup and personality would change this process.
        out_of_child(out, name, || call(*number, arguments));
    }
}

fn use_io_uring(out: &Out, _: &[String]) {
    let parameters = [0u64; 16];
    out.tried("io_uring_setup", call(libc::SYS_io_uring_setup, &[1, parameters.as_ptr() as usize]).map(own));
    out.tried("io_uring_enter", call(libc::SYS_io_uring_enter, &[usize::MAX, 0, 0, 0, 0]));
    out.tried("io_uring_register", call(libc::SYS_io_uring_register, &[usize::MAX, 0, 0, 0]));
}

/// The same calls through other ABIs: 32-bit, x32, numbers past the end.
fn foreign_conventions(out: &Out, _: &[String]) {
    let end = in_child(|| {
        let answer: i64;
        // SAFETY: the 32-bit call 20 is getpid: it takes nothing and changes nothing but the answer's register.
        unsafe {
            std::arch::asm!("int 0x80", inlateout("rax") 20i64 => answer, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
        }
        i32::from(answer > 0) * 100
    });
    match end {
        ChildEnd::Signal { number, .. } => out.say(
            "int 0x80",
            AttemptOutcome::Killed,
            if number == libc::SIGSYS { "SIGSYS" } else { "another signal" },
        ),
        ChildEnd::Code(100) => out.say("int 0x80", AttemptOutcome::Allowed, ""),
        ChildEnd::Code(_) | ChildEnd::Unborn(_) => out.say("int 0x80", AttemptOutcome::Refused, ""),
    }
    for (member, number) in
        [("x32 getpid", 39), ("x32 unshare", libc::SYS_unshare), ("x32 ptrace", 521), ("x32 execve", 520)]
    {
        out_of_child(out, member, || call(0x4000_0000 | number, &[]));
    }
    out_of_child(out, "number with high bits", || call(libc::SYS_unshare | 1 << 31, &[libc::CLONE_NEWUSER as usize]));
}

fn spoof_supervisor(out: &Out, _: &[String]) {
    // A filter that allows everything, with a listener that would answer for refused calls.
    let allow = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
    let program = libc::sock_fprog { len: 1, filter: (&raw const allow).cast_mut() };
    let at_program = &raw const program as usize;
    for (member, flags) in
        [("listener", 8usize), ("listener and thread sync", 8 | 1 | 16), ("listener, killable", 8 | 32), ("log", 2)]
    {
        out_of_child(out, member, || call(libc::SYS_seccomp, &[1, flags, at_program]));
    }
    // A process may add filters to itself: the strictest answer wins, so this relaxes nothing.
    let end = in_child(|| {
        unheeded(call(libc::SYS_seccomp, &[1, 0, at_program]));
        call(libc::SYS_unshare, &[libc::CLONE_NEWUSER as usize])
            .map_or_else(|error| error.raw_os_error().unwrap_or(255), |_| 0)
    });
    let detail = if let ChildEnd::Code(number) = end { errno_name(number) } else { "" };
    out.examined(
        "an allowing filter softens nothing",
        matches!(end, ChildEnd::Code(libc::EPERM | libc::ENOSYS)),
        detail,
    );
    let prctl = |option: i32, argument: usize| call(libc::SYS_prctl, &[option as usize, argument, 0x1000, 0, 0]);
    for (member, argument) in
        [("start of code", 1usize), ("arguments", 8), ("environment", 10), ("executable", 13), ("map", 14)]
    {
        out.tried(&format!("PR_SET_MM {member}"), prctl(libc::PR_SET_MM, argument));
    }
    out.tried("PR_CAPBSET_DROP", prctl(libc::PR_CAPBSET_DROP, 0));
    out.tried("PR_SET_SECCOMP off", prctl(libc::PR_SET_SECCOMP, 0));
}

fn set_names_and_clocks(out: &Out, _: &[String]) {
    // Each is set to its current value, which is harmless if it works.
    for (member, number) in [("sethostname", libc::SYS_sethostname), ("setdomainname", libc::SYS_setdomainname)] {
        let name = fs::read_to_string(format!("/proc/sys/kernel/{}", &member[3..])).unwrap_or_default();
        let name = path(name.trim());
        out.tried(member, call(number, &[at(&name), name.as_bytes().len()]));
    }
    let mut now = [0i64; 2];
    unheeded(call(libc::SYS_gettimeofday, &[now.as_mut_ptr() as usize, 0]));
    out.tried("settimeofday", call(libc::SYS_settimeofday, &[now.as_ptr() as usize, 0]));
    let zone = [0i32; 2];
    out.tried("settimeofday zone", call(libc::SYS_settimeofday, &[0, zone.as_ptr() as usize]));
    unheeded(call(libc::SYS_clock_gettime, &[0, now.as_mut_ptr() as usize]));
    out.tried("clock_settime", call(libc::SYS_clock_settime, &[0, now.as_ptr() as usize]));
    let mut adjustment = [0u64; 32];
    // ADJ_OFFSET_SINGLESHOT with an offset of zero.
    adjustment[0] = 0x8001;
    out.tried("adjtimex", call(libc::SYS_adjtimex, &[adjustment.as_mut_ptr() as usize]));
    out.tried("clock_adjtime", call(libc::SYS_clock_adjtime, &[0, adjustment.as_mut_ptr() as usize]));
    out.tried("/dev/rtc0", fs::File::open("/dev/rtc0"));
}

fn see_host_ipc(out: &Out, _: &[String]) {
    for table in ["shm", "sem", "msg"] {
        let file = format!("/proc/sysvipc/{table}");
        match fs::read_to_string(&file) {
            Ok(text) => out.examined(&file, text.lines().count() == 1, "only a heading"),
            Err(error) => {
                out.tried::<()>(&file, Err(error));
            }
        }
    }
    out.examined("/dev/shm is empty", fs::read_dir("/dev/shm").is_ok_and(|mut entries| entries.next().is_none()), "");
    out.tried("/dev/mqueue", fs::read_dir("/dev/mqueue"));
    let shared = call(libc::SYS_shmget, &[0x5A66_A700, 4096, (libc::IPC_CREAT | libc::IPC_EXCL) as usize | 0o600]);
    // If these turn out to be the host's, nothing is left there.
    if let Ok(id) = &shared {
        unheeded(call(libc::SYS_shmctl, &[*id, libc::IPC_RMID as usize, 0]));
    }
    out.tried("own shared memory", shared);
    let name = path("saggar-probe");
    out.tried(
        "own message queue",
        call(libc::SYS_mq_open, &[at(&name), (libc::O_CREAT | libc::O_RDWR | libc::O_EXCL) as usize, 0o600, 0])
            .map(own),
    );
    unheeded(call(libc::SYS_mq_unlink, &[at(&name)]));
}

/// Makes more refused calls than are reported.
fn flood_denials(out: &Out, arguments: &[String]) {
    let count: usize = arguments.first().and_then(|text| text.parse().ok()).unwrap_or(3000);
    let start = std::time::Instant::now();
    let refused = (0..count).filter(|_| call(libc::SYS_unshare, &[libc::CLONE_NEWUSER as usize]).is_err()).count();
    out.examined("every call is refused", refused == count, &refused.to_string());
    // Reporting each would keep the host busy, so past about the first hundred each call has to wait.
    let paced = std::time::Duration::from_millis((count as u64).saturating_sub(250));
    out.examined("calls are paced", start.elapsed() >= paced, "");
}

/// As many refused calls as are answered at once, a few more, and then nothing.
fn sleep_after_refusals(out: &Out, _: &[String]) {
    let refused = (0..270).filter(|_| call(libc::SYS_unshare, &[libc::CLONE_NEWUSER as usize]).is_err()).count();
    out.examined("every call is refused", refused == 270, &refused.to_string());
    (0..3).for_each(|_| pause_ms(999));
}
