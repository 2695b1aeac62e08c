//! Directories of the host for sandboxes of a server: whose they are, that nothing changes before it is applied, and what is never applied.

mod harness;
mod http;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use harness::{is_root, not_here};
use http::{Server, command, new_directory};
use serde_json::{Value, json};

const SANDBOXES: &str = "/api/v1/sandboxes";

/// A server with a repository of the operator's, named `site`.
fn site() -> (Server, PathBuf) {
    let root = new_directory();
    let site = root.join("site");
    std::fs::create_dir(&site).expect("ours");
    std::fs::write(site.join("page"), "one\n").expect("ours");
    let made = Command::new("git").args(["init", "-q"]).current_dir(&site).status().expect("git is installed");
    assert!(made.success());
    let server = Server::start_in(root, &["--workspaces", &format!("site={}", site.display())]);
    (server, site)
}

fn path_of<'a>(list: &'a Value, path: &str) -> Option<&'a Value> {
    list["items"].as_array().expect("a list").iter().find(|item| item["path"] == path)
}

#[test]
fn a_directory_changes_only_when_changes_are_applied_and_never_what_git_runs() {
    if !is_root() {
        return not_here("sandboxes of an ordinary user have one id");
    }
    let (server, site) = site();
    let sandbox = server.sandbox_with(&json!({ "workspace": "site" }));
    let script = "cat page; echo two > page; echo new > new; ln -s /etc/passwd link; cp /bin/sh s && chmod 4755 s 2>/dev/null; \
                  echo evil > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout; pwd";
    let ran = server.sh(&sandbox, script);
    assert_eq!(ran["stdout"], "one\n/workspace\n", "{ran}");
    let changes = format!("{sandbox}/changes");
    server.get(&changes).problem(409, "conflict");
    assert_eq!(server.delete(&sandbox).status, 200);
    assert_eq!(std::fs::read_to_string(site.join("page")).expect("it is there"), "one\n");
    assert!(!site.join("new").exists());

    let listed = server.get(&changes).expect(200);
    assert_eq!(path_of(&listed, "page").map(|page| page["change"].clone()), Some(json!("modified")), "{listed}");
    assert_eq!(path_of(&listed, "new").map(|page| page["change"].clone()), Some(json!("added")), "{listed}");
    server.post(&format!("{changes}/apply"), &json!({ "paths": ["absent"] })).problem(400, "invalid_value");
    let applied = server.post(&format!("{changes}/apply"), &json!({ "paths": ["page"] })).expect(200);
    assert_eq!(applied["items"], json!([{ "path": "page", "applied": true }]));
    assert_eq!(std::fs::read_to_string(site.join("page")).expect("it is there"), "two\n");
    assert!(!site.join("new").exists());

    let applied = server.post(&format!("{changes}/apply"), &json!({})).expect(200);
    let hook = path_of(&applied, ".git/hooks/post-checkout").unwrap_or_else(|| panic!("{applied}"));
    assert!(hook["applied"] == false && hook["reason"].is_string(), "{applied}");
    assert!(!site.join(".git/hooks/post-checkout").exists());
    let file = site.join("s").metadata().expect("it was applied");
    assert_eq!((file.mode() & 0o7000, file.uid()), (0, site.metadata().expect("ours").uid()));
    assert!(site.join("link").is_symlink() && site.join("new").is_file());

    assert_eq!(server.post(&format!("{changes}/drop"), &json!({})).status, 204);
    server.get(&changes).problem(404, "not_found");
}

