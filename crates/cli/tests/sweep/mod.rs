//! Cleans up after a failed test: kills every process that works in its directory, reaps its sandboxes, and removes
//! the directory.
//!
//! A test that panics sweeps itself. A killed test can't, so a shell waits beside it, in its own process group, until
//! the pipe between the two is closed, which the kernel does however the test ends. If nothing is left by then, it
//! does nothing.

// Each test file links its own copy and uses a part of it.
#![allow(dead_code)]

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Reads directories from stdin, one per line, and sweeps them at the end of the input. Names come by stdin and not
/// as arguments, so that the shell doesn't find itself. `$1` is the binary, `$2` the process to spare.
const SWEEP: &str = r#"
roots=
while read -r root; do roots="$roots $root"; done
for root in $roots; do
    [ -d "$root" ] || continue
    for round in 1 2 3; do
        killed=
        for pid in $( {
            printf '%s/' "$root" | grep -slF -f - /proc/[0-9]*/cmdline /proc/[0-9]*/environ
            find /proc/[0-9]*/fd /proc/[0-9]*/cwd \( -lname "$root" -o -lname "$root/*" \) 2>/dev/null
        } | cut -d/ -f3 | sort -u); do
            [ "$pid" = $$ ] || [ "$pid" = "$2" ] || { kill -9 "$pid" 2>/dev/null && killed=yes; }
        done
        [ -n "$killed" ] || break
    done
    [ -d "$root/data/sandboxes" ] && (cd / && SAGGAR_DATA_DIR="$root/data" "$1" run -- /bin/true)
    rm -rf "$root"
done
"#;

fn shell(spared: u32) -> Child {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", SWEEP, "sh", env!("CARGO_BIN_EXE_saggar"), &spared.to_string()]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SAGGAR_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/").process_group(0);
    command.spawn().expect("a shell")
}

/// Sweeps this directory when the test process is gone.
pub fn when_gone(root: &Path) {
    static WATCHER: OnceLock<Mutex<ChildStdin>> = OnceLock::new();
    // It outlives us, so it is not waited for.
    let watcher = WATCHER.get_or_init(|| Mutex::new(shell(0).stdin.take().expect("a pipe")));
    let mut watcher = watcher.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(watcher, "{}", plain(root).display()).expect("it reads");
}

/// Without a slash at the end, because the kernel shows paths without one and the sweep compares text.
fn plain(root: &Path) -> PathBuf {
    root.components().collect()
}

/// Sweeps it now. Never panics, because it runs during another panic.
pub fn now(root: &Path) {
    let mut shell = shell(std::process::id());
    if let Some(mut stdin) = shell.stdin.take() {
        // A shell that is gone has done what it could.
        let _ = writeln!(stdin, "{}", plain(root).display());
    }
    // As above.
    let _ = shell.wait();
}
