//! Attempts on other processes, and on how this one ends.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};

use crate::Attempt;
use crate::out::{AttemptOutcome, Out, out_of_child};
use crate::sys::{ChildEnd, call, in_child, kill, open, own, pause_ms, start, unheeded, wait};

pub const ATTEMPTS: &[Attempt] = &[
    ("trace-others", trace_others),
    ("reach-into-others", reach_into_others),
    ("slow-down-agent", slow_down_agent),
    ("leave-marks", leave_marks),
    ("find-marks", find_marks),
    ("replace-programs", replace_programs),
    ("signal-others", signal_others),
    ("ignore-signals", ignore_signals),
    ("daemonize", daemonize),
    ("orphan-zombies", orphan_zombies),
    ("hang", hang),
    ("end", end),
];

fn sleeper() -> i32 {
    pause_ms(900);
    0
}

fn trace_others(out: &Out, _: &[String]) {
    let sibling = start(sleeper).unwrap_or(-1);
    for (who, pid) in [("the agent", 1), ("a sibling", sibling)] {
        if pid == std::process::id() as i32 {
            out.say(who, AttemptOutcome::Absent, "we are the first process");
            continue;
        }
        for (how, request) in [("attach to", libc::PTRACE_ATTACH), ("seize", libc::PTRACE_SEIZE)] {
            // In a child, whose end detaches it again: a PID 1 that stays stopped could not be ended by anything
            // inside.
            let trace = || call(libc::SYS_ptrace, &[request as usize, pid as usize, 0, 0]);
            out_of_child(out, &format!("{how} {who}"), trace);
            unheeded(kill(pid, libc::SIGCONT));
        }
    }
    let end = in_child(|| i32::from(call(libc::SYS_ptrace, &[libc::PTRACE_TRACEME as usize, 0, 0, 0]).is_ok()));
    out.examined("traceme is refused", end == ChildEnd::Code(0), "");
    // Our own child, in every runtime.
    unheeded(kill(sibling, libc::SIGKILL));
    wait(sibling);
}

fn reach_into_others(out: &Out, _: &[String]) {
    let sibling = start(sleeper).unwrap_or(-1);
    let mut bytes = [0u8; 16];
    let (local, remote) = ([bytes.as_mut_ptr() as usize, 16], [bytes.as_ptr() as usize, 16]);
    for (who, pid) in [("the agent", 1), ("a sibling", sibling)] {
        let pid = pid as usize;
        if pid == std::process::id() as usize {
            out.say(who, AttemptOutcome::Absent, "we are the first process");
            continue;
        }
        out.tried(
            &format!("process_vm_readv of {who}"),
            call(libc::SYS_process_vm_readv, &[pid, local.as_ptr() as usize, 1, remote.as_ptr() as usize, 1, 0]),
        );
        out.tried(
            &format!("process_vm_writev of {who}"),
            call(libc::SYS_process_vm_writev, &[pid, local.as_ptr() as usize, 1, remote.as_ptr() as usize, 1, 0]),
        );
        out.tried(&format!("kcmp with {who}"), call(libc::SYS_kcmp, &[std::process::id() as usize, pid, 2, 0, 0]));
        match call(libc::SYS_pidfd_open, &[pid, 0]).map(own) {
            Ok(pidfd) => {
                out.tried(
                    &format!("pidfd_getfd of {who}"),
                    call(libc::SYS_pidfd_getfd, &[pidfd.as_raw_fd() as usize, 3, 0]),
                );
            }
            Err(error) => {
                out.tried::<()>(&format!("pidfd_getfd of {who}"), Err(error));
            }
        }
        out.tried(&format!("/proc/PID/mem of {who} for writing"), open(&format!("/proc/{pid}/mem"), libc::O_RDWR, 0));
    }
    let mut before = [0u64; 2];
    let limit = libc::RLIMIT_NOFILE as usize;
    let asked = call(libc::SYS_prlimit64, &[1, limit, 0, before.as_mut_ptr() as usize]);
    out.tried_on_first("limits of the agent", asked);
    if std::process::id() != 1 {
        // Enough for the agent to keep working.
        let lower = [64, before[1].max(64)];
        let set = call(libc::SYS_prlimit64, &[1, limit, lower.as_ptr() as usize, 0]);
        if out.tried("lower limits of the agent", set).is_some() {
            // Restores the limit; if that fails, the sandbox is unusable anyway.
            unheeded(call(libc::SYS_prlimit64, &[1, limit, before.as_ptr() as usize, 0]));
        }
    }
    out.tried_on_first("/proc/1/mem", open("/proc/1/mem", libc::O_RDONLY, 0));
    // Our own child, in every runtime.
    unheeded(kill(sibling, libc::SIGKILL));
    wait(sibling);
}

