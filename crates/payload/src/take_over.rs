//! Continuing as another program without executing it: its segments are mapped, the kernel's note about the program is corrected, and the
//! processor goes to its entry with the stack as the kernel left it.
//!
//! ```text
//!  one thread? ─▶ initial stack found ─▶ segments mapped ─▶ signals reset ─▶ note corrected ─▶ entry
//! ```
//! Up to "segments mapped" every failure leaves the process as it was. What exec would do is done here as far as it matters: handlers go back to
//! their defaults, arguments, environment and descriptors stay. The old program stays mapped, and nothing of it runs again.
//!
//! The new program gets its place from the kernel, which puts mappings at random addresses, and within that from a draw of its own; so it is
//! where it can't be guessed, as if the kernel had loaded it. Its start code relocates it, sets up its thread-local storage and everything else anew.

use std::convert::Infallible;
use std::io;
use std::ptr::null_mut;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::image::{HEADER_ENTRY_LEN, Image, PAGE, Segment};
use crate::pack::Payload;

/// Why another program could not be continued as. The process is as it was.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    #[error("another thread runs, or this is not the first one")]
    Threads,
    #[error("the stack is not as the kernel made it")]
    Stack,
    #[error("its segments can't be mapped")]
    Map(#[source] io::Error),
}

impl Payload {
    /// Gives the process to the payload: its `main` sees the arguments, the environment and the descriptors of this one. Has to be called by the
    /// only thread, before anything has changed the environment.
    pub fn take_over(self) -> Result<Infallible, TakeOverError> {
        if !is_alone() {
            return Err(TakeOverError::Threads);
        }
        let stack = InitialStack::find().ok_or(TakeOverError::Stack)?;
        let mapped = Mapped::new(&self).map_err(|errno| TakeOverError::Map(errno.into()))?;
        let Self { file, image, .. } = self;
        drop(file);
        reset_signals();
        stack.describe(&image, mapped.base);
        let entry = mapped.base + image.entry as usize;
        drop(image);
        stack.enter(entry)
    }
}

/// Whether this is the first and only thread. Frames of the first thread are overwritten, and others may hold on to them.
fn is_alone() -> bool {
    let is_first = rustix::thread::gettid() == rustix::process::getpid();
    is_first && std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1)
}

/// A program's segments in memory.
struct Mapped {
    base: usize,
}

impl Mapped {
    fn new(payload: &Payload) -> rustix::io::Result<Self> {
        let span = payload.image.span as usize;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no address is asked for, so nothing that is mapped changes.
        let reserved = unsafe { mmap_anonymous(null_mut(), span + HUGE_PAGE, ProtFlags::empty(), flags) }?;
        let mapped = random_page().and_then(|page| {
            let mapped = Self { base: reserved.addr() + page };
            payload.image.segments.iter().try_for_each(|segment| mapped.put(payload, segment)).map(|()| mapped)
        });
        if mapped.is_err() {
            // SAFETY: the range was reserved above, and nothing refers to it. If it stays, it harms nobody.
            let _ = unsafe { munmap(reserved, span + HUGE_PAGE) };
        }
        mapped
    }

    fn put(&self, payload: &Payload, segment: &Segment) -> rustix::io::Result<()> {
        let rights = rights(segment);
        let begin = self.base + segment.address as usize;
        let file_end = begin + segment.file_len as usize;
        let page = begin - begin % PAGE as usize;
        let mapped_end = if segment.file_len == 0 { page } else { file_end.next_multiple_of(PAGE as usize) };
        if segment.file_len > 0 {
            let offset = payload.offset + segment.offset - segment.offset % PAGE;
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            let place = std::ptr::without_provenance_mut(page);
            // SAFETY: the range is within what `new` reserved (the image's span, from within the first huge page, covers each segment), and nothing else is in it: segments share
            // no page. Nobody can write the file: it is the one that is executed, which the kernel refuses, or one of the same build.
            unsafe { mmap(place, mapped_end - page, rights, flags, &payload.file, offset) }?;
        }
        let memory_end = (begin + segment.memory_len as usize).next_multiple_of(PAGE as usize);
        if segment.memory_len > segment.file_len && mapped_end > file_end {
            // SAFETY: these are the last bytes of the page that was just mapped; the image allows bytes beyond the file's only in a writable segment.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(file_end).write_bytes(0, mapped_end - file_end) };
        }
        if memory_end > mapped_end {
            let place = std::ptr::without_provenance_mut(mapped_end);
            // SAFETY: as for the file's part.
            unsafe { mmap_anonymous(place, memory_end - mapped_end, rights, MapFlags::PRIVATE | MapFlags::FIXED) }?;
        }
        Ok(())
    }
}

/// The kernel puts a large mapping at a multiple of this, which takes 9 bits from the 28 that it draws.
const HUGE_PAGE: usize = 2 << 20;

