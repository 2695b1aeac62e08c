//! `saggar changes`: a scratch sandbox's changes are listed, shown, applied or dropped, and nothing else on the host
//! changes.

mod harness;

use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};

use harness::tree::tree;
use harness::{Done, Place, finish, is_root, not_here, show};
use serde_json::Value;

fn changes(place: &Place, arguments: &[&str]) -> Done {
    finish(place.command([&["changes"], arguments].concat()).spawn().expect("the binary was built"))
}

/// Runs a script in a scratch workspace and returns the sandbox's id.
fn scratch(place: &Place, script: &str) -> String {
    let workspace = show(&place.workspace());
    let result = place.json(&["--workspace", &workspace, "--fs", "scratch"], &["/bin/sh", "-c", script]);
    assert_eq!(result["status"], "exited", "{result}");
    result["sandbox_id"].as_str().expect("an id").to_owned()
}

fn place_with_files() -> Place {
    let place = Place::new();
    for (name, content) in
        [("text", "one\ntwo\n"), ("gone", "gone\n"), ("kept/a", "a"), ("kept/b", "b"), ("deep/er/file", "x")]
    {
        place.write(&format!("workspace/{name}"), content);
    }
    symlink("text", place.workspace().join("link")).expect("ours");
    place
}

#[test]
fn every_kind_of_change_is_listed_and_nothing_else() {
    let place = place_with_files();
    let before = tree(&place.workspace());
    let id = scratch(
        &place,
        "echo three >> text; rm gone; mkdir new; echo n > new/file; chmod 700 kept/a; touch kept/b; rm -r deep; ln -sf gone link; mkfifo pipe",
    );
    assert_eq!(tree(&place.workspace()), before, "the host is as it was");
    let expected = "removed   deep/\nremoved   deep/er/\nremoved   deep/er/file\nremoved   gone\nmode      kept/a (700)\n\
                    modified  link -> gone\nadded     new/\nadded     new/file\nmodified  text\n\
                    skipped   pipe: a special file (Fifo) never leaves a sandbox\n";
    assert_eq!(changes(&place, &["list", &id]).stdout, expected);
    let kept = changes(&place, &["list"]).stdout;
    assert!(kept.starts_with(&format!("{id}  ")), "{kept}");
    assert!(kept.ends_with(&format!(" changes of {}\n", show(&place.workspace()))), "{kept}");
    let diff = changes(&place, &["diff", &id, "text", "gone"]).stdout;
    assert_eq!(
        diff,
        "--- a/gone\n+++ b/gone\n@@ -1 +0,0 @@\n-gone\n--- a/text\n+++ b/text\n@@ -1,2 +1,3 @@\n one\n two\n+three\n"
    );
    let json: Value = changes(&place, &["list", "--json", &id]).json();
    assert_eq!(json["entries"].as_array().map(Vec::len), Some(9), "{json}");
}

