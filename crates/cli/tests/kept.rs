//! Kept changes of a scratch sandbox: never more than its storage, never protected paths, never outside of the
//! workspace.

mod harness;

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use harness::tree::{names, tree};
use harness::{Done, Place, finish, show};

fn changes(place: &Place, arguments: &[&str]) -> Done {
    finish(place.command([&["changes"], arguments].concat()).spawn().expect("the binary was built"))
}

/// Runs a script in a scratch workspace and returns the sandbox's id.
fn scratch(place: &Place, flags: &[&str], script: &str) -> String {
    let workspace = show(&place.workspace());
    let flags = [&["--workspace", &workspace, "--fs", "scratch"], flags].concat();
    let result = place.json(&flags, &["/bin/sh", "-c", script]);
    assert_eq!(result["status"], "exited", "{result}");
    result["sandbox_id"].as_str().expect("an id").to_owned()
}

/// The paths that `apply` refused, without the heading.
fn refused(done: &Done) -> Vec<&str> {
    let lines = done.stdout.lines().filter_map(|line| line.strip_prefix("refused   "));
    lines.map(|line| line.split(": ").next().expect("a name")).collect()
}

/// Bytes that a directory uses.
fn room(directory: &Path) -> u64 {
    names(directory)
        .iter()
        .filter_map(|name| std::fs::symlink_metadata(directory.join(name)).ok())
        .map(|metadata| metadata.blocks() * 512)
        .sum()
}

#[test]
fn protected_paths_of_every_kind_are_not_applied() {
    let place = Place::new();
    place.write("workspace/.git/HEAD", "ref: refs/heads/main\n");
    place.write("workspace/.git/config", "[core]\n\thooksPath = .githooks # ours\n[include]\n\tpath = ../shared.cfg\n");
    place.write("workspace/.git/hooks/pre-push", "");
    std::fs::remove_file(place.path("workspace/.git/hooks/pre-push")).expect("ours");
    symlink("../../scripts/pre-push", place.path("workspace/.git/hooks/pre-push")).expect("ours");
    for name in
        [".githooks/pre-commit", "shared.cfg", "ci/deploy.yml", "scripts/pre-push", "scripts/other", "AGENTS.md"]
    {
        place.write(&format!("workspace/{name}"), "# of the host\n");
    }
    let before = tree(&place.workspace());
    let script = "for f in .githooks/pre-commit shared.cfg ci/deploy.yml scripts/pre-push AGENTS.md; do echo evil >> $f; done; \
                  echo evil > .githooks/new; rm .git/HEAD; mkdir -p .git/logs .git/rebase-merge; ln -s /etc .git/logs/HEAD; \
                  echo 'exec evil' > .git/rebase-merge/git-rebase-todo; echo fine > fine";
    let id = scratch(&place, &["--protect", "ci/", "--protect", "AGENTS.md"], script);
    let done = changes(&place, &["apply", &id]);
    assert_eq!(
        refused(&done),
        [
            ".git/HEAD",
            ".git/logs/HEAD",
            ".git/rebase-merge",
            ".git/rebase-merge/git-rebase-todo",
            ".githooks/new",
            ".githooks/pre-commit",
            "AGENTS.md",
            "ci/deploy.yml",
            "scripts/pre-push",
            "shared.cfg"
        ],
        "{done:?}"
    );
    let after = tree(&place.workspace());
    let is_new = |name: &&String| !before.contains_key(*name);
    assert_eq!(after.keys().filter(is_new).collect::<Vec<_>>(), [".git/logs", "fine"]);
    assert!(before.iter().all(|(name, line)| after.get(name) == Some(line) || name == ".git"), "{after:?}");
}

#[test]
fn a_directory_above_a_protected_path_is_not_taken_away() {
    let place = Place::new();
    place.write("workspace/a/b/c", "of the host\n");
    let id = scratch(&place, &["--protect", "a/b/absent", "--protect", "x/y"], "rm -r a; ln -s / x");
    let done = changes(&place, &["apply", &id]);
    assert_eq!(refused(&done), ["a/b", "a", "x"], "{done:?}");
    assert_eq!(names(&place.workspace()), ["a", "a/b"]);
}

