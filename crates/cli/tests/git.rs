//! The host's git after a sandbox has used the repository: it runs nothing from the sandbox, and writes nowhere else.

mod harness;

use std::os::unix::fs::{PermissionsExt, symlink};

use harness::git::{PROGRAM, git, is_misled_in, repository};
use harness::tree::{names, tree};
use harness::{Place, is_root, not_here, show};

fn place_with_repository() -> Place {
    let place = Place::new();
    repository(&place, "workspace");
    place
}

fn is_misled(place: &Place, arguments: &[&str]) -> bool {
    is_misled_in(place, &place.workspace(), arguments)
}

/// Runs a script inside and lets the host's git show status and commit. Returns whether git ran what the script left.
fn misleads(place: &Place, script: &str) -> bool {
    let done = place.sh(&["--workspace", &show(&place.workspace())], script);
    assert!(done.code < 124, "{script}: {done:?}");
    is_misled(place, &["status"]) || is_misled(place, &["commit", "--allow-empty", "--message=two"])
}

fn check_git_runs_nothing(place: &Place, script: &str) {
    assert!(!misleads(place, script), "the host's git ran what the sandbox wrote: {script}");
}

#[test]
fn the_top_never_becomes_a_repository_of_its_own() {
    let config =
        format!("printf '[core]\\nrepositoryformatversion=0\\nbare=false\\nworktree=.\\nfsmonitor=\"{PROGRAM}\"\\n'");
    let mut misled_by = Vec::new();
    for (around, script) in [
        ("", format!("mv .git/HEAD .git/H; mkdir objects refs; echo 'ref: refs/heads/main' > HEAD; {config} > config")),
        ("", format!("mv .git/HEAD .git/H; ln -s .git/objects .git/refs .; cp .git/H HEAD; {config} > config")),
        // HEAD alone is enough if `commondir` leads to the rest.
        (
            "",
            format!(
                "mv .git/HEAD .git/H; mkdir -p e/objects e/refs; cp .git/H HEAD; echo e > commondir; \
                 printf '[core]\\nrepositoryformatversion=1\\nfsmonitor=\"{PROGRAM}\"\\n[extensions]\\nworktreeConfig=true\\n' > e/config; \
                 printf '[core]\\nworktree=.\\nbare=false\\n' > config.worktree"
            ),
        ),
        ("", format!("chmod 0 .git; mkdir objects refs; echo 'ref: refs/heads/main' > HEAD; {config} > config")),
        ("refs", format!("rm .git/HEAD; mkdir objects; echo 'ref: refs/heads/main' > HEAD; {config} > config")),
        ("refs objects", format!("rm .git/HEAD; echo 'ref: refs/heads/main' > HEAD; {config} > config")),
    ] {
        let place = place_with_repository();
        for name in around.split_whitespace() {
            std::fs::create_dir(place.workspace().join(name)).expect("ours");
        }
        if misleads(&place, &script) {
            misled_by.push(script);
        }
    }
    assert_eq!(misled_by, Vec::<String>::new());
}

#[test]
fn a_workspace_that_is_no_repository_does_not_become_a_bare_one() {
    let place = Place::new();
    let script = format!(
        "mkdir objects refs; echo 'ref: refs/heads/main' > HEAD; printf '[core]\\nrepositoryformatversion=0\\nbare=false\\nworktree=.\\nfsmonitor=\"{PROGRAM}\"\\n' > config"
    );
    check_git_runs_nothing(&place, &script);
}

#[test]
fn a_bare_repository_is_held_as_one() {
    let place = Place::new();
    git(&place, &place.workspace(), &["init", "--quiet", "--bare", "."]);
    let before = tree(&place.workspace());
    let script = format!(
        "printf '[core]\\nrepositoryformatversion=0\\nbare=false\\nworktree=.\\nfsmonitor=\"{PROGRAM}\"\\n' >> config; echo x > hooks/post-update; echo .. > commondir"
    );
    check_git_runs_nothing(&place, &script);
    assert_eq!(tree(&place.workspace()), before);
}

#[test]
fn what_stops_git_at_the_top_is_no_file_of_the_repository_and_goes_again() {
    let place = place_with_repository();
    let before = names(&place.workspace());
    let script =
        "git status --porcelain; git add --all; git diff HEAD --stat; git diff refs --stat 2>/dev/null; test -S refs";
    let done = place.sh(&["--workspace", &show(&place.workspace())], script);
    assert_eq!((done.code, done.stdout.as_str()), (0, ""), "{done:?}");
    assert_eq!(names(&place.workspace()), before);
}

