//! The server's Unix socket: who may connect, and that a user of the host gets the directories that are open to that user and no others.

mod harness;
mod http;

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{is_root, not_here};
use http::{Answer, Server, command, new_directory};
use rustix::fs::{AtFlags, CWD, Gid, Uid, chownat};
use serde_json::{Value, json};

const SANDBOXES: &str = "/api/v1/sandboxes";
/// Users that own nothing else.
const ME: u32 = 61_234;
const OTHER: u32 = 61_235;
const ROOT: u32 = 0;

struct World {
    server: Server,
    socket: PathBuf,
    /// A directory of the first user.
    mine: PathBuf,
    /// A directory of root's, closed to everyone else.
    theirs: PathBuf,
}

impl World {
    fn new() -> Self {
        let root = new_directory();
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755)).expect("ours");
        let (mine, theirs, socket) = (root.join("mine"), root.join("theirs"), root.join("socket"));
        for directory in [&mine, &theirs.join("inner")] {
            std::fs::create_dir_all(directory).expect("ours");
        }
        std::fs::write(mine.join("page"), "one\n").expect("ours");
        std::fs::write(mine.join("other"), "one\n").expect("ours");
        std::fs::write(mine.join("secret"), "of root\n").expect("ours");
        std::fs::write(theirs.join("inner/file"), "of root\n").expect("ours");
        symlink(&theirs, mine.join("link")).expect("ours");
        for (path, owner, mode) in [
            (mine.clone(), ME, 0o700),
            (mine.join("page"), ME, 0o644),
            (mine.join("other"), ME, 0o644),
            (mine.join("secret"), ROOT, 0o600),
            (theirs.clone(), ROOT, 0o700),
        ] {
            let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
            chownat(CWD, &path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).expect("root may");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("ours");
        }
        let server = Server::start_in(root, &["--socket", &socket.display().to_string()]);
        Self { server, socket, mine, theirs }
    }

    /// A request through the socket, as a user of the host.
    fn request(&self, user: u32, method: &str, path: &str, headers: &[&str], body: &Value) -> Answer {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-m", "60", "-w", "\n%{http_code} %{content_type}", "-X", method, "--unix-socket"]);
        curl.arg(&self.socket).arg(format!("http://localhost{path}")).current_dir("/");
        if !body.is_null() {
            curl.args(["-H", "Content-Type: application/json", "-d", &body.to_string()]);
        }
        for header in headers {
            curl.args(["-H", header]);
        }
        let ran = curl.uid(user).gid(user).output().expect("curl is installed");
        assert!(ran.status.success(), "{ran:?}");
        let text = String::from_utf8(ran.stdout).expect("text");
        let (body, last) = text.rsplit_once('\n').expect("its own line");
        let (status, media) = last.split_once(' ').expect("both");
        let headers = vec![("content-type".to_owned(), media.to_owned())];
        Answer { status: status.parse().expect("a number"), headers, body: body.as_bytes().to_vec() }
    }

    fn ask(&self, user: u32, method: &str, path: &str, body: &Value) -> Answer {
        self.request(user, method, path, &[&format!("Authorization: Bearer {}", self.server.key)], body)
    }

    fn create(&self, user: u32, directory: &Path) -> Answer {
        self.ask(user, "POST", SANDBOXES, &json!({ "directory": directory }))
    }
}