const MARKS: &[&str] = &["/tmp/saggar-mark", "/home/user/saggar-mark", "/dev/shm/saggar-mark", "/var/tmp/saggar-mark2"];
const ABSTRACT: &str = "saggar-probe-mark";

/// Leaves a mark wherever possible, for [`find_marks`] in another sandbox to look for.
fn leave_marks(out: &Out, _: &[String]) {
    for mark in MARKS {
        out.tried(mark, fs::write(mark, "x"));
    }
    out.tried("shared memory", call(libc::SYS_shmget, &[0x5A66_A701, 4096, libc::IPC_CREAT as usize | 0o666]));
    let bound = SocketAddr::from_abstract_name(ABSTRACT).and_then(|address| UnixListener::bind_addr(&address));
    out.tried("abstract socket", bound);
}

fn find_marks(out: &Out, _: &[String]) {
    for mark in MARKS {
        out.tried(mark, fs::metadata(mark));
    }
    out.tried("shared memory", call(libc::SYS_shmget, &[0x5A66_A701, 0, 0]));
    let found = SocketAddr::from_abstract_name(ABSTRACT)
        .and_then(|address| std::os::unix::net::UnixStream::connect_addr(&address));
    out.tried("abstract socket", found);
    let foreign = (2..4096).filter(|pid| *pid != std::process::id() as i32 && kill(*pid, 0).is_ok()).count();
    out.examined("no process of another sandbox", foreign == 0, &foreign.to_string());
}

/// Programs that the runtime itself would start, if it started any in here.
fn replace_programs(out: &Out, _: &[String]) {
    for program in [
        "/bin/sh",
        "/usr/bin/tar",
        "/usr/bin/env",
        "/usr/bin/git",
        "/lib64/ld-linux-x86-64.so.2",
        "/etc/ld.so.preload",
        "/etc/ld.so.cache",
    ] {
        out.tried(program, open(program, libc::O_WRONLY | libc::O_CREAT, 0o755));
    }
    let search = std::env::var("PATH").unwrap_or_default();
    for directory in search.split(':') {
        let name = format!("{directory}/saggar-probe");
        if out.tried(&format!("in {directory}"), fs::write(&name, "x")).is_some() {
            // Remove the file if it could be created.
            unheeded(fs::remove_file(&name));
        }
    }
    out.tried_on_first("the agent's image", fs::read_link("/proc/1/exe"));
}

fn signal_others(out: &Out, _: &[String]) {
    // Signal 0 checks for permission and sends nothing.
    let own_pid = std::process::id() as i32;
    let reached = (2..70_000).filter(|pid| *pid != own_pid && kill(*pid, 0).is_ok()).count();
    out.examined("no process but ours can be signalled", reached == 0, &reached.to_string());
    out.tried("everyone at once", kill(-1, 0));
    let reached = (2..5000)
        .filter(|pid| *pid != own_pid && call(libc::SYS_tgkill, &[*pid as usize, *pid as usize, 0]).is_ok())
        .count();
    out.examined("nor by thread", reached == 0, &reached.to_string());
    // Only if PID 1 can't be the host's: we are its child, and our own pid is small.
    let parent = call(libc::SYS_getppid, &[]).unwrap_or(0);
    if parent == 1 && own_pid < 50 {
        for (member, signal) in [
            ("SIGKILL to the agent", libc::SIGKILL),
            ("SIGSTOP to the agent", libc::SIGSTOP),
            ("SIGTERM to the agent", libc::SIGTERM),
        ] {
            // Refused or ignored: what counts is that our parent is still the same.
            unheeded(kill(1, signal));
            pause_ms(20);
            out.examined(member, call(libc::SYS_getppid, &[]).is_ok_and(|parent| parent == 1), "");
        }
    } else {
        out.say("SIGKILL to the agent", AttemptOutcome::Absent, "PID 1 is not our parent");
    }
}

