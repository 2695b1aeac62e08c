//! Settings of the host's git outside of the repository: wherever they are, paths in the workspace that they name are
//! held.

mod harness;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use harness::git::{PROGRAM, git, host_git, host_git_with, is_misled_in, repository};
use harness::tree::names;
use harness::{Done, Place, finish, show};

/// Runs a script inside, with these variables in `saggar`'s own environment.
fn sh_with(place: &Place, variables: &[(&str, &str)], script: &str) -> Done {
    let mut command = place.command(["run", "--workspace", &show(&place.workspace()), "--", "/bin/sh", "-c", script]);
    finish(command.envs(variables.iter().copied()).spawn().expect("built"))
}

/// A hook in `.gh`, if it can be put there.
fn plant() -> String {
    format!("mkdir -p .gh && printf '#!/bin/sh\\n{PROGRAM}\\n' > .gh/pre-commit && chmod +x .gh/pre-commit")
}

fn check_hooks_are_held(place: &Place, how: &str, ours: &[(&str, &str)], theirs: &[(&str, &str)]) {
    let done = sh_with(place, ours, &plant());
    let workspace = place.workspace();
    host_git_with(place, &workspace, theirs, &["commit", "--allow-empty", "--message=two"]);
    assert!(!place.path("mark").exists(), "{how}: the host's git ran the hook");
    assert!(done.code != 0 && done.code < 124, "{how}: {done:?}");
    // Control: these settings do lead git there.
    place.write("workspace/.gh/pre-commit", &format!("#!/bin/sh\n{PROGRAM}\n"));
    std::fs::set_permissions(place.path("workspace/.gh/pre-commit"), PermissionsExt::from_mode(0o755)).expect("ours");
    host_git_with(place, &workspace, theirs, &["commit", "--allow-empty", "--message=two"]);
    assert!(place.path("mark").exists(), "{how}: nothing leads git there");
}

fn place_with(name: &str, content: &str) -> Place {
    let place = Place::new();
    repository(&place, "workspace");
    place.write(name, &content.replace("{workspace}", &show(&place.workspace())));
    place
}

const HOOKS: &str = "[core]\n\thooksPath = {workspace}/.gh\n";

#[test]
fn settings_behind_a_link_count() {
    let place = place_with("dotfiles/gitconfig", HOOKS);
    std::fs::create_dir(place.path("home")).expect("ours");
    symlink("../dotfiles/gitconfig", place.path("home/.gitconfig")).expect("ours");
    let (home, global) = (show(&place.path("home")), show(&place.path("home/.gitconfig")));
    check_hooks_are_held(&place, "~/.gitconfig", &[("HOME", &home)], &[("GIT_CONFIG_GLOBAL", &global)]);

    let place = place_with("dotfiles/git/config", HOOKS);
    symlink("dotfiles", place.path("linked")).expect("ours");
    let (linked, global) = (show(&place.path("linked")), show(&place.path("linked/git/config")));
    check_hooks_are_held(&place, "XDG", &[("XDG_CONFIG_HOME", &linked)], &[("GIT_CONFIG_GLOBAL", &global)]);
}

#[test]
fn settings_that_the_environment_names_or_holds_count() {
    for variable in ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"] {
        let place = place_with("elsewhere", HOOKS);
        let file = show(&place.path("elsewhere"));
        let theirs = [(variable, file.as_str()), ("GIT_CONFIG_NOSYSTEM", "0")];
        check_hooks_are_held(&place, variable, &theirs[..1], &theirs);
    }
    let place = place_with("elsewhere", "");
    let hooks = show(&place.path("workspace/.gh"));
    let variables = [("GIT_CONFIG_COUNT", "1"), ("GIT_CONFIG_KEY_0", "Core.hooksPath"), ("GIT_CONFIG_VALUE_0", &hooks)];
    check_hooks_are_held(&place, "GIT_CONFIG_COUNT", &variables, &variables);
}

#[test]
fn the_system_s_settings_count_in_the_prefix_of_every_git_on_the_path() {
    for is_linked in [false, true] {
        let place = place_with("prefix/etc/gitconfig", HOOKS);
        let git = place.write("prefix/bin/git", "#!/bin/sh\n");
        std::fs::set_permissions(git, PermissionsExt::from_mode(0o755)).expect("ours");
        let mut directory = place.path("prefix/bin");
        if is_linked {
            directory = place.path("bin");
            std::fs::create_dir(&directory).expect("ours");
            symlink("../prefix/bin/git", directory.join("git")).expect("ours");
        }
        let path = format!("/usr/bin:/bin:{}", show(&directory));
        let system = show(&place.path("prefix/etc/gitconfig"));
        let theirs = [("GIT_CONFIG_SYSTEM", system.as_str()), ("GIT_CONFIG_NOSYSTEM", "0")];
        check_hooks_are_held(&place, &format!("linked: {is_linked}"), &[("PATH", &path)], &theirs);
    }
}