/// Every way that git understands to say where hooks are, with the resulting directory.
const HOOKS_ELSEWHERE: &[(&str, &str)] = &[
    ("[core]\n\thooksPath = .gh # ours\n", ".gh"),
    ("[core]\n\thooksPath = .gh ; ours\n", ".gh"),
    ("[core] hooksPath = .gh\n", ".gh"),
    ("[core]\n\thooksPath = .g\\\nh\n", ".gh"),
    ("[core]\n\thooksPath = \".g\"h\n", ".gh"),
    ("[core]\n\thooksPath = .first\n[core]\n\thooksPath = .gh\n", ".gh"),
    ("[include]\n\tpath = ../shared.cfg\n", ".gh"),
    ("[includeIf \"gitdir:**\"]\n\tpath = more/first.cfg\n", ".gh"),
    ("[core]\n\thooksPath = {alias}/.gh\n", ".gh"),
    ("[core]\n\thooksPath = ~/workspace/.gh\n", ".gh"),
    ("[extensions]\n\tworktreeConfig = true\n", ".gh"),
    ("[core]\n\thooksPath = .husky/_\n", ".husky"),
];

#[test]
fn hooks_are_held_wherever_the_configuration_puts_them() {
    let mut misled_by = Vec::new();
    for (config, hooks) in HOOKS_ELSEWHERE {
        let place = place_with_repository();
        let workspace = place.workspace();
        symlink(&workspace, place.path("alias")).expect("ours");
        place.write("workspace/shared.cfg", "[core]\n\thooksPath = .gh\n");
        place.write("workspace/.git/more/first.cfg", "[include]\n\tpath = second.cfg\n");
        place.write("workspace/.git/more/second.cfg", "[core]\n\thooksPath = .gh\n");
        if config.contains("worktreeConfig") {
            place.write("workspace/.git/config.worktree", "[core]\n\thooksPath = .gh\n");
        }
        let whole = std::fs::read_to_string(workspace.join(".git/config")).expect("a repository")
            + &config.replace("{alias}", &show(&place.path("alias")));
        place.write("workspace/.git/config", &whole);
        let script = format!(
            "mkdir -p {hooks}; printf '#!/bin/sh\\n{PROGRAM}\\n' > {hooks}/pre-commit && chmod +x {hooks}/pre-commit"
        );
        let mut command = place.command(["run", "--workspace", &show(&workspace), "--", "/bin/sh", "-c", &script]);
        let done = harness::finish(command.env("HOME", place.path("")).spawn().expect("built"));
        assert!(done.code < 124, "{config}: {done:?}");
        if is_misled(&place, &["commit", "--allow-empty", "--message=two"]) || done.code == 0 {
            misled_by.push(*config);
        }
    }
    assert_eq!(misled_by, Vec::<&str>::new());
}

#[test]
fn configuration_that_git_would_not_read_refuses_the_workspace() {
    for config in ["[core\n", "[core]\n\thooksPath = \"open\n", "[core]\n\thooksPath = %(prefix)/x\n"] {
        let place = place_with_repository();
        place.write("workspace/.git/config", config);
        let result = place.json(&["--workspace", &show(&place.workspace())], &["/bin/true"]);
        assert_eq!(result["error"]["code"], "invalid_protect", "{config}: {result}");
    }
}

#[test]
fn hooks_that_are_links_into_the_workspace_are_held_where_they_lead() {
    let place = place_with_repository();
    place.write("workspace/scripts/pre-commit", "#!/bin/sh\nexit 0\n");
    std::fs::set_permissions(place.path("workspace/scripts/pre-commit"), PermissionsExt::from_mode(0o755))
        .expect("ours");
    std::fs::create_dir(place.path("workspace/.git/hooks")).expect("ours");
    symlink("../../scripts/pre-commit", place.path("workspace/.git/hooks/pre-commit")).expect("ours");
    for script in [
        format!("printf '#!/bin/sh\\n{PROGRAM}\\n' > scripts/pre-commit"),
        format!(
            "mv scripts s; mkdir scripts; printf '#!/bin/sh\\n{PROGRAM}\\n' > scripts/pre-commit; chmod +x scripts/*"
        ),
    ] {
        check_git_runs_nothing(&place, &script);
    }
    // A link on the path could be redirected, and can't be held.
    std::fs::rename(place.path("workspace/scripts"), place.path("workspace/real")).expect("ours");
    symlink("real", place.path("workspace/scripts")).expect("ours");
    let result = place.json(&["--workspace", &show(&place.workspace())], &["/bin/true"]);
    assert_eq!(result["error"]["code"], "invalid_protect", "{result}");
}