#[test]
fn applied_changes_are_on_the_host_as_the_owner_s_and_then_forgotten() {
    let place = place_with_files();
    let id = scratch(
        &place,
        "echo three >> text; rm gone; mkdir -m 750 new; echo n > new/file; chmod 700 kept/a; rm -r deep; ln -sf gone link",
    );
    let done = changes(&place, &["apply", &id]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    let workspace = place.workspace();
    let read =
        |name: &str| std::fs::read_to_string(workspace.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(
        (read("text").as_str(), read("new/file").as_str(), read("kept/b").as_str()),
        ("one\ntwo\nthree\n", "n\n", "b")
    );
    assert!(!workspace.join("gone").exists() && !workspace.join("deep").exists());
    assert_eq!(std::fs::read_link(workspace.join("link")).expect("a link"), std::path::Path::new("gone"));
    let owner = std::fs::metadata(&workspace).expect("ours").uid();
    for (name, mode) in [("new", 0o750), ("new/file", 0o644), ("kept/a", 0o700)] {
        let metadata = std::fs::metadata(workspace.join(name)).expect("applied");
        assert_eq!((metadata.permissions().mode() & 0o7777, metadata.uid()), (mode, owner), "{name}");
    }
    assert_eq!(changes(&place, &["list"]).stdout, "", "nothing is left to apply");
    assert_eq!(changes(&place, &["apply", &id]).code, 125);
}

#[test]
fn what_the_host_changed_meanwhile_is_refused_and_still_kept() {
    let place = place_with_files();
    let id = scratch(&place, "echo inside > text; echo inside > fresh; rm gone; echo fine > kept/a");
    place.write("workspace/text", "by the host\n");
    place.write("workspace/fresh", "by the host\n");
    place.write("workspace/gone", "by the host\n");
    let done = changes(&place, &["apply", "--json", &id]);
    let answer = done.json();
    let outcome = |path: &str| {
        let results = answer["results"].as_array().expect("a list");
        results.iter().find(|result| result["path"] == path).unwrap_or_else(|| panic!("{path}: {answer}"))["applied"]
            .clone()
    };
    assert_eq!(done.code, 1, "{done:?}");
    assert_eq!(
        [outcome("text"), outcome("fresh"), outcome("gone"), outcome("kept/a")],
        [false.into(), false.into(), false.into(), Value::from(true)]
    );
    for name in ["text", "fresh", "gone"] {
        assert_eq!(std::fs::read_to_string(place.workspace().join(name)).expect("the host's"), "by the host\n");
    }
    assert_eq!(changes(&place, &["list", &id]).stdout, "added     fresh\nremoved   gone\nmodified  text\n");
    assert_eq!((changes(&place, &["drop", &id]).code, changes(&place, &["list"]).stdout.as_str()), (0, ""));
}

#[test]
fn a_change_of_the_hosts_while_the_sandbox_ran_is_told_and_refused() {
    let place = place_with_files();
    let workspace = show(&place.workspace());
    let script = "read go; echo inside > text";
    let flags =
        ["run", "--json", "--events", "events", "--workspace", &workspace, "--fs", "scratch", "--stdin", "-", "--"];
    let mut command = place.command(flags.iter().chain(&["/bin/sh", "-c", script]));
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().expect("built");
    while !std::fs::read_to_string(place.path("events")).unwrap_or_default().contains("\"type\":\"start\"") {
        assert!(child.try_wait().expect("our own child").is_none(), "it ended early");
    }
    // File timestamps come from a clock that ticks every few milliseconds: until the next tick, a change looks as old
    // as the sandbox.
    let text = place.workspace().join("text");
    let before = std::fs::metadata(place.path("events")).expect("ours");
    loop {
        std::fs::write(&text, "by the host\n").expect("ours");
        let now = std::fs::metadata(&text).expect("ours");
        if (now.ctime(), now.ctime_nsec()) > (before.ctime(), before.ctime_nsec()) {
            break;
        }
    }
    harness::feed(&mut child, b"go\n");
    let id = finish(child).json()["sandbox_id"].as_str().expect("an id").to_owned();
    assert_eq!(changes(&place, &["list", &id]).stdout, "modified  text  (the host changed it too)\n");
    assert_eq!(changes(&place, &["apply", &id]).code, 1);
    assert_eq!(std::fs::read_to_string(text).expect("the host's"), "by the host\n");
}

#[test]
fn git_configuration_hooks_and_our_own_directory_are_not_applied_wherever_the_repository_is() {
    let place = Place::new();
    let id = scratch(
        &place,
        "for d in . sub; do mkdir -p $d/.git/hooks $d/.git/modules/m; echo h > $d/.git/hooks/pre-commit; echo c > $d/.git/config; \
         echo c > $d/.git/modules/m/config; echo o > $d/.git/HEAD; done; mkdir .saggar odd; echo p > .saggar/policy; echo 'gitdir: /tmp/x' > odd/.git; echo ok > file",
    );
    let done = changes(&place, &["apply", &id]);
    let applied: Vec<&str> = done.stdout.lines().filter_map(|line| line.strip_prefix("applied   ")).collect();
    assert_eq!(
        applied,
        [
            ".git",
            ".git/HEAD",
            ".git/modules",
            ".git/modules/m",
            "file",
            "odd",
            "sub",
            "sub/.git",
            "sub/.git/HEAD",
            "sub/.git/modules",
            "sub/.git/modules/m"
        ],
        "{done:?}"
    );
    assert_eq!((done.code, done.stdout.matches("refused   ").count()), (1, 11), "{done:?}");
}

#[test]
fn links_on_the_host_side_are_never_followed() {
    let place = place_with_files();
    let id = scratch(&place, "echo inside > kept/a; echo inside > text; rm deep/er/file");
    let outside = place.path("outside");
    std::fs::create_dir(&outside).expect("ours");
    std::fs::write(outside.join("a"), "outside").expect("ours");
    std::fs::create_dir(outside.join("er")).expect("ours");
    std::fs::write(outside.join("er/file"), "outside").expect("ours");
    for name in ["kept", "deep"] {
        std::fs::remove_dir_all(place.workspace().join(name)).expect("ours");
        symlink(&outside, place.workspace().join(name)).expect("ours");
    }
    std::fs::remove_file(place.workspace().join("text")).expect("ours");
    symlink(outside.join("a"), place.workspace().join("text")).expect("ours");
    let before = tree(&outside);
    let done = changes(&place, &["apply", &id]);
    assert_eq!((done.code, done.stdout.matches("refused   ").count()), (1, 3), "{done:?}");
    assert_eq!(tree(&outside), before);
}

#[test]
fn some_paths_can_be_applied_and_an_unknown_one_is_named() {
    let place = place_with_files();
    let id = scratch(&place, "echo 1 > text; echo 2 > kept/a; echo 3 > kept/b; echo 4 > keptish");
    let done = changes(&place, &["apply", &id, "./kept/"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "applied   kept/a\napplied   kept/b\n"));
    assert_eq!(changes(&place, &["list", &id]).stdout, "added     keptish\nmodified  text\n");
    let lost = changes(&place, &["apply", &id, "nowhere"]);
    assert!(lost.code == 125 && lost.stderr.contains("\"nowhere\" is not among the changes"), "{lost:?}");
    assert!(lost.stderr.contains(&format!("saggar changes list {id}")), "{lost:?}");
    for wrong in ["sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa", "../../etc", ""] {
        let missing = changes(&place, &["list", wrong]);
        assert!(missing.code == 125 && missing.stderr.contains("no changes of sandbox"), "{missing:?}");
    }
}

#[test]
fn hostile_names_and_holes_are_kept_as_they_are_and_shown_plainly() {
    let place = Place::new();
    let script = "import os\nos.chdir('/workspace')\nopen(b'a\\n\\x1b[2J\\xff', 'w').write('odd')\n\
                  f = open('sparse', 'w'); f.truncate(1 << 40); f.seek(1 << 30); f.write('x'); f.close()\n\
                  os.makedirs('/'.join(['d' * 200] * 12))";
    let workspace = show(&place.workspace());
    let result = place.json(&["--workspace", &workspace, "--fs", "scratch"], &["/usr/bin/python3", "-c", script]);
    let id = result["sandbox_id"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned();
    let listed = changes(&place, &["list", &id]).stdout;
    assert!(listed.starts_with("added     a\\x0a\\x1b[2J\\xff\n") && !listed.contains('\x1b'), "{listed:?}");
    assert_eq!(changes(&place, &["apply", &id]).code, 0);
    let sparse = std::fs::metadata(place.workspace().join("sparse")).expect("applied");
    assert_eq!(sparse.len(), 1 << 40);
    assert!(sparse.blocks() * 512 < 1 << 20, "{} blocks", sparse.blocks());
    use std::os::unix::ffi::OsStrExt;
    let odd = place.workspace().join(std::ffi::OsStr::from_bytes(b"a\n\x1b[2J\xff"));
    assert_eq!(std::fs::read_to_string(odd).expect("applied"), "odd");
}

#[test]
fn a_sandbox_that_changed_nothing_keeps_nothing() {
    let place = place_with_files();
    let workspace = show(&place.workspace());
    let result =
        place.json(&["--workspace", &workspace, "--fs", "scratch"], &["/bin/sh", "-c", "touch text; cat text"]);
    assert_eq!(result["changes_kept"], 0);
    assert_eq!(place.json(&["--workspace", &workspace], &["/bin/true"])["changes_kept"], Value::Null);
    assert_eq!(changes(&place, &["list"]).stdout, "");
}

#[test]
fn an_ordinary_user_has_scratch_on_a_directory_of_another_group() {
    use std::os::unix::process::CommandExt;
    if !is_root() {
        return not_here("only root can give a directory to a group it is not in");
    }
    const NOBODY: u32 = 65534;
    const ANOTHER: u32 = 4;
    let place = Place::new();
    place.write("workspace/file", "before");
    place.write("workspace/another", "before");
    // An ordinary user may not be able to reach the build directory.
    let saggar = place.path("saggar");
    harness::copy_program(env!("CARGO_BIN_EXE_saggar"), &saggar);
    std::fs::create_dir(place.path("data")).expect("ours");
    for (path, group) in
        [("data", NOBODY), ("workspace", ANOTHER), ("workspace/file", NOBODY), ("workspace/another", ANOTHER)]
    {
        lchown(place.path(path), Some(NOBODY), Some(group)).expect("we are root");
    }
    // The kernel can't copy a file whose group is not mapped inside, so that one stays unchanged.
    let mut command = std::process::Command::new(&saggar);
    command.args(["run", "--fs", "scratch", "--workspace", &show(&place.workspace())]);
    command.args([
        "--",
        "/bin/sh",
        "-c",
        "echo after > file && cat file another; (echo after > another) 2>/dev/null || echo refused",
    ]);
    command.env("SAGGAR_DATA_DIR", place.path("data")).uid(NOBODY).gid(NOBODY).current_dir("/");
    let done = command.output().expect("copied");
    let said = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert_eq!((done.status.code(), &*said.0), (Some(0), "after\nbeforerefused\n"), "{}", said.1);
    assert_eq!(std::fs::read_to_string(place.path("workspace/file")).expect("still there"), "before");
}

#[test]
fn a_commit_made_inside_is_listed_without_its_objects_and_can_be_applied() {
    let place = Place::new();
    place.write("workspace/text", "before\n");
    let git = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        command.args(["-c", "safe.directory=*", "-c", "user.name=me", "-c", "user.email=me@example.com"]);
        let output = command.args(arguments).current_dir(place.workspace()).output().expect("git is there");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    git(&["init", "--quiet", "--initial-branch", "main"]);
    git(&["add", "."]);
    git(&["commit", "--quiet", "--message", "first"]);
    let commit =
        "echo after > text; git -c user.name=it -c user.email=it@example.com commit --quiet --all --message inside";
    let id = scratch(&place, commit);
    let (listed, all) = (changes(&place, &["list", &id]).stdout, changes(&place, &["list", &id, "--all"]).stdout);
    assert!(listed.contains("added     .git/objects/ (") && listed.contains("modified  text\n"), "{listed}");
    assert_eq!(listed.lines().filter(|line| line.contains(".git/objects/")).count(), 1, "{listed}");
    // A blob, a tree and a commit.
    assert!(all.lines().filter(|line| line.contains(".git/objects/")).count() >= 3, "{all}");
    let differences = changes(&place, &["diff", &id]).stdout;
    assert!(
        differences.contains("+after") && !differences.contains("(not text)\nadded     .git/objects"),
        "{differences}"
    );
    let applied = changes(&place, &["apply", &id]);
    assert_eq!(applied.code, 0, "{applied:?}");
    assert_eq!(git(&["log", "--format=%s"]), "inside\nfirst\n");
    assert_eq!(git(&["status", "--short"]), "");
}