#[test]
fn a_user_s_settings_in_the_workspace_are_held_themselves() {
    let place = Place::new();
    repository(&place, "workspace");
    place.write("workspace/gitconfig", "[user]\n\tname = u\n");
    std::fs::create_dir(place.path("home")).expect("ours");
    symlink("../workspace/gitconfig", place.path("home/.gitconfig")).expect("ours");
    let home = show(&place.path("home"));
    let done = sh_with(&place, &[("HOME", &home)], "echo '[core]' >> gitconfig");
    assert_ne!(done.code, 0, "{done:?}");
    assert_eq!(std::fs::read_to_string(place.path("workspace/gitconfig")).expect("ours"), "[user]\n\tname = u\n");
}

#[test]
fn the_template_of_new_repositories_is_held() {
    let script = format!(
        "mkdir -p template/hooks && printf '#!/bin/sh\\n{PROGRAM}\\n' > template/hooks/post-checkout && chmod +x template/hooks/*"
    );
    for has_repository in [true, false] {
        let place = Place::new();
        if has_repository {
            repository(&place, "workspace");
        }
        place.write("workspace/template/description", "of the host\n");
        let template = show(&place.path("workspace/template"));
        place.write("home/.gitconfig", &format!("[init]\n\ttemplateDir = {template}\n"));
        let done = sh_with(&place, &[("HOME", &show(&place.path("home")))], &script);
        assert_ne!(done.code, 0, "{done:?}");
        let from = repository(&place, "origin");
        let global = show(&place.path("home/.gitconfig"));
        host_git_with(&place, &place.path(""), &[("GIT_CONFIG_GLOBAL", &global)], &["clone", &show(&from), "new"]);
        assert!(place.path("new/file").exists() && !place.path("mark").exists(), "has_repository: {has_repository}");
    }
}

/// The sandbox's repository runs the program on a push to it.
const EVIL: &str = "mkdir -p .cache/evil.git && cd .cache/evil.git && git init -q --bare --template= . && mkdir hooks && \
                    printf '#!/bin/sh\\ntouch $MARK\\n' > hooks/pre-receive && chmod +x hooks/pre-receive; cd /workspace; ";

#[test]
fn no_push_or_fetch_is_redirected() {
    for script in [
        "mkdir -p .git/remotes; printf 'URL: ./.cache/evil.git\\nPush: HEAD:refs/heads/x\\n' > .git/remotes/origin",
        "mkdir -p .git/branches; echo ./.cache/evil.git > .git/branches/origin",
    ] {
        let place = Place::new();
        repository(&place, "workspace");
        let done = place.sh(&["--workspace", &show(&place.workspace())], &format!("{EVIL}{script}"));
        assert!(done.code < 124, "{done:?}");
        assert!(!is_misled_in(&place, &place.workspace(), &["push", "origin", "HEAD:refs/heads/x"]), "{script}");
        assert!(!place.path("workspace/.git/remotes").exists() && !place.path("workspace/.git/branches").exists());
    }
    let place = Place::new();
    repository(&place, "workspace");
    let script = "mkdir -p .git/objects/info; echo ../../.cache/evil.git/objects > .git/objects/info/alternates";
    assert_ne!(place.sh(&["--workspace", &show(&place.workspace())], script).code, 0);
    assert!(!place.path("workspace/.git/objects/info/alternates").exists());
    // Ordinary work continues: objects, packs and git's own files are created beside it.
    let work = "echo two > file && git -c user.name=a -c user.email=a@b commit -qam two && git repack -adq && git gc -q && git fsck";
    let done = place.sh(&["--workspace", &show(&place.workspace())], work);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(git(&place, &place.workspace(), &["log", "--format=%s"]), "two\none\n");
}

