//! Protected paths of a writable workspace stay unchanged, present or absent, whatever is tried on them or on their
//! parents.

mod harness;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use harness::probe::{self, REFUSED, check, check_all, compare};
use harness::tree::{names, tree};
use harness::{Place, finish, is_root, not_here, show};
use rustix::fs::{AtFlags, CWD, Gid, Uid};

const DIRECTORIES: &[&str] = &[".git/hooks", ".saggar"];
const FILES: &[&str] = &[".git/config", ".git/config.worktree", ".git/commondir"];

/// Every way to change a directory, or to replace it; the last one removes it.
const ON_DIRECTORY: &[&str] = &[
    "write('{}/new')",
    "os.mkdir('{}/made')",
    "os.symlink('/tmp', '{}/link')",
    "tmpfile('{}', name='{}/unnamed')",
    "os.rename(fresh('/etc/passwd'), '{}/moved')",
    "os.link(fresh('/etc/passwd'), '{}/linked')",
    "os.chmod('{}', 0o755)",
    "os.utime('{}', (1, 1))",
    "rename_away('{}')",
    "replace_by_link('{}')",
    "exchange('{}')",
    "rename_over('{}')",
    "os.rmdir('{}')",
];

/// The same for a file.
const ON_FILE: &[&str] = &[
    "write('{}')",
    "write('{}', os.O_APPEND)",
    "os.truncate('{}', 0)",
    "os.posix_fallocate(os.open('{}', os.O_RDWR), 0, 4096)",
    "os.chmod('{}', 0o644)",
    "os.utime('{}', (1, 1))",
    "os.setxattr('{}', 'user.mark', b'x')",
    "rename_away('{}')",
    "replace_by_link('{}')",
    "link_and_write('{}')",
    "exchange('{}')",
    "rename_over('{}')",
    "os.unlink('{}')",
];

/// Ways to move a directory that contains a protected path.
const ON_PARENT: &[&str] =
    &["rename_away('{}')", "replace_by_link('{}')", "exchange('{}')", "rename_over('{}')", "os.rmdir('{}')"];

/// A place whose workspace has a `.git`, so that its absent paths are held. Without one, `git init` may create it.
fn place_with_git() -> Place {
    let place = Place::new();
    std::fs::create_dir(place.path("workspace/.git")).expect("ours");
    place
}

fn on(attempts: &[&str], path: &str) -> Vec<String> {
    attempts.iter().map(|attempt| attempt.replace("{}", &format!("/workspace/{path}"))).collect()
}

fn on_all_defaults() -> Vec<String> {
    let directories = DIRECTORIES.iter().flat_map(|path| on(ON_DIRECTORY, path));
    let files = FILES.iter().flat_map(|path| on(ON_FILE, path));
    directories.chain(files).chain(on(ON_PARENT, ".git")).collect()
}

fn check_held(place: &Place, flags: &[&str], attempts: &[String]) {
    let attempts: Vec<&str> = attempts.iter().map(String::as_str).collect();
    check_all(place, flags, &attempts, REFUSED);
}

/// The contents of the workspace, without the attempts' own files.
fn kept(place: &Place) -> Vec<(String, String)> {
    let is_own = |name: &str| name.rsplit('/').next().is_some_and(|last| last.starts_with("own"));
    tree(&place.workspace()).into_iter().filter(|(name, _)| !is_own(name)).collect()
}

#[test]
fn the_attempts_work_where_nothing_is_protected() {
    let place = Place::new();
    place.write("workspace/plain/config", "host\n");
    std::fs::create_dir_all(place.path("workspace/plain/hooks")).unwrap();
    std::fs::create_dir_all(place.path("workspace/parent")).unwrap();
    let outcomes = |attempts: Vec<String>| {
        let attempts: Vec<&str> = attempts.iter().map(String::as_str).collect();
        check_all(&place, &["--workspace", &show(&place.workspace())], &attempts, "ok");
    };
    outcomes(on(ON_FILE, "plain/config"));
    // A directory that something was put into can't be replaced by a rename; the two lists together are complete.
    outcomes(on(&ON_DIRECTORY[..11], "plain/hooks"));
    outcomes(on(&ON_DIRECTORY[11..], "plain/hooks"));
    outcomes(on(ON_PARENT, "parent"));
}

