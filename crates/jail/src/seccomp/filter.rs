//! The filter: the rules as a classic BPF program.
//!
//! The kernel walks a new filter once for every system call number, to learn which calls are allowed whatever their
//! arguments and never run the filter for those again. With a chain that compares number after number, which is what
//! seccompiler emits, every start of a sandbox pays for numbers times length. So neighbours with the same answer are
//! merged into intervals, and the interval is found by binary search.
//!
//! Invariants: the walk understands only loads of the number and the architecture, comparisons with constants, jumps
//! and returns, so arguments are loaded in leaves alone; every path ends in a return; jumps only go forward.

use std::io;
use std::mem::offset_of;
use std::os::fd::{FromRawFd, OwnedFd};

use libc::{seccomp_data, sock_filter};

use super::arch;
use super::rules::{Answer, Clause, Group, Rule, TABLE, Test, UNLISTED, Values};
use crate::plan::SetIds;

/// A compiled filter, ready to install. Compile before a fork: installing neither allocates nor locks.
#[derive(Clone, Debug)]
pub struct Filter {
    program: Vec<sock_filter>,
}

impl Filter {
    /// Compiles the table, as far as a sandbox needs it.
    pub fn compile(set_ids: SetIds) -> Self {
        let needless: &[Group] = match set_ids {
            SetIds::Refused => &[],
            SetIds::Powerless => &[Group::SetidBits],
        };
        #[cfg(feature = "mutation")]
        let disabled: Vec<Group> = {
            let is_off = |group: &Group| !crate::Rule::Seccomp(*group).is_on() || needless.contains(group);
            Group::ALL.iter().copied().filter(is_off).collect()
        };
        #[cfg(feature = "mutation")]
        return Self::compile_enabled(&disabled);
        #[cfg(not(feature = "mutation"))]
        Self::compile_enabled(needless)
    }

    /// Compiles the table with some groups switched off: calls that only they refuse are then allowed. Used only to
    /// check that removing a group makes a difference.
    #[cfg(test)]
    pub fn compile_without(disabled: &[Group]) -> Self {
        Self::compile_enabled(disabled)
    }

    /// Puts the calling thread, and everything it will start, under the filter. Returns the listener's descriptor,
    /// which closes on exec. Other threads are not affected: call this while there is only one.
    ///
    /// The caller must have set no_new_privs. From here on a telling call blocks until the listener answers, so hand
    /// the listener to the process that serves it before making one; a plain sendmsg is not telling.
    pub fn install(&self) -> io::Result<OwnedFd> {
        const LISTENER: libc::c_ulong = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        // Once the host has taken a notification only a fatal signal may end the wait. Otherwise each of the signals
        // with which Go preempts its threads would restart the call, and the host would record it again. The flag came
        // with Linux 5.19; older kernels do without.
        match self.install_with(LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => self.install_with(LISTENER),
            other => other,
        }
    }

    /// Maximum length of [`Filter::to_bytes`]; a test checks the table against it.
    pub(crate) const BYTES_MAX: usize = 1024 * 8;

