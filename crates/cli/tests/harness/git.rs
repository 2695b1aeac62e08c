//! The host's git, on repositories of a place.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::Place;

/// What the host's git runs when it obeys a sandbox: it leaves a mark.
pub const PROGRAM: &str = "touch $MARK; false";

/// The host's git with `variables`, and no settings of this machine's.
pub fn host_git_with(place: &Place, directory: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=host", "-c", "user.email=host@example.org", "-c", "safe.directory=*"]);
    command.arg("-C").arg(directory).args(arguments);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", place.path("home"));
    command.env("MARK", place.path("mark")).envs(variables.iter().copied()).stdin(Stdio::null());
    command.output().expect("git is installed by make test")
}

/// The host's git, with no settings but the repository's own.
pub fn host_git(place: &Place, directory: &Path, arguments: &[&str]) -> Output {
    host_git_with(place, directory, &[], arguments)
}

/// What the host's git says, when it must succeed.
pub fn git(place: &Place, directory: &Path, arguments: &[&str]) -> String {
    let output = host_git(place, directory, arguments);
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("git speaks UTF-8")
}

/// A repository with one commit.
pub fn repository(place: &Place, name: &str) -> PathBuf {
    place.write(&format!("{name}/file"), "one\n");
    let top = place.path(name);
    git(place, &top, &["init", "--quiet", "--initial-branch=main", "--template="]);
    git(place, &top, &["add", "file"]);
    git(place, &top, &["commit", "--quiet", "--message=one"]);
    top
}

/// Whether the host's git runs the program when it is used in a directory, whatever comes of its command.
pub fn is_misled_in(place: &Place, directory: &Path, arguments: &[&str]) -> bool {
    // With a repository that was damaged git may fail; what it may not do is run anything.
    host_git(place, directory, arguments);
    place.path("mark").exists()
}