#[test]
fn present_paths_stay_as_they_are() {
    for user in ["user", "root"] {
        let place = Place::new();
        place.write("workspace/.git/hooks/pre-commit", "#!/bin/sh\n");
        place.write("workspace/.saggar/policy.toml", "[policy]\n");
        for path in FILES {
            // A file that git reads as settings.
            place.write(&format!("workspace/{path}"), "# of the host\n");
        }
        let before = kept(&place);
        let workspace = show(&place.workspace());
        let flags = ["--workspace", &workspace, "--user", user];
        check_held(&place, &flags, &on_all_defaults());
        check_held(&place, &flags, &on(ON_FILE, ".git/hooks/pre-commit"));
        check_held(&place, &flags, &on(ON_FILE, ".saggar/policy.toml"));
        check(
            &place,
            &flags,
            &[
                ("read('/workspace/.git/hooks/pre-commit')", "#!/bin/sh"),
                ("read('/workspace/.git/config')", "# of the host"),
            ],
        );
        assert_eq!(kept(&place), before);
    }
}

#[test]
fn absent_paths_stay_absent() {
    for existing in [&[".git"][..], &[".git", ".git/hooks", ".saggar"]] {
        let place = Place::new();
        for directory in existing {
            std::fs::create_dir(place.path("workspace").join(directory)).unwrap();
        }
        let before = kept(&place);
        check_held(&place, &["--workspace", &show(&place.workspace())], &on_all_defaults());
        assert_eq!(kept(&place), before, "starting from {existing:?}");
        assert_eq!(place.records(), Vec::<String>::new());
    }
}

#[test]
fn empty_paths_of_the_users_own_are_not_taken_for_placeholders() {
    let place = Place::new();
    for path in FILES {
        place.write(&format!("workspace/{path}"), "");
    }
    let before = kept(&place);
    assert_eq!(place.sh(&["--workspace", &show(&place.workspace())], "true").code, 0);
    assert_eq!(kept(&place), before);
}

#[test]
fn more_paths_can_be_protected() {
    let place = Place::new();
    place.write("workspace/ci/deploy/key.yml", "of the host\n");
    place.write("workspace/AGENTS.md", "of the host\n");
    let before = kept(&place);
    let workspace = show(&place.workspace());
    let flags = [
        "--workspace",
        &workspace,
        "--protect",
        "ci/deploy/key.yml",
        "--protect",
        "AGENTS.md",
        "--protect",
        "absent/one.yml",
        "--protect",
        "absent/two/",
    ];
    let files = ["ci/deploy/key.yml", "AGENTS.md", "absent/one.yml"];
    let held: Vec<String> =
        files.iter().flat_map(|path| on(ON_FILE, path)).chain(on(ON_DIRECTORY, "absent/two")).collect();
    check_held(&place, &flags, &held);
    for parent in ["ci", "ci/deploy", "absent"] {
        check_held(&place, &flags, &on(ON_PARENT, parent));
    }
    assert_eq!(kept(&place), before);
    // Paths beside a protected one are not held, and without the flag nothing is.
    check(&place, &flags, &[("write('/workspace/ci/other')", "ok"), ("write('/workspace/ci/deploy/other')", "ok")]);
    check(&place, &flags[..2], &[("write('/workspace/ci/deploy/key.yml')", "ok")]);
}

#[test]
fn git_of_a_worktree_is_held_as_the_file_it_is() {
    let place = Place::new();
    place.write("workspace/.git", "gitdir: /srv/main/.git/worktrees/one\n");
    let before = kept(&place);
    check_held(&place, &["--workspace", &show(&place.workspace())], &on(ON_FILE, ".git"));
    assert_eq!(kept(&place), before);
}

#[test]
fn a_protected_path_behind_a_link_is_refused_before_start() {
    for (link, target) in [
        (".git", "elsewhere"),
        (".git/hooks", "../elsewhere"),
        (".git/config", "../elsewhere/config"),
        (".saggar", "elsewhere"),
        (".git", "/nowhere"),
    ] {
        let place = Place::new();
        place.write("workspace/elsewhere/config", "of the host\n");
        std::fs::create_dir_all(place.path("workspace").join(link).parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, place.path("workspace").join(link)).unwrap();
        let before = kept(&place);
        let workspace = show(&place.workspace());
        let done = place.run(&["--json", "--workspace", &workspace], &["/bin/sh", "-c", "touch started"]);
        assert_eq!(
            (done.code, done.json()["error"]["code"].as_str()),
            (126, Some("invalid_protect")),
            "{link}: {done:?}"
        );
        assert_eq!(kept(&place), before, "{link}");
        assert_eq!(place.records(), Vec::<String>::new());
        // Modes that write nothing to the host have nothing to protect.
        assert_eq!(place.sh(&["--workspace", &workspace, "--fs", "scratch"], "true").code, 0);
    }
}

