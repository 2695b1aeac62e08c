//! Attempts to exhaust shared resources. Every loop has a bound well above the limits of the cases, so that a limit
//! that doesn't hold shows without doing harm.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::Attempt;
use crate::memory::eat_file;
use crate::out::{AttemptOutcome, Out, until_told};
use crate::sys::{ChildEnd, at, call, errno_name, in_child, kill, open, own, path, pause_ms, start, unheeded, wait};

pub const ATTEMPTS: &[Attempt] = &[
    ("fork-many", fork_many),
    ("thread-many", thread_many),
    ("burn-cpu", burn_cpu),
    ("raise-priority", raise_priority),
    ("fill-disk", fill_disk),
    ("fill-inodes", fill_inodes),
    ("crowd-directory", crowd_directory),
    ("sync-storm", sync_storm),
    ("exhaust-descriptors", exhaust_descriptors),
    ("exhaust-queues", exhaust_queues),
    ("hold-counters", hold_counters),
    ("flood-output", flood_output),
];

/// Opens one more.
type Open = fn() -> io::Result<Vec<OwnedFd>>;

pub fn number(arguments: &[String], index: usize) -> usize {
    arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(100)
}

/// `held` if the kernel refused before `most` was reached.
fn ran_into(out: &Out, member: &str, most: usize, reached: usize, error: Option<io::Error>) {
    let name = error.as_ref().and_then(io::Error::raw_os_error).map_or("", errno_name);
    out.examined(member, reached < most, &format!("{name} after {reached}"));
}

fn fork_many(out: &Out, arguments: &[String]) {
    let most = number(arguments, 0);
    let (mut children, mut error) = (Vec::new(), None);
    while children.len() < most {
        match start(|| {
            pause_ms(999);
            pause_ms(999);
            0
        }) {
            Ok(pid) => children.push(pid),
            Err(refused) => {
                error = Some(refused);
                break;
            }
        }
    }
    let reached = children.len();
    for pid in &children {
        // Our own children.
        unheeded(kill(*pid, libc::SIGKILL));
    }
    children.into_iter().for_each(|pid| {
        wait(pid);
    });
    ran_into(out, "processes", most, reached, error);
    out.examined("one more process afterwards", in_child(|| 0) == ChildEnd::Code(0), "");
}

fn thread_many(out: &Out, arguments: &[String]) {
    let most = number(arguments, 0);
    // In a child, whose end also ends the threads.
    let end = in_child(|| {
        for _ in 0..most {
            let made = std::thread::Builder::new().stack_size(32 << 10).spawn(|| pause_ms(999));
            if made.is_err() {
                return 1;
            }
        }
        0
    });
    out.examined("threads", end == ChildEnd::Code(1), "refused before the bound");
}

/// Takes as much as possible of what the kernel counts per user, and keeps it until told to end: other users may then
/// find less.
fn hold_counters(out: &Out, _: &[String]) {
    const INSTANCES: usize = 4000;
    const SIGNALS: usize = 3000;
    let (mut kept, waiting) = (Vec::new(), 1u64 << 35);
    while kept.len() < INSTANCES {
        match call(libc::SYS_inotify_init1, &[0]) {
            Ok(instance) => kept.push(own(instance)),
            Err(_) => break,
        }
    }
    unheeded(call(libc::SYS_rt_sigprocmask, &[0, &raw const waiting as usize, 0, 8]));
    let mut about = [0u32; 32];
    about[0] = 36;
    about[2] = -1i32 as u32;
    let own_pid = std::process::id() as usize;
    let queued = (0..SIGNALS)
        .take_while(|_| call(libc::SYS_rt_sigqueueinfo, &[own_pid, 36, about.as_ptr() as usize]).is_ok())
        .count();
    out.say("taken", AttemptOutcome::Allowed, &format!("{} instances, {queued} signals", kept.len()));
    until_told(out);
}

