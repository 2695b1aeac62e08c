//! The host's git, on a place's repositories.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::Place;

/// The program that git runs if it obeys a sandbox: it leaves a mark.
pub const PROGRAM: &str = "touch $MARK; false";

/// The host's git with `variables`, without this machine's settings.
pub fn host_git_with(place: &Place, directory: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=host", "-c", "user.email=host@example.org", "-c", "safe.directory=*"]);
    command.arg("-C").arg(directory).args(arguments);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", place.path("home"));
    command.env("MARK", place.path("mark")).envs(variables.iter().copied()).stdin(Stdio::null());
    command.output().expect("git is installed by make test")
}

/// The host's git, with the repository's own settings only.
pub fn host_git(place: &Place, directory: &Path, arguments: &[&str]) -> Output {
    host_git_with(place, directory, &[], arguments)
}

/// The output of the host's git, which must succeed.
pub fn git(place: &Place, directory: &Path, arguments: &[&str]) -> String {
    let output = host_git(place, directory, arguments);
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("git speaks UTF-8")
}

pub fn repository(place: &Place, name: &str) -> PathBuf {
    place.write(&format!("{name}/file"), "one\n");
    let top = place.path(name);
    git(place, &top, &["init", "--quiet", "--initial-branch=main", "--template="]);
    git(place, &top, &["add", "file"]);
    git(place, &top, &["commit", "--quiet", "--message=one"]);
    top
}

/// Whether the host's git runs the program when it is used in a directory, whether or not its command succeeds.
pub fn is_misled_in(place: &Place, directory: &Path, arguments: &[&str]) -> bool {
    // With a damaged repository git may fail, but it must not run anything.
    host_git(place, directory, arguments);
    place.path("mark").exists()
}
