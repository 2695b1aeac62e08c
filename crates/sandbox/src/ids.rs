//! Ids made from the kernel's randomness.

use saggar_domain::{Code, ExecId, Problem, SandboxId};

/// The names of a sandbox and its exec.
#[derive(Clone, Debug)]
pub struct Ids {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The exec.
    pub exec: ExecId,
}

impl Ids {
    /// New ones.
    pub fn generate() -> Result<Self, Problem> {
        Ok(Self { sandbox: SandboxId::from_random(random()?), exec: ExecId::from_random(random()?) })
    }
}

/// So many random bytes.
pub(crate) fn random<const LEN: usize>() -> Result<[u8; LEN], Problem> {
    let mut bytes = [0u8; LEN];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(length) if length == LEN => Ok(bytes),
        _ => Err(Problem::new(Code::SetupFailed, "the kernel gave no randomness", "try again")),
    }
}