#[test]
fn programs_that_the_configuration_names_in_the_workspace_are_held() {
    let place = place_with_repository();
    place.write("workspace/tools/monitor", "#!/bin/sh\nexit 1\n");
    std::fs::set_permissions(place.path("workspace/tools/monitor"), PermissionsExt::from_mode(0o755)).expect("ours");
    git(&place, &place.workspace(), &["config", "core.fsmonitor", "sh ./tools/monitor"]);
    check_git_runs_nothing(&place, &format!("printf '#!/bin/sh\\n{PROGRAM}\\n' > tools/monitor"));
}

#[test]
fn submodules_with_a_git_directory_of_their_own_are_held() {
    let config = format!("printf '[core]\\nfsmonitor=\"{PROGRAM}\"\\n'");
    let place = place_with_repository();
    let sub = repository(&place, "workspace/sub");
    git(&place, &place.workspace(), &["-c", "advice.addEmbeddedRepo=false", "add", "sub"]);
    check_git_runs_nothing(&place, &format!("{config} >> sub/.git/config"));
    // The same if only the mount point for one exists.
    std::fs::remove_dir_all(sub).expect("ours");
    std::fs::create_dir(place.path("workspace/sub")).expect("ours");
    check_git_runs_nothing(&place, &format!("git init -q sub; {config} >> sub/.git/config"));
    assert_eq!(names(&place.path("workspace/sub")), Vec::<String>::new());
}

#[test]
fn a_submodule_that_lost_its_head_is_still_held() {
    let place = place_with_repository();
    let module = repository(&place, "origin");
    let from = show(&module);
    git(&place, &place.workspace(), &["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", &from, "sub"]);
    let flags = ["--workspace", &show(&place.workspace())];
    assert_eq!(place.sh(&flags, "mv .git/modules/sub/HEAD .git/modules/sub/H").code, 0);
    check_git_runs_nothing(
        &place,
        &format!(
            "printf '[core]\\nfsmonitor=\"{PROGRAM}\"\\n' >> .git/modules/sub/config; mv .git/modules/sub/H .git/modules/sub/HEAD"
        ),
    );
}

#[test]
fn a_worktree_that_is_named_through_a_link_is_held() {
    let place = place_with_repository();
    symlink("workspace", place.path("alias")).expect("ours");
    git(&place, &place.workspace(), &["worktree", "add", "--quiet", "tree"]);
    let leads = show(&place.path("alias/tree/.git"));
    place.write("workspace/.git/worktrees/tree/gitdir", &format!("{leads}\n"));
    let done = place.sh(&["--workspace", &show(&place.workspace())], "echo 'gitdir: ../evil' > tree/.git");
    assert_ne!(done.code, 0, "{done:?}");
    assert_eq!(git(&place, &place.path("workspace/tree"), &["rev-parse", "--abbrev-ref", "HEAD"]), "tree\n");
}

#[test]
fn hooks_of_a_repository_around_the_workspace_are_held() {
    let place = Place::new();
    let around = repository(&place, "around");
    git(&place, &around, &["config", "core.hooksPath", "inner/hooks"]);
    place.write("around/inner/hooks/pre-commit", "#!/bin/sh\n");
    let done = place.sh(&["--workspace", &show(&place.path("around/inner"))], "echo evil > hooks/pre-commit");
    assert_ne!(done.code, 0, "{done:?}");
    assert_eq!(place.sh(&["--workspace", &show(&place.path("around/inner"))], "echo fine > other").code, 0);
}

