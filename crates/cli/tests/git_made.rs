//! Repositories created inside a sandbox: `git init` and `git clone` work, and the host's git runs nothing that came
//! with them.

mod harness;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::git::{PROGRAM, git, host_git, host_git_with, is_misled_in, repository};
use harness::tree::{names, tree};
use harness::{Done, Place, finish, is_root, show};
use serde_json::Value;

const COMMIT: &str = "git -c user.name=agent -c user.email=agent@example.org commit --quiet";

fn run(place: &Place, script: &str) -> Value {
    let result = place.json(&["--workspace", &show(&place.workspace())], &["/bin/sh", "-c", script]);
    assert!(!matches!(result["status"].as_str(), Some("refused" | "setup_failed")), "{result}");
    result
}

fn changes(place: &Place, arguments: &[&str]) -> Done {
    finish(place.command([&["changes"], arguments].concat()).spawn().expect("the binary was built"))
}

fn id(result: &Value) -> String {
    result["sandbox_id"].as_str().expect("an id").to_owned()
}

/// The held-back paths, as they are listed.
fn held(place: &Place, result: &Value) -> Vec<String> {
    let listed = changes(place, &["list", &id(result)]).stdout;
    listed.lines().filter_map(|line| line.strip_prefix("held      ")).map(str::to_owned).collect()
}

/// Whether the host's git runs the program when it is used in a directory of the workspace.
fn misleads(place: &Place, directory: &str) -> bool {
    let directory = place.workspace().join(directory);
    [
        &["status"][..],
        &["add", "--all"],
        &["commit", "--allow-empty", "--message=by the host"],
        &["checkout", "-b", "b"],
    ]
    .iter()
    .any(|arguments| is_misled_in(place, &directory, arguments))
}

#[test]
fn an_empty_workspace_is_empty_inside() {
    let place = Place::new();
    let result = run(&place, "ls -A /workspace");
    assert_eq!((&result["stdout"], &result["denials"]), (&Value::from(""), &serde_json::json!([])), "{result}");
    assert_eq!(names(&place.workspace()), Vec::<String>::new());
}

#[test]
fn git_init_works_and_what_it_makes_is_a_repository_of_the_hosts() {
    for has_files in [false, true] {
        let place = Place::new();
        if has_files {
            place.write("workspace/there", "before\n");
        }
        let script = format!(
            "set -e; git init --quiet --initial-branch=main .; echo one > file; git add file; {COMMIT} -m one; git status --porcelain"
        );
        let result = run(&place, &script);
        assert_eq!((&result["exit_code"], &result["changes_kept"]), (&Value::from(0), &Value::Null), "{result}");
        assert_eq!(result["denials"], serde_json::json!([]), "{result}");
        let workspace = place.workspace();
        assert_eq!(git(&place, &workspace, &["log", "--format=%an:%s"]), "agent:one\n");
        assert_eq!(git(&place, &workspace, &["status", "--porcelain"]), if has_files { "?? there\n" } else { "" });
        git(&place, &workspace, &["fsck", "--strict"]);
        // From now on mounts hold it.
        let again = run(&place, &format!("echo evil > .git/hooks/pre-commit; echo two > file; {COMMIT} -am two"));
        assert_eq!((&again["exit_code"], &again["changes_kept"]), (&Value::from(0), &Value::Null), "{again}");
        assert!(!workspace.join(".git/hooks/pre-commit").exists());
        assert!(!misleads(&place, ""));
        assert!(!workspace.join("refs").exists() && !workspace.join(".saggar").exists());
    }
}

#[test]
fn git_clone_into_an_empty_workspace_works() {
    for url in ["/mnt/origin", "file:///mnt/origin"] {
        let place = Place::new();
        let origin = repository(&place, "origin");
        let mount = format!("{}:/mnt/origin", show(&origin));
        let script = format!(
            "set -e; git -c safe.directory='*' clone --quiet {url} .; echo two >> file; {COMMIT} -am two; git log --format=%s"
        );
        let workspace = show(&place.workspace());
        let result = place.json(&["--workspace", &workspace, "--mount", &mount], &["/bin/sh", "-c", &script]);
        assert_eq!(
            (&result["exit_code"], &result["stdout"]),
            (&Value::from(0), &Value::from("two\none\n")),
            "{result}"
        );
        assert_eq!((&result["changes_kept"], &result["denials"]), (&Value::Null, &serde_json::json!([])), "{result}");
        assert_eq!(git(&place, &place.workspace(), &["status", "--porcelain", "--branch"]).lines().count(), 1);
        assert_eq!(git(&place, &place.workspace(), &["remote", "get-url", "origin"]), format!("{url}\n"));
        assert!(!misleads(&place, ""));
    }
}

