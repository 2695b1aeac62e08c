//! Sandbox ids are capabilities: public ports, and E2B's port addresses, need nothing else. No local user may list
//! them.

mod harness;
mod http;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::cgroups_of;
use http::{Server, eventually};
use serde_json::json;

const STRANGER: u32 = 54_321;

/// Everything that any user of the host may read and that could name a sandbox.
const LOOK: &str = "cat /proc/net/unix /proc/locks /proc/mounts /proc/keys /proc/key-users /proc/sysvipc/* /proc/[0-9]*/cmdline \
    /proc/[0-9]*/cgroup /proc/[0-9]*/comm /proc/[0-9]*/mountinfo /proc/[0-9]*/net/unix /proc/[0-9]*/status /proc/[0-9]*/task/*/comm 2>/dev/null; \
    find /sys/fs/cgroup /run /dev/shm /var/lib /tmp 2>/dev/null; echo looked";

/// What an unprivileged user sees.
fn seen_by_anybody() -> String {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", LOOK]).stdin(Stdio::null()).current_dir("/");
    if harness::is_root() {
        command.uid(STRANGER).gid(STRANGER);
    }
    let output = command.output().expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.ends_with("looked\n"), "it did not look to the end");
    text
}

/// The control sockets that are ready. While one is made, its name is an alias that everybody may see.
fn sockets(data: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(data.join("control")).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with('.')).collect()
}

#[test]
fn no_local_user_can_list_ids_of_live_sandboxes() {
    if !harness::is_root() {
        // The owner of the sandboxes may see their names; only root can switch to another user.
        return harness::not_here("only root can become another user");
    }
    let server = Server::start_with(&["--pool-min", "1", "--pool-max", "1"]);
    let sandbox = server.sandbox();
    // With everything in use that a sandbox has: a followed program, a limited exec, a connection into it.
    let id = sandbox.rsplit('/').next().expect("an id").to_owned();
    let body = json!({ "command": "echo begun; sleep 60" });
    let mut events = server.follow(
        "POST",
        &format!("{sandbox}/execs"),
        &["Content-Type: application/json"],
        body.to_string().as_bytes(),
    );
    events.until("stdout");
    let mut ids = vec![id.clone()];
    eventually("one is kept ready", || sockets(&server.data()).len() > 1);
    ids.extend(sockets(&server.data()).iter().map(|name| name.trim_end_matches(".sock").to_owned()));
    let seen = seen_by_anybody();
    // Control: the searched text does contain what Saggar puts there.
    let cgroup = cgroups_of(&id).pop();
    let name = cgroup.as_ref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned());
    assert!(name.is_none_or(|name| seen.contains(&name)), "the look misses what is there");
    assert!(seen.contains("__supervise"), "the look misses processes");
    for id in ids {
        let secret = id.trim_start_matches("sbx_");
        let lines: Vec<&str> = seen.lines().filter(|line| line.contains(secret)).collect();
        assert_eq!(lines, Vec::<&str>::new(), "any user can read {id}");
    }
}
