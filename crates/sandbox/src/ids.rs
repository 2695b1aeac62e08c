//! Ids from the kernel's randomness, and the hash of a policy.

use saggar_domain::{Code, ExecId, HostPath, PolicyHash, Problem, SandboxId, Spec};

/// The ids of a sandbox and its exec.
#[derive(Clone, Debug)]
pub struct Ids {
    pub sandbox: SandboxId,
    pub exec: ExecId,
}

impl Ids {
    pub fn generate() -> Result<Self, Problem> {
        Ok(Self { sandbox: SandboxId::from_random(random()?), exec: ExecId::from_random(random()?) })
    }
}

pub(crate) fn random<const LEN: usize>() -> Result<[u8; LEN], Problem> {
    let mut bytes = [0u8; LEN];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(length) if length == LEN => Ok(bytes),
        _ => Err(Problem::new(Code::SetupFailed, "the kernel gave no randomness", "try again")),
    }
}

/// The hash of a policy, with resolved paths: the same directory always gives the same hash, however it is written, and
/// the order of mounts doesn't matter.
pub fn policy_hash(spec: &Spec) -> PolicyHash {
    let resolved = |path: &HostPath| {
        let real = std::path::Path::new(path.as_str()).canonicalize().ok();
        // Paths that can't be resolved are refused later; until then they are used as written.
        real.and_then(|real| HostPath::parse(real.to_str()?).ok()).unwrap_or_else(|| path.clone())
    };
    let mut spec = spec.clone();
    spec.workspace = spec.workspace.as_ref().map(resolved);
    spec.mounts.iter_mut().for_each(|mount| mount.host = resolved(&mount.host));
    spec.mounts.sort_by(|a, b| a.guest.cmp(&b.guest));
    spec.policy_hash()
}
