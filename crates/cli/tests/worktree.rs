//! `--fs worktree`: a git repository as a new worktree. What is committed inside becomes a branch when it is applied, and nothing else of the
//! repository changes.

mod harness;

use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;

use harness::git::{PROGRAM, git, host_git, is_misled_in, repository};
use harness::tree::tree;
use harness::{Done, Place, finish, is_root, not_here, show};
use serde_json::Value;

fn changes(place: &Place, arguments: &[&str]) -> Done {
    finish(place.command([&["changes"], arguments].concat()).spawn().expect("the binary was built"))
}

fn flags(place: &Place) -> [String; 4] {
    ["--workspace".to_owned(), show(&place.workspace()), "--fs".to_owned(), "worktree".to_owned()]
}

/// Runs a script in a worktree, and returns what it printed and the sandbox's id.
fn worktree(place: &Place, script: &str) -> (String, String) {
    let flags = flags(place);
    let script =
        format!("export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@a; {script}");
    let result: Value = place.json(&flags.each_ref().map(String::as_str), &["/bin/sh", "-c", &script]);
    assert_eq!((&result["status"], &result["exit_code"]), (&"exited".into(), &0.into()), "{result}");
    (result["stdout"].as_str().expect("text").to_owned(), result["sandbox_id"].as_str().expect("an id").to_owned())
}

fn place_with_repository() -> Place {
    let place = Place::new();
    repository(&place, "workspace");
    for (name, content) in
        [("src/a", "one\ntwo\n"), ("src/deep/b", "b\n"), ("gone", "gone\n"), (".gitignore", "out/\n")]
    {
        place.write(&format!("workspace/{name}"), content);
    }
    let top = place.workspace();
    std::fs::write(top.join("run"), "#!/bin/sh\n").expect("ours");
    std::fs::set_permissions(top.join("run"), PermissionsExt::from_mode(0o755)).expect("ours");
    symlink("src/a", top.join("link")).expect("ours");
    git(&place, &top, &["add", "."]);
    git(&place, &top, &["commit", "--quiet", "--message=two"]);
    place
}

fn head(place: &Place) -> String {
    git(place, &place.workspace(), &["rev-parse", "HEAD"]).trim().to_owned()
}

#[test]
fn the_files_are_those_of_the_commit_and_git_finds_nothing_changed() {
    let place = place_with_repository();
    // Most objects in a pack, as differences from one another.
    for round in 0..20 {
        place.write(
            "workspace/src/a",
            &(0..200).map(|line| format!("{line} {}\n", line % (round + 2))).collect::<String>(),
        );
        git(&place, &place.workspace(), &["commit", "--quiet", "--all", &format!("--message={round}")]);
    }
    git(&place, &place.workspace(), &["gc", "--quiet"]);
    place.write("workspace/src/a", "edited and not committed\n");
    place.write("workspace/untracked", "x\n");
    let before = tree(&place.workspace());
    let script = "git status --porcelain; git fsck --strict 2>&1; git log --oneline | wc -l; git symbolic-ref HEAD; \
                  git diff --stat main; ls; cat link | wc -l; test -x run && ! test -x src/a && readlink link; ls /.git-objects";
    let (printed, id) = worktree(&place, script);
    let expected = format!("22\nrefs/heads/saggar/{id}\nfile\ngone\nlink\nrun\nsrc\n200\nsrc/a\n");
    assert!(printed.starts_with(&expected), "{printed}");
    assert!(printed[expected.len()..].contains("pack"), "{printed}");
    assert_eq!(tree(&place.workspace()), before, "the host is as it was");
    let done = changes(&place, &["apply", &id]);
    assert!(done.code == 0 && !done.stdout.contains("branch"), "nothing was done: {done:?}");
    assert!(changes(&place, &["list"]).stdout.is_empty());
}