/// How far into a huge page the program begins: those 9 bits.
fn random_page() -> rustix::io::Result<usize> {
    let mut drawn = [0; size_of::<u16>()];
    // The kernel's random numbers are ready before any program like this one starts, and so short a request is answered whole.
    rustix::rand::getrandom(&mut drawn, rustix::rand::GetRandomFlags::empty())?;
    Ok(usize::from(u16::from_ne_bytes(drawn)) * PAGE as usize % HUGE_PAGE)
}

fn rights(segment: &Segment) -> ProtFlags {
    let mut rights = ProtFlags::empty();
    rights.set(ProtFlags::READ, segment.is_readable());
    rights.set(ProtFlags::WRITE, segment.is_writable());
    rights.set(ProtFlags::EXEC, segment.is_executable());
    rights
}

/// As exec does: what was caught isn't any more. Handlers of the old program would find the thread-local storage of the new one.
fn reset_signals() {
    const LAST_SIGNAL: i32 = 64;
    for signal in 1..=LAST_SIGNAL {
        // SAFETY: zero is a valid value of each field: the default action, no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: both are valid or null; a number that has no signal is refused.
        let is_known = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) } == 0;
        if is_known && action.sa_sigaction != libc::SIG_IGN && action.sa_sigaction != libc::SIG_DFL {
            action.sa_sigaction = libc::SIG_DFL;
            action.sa_flags = 0;
            // SAFETY: as above; the default action needs no code of ours.
            unsafe { libc::sigaction(signal, &raw const action, null_mut()) };
        }
    }
    let none = libc::stack_t { ss_sp: null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: without a stack of their own handlers use the ordinary one; there are no handlers.
    unsafe { libc::sigaltstack(&raw const none, null_mut()) };
}

/// What the kernel put on the stack: the count of arguments, the arguments, the environment, and its note about the program (the auxiliary vector).
struct InitialStack {
    count: *mut usize,
    note: *mut [usize; 2],
}

/// Entries of the note that are about the program.
const ABOUT_PROGRAM: [usize; 5] = [
    libc::AT_PHDR as usize,
    libc::AT_PHENT as usize,
    libc::AT_PHNUM as usize,
    libc::AT_BASE as usize,
    libc::AT_ENTRY as usize,
];

impl InitialStack {
    /// Finds it from the environment's first address, which is in its middle.
    fn find() -> Option<Self> {
        unsafe extern "C" {
            static environ: *mut usize;
        }
        // SAFETY: the C library sets it before main, and this thread is the only one.
        let environment = unsafe { environ };
        let count = std::env::args_os().len();
        let here = std::ptr::from_ref(&count).addr();
        // SAFETY: only a number is read.
        let name = unsafe { libc::getauxval(libc::AT_EXECFN) } as usize;
        // The kernel puts the program's name last on the stack. An environment that was changed is elsewhere.
        if !(here..name).contains(&environment.addr()) {
            return None;
        }
        // SAFETY: between our frame and the end of the stack everything is mapped and ours. The kernel has put the arguments and their count
        // before the environment, the note behind it, and a zero after each; the note ends with one too.
        unsafe {
            let first = environment.sub(count + 2);
            if first.read() != count || environment.sub(1).read() != 0 {
                return None;
            }
            let mut place = environment;
            while place.read() != 0 {
                place = place.add(1);
            }
            let stack = Self { count: first, note: place.add(1).cast() };
            let has = |kind: &usize| stack.entries().any(|entry| entry.read()[0] == *kind);
            ABOUT_PROGRAM.iter().all(has).then_some(stack)
        }
    }

    fn entries(&self) -> impl Iterator<Item = *mut [usize; 2]> {
        let end = libc::AT_NULL as usize;
        // SAFETY: the note is an array that ends with an entry of kind zero, and no entry behind that one is looked at.
        std::iter::successors(Some(self.note), |entry| Some(unsafe { entry.add(1) }))
            .take_while(move |entry| unsafe { entry.read() }[0] != end)
    }

    /// Corrects the note: where the program's headers are, and where it begins.
    fn describe(&self, image: &Image, base: usize) {
        for entry in self.entries() {
            // SAFETY: `entries` gives the note's own entries; they are on our stack, and no one else reads them now.
            let [kind, value] = unsafe { &mut *entry };
            *value = match *kind as libc::c_ulong {
                libc::AT_PHDR => base + image.headers as usize,
                libc::AT_PHENT => HEADER_ENTRY_LEN as usize,
                libc::AT_PHNUM => image.headers_count as usize,
                // There is no interpreter.
                libc::AT_BASE => 0,
                libc::AT_ENTRY => base + image.entry as usize,
                _ => continue,
            };
        }
    }

    /// Goes to the entry as the kernel does: the stack begins with the count of arguments, and no function is to be called at exit.
    fn enter(&self, entry: usize) -> ! {
        // SAFETY: the entry is in an executable segment of a program that was mapped whole. It takes nothing from us but the stack, which is
        // as the kernel made it; our frames below are given up, and this is the only thread.
        unsafe {
            std::arch::asm!(
                "mov rsp, {stack}",
                "xor edx, edx",
                "xor ebp, ebp",
                "jmp {entry}",
                stack = in(reg) self.count,
                entry = in(reg) entry,
                options(noreturn),
            )
        }
    }
}
