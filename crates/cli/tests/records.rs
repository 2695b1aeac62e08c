//! Saggar's records on the host: on any filesystem, at any length, despite any kill, and unreachable from inside.

mod harness;
mod traces;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use harness::tree::names;
use harness::{Done, PATIENCE, Place, finish, is_root, not_here, show};
use traces::{Events, check_nothing_left, marker, processes};

/// Makes unnamed files fail for the program it executes.
const WITHOUT_UNNAMED_FILES: &str = include_str!("harness/without_unnamed_files.py");

/// `saggar run FLAGS -- PROGRAM` on a filesystem where records need names from the start.
fn spawn_without_unnamed_files(place: &Place, flags: &[&str], program: &[&str]) -> Child {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-I", "-c", WITHOUT_UNNAMED_FILES, env!("CARGO_BIN_EXE_saggar"), "run"]).args(flags).arg("--");
    command.args(program).env("SAGGAR_DATA_DIR", place.path("data")).current_dir(place.path(""));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("python3 is there")
}

fn kill(mut child: Child) {
    child.kill().expect("not reaped yet");
    child.wait().expect("our own child");
}

fn start_once_more(place: &Place) {
    let done = place.run(&[], &["/bin/true"]);
    assert_eq!(done.code, 0, "{done:?}");
}

fn changes(place: &Place, arguments: &[&str]) -> Done {
    finish(place.command([&["changes"], arguments].concat()).spawn().expect("the binary was built"))
}

#[test]
fn a_filesystem_without_unnamed_files_will_do_for_records() {
    let (place, marker) = (Place::new(), marker());
    let done = finish(spawn_without_unnamed_files(&place, &[], &["/bin/echo", "done"]));
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (0, "done\n", ""));
    assert_eq!(place.records(), Vec::<String>::new());

    let mut events = Events::pipe(&place);
    let flags = ["--workspace", &show(&place.workspace()), "--events", events.path()];
    let child = spawn_without_unnamed_files(&place, &flags, &["/bin/sleep", &marker]);
    let sandbox = events.wait_for("start")["sandbox_id"].as_str().expect("text").to_owned();
    // Complete, under its own name, and locked: another start leaves it alone.
    assert_eq!(place.records(), [sandbox.as_str()]);
    start_once_more(&place);
    assert_eq!(place.records(), [sandbox.as_str()], "a live one was reaped");
    kill(child);
    start_once_more(&place);
    assert_eq!(processes(&marker), Vec::<String>::new());
    check_nothing_left(&place, &sandbox);
}

#[test]
fn an_unfinished_record_goes_when_it_is_old_and_stays_while_someone_may_be_writing_it() {
    let place = Place::new();
    start_once_more(&place);
    let [old, new] =
        ["old", "new"].map(|name| place.write(&format!("data/sandboxes/.unfinished-sbx_{name}"), "{\"sch"));
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    std::fs::File::options().write(true).open(&old).and_then(|file| file.set_modified(hour_ago)).expect("ours");
    start_once_more(&place);
    assert_eq!((old.exists(), new.exists()), (false, true));
}

#[test]
fn a_record_too_long_to_be_read_again_is_not_written() {
    let place = Place::new();
    // Each is absent, and so are all directories above it: the record has to name a placeholder for each.
    let below = format!("/{}", "x".repeat(240)).repeat(14);
    let paths: Vec<String> = (0..50).map(|number| format!("\"{number}{below}\"")).collect();
    let spec = place.write("spec.toml", &format!("protect = [{}]\n", paths.join(",")));
    let done = place.run(&["--json", "--spec", &show(&spec), "--workspace", "workspace"], &["/bin/true"]);
    let error = done.json()["error"].to_string();
    assert!(done.code == 125 && error.contains("more than 1 MiB"), "{} {error}", done.code);
    assert_eq!((names(&place.workspace()), place.records()), (vec![], vec![]), "something was made all the same");
}

