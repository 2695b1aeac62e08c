//! The attacker: one static program that tries to get out of a sandbox, by one named attempt at a time.
//!
//! `saggar-attacker ATTEMPT [ARGUMENTS]` prints one JSON line for each member of the attempt and `{"done":true}` last. It knows no
//! expectation: what an outcome is worth is for the conformance data to say, so that the same program judges every runtime.
//!
//! It may meet a boundary that doesn't hold, so nothing it tries does harm: clocks are set to what they are, mounts go on
//! directories of its own, signals are 0 or go to its own children, and floods are bounded. It ends by itself: an alarm sees to it.
//! As the host's root, in the host's own mount namespace, it attempts nothing: there is no boundary there to try.

mod descriptors;
mod devices;
mod files;
mod git;
mod identity;
mod kernel_files;
mod links;
mod memory;
mod mounts;
mod network;
mod out;
mod pools;
mod processes;
mod protected;
mod resources;
mod sockets;
mod sys;
mod syscalls;
mod uncharged;

use std::process::ExitCode;

use out::Out;

/// One attempt: reports its members, given its arguments.
type Attempt = (&'static str, fn(&Out, &[String]));

/// Every list of attempts.
const FAMILIES: &[&[Attempt]] = &[
    files::ATTEMPTS,
    protected::ATTEMPTS,
    links::ATTEMPTS,
    kernel_files::ATTEMPTS,
    mounts::ATTEMPTS,
    devices::ATTEMPTS,
    identity::ATTEMPTS,
    syscalls::ATTEMPTS,
    processes::ATTEMPTS,
    sockets::ATTEMPTS,
    network::ATTEMPTS,
    descriptors::ATTEMPTS,
    resources::ATTEMPTS,
    pools::ATTEMPTS,
    git::ATTEMPTS,
    memory::ATTEMPTS,
    uncharged::ATTEMPTS,
];

/// Seconds after which an attempt ends itself, whatever it waits for.
const PATIENCE_S: u32 = 30;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    let name = arguments.next().unwrap_or_default();
    let arguments: Vec<String> = arguments.collect();
    if name == "--list" {
        FAMILIES.iter().flat_map(|family| family.iter()).for_each(|(name, _)| println!("{name}"));
        return ExitCode::SUCCESS;
    }
    let Some((_, attempt)) = FAMILIES.iter().flat_map(|family| family.iter()).find(|(known, _)| *known == name) else {
        eprintln!("error: no attempt {name:?}\n  help: saggar-attacker --list names them");
        return ExitCode::from(2);
    };
    if identity::is_unconfined() {
        eprintln!("error: this is the host's root and no sandbox\n  help: run the attacker through `saggar probe`");
        return ExitCode::from(3);
    }
    sys::set_alarm(PATIENCE_S);
    let out = Out::new();
    attempt(&out, &arguments);
    out.done();
    ExitCode::SUCCESS
}