#[test]
fn no_bare_repository_is_applied_in_one_piece_or_in_several() {
    let place = Place::new();
    let id = scratch(
        &place,
        &[],
        "mkdir -p objects refs sub/objects sub/refs sub/hooks; for d in . sub; do echo x > $d/HEAD; echo y > $d/config; done; \
         echo z > sub/hooks/post-update; mkdir other; echo y > other/config; echo x > other/HEAD",
    );
    let done = changes(&place, &["apply", &id]);
    assert_eq!(
        refused(&done),
        [
            "HEAD",
            "config",
            "objects",
            "refs",
            "sub/HEAD",
            "sub/config",
            "sub/hooks",
            "sub/hooks/post-update",
            "sub/objects",
            "sub/refs"
        ]
    );
    // The rest of the repository comes later.
    for (script, expected) in [
        ("mkdir other/objects other/refs", ["other/objects", "other/refs"].as_slice()),
        ("echo e > other/commondir", &["other/commondir"]),
    ] {
        let id = scratch(&place, &[], script);
        assert_eq!(refused(&changes(&place, &["apply", &id])), expected, "{script}");
    }
    // In an existing repository work continues, and the files that git obeys stay unchanged.
    for name in ["there/HEAD", "there/config", "there/objects/x", "there/refs/heads/main"] {
        place.write(&format!("workspace/{name}"), "# of the host\n");
    }
    let id = scratch(
        &place,
        &[],
        "cd there; echo evil > config; echo evil > HEAD; mkdir hooks; echo e > refs/heads/topic; ln -s /etc refs/heads/link; rm refs/heads/main",
    );
    let done = changes(&place, &["apply", &id]);
    assert_eq!(refused(&done), ["there/HEAD", "there/config", "there/hooks", "there/refs/heads/link"], "{done:?}");
}

#[test]
fn names_of_one_file_are_kept_once_and_applied_as_one() {
    let place = Place::new();
    let script = "head -c 8000000 /dev/urandom > a; for i in $(seq 40); do ln a l$i; done; mkdir d; ln a d/b";
    let id = scratch(&place, &["--disk", "16M"], script);
    assert!(room(&place.path("data/changes")) < 16 << 20, "{} bytes are kept", room(&place.path("data/changes")));
    assert_eq!(changes(&place, &["apply", &id]).code, 0);
    let metadata = |name: &str| std::fs::metadata(place.workspace().join(name)).expect("applied");
    assert!(room(&place.workspace()) > 300 << 20, "each name counts all of it");
    assert_eq!(
        (metadata("a").nlink(), metadata("a").ino(), metadata("a").len()),
        (42, metadata("d/b").ino(), 8_000_000)
    );
    // Matching part of a name is not enough.
    std::fs::remove_dir_all(place.workspace()).expect("ours");
    std::fs::create_dir(place.workspace()).expect("ours");
    let id = scratch(&place, &[], "echo x > a; ln a b; ln a c");
    assert_eq!(changes(&place, &["apply", &id, "b"]).code, 0);
    assert_eq!(changes(&place, &["apply", &id]).code, 0);
    assert_eq!(names(&place.workspace()), ["a", "b", "c"]);
    assert!(["a", "b", "c"].iter().all(|name| std::fs::read(place.workspace().join(name)).expect("applied") == b"x\n"));
}

#[test]
fn a_file_that_can_not_be_kept_is_skipped_and_the_rest_is_not_lost() {
    let place = Place::new();
    let id = scratch(&place, &[], "mkdir z; truncate -s 7E z/big; echo small > a");
    let listed = changes(&place, &["list", &id]).stdout;
    assert!(
        listed.starts_with("added     a\nadded     z/\n") && listed.contains("\nskipped   z/big: it can't be kept: "),
        "{listed}"
    );
    let left = names(&place.path("data/changes"));
    assert!(left.iter().all(|name| name.starts_with(&id)), "{left:?}");
}

#[test]
fn changes_that_can_not_be_kept_at_all_are_told_by_the_exit_status_and_leave_nothing() {
    let place = Place::new();
    assert_eq!(place.sh(&[], "true").code, 0, "which makes the data directory");
    // A file is in the place of the changes directory.
    place.write("data/changes", "");
    let done = place.sh(&["--workspace", &show(&place.workspace()), "--fs", "scratch"], "echo x > a");
    assert!(done.code == 125 && done.stderr.contains("(changes_lost)"), "{done:?}");
    // Changes that a killed process began to keep are removed at the next start, though no record names them.
    std::fs::remove_file(place.path("data/changes")).expect("ours");
    let orphan = "data/changes/.sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa.new";
    place.write(&format!("{orphan}/0"), "left");
    assert_eq!(place.sh(&[], "true").code, 0);
    assert!(!place.path(orphan).exists());
}

#[test]
fn another_directory_in_the_workspaces_place_is_not_written() {
    let place = Place::new();
    let inner = place.path("workspace/a/sub");
    std::fs::create_dir_all(&inner).expect("ours");
    let kept = |script: &str| {
        let result = place.json(&["--workspace", &show(&inner), "--fs", "scratch"], &["/bin/sh", "-c", script]);
        result["sandbox_id"].as_str().expect("an id").to_owned()
    };
    let (first, second) = (kept("echo x > file"), kept("echo x > file"));
    std::fs::create_dir_all(place.path("victim/sub")).expect("ours");
    let victim = show(&place.path("victim"));
    let swap = format!("mv a a.old; ln -s {victim} a");
    assert_eq!(place.sh(&["--workspace", &show(&place.workspace())], &swap).code, 0);
    let done = changes(&place, &["apply", &first]);
    assert!(done.code == 125 && done.stderr.contains("(invalid_workspace)"), "{done:?}");
    // A new directory in that place is another one too.
    assert_eq!(place.sh(&["--workspace", &show(&place.workspace())], "rm a; mkdir -p a/sub").code, 0);
    let done = changes(&place, &["apply", &second]);
    assert!(done.code == 125 && done.stderr.contains("is not the directory that the sandbox worked on"), "{done:?}");
    assert_eq!(
        (names(&place.path("victim")), names(&place.path("workspace/a"))),
        (vec!["sub".to_owned()], vec!["sub".to_owned()])
    );
    assert_eq!(place.sh(&["--workspace", &show(&place.workspace())], "rm -r a; mv a.old a").code, 0);
    assert_eq!(changes(&place, &["apply", &first]).code, 0, "a control");
}

