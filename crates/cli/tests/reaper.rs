//! The reaper: one more start removes everything that a killed `saggar` left, and touches nothing that is alive.

mod harness;
mod traces;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::time::Duration;

use harness::{Place, cgroups_of, finish, is_root, not_here, show};
use saggar_domain::SandboxId;
use serde_json::json;
use traces::{Events, check_all_end, check_nothing_left, let_run, marker, names, processes};

/// How often `saggar` is killed at a random moment.
const KILLS: u64 = 200;
/// Longer than set-up takes on an idle machine, so that kills hit before, during and after it.
const DELAY_MAX: Duration = Duration::from_millis(12);

/// SIGKILL, as the kernel does when memory runs out. The process must still have been running.
fn kill(mut child: Child) {
    child.kill().expect("not reaped yet");
    let status = child.wait().expect("our own child");
    let mut complaint = String::new();
    if let Some(mut stderr) = child.stderr.take().filter(|_| status.code().is_some()) {
        std::io::Read::read_to_string(&mut stderr, &mut complaint).expect("a pipe of ours");
    }
    assert_eq!(status.signal(), Some(9), "it ended by itself: {complaint}");
}

/// One more start, which has to find and remove everything.
fn start_once_more(place: &Place) {
    let done = place.run(&[], &["/bin/true"]);
    assert_eq!(done.code, 0, "{done:?}");
}

/// The mounts of this host's namespace, in which every `saggar` starts.
fn mounts() -> String {
    std::fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted")
}

fn has_cgroups(sandbox: &str) -> bool {
    !cgroups_of(sandbox).is_empty()
}

/// The same numbers in every run, so that failures can be reproduced.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

#[test]
fn heavy_killed_at_any_moment_it_leaves_nothing_after_one_more_start() {
    let (place, marker) = (Place::new(), marker());
    let (workspace, mounted) = (show(&place.workspace()), mounts());
    let mut random = Random(0x5a66_a12d);
    let (mut sandboxes, mut placeholders, mut living) = (Vec::new(), 0, Vec::new());
    // Two at a time in one workspace: one may die while the other examines its placeholders.
    for _ in 0..KILLS {
        while living.len() < 2 {
            living.push(place.spawn(
                &["--workspace", &workspace, "--protect", "deep/er/secret"],
                &["/bin/sh", "-c", &format!("(setsid sleep {marker} &); sleep {marker}")],
            ));
        }
        let child = living.swap_remove(random.below(2) as usize);
        let_run(&child, Duration::from_nanos(random.below(DELAY_MAX.as_nanos() as u64)));
        kill(child);
        // Each start also reaps leftovers of earlier ones, so the names are collected along the way.
        sandboxes.extend(place.records());
        placeholders += usize::from(!names(&place.workspace()).is_empty());
    }
    living.into_iter().for_each(kill);
    // Otherwise the kills came too early or too late to prove anything.
    assert!(
        sandboxes.len() > 10 && placeholders > 10,
        "{} records and {placeholders} placeholders were seen",
        sandboxes.len()
    );
    start_once_more(&place);
    check_all_end(&marker);
    check_nothing_left(&place, "none of these is called so");
    let left: Vec<String> = sandboxes.iter().filter(|name| has_cgroups(name)).cloned().collect();
    assert_eq!(left, Vec::<String>::new());
    let new: Vec<String> = mounts()
        .lines()
        .filter(|line| !mounted.contains(line) && line.contains(&workspace))
        .map(str::to_owned)
        .collect();
    assert_eq!(new, Vec::<String>::new());
}

#[test]
fn killed_in_the_middle_of_a_run_its_tree_dies_and_the_rest_is_removed_later() {
    let (place, marker) = (Place::new(), marker());
    let mut events = Events::pipe(&place);
    let flags = ["--workspace", &show(&place.workspace()), "--protect", "held/", "--events", events.path()];
    let child = place
        .spawn(&flags, &["/bin/sh", "-c", &format!("trap '' TERM HUP; (setsid sleep {marker} &); sleep {marker}")]);
    let sandbox = events.wait_for("start")["sandbox_id"].as_str().expect("text").to_owned();
    assert_eq!(names(&place.workspace()), ["held"]);
    kill(child);
    // Files on disk stay until the next start.
    assert_eq!(place.records(), [sandbox.as_str()]);
    start_once_more(&place);
    assert_eq!(processes(&marker), Vec::<String>::new());
    check_nothing_left(&place, &sandbox);
}