#[test]
fn a_writable_mount_is_no_way_round_protection() {
    let place = Place::new();
    place.write("workspace/.git/hooks/pre-commit", "of the host\n");
    place.write("workspace-beside/file", "of the host\n");
    let workspace = show(&place.workspace());
    let run = |source: &str, access: &str, mode: &str| {
        let mount = format!("{}:/mnt/other{access}", show(&place.path(source)));
        let program = ["/bin/sh", "-c", "true"];
        place.json(&["--workspace", &workspace, "--fs", mode, "--mount", &mount], &program)["error"]["code"].clone()
    };
    for source in ["workspace", "workspace/.git", "workspace/.git/hooks", "workspace/.git/hooks/pre-commit"] {
        assert_eq!(run(source, ":rw", "workspace-write"), "invalid_mount", "{source}");
        assert!(run(source, "", "workspace-write").is_null(), "{source} read-only");
        // If nothing is protected, a writable part may be named freely.
        assert!(run(source, ":rw", "read-only").is_null(), "{source} of a read-only workspace");
    }
    assert!(run("workspace-beside", ":rw", "workspace-write").is_null(), "a name that only begins the same");
}

#[test]
fn modes_that_leave_the_host_alone_need_no_placeholders() {
    let place = Place::new();
    let workspace = show(&place.workspace());
    for (mode, outcome) in [("scratch", "ok"), ("read-only", REFUSED)] {
        check(
            &place,
            &["--workspace", &workspace, "--fs", mode],
            &[("os.listdir('/workspace')", "[]"), ("os.makedirs('/workspace/.git/hooks')", outcome)],
        );
    }
    assert_eq!(names(&place.workspace()), Vec::<String>::new());
}

/// A run that makes its attempts only when told, and reports when it is ready.
struct Waiting {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Waiting {
    fn start(place: &Place, attempts: &[&str]) -> Self {
        Self::start_in(place, &["--workspace", &show(&place.workspace())], attempts)
    }

    fn start_in(place: &Place, flags: &[&str], attempts: &[&str]) -> Self {
        let program = Self::program(attempts);
        let arguments = [&["run"], flags, Self::FLAGS, &program].concat();
        Self::wait(place.command(arguments))
    }

    /// The workspace under another name that only this run has: a mount that ends with it.
    fn start_under_alias(place: &Place, alias: &str, attempts: &[&str]) -> Self {
        let mut command = Command::new("unshare");
        let script = "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"";
        let saggar = env!("CARGO_BIN_EXE_saggar");
        command.args(["--mount", "sh", "-c", script, "sh", &show(&place.workspace()), alias]);
        command.args([saggar, "run", "--workspace", alias]).args(Self::FLAGS).args(Self::program(attempts));
        command.env("SAGGAR_DATA_DIR", place.path("data")).current_dir("/");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::wait(command)
    }

    const FLAGS: &[&str] = &["--timeout", "40s", "--stdin", "-", "--"];

    fn program<'a>(attempts: &[&'a str]) -> Vec<&'a str> {
        probe::program(&[&["print('there', flush=True)", "sys.stdin.readline()"], attempts].concat())
    }

    fn wait(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).spawn().expect("the binary was built");
        let (stdin, mut stdout) =
            (child.stdin.take().expect("piped"), BufReader::new(child.stdout.take().expect("piped")));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a pipe of ours");
        assert_eq!(line, "there\n");
        Self { child, stdin, stdout }
    }

    /// The outcomes of its attempts.
    fn go_on(mut self) -> Vec<String> {
        self.stdin.write_all(b"go\n").expect("it reads");
        drop(self.stdin);
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a pipe of ours");
        assert_eq!(finish(self.child).code, 0);
        probe::parse(&line).expect("outcomes").split_off(2)
    }
}