#[test]
fn a_sparse_file_is_compared_in_no_time() {
    let place = Place::new();
    std::fs::File::create(place.workspace().join("big")).and_then(|file| file.set_len(8 << 40)).expect("sparse files");
    let start = Instant::now();
    let id = scratch(&place, &["--timeout", "10s"], "chmod 600 big");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(changes(&place, &["list", &id]).stdout, "mode      big (600)\n");
}

#[test]
fn long_names_do_not_multiply() {
    let place = Place::new();
    let script = "import os\nos.chdir('/workspace')\nfor level in range(15):\n    os.mkdir(b'\\xff' * 255); os.chdir(b'\\xff' * 255)\n\
                  for number in range(3700):\n    open(b'\\xff' * 200 + str(number).encode(), 'w').close()";
    let workspace = show(&place.workspace());
    let flags = ["--workspace", &workspace, "--fs", "scratch", "--disk", "128M"];
    let result = place.json(&flags, &["/usr/bin/python3", "-c", script]);
    assert_eq!((result["status"].as_str(), result["exit_code"].as_u64()), (Some("exited"), Some(0)), "{result}");
    assert_eq!(result["changes_kept"], 3_715, "what is passed over counts");
    let taken = room(&place.path("data/changes"));
    assert!(taken < 80 << 20, "{taken} bytes");
    let id = result["sandbox_id"].as_str().expect("an id");
    let listed = changes(&place, &["list", id]).stdout;
    let last = listed.lines().last().expect("some");
    assert!(last.starts_with("skipped   .: ") && last.contains("more paths could not be kept"), "{last}");
}

#[test]
fn a_diff_ends_in_time() {
    let place = Place::new();
    let lines =
        |from: usize| (from..from + 400_000).map(|number| format!("{}\n", number * 7919 % 10)).collect::<String>();
    place.write("workspace/digits", &lines(0));
    let id = scratch(&place, &[], "tac digits > d; mv d digits");
    let start = Instant::now();
    let done = changes(&place, &["diff", &id]);
    assert_eq!(done.code, 0);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn the_spec_file_is_not_for_those_it_is_about() {
    let place = Place::new();
    let spec = |text: &str| place.write("workspace/saggar.toml", text);
    let run = |file: &str, flags: &[&str], script: &str| {
        let file = show(&place.path(file));
        place.sh(&[&["--spec", file.as_str()], flags].concat(), script)
    };
    let workspace = format!("workspace = {:?}\n", show(&place.workspace()));
    spec(&workspace);
    for script in ["echo >> saggar.toml", "rm saggar.toml", "mv saggar.toml x", "ln saggar.toml x && echo >> x"] {
        let done = run("workspace/saggar.toml", &[], script);
        assert!(done.code != 0 && done.code < 124, "{script}: {done:?}");
    }
    assert_eq!(run("workspace/saggar.toml", &[], "echo fine > other").code, 0);
    assert_eq!(std::fs::read_to_string(place.path("workspace/saggar.toml")).expect("ours"), workspace);
    // A copy may be changed, and is not applied.
    let done = run("workspace/saggar.toml", &["--fs", "scratch", "--json"], "echo >> saggar.toml");
    let id = done.json()["sandbox_id"].as_str().expect("an id").to_owned();
    assert_eq!(refused(&changes(&place, &["apply", &id])), ["saggar.toml"]);
    // It is refused through a link that the program could redirect, and in a writable mount.
    symlink("saggar.toml", place.path("workspace/link.toml")).expect("ours");
    assert_eq!(run("workspace/link.toml", &[], "true").code, 126);
    let elsewhere = place.write("mounted/saggar.toml", &workspace);
    let mount = format!("{}:/mnt/it:rw", show(elsewhere.parent().expect("a directory")));
    let done = run("mounted/saggar.toml", &["--mount", &mount], "true");
    assert!(done.code == 126 && done.stderr.contains("(contradiction)"), "{done:?}");
    assert_eq!(run("mounted/saggar.toml", &["--mount", mount.trim_end_matches(":rw")], "true").code, 0);
}