#[test]
fn a_directory_is_opened_for_the_user_who_connected_and_for_no_key_over_tcp() {
    if !is_root() {
        return not_here("only root acts for other users");
    }
    let world = World::new();
    let asked = json!({ "directory": world.mine });
    world.server.post(SANDBOXES, &asked).problem(403, "forbidden");
    world.request(ME, "POST", SANDBOXES, &[], &asked).problem(401, "unauthorized");
    let key = format!("Authorization: Bearer {}", world.server.key);
    for proxied in ["X-Forwarded-For: 192.0.2.1", "Forwarded: for=192.0.2.1", "Via: 1.1 proxy", "X-Real-IP: 192.0.2.1"]
    {
        world.request(ME, "POST", SANDBOXES, &[&key, proxied], &asked).problem(403, "forbidden");
    }
    let both = json!({ "directory": world.mine, "workspace": "site" });
    world.ask(ME, "POST", SANDBOXES, &both).problem(400, "contradiction");

    let server = world.server.pid();
    let closed = [
        (OTHER, world.mine.clone()),
        (ME, world.theirs.clone()),
        (ME, world.theirs.join("inner")),
        (ME, world.theirs.join("absent")),
        (ME, world.mine.join("link")),
        (ME, world.mine.join("link/inner")),
        (ME, world.mine.join("page")),
        (ME, world.server.data()),
        (ME, PathBuf::from("relative")),
        (ME, PathBuf::from("/")),
        (ME, PathBuf::from(format!("/proc/{server}/root{}", world.mine.display()))),
        (ME, PathBuf::from(format!("/proc/{server}/root{}", world.theirs.join("inner").display()))),
        (ME, PathBuf::from("/proc/self/fd/0/.")),
        (65_534, world.mine.clone()),
        // An id of a sandbox, whose workspace may hold the socket.
        (0x7000_0000 + 1000, world.mine.clone()),
    ];
    for (user, directory) in closed {
        let problem = world.create(user, &directory).problem(400, "invalid_workspace");
        assert!(!problem.to_string().contains("of root"), "{problem}");
    }
    // What a link leads to is told to nobody who can't follow it.
    let [absent, inner] = ["absent", "inner"].map(|name| {
        let problem = world.create(ME, &world.theirs.join(name)).problem(400, "invalid_workspace");
        problem["detail"].as_str().expect("text").replace(name, "NAME")
    });
    assert_eq!(absent, inner);

    let created = world.create(ME, &world.mine).expect(201);
    let sandbox = format!("{SANDBOXES}/{}", created["id"].as_str().expect("it has one"));
    let script = "cat page; cat secret 2>/dev/null || echo closed; cat link/inner/file 2>/dev/null || echo closed; \
                  echo two | tee page > other; rm -f secret; echo new > new; chmod 4755 new 2>/dev/null; pwd";
    for user in ["user", "root"] {
        let asked = json!({ "command": "cat secret", "user": user });
        let ran = world.server.post(&format!("{sandbox}/execs"), &asked).expect(200);
        assert!(ran["exit_code"] != 0 && ran["stdout"] == "", "as {user}: {ran}");
    }
    assert_eq!(world.server.sh(&sandbox, script)["stdout"], "one\nclosed\nclosed\n/workspace\n");
    assert_eq!(world.server.delete(&sandbox).status, 200);
    assert_eq!(std::fs::read_to_string(world.mine.join("page")).expect("it is there"), "one\n");

    // Only that user, and root, compare and apply them.
    let changes = format!("{sandbox}/changes");
    let diff = format!("{changes}/diff");
    world.server.get(&diff).problem(403, "forbidden");
    world.ask(OTHER, "GET", &diff, &Value::Null).problem(403, "forbidden");
    world.server.post(&format!("{changes}/apply"), &json!({})).problem(403, "forbidden");
    world.ask(OTHER, "POST", &format!("{changes}/apply"), &json!({})).problem(403, "forbidden");
    for user in [ME, ROOT] {
        let compared = world.ask(user, "GET", &diff, &Value::Null).expect(200);
        let item = |path: &str| {
            let items = compared["items"].as_array().expect("a list");
            items.iter().find(|item| item["path"] == path).unwrap_or_else(|| panic!("{path}: {compared}")).clone()
        };
        assert_eq!(item("page")["diff"], "--- a/page\n+++ b/page\n@@ -1 +1 @@\n-one\n+two\n");
        assert!(item("new")["diff"].as_str().is_some_and(|diff| diff.contains("+new")));
        // Another file in its place that the user can't read is not shown to anyone.
        let page = world.mine.join("other");
        std::fs::rename(&page, world.mine.join("aside")).expect("root may");
        std::fs::hard_link(world.mine.join("secret"), &page).expect("root may");
        let compared = world.ask(user, "GET", &format!("{diff}?path=other"), &Value::Null).expect(200);
        assert_eq!(compared["items"][0]["reason"], "not_text", "{compared}");
        std::fs::rename(world.mine.join("aside"), &page).expect("root may");
    }
    let one = world.ask(ME, "GET", &format!("{diff}?path=new"), &Value::Null).expect(200);
    assert_eq!(one["items"].as_array().map(Vec::len), Some(1));
    world.ask(ME, "GET", &format!("{diff}?path=lost"), &Value::Null).problem(400, "invalid_value");

    let url = format!("unix:{}", world.socket.display());
    let id = created["id"].as_str().expect("it has one");
    let told = |arguments: &[&str]| {
        let mut command = command(arguments);
        let ran = command.args(["--url", &url, "--api-key", &world.server.key]).output().expect("the binary was built");
        (String::from_utf8(ran.stdout).expect("text"), ran.status.code())
    };
    let (listed, status) = told(&["changes", "list", id]);
    assert!(listed.contains("modified  page\n") && status == Some(0), "{listed}");
    let (compared, status) = told(&["changes", "diff", id, "./page"]);
    assert_eq!((compared.as_str(), status), ("--- a/page\n+++ b/page\n@@ -1 +1 @@\n-one\n+two\n", Some(0)));

    let applied = world.ask(ME, "POST", &format!("{changes}/apply"), &json!({})).expect(200);
    let is_applied = |path: &str| {
        let items = applied["items"].as_array().expect("a list");
        items.iter().any(|item| item["path"] == path && item["applied"] == true)
    };
    assert!(is_applied("page") && is_applied("new") && !is_applied("other"), "{applied}");
    assert_eq!(std::fs::read_to_string(world.mine.join("page")).expect("it is there"), "two\n");
    let new = world.mine.join("new").metadata().expect("it was applied");
    assert_eq!((new.uid(), new.gid(), new.mode() & 0o7000), (ME, ME, 0));
}