#[test]
fn one_run_that_ends_does_not_take_anothers_protection_away() {
    for is_first_to_end_the_first in [true, false] {
        let place = place_with_git();
        let before = kept(&place);
        let attempts = on_all_defaults();
        let attempts: Vec<&str> = attempts.iter().map(String::as_str).collect();
        let (first, second) = (Waiting::start(&place, &attempts), Waiting::start(&place, &attempts));
        let (early, late) = if is_first_to_end_the_first { (first, second) } else { (second, first) };
        let cases: Vec<(&str, &str)> = attempts.iter().map(|attempt| (*attempt, REFUSED)).collect();
        compare(&cases, &early.go_on());
        assert!(place.path("workspace/.git/hooks").is_dir(), "still held by the other");
        compare(&cases, &late.go_on());
        assert_eq!(kept(&place), before);
    }
}

#[test]
fn files_an_agent_made_beside_placeholders_stay() {
    let place = place_with_git();
    check(
        &place,
        &["--workspace", &show(&place.workspace())],
        &[("write('/workspace/.git/HEAD')", "ok"), ("os.mkdir('/workspace/.git/refs')", "ok")],
    );
    assert_eq!(names(&place.workspace()), [".git", ".git/HEAD", ".git/refs"]);
}

fn git(workspace: &Path, arguments: &[&str]) -> String {
    let identity = ["-c", "user.name=host", "-c", "user.email=host@example.org", "-C"];
    let mut command = Command::new("git");
    command.args(identity).arg(workspace).args(arguments);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let output = command.output().expect("git is installed by make test");
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("git speaks UTF-8")
}

#[test]
fn a_git_repository_keeps_working_inside_and_after() {
    let place = Place::new();
    let workspace = place.workspace();
    place.write("workspace/file", "one\n");
    git(&workspace, &["init", "--quiet", "--initial-branch=main", "--template="]);
    git(&workspace, &["add", "file"]);
    git(&workspace, &["commit", "--quiet", "--message=one"]);
    let config = std::fs::read_to_string(workspace.join(".git/config")).unwrap();
    let script = "set -e
        test -z \"$(git status --porcelain)\"
        echo two >> file
        test \"$(git status --porcelain)\" = ' M file'
        git add file
        git -c user.name=agent -c user.email=agent@example.org commit --quiet --message=two
        git checkout --quiet -b topic
        git checkout --quiet main
        git gc --quiet
        git log --format=%an:%s";
    let flags = ["--workspace", &show(&workspace)];
    let done = place.sh(&flags, script);
    assert_eq!((done.code, done.stdout.as_str()), (0, "agent:two\nhost:one\n"), "{done:?}");
    for refused in [
        "git config core.hooksPath /workspace/evil",
        "git config --worktree core.fsmonitor /workspace/evil",
        "echo evil > .git/hooks/post-checkout",
    ] {
        assert_ne!(place.sh(&flags, refused).code, 0, "{refused}");
    }
    assert_eq!(place.sh(&flags, "git config --file /tmp/config core.hooksPath x").code, 0, "a control");
    assert_eq!(git(&workspace, &["log", "--format=%an:%s"]), "agent:two\nhost:one\n");
    assert_eq!(git(&workspace, &["status", "--porcelain"]), "");
    git(&workspace, &["fsck", "--strict"]);
    assert_eq!(std::fs::read_to_string(workspace.join(".git/config")).unwrap(), config);
    for absent in [".git/hooks", ".git/config.worktree", ".git/commondir", ".saggar"] {
        assert!(!workspace.join(absent).exists(), "{absent}");
    }
}

#[test]
fn linked_worktrees_and_submodules_are_held_where_git_reads_them() {
    let place = Place::new();
    let (worktree, module) = (".git/worktrees/tree", ".git/modules/sub");
    for name in ["commondir", "gitdir", "HEAD"] {
        place.write(&format!("workspace/{worktree}/{name}"), "../..\n");
    }
    place.write(&format!("workspace/{module}/HEAD"), "ref: refs/heads/main\n");
    place.write(&format!("workspace/{module}/config"), "[core]\n");
    place.write(&format!("workspace/{module}/hooks/pre-commit"), "#!/bin/sh\n");
    let before = kept(&place);
    let files = ["commondir", "config.worktree", "gitdir"].map(|name| format!("{worktree}/{name}"));
    let more = ["commondir", "config", "config.worktree"].map(|name| format!("{module}/{name}"));
    let mut attempts: Vec<String> = files.iter().chain(&more).flat_map(|path| on(ON_FILE, path)).collect();
    attempts.extend(on(ON_DIRECTORY, &format!("{module}/hooks")));
    attempts.extend([worktree, ".git/worktrees", module, ".git/modules"].iter().flat_map(|path| on(ON_PARENT, path)));
    let workspace = show(&place.workspace());
    check_held(&place, &["--workspace", &workspace], &attempts);
    check(&place, &["--workspace", &workspace], &[("write('/workspace/.git/worktrees/tree/HEAD')", "ok")]);
    let head = place.workspace().join(worktree).join("HEAD");
    std::fs::write(head, "../..\n").expect("ours");
    assert_eq!(kept(&place), before);
}