/// Kills a `saggar` whose workspace is `above/it/workspace`, changes the directories above, and starts once more.
fn check_another_directory_is_left_alone(swap: impl FnOnce(&Place)) {
    let place = Place::new();
    std::fs::create_dir_all(place.path("above/it/workspace")).expect("ours");
    let mut events = Events::pipe(&place);
    let placed = ["--protect", ".git/hooks/x", "--protect", ".saggar/x"];
    let flags = [&["--workspace", "above/it/workspace", "--events", events.path()][..], &placed].concat();
    let child = place.spawn(&flags, &["/bin/sleep", "1000"]);
    events.wait_for("start");
    kill(child);
    std::fs::rename(place.path("above"), place.path("moved")).expect("ours");
    swap(&place);
    start_once_more(&place);
    // The files that look like placeholders there are the user's own.
    assert_eq!(names(&place.path("above/it/workspace")), [".git", ".git/hooks", ".saggar"]);
    assert_eq!(place.records(), Vec::<String>::new());
}

fn make_look_alike(place: &Place, top: &str) {
    for name in [".git/hooks", ".saggar"] {
        std::fs::create_dir_all(place.path(top).join("it/workspace").join(name)).expect("ours");
    }
}

#[test]
fn the_reaper_removes_nothing_from_another_directory_by_the_same_name() {
    check_another_directory_is_left_alone(|place| make_look_alike(place, "above"));
    check_another_directory_is_left_alone(|place| {
        make_look_alike(place, "elsewhere");
        symlink("elsewhere", place.path("above")).expect("ours");
    });
}

/// Lets a scratch sandbox make many changes and kills its `saggar` while it keeps them. Returns false if it was
/// faster.
fn is_killed_while_it_keeps_changes(place: &Place) -> bool {
    let script = "import os\nfor i in range(4000): open(f'/workspace/{i}', 'w').write('x' * 3000)";
    let flags = ["--workspace", &show(&place.workspace()), "--fs", "scratch"];
    let mut child = place.spawn(&flags, &["/usr/bin/python3", "-c", script]);
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().expect("our own child").is_none() {
        assert!(Instant::now() < deadline, "nothing was kept");
        // Some are written, but not yet all.
        if in_changes(place).iter().any(|path| is_pending(path) && path.join("10").exists()) {
            break;
        }
    }
    kill(child);
    in_changes(place).iter().any(|path| is_pending(path))
}

fn in_changes(place: &Place) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(place.path("data/changes")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn is_pending(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}

#[test]
fn killed_while_it_keeps_changes_it_leaves_none_of_them() {
    let (place, turns) = (Place::new(), 20);
    // On a busy machine the kill may come too late.
    let is_killed = (0..turns).any(|_| {
        let is_killed = is_killed_while_it_keeps_changes(&place);
        for whole in in_changes(&place).iter().filter(|path| !is_pending(path)) {
            std::fs::remove_dir_all(whole).expect("ours");
        }
        is_killed
    });
    assert!(is_killed, "it was done already, {turns} times");
    // Incomplete changes are not offered, and the next start removes them.
    assert_eq!(changes(&place, &["list"]).stdout, "");
    start_once_more(&place);
    assert_eq!((in_changes(&place), place.records()), (vec![], vec![]));
    assert_eq!(names(&place.workspace()), Vec::<String>::new(), "the host's own is as it was");
}

#[test]
fn what_says_which_ids_are_in_use_is_never_given_to_a_sandbox() {
    if !is_root() {
        return not_here("only root's sandboxes have ranges of ids");
    }
    let place = Place::new();
    start_once_more(&place);
    for path in ["/run/saggar", "/run/saggar/", "/run/saggar/ranges", "/run"] {
        for mount in [format!("{path}:/mnt/x"), format!("{path}:/mnt/x:rw")] {
            let done = place.run(&["--json", "--mount", &mount], &["/bin/true"]);
            assert_eq!((done.code, &done.json()["error"]["code"]), (126, &"invalid_mount".into()), "{mount}: {done:?}");
        }
    }
    for path in ["/run/saggar", "/run"] {
        for fs in ["read-only", "workspace-write", "scratch"] {
            let done = place.run(&["--json", "--fs", fs, "--workspace", path], &["/bin/true"]);
            assert_eq!((done.code, &done.json()["error"]["code"]), (126, &"invalid_workspace".into()), "{path} {fs}");
        }
    }
}