#[test]
fn an_ordinary_user_makes_repositories_too() {
    const NOBODY: u32 = 65534;
    let place = Place::new();
    let saggar = place.path("saggar");
    harness::copy_program(env!("CARGO_BIN_EXE_saggar"), &saggar);
    std::fs::create_dir(place.path("data")).expect("ours");
    if is_root() {
        // Another user's directory, as a container may leave it: not an error.
        std::fs::create_dir(place.path("workspace/closed")).expect("ours");
        std::fs::set_permissions(place.path("workspace/closed"), PermissionsExt::from_mode(0o700)).expect("ours");
        for path in ["data", "workspace"] {
            std::os::unix::fs::lchown(place.path(path), Some(NOBODY), Some(NOBODY)).expect("we are root");
        }
    }
    let script = format!(
        "set -e; git init --quiet .; echo one > file; git add file; {COMMIT} -m one; \
         printf '#!/bin/sh\\n{PROGRAM}\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; \
         for way in listed hidden; do git init --quiet $way/b/sub; git -C $way/b/sub config core.fsmonitor '{PROGRAM}'; done; \
         chmod 0400 listed/b; chmod 0 hidden/b"
    );
    let mut command = Command::new(&saggar);
    command.args(["run", "--json", "--workspace", &show(&place.workspace()), "--", "/bin/sh", "-c", &script]);
    command.env("SAGGAR_DATA_DIR", place.path("data")).current_dir("/").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let done = finish(command.spawn().expect("copied"));
    let result = done.json();
    assert_eq!((&result["exit_code"], &result["changes_kept"]), (&Value::from(0), &Value::from(3)), "{done:?}");
    assert!(!result["denials"].to_string().contains("completely"), "{result}");
    assert_eq!(git(&place, &place.workspace(), &["log", "--format=%s"]), "one\n");
    // Also where a directory could be listed and not searched, or neither.
    for directory in ["", "listed/b/sub", "hidden/b/sub"] {
        assert!(!misleads(&place, directory), "{directory}");
    }
}