#[test]
fn a_client_names_no_path_and_sees_no_other_projects_changes() {
    if !is_root() {
        return not_here("sandboxes of an ordinary user have one id");
    }
    let (mut server, site) = site();
    for (body, status, code) in [
        (json!({ "workspace": "/etc" }), 400, "invalid_request"),
        (json!({ "workspace": "../site" }), 400, "invalid_request"),
        (json!({ "workspace": site }), 400, "invalid_request"),
        (json!({ "workspace": "other" }), 404, "not_found"),
        (json!({ "workspace": "site", "fs": "writable" }), 400, "invalid_request"),
        (json!({ "workspace": "site", "mounts": [{ "host": "/etc", "guest": "/x" }] }), 400, "invalid_request"),
    ] {
        let problem = server.post(SANDBOXES, &body).problem(status, code);
        let is_named = body["workspace"] == json!(site);
        assert!(is_named || !problem.to_string().contains(&site.display().to_string()), "{problem}");
    }
    let sandbox = server.sandbox_with(&json!({ "workspace": "site" }));
    server.sh(&sandbox, "echo mine > page");
    assert!(!server.get(&sandbox).text().contains(&site.display().to_string()));
    server.delete(&sandbox);
    // The changes outlive the server.
    server.kill();
    server.begin();
    assert_eq!(server.get(&format!("{sandbox}/changes")).expect(200)["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(server.stop(), Some(0));
    let made = command(&["key", "create", "theirs", "--project", "other", "--data-dir"]).arg(server.data()).output();
    let key = String::from_utf8(made.expect("built").stdout).expect("text");
    server.begin();
    let header = format!("Authorization: Bearer {}", key.trim());
    let headers = [header.as_str(), "Content-Type: application/json"];
    for (method, end) in [("GET", ""), ("POST", "/apply"), ("POST", "/drop")] {
        let answer = server.request_without_key(method, &format!("{sandbox}/changes{end}"), &headers, b"{}");
        answer.problem(404, "not_found");
    }
    assert_eq!(std::fs::read_to_string(site.join("page")).expect("it is there"), "one\n");
}

/// Whoever forks may not open the directory: only its owner may, on the socket, and only while the operator lists its name.
#[test]
fn a_sandbox_with_a_directory_is_not_forked() {
    if !is_root() {
        return not_here("sandboxes of an ordinary user have one id");
    }
    let (server, _) = site();
    let sandbox = server.sandbox_with(&json!({ "workspace": "site" }));
    let problem =
        server.post(&format!("{sandbox}/fork"), &json!({ "count": 1 })).problem(422, "unsupported_capability");
    assert!(problem.to_string().contains("workspace"), "{problem}");
    let listed = server.get(SANDBOXES).expect(200);
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
    // A snapshot has no directory, and neither has what starts from it.
    let taken = server.post(&format!("{sandbox}/snapshots"), &json!({})).expect(201);
    let copy = server.sandbox_with(&json!({ "template": taken["id"] }));
    assert_eq!(server.sh(&copy, "ls /workspace 2>/dev/null; true")["stdout"], "");
}

#[test]
fn a_sandbox_whose_directory_is_gone_is_refused_without_its_path() {
    if !is_root() {
        return not_here("sandboxes of an ordinary user have one id");
    }
    let (server, site) = site();
    let sandbox = server.sandbox_with(&json!({ "workspace": "site" }));
    server.sh(&sandbox, "echo two > page");
    server.delete(&sandbox);
    std::fs::rename(&site, site.with_extension("moved")).expect("ours");
    std::fs::create_dir(&site).expect("ours");
    let problem = server.post(&format!("{sandbox}/changes/apply"), &json!({})).problem(400, "invalid_workspace");
    assert!(!problem.to_string().contains(&site.display().to_string()), "{problem}");
    assert!(std::fs::read_dir(&site).expect("ours").next().is_none());
}

/// Runs git on the host, without anybody's settings.
fn git(directory: &std::path::Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(["-c", "safe.directory=*", "-c", "user.name=a", "-c", "user.email=a@a"]).args(arguments);
    let ran = command.current_dir(directory).env("GIT_CONFIG_NOSYSTEM", "1").output().expect("git is installed");
    assert!(ran.status.success(), "{arguments:?}: {ran:?}");
    String::from_utf8(ran.stdout).expect("text")
}

#[test]
fn a_worktree_becomes_a_branch_of_the_operators_repository() {
    if !is_root() {
        return not_here("sandboxes of an ordinary user have one id");
    }
    let (mut server, site) = site();
    git(&site, &["add", "."]);
    git(&site, &["commit", "-q", "-m", "one"]);
    std::fs::write(site.join("page"), "edited\n").expect("ours");
    for (body, code) in [
        (json!({ "fs": "worktree" }), "contradiction"),
        (json!({ "workspace": "site", "fs": "read-only" }), "invalid_value"),
        (json!({ "workspace": "site", "fs": "workspace-write" }), "invalid_value"),
    ] {
        server.post(SANDBOXES, &body).problem(400, code);
    }
    let sandbox = server.sandbox_with(&json!({ "workspace": "site", "fs": "worktree" }));
    let script = "cat page && git config user.name a && git config user.email a@a && echo two >> page && git commit -qam 'Add two' && \
                  echo three >> page; echo new > new";
    assert_eq!(server.sh(&sandbox, script)["stdout"], "one\n");
    server.delete(&sandbox);
    // The changes and their branch outlive the server, and no checkout does.
    server.kill();
    server.begin();
    assert!(std::fs::read_dir(server.data().join("worktrees")).is_ok_and(|mut place| place.next().is_none()));
    let changes = format!("{sandbox}/changes");
    let listed = server.get(&changes).expect(200);
    assert_eq!(listed["branch"]["commits"][0]["subject"], "Add two", "{listed}");
    assert!(path_of(&listed, "page").is_some() && !listed.to_string().contains(".git/"), "{listed}");
    let compared = server.get(&format!("{changes}/diff?path=page")).expect(200);
    assert_eq!(
        compared["items"][0]["diff"], "--- a/page\n+++ b/page\n@@ -1 +1,3 @@\n one\n+two\n+three\n",
        "{compared}"
    );
    let applied = server.post(&format!("{changes}/apply"), &json!({})).expect(200);
    assert_eq!(path_of(&applied, "page").map(|page| page["applied"].clone()), Some(json!(true)), "{applied}");
    assert_eq!(path_of(&applied, "new").map(|page| page["applied"].clone()), Some(json!(false)), "{applied}");
    let branch = applied["branch"]["name"].as_str().expect("a name").to_owned();
    assert_eq!(git(&site, &["rev-parse", &branch]).trim(), applied["branch"]["commit"]);
    assert_eq!(git(&site, &["show", &format!("{branch}:page")]), "one\ntwo\nthree\n");
    assert_eq!(git(&site, &["log", "--format=%s", &format!("HEAD..{branch}")]).lines().last(), Some("Add two"));
    git(&site, &["fsck", "--strict"]);
    assert_eq!(std::fs::read_to_string(site.join("page")).expect("it is there"), "edited\n");
    server.post(&format!("{changes}/apply"), &json!({ "paths": ["new"] })).expect(200);
    assert_eq!(git(&site, &["show", &format!("{branch}:new")]), "new\n");
    server.get(&changes).problem(404, "not_found");
}
