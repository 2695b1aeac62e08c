//! Mounts: files and directories of the host, each at a separate path inside.

use serde::{Deserialize, Serialize};

use crate::mode::Access;
use crate::path::{GuestPath, HostPath};
use crate::problem::{Code, Problem};
use crate::table::only_from_a_table;

/// Maximum number of mounts.
const ENTRIES_MAX: usize = 64;
/// Guest directories that belong to the template or the kernel: nothing can be mounted in them.
const RESERVED: &[&str] = &[
    "/proc",
    "/sys",
    "/dev",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/.empty",
    "/.null",
    "/.scratch",
    "/var/run",
    "/var/tmp",
    "/workspace",
];
/// Guest directories in which mounts are allowed, but not on top of them.
const HELD: &[&str] = &["/", "/tmp", "/home", "/home/user", "/root", "/run", "/var"];

/// A file or directory of the host, mounted at a path inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Mount {
    pub host: HostPath,
    pub guest: GuestPath,
    #[serde(default = "read_only")]
    pub access: Access,
}

only_from_a_table!(Mount);

impl Mount {
    /// Parses `HOST:GUEST` or `HOST:GUEST:rw`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let complaint = || format!("{text:?} is not a mount: write HOST:GUEST or HOST:GUEST:rw");
        let (rest, access) = match text.rsplit_once(':') {
            Some((rest, "rw")) => (rest, Access::ReadWrite),
            Some((rest, "ro")) => (rest, Access::ReadOnly),
            _ => (text, Access::ReadOnly),
        };
        let (host, guest) = rest.rsplit_once(':').ok_or_else(complaint)?;
        Ok(Self { host: HostPath::parse(host)?, guest: GuestPath::parse(guest)?, access })
    }
}

pub(crate) fn check_mounts(mounts: &[Mount]) -> Result<(), Problem> {
    if mounts.len() > ENTRIES_MAX {
        return Err(Problem::new(
            Code::InvalidMount,
            format!("more than {ENTRIES_MAX} mounts"),
            "mount a directory that holds them",
        ));
    }
    Ok(())
}

/// Refuses paths at which nothing can be mounted, and paths in one another.
pub(crate) fn check_targets(targets: &[&GuestPath]) -> Result<(), Problem> {
    let refuse = |target: &GuestPath, why: &str, help: &str| {
        Err(Problem::new(Code::InvalidMount, format!("mount target {target} {why}"), help))
    };
    for (index, target) in targets.iter().enumerate() {
        if RESERVED.iter().any(|reserved| target.is_within(reserved)) || HELD.contains(&target.as_str()) {
            return refuse(target, "belongs to the sandbox itself", "choose another path, such as /data or /mnt/NAME");
        }
        for other in &targets[..index] {
            if target.is_within(other.as_str()) || other.is_within(target.as_str()) {
                return refuse(target, &format!("overlaps {other}"), "give each mount a separate path");
            }
        }
    }
    Ok(())
}

fn read_only() -> Access {
    Access::ReadOnly
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_read_from_the_command_line() {
        let mount = Mount::parse("/srv/a:b:/data:rw").unwrap();
        assert_eq!((mount.host.as_str(), mount.guest.as_str(), mount.access), ("/srv/a:b", "/data", Access::ReadWrite));
        assert_eq!(Mount::parse("/srv:/data").unwrap().access, Access::ReadOnly);
        for wrong in ["", "/srv", "/srv:data", ":/data", "/srv:/data:wr", "/srv:/data/../etc"] {
            assert!(Mount::parse(wrong).is_err(), "{wrong}");
        }
    }
}
