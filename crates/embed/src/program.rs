//! One embedded program: where its source is, how it is built, and where the result is.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A program of this workspace that another crate embeds.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its directory under `crates/`; the package and the binary are `saggar-NAME`.
    pub name: &'static str,
    /// The environment variable that tells `include_bytes!` the path of the built program.
    pub variable: &'static str,
    /// Features that are passed on if the embedding crate has them.
    pub features: &'static [&'static str],
}

impl Program {
    /// Builds it and prints what cargo needs to know.
    ///
    /// # Panics
    /// When the build fails: cargo shows the message.
    pub fn build(self) {
        let source = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("..").join(self.name);
        for watched in ["src", "Cargo.toml", "../../Cargo.lock", "../../Cargo.toml"] {
            println!("cargo::rerun-if-changed={}", source.join(watched).display());
        }
        let target = format!("{}-unknown-linux-musl", variable("CARGO_CFG_TARGET_ARCH"));
        let directory = self.directory();
        self.compile(&source, &target, &directory);
        let built = directory.join(&target).join("guest").join(self.binary());
        println!("cargo::rustc-env={}={}", self.variable, built.display());
    }

    fn binary(self) -> String {
        format!("saggar-{}", self.name)
    }

    /// Shared by all profiles of the outer build, because the program is the same in each. Features get a directory of their own: an
    /// ordinary build must never pick up a program that a feature has weakened.
    fn directory(self) -> PathBuf {
        let out = PathBuf::from(variable("OUT_DIR"));
        let suffix: String = self.enabled().map(|feature| format!("-{feature}")).collect();
        out.ancestors().nth(4).unwrap_or(&out).join(format!("{}-build{suffix}", self.name))
    }

    fn enabled(self) -> impl Iterator<Item = &'static str> {
        let is_enabled =
            |feature: &&str| std::env::var_os(format!("CARGO_FEATURE_{}", feature.to_uppercase())).is_some();
        self.features.iter().copied().filter(is_enabled)
    }

    fn compile(self, source: &Path, target: &str, directory: &Path) {
        let Self { name, .. } = self;
        let outcome = Command::new(variable("CARGO"))
            .args(["build", "--quiet", "--profile", "guest", "--target", target])
            .args(["--bin", &self.binary()])
            .arg("--manifest-path")
            .arg(source.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(directory)
            .args(self.enabled().map(|feature| format!("--features={feature}")))
            // The outer build's flags and instrumentation must not apply to this one.
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env_remove("RUSTFLAGS")
            .env_remove("RUSTC_WORKSPACE_WRAPPER")
            .status();
        match outcome {
            Ok(status) if status.success() => {}
            Ok(status) => panic!(
                "building {name} for {target} failed ({status}); is the target installed? rustup target add {target}"
            ),
            Err(error) => panic!("cargo could not be started to build {name}: {error}"),
        }
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name} for build scripts"))
}
