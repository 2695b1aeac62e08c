//! Names: ids made from the kernel's randomness, and the hash that names a boundary.

use saggar_domain::{Code, ExecId, HostPath, PolicyHash, Problem, SandboxId, Spec};

/// The names of a sandbox and its exec.
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

/// So many random bytes.
pub(crate) fn random<const LEN: usize>() -> Result<[u8; LEN], Problem> {
    let mut bytes = [0u8; LEN];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(length) if length == LEN => Ok(bytes),
        _ => Err(Problem::new(Code::SetupFailed, "the kernel gave no randomness", "try again")),
    }
}

/// The hash of a boundary, by where its paths lead: the same directory has one hash, however it is written, and the order in which
/// mounts are named doesn't count.
pub fn policy_hash(spec: &Spec) -> PolicyHash {
    let resolved = |path: &HostPath| {
        let real = std::path::Path::new(path.as_str()).canonicalize().ok();
        // What can't be resolved is refused later; until then it is called what it was called.
        real.and_then(|real| HostPath::parse(real.to_str()?).ok()).unwrap_or_else(|| path.clone())
    };
    let mut spec = spec.clone();
    spec.workspace = spec.workspace.as_ref().map(resolved);
    spec.mounts.iter_mut().for_each(|mount| mount.host = resolved(&mount.host));
    spec.mounts.sort_by(|a, b| a.guest.cmp(&b.guest));
    spec.policy_hash()
}