/// What a program may leave in a repository it created, the directory in which the host's git is then used, and what
/// is held back.
fn planted() -> Vec<(String, &'static str, &'static [&'static str])> {
    let hook = |path: &str| {
        format!(
            "mkdir -p {path}; printf '#!/bin/sh\\n{PROGRAM}\\n' > {path}/pre-commit; cp {path}/pre-commit {path}/post-checkout; chmod +x {path}/*;"
        )
    };
    let monitor = |directory: &str| format!("git -C {directory} config core.fsmonitor '{PROGRAM}';");
    let bare = |top: &str, more: &str| {
        format!(
            "mkdir -p {top}/objects {top}/refs; echo 'ref: refs/heads/main' > {top}/HEAD; \
             printf '[core]\\nrepositoryformatversion=0\\nbare=false\\n{more}fsmonitor=\"{PROGRAM}\"\\n' > {top}/config;"
        )
    };
    vec![
        (format!("git init -q .; {}", hook(".git/hooks")), "", &[".git/hooks/post-checkout", ".git/hooks/pre-commit"]),
        (format!("git init -q .; {}", monitor(".")), "", &[".git/config"]),
        (
            format!("git init -q .; git config core.hooksPath .gh; {}", hook(".gh")),
            "",
            &[".git/config"],
        ),
        (format!("git init -q .; git config include.path ../more; printf '[core]\\nfsmonitor=\"{PROGRAM}\"\\n' > more"), "", &[".git/config"]),
        (
            format!("git init -q .; git config extensions.worktreeConfig true; git config --worktree core.fsmonitor '{PROGRAM}'"),
            "",
            &[".git/config.worktree"],
        ),
        (format!("git init -q sub; {}", hook("sub/.git/hooks")), "sub", &["sub/.git/hooks/post-checkout", "sub/.git/hooks/pre-commit"]),
        (format!("git init -q a/b/sub; {} chmod 0 a/b", monitor("a/b/sub")), "a/b/sub", &["a/b/sub/.git/config"]),
        (bare(".", "worktree=.\\n"), "", &["config"]),
        (bare("sub", "worktree=..\\n"), "sub", &["sub/config"]),
        // A file that leads to a repository with another name, and one whose settings are in a third place.
        (format!("{} mkdir sub; echo 'gitdir: ../evil' > sub/.git", bare("evil", "")), "sub", &["evil/config"]),
        (
            format!("{} mkdir -p w sub; cp evil/HEAD w; echo ../evil > w/commondir; echo 'gitdir: ../w' > sub/.git", bare("evil", "")),
            "sub",
            &["evil/config", "w/commondir"],
        ),
        (
            format!("git init -q .; {} mkdir -p sub; echo 'gitdir: ../.git/modules/m' > sub/.git", bare(".git/modules/m", "")),
            "sub",
            &[".git/modules/m/config"],
        ),
        // git treats trailing blanks as part of the name.
        (
            format!("git init -q .; {} mkdir sub; echo 'gitdir: ../.git/evil ' > sub/.git", bare("'.git/evil '", "")),
            "sub",
            &[".git/evil /config"],
        ),
        ("mkdir sub; echo 'gitdir: /etc' > sub/.git; ln -s /etc .git".to_owned(), "sub", &[".git -> /etc", "sub/.git"]),
        // Parts of a repository, to be completed later.
        (format!("mkdir -p .git; printf '[core]\\nfsmonitor=\"{PROGRAM}\"\\n' > .git/config"), "", &[".git/config"]),
        (
            "git init -q .; mkdir -p .git/remotes .git/branches; echo 'URL: ./x' > .git/remotes/origin; echo x > .git/branches/o; \
             echo /x > .git/objects/info/alternates"
                .to_owned(),
            "",
            &[".git/branches/o", ".git/objects/info/alternates", ".git/remotes/origin"],
        ),
        ("mkdir .saggar; echo x > .saggar/policy; mkdir .saggar/d".to_owned(), "", &[".saggar/", ".saggar/d/", ".saggar/policy"]),
    ]
}

#[test]
fn whatever_the_hosts_git_would_run_is_held_back() {
    let mut wrong = Vec::new();
    for (script, directory, expected) in planted() {
        let place = Place::new();
        let result = run(&place, &format!("{script}\ntrue"));
        let held = held(&place, &result);
        let told =
            result["denials"].as_array().expect("a list").iter().any(|denial| denial["rule"] == "protect/held-back");
        if misleads(&place, directory) || held != expected || !told || result["changes_kept"] != held.len() {
            wrong.push(format!(
                "{script}\n  held {held:?}\n  result {result}\n  misled {}",
                place.path("mark").exists()
            ));
        }
        assert_eq!(place.records(), Vec::<String>::new());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn links_in_a_repository_that_was_made_inside_are_gone() {
    let place = Place::new();
    let result = run(&place, "git init -q .; mkdir -p .git/logs; ln -s /etc/passwd .git/logs/HEAD; ln -s x ordinary");
    assert!(
        !place.path("workspace/.git/logs/HEAD").is_symlink() && place.path("workspace/ordinary").is_symlink(),
        "{result}"
    );
}

#[test]
fn what_was_held_back_is_applied_only_by_its_name() {
    let place = Place::new();
    let script = format!(
        "git init -q .; printf '#!/bin/sh\\n{PROGRAM}\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; \
         git config alias.st '!x'; git config user.name agent"
    );
    let result = run(&place, &script);
    let (id, config) = (id(&result), place.path("workspace/.git/config"));
    assert!(!std::fs::read_to_string(&config).expect("a repository").contains("alias"));
    assert!(std::fs::read_to_string(&config).expect("a repository").contains("name = agent"));
    let diff = changes(&place, &["diff", &id, ".git/config"]).stdout;
    assert!(diff.contains("+[alias]\n") && diff.contains("+\tst = !x\n"), "{diff}");
    for arguments in [&["apply", &id][..], &["apply", &id, ".git"], &["apply", &id, ".git/hooks/"]] {
        let done = changes(&place, arguments);
        assert!(
            done.code == 1 && !done.stdout.contains("applied") && done.stdout.contains("name it to apply it"),
            "{done:?}"
        );
    }
    assert!(!misleads(&place, ""));
    let done = changes(&place, &["apply", &id, ".git/hooks/pre-commit"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "applied   .git/hooks/pre-commit\n"), "{done:?}");
    assert_eq!(
        std::fs::metadata(place.path("workspace/.git/hooks/pre-commit")).expect("applied").permissions().mode() & 0o777,
        0o755
    );
    assert!(misleads(&place, ""), "a control: this is what was kept from running");
    assert_eq!(changes(&place, &["apply", &id, ".git/config"]).code, 0);
    assert!(std::fs::read_to_string(&config).expect("a repository").contains("st = !x"));
    assert_eq!(changes(&place, &["list"]).stdout, "", "nothing is left");
}

#[test]
fn settings_that_the_host_changed_meanwhile_are_not_replaced() {
    let place = Place::new();
    let result = run(&place, "git init -q .; git config alias.st '!x'");
    git(&place, &place.workspace(), &["remote", "add", "origin", "https://example.org/a.git"]);
    let done = changes(&place, &["apply", &id(&result), ".git/config"]);
    assert!(done.code == 1 && done.stdout.contains("no longer the one the sandbox started from"), "{done:?}");
    assert_eq!(git(&place, &place.workspace(), &["remote"]), "origin\n");
}

/// Starts a run that plants a hook and then waits, and kills its `saggar`.
fn kill_with_a_hook_planted(place: &Place) {
    let script = format!(
        "git init -q .; printf '#!/bin/sh\\n{PROGRAM}\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; \
         git config core.fsmonitor '{PROGRAM}'; echo planted; sleep 50"
    );
    let mut child = place.spawn(&["--workspace", &show(&place.workspace())], &["/bin/sh", "-c", &script]);
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a pipe of ours");
    assert_eq!(line, "planted\n");
    child.kill().expect("it runs");
    child.wait().expect("our own child");
}

#[test]
fn after_a_saggar_that_was_killed_the_next_start_holds_back() {
    let place = Place::new();
    kill_with_a_hook_planted(&place);
    let sandbox = place.records().pop().expect("the killed one's record");
    // Any command that reaps will do; no sandbox is started on the workspace.
    let done = changes(&place, &["list"]);
    assert!(done.stdout.starts_with(&format!("{sandbox}  2 changes of /")), "{done:?}");
    assert!(!misleads(&place, ""));
    assert_eq!(changes(&place, &["list", &sandbox]).stdout, "held      .git/config\nheld      .git/hooks/pre-commit\n");
    assert_eq!(place.records(), Vec::<String>::new());
}

#[test]
fn hooks_where_the_users_settings_put_them_in_every_checkout_are_held_back() {
    let place = Place::new();
    let global = place.write("home/.gitconfig", "[core]\n\thooksPath = .gh\n");
    let script = format!(
        "git init -q .; mkdir .gh; printf '#!/bin/sh\\n{PROGRAM}\\n' > .gh/pre-commit; chmod +x .gh/pre-commit"
    );
    let workspace = show(&place.workspace());
    let mut command = place.command(["run", "--json", "--workspace", &workspace, "--", "/bin/sh", "-c", &script]);
    let result = finish(command.env("HOME", place.path("home")).spawn().expect("built")).json();
    let commit = ["commit", "--allow-empty", "--message=two"];
    host_git_with(&place, &place.workspace(), &[("GIT_CONFIG_GLOBAL", &show(&global))], &commit);
    assert!(!place.path("mark").exists(), "{result}");
    assert_eq!(held(&place, &result), [".gh/pre-commit"]);
}

#[test]
fn repositories_that_were_there_keep_what_they_have() {
    let place = Place::new();
    let sub = repository(&place, "workspace/sub");
    git(&place, &sub, &["config", "alias.st", "!true"]);
    place.write("workspace/sub/.git/hooks/post-merge", "#!/bin/sh\n");
    let before = tree(&sub.join(".git/hooks"));
    let config = std::fs::read_to_string(sub.join(".git/config")).expect("a repository");
    let wait = || harness::wait_for_clock(std::time::Duration::from_secs(2));
    wait();
    let result = run(&place, &format!("cd sub; echo two > file; {COMMIT} -am two"));
    assert_eq!((&result["exit_code"], &result["changes_kept"]), (&Value::from(0), &Value::Null), "{result}");
    assert_eq!(tree(&sub.join(".git/hooks")), before);
    assert_eq!(std::fs::read_to_string(sub.join(".git/config")).expect("a repository"), config);
    // Changes by the sandbox to one of them are held back as well.
    let result = run(&place, &format!("git -C sub config core.fsmonitor '{PROGRAM}'"));
    assert_eq!(held(&place, &result), ["sub/.git/config"]);
    assert!(!misleads(&place, "sub"));
}

#[test]
fn a_repository_in_another_is_held_back_too() {
    let place = Place::new();
    repository(&place, "workspace");
    let script =
        format!("git init -q sub; git -C sub config core.fsmonitor '{PROGRAM}'; {COMMIT} --allow-empty -m two");
    let result = run(&place, &script);
    assert_eq!(held(&place, &result), ["sub/.git/config"], "{result}");
    assert!(!misleads(&place, "") && !misleads(&place, "sub"));
    // The same for a submodule that was added inside.
    let script = format!(
        "git -c protocol.file.allow=always submodule --quiet add ./sub again 2>&1 && git -C again config core.fsmonitor '{PROGRAM}'"
    );
    let place = Place::new();
    repository(&place, "workspace");
    let sub = repository(&place, "workspace/sub");
    assert!(sub.exists());
    let result = run(&place, &script);
    assert_eq!(result["exit_code"], 0, "{result}");
    assert_eq!(held(&place, &result), [".git/modules/again/config"], "{result}");
    assert!(!misleads(&place, "") && !misleads(&place, "again"));
}

#[test]
fn a_repository_that_is_put_together_over_several_runs_is_held_back() {
    let place = Place::new();
    place.write("workspace/there", "");
    let first =
        format!("mkdir -p sub/x/objects sub/x/refs; printf '[core]\\nfsmonitor=\"{PROGRAM}\"\\n' > sub/x/config");
    run(&place, &first);
    harness::wait_for_clock(std::time::Duration::from_secs(2));
    let result = run(&place, "echo 'ref: refs/heads/main' > sub/x/HEAD; mv sub/x sub/.git");
    assert_eq!(held(&place, &result), ["sub/.git/config"], "{result}");
    assert!(!misleads(&place, "sub"));
    // Or in place of one that existed.
    let place = Place::new();
    repository(&place, "workspace/sub");
    let hook = format!(
        "mkdir -p parts/hooks; printf '#!/bin/sh\\n{PROGRAM}\\n' > parts/hooks/pre-commit; chmod +x parts/hooks/pre-commit"
    );
    run(&place, &format!("{first}; {hook}; mv sub/x/config parts"));
    harness::wait_for_clock(std::time::Duration::from_secs(2));
    let result =
        run(&place, "cp -r sub/.git/objects sub/.git/refs sub/.git/HEAD parts; rm -r sub/.git; mv parts sub/.git");
    assert_eq!(held(&place, &result), ["sub/.git/config", "sub/.git/hooks/pre-commit"], "{result}");
    assert!(!misleads(&place, "sub"));
}

#[test]
fn an_absent_git_directory_that_is_protected_by_name_stays_absent() {
    let place = Place::new();
    let flags = ["--workspace", &show(&place.workspace()), "--protect", ".git/"];
    assert_ne!(place.sh(&flags, "git init -q .").code, 0);
    assert_eq!(names(&place.workspace()), Vec::<String>::new());
    assert!(!host_git(&place, Path::new(&place.workspace()), &["log"]).status.success());
}

#[test]
fn what_another_sandbox_holds_is_taken_out_when_that_one_has_ended() {
    let place = Place::new();
    let workspace = show(&place.workspace());
    let wait = |script: &str| {
        let program = ["/bin/sh", "-c", script];
        let arguments = [&["run", "--workspace", &workspace, "--stdin", "-", "--"][..], &program].concat();
        let mut child = place.command(arguments).stdin(Stdio::piped()).spawn().expect("built");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a pipe of ours");
        assert_eq!(line, "there\n");
        child
    };
    let plant = format!("git init -q .; git config core.fsmonitor '{PROGRAM}'; mkdir .saggar; echo there; read go");
    let mut first = wait(&plant);
    // It finds a repository and holds its settings; if they were replaced, it could write them.
    let mut second = wait("echo there; read go; echo '[core]' >> .git/config; rm -r .saggar");
    harness::feed(&mut first, b"go\n");
    assert_eq!(finish(first).code, 0);
    assert_eq!(place.records().len(), 2, "the first one's record waits for the second's end");
    harness::feed(&mut second, b"go\n");
    let done = finish(second);
    assert!(done.stderr.contains("Read-only file system"), "{done:?}");
    let listed = changes(&place, &["list"]).stdout;
    let id = listed.split_whitespace().next().expect("one is kept");
    assert_eq!(changes(&place, &["list", id]).stdout, "held      .git/config\nheld      .saggar/\n");
    assert!(!misleads(&place, "") && !place.path("workspace/.saggar").exists());
    assert_eq!(place.records(), Vec::<String>::new());
}