#[test]
fn what_was_there_before_or_was_put_there_by_the_user_survives_the_reaper() {
    let place = Place::new();
    place.write("workspace/.git/config", "[core]\n");
    place.write("workspace/notes", "mine");
    let mut events = Events::pipe(&place);
    let child =
        place.spawn(&["--workspace", &show(&place.workspace()), "--events", events.path()], &["/bin/sleep", "1000"]);
    events.wait_for("start");
    kill(child);
    // The user writes to a path that a placeholder held.
    place.write("workspace/.saggar/settings", "mine");
    start_once_more(&place);
    assert_eq!(names(&place.workspace()), [".git", ".saggar", "notes"]);
    assert_eq!(
        (names(&place.path("workspace/.git")), names(&place.path("workspace/.saggar"))),
        (vec!["config".to_owned()], vec!["settings".to_owned()])
    );
    assert_eq!(place.records(), Vec::<String>::new());
}

#[test]
fn a_live_sandbox_is_left_alone_by_another_start() {
    let place = Place::new();
    let workspace = show(&place.workspace());
    let mut events = Events::pipe(&place);
    let script = "read line; test -d held && ! mkdir held/x 2>/dev/null && echo \"$line\"";
    let mut command = place.command([
        "run",
        "--workspace",
        &workspace,
        "--protect",
        "held/",
        "--stdin",
        "-",
        "--events",
        events.path(),
        "--",
        "/bin/sh",
        "-c",
        script,
    ]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().expect("built");
    let sandbox = events.wait_for("start")["sandbox_id"].as_str().expect("text").to_owned();
    // Others come and go, in the same workspace too, and share its placeholders.
    start_once_more(&place);
    assert_eq!(place.run(&["--workspace", &workspace], &["/bin/true"]).code, 0);
    assert_eq!((place.records(), names(&place.workspace())), (vec![sandbox.clone()], vec!["held".to_owned()]));
    if is_root() {
        assert!(has_cgroups(&sandbox), "its cgroups were removed");
    }
    harness::feed(&mut child, b"still here\n");
    let done = finish(child);
    assert_eq!((done.code, done.stdout.as_str()), (0, "still here\n"), "{done:?}");
    check_nothing_left(&place, &sandbox);
}

#[test]
fn what_is_not_a_record_is_not_believed() {
    let place = Place::new();
    start_once_more(&place);
    let innocent = place.write("innocent", "mine");
    let records = place.path("data/sandboxes");
    std::fs::write(records.join("sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa"), "{\"schema\":\"saggar.record/v1\",\"cgr")
        .expect("ours");
    std::fs::write(records.join("notes"), "not a record").expect("ours");
    std::os::unix::fs::symlink(&innocent, records.join("sbx_bbbbbbbbbbbbbbbbbbbbbbbbbb")).expect("ours");
    start_once_more(&place);
    assert_eq!(std::fs::read_to_string(innocent).expect("untouched"), "mine");
    assert!(names(&records).contains(&"notes".to_owned()));
    // Records appear only when complete, so this isn't one: it is reported and left alone.
    assert!(names(&records).contains(&"sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa".to_owned()));
}

#[test]
fn the_data_directory_is_ours_alone() {
    let place = Place::new();
    let mode = |name: &str| std::fs::metadata(place.path(name)).expect("made").permissions().mode() & 0o7777;
    start_once_more(&place);
    assert_eq!((mode("data"), mode("data/sandboxes")), (0o700, 0o700));
    std::fs::set_permissions(place.path("data"), std::fs::Permissions::from_mode(0o755)).expect("ours");
    start_once_more(&place);
    assert_eq!(mode("data"), 0o700, "one that was open to others is closed");
}

#[test]
fn a_data_directory_of_someone_else_or_behind_a_link_is_refused() {
    let place = Place::new();
    std::fs::create_dir(place.path("elsewhere")).expect("ours");
    std::os::unix::fs::symlink(place.path("elsewhere"), place.path("link")).expect("ours");
    let refused = |directory: &str| {
        let done = place.run(&["--json", "--data-dir", &show(&place.path(directory))], &["/bin/true"]);
        assert_eq!(
            (done.code, &done.json()["error"]["code"]),
            (126, &json!("data_directory")),
            "{directory}: {done:?}"
        );
    };
    refused("link");
    assert_eq!(names(&place.path("elsewhere")), Vec::<String>::new());
    if !is_root() {
        return not_here("only root can make a directory that belongs to someone else");
    }
    std::fs::create_dir(place.path("theirs")).expect("ours");
    rustix::fs::chown(place.path("theirs"), Some(rustix::fs::Uid::from_raw(12_345)), None).expect("root may");
    refused("theirs");
    assert_eq!(names(&place.path("theirs")), Vec::<String>::new());
    assert_eq!(std::fs::metadata(place.path("theirs")).expect("still there").uid(), 12_345);
}

#[test]
fn a_data_directory_that_others_can_write_is_refused() {
    for mode in [0o777, 0o770, 0o702] {
        let place = Place::new();
        std::fs::create_dir(place.path("data")).expect("ours");
        std::fs::set_permissions(place.path("data"), std::fs::Permissions::from_mode(mode)).expect("ours");
        let done = place.run(&["--json"], &["/bin/true"]);
        assert_eq!((done.code, &done.json()["error"]["code"]), (126, &json!("data_directory")), "{mode:o}: {done:?}");
        assert_eq!(names(&place.path("data")), Vec::<String>::new(), "{mode:o}");
    }
}

/// A process that a forged record names, killed on drop.
struct Victim(Child);

impl Victim {
    fn start() -> Self {
        Self(std::process::Command::new("/bin/sleep").arg("1000").spawn().expect("sleep is everywhere"))
    }

    /// The record's line for it: its pid and start time.
    fn line(&self) -> String {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).expect("it lives");
        let started = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(19)).expect("the 22nd field");
        format!("{{\"pid\":{},\"started\":{started}}}\n", self.0.id())
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().expect("our own child").is_none()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // A dead one is what the test was about.
        let _ = self.0.kill();
        let _ = self.0.wait(); // As above.
    }
}

