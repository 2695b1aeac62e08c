//! Snapshots of directories that stand for what sandboxes changed.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use saggar_domain::template::TemplateId;
use saggar_domain::{Labels, Problem, SnapshotFacts, SnapshotId, SnapshotRecord, TemplateName, Timestamp};
use saggar_image::{DiffLimits, Limits, NewSnapshot, Subject, diff};
use saggar_sandbox::RootChanges;

use crate::image::Image;
use crate::place::{Place, demo, is_root};
use crate::tar::Tar;

pub struct Wanted<'a> {
    pub number: u8,
    pub name: Option<&'a TemplateName>,
    pub is_for_forks: bool,
    pub base: Option<&'a TemplateId>,
    pub limits: Limits,
    /// Done while the sandbox goes on and the snapshot isn't complete yet.
    pub meanwhile: Option<&'a dyn Fn()>,
}

impl Wanted<'_> {
    pub fn new(number: u8) -> Self {
        Self { number, name: None, is_for_forks: false, base: None, limits: Limits::default(), meanwhile: None }
    }
}

/// What a sandbox changed: one file.
pub fn changed(place: &Place, name: &str, content: &[u8]) -> PathBuf {
    let upper = place.path(&format!("upper-{name}"));
    std::fs::create_dir_all(upper.join("home")).expect("the directory is ours");
    std::fs::write(upper.join("home").join(name), content).expect("the directory is ours");
    upper
}

pub fn take(place: &Place, upper: &PathBuf, wanted: &Wanted<'_>) -> Result<SnapshotRecord, Problem> {
    take_while(place, upper, wanted, &|| Ok(()))
}

fn take_while(
    place: &Place,
    upper: &PathBuf,
    wanted: &Wanted<'_>,
    go_on: &dyn Fn() -> Result<(), Problem>,
) -> Result<SnapshotRecord, Problem> {
    let store = place.store();
    let facts = SnapshotFacts {
        name: wanted.name.cloned(),
        sandbox: None,
        parent: None,
        labels: Labels::default(),
        created_at: Timestamp::from_millis(1_800_000_000_000 + u64::from(wanted.number)),
        expires_at: None,
        frozen_us: 0,
        bytes: 0,
        entries: 0,
        is_for_forks: wanted.is_for_forks,
        of_run: None,
        rest: None,
    };
    let base = wanted.base.map(|id| store.templates().find_id(id).expect("readable").expect("it is there"));
    let new = NewSnapshot { id: SnapshotId::from_random([wanted.number; 16]), facts, base, limits: wanted.limits };
    let mut stop = || {
        let upper = OwnedFd::from(std::fs::File::open(upper).expect("the directory is ours"));
        Ok(RootChanges::of_held(upper, is_root().then_some(0)))
    };
    let mut resume = || {
        wanted.meanwhile.iter().for_each(|meanwhile| meanwhile());
        Ok(Duration::ZERO)
    };
    store.take_snapshot(new, Subject { stop: &mut stop, resume: &mut resume }, go_on)
}

#[test]
fn a_name_stays_with_another_snapshot_of_the_same_files() {
    let place = Place::new();
    let store = place.store();
    let upper = changed(&place, "file", b"same");
    let name = TemplateName::parse("kept").expect("the test wrote it");
    let named = |number| Wanted { name: Some(&name), ..Wanted::new(number) };
    let first = take(&place, &upper, &named(1)).expect("it is small");
    let second = take(&place, &upper, &named(2)).expect("it is small");
    let third = take(&place, &upper, &named(3)).expect("it is small");
    assert!(first.template == second.template && second.template == third.template);
    let remove = |taken: &SnapshotRecord| store.remove_snapshot(&taken.id).expect("removable").expect("it is there");
    let leads_to = || store.templates().name(&name).expect("readable").map(|found| found.template);
    remove(&first);
    assert_eq!(leads_to().as_ref(), Some(&third.template));
    // It doesn't go back to an earlier one, which may have expired.
    remove(&third);
    assert_eq!(leads_to(), None);
    remove(&second);
    assert_eq!(place.stored(), Vec::<String>::new());
}

#[test]
fn a_snapshot_whose_name_a_template_takes_meanwhile_is_an_error_and_is_not_there() {
    let place = Place::new();
    let store = place.store();
    let imported = place.import(&Image::new([Tar::new().file("of-the-image", b"x").end()])).expect("the image is good");
    let name = TemplateName::parse("wanted").expect("the test wrote it");
    let taken = || drop(store.tag(&demo(), &name, Timestamp::from_millis(1)).expect("it is free"));
    let upper = changed(&place, "file", b"content");
    let wanted = Wanted { name: Some(&name), meanwhile: Some(&taken), ..Wanted::new(1) };
    let problem = take(&place, &upper, &wanted).expect_err("the name is taken");
    assert!(problem.message.contains("is taken by a template"), "{problem}");
    assert_eq!(store.snapshots().expect("readable"), []);
    let led_to = store.templates().name(&name).expect("readable").expect("it is there").template;
    assert_eq!(led_to, imported.id);
}