#[test]
fn commits_become_a_branch_and_the_working_tree_stays_as_it_is() {
    let place = place_with_repository();
    place.write("workspace/src/a", "edited and not committed\n");
    let (before, start) = (tree(&place.workspace()), head(&place));
    let script = "echo three >> src/a && git commit -qam 'Add three' && mkdir src/new && echo n > src/new/file && git add . && \
                  git commit -qm 'Add a file' && git rm -q gone && git commit -qm 'Remove one' && git rev-parse HEAD";
    let (tip, id) = worktree(&place, script);
    assert_eq!(tree(&place.workspace()), before, "nothing changes before it is applied");

    let listed = changes(&place, &["list", &id]).stdout;
    assert!(listed.starts_with(&format!("branch    saggar/{id} (3 commits)\ncommit    ")), "{listed}");
    assert!(listed.contains(" Add three\n") && !listed.contains(".git/"), "{listed}");
    assert!(listed.contains("modified  src/a\n") && listed.contains("removed   gone\n"), "{listed}");
    let diff = changes(&place, &["diff", &id, "src/a"]).stdout;
    assert_eq!(
        diff, "--- a/src/a\n+++ b/src/a\n@@ -1,2 +1,3 @@\n one\n two\n+three\n",
        "compared with the commit, not with the edit"
    );

    let done = changes(&place, &["apply", &id]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    assert!(done.stdout.ends_with(&format!("branch    saggar/{id} at {}\n", &tip[..12])), "{done:?}");
    let top = place.workspace();
    let branch = format!("saggar/{id}");
    assert_eq!(git(&place, &top, &["rev-parse", &branch]), tip);
    assert_eq!(git(&place, &top, &["rev-list", "--count", &format!("{start}..{branch}")]).trim(), "3");
    let checked = host_git(&place, &top, &["fsck", "--strict", "--full"]);
    assert!(checked.status.success(), "{checked:?}");
    assert_eq!(head(&place), start);
    assert_eq!(std::fs::read_to_string(top.join("src/a")).expect("ours"), "edited and not committed\n");
    // What is new is objects and one ref.
    let is_new = |path: &&String| !before.contains_key(*path);
    let after = tree(&top);
    let strange: Vec<&String> = after
        .keys()
        .filter(is_new)
        .filter(|path| !path.starts_with(".git/objects/") && !path.starts_with(".git/refs/heads/saggar"))
        .collect();
    assert_eq!(strange, Vec::<&String>::new());
    let owner = top.metadata().expect("ours").uid();
    let reference = top.join(format!(".git/refs/heads/{branch}")).metadata().expect("it was made");
    assert_eq!(reference.uid(), owner);
    assert!(changes(&place, &["list"]).stdout.is_empty(), "what is applied is forgotten");
}

#[test]
fn what_was_not_committed_is_committed_on_top_and_new_files_only_if_they_are_named() {
    let place = place_with_repository();
    let script = "echo three >> src/a; rm gone; chmod -x run; ln -sf src/deep/b link; mkdir out; echo x > out/made; echo new > new";
    let (_, id) = worktree(&place, script);
    let done = changes(&place, &["apply", &id]);
    assert_eq!(done.code, 1, "{done:?}");
    let refused: Vec<&str> = done.stdout.lines().filter(|line| line.starts_with("refused")).collect();
    assert!(refused.len() == 2 && refused.iter().all(|line| line.contains("name it to commit it")), "{done:?}");
    let (top, branch) = (place.workspace(), format!("saggar/{id}"));
    let shown = git(&place, &top, &["diff", "--raw", "--abbrev=4", "HEAD", &branch]);
    let names: Vec<&str> = shown.lines().filter_map(|line| line.split_once('\t').map(|(_, name)| name)).collect();
    assert_eq!(names, ["gone", "link", "run", "src/a"], "{shown}");
    let listed = changes(&place, &["list", &id]).stdout;
    assert!(listed.contains("added     new\n") && !listed.contains("src/a"), "{listed}");
    let first = git(&place, &top, &["rev-parse", &branch]);

    let done = changes(&place, &["apply", &id, "new"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(git(&place, &top, &["show", &format!("{branch}:new")]), "new\n");
    assert_eq!(git(&place, &top, &["rev-parse", &format!("{branch}^")]), first);
    assert_eq!(git(&place, &top, &["log", "-1", "--format=%an", &branch]), "Saggar\n");
    assert!(host_git(&place, &top, &["fsck", "--strict"]).status.success());
    // A branch that somebody moved, or has checked out, is left alone.
    git(&place, &top, &["update-ref", &format!("refs/heads/{branch}"), "HEAD"]);
    let done = changes(&place, &["apply", &id, "out"]);
    assert!(done.code == 125 && done.stderr.contains("rename it"), "{done:?}");
    git(&place, &top, &["update-ref", "-d", &format!("refs/heads/{branch}")]);
    assert_eq!(changes(&place, &["apply", &id, "out"]).code, 0);
    assert_eq!(git(&place, &top, &["show", &format!("{branch}:out/made")]), "x\n");
}

#[test]
fn a_checked_out_branch_is_not_moved() {
    let place = place_with_repository();
    let (_, id) = worktree(&place, "echo three >> src/a; echo new > new");
    assert_eq!(changes(&place, &["apply", &id, "src/a"]).code, 0);
    let top = place.workspace();
    git(&place, &top, &["checkout", "--quiet", &format!("saggar/{id}")]);
    let before = tree(&top);
    let done = changes(&place, &["apply", &id, "new"]);
    assert!(done.code == 125 && done.stderr.contains("checked out"), "{done:?}");
    let after = tree(&top);
    assert!(
        before
            .iter()
            .filter(|(path, _)| !path.starts_with(".git/objects"))
            .all(|(path, was)| after.get(path) == Some(was))
    );
}

/// Neither what the repository says nor what is written inside makes a program of the host run, or changes what exists.
#[test]
fn hooks_filters_and_settings_run_nothing_on_the_host() {
    let place = place_with_repository();
    let top = place.workspace();
    let config = top.join(".git/config");
    let own = std::fs::read_to_string(&config).expect("ours");
    // The repository's own: they are the user's, and still nothing of them is run for a sandbox.
    git(&place, &top, &["config", "filter.evil.smudge", PROGRAM]);
    git(&place, &top, &["config", "core.fsmonitor", PROGRAM]);
    place.write("workspace/.gitattributes", "* filter=evil\n");
    git(&place, &top, &["-c", "core.fsmonitor=false", "-c", "filter.evil.smudge=", "add", ".gitattributes"]);
    git(&place, &top, &["-c", "core.fsmonitor=false", "commit", "--quiet", "--message=attributes"]);
    let (settings, _) = worktree(&place, "cat .git/config; ls .git/hooks 2>&1 | head -1");
    assert!(!settings.contains("evil") && !settings.contains("fsmonitor"), "{settings}");
    std::fs::write(&config, own).expect("ours");
    let before = tree(&top);

    let script = format!(
        "mkdir -p .git/hooks && printf '#!/bin/sh\\n{PROGRAM}\\n' > .git/hooks/post-checkout && chmod +x .git/hooks/post-checkout; \
         git config core.fsmonitor {PROGRAM}; git config core.hooksPath /workspace; echo /etc > .git/commondir; rm .git/commondir; \
         ln -s /etc/passwd .git/refs/heads/evil; echo evil >> src/a; git -c core.fsmonitor= commit -qam evil; \
         git branch main2; git update-ref refs/heads/main HEAD; echo /etc > .git/objects/info/alternates"
    );
    let (_, id) = worktree(&place, &script);
    let done = changes(&place, &["apply", &id]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(!is_misled_in(&place, &top, &["checkout", "--quiet", &format!("saggar/{id}")]));
    git(&place, &top, &["checkout", "--quiet", "main"]);
    for (path, was) in before.iter().filter(|(path, _)| !path.ends_with("index") && !path.contains("logs/")) {
        assert_eq!(tree(&top).get(path), Some(was), "{path}");
    }
    assert!(!top.join(".git/refs/heads/main2").exists() && !top.join(".git/hooks/post-checkout").exists());
}

/// Objects from inside are what their ids say, and name no file of a git directory.
#[test]
fn forged_objects_and_trees_that_lead_elsewhere_are_refused() {
    let commit_tree = "tree() { git hash-object -t tree -w --stdin --literally; }; blob=$(echo evil | git hash-object -w --stdin); \
                       raw=$(echo $blob | sed 's/../\\\\x&/g'); use() { git update-ref HEAD $(git commit-tree -m x -p HEAD $1); }; ";
    for (what, script, said) in [
        ("a .git", "use $(printf \"100644 .git\\0$raw\" | tree)", "is damaged"),
        ("a parent", "use $(printf \"100644 ..\\0$raw\" | tree)", "is damaged"),
        ("a path", "use $(printf \"100644 a/b\\0$raw\" | tree)", "is damaged"),
        (
            "a forged object",
            "t=$(printf \"100644 a\\0$raw\" | tree); use $t; f=.git/objects/$(echo $blob | sed 's/../&\\//'); \
             other=$(echo harmless | git hash-object -w --stdin); g=.git/objects/$(echo $other | sed 's/../&\\//'); chmod u+w $f; cat $g > $f",
            "is damaged",
        ),
        (
            "a missing object",
            "t=$(printf \"100644 a\\0$raw\" | tree); use $t; rm -f .git/objects/$(echo $blob | sed 's/../&\\//')",
            "is missing",
        ),
        ("a ref elsewhere", "echo 'ref: ../../../etc/passwd' > .git/HEAD; echo x >> src/a", "HEAD"),
        (
            "a damaged pack",
            "echo x >> src/a; git commit -qam x; git repack -qad --no-local -l 2>/dev/null; git repack -qd; \
             for p in .git/objects/pack/*.pack; do chmod u+w $p; printf 'garbage garbage' | dd of=$p bs=1 seek=14 conv=notrunc 2>/dev/null; done; \
             find .git/objects -type f ! -path '*pack*' ! -path '*info*' -delete",
            "",
        ),
    ] {
        let place = place_with_repository();
        let before = tree(&place.workspace());
        // dash's printf knows no \x, bash's does.
        let inner = format!("{commit_tree}{script}").replace('\'', "'\\''");
        let (_, id) = worktree(&place, &format!("bash -c '{inner}' || true"));
        let done = changes(&place, &["apply", &id]);
        assert!(done.code == 125 && done.stderr.contains(said), "{what}: {done:?}");
        let after = tree(&place.workspace());
        let is_object = |path: &&String| path.starts_with(".git/objects/");
        let changed: Vec<&String> =
            after.keys().filter(|path| !is_object(path) && before.get(*path) != after.get(*path)).collect();
        assert_eq!(changed, Vec::<&String>::new(), "{what}");
        assert!(host_git(&place, &place.workspace(), &["fsck", "--strict"]).status.success(), "{what}");
    }
}

/// What a sandbox leaves is read into memory, so no commit may be of any length.
#[test]
fn long_commits_are_shown_short_and_longer_ones_are_refused() {
    let place = place_with_repository();
    let message = |length: u32| format!("head -c {length} /dev/zero | tr '\\0' x");
    let commit = |length| {
        format!(
            "git update-ref HEAD $({} | git commit-tree -p HEAD -F - $(git rev-parse 'HEAD^{{tree}}'))",
            message(length)
        )
    };
    let (_, id) = worktree(&place, &commit(200_000));
    let listed = changes(&place, &["list", &id]);
    assert!(listed.stdout.contains(" (1 commit)") && listed.stdout.contains(" xxx"), "{listed:?}");
    assert!(listed.stdout.lines().all(|line| line.len() < 1000), "{} bytes", listed.stdout.len());
    let done = changes(&place, &["apply", &id]);
    assert_eq!(done.code, 0, "{done:?}");
    let (_, id) = worktree(&place, &commit(2_000_000));
    let listed = changes(&place, &["list", &id]);
    assert!(listed.stdout.len() < 10_000, "{} bytes", listed.stdout.len());
    let done = changes(&place, &["apply", &id]);
    assert!(done.code == 125 && done.stderr.contains("is too long"), "{done:?}");
    assert!(host_git(&place, &place.workspace(), &["fsck", "--strict"]).status.success());
}

#[test]
fn a_directory_that_is_no_plain_repository_is_refused_with_the_reason() {
    let place = place_with_repository();
    let top = place.workspace();
    let refused = |said: &str| {
        let flags = flags(&place);
        let done = place.sh(&flags.each_ref().map(String::as_str), "true");
        assert!(done.code == 126 && done.stderr.contains(said), "{said}: {done:?}");
        assert_eq!(place.records(), Vec::<String>::new());
    };
    let git_directory = top.join(".git");
    let (head, config) = (git_directory.join("HEAD"), git_directory.join("config"));
    let own = std::fs::read(&head).expect("ours");
    for (content, said) in [
        ("ref: refs/heads/none\n", "no commit yet"),
        ("ref: ../config\n", "can't be read"),
        ("ref: refs/heads/loop\n", "in a circle"),
        ("0123456789012345678901234567890123456789\n", "is missing"),
    ] {
        std::fs::write(git_directory.join("refs/heads/loop"), "ref: refs/heads/loop\n").expect("ours");
        std::fs::write(&head, content).expect("ours");
        refused(said);
    }
    std::fs::write(&head, own).expect("ours");
    let settings = std::fs::read(&config).expect("ours");
    for (more, said) in
        [("[extensions]\nobjectFormat = sha256\n", "SHA-256"), ("[extensions]\nrefStorage = reftable\n", "refs")]
    {
        std::fs::write(&config, [settings.as_slice(), more.as_bytes()].concat()).expect("ours");
        refused(said);
    }
    std::fs::write(&config, settings).expect("ours");
    std::fs::write(git_directory.join("objects/info/alternates"), "/elsewhere\n").expect("ours");
    refused("borrows");
    std::fs::remove_file(git_directory.join("objects/info/alternates")).expect("ours");
    let moved = top.join("elsewhere");
    std::fs::rename(&git_directory, &moved).expect("ours");
    refused("not the top of a git repository");
    symlink("elsewhere", &git_directory).expect("ours");
    refused("leads elsewhere");
    std::fs::remove_file(&git_directory).expect("ours");
    std::fs::write(&git_directory, "gitdir: elsewhere\n").expect("ours");
    refused("leads elsewhere");
    let done = place.sh(&["--fs", "worktree"], "true");
    assert!(done.code == 126 && done.stderr.contains("needs a workspace"), "{done:?}");
}

/// A commit of a few objects that has more files than a disk.
#[test]
fn a_commit_with_too_many_files_is_refused_and_leaves_nothing() {
    let place = place_with_repository();
    let top = place.workspace();
    let script = "blob=$(echo x | git hash-object -w --stdin); tree=$(for i in 0 1 2 3 4 5 6 7 8 9; do printf \"100644 blob $blob\\tf$i\\n\"; done | git mktree); \
                  for level in 1 2 3 4 5 6; do tree=$(for i in 0 1 2 3 4 5 6 7 8 9; do printf \"040000 tree $tree\\td$i\\n\"; done | git mktree); done; \
                  git update-ref HEAD $(git -c user.name=a -c user.email=a@a commit-tree -m bomb $tree)";
    let made = std::process::Command::new("sh").args(["-c", script]).current_dir(&top).status().expect("sh");
    assert!(made.success());
    let flags = flags(&place);
    // A quota of the test's own would take a filesystem of its own; the number of files is what stops it.
    let done = place.sh(&flags.each_ref().map(String::as_str), "true");
    assert!(done.code == 126 && done.stderr.contains("more than a million files"), "{done:?}");
    assert!(!has_checkouts(&place));
}

fn has_checkouts(place: &Place) -> bool {
    std::fs::read_dir(place.path("data").join("worktrees")).is_ok_and(|mut entries| entries.next().is_some())
}

#[test]
fn a_checkout_is_gone_with_its_sandbox_also_after_a_kill() {
    let place = place_with_repository();
    let (_, id) = worktree(&place, "echo x >> src/a");
    assert!(!has_checkouts(&place));
    changes(&place, &["drop", &id]);
    let flags = flags(&place);
    let mut child = place.spawn(&flags.each_ref().map(String::as_str), &["/bin/sh", "-c", "echo up; exec sleep 600"]);
    let mut line = [0; 3];
    std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut line).expect("it says so");
    assert!(has_checkouts(&place));
    child.kill().expect("it runs");
    child.wait().expect("ours");
    changes(&place, &["list"]);
    assert!(!has_checkouts(&place), "the reaper removes it");
}

#[test]
fn the_branch_belongs_to_the_owner_of_the_repository() {
    if !is_root() {
        return not_here("only root works on the repositories of others");
    }
    let place = place_with_repository();
    let top = place.workspace();
    own(&top, 4321);
    let (printed, id) = worktree(&place, "echo x >> src/a && git commit -qam x && stat -c %U src/a .git/HEAD");
    assert_eq!(printed, "user\nuser\n");
    assert_eq!(changes(&place, &["apply", &id]).code, 0);
    let foreign: Vec<String> =
        tree_owners(&top).into_iter().filter(|(_, uid)| *uid != 4321).map(|(path, _)| path).collect();
    assert_eq!(foreign, Vec::<String>::new());
}

fn own(path: &Path, uid: u32) {
    lchown(path, Some(uid), Some(uid)).expect("we are root");
    if path.is_dir() && !path.is_symlink() {
        for entry in std::fs::read_dir(path).expect("ours").flatten() {
            own(&entry.path(), uid);
        }
    }
}

fn tree_owners(path: &Path) -> Vec<(String, u32)> {
    let mut all = vec![(path.display().to_string(), path.symlink_metadata().expect("ours").uid())];
    if path.is_dir() && !path.is_symlink() {
        for entry in std::fs::read_dir(path).expect("ours").flatten() {
            all.extend(tree_owners(&entry.path()));
        }
    }
    all
}
