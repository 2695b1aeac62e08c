//! Where `saggar run` finds secrets: a file that only its owner may read, and the keyring. Values are not read here: the egress process
//! gets the files.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use saggar_domain::secret::SecretName;
use saggar_domain::{Code, Problem, Spec};
use saggar_given::{GivenFileError, open_given_file};
use saggar_sandbox::{HostTree, secrets_in_keyring};

/// Maximum length of a secrets file, in bytes. The egress process has the same.
const FILE_LEN_MAX: u64 = 1 << 20;

/// The files that have the secrets of a spec. A file that is named is the only one.
pub(crate) fn open(named: Option<&Path>, spec: &Spec) -> Result<Vec<OwnedFd>, Problem> {
    if spec.secrets.is_empty() {
        return Ok(Vec::new());
    }
    if let Some(path) = named {
        return Ok(vec![file(path, spec)?]);
    }
    let names: Vec<SecretName> = spec.secrets.iter().map(|used| used.name.clone()).collect();
    let mut files = Vec::from_iter(secrets_in_keyring(&names)?);
    match default_path() {
        Some(path) if path.exists() => files.push(file(&path, spec)?),
        _ if files.is_empty() => {
            let used = &names[0];
            return Err(Problem::new(
                Code::InvalidValue,
                format!("the secret {used} is neither in a secrets file nor in the keyring"),
                "write it to ~/.config/saggar/secrets.toml, or name a file with `--secrets`; docs/secrets.md shows how",
            ));
        }
        _ => {}
    }
    Ok(files)
}

/// The file that is used if none is named; `None` without a home directory.
pub fn default_path() -> Option<PathBuf> {
    let named = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let settings = named("XDG_CONFIG_HOME").or_else(|| Some(named("HOME")?.join(".config")))?;
    Some(settings.join("saggar/secrets.toml"))
}

fn file(path: &Path, spec: &Spec) -> Result<OwnedFd, Problem> {
    let fail = |why: &str, help: &str| {
        Problem::new(Code::InvalidValue, format!("the secrets file {:?} {why}", path.display().to_string()), help)
    };
    let unusable = |error: GivenFileError| fail(&error.to_string(), error.help());
    let file = open_given_file(path, FILE_LEN_MAX).map_err(unusable)?;
    let metadata = file.metadata().map_err(|error| unusable(GivenFileError::Unreadable(error)))?;
    if metadata.mode() & 0o077 != 0 {
        return Err(fail("can be read by other users", "let only its owner read it: chmod 600 FILE"));
    }
    let user = rustix::process::geteuid();
    if metadata.uid() != user.as_raw() && !user.is_root() {
        return Err(fail("belongs to another user", "use a file of your own"));
    }
    if metadata.nlink() > 1 {
        return Err(fail(
            "has several names (hard links), and the sandbox may see one of them",
            "make a copy of it, and use that",
        ));
    }
    if is_shown(path, spec) {
        return Err(fail(
            "is in or under something that the sandbox sees",
            "move it out of the workspace and of mounts",
        ));
    }
    Ok(file.into())
}

/// Whether programs in the sandbox could read it.
fn is_shown(path: &Path, spec: &Spec) -> bool {
    let Ok(path) = path.canonicalize() else { return true };
    let mut trees = spec.workspace.iter().chain(spec.mounts.iter().map(|mount| &mount.host));
    // What can't be opened is reported when the sandbox is created.
    trees.any(|tree| HostTree::open(tree, Code::InvalidMount, "").is_ok_and(|tree| tree.holds(&path)))
}