/// The sandbox goes on, and finds what it left. Root needs no permission, so this is about ordinary users.
#[test]
fn what_nobody_may_read_is_read_and_stays_so() {
    let place = Place::new();
    let upper = changed(&place, "file", b"closed");
    let (directory, file) = (upper.join("home"), upper.join("home/file"));
    let set = |path: &PathBuf, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("the directory is ours");
    };
    let mode = |path: &PathBuf| path.metadata().expect("the directory is ours").mode() & 0o7777;
    set(&file, 0);
    set(&directory, 0o300);
    let taken = take(&place, &upper, &Wanted::new(1)).expect("it is small");
    assert_eq!((mode(&directory), mode(&file)), (0o300, 0));
    set(&directory, 0o700);
    let held = place.store().templates().find_id(&taken.template).expect("readable").expect("it is there");
    assert_eq!((taken.facts.bytes, held.manifest.layers().len()), (6, 1));
}

/// A hole costs a program nothing, and is read as long as data. Meanwhile the sandbox stands still.
#[test]
fn a_large_hole_can_be_given_up_in_the_middle() {
    let place = Place::new();
    let upper = changed(&place, "hole", b"");
    let hole = std::fs::File::options().write(true).open(upper.join("home/hole")).expect("it was just made");
    hole.set_len(32 << 20).expect("a hole takes no room");
    let asked = std::cell::Cell::new(0);
    take_while(&place, &upper, &Wanted::new(1), &|| {
        asked.set(asked.get() + 1);
        Ok(())
    })
    .expect("it is allowed");
    assert!(asked.get() > 100, "asked {} times whether to go on", asked.get());
}

