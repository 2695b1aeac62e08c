//! Attempts to allocate memory of every kind. Every loop has a bound well above the limits of the cases, so that a
//! limit that doesn't hold shows without doing harm.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Attempt;
use crate::out::{AttemptOutcome, Out};
use crate::resources::number;
use crate::sys::{ChildEnd, at, call, errno_name, in_child, own, path, unheeded};

pub const ATTEMPTS: &[Attempt] = &[("eat-memory", eat_memory), ("lock-memory", lock_memory)];

/// Allocates this many bytes.
type Eat = fn(usize) -> io::Result<()>;

/// Allocates memory in one way after the other, each in a child and each up to a bound in MiB, given the limit in MiB.
/// Being killed is the expected result. An error counts as `held` only if it came after some allocations and before
/// much more than the limit: an immediate error shows nothing.
fn eat_memory(out: &Out, arguments: &[String]) {
    let (most, limit) = (number(arguments, 0) << 20, number(arguments, 1) << 20);
    let Ok(counter) = map(4096, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1) else {
        return out.examined("a page to count on", false, "");
    };
    COUNTER.store(counter, Ordering::Relaxed);
    let ways: &[(&str, Eat)] = &[
        ("anonymous", eat_anonymous),
        ("memfd", eat_memfd),
        ("shared anonymous", eat_shared),
        ("page tables", eat_page_tables),
        ("pipe buffers", eat_pipes),
        ("socket buffers", eat_sockets),
        ("TCP buffers", eat_connections),
        ("UDP buffers", eat_datagrams),
        ("/dev/shm", |most| eat_file("/dev/shm/eaten", most)),
        ("/tmp", |most| eat_file("/tmp/eaten", most)),
    ];
    for (member, way) in ways.iter().filter(|(name, _)| arguments.iter().skip(2).any(|asked| asked == name)) {
        took_anew();
        let end = in_child(|| {
            // The kernel kills the largest process first, and that should be this one: files and buffers count for no
            // process.
            let ballast = eat_anonymous(BALLAST);
            took_anew();
            ballast.and_then(|()| way(most)).map_or_else(|error| error.raw_os_error().unwrap_or(255), |()| 0)
        });
        // Private storage stays charged until it is removed.
        unheeded(fs::remove_file("/dev/shm/eaten"));
        unheeded(fs::remove_file("/tmp/eaten"));
        match end {
            ChildEnd::Code(0) => out.examined(member, false, "all of it was given"),
            _ if taken() > limit + limit / 2 => {
                out.examined(member, false, &format!("{} MiB were given, and then no more", taken() >> 20));
            }
            ChildEnd::Signal { number: libc::SIGKILL, .. } => out.examined(member, true, "killed"),
            ChildEnd::Code(number) | ChildEnd::Unborn(number) if taken() < LITTLE => {
                out.examined(member, false, &format!("not tried: {} at once", errno_name(number)));
            }
            ChildEnd::Code(number) | ChildEnd::Unborn(number) => out.examined(member, true, errno_name(number)),
            ChildEnd::Signal { number, .. } => out.say(member, AttemptOutcome::Killed, &format!("signal {number}")),
        }
    }
}

/// Less than this says nothing about a limit.
const LITTLE: usize = 1 << 20;

/// The address of a page shared with children: it counts what was allocated, even by a child that was killed.
static COUNTER: AtomicUsize = AtomicUsize::new(0);

fn counter() -> Option<&'static AtomicUsize> {
    let page = COUNTER.load(Ordering::Relaxed);
    // SAFETY: null, or a page of zeroes that stays mapped and that only this counter is in.
    unsafe { (page as *const AtomicUsize).as_ref() }
}

fn took(bytes: usize) {
    // Other attempts have no counter.
    counter().into_iter().for_each(|counter| {
        counter.fetch_add(bytes, Ordering::Relaxed);
    });
}

fn took_anew() {
    counter().into_iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
}

fn taken() -> usize {
    counter().map_or(0, |counter| counter.load(Ordering::Relaxed))
}

/// Enough bytes to make a process the largest of its sandbox.
const BALLAST: usize = 16 << 20;

fn map(length: usize, flags: i32, fd: i32) -> io::Result<usize> {
    call(libc::SYS_mmap, &[0, length, (libc::PROT_READ | libc::PROT_WRITE) as usize, flags as usize, fd as usize, 0])
}

fn touch(start: usize, length: usize, step: usize) {
    for offset in (0..length).step_by(step) {
        // SAFETY: within a mapping of `length` writable bytes that this process just made and keeps.
        unsafe { ((start + offset) as *mut u8).write_volatile(1) };
        took(4096);
    }
}