/// Two runs hold the same paths, by whatever names; the first to start ends first, or last.
fn check_both_hold(
    place: &Place,
    first: impl Fn() -> Waiting,
    second: impl Fn() -> Waiting,
    [first_attempts, second_attempts]: [&[&str]; 2],
) {
    let before = kept(place);
    let check = |run: Waiting, attempts: &[&str]| {
        let cases: Vec<(&str, &str)> = attempts.iter().map(|attempt| (*attempt, REFUSED)).collect();
        compare(&cases, &run.go_on());
    };
    for is_first_to_end_the_first in [true, false] {
        let (one, other) = (first(), second());
        if is_first_to_end_the_first {
            check(one, first_attempts);
            check(other, second_attempts);
        } else {
            check(other, second_attempts);
            check(one, first_attempts);
        }
        assert_eq!(kept(place), before, "the first is the first to end: {is_first_to_end_the_first}");
        assert_eq!(place.records(), Vec::<String>::new());
    }
}

#[test]
fn a_workspace_by_another_name_is_the_same_workspace() {
    if !is_root() {
        return not_here("only root can mount a directory in another place");
    }
    let place = place_with_git();
    std::fs::create_dir(place.path("alias")).unwrap();
    let alias = show(&place.path("alias"));
    let attempts = on_all_defaults();
    let attempts: Vec<&str> = attempts.iter().map(String::as_str).collect();
    let by_alias = || Waiting::start_under_alias(&place, &alias, &attempts);
    let by_name = || Waiting::start(&place, &attempts);
    check_both_hold(&place, by_alias, by_name, [&attempts, &attempts]);
    check_both_hold(&place, by_name, by_alias, [&attempts, &attempts]);
}

#[test]
fn a_workspace_in_another_has_its_placeholders_to_itself_no_more() {
    let place = Place::new();
    place.write("workspace/inner/file", "of the host\n");
    let (outer, inner) = (show(&place.workspace()), show(&place.path("workspace/inner")));
    let from_inside = on(ON_DIRECTORY, ".saggar");
    let from_outside = on(ON_DIRECTORY, "inner/.saggar");
    let from_inside: Vec<&str> = from_inside.iter().map(String::as_str).collect();
    let from_outside: Vec<&str> = from_outside.iter().map(String::as_str).collect();
    let inner = || Waiting::start_in(&place, &["--workspace", &inner], &from_inside);
    let outer = || Waiting::start_in(&place, &["--workspace", &outer, "--protect", "inner/.saggar/"], &from_outside);
    // One of them has the attempts' own files in the inner workspace.
    check_both_hold(&place, inner, outer, [&from_inside, &from_outside]);
    check_both_hold(&place, outer, inner, [&from_outside, &from_inside]);
}

#[test]
fn placeholders_belong_to_whom_the_workspace_belongs() {
    const OWNER: (u32, u32) = (12_345, 23_456);
    if !is_root() {
        return not_here("only root has a workspace of someone else");
    }
    let place = place_with_git();
    give(&place.path("workspace/.git"), OWNER);
    let before = kept(&place);
    give(&place.workspace(), OWNER);
    let run = Waiting::start_in(&place, &["--workspace", &show(&place.workspace()), "--protect", "deep/er/file"], &[]);
    let found = names(&place.workspace());
    assert!(found.len() > 6, "{found:?}");
    for name in &found {
        let metadata = place.workspace().join(name).symlink_metadata().unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), OWNER, "{name}");
    }
    run.go_on();
    assert_eq!(kept(&place), before);
}

fn give(path: &Path, (uid, gid): (u32, u32)) {
    rustix::fs::chownat(CWD, path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::SYMLINK_NOFOLLOW)
        .expect("only called as root");
}

