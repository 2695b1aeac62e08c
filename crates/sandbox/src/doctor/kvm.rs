//! Measures whether KVM is usable: a guest runs a loop, and the clock shows how fast. The existence of /dev/kvm proves
//! nothing.

use std::process::{Command, Stdio};
use std::time::Instant;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, pidfd_open, set_parent_process_death_signal, setrlimit,
};

/// The helper mode that runs the guest, in a process that can be killed if the guest is too slow.
pub const KVM_TRIAL: &str = "__kvm-trial";
/// Two instructions each.
const ITERATIONS: u32 = 1_000_000;
/// Hardware does this in milliseconds, an interpreter in seconds.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// The kernel ends the trial after this much CPU time.
const CPU_SECONDS: u64 = 1;
const GUEST_MEMORY: usize = 4096;

pub(super) enum KvmTrial {
    /// Millions of instructions per second.
    Usable(u64),
    Unusable(String),
}

/// Runs the trial in a separate process.
pub(super) fn try_kvm() -> KvmTrial {
    if !std::path::Path::new("/dev/kvm").exists() {
        return KvmTrial::Unusable("there is no /dev/kvm".to_owned());
    }
    let spawned = Command::new("/proc/self/exe")
        .arg(KVM_TRIAL)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = spawned else { return KvmTrial::Unusable("the trial could not be started".to_owned()) };
    let is_done = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).is_ok_and(|pidfd| {
        poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&PATIENCE)).is_ok_and(|ready| ready > 0)
    });
    if !is_done {
        // It may be dead already.
        let _ = child.kill();
    }
    let Ok(output) = child.wait_with_output() else {
        return KvmTrial::Unusable("the trial could not be waited for".to_owned());
    };
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim().parse() {
        Ok(rate) if is_done => KvmTrial::Usable(rate),
        _ if !is_done => KvmTrial::Unusable("a guest runs far too slowly: its instructions are interpreted".to_owned()),
        _ => KvmTrial::Unusable(if text.trim().is_empty() {
            "the guest did not run".to_owned()
        } else {
            text.trim().to_owned()
        }),
    }
}

/// The helper mode: prints the rate, or why there is none.
pub fn measure() {
    // If the parent is killed, nothing else would end a guest that is too slow.
    let bounded = set_parent_process_death_signal(Some(Signal::KILL)).is_ok()
        && setrlimit(Resource::Cpu, Rlimit { current: Some(CPU_SECONDS), maximum: Some(CPU_SECONDS) }).is_ok();
    if !bounded {
        println!("the trial could not be bounded");
        return;
    }
    match run_guest() {
        Ok(rate) => println!("{rate}"),
        Err(why) => println!("{why}"),
    }
}

fn run_guest() -> Result<u64, String> {
    let fail = |what: &'static str| move |error: kvm_ioctls::Error| format!("{what}: {error}");
    let kvm = Kvm::new().map_err(fail("/dev/kvm can't be opened"))?;
    let vm = kvm.create_vm().map_err(fail("no virtual machine can be created"))?;
    let mut memory = GuestPage([0; GUEST_MEMORY]);
    memory.0[..code().len()].copy_from_slice(&code());
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0x1000,
        memory_size: GUEST_MEMORY as u64,
        userspace_addr: memory.0.as_ptr() as u64,
    };
    // SAFETY: the page is aligned, of the size given, and outlives the virtual machine, which is dropped before it.
    unsafe { vm.set_user_memory_region(region) }.map_err(fail("the guest's memory can't be set"))?;
    let mut cpu = vm.create_vcpu(0).map_err(fail("no virtual CPU can be created"))?;
    let mut special = cpu.get_sregs().map_err(fail("registers can't be read"))?;
    special.cs.base = 0;
    special.cs.selector = 0;
    cpu.set_sregs(&special).map_err(fail("registers can't be set"))?;
    let mut registers = cpu.get_regs().map_err(fail("registers can't be read"))?;
    registers.rip = 0x1000;
    registers.rflags = 2;
    cpu.set_regs(&registers).map_err(fail("registers can't be set"))?;
    let start = Instant::now();
    match cpu.run().map_err(fail("the guest can't be run"))? {
        VcpuExit::Hlt => {}
        other => return Err(format!("the guest stopped for another reason: {other:?}")),
    }
    let micros = start.elapsed().as_micros().max(1) as u64;
    Ok(u64::from(ITERATIONS) * 2 / micros)
}

#[repr(align(4096))]
struct GuestPage([u8; GUEST_MEMORY]);

/// In real mode: `mov ecx, ITERATIONS; again: dec ecx; jnz again; hlt`.
fn code() -> [u8; 11] {
    let [a, b, c, d] = ITERATIONS.to_le_bytes();
    [0x66, 0xb9, a, b, c, d, 0x66, 0x49, 0x75, 0xfc, 0xf4]
}