fn eat_anonymous(most: usize) -> io::Result<()> {
    touch(map(most, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?, most, 4096);
    Ok(())
}

fn eat_shared(most: usize) -> io::Result<()> {
    touch(map(most, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)?, most, 4096);
    Ok(())
}

fn eat_memfd(most: usize) -> io::Result<()> {
    let name = path("eaten");
    let file = own(call(libc::SYS_memfd_create, &[at(&name), 0])?);
    fill(&mut File::from(file), most)
}

/// Writes this many bytes to a file, or until it is full.
pub fn eat_file(name: &str, most: usize) -> io::Result<()> {
    fill(&mut File::create(name)?, most)
}

fn fill(file: &mut File, most: usize) -> io::Result<()> {
    let piece = vec![1u8; 1 << 16];
    for _ in 0..most / piece.len() {
        file.write_all(&piece)?;
        took(piece.len());
    }
    Ok(())
}

/// One page in every two megabytes: the page tables take as much again.
fn eat_page_tables(most: usize) -> io::Result<()> {
    let length = most / 8192 * (2 << 20);
    touch(map(length, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)?, length, 2 << 20);
    Ok(())
}

fn eat_pipes(most: usize) -> io::Result<()> {
    let mut kept: Vec<OwnedFd> = Vec::new();
    let piece = vec![1u8; 1 << 16];
    let mut written = 0;
    while written < most {
        let mut ends = [0i32; 2];
        call(libc::SYS_pipe2, &[ends.as_mut_ptr() as usize, libc::O_NONBLOCK as usize])?;
        let [reader, writer] = ends.map(|end| own(end as usize));
        // A larger buffer may be refused; then the default one is filled.
        unheeded(call(libc::SYS_fcntl, &[writer.as_raw_fd() as usize, libc::F_SETPIPE_SZ as usize, 1 << 20]));
        while let Ok(count) =
            call(libc::SYS_write, &[writer.as_raw_fd() as usize, piece.as_ptr() as usize, piece.len()])
        {
            took(count);
            written += count;
        }
        kept.extend([reader, writer]);
    }
    Ok(())
}

fn eat_sockets(most: usize) -> io::Result<()> {
    let mut kept = Vec::new();
    let piece = vec![1u8; 1 << 16];
    let mut written = 0;
    while written < most {
        let (here, there) = std::os::unix::net::UnixStream::pair()?;
        here.set_nonblocking(true)?;
        while let Ok(count) = (&here).write(&piece) {
            took(count);
            written += count;
        }
        kept.push((here, there));
    }
    Ok(())
}

fn eat_connections(most: usize) -> io::Result<()> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let piece = vec![1u8; 1 << 16];
    let (mut kept, mut written) = (Vec::new(), 0);
    while written < most {
        let here = std::net::TcpStream::connect(address)?;
        let there = listener.accept()?.0;
        here.set_nonblocking(true)?;
        let before = written;
        while let Ok(count) = (&here).write(&piece) {
            took(count);
            written += count;
        }
        if written == before {
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        kept.push((here, there));
    }
    Ok(())
}

/// Fills the queues of enough sockets for half of it, and counts what arrived: sending a datagram never fails for lack
/// of room.
fn eat_datagrams(most: usize) -> io::Result<()> {
    let sender = std::net::UdpSocket::bind("127.0.0.1:0")?;
    let mut piece = vec![1u8; 60_000];
    let (mut kept, mut room) = (Vec::new(), 0);
    let mut end = io::Error::from_raw_os_error(libc::ENOBUFS);
    while room < most / 2 {
        let receiver = match std::net::UdpSocket::bind("127.0.0.1:0") {
            Ok(receiver) => receiver,
            Err(error) => {
                end = error;
                break;
            }
        };
        let (asked, mut size, mut length) = (4i32 << 20, 0i32, 4u32);
        let (fd, level, option) = (receiver.as_raw_fd() as usize, libc::SOL_SOCKET as usize, libc::SO_RCVBUF as usize);
        call(libc::SYS_setsockopt, &[fd, level, option, &raw const asked as usize, 4])?;
        let (place, length) = (&raw mut size as usize, &raw mut length as usize);
        call(libc::SYS_getsockopt, &[fd, level, option, place, length])?;
        for _ in 0..size as usize / piece.len() + 1 {
            // A full queue drops it silently, and a full sandbox may return an error.
            unheeded(sender.send_to(&piece, receiver.local_addr()?));
        }
        room += (size as usize).max(1 << 16);
        receiver.set_nonblocking(true)?;
        if receiver.peek(&mut piece).is_err() {
            // None arrived: the memory is used up, and trying again only takes time.
            break;
        }
        kept.push(receiver);
    }
    for receiver in &kept {
        while let Ok(count) = receiver.recv(&mut piece) {
            took(count);
        }
    }
    Err(end)
}

fn lock_memory(out: &Out, _: &[String]) {
    // Both exceed the sandbox's limit; the second also exceeds the kernel's default.
    for (member, length) in [("mlock of 2 MiB", 2 << 20), ("mlock of 64 MiB", 64 << 20)] {
        let locked = map(length, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
            .and_then(|start| call(libc::SYS_mlock, &[start, length]));
        out.tried(member, locked);
    }
    let length = 64 << 20;
    out.tried("mapping locked", map(length, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_LOCKED, -1));
    out.tried(
        "shared memory of huge pages",
        call(libc::SYS_shmget, &[0x5A66_A702, 2 << 20, libc::IPC_CREAT as usize | 0o4000 | 0o600]),
    );
    let more = [u64::MAX; 2];
    out.tried(
        "raise RLIMIT_MEMLOCK",
        call(libc::SYS_prlimit64, &[0, libc::RLIMIT_MEMLOCK as usize, more.as_ptr() as usize, 0]),
    );
}