#[test]
fn a_command_names_a_directory_by_its_path_through_the_socket() {
    if !is_root() {
        return not_here("only root acts for other users");
    }
    let world = World::new();
    let url = format!("unix:{}", world.socket.display());
    let key = world.server.key.clone();
    let told = |arguments: &[&str], url: &str| {
        let mut command = command(&arguments[..2]);
        command.args(["--url", url, "--api-key", &key]).args(&arguments[2..]);
        command.current_dir(world.mine.parent().expect("it has one"));
        let ran = command.output().expect("the binary was built");
        let text = String::from_utf8_lossy(if ran.stdout.is_empty() { &ran.stderr } else { &ran.stdout }).into_owned();
        (text, ran.status.code())
    };
    let tcp = format!("http://{}", world.server.address);
    let (refused, status) = told(&["sandbox", "create", "--workspace", "./mine"], &tcp);
    assert!(refused.contains("Unix socket") && status == Some(1), "{refused}");
    let (created, status) = told(&["sandbox", "create", "--workspace", "./mine"], &url);
    assert_eq!(status, Some(0), "{created}");
    let id = created.trim();
    let (ran, _) = told(&["sandbox", "exec", id, "--", "sh", "-c", "cat page; echo two > page"], &url);
    assert_eq!(ran, "one\n");
    // A terminal and streams go through the socket as well.
    told(&["sandbox", "kill", id], &url);
    assert_eq!(told(&["changes", "apply", id, "page"], &url), ("applied   page\n".to_owned(), Some(0)));
    assert_eq!(std::fs::read_to_string(world.mine.join("page")).expect("it is there"), "two\n");
    assert_eq!(told(&["changes", "drop", id], &url).1, Some(1), "nothing is left to drop");
    assert_eq!(world.mine.join("page").metadata().expect("it is there").uid(), ME);
}

#[test]
fn the_socket_is_replaced_after_a_kill_and_nothing_else_is() {
    let root = new_directory();
    let socket = root.join("socket");
    let flags = ["--socket", socket.to_str().expect("text"), "--socket-mode", "0600"];
    let mut server = Server::start_in(root.clone(), &flags);
    let mode = |path: &Path| path.symlink_metadata().expect("it is there").mode() & 0o777;
    assert_eq!(mode(&socket), 0o600);
    // A second server takes none that is in use.
    let second = root.join("second");
    let refused = |flags: &[&str]| {
        let mut command = command(&["serve", "--port", "0", "--data-dir"]);
        let ran = command.arg(&second).args(flags).output().expect("the binary was built");
        assert_eq!(ran.status.code(), Some(125), "{ran:?}");
        String::from_utf8(ran.stderr).expect("text")
    };
    assert!(refused(&flags).contains("another program listens"));
    server.kill();
    assert!(socket.symlink_metadata().expect("it was left").file_type().is_socket());
    server.begin();
    let url = format!("unix:{}", socket.display());
    let listed = command(&["sandbox", "list", "--url", &url, "--api-key", &server.key]).output().expect("built");
    assert!(listed.status.success(), "{listed:?}");
    assert_eq!(server.stop(), Some(0));
    assert!(!socket.exists(), "it was not removed at the end");
    let file = root.join("file");
    std::fs::write(&file, "mine").expect("ours");
    assert!(refused(&["--socket", file.to_str().expect("text")]).contains("not a socket"));
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "mine");
    let long = format!("/{}", "x".repeat(200));
    assert!(refused(&["--socket", &long]).contains("107 bytes"));
    server.begin();
}

