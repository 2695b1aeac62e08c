//! The settings that users and hosts have for all repositories, and the home directories that paths in settings refer
//! to.
//!
//! This only finds the names of these files. It doesn't ask git: outside a repository git leaves out what `includeIf`
//! adds for one, and a `git` on PATH may be a file that a sandbox wrote. If several places are possible all of them are
//! read.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::config::Setting;

/// Maximum number of settings read from the environment.
const FROM_ENVIRONMENT_MAX: usize = 256;
/// Maximum length of the list of users.
const PASSWD_LEN_MAX: u64 = 16 << 20;

/// The user whose git will be used on a workspace: the current user, or the workspace's owner.
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

    /// The files in which git keeps such settings. Some of them may be absent, or links.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let mut files = vec![PathBuf::from("/etc/gitconfig"), PathBuf::from("/usr/local/etc/gitconfig")];
        files.extend(prefixes().into_iter().map(|prefix| prefix.join("etc/gitconfig")));
        for variable in ["GIT_CONFIG_SYSTEM", "GIT_CONFIG_GLOBAL"] {
            files.extend(std::env::var_os(variable).map(PathBuf::from));
        }
        files.extend(std::env::var_os("XDG_CONFIG_HOME").map(|directory| Path::new(&directory).join("git/config")));
        for home in &self.homes {
            files.extend([home.join(".config/git/config"), home.join(".gitconfig")]);
        }
        files.retain(|file| file.is_absolute());
        let mut seen = std::collections::BTreeSet::new();
        files.retain(|file| seen.insert(file.clone()));
        files
    }

    /// Settings in the environment itself, as `git -c` and some shell setups put them there.
    pub(super) fn from_environment() -> Vec<Setting> {
        let variable = |name: &str| std::env::var_os(name).map(OsString::into_vec);
        let count = std::env::var("GIT_CONFIG_COUNT").ok().and_then(|count| count.parse().ok()).unwrap_or(0);
        let numbered = (0..usize::min(count, FROM_ENVIRONMENT_MAX)).filter_map(|number| {
            let key = variable(&format!("GIT_CONFIG_KEY_{number}"))?;
            Some(Setting::new(&key, variable(&format!("GIT_CONFIG_VALUE_{number}"))))
        });
        let template = variable("GIT_TEMPLATE_DIR").map(|value| Setting::new(b"init.templatedir", Some(value)));
        numbered.chain(template).collect()
    }

    /// Whether a setting's value is a path that is the same in every repository.
    pub(super) fn is_whole_path(&self, setting: &Setting) -> bool {
        let paths = setting.value.as_deref().and_then(|value| self.expand(value).ok()).unwrap_or_default();
        !paths.is_empty() && paths.iter().all(|path| path.is_absolute())
    }

    /// Expands a path as git does in its settings: `~` and `~name` are home directories. Fails if it can't be expanded.
    pub(super) fn expand(&self, value: &[u8]) -> Result<Vec<PathBuf>, Errno> {
        let value = value.strip_prefix(b":(optional)").unwrap_or(value);
        if value.starts_with(b"%(prefix)/") {
            return Err(Errno::NOTSUP);
        }
        let Some(rest) = value.strip_prefix(b"~") else {
            // An empty path leads nowhere.
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

/// Prefixes of the gits on PATH. One outside `/usr` reads its system-wide settings below its own prefix.
fn prefixes() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).filter(|directory| directory.is_absolute());
    let programs = directories.map(|directory| directory.join("git")).filter(|program| program.is_file());
    let above = |program: &Path| program.parent().and_then(Path::parent).map(Path::to_owned);
    // A package manager may have put a link there.
    programs
        .flat_map(|program| [above(&program), program.canonicalize().ok().as_deref().and_then(above)])
        .flatten()
        .collect()
}

/// The home directory of the first matching user.
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