/// A complete record of a dead owner that names this directory as its cgroup.
fn forged(cgroup: &std::path::Path) -> String {
    format!(
        "{{\"schema\":\"saggar.record/v1\",\"cgroups\":[\"{}\"],\"workspace\":null,\"placeholders\":[]}}\n",
        show(cgroup)
    )
}

#[test]
fn cgroups_named_for_the_id_by_an_earlier_version_are_removed() {
    const NAME: &str = "sbx_bbbbbbbbbbbbbbbbbbbbbbbbbb";
    let place = Place::new();
    let live = harness::held::held(&place);
    let Some(cgroup) = cgroups_of(live.sandbox.as_str()).pop() else {
        return not_here("an ordinary user has no cgroups of its own");
    };
    let old = cgroup.with_file_name(format!("saggar-{NAME}"));
    std::fs::create_dir(&old).expect("root may");
    let record = place.path("data/sandboxes").join(NAME);
    std::fs::write(&record, forged(&old)).expect("ours");
    std::fs::set_permissions(&record, std::fs::Permissions::from_mode(0o600)).expect("ours");
    start_once_more(&place);
    assert!(!old.exists() && !record.exists() && cgroup.exists());
}

#[test]
fn a_record_that_someone_else_wrote_is_not_believed() {
    const NAME: &str = "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa";
    let place = Place::new();
    start_once_more(&place);
    let record = place.path("data/sandboxes").join(NAME);
    // Named like a real leaf, so that its name alone is no reason to leave it.
    let directory = place.path(&format!("saggar-{}", SandboxId::parse(NAME).expect("one").alias()));
    std::fs::create_dir(&directory).expect("ours");
    let write = |text: &str, mode: u32| {
        std::fs::write(&record, text).expect("ours");
        std::fs::set_permissions(&record, std::fs::Permissions::from_mode(mode)).expect("ours");
    };
    // Control: a record of ours is believed, and its process killed.
    let mut victim = Victim::start();
    write(
        &format!(
            "{{\"schema\":\"saggar.record/v1\",\"cgroups\":[],\"workspace\":null,\"placeholders\":[]}}\n{}",
            victim.line()
        ),
        0o600,
    );
    start_once_more(&place);
    assert!(!victim.lives() && !record.exists(), "a record of ours means nothing");

    let mut victim = Victim::start();
    for (why, mode, owner) in
        [("others can write it", 0o666, None), ("it belongs to someone else", 0o600, Some(12_345))]
    {
        if owner.is_some() && !is_root() {
            not_here("only root can make a file that belongs to someone else");
            continue;
        }
        write(&format!("{}{}", forged(&directory), victim.line()), mode);
        let owner = owner.map(rustix::fs::Uid::from_raw);
        rustix::fs::chown(&record, owner, None).expect("root may");
        start_once_more(&place);
        assert!(victim.lives() && directory.exists(), "{why}, and it was believed");
        std::fs::remove_file(&record).expect("left where it was");
    }
    // A record of ours that names a directory which isn't a cgroup: nothing in it is removed.
    write(&forged(&directory), 0o600);
    start_once_more(&place);
    assert!(directory.exists(), "a directory that is no cgroup was removed");
}