fn own(path: &Path, user: u32) {
    chownat(CWD, path, Some(Uid::from_raw(user)), Some(Gid::from_raw(user)), AtFlags::SYMLINK_NOFOLLOW)
        .expect("root may");
    if path.is_dir() && !path.is_symlink() {
        std::fs::read_dir(path).expect("ours").flatten().for_each(|entry| own(&entry.path(), user));
    }
}

fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(["-c", "safe.directory=*", "-c", "user.name=a", "-c", "user.email=a@a"]).args(arguments);
    let ran = command.current_dir(directory).env("GIT_CONFIG_NOSYSTEM", "1").output().expect("git is installed");
    assert!(ran.status.success(), "{arguments:?}: {ran:?}");
    String::from_utf8(ran.stdout).expect("text")
}

/// The repository of a user is read and written with that user's rights alone: links that lead out of it, and objects that are closed to
/// the user, are refused.
#[test]
fn a_worktree_of_a_user_is_made_and_applied_with_that_users_rights() {
    if !is_root() {
        return not_here("only root acts for other users");
    }
    let world = World::new();
    let mine = &world.mine;
    git(mine, &["init", "-q"]);
    git(mine, &["add", "page"]);
    git(mine, &["commit", "-q", "-m", "one"]);
    git(mine, &["gc", "-q"]);
    own(&mine.join(".git"), ME);
    let worktree = || world.ask(ME, "POST", SANDBOXES, &json!({ "directory": mine, "fs": "worktree" }));
    let pack = std::fs::read_dir(mine.join(".git/objects/pack")).expect("ours").flatten();
    let pack =
        pack.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|end| end == "pack")).expect("packed");
    // An object of root's, and one behind a link.
    own(&pack, ROOT);
    std::fs::set_permissions(&pack, std::fs::Permissions::from_mode(0o400)).expect("ours");
    worktree().problem(400, "invalid_workspace");
    own(&pack, ME);
    let moved = world.theirs.join("pack");
    std::fs::rename(&pack, &moved).expect("ours");
    symlink(&moved, &pack).expect("ours");
    worktree().problem(400, "invalid_workspace");
    std::fs::remove_file(&pack).expect("ours");
    std::fs::rename(&moved, &pack).expect("ours");

    let made = worktree().expect(201);
    let sandbox = format!("{SANDBOXES}/{}", made["id"].as_str().expect("an id"));
    let ran = world.server.sh(&sandbox, "ls; git config user.name a; git config user.email a@a; echo two >> page; git commit -qam two && git log --oneline | wc -l");
    assert_eq!(ran["stdout"], "page\n2\n", "{ran}");
    world.server.delete(&sandbox);
    let changes = format!("{sandbox}/changes");
    world.server.post(&format!("{changes}/apply"), &json!({})).problem(403, "forbidden");
    world.ask(OTHER, "POST", &format!("{changes}/apply"), &json!({})).problem(403, "forbidden");
    // Nothing is written through a link that leads out of the repository.
    let heads = mine.join(".git/refs/heads");
    std::fs::rename(&heads, mine.join(".git/refs/was")).expect("ours");
    symlink(&world.theirs, &heads).expect("ours");
    world.ask(ME, "POST", &format!("{changes}/apply"), &json!({})).problem(400, "invalid_workspace");
    assert!(!world.theirs.join("saggar").exists());
    std::fs::remove_file(&heads).expect("ours");
    std::fs::rename(mine.join(".git/refs/was"), &heads).expect("ours");
    let applied = world.ask(ME, "POST", &format!("{changes}/apply"), &json!({})).expect(200);
    let branch = applied["branch"]["name"].as_str().expect("a name");
    assert_eq!(git(mine, &["show", &format!("{branch}:page")]), "one\ntwo\n");
    assert_eq!(heads.join(branch).metadata().expect("made").uid(), ME);
}