/// Signals that are never delivered, and queues that are never read.
fn exhaust_queues(out: &Out, _: &[String]) {
    const SIGNALS: usize = 6000;
    // More than a sandbox's limit, and within the kernel's default: nine of the usual size.
    const QUEUES: usize = 8;
    let end = in_child(|| {
        let own = std::process::id() as usize;
        let waiting = 1u64 << 35;
        // Blocked, so that each stays queued: signals above 32 are never merged.
        unheeded(call(libc::SYS_rt_sigprocmask, &[0, &raw const waiting as usize, 0, 8]));
        let mut about = [0u32; 32];
        about[0] = 36;
        about[2] = -1i32 as u32;
        let refused =
            (0..SIGNALS).any(|_| call(libc::SYS_rt_sigqueueinfo, &[own, 36, about.as_ptr() as usize]).is_err());
        i32::from(refused)
    });
    out.examined("signals have an end", matches!(end, ChildEnd::Code(1)), "");
    let mut kept = Vec::new();
    let names: Vec<_> = (0..QUEUES).map(|number| path(&format!("saggar-queue-{number}"))).collect();
    for name in &names {
        let flags = (libc::O_CREAT | libc::O_RDWR | libc::O_EXCL) as usize;
        kept.extend(call(libc::SYS_mq_open, &[at(name), flags, 0o600, 0]).map(own));
    }
    out.examined("message queues have an end", kept.len() < QUEUES, &kept.len().to_string());
    for name in &names {
        unheeded(call(libc::SYS_mq_unlink, &[at(name)]));
    }
}

/// Starts enough busy children to get their share even on a busy host. Their CPU time is compared with the elapsed
/// time, which is longer the busier the host is. The argument is the number of thousandths of one CPU that is too much.
fn burn_cpu(out: &Out, arguments: &[String]) {
    let most_thousandths = number(arguments, 0) as u128;
    let begin = Instant::now();
    let children: Vec<i32> = (0..6)
        .filter_map(|_| {
            start(|| {
                let end = Instant::now() + Duration::from_millis(600);
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                0
            })
            .ok()
        })
        .collect();
    children.into_iter().for_each(|pid| {
        wait(pid);
    });
    let mut usage = [0i64; 18];
    let children_only = -1isize as usize;
    unheeded(call(libc::SYS_getrusage, &[children_only, usage.as_mut_ptr() as usize]));
    let used_us = (usage[0] + usage[2]) * 1_000_000 + usage[1] + usage[3];
    let thousandths = used_us as u128 * 1000 / begin.elapsed().as_micros().max(1);
    out.examined("processor time", thousandths < most_thousandths, "a share of one processor");
}

fn raise_priority(out: &Out, _: &[String]) {
    let priority = 10i32;
    for (member, policy) in [("SCHED_FIFO", 1usize), ("SCHED_RR", 2)] {
        out.tried(member, call(libc::SYS_sched_setscheduler, &[0, policy, &raw const priority as usize]));
    }
    let deadline: [u64; 6] = [48 | 6 << 32, 0, 0, 10_000_000, 20_000_000, 20_000_000];
    out.tried("SCHED_DEADLINE", call(libc::SYS_sched_setattr, &[0, deadline.as_ptr() as usize, 0]));
    out.tried("nice -20", call(libc::SYS_setpriority, &[0, 0, -20isize as usize]));
    out.tried("real-time disk priority", call(libc::SYS_ioprio_set, &[1, 0, 1 << 13]));
    out.tried("raise RLIMIT_RTPRIO", call(libc::SYS_prlimit64, &[0, 14, [99u64; 2].as_ptr() as usize, 0]));
}

fn fill_disk(out: &Out, arguments: &[String]) {
    let most = number(arguments, 0) << 20;
    for directory in ["/tmp", "/home/user", "/dev/shm"] {
        let name = format!("{directory}/filled");
        let end = eat_file(&name, most);
        let length = fs::metadata(&name).map_or(0, |metadata| metadata.len());
        out.examined(directory, end.is_err(), end.err().and_then(|error| error.raw_os_error()).map_or("", errno_name));
        out.examined(&format!("{directory} took less than the bound"), (length as usize) < most, "");
        if directory != "/dev/shm" {
            // The last file stays, so that the runtime finds the storage full.
            unheeded(fs::remove_file(&name));
        }
    }
    let end = open("/dev/shm/allocated", libc::O_RDWR | libc::O_CREAT, 0o600)
        .and_then(|file| call(libc::SYS_fallocate, &[file.as_raw_fd() as usize, 0, 0, most]));
    out.tried("fallocate", end);
    // The agent uses /tmp at the end.
    unheeded(eat_file("/tmp/last", most));
}