fn ignore(signals: &[i32]) {
    for signal in signals {
        // SAFETY: sets the disposition to "ignore", which runs no code.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

/// Waits for something that never happens, ignoring every signal that can be ignored. This program's alarm ends it at
/// the latest.
fn ignore_signals(out: &Out, _: &[String]) {
    ignore(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGPIPE]);
    out.say("ignoring", AttemptOutcome::Allowed, "");
    loop {
        pause_ms(900);
    }
}

/// A fully detached process that writes to the workspace for as long as it lives.
fn daemonize(out: &Out, _: &[String]) {
    let end = in_child(|| {
        unheeded(call(libc::SYS_setsid, &[]));
        // Doesn't use `start`, because it must not die with its parent. It ends by itself after ten seconds.
        // SAFETY: one thread; the child only writes a file and exits.
        match unsafe { libc::fork() } {
            0 => {
                crate::sys::set_alarm(10);
                ignore(&[libc::SIGTERM, libc::SIGHUP, libc::SIGINT]);
                loop {
                    // The workspace may be gone already.
                    unheeded(fs::write("/workspace/heartbeat", format!("{:?}", Instant::now())));
                    pause_ms(20);
                }
            }
            pid => i32::from(pid < 0),
        }
    });
    out.say("daemon", if end == ChildEnd::Code(0) { AttemptOutcome::Allowed } else { AttemptOutcome::Refused }, "");
    pause_ms(100);
}

fn orphan_zombies(out: &Out, _: &[String]) {
    for _ in 0..300 {
        // Each leaves a child that is never waited for.
        in_child(|| {
            unheeded(start(|| 0));
            0
        });
    }
    let deadline = Instant::now() + Duration::from_secs(3);
    let zombies = || (2..2000).filter(|pid| *pid != std::process::id() as i32 && kill(*pid, 0).is_ok()).count();
    while zombies() > 0 && Instant::now() < deadline {
        pause_ms(20);
    }
    out.examined("all are reaped", zombies() == 0, &zombies().to_string());
}

/// Hangs in one of several ways; the alarm ends it at the latest.
fn hang(out: &Out, arguments: &[String]) {
    let kind = arguments.first().map_or("sleep", String::as_str);
    out.say(kind, AttemptOutcome::Allowed, "");
    match kind {
        "busy" => loop {
            std::hint::spin_loop();
        },
        "stop" => {
            unheeded(kill(std::process::id() as i32, libc::SIGSTOP));
        }
        "stopped-child" => {
            let child = start(|| {
                unheeded(kill(std::process::id() as i32, libc::SIGSTOP));
                0
            });
            wait(child.unwrap_or(-1));
        }
        "vfork" => {
            // The kernel blocks the parent until the child, which stops itself, is gone.
            if let Ok(0) = call(libc::SYS_vfork, &[]) {
                loop {
                    pause_ms(900);
                }
            }
        }
        "read" => {
            let (mut pipe, mut byte) = ([0i32; 2], 0u8);
            unheeded(call(libc::SYS_pipe2, &[pipe.as_mut_ptr() as usize, 0]));
            unheeded(call(libc::SYS_read, &[pipe[0] as usize, &raw mut byte as usize, 1]));
        }
        _ => {}
    }
    loop {
        pause_ms(900);
    }
}

/// Ends as requested: `code N`, `signal N`, or by a call through another ABI.
fn end(_: &Out, arguments: &[String]) {
    let number = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(0);
    match arguments.first().map(String::as_str) {
        Some("code") => std::process::exit(number),
        Some("signal") => {
            // SAFETY: the default disposition runs no code.
            unsafe { libc::signal(number, libc::SIG_DFL) };
            unheeded(kill(std::process::id() as i32, number));
        }
        // SAFETY: the 32-bit call 20 is getpid: it takes nothing and changes only the answer's register.
        Some("filter") => unsafe {
            std::arch::asm!("int 0x80", inlateout("rax") 20i64 => _, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
        },
        _ => {}
    }
}

/// Sets each of the agent's priorities to its current value: if that is permitted, lowering it is too.
fn slow_down_agent(out: &Out, _: &[String]) {
    let priority = 0i32;
    let at_priority = &raw const priority as usize;
    let usual: [u64; 6] = [48, 0, 0, 0, 0, 0];
    let mut processors = [0u64; 128];
    unheeded(call(libc::SYS_sched_getaffinity, &[1, 1024, processors.as_mut_ptr() as usize]));
    // The kernel returns 20 for a nice value of 0.
    let nice = 20 - call(libc::SYS_getpriority, &[0, 1]).unwrap_or(20) as isize;
    for (member, number, arguments) in [
        ("sched_setscheduler", libc::SYS_sched_setscheduler, &[1, 0, at_priority][..]),
        ("sched_setparam", libc::SYS_sched_setparam, &[1, at_priority]),
        ("sched_setattr", libc::SYS_sched_setattr, &[1, usual.as_ptr() as usize, 0]),
        ("sched_setaffinity", libc::SYS_sched_setaffinity, &[1, 1024, processors.as_ptr() as usize]),
        ("setpriority", libc::SYS_setpriority, &[0, 1, nice as usize]),
        ("ioprio_set", libc::SYS_ioprio_set, &[1, 1, 0]),
        ("prlimit64", libc::SYS_prlimit64, &[1, libc::RLIMIT_NOFILE as usize, 0, 0]),
    ] {
        out.tried(member, call(number, arguments));
    }
}
