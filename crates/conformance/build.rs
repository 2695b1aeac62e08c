//! Builds the attacker (static, musl) for `attacker_image.rs` to embed.
//!
//! This is a separate build because the attacker must be static whatever the host binary is: it runs in every runtime
//! that is probed.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let attacker = manifest.join("../attacker");
    for watched in ["src", "Cargo.toml", "../../Cargo.lock", "../../Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", attacker.join(watched).display());
    }
    let target = format!("{}-unknown-linux-musl", variable("CARGO_CFG_TARGET_ARCH"));
    let out = PathBuf::from(variable("OUT_DIR"));
    // All profiles of the outer build share the directory: the attacker is the same in each.
    let directory = out.ancestors().nth(4).unwrap_or(&out).join("attacker-build");
    build(&attacker, &target, &directory);
    let built = directory.join(&target).join("guest/saggar-attacker");
    println!("cargo::rustc-env=SAGGAR_ATTACKER_IMAGE={}", built.display());
}

fn build(attacker: &Path, target: &str, directory: &Path) {
    let outcome = Command::new(variable("CARGO"))
        .args([
            "build",
            "--quiet",
            "--bin",
            "saggar-attacker",
            "--profile",
            "guest",
            "--target",
            target,
            "--manifest-path",
        ])
        .arg(attacker.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(directory)
        // Flags for the outer build's target or instrumentation must not apply to the attacker.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .status();
    match outcome {
        Ok(status) if status.success() => {}
        Ok(status) => panic!(
            "building the attacker for {target} failed ({status}); is the target installed? rustup target add {target}"
        ),
        Err(error) => panic!("cargo could not be started for the attacker: {error}"),
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name} for build scripts"))
}
