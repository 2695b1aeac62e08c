//! The settings that users have for all of their repositories, and the homes that paths in settings begin with.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// No list of users is longer.
const PASSWD_LEN_MAX: u64 = 16 << 20;

/// Whose git will be used on a workspace: whoever runs us, or its owner.
#[derive(Debug, Default)]
pub(super) struct Personal {
    homes: Vec<PathBuf>,
}

impl Personal {
    pub(super) fn of(owner: u32) -> Self {
        let mut homes: Vec<PathBuf> = std::env::var_os("HOME").map(PathBuf::from).into_iter().collect();
        if owner != rustix::process::geteuid().as_raw() {
            homes.extend(home_where(|fields| fields.get(2) == Some(&owner.to_string().as_bytes())));
        }
        homes.retain(|home| home.is_absolute());
        Self { homes }
    }

    /// Where git keeps such settings.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let mut files = vec![PathBuf::from("/etc/gitconfig")];
        files.extend(std::env::var_os("XDG_CONFIG_HOME").map(|directory| Path::new(&directory).join("git/config")));
        for home in &self.homes {
            files.extend([home.join(".config/git/config"), home.join(".gitconfig")]);
        }
        files.retain(|file| file.is_absolute());
        files
    }

    /// A path as git understands it in its settings: `~` and `~name` are homes. What can't be understood is an error.
    pub(super) fn expand(&self, value: &[u8]) -> Result<Vec<PathBuf>, Errno> {
        let value = value.strip_prefix(b":(optional)").unwrap_or(value);
        if value.starts_with(b"%(prefix)/") {
            return Err(Errno::NOTSUP);
        }
        let Some(rest) = value.strip_prefix(b"~") else {
            // An empty one leads nowhere.
            return Ok(if value.is_empty() {
                Vec::new()
            } else {
                vec![PathBuf::from(OsString::from_vec(value.to_vec()))]
            });
        };
        let (name, tail) = match rest.iter().position(|byte| *byte == b'/') {
            Some(slash) => (&rest[..slash], &rest[slash + 1..]),
            None => (rest, &b""[..]),
        };
        let tail = std::ffi::OsStr::from_bytes(tail);
        if name.is_empty() {
            return Ok(self.homes.iter().map(|home| home.join(tail)).collect());
        }
        let home = home_where(|fields| fields.first() == Some(&name)).ok_or(Errno::NOTSUP)?;
        Ok(vec![home.join(tail)])
    }
}

/// The home of the first user that fits.
fn home_where(fits: impl Fn(&[&[u8]]) -> bool) -> Option<PathBuf> {
    let file = std::fs::File::open("/etc/passwd").ok()?;
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, PASSWD_LEN_MAX), &mut text).ok()?;
    text.split(|byte| *byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        let home = fields.get(5).filter(|_| fits(&fields))?;
        Some(PathBuf::from(OsString::from_vec(home.to_vec())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_are_found_by_name_and_what_is_not_understood_is_an_error() {
        let personal = Personal { homes: vec![PathBuf::from("/home/one"), PathBuf::from("/home/two")] };
        let paths = |all: &[&str]| Ok(all.iter().map(PathBuf::from).collect::<Vec<_>>());
        for (value, expected) in [
            (".githooks", paths(&[".githooks"])),
            ("~/hooks", paths(&["/home/one/hooks", "/home/two/hooks"])),
            ("~root/hooks", paths(&["/root/hooks"])),
            (":(optional)~/a", paths(&["/home/one/a", "/home/two/a"])),
            ("", paths(&[])),
            ("%(prefix)/hooks", Err(Errno::NOTSUP)),
            ("~nobody-of-this-name/hooks", Err(Errno::NOTSUP)),
        ] {
            assert_eq!(personal.expand(value.as_bytes()), expected, "{value}");
        }
    }
}