/// The work of comparing is bounded, and not only what comes of it.
#[test]
fn texts_that_have_little_in_common_use_up_what_may_be_compared() {
    let place = Place::new();
    let mut ids = Vec::new();
    for (number, mark) in [(1, "a"), (2, "b")] {
        let upper = place.path(&format!("upper-{number}"));
        std::fs::create_dir_all(upper.join("home")).expect("the directory is ours");
        let long: String = (0..4000).map(|line| format!("{mark}{line}\n")).collect();
        for (name, text) in [("a", long.as_str()), ("b", mark)] {
            std::fs::write(upper.join("home").join(name), text).expect("the directory is ours");
        }
        ids.push(take(&place, &upper, &Wanted::new(number)).expect("it is small").template);
    }
    let held: Vec<_> =
        ids.iter().map(|id| place.store().templates().find_id(id).expect("readable").expect("it is there")).collect();
    let texts = |all_text_bytes_max| {
        let limits = DiffLimits { all_text_bytes_max, ..DiffLimits::default() };
        let told = diff(&held[0], &held[1], limits, &|| Ok(())).expect("readable");
        told.entries.into_iter().map(|entry| entry.text.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(texts(1 << 20), [false, true], "the first has too many differences");
    assert_eq!(texts(10_000), [false, false]);
}

/// What is merged isn't new. Otherwise a sandbox that was often snapshotted could never be again.
#[test]
fn a_long_history_is_merged_whatever_one_snapshot_may_bring() {
    let place = Place::new();
    let limits = Limits { bytes_max: 256 << 10, ..Limits::default() };
    let mut base: Option<TemplateId> = None;
    for number in 1..=40 {
        let upper = changed(&place, &format!("file{number}"), &vec![number; 64 << 10]);
        // They aren't synced, which takes long.
        let wanted = Wanted { is_for_forks: true, base: base.as_ref(), limits, ..Wanted::new(number) };
        let taken = take(&place, &upper, &wanted).unwrap_or_else(|problem| panic!("{number}: {problem}"));
        base = Some(taken.template);
    }
    let held =
        place.store().templates().find_id(&base.expect("40 were taken")).expect("readable").expect("it is there");
    assert_eq!(held.manifest.layers().len(), 24 + 1);
    // What is new is bounded as before.
    let upper = changed(&place, "large", &vec![1; 512 << 10]);
    take(&place, &upper, &Wanted { limits, ..Wanted::new(41) }).expect_err("it is too large");
}

#[test]
fn snapshots_that_a_loss_of_power_emptied_are_removed_and_hide_no_others() {
    let place = Place::new();
    let store = place.store();
    let of = |number: u8, is_for_forks| {
        let upper = changed(&place, &format!("file{number}"), &[number]);
        take(&place, &upper, &Wanted { is_for_forks, ..Wanted::new(number) }).expect("it is small").id
    };
    let (unrecorded, unnamed, zeroed, whole) = (of(1, true), of(2, true), of(3, true), of(4, false));
    let record = |id: &SnapshotId| place.path(&format!("data/templates/local/snapshots/{id}.json"));
    let named = |id: &SnapshotId| {
        let name = id.template_name();
        place.path(&format!("data/templates/local/names/{}/{}", name.name(), name.tag()))
    };
    std::fs::write(record(&unrecorded), b"").expect("the directory is ours");
    std::fs::write(named(&unnamed), b"").expect("the directory is ours");
    std::fs::write(record(&zeroed), [0; 300]).expect("the directory is ours");
    let ids = || store.snapshots().expect("readable").into_iter().map(|record| record.id).collect::<Vec<_>>();
    assert!(ids().contains(&whole), "{:?}", ids());

    let mut lost = store.remove_lost_snapshots().expect("ours");
    lost.sort();
    let mut expected = vec![unrecorded, unnamed, zeroed];
    expected.sort();
    assert_eq!(lost, expected);
    assert_eq!(ids(), std::slice::from_ref(&whole));
    assert_eq!(store.remove_lost_snapshots().expect("ours"), []);
    store.collect().expect("all names can be read").expect("nothing is imported");
    assert!(store.check().expect("readable").findings.is_empty());
    assert_eq!(place.stored().iter().filter(|file| file.starts_with("layers/")).count(), 1);

    // Damage that no loss of power explains stays until somebody removes it.
    std::fs::write(record(&whole), b"{").expect("the directory is ours");
    assert_eq!(store.remove_lost_snapshots().expect("ours"), []);
    assert_eq!(ids(), []);
    store.remove_snapshot(&whole).expect("it can be removed").expect("it is there");
    assert_eq!(place.stored(), Vec::<String>::new());
}

/// Creating files may take long, and the sandbox stands still as long as its files are read.
#[test]
fn nothing_is_created_while_a_sandbox_stands_still() {
    let place = Place::new();
    let upper = changed(&place, "file", b"content");
    let copies = || files_below(&place.path("data"), "file");
    let meanwhile = || assert_eq!(copies(), 0, "it stands still until here");
    take(&place, &upper, &Wanted { meanwhile: Some(&meanwhile), ..Wanted::new(1) }).expect("it is small");
    assert_eq!(copies(), 1);
}

/// How many files have this name, at any depth.
fn files_below(directory: &Path, name: &str) -> usize {
    let entries = std::fs::read_dir(directory).expect("the directory is ours");
    let paths = entries.map(|entry| entry.expect("the directory is ours").path());
    paths.map(|path| if path.is_dir() { files_below(&path, name) } else { usize::from(path.ends_with(name)) }).sum()
}

/// What is in memory until it is written is bounded. What is more is on the disk, and nothing of it is left.
#[test]
fn what_is_read_comes_back_whether_it_fits_into_memory_or_not() {
    let place = Place::new();
    for (number, size) in [(1, 40 << 10), (2, 5 << 20)] {
        let upper = changed(&place, "first", &vec![1; size]);
        let home = upper.join("home");
        for (name, byte) in [("second", 2), ("third", 3), ("tenth", 10)] {
            std::fs::write(home.join(name), vec![byte; size + usize::from(byte)]).expect("the directory is ours");
        }
        std::fs::write(home.join("empty"), b"").expect("the directory is ours");
        std::fs::hard_link(home.join("first"), home.join("twin")).expect("the directory is ours");
        std::os::unix::fs::symlink("first", home.join("link")).expect("the directory is ours");
        let sparse = std::fs::File::create(home.join("sparse")).expect("the directory is ours");
        for at in [1 << 20, 3 << 20] {
            std::os::unix::fs::FileExt::write_all_at(&sparse, b"in the middle", at).expect("the directory is ours");
        }
        sparse.set_len(6 << 20).expect("a hole takes no room");
        rustix::fs::fsetxattr(&sparse, "user.kept", &[7; 300], rustix::fs::XattrFlags::empty())
            .expect("this disk has attributes");
        let closed = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(home.join("tenth"), closed).expect("the directory is ours");

        let taken = take(&place, &upper, &Wanted::new(number)).expect("it is not too large");
        let held = place.store().templates().find_id(&taken.template).expect("readable").expect("it is there");
        let stored = place.tree(held.manifest.layers()[0].id.hex()).join("home");
        for name in ["first", "second", "third", "tenth", "empty", "sparse"] {
            let read = |path: PathBuf| std::fs::read(path).expect("readable");
            assert!(read(home.join(name)) == read(stored.join(name)), "{name} of {size} bytes");
            let facts = |path: PathBuf| path.metadata().map(|facts| (facts.mode(), facts.mtime(), facts.mtime_nsec()));
            assert_eq!(facts(home.join(name)).expect("ours"), facts(stored.join(name)).expect("ours"), "{name}");
        }
        let facts = |name: &str| stored.join(name).metadata().expect("it is there");
        assert_eq!(facts("first").ino(), facts("twin").ino());
        assert!(facts("sparse").blocks() < 1 << 8, "{} blocks", facts("sparse").blocks());
        assert_eq!(std::fs::read_link(stored.join("link")).expect("it is one"), PathBuf::from("first"));
        let mut value = [0; 400];
        let file = std::fs::File::open(stored.join("sparse")).expect("readable");
        assert_eq!(rustix::fs::fgetxattr(&file, "user.kept", &mut value[..]).expect("it is there"), 300);
        assert!(place.store().check().expect("readable").findings.is_empty());
        assert_eq!(files_below(&place.path("data"), "spool"), 0);
        std::fs::remove_dir_all(&upper).expect("the directory is ours");
    }
}