#[test]
fn links_that_were_planted_in_a_git_directory_are_gone_when_it_ends() {
    let place = place_with_repository();
    place.write("home/.bashrc", "of the host\n");
    symlink("nowhere", place.path("workspace/.git/of-the-host")).expect("ours");
    // Links are distinguished from older ones by their creation time.
    let made = std::fs::symlink_metadata(place.path("workspace/.git/of-the-host")).expect("ours");
    let aged = std::time::Instant::now() + std::time::Duration::from_secs(2);
    let target = show(&place.path("home/.bashrc"));
    let script = format!(
        "rm -rf .git/logs; mkdir -p .git/logs .git/closed; ln -s {target} .git/logs/HEAD; ln -s {target} .git/FETCH_HEAD; \
         ln -s {target} .git/closed/x; chmod 0111 .git/closed; ln -s /tmp elsewhere; \
         git branch 'w;id>P;#'; echo 'ref: refs/heads/w;id>P;#' > .git/HEAD"
    );
    assert!(made.is_symlink());
    rustix::event::poll(
        &mut [],
        Some(&rustix::event::Timespec::try_from(aged - std::time::Instant::now()).expect("two seconds")),
    )
    .expect("nothing to wait for but time");
    let result = place.json(&["--workspace", &show(&place.workspace())], &["/bin/sh", "-c", &script]);
    assert_eq!(result["status"], "exited", "{result}");
    let denials = result["denials"].as_array().expect("a list");
    assert!(
        denials.iter().any(|denial| denial["code"] == "link_removed" && denial["rule"] == "protect/git-links"),
        "{result}"
    );
    git(&place, &place.workspace(), &["checkout", "--quiet", "main"]);
    assert_eq!(std::fs::read_to_string(place.path("home/.bashrc")).expect("ours"), "of the host\n");
    let links: Vec<String> =
        names(&place.workspace()).into_iter().filter(|name| place.workspace().join(name).is_symlink()).collect();
    assert_eq!(links, [".git/of-the-host", "elsewhere"]);
}

#[test]
fn the_whole_git_directory_can_be_protected() {
    let place = place_with_repository();
    let before = tree(&place.path("workspace/.git"));
    let script = "git log --format=%s; echo x > .git/new; rm .git/HEAD; git commit -q --allow-empty -m two; ln -s / .git/logs/l; echo y > file";
    let done = place.sh(&["--workspace", &show(&place.workspace()), "--protect", ".git/"], script);
    assert_eq!(done.stdout, "one\n", "{done:?}");
    assert_eq!(tree(&place.path("workspace/.git")), before);
    assert_eq!(std::fs::read_to_string(place.path("workspace/file")).expect("ours"), "y\n");
}

#[test]
fn a_protected_file_with_a_second_name_is_refused() {
    let place = Place::new();
    place.write("workspace/ci.yml", "of the host\n");
    place.write("workspace/ci/deploy/key", "of the host\n");
    let workspace = show(&place.workspace());
    assert_eq!(place.sh(&["--workspace", &workspace], "ln ci.yml innocuous; ln ci/deploy/key other").code, 0);
    for protect in ["ci.yml", "ci/", "ci/deploy/key"] {
        let result = place.json(
            &["--workspace", &workspace, "--protect", protect],
            &["/bin/sh", "-c", "echo evil > innocuous; echo evil > other"],
        );
        assert_eq!(result["error"]["code"], "invalid_protect", "{protect}: {result}");
    }
    assert_eq!(std::fs::read_to_string(place.path("workspace/ci.yml")).expect("ours"), "of the host\n");
}

/// A rebase that was never started: `git rebase --continue` runs the commands in its list. Rebases inside need the
/// same directory, so it can't be held; THREAT_MODEL.md documents this.
#[test]
fn a_rebase_that_was_never_begun_is_not_stopped() {
    let place = place_with_repository();
    let script = "mkdir .git/rebase-merge && echo 'exec true' > .git/rebase-merge/git-rebase-todo";
    assert_eq!(place.sh(&["--workspace", &show(&place.workspace())], script).code, 0);
    // `--protect .git/` stops it.
    std::fs::remove_dir_all(place.path("workspace/.git/rebase-merge")).expect("made inside");
    assert_ne!(place.sh(&["--workspace", &show(&place.workspace()), "--protect", ".git/"], script).code, 0);
}

#[test]
fn as_an_ordinary_user_the_same_holds() {
    if is_root() {
        return not_here("the suite as an ordinary user covers it");
    }
    let place = place_with_repository();
    check_git_runs_nothing(&place, "rm .git/HEAD; mkdir objects refs; echo 'ref: refs/heads/main' > HEAD");
}
