//! Builds the guest agent for the sandbox's own world (static, musl) and leaves it where `guest_image.rs` embeds it.
//!
//! A build of its own, because an agent must be static whatever the host binary is, and because it has a profile of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let guest = manifest.join("../guest");
    for watched in ["src", "Cargo.toml", "../../Cargo.lock", "../../Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", guest.join(watched).display());
    }
    let target = format!("{}-unknown-linux-musl", variable("CARGO_CFG_TARGET_ARCH"));
    let out = PathBuf::from(variable("OUT_DIR"));
    // An agent that can be weakened never lies where an ordinary build looks for its own.
    let is_mutated = std::env::var_os("CARGO_FEATURE_MUTATION").is_some();
    let name = if is_mutated { "guest-build-mutation" } else { "guest-build" };
    // Shared by all profiles of the outer build: the agent is the same in each.
    let directory = out.ancestors().nth(4).unwrap_or(&out).join(name);
    build(&guest, &target, &directory, is_mutated);
    let built = directory.join(&target).join("guest/saggar-guest");
    println!("cargo::rustc-env=SAGGAR_GUEST_IMAGE={}", built.display());
}

fn build(guest: &Path, target: &str, directory: &Path, is_mutated: bool) {
    let outcome = Command::new(variable("CARGO"))
        .args([
            "build",
            "--quiet",
            "--bin",
            "saggar-guest",
            "--profile",
            "guest",
            "--target",
            target,
            "--manifest-path",
        ])
        .arg(guest.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(directory)
        .args(is_mutated.then_some("--features=mutation"))
        // What the outer build was told about its own target or instrumentation is not for the agent.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .status();
    match outcome {
        Ok(status) if status.success() => {}
        Ok(status) => panic!(
            "building the guest agent for {target} failed ({status}); is the target installed? rustup target add {target}"
        ),
        Err(error) => panic!("cargo could not be started for the guest agent: {error}"),
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name} for build scripts"))
}