    /// The program as bytes, for another process of ours to install.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.program
            .iter()
            .flat_map(|instruction| {
                let [code0, code1] = instruction.code.to_ne_bytes();
                let [k0, k1, k2, k3] = instruction.k.to_ne_bytes();
                [code0, code1, instruction.jt, instruction.jf, k0, k1, k2, k3]
            })
            .collect()
    }

    /// `None` if the bytes are not whole instructions.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (instructions, rest) = bytes.as_chunks::<8>();
        let program = instructions
            .iter()
            .map(|&[code0, code1, jt, jf, k0, k1, k2, k3]| sock_filter {
                code: u16::from_ne_bytes([code0, code1]),
                jt,
                jf,
                k: u32::from_ne_bytes([k0, k1, k2, k3]),
            })
            .collect();
        (rest.is_empty() && !bytes.is_empty()).then_some(Self { program })
    }

    fn install_with(&self, flags: libc::c_ulong) -> io::Result<OwnedFd> {
        let len = u16::try_from(self.program.len()).expect("the table compiles to far less than 4096 instructions");
        let program = libc::sock_fprog { len, filter: self.program.as_ptr().cast_mut() };
        // SAFETY: `program` points at `len` initialised instructions that outlive the call; the kernel copies them and
        // writes to neither.
        let fd = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: with the listener flag, success is a new descriptor that nothing else owns; descriptors fit an int.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
    }

    fn compile_enabled(disabled: &[Group]) -> Self {
        let mut assembler = Assembler { code: Vec::with_capacity(512), disabled };
        if disabled.contains(&Group::ForeignAbi) {
            assembler.load(offset_of!(seccomp_data, nr));
        } else {
            assembler.refuse_foreign_abi();
        }
        assembler.search(&intervals(disabled));
        Self { program: assembler.code }
    }

    #[cfg(test)]
    pub(super) fn program(&self) -> &[sock_filter] {
        &self.program
    }
}

/// The numbers from `first` up to the next interval's first, which all get the same answer.
struct Interval {
    first: u32,
    leaf: Leaf,
}

/// The result of the search.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaf {
    /// A return value, whatever the arguments.
    Constant(u32),
    Checked(Rule),
}

impl Leaf {
    fn new(rule: Rule, disabled: &[Group]) -> Self {
        match rule.iter().find(|clause| !disabled.contains(&clause.group)) {
            None => Self::Constant(libc::SECCOMP_RET_ALLOW),
            Some(clause) if clause.tests == [None; 3] => Self::Constant(return_value(clause.answer)),
            Some(_) => Self::Checked(rule),
        }
    }
}

/// The table by number, with neighbours merged. The last interval is open-ended and refuses.
fn intervals(disabled: &[Group]) -> Vec<Interval> {
    let end = arch::NAMES.last().map_or(0, |(number, _)| *number as usize + 1);
    let mut leaves = vec![Leaf::new(UNLISTED, disabled); end + 1];
    for (rule, numbers) in TABLE.iter().chain(arch::LEGACY) {
        let leaf = Leaf::new(rule, disabled);
        for number in *numbers {
            leaves[*number as usize] = leaf;
        }
    }
    let mut merged: Vec<Interval> = Vec::with_capacity(256);
    for (first, leaf) in (0..).zip(leaves) {
        if merged.last().is_none_or(|last| last.leaf != leaf) {
            merged.push(Interval { first, leaf });
        }
    }
    merged
}

const fn return_value(answer: Answer) -> u32 {
    match answer {
        Answer::Silent(errno) => libc::SECCOMP_RET_ERRNO | errno.raw_os_error() as u32,
        Answer::Telling(_) | Answer::Bounded => libc::SECCOMP_RET_USER_NOTIF,
        Answer::Moot => libc::SECCOMP_RET_ERRNO,
    }
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const IF_ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;

struct Assembler<'a> {
    code: Vec<sock_filter>,
    disabled: &'a [Group],
}