#[test]
fn redirections_are_not_applied_from_a_scratch_workspace() {
    let place = Place::new();
    repository(&place, "workspace");
    let script = "mkdir -p .git/remotes .git/branches .git/objects/info .git/refs/remotes/origin bare/remotes; \
                  echo x > .git/remotes/origin; echo x > .git/branches/origin; echo x > .git/objects/info/alternates; \
                  git rev-parse HEAD > .git/refs/remotes/origin/branches; mkdir -p bare/objects/info bare/refs; \
                  echo x > bare/HEAD; echo x > bare/remotes/origin; echo x > bare/objects/info/alternates";
    let result = place.json(&["--workspace", &show(&place.workspace()), "--fs", "scratch"], &["/bin/sh", "-c", script]);
    let id = result["sandbox_id"].as_str().expect("an id");
    let done = finish(place.command(["changes", "apply", id]).spawn().expect("built"));
    let refused: Vec<&str> = done
        .stdout
        .lines()
        .filter_map(|line| line.strip_prefix("refused   "))
        .filter_map(|line| line.split(':').next())
        .collect();
    for path in [".git/remotes/origin", ".git/branches/origin", ".git/objects/info/alternates"] {
        assert!(refused.contains(&path), "{path}: {done:?}");
    }
    assert!(
        done.stdout.contains("applied   .git/refs/remotes/origin/branches\n"),
        "a branch is no redirection: {done:?}"
    );
}

#[test]
fn a_link_that_one_run_made_and_another_moved_is_gone() {
    let place = Place::new();
    git(&place, &place.workspace(), &["init", "--quiet", "--bare", "."]);
    symlink("nowhere", place.path("workspace/refs/of-the-host")).expect("ours");
    let flags = ["--workspace", &show(&place.workspace())];
    let target = show(&place.path("home"));
    assert_eq!(place.sh(&flags, &format!("mkdir -p d/e; ln -s {target} d/HEAD; ln -s {target} d/e/deep")).code, 0);
    // Older than the clock's granularity by the time of the second run.
    let made = std::fs::symlink_metadata(place.path("workspace/d/HEAD")).expect("an ordinary link of the workspace");
    assert!(made.is_symlink());
    harness::wait_for_clock(std::time::Duration::from_secs(2));
    let result = place.json(&flags, &["/bin/sh", "-c", "mv d logs"]);
    assert_eq!(result["exit_code"], 0, "{result}");
    let links: Vec<String> =
        names(&place.workspace()).into_iter().filter(|name| place.workspace().join(name).is_symlink()).collect();
    assert_eq!(links, ["refs/of-the-host"], "{result}");
}

fn hidden_rule(result: &serde_json::Value) -> Vec<String> {
    let denials = result["denials"].as_array().expect("a list");
    let told = denials.iter().filter(|denial| denial["rule"] == "protect/git-index");
    told.map(|denial| denial["message"].as_str().expect("text").to_owned()).collect()
}

#[test]
fn marks_that_hide_edits_from_git_are_told_at_the_end_of_a_run() {
    let place = Place::new();
    let workspace = repository(&place, "workspace");
    place.write("workspace/other", "one\n");
    git(&place, &workspace, &["add", "other"]);
    git(&place, &workspace, &["update-index", "--assume-unchanged", "other"]);
    let flags = ["--workspace", &show(&workspace)];
    let run = |script: &str| place.json(&flags, &["/bin/sh", "-c", script]);
    for mark in ["--assume-unchanged", "--skip-worktree"] {
        let result = run(&format!("git update-index {mark} file; echo evil >> file; test -z \"$(git diff --stat)\""));
        let told = hidden_rule(&result);
        assert!(result["exit_code"] == 0 && told.len() == 1 && told[0].starts_with("\"file\" is marked"), "{result}");
        git(&place, &workspace, &["update-index", "--no-assume-unchanged", "--no-skip-worktree", "file"]);
    }
    assert_eq!(hidden_rule(&run("git status")), Vec::<String>::new(), "the user's own mark is no news");
}

#[test]
fn marks_that_hide_edits_from_git_are_among_the_changes() {
    let place = Place::new();
    let workspace = repository(&place, "workspace");
    let script = "git update-index --skip-worktree file; echo evil >> file";
    let result = place.json(&["--workspace", &show(&workspace), "--fs", "scratch"], &["/bin/sh", "-c", script]);
    let id = result["sandbox_id"].as_str().expect("an id");
    let list = |flag: &[&str]| {
        let arguments = [&["changes"], flag, &["list", id]].concat();
        finish(place.command(arguments).spawn().expect("built"))
    };
    assert!(list(&[]).stdout.contains("hidden    file: .git/index tells git not to show edits of it\n"));
    let json = list(&["--json"]).json();
    assert_eq!(json["hidden"], serde_json::json!([{"index": ".git/index", "path": "file"}]), "{json}");
    assert!(host_git(&place, Path::new(&workspace), &["status"]).status.success());
}
