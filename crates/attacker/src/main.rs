//! The attacker: one static program that tries to escape from a sandbox, one named attempt at a time.
//!
//! `saggar-attacker ATTEMPT [ARGUMENTS]` prints one JSON line for each member of the attempt and `{"done":true}` last.
//! It knows no expectations: the conformance data judges the outcomes, so that the same program can test every runtime.
//!
//! The boundary may not hold, so no attempt does harm: clocks are set to their current value, mounts go on directories
//! of its own, signals are 0 or go to its own children, and floods are bounded. An alarm makes it end by itself. As the
//! host's root, in the host's own mount namespace, it attempts nothing: there is no boundary to test.

mod credentials;
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
mod proxied;
mod proxied_limits;
mod resources;
mod sockets;
mod sys;
mod syscalls;
mod uncharged;
mod volumes;
mod world;

use std::process::ExitCode;

use out::Out;

/// One attempt: gets its arguments and reports its members.
type Attempt = (&'static str, fn(&Out, &[String]));

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
    proxied::ATTEMPTS,
    proxied_limits::ATTEMPTS,
    credentials::ATTEMPTS,
    descriptors::ATTEMPTS,
    resources::ATTEMPTS,
    volumes::ATTEMPTS,
    pools::ATTEMPTS,
    git::ATTEMPTS,
    memory::ATTEMPTS,
    uncharged::ATTEMPTS,
];

/// Seconds after which an attempt ends itself.
const PATIENCE_S: u32 = 30;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    let name = arguments.next().unwrap_or_default();
    let arguments: Vec<String> = arguments.collect();
    if name == "--list" {
        FAMILIES.iter().flat_map(|family| family.iter()).for_each(|(name, _)| println!("{name}"));
        return ExitCode::SUCCESS;
    }
    if name == "--world" {
        return match world::serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: the world can't be made: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let Some((_, attempt)) = FAMILIES.iter().flat_map(|family| family.iter()).find(|(known, _)| *known == name) else {
        eprintln!("error: there is no attempt {name:?}\n  help: saggar-attacker --list shows all attempts");
        return ExitCode::from(2);
    };
    if identity::is_unconfined() {
        eprintln!(
            "error: this process is the host's root outside any sandbox\n  help: run the attacker through `saggar probe`"
        );
        return ExitCode::from(3);
    }
    sys::set_alarm(PATIENCE_S);
    let out = Out::new();
    attempt(&out, &arguments);
    out.done();
    ExitCode::SUCCESS
}