impl Assembler<'_> {
    /// Leaves the number loaded. Another architecture has other numbers, so its calls can't be judged and the process
    /// is killed. x32 is a kernel option that need not be present.
    fn refuse_foreign_abi(&mut self) {
        self.load(offset_of!(seccomp_data, arch));
        self.branch(IF_EQUAL, arch::AUDIT_ARCH, 1, 0);
        self.push(RETURN, libc::SECCOMP_RET_KILL_PROCESS);
        self.load(offset_of!(seccomp_data, nr));
        self.branch(IF_ANY_BIT, arch::FOREIGN_ABI_BIT, 0, 1);
        self.push(RETURN, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32);
    }

    /// Finds the interval of the number. A branch reaches at most 255 instructions; beyond that it goes through a plain
    /// jump.
    fn search(&mut self, intervals: &[Interval]) {
        if let [interval] = intervals {
            return self.leaf(interval.leaf);
        }
        let (left, right) = intervals.split_at(intervals.len() / 2);
        let branch = self.branch(IF_AT_LEAST, right[0].first, 0, 1);
        let jump = self.push(JUMP, 0);
        self.search(left);
        let distance = self.code.len() - jump - 1;
        match u8::try_from(distance) {
            Ok(near) => {
                // Offsets are relative and none of the left side points outside it, so the rest may move up.
                self.code.remove(jump);
                (self.code[branch].jt, self.code[branch].jf) = (near, 0);
            }
            Err(_) => self.code[jump].k = u32::try_from(distance).expect("a program has at most 4096 instructions"),
        }
        self.search(right);
    }

    fn leaf(&mut self, leaf: Leaf) {
        match leaf {
            Leaf::Constant(value) => {
                self.push(RETURN, value);
            }
            Leaf::Checked(rule) => {
                for clause in rule.iter().filter(|clause| !self.disabled.contains(&clause.group)) {
                    self.clause(clause);
                }
                self.push(RETURN, libc::SECCOMP_RET_ALLOW);
            }
        }
    }

    /// Returns the answer if all tests hold, and otherwise falls through.
    fn clause(&mut self, clause: &Clause) {
        let mut failures = Vec::new();
        for test in clause.tests.iter().flatten() {
            self.test(test, &mut failures);
        }
        self.push(RETURN, return_value(clause.answer));
        for failure in failures {
            let distance = self.code.len() - failure.at - 1;
            let distance = u8::try_from(distance).expect("a clause has a few tests of a few values each");
            match failure.side {
                Side::True => self.code[failure.at].jt = distance,
                Side::False => self.code[failure.at].jf = distance,
            }
        }
    }

    /// Falls through if the test holds; branches that must leave the clause are added to `failures`.
    fn test(&mut self, test: &Test, failures: &mut Vec<OpenJump>) {
        // The low half of an argument comes first in memory.
        const _: () = assert!(cfg!(target_endian = "little"));
        self.load(offset_of!(seccomp_data, args) + 8 * usize::from(test.arg));
        if test.mask != u32::MAX {
            self.push(AND, test.mask);
        }
        match test.values {
            Values::OneOf(values) => {
                for (place, value) in values.iter().enumerate() {
                    let after = values.len() - 1 - place;
                    let to_success = u8::try_from(after).expect("a test has a few values");
                    let at = self.branch(IF_EQUAL, *value, to_success, 0);
                    if after == 0 {
                        failures.push(OpenJump { at, side: Side::False });
                    }
                }
            }
            Values::NoneOf(values) => {
                for value in values {
                    let at = self.branch(IF_EQUAL, *value, 0, 0);
                    failures.push(OpenJump { at, side: Side::True });
                }
            }
            Values::NotNull => {
                // If the low half is zero the high half decides; otherwise it isn't checked.
                self.branch(IF_EQUAL, 0, 0, 2);
                self.load(offset_of!(seccomp_data, args) + 8 * usize::from(test.arg) + 4);
                let at = self.branch(IF_EQUAL, 0, 0, 0);
                failures.push(OpenJump { at, side: Side::True });
            }
        }
    }

    fn load(&mut self, offset: usize) {
        self.push(LOAD, u32::try_from(offset).expect("seccomp_data has 64 bytes"));
    }

    fn push(&mut self, code: u32, k: u32) -> usize {
        self.emit(code, k, 0, 0)
    }

    fn branch(&mut self, code: u32, k: u32, jt: u8, jf: u8) -> usize {
        self.emit(code, k, jt, jf)
    }

    fn emit(&mut self, code: u32, k: u32, jt: u8, jf: u8) -> usize {
        let code = u16::try_from(code).expect("operation codes have 8 bits");
        self.code.push(sock_filter { code, jt, jf, k });
        self.code.len() - 1
    }
}

/// A branch that leaves its clause on one side.
struct OpenJump {
    at: usize,
    side: Side,
}

enum Side {
    True,
    False,
}