#[test]
fn a_submodule_named_for_a_path_is_held_with_its_checkout() {
    let place = Place::new();
    let module = ".git/modules/vendor/foo";
    place.write("workspace/.git/config", "[core]\n");
    place.write(&format!("workspace/{module}/HEAD"), "ref: refs/heads/main\n");
    place.write(&format!("workspace/{module}/config"), "[core]\n\tworktree = ../../../../vendor/foo\n");
    place.write("workspace/vendor/foo/.git", "gitdir: ../../.git/modules/vendor/foo\n");
    place.write("workspace/vendor/foo/source", "of the host\n");
    let before = kept(&place);
    let files = [format!("{module}/config"), format!("{module}/commondir"), "vendor/foo/.git".to_owned()];
    let mut attempts: Vec<String> = files.iter().flat_map(|path| on(ON_FILE, path)).collect();
    attempts.extend(on(ON_DIRECTORY, &format!("{module}/hooks")));
    let parents = [module, ".git/modules/vendor", ".git/modules", "vendor/foo", "vendor"];
    attempts.extend(parents.iter().flat_map(|path| on(ON_PARENT, path)));
    let workspace = show(&place.workspace());
    check_held(&place, &["--workspace", &workspace], &attempts);
    assert_eq!(kept(&place), before);
    check(
        &place,
        &["--workspace", &workspace],
        &[("write('/workspace/vendor/foo/source')", "ok"), (&format!("write('/workspace/{module}/HEAD')"), "ok")],
    );
}

#[test]
fn hooks_and_settings_are_held_where_the_repository_says_they_are() {
    let place = Place::new();
    place.write("workspace/.git/config", "[core]\n\thooksPath = .githooks\n[include]\n\tpath = ../shared.cfg\n");
    place.write("workspace/.githooks/pre-commit", "#!/bin/sh\n");
    place.write("workspace/shared.cfg", "[core]\n");
    let before = kept(&place);
    let mut attempts = on(ON_DIRECTORY, ".githooks");
    attempts.extend(on(ON_FILE, ".githooks/pre-commit").into_iter().chain(on(ON_FILE, "shared.cfg")));
    check_held(&place, &["--workspace", &show(&place.workspace())], &attempts);
    assert_eq!(kept(&place), before);
}

#[test]
fn a_git_directory_elsewhere_is_held_there() {
    let place = Place::new();
    place.write("workspace/.git", "gitdir: ./.bare\n");
    place.write("workspace/.bare/HEAD", "ref: refs/heads/main\n");
    place.write("workspace/.bare/config", "[core]\n");
    let before = kept(&place);
    let mut attempts = on(ON_FILE, ".bare/config");
    attempts.extend(on(ON_FILE, ".git").into_iter().chain(on(ON_DIRECTORY, ".bare/hooks")));
    attempts.extend(on(ON_PARENT, ".bare"));
    let workspace = show(&place.workspace());
    check_held(&place, &["--workspace", &workspace], &attempts);
    assert_eq!(kept(&place), before);
    check(&place, &["--workspace", &workspace], &[("write('/workspace/.bare/HEAD')", "ok")]);
}

#[test]
fn what_of_a_repository_can_not_be_looked_at_refuses_the_workspace() {
    const ID: u32 = 54_321;
    let place = Place::new();
    place.write("workspace/.git/modules/sub/HEAD", "ref: refs/heads/main\n");
    let modules = place.path("workspace/.git/modules");
    std::fs::create_dir(place.path("data")).unwrap();
    // Nothing is closed to root, so another user asks; the build directory may be closed to that user.
    let saggar = place.path("saggar");
    harness::copy_program(env!("CARGO_BIN_EXE_saggar"), &saggar);
    if is_root() {
        give(&place.path("data"), (ID, ID));
        give(&place.workspace(), (ID, ID));
        names(&place.workspace()).iter().for_each(|name| give(&place.workspace().join(name), (ID, ID)));
    }
    let run = |mode: u32| {
        std::fs::set_permissions(&modules, std::fs::Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(&saggar);
        command.args([
            "run",
            "--json",
            "--workspace",
            &show(&place.workspace()),
            "--",
            "/bin/sh",
            "-c",
            "touch started",
        ]);
        command.env("SAGGAR_DATA_DIR", place.path("data")).current_dir("/").stdin(Stdio::null());
        if is_root() {
            command.uid(ID).gid(ID);
        }
        let done = finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        std::fs::set_permissions(&modules, std::fs::Permissions::from_mode(0o755)).unwrap();
        (done.code, done.json()["error"]["code"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(run(0), (126, "invalid_protect".to_owned()));
    assert!(!place.path("workspace/started").exists());
    assert_eq!(run(0o755), (0, String::new()), "a control");
    assert!(place.path("workspace/started").exists());
}