fn fill_inodes(out: &Out, arguments: &[String]) {
    let most = number(arguments, 0);
    let mut error = None;
    let made = (0..most)
        .take_while(|index| File::create(format!("/tmp/inode{index}")).map_err(|refused| error = Some(refused)).is_ok())
        .count();
    ran_into(out, "files", most, made, error);
}

fn crowd_directory(out: &Out, arguments: &[String]) {
    let most = number(arguments, 0);
    for directory in ["/tmp/crowd", "/workspace/crowd"] {
        let made = fs::create_dir(directory)
            .and_then(|()| (0..most).try_for_each(|index| File::create(format!("{directory}/{index}")).map(|_| ())));
        out.tried(directory, made);
    }
}

fn sync_storm(out: &Out, _: &[String]) {
    let synced = File::create("/tmp/synced").and_then(|mut file| {
        (0..500).try_for_each(|_| {
            file.write_all(b"x")?;
            file.sync_all()
        })
    });
    out.tried("private storage", synced);
    let synced = File::create("/workspace/synced").and_then(|mut file| {
        (0..20).try_for_each(|_| {
            file.write_all(b"x")?;
            file.sync_all()
        })
    });
    out.tried("workspace", synced);
}

fn exhaust_descriptors(out: &Out, arguments: &[String]) {
    let most = number(arguments, 0);
    let ways: &[(&str, Open)] = &[
        ("files", || Ok(vec![open("/dev/null", libc::O_RDONLY, 0)?])),
        ("pipes", || {
            let mut ends = [0i32; 2];
            call(libc::SYS_pipe2, &[ends.as_mut_ptr() as usize, 0])?;
            Ok(ends.map(|end| own(end as usize)).into())
        }),
        ("epoll", || Ok(vec![own(call(libc::SYS_epoll_create1, &[0])?)])),
        ("inotify", || Ok(vec![own(call(libc::SYS_inotify_init1, &[0])?)])),
        ("timerfd", || Ok(vec![own(call(libc::SYS_timerfd_create, &[1, 0])?)])),
        ("eventfd", || Ok(vec![own(call(libc::SYS_eventfd2, &[0, 0])?)])),
        ("terminals", || Ok(vec![open("/dev/ptmx", libc::O_RDWR | libc::O_NOCTTY, 0)?])),
        ("sockets", || {
            Ok(vec![own(call(libc::SYS_socket, &[libc::AF_UNIX as usize, libc::SOCK_STREAM as usize, 0])?)])
        }),
        ("memfd", || {
            let name = path("x");
            Ok(vec![own(call(libc::SYS_memfd_create, &[at(&name), 0])?)])
        }),
        ("pidfd", || Ok(vec![own(call(libc::SYS_pidfd_open, &[std::process::id() as usize, 0])?)])),
    ];
    for (member, way) in ways {
        let (mut kept, mut error) = (Vec::new(), None);
        while kept.len() < most {
            match way() {
                Ok(more) => kept.extend(more),
                Err(refused) => {
                    error = Some(refused);
                    break;
                }
            }
        }
        let reached = kept.len();
        drop(kept);
        let name = error.as_ref().and_then(io::Error::raw_os_error).map_or("", errno_name);
        out.examined(member, reached < most, name);
    }
    let more = [1u64 << 20; 2];
    out.tried(
        "raise RLIMIT_NOFILE",
        call(libc::SYS_prlimit64, &[0, libc::RLIMIT_NOFILE as usize, more.as_ptr() as usize, 0]),
    );
    let mut context = 0usize;
    let made = call(libc::SYS_io_setup, &[1, &raw mut context as usize]);
    unheeded(call(libc::SYS_io_destroy, &[context]));
    out.tried("asynchronous requests", made);
}

/// Writes this many MiB to stderr: long lines, NULs and bytes that aren't text.
fn flood_output(out: &Out, arguments: &[String]) {
    let most = number(arguments, 0);
    let piece: Vec<u8> = (0..1usize << 20).map(|index| [b'x', 0, 0xff, 0xfe, 0x1b][index % 5]).collect();
    let mut stderr = io::stderr().lock();
    let written = (0..most).try_for_each(|_| stderr.write_all(&piece));
    out.tried("written", written);
}
