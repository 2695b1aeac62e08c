//! Landlock, in addition to the mounts: even if a mount that should be read-only isn't, it can't be written, and no
//! abstract socket or signal reaches out of the sandbox.

use std::os::fd::AsFd;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::io::Errno;

use crate::plan::Fence;
use crate::rule::Rule;

/// The newest Landlock ABI whose rights are named here. Older kernels enforce what they support, and `doctor` reports
/// that.
const NEWEST: ABI = ABI::V6;

/// Restricts the calling process and everything it will start.
pub(crate) fn close(fence: &Fence) -> Result<(), Errno> {
    if !Rule::LandlockFiles.is_on() && !Rule::LandlockScopes.is_on() {
        return Ok(());
    }
    let outcome = build(fence).map_err(|_| Errno::OPNOTSUPP)?;
    match outcome {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        // On a kernel without scopes, switching off the file rules leaves nothing to enforce.
        RulesetStatus::NotEnforced if !Rule::LandlockFiles.is_on() => Ok(()),
        RulesetStatus::NotEnforced => Err(Errno::OPNOTSUPP),
    }
}

fn build(fence: &Fence) -> Result<RulesetStatus, landlock::RulesetError> {
    let all = AccessFs::from_all(NEWEST);
    let reads = AccessFs::from_read(NEWEST);
    // Device nodes are never created, in any tree.
    let changes = all & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    // The device nodes are a fixed set, and the directory itself is sealed.
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::ReadDir | AccessFs::IoctlDev;
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    if Rule::LandlockFiles.is_on() {
        ruleset = ruleset.handle_access(all)?;
    }
    if Rule::LandlockScopes.is_on() {
        ruleset = ruleset.scope(Scope::AbstractUnixSocket | Scope::Signal)?;
    }
    // It is set before, unless that rule is switched off.
    let mut ruleset = ruleset.create()?.no_new_privs(false);
    if !Rule::LandlockFiles.is_on() {
        return Ok(ruleset.restrict_self()?.ruleset);
    }
    ruleset = grant(ruleset, "/", reads)?;
    for path in &fence.writable {
        ruleset = grant(ruleset, path, changes)?;
    }
    ruleset = grant(ruleset, "/dev", device)?;
    Ok(ruleset.restrict_self()?.ruleset)
}

fn grant(
    ruleset: landlock::RulesetCreated,
    path: &str,
    access: BitFlags<AccessFs>,
) -> Result<landlock::RulesetCreated, landlock::RulesetError> {
    // A path that doesn't exist grants nothing; the plan names only paths it created.
    let Ok(fd) = PathFd::new(path) else { return Ok(ruleset) };
    let is_directory = rustix::fs::fstat(fd.as_fd())
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory);
    let access = if is_directory { access } else { access & AccessFs::from_file(NEWEST) };
    ruleset.add_rule(PathBeneath::new(fd, access))
}

/// The Landlock ABI of this kernel; `None` if it has none or has it disabled.
pub fn abi() -> Option<u32> {
    const LANDLOCK_CREATE_RULESET_VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the kernel takes a null attribute of size zero and only returns a number.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(answer).ok().filter(|version| *version > 0)
}
