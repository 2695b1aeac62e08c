//! The sandbox's processes, as `/proc` shows them, and signals to exactly these.
//!
//! A snapshot of running processes is never complete: some start, end or change parents while it is taken. Callers
//! repeat it until nothing new is found.

use alloc::vec::Vec;
use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;

use super::names::Names;
use super::sys::{self, Errno, Fd};

/// More processes than any limit of a sandbox allows.
const PROCESSES_MAX: usize = 65_536;

/// Maximum length of a line of `/proc/PID/stat`.
const STAT_LEN: usize = 1024;

/// One process. Its start time tells it from a later one with the same pid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: libc::pid_t,
    pub(super) parent: libc::pid_t,
    started: u64,
    is_zombie: bool,
}

impl Process {
    pub(super) fn is_same(&self, other: &Process) -> bool {
        (self.pid, self.started) == (other.pid, other.started)
    }
}

/// The `/proc` directory, checked to be the kernel's.
pub(super) struct Proc(Fd);

impl Proc {
    pub(super) fn open() -> Result<Proc, Errno> {
        let directory = sys::open(c"/proc", libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW)?;
        let mut filesystem = MaybeUninit::<libc::statfs>::uninit();
        // SAFETY: fstatfs fills in the whole struct when it succeeds, and only then is it read.
        let kind = unsafe {
            sys::check(libc::fstatfs(directory.raw(), filesystem.as_mut_ptr()))?;
            filesystem.assume_init().f_type
        };
        // PROC_SUPER_MAGIC, whose type differs between C libraries.
        if kind == 0x9fa0 { Ok(Proc(directory)) } else { Err(Errno(libc::ENODEV)) }
    }

    /// All processes, in ascending order.
    pub(super) fn list(&self) -> Result<Vec<Process>, Errno> {
        let mut processes = Vec::new();
        let mut names = Names::new();
        while let Some((name, _)) = names.next(&self.0)? {
            if let Some(pid) = number(name.to_bytes())
                && let Some(process) = self.process(pid as libc::pid_t)
            {
                if processes.len() == PROCESSES_MAX {
                    return Err(Errno(libc::EOVERFLOW));
                }
                // They come in ascending order; if one does not, it is inserted at its place.
                let position = processes.partition_point(|before: &Process| before.pid < process.pid);
                processes.insert(position, process);
            }
        }
        Ok(processes)
    }

    /// Signals this process and no other, even if it ends in the meantime.
    pub(super) fn signal(&self, process: &Process, signal: c_int) {
        // SAFETY: takes numbers only.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, process.pid, 0) } as c_int;
        let Ok(descriptor) = Fd::returned(descriptor) else { return };
        // The pid stays with its current process as long as the descriptor is open, so this check is reliable.
        if self.process(process.pid).is_some_and(|now| now.is_same(process)) {
            // SAFETY: a null pointer requests the information that kill would send. It is no error if the process has
            // ended.
            unsafe {
                libc::syscall(libc::SYS_pidfd_send_signal, descriptor.raw(), signal, core::ptr::null::<u8>(), 0);
            }
        }
    }

    fn process(&self, pid: libc::pid_t) -> Option<Process> {
        let mut path = [0; 24];
        let path = stat_path(pid, &mut path)?;
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: the path is a C string; without O_CREAT no mode is read.
        let file = Fd::returned(unsafe { libc::openat(self.0.raw(), path.as_ptr(), flags) }).ok()?;
        let mut line = [0; STAT_LEN];
        let length = file.read(&mut line).ok()?;
        parse(pid, &line[..length])
    }
}

/// `PID (name) STATE PPID ...`, where the name may contain anything; the start time is the 22nd field.
fn parse(pid: libc::pid_t, line: &[u8]) -> Option<Process> {
    let name_end = line.iter().rposition(|byte| *byte == b')')?;
    let mut fields = line.get(name_end + 2..)?.split(|byte| *byte == b' ');
    let is_zombie = matches!(fields.next()?, b"Z" | b"X");
    let parent = number(fields.next()?)? as libc::pid_t;
    let started = number(fields.nth(17)?)?;
    Some(Process { pid, parent, started, is_zombie })
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

fn stat_path(pid: libc::pid_t, buffer: &mut [u8; 24]) -> Option<&CStr> {
    let end = b"/stat\0";
    let mut position = buffer.len() - end.len();
    buffer[position..].copy_from_slice(end);
    let mut rest = u32::try_from(pid).ok()?;
    loop {
        position -= 1;
        buffer[position] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return CStr::from_bytes_with_nul(&buffer[position..]).ok();
        }
    }
}

/// Which of these, except zombies, are under a root: those for which `is_first` returns true, and all their
/// descendants.
pub(super) fn under(processes: &[Process], is_first: impl Fn(&Process) -> bool) -> Vec<Process> {
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Known {
        Unknown,
        Under,
        Elsewhere,
    }
    let mut known = alloc::vec![Known::Unknown; processes.len()];
    let mut way = Vec::new();
    for start in 0..processes.len() {
        let mut position = start;
        // Goes upwards until an answer is known. A snapshot taken while parents change may contain a cycle, so this
        // takes at most as many steps as there are processes.
        let answer = loop {
            if known[position] != Known::Unknown {
                break known[position];
            }
            way.push(position);
            if is_first(&processes[position]) {
                break Known::Under;
            }
            let parent = processes[position].parent;
            match processes.binary_search_by_key(&parent, |process| process.pid) {
                Ok(next) if way.len() <= processes.len() => position = next,
                Ok(_) | Err(_) => break Known::Elsewhere,
            }
        };
        for position in way.drain(..) {
            known[position] = answer;
        }
    }
    let pairs = processes.iter().zip(&known);
    pairs
        .filter(|(process, known)| **known == Known::Under && !process.is_zombie)
        .map(|(process, _)| *process)
        .collect()
}
