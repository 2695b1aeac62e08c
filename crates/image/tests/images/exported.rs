//! Snapshots as files: everything survives the way there and back, and what isn't whole or harmless never becomes one.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, mknodat, setxattr, utimensat,
};
use saggar_domain::template::{ContentDigest, Manifest};
use saggar_domain::{Labels, Problem, SnapshotFacts, SnapshotId, SnapshotRecord, Timestamp};
use saggar_image::{Limits, SnapshotArchive, Source};
use serde_json::json;

use crate::image::Image;
use crate::place::{Place, is_root};
use crate::snapshots::{Wanted, changed, take};
use crate::tar::Tar;

fn facts() -> SnapshotFacts {
    SnapshotFacts {
        name: None,
        sandbox: None,
        parent: None,
        labels: Labels::default(),
        created_at: Timestamp::from_millis(1_900_000_000_000),
        expires_at: None,
        frozen_us: 0,
        bytes: 0,
        entries: 0,
        is_for_forks: false,
        of_run: None,
        rest: None,
    }
}

fn imported_id() -> SnapshotId {
    SnapshotId::from_random([200; 16])
}

fn export(place: &Place, id: &SnapshotId) -> Result<(Vec<u8>, ContentDigest), Problem> {
    let export = place.store().export_snapshot(id, &|| Ok(()))?.expect("it is there");
    let mut file = Vec::new();
    export.write(&mut file, &|| Ok(()))?;
    assert_eq!(file.len() as u64, export.bytes(), "its size is known before");
    Ok((file, export.digest().clone()))
}

fn import(place: &Place, file: &[u8], digest: Option<ContentDigest>) -> Result<SnapshotRecord, Problem> {
    let path = place.path("snapshot.tar");
    std::fs::write(&path, file).expect("the directory is ours");
    let limits = Limits { bytes_max: 64 << 20, entries_max: 1000 };
    let archive = SnapshotArchive { source: Source::Files(path), digest, limits, stop: Arc::default() };
    place.store().import_snapshot(imported_id(), &archive, facts())
}

fn manifest(place: &Place, record: &SnapshotRecord) -> Manifest {
    place.store().templates().find_id(&record.template).expect("readable").expect("it is there").manifest.clone()
}

/// The digests of the layers as they are on disk: names, kinds, permissions, owners, times, attributes, hard links, contents.
fn trees(place: &Place, record: &SnapshotRecord) -> Vec<ContentDigest> {
    let held = place.store().templates().find_id(&record.template).expect("readable").expect("it is there");
    held.layers.iter().map(|layer| layer.record.digest.clone()).collect()
}

fn at(path: &Path, seconds: i64, nanos: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanos };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).expect("the file is ours");
}

/// Everything that a layer can have, over another layer.
fn with_everything(place: &Place) -> SnapshotRecord {
    let below = changed(place, "base", b"below");
    for name in ["gone", "kept"] {
        std::fs::create_dir_all(below.join("opaque").join(name)).expect("ours");
    }
    std::fs::write(below.join("home/removed"), b"removed").expect("ours");
    let base = take(place, &below, &Wanted::new(1)).expect("it is small");

    let upper = changed(place, "top", b"above");
    let home = upper.join("home");
    std::fs::create_dir_all(upper.join("opaque")).expect("ours");
    setxattr(upper.join("opaque"), "user.overlay.opaque", b"y", XattrFlags::empty()).expect("ours");
    std::fs::write(upper.join("opaque/new"), b"new").expect("ours");
    mknodat(CWD, home.join("removed"), FileType::CharacterDevice, Mode::empty(), 0).expect("anyone may");
    std::fs::hard_link(home.join("top"), home.join("another name")).expect("ours");
    symlink("../../nowhere", home.join("link")).expect("ours");
    mknodat(CWD, home.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o620), 0).expect("ours");
    setxattr(home.join("top"), "user.note", b"a\0value=\n", XattrFlags::empty()).expect("ours");
    std::fs::write(home.join("n".repeat(200)), b"long").expect("ours");
    std::fs::write(home.join(std::ffi::OsStr::from_bytes(b"\xff\nbytes")), b"bytes").expect("ours");
    let holes = std::fs::File::create(home.join("holes")).expect("ours");
    std::os::unix::fs::FileExt::write_all_at(&holes, b"data", 8 << 20).expect("ours");
    holes.set_len(16 << 20).expect("ours");
    std::fs::write(home.join("set-ids"), b"#!").expect("ours");
    if is_root() {
        let (owner, group) = (Uid::from_raw(1000), Gid::from_raw(60_000));
        chownat(CWD, home.join("set-ids"), Some(owner), Some(group), AtFlags::SYMLINK_NOFOLLOW).expect("root may");
    }
    std::fs::set_permissions(home.join("set-ids"), std::fs::Permissions::from_mode(0o6755)).expect("ours");
    at(&home.join("top"), -5, 123_456_789);
    at(&home.join("link"), 1_000_000_000, 1);
    at(&home, 1_234_567_890, 987_654_321);
    take(place, &upper, &Wanted { base: Some(&base.template), ..Wanted::new(2) }).expect("it is small")
}

#[test]
fn an_exported_snapshot_is_the_same_where_it_is_imported() {
    let (here, there) = (Place::new(), Place::new());
    let taken = with_everything(&here);
    let (file, digest) = export(&here, &taken.id).expect("it can be read");
    assert_eq!(export(&here, &taken.id).expect("it can be read").0, file, "the same snapshot, the same bytes");
    let brought = import(&there, &file, Some(digest)).expect("it is whole");
    assert_eq!(trees(&there, &brought), trees(&here, &taken));
    assert_eq!(manifest(&there, &brought).defaults(), manifest(&here, &taken).defaults());
    assert!(there.store().check().expect("readable").findings.is_empty());
    assert_eq!(there.store().snapshots().expect("readable").len(), 1);

    // The digest on disk doesn't cover holes, nor does a file of another owner than the host's harm anybody.
    let top = manifest(&there, &brought).layers().last().expect("two").id.clone();
    let home = there.tree(top.hex()).join("home");
    let holes = home.join("holes").metadata().expect("it is there");
    assert!(holes.blocks() * 512 < 1 << 20 && holes.len() == 16 << 20, "{} blocks", holes.blocks());
    let mode = home.join("set-ids").metadata().expect("it is there");
    match is_root() {
        true => assert!(mode.uid() > 65_536 && mode.mode() & 0o7777 == 0o6755, "{:o} of {}", mode.mode(), mode.uid()),
        false => assert_eq!(mode.mode() & 0o6000, 0),
    }
    // What other programs unpack has no set-id bit at all.
    let octal = |mode: &str| file.windows(8).filter(|bytes| *bytes == format!("{mode}\0").as_bytes()).count();
    assert_eq!((octal("0006755"), octal("0000755") > 0), (0, true));

    // And once more from there: nothing is lost with any number of ways.
    let (again, _) = export(&there, &brought.id).expect("it can be read");
    assert_eq!(layer_blobs(&again), layer_blobs(&file));
    // What the store has it doesn't take again.
    let layers = || there.stored().iter().filter(|name| name.starts_with("layers/")).count();
    let before = layers();
    import(&there, &file, None).expect("it is whole");
    assert_eq!(layers(), before);
}

/// The names of the blobs of layers, in order: those that a manifest names.
fn layer_blobs(file: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(file);
    let at = text.find(r#""layers":["#).expect("a manifest");
    let end = text[at..].find(']').expect("it ends") + at;
    text[at..end].split("sha256:").skip(1).map(|rest| rest[..64].to_owned()).collect()
}

#[test]
fn a_file_that_is_not_whole_or_not_what_was_expected_leaves_nothing() {
    let (here, there) = (Place::new(), Place::new());
    let upper = changed(&here, "file", &[b'x'; 2000]);
    let taken = take(&here, &upper, &Wanted::new(1)).expect("it is small");
    let (file, digest) = export(&here, &taken.id).expect("it can be read");
    let refused = |bytes: &[u8], digest| {
        let problem = import(&there, bytes, digest).expect_err("it is refused");
        assert_eq!(there.stored(), Vec::<String>::new(), "{problem}");
        assert_eq!(there.store().snapshots().expect("readable"), []);
        problem.message
    };
    let other = refused(&file, Some(ContentDigest::of(b"other")));
    assert!(other.contains(digest.as_str()) && other.contains("another digest"), "{other}");
    // Wherever it ends. What is left out after the last blob is only the mark of an archive's end.
    for blocks in 0..file.len() / 512 - 2 {
        refused(&file[..blocks * 512], None);
    }
    // Whatever is changed: names, sizes, documents, contents.
    let mut accepted = 0;
    for at in (0..file.len() - 1024).step_by(61) {
        let mut bytes = file.clone();
        bytes[at] ^= 1;
        match import(&there, &bytes, Some(digest.clone())) {
            Err(_) => assert_eq!(there.stored(), Vec::<String>::new(), "byte {at}"),
            // Padding of the outer archive, which has no meaning. The snapshot is what it was.
            Ok(record) => {
                assert_eq!(trees(&there, &record), trees(&here, &taken), "byte {at}");
                there.store().remove_snapshot(&record.id).expect("removable").expect("it is there");
                accepted += 1;
            }
        }
    }
    assert!(accepted < file.len() / 61 / 2, "{accepted}");
    import(&there, &file, Some(digest)).expect("it is whole");
}

#[test]
fn a_strangers_archive_has_no_effect_outside_and_an_image_is_no_snapshot() {
    let place = Place::new();
    let note = json!({ "schema": "saggar.snapshot-archive/v1", "root": "host" });
    let with = |archive: Vec<u8>, note| Image { snapshot: note, ..Image::new([archive]) }.layout_archive();
    let refused = |file: &[u8], why: &str| {
        let problem = import(&place, file, None).expect_err("it is refused");
        assert!(problem.message.contains(why), "{why}: {problem}");
        assert_eq!(place.stored(), Vec::<String>::new(), "{problem}");
    };
    let plain = || Tar::new().file("home/f", b"x").end();
    refused(&with(Tar::new().file("../outside", b"x").end(), Some(note.clone())), "a name with '..'");
    refused(&with(Tar::new().file("a/../../outside", b"x").end(), Some(note.clone())), "a name with '..'");
    refused(&with(Tar::new().link("d", "/tmp").file("d/f", b"x").end(), Some(note.clone())), "entry");
    refused(&with(plain(), None), "not an exported snapshot");
    refused(
        &with(plain(), Some(json!({ "schema": "saggar.snapshot-archive/v2" }))),
        "reads saggar.snapshot-archive/v1",
    );
    refused(&with(plain(), Some(json!({ "schema": "saggar.snapshot-archive/v1", "root": "other" }))), "can't be read");
    let many = (0..1100).fold(Tar::new(), |tar, number| tar.file(&number.to_string(), b"")).end();
    refused(&with(many, Some(note.clone())), "entries");
    assert!(!place.path("outside").exists());

    let file = with(plain(), Some(note));
    let record = import(&place, &file, None).expect("it is harmless");
    assert!(manifest(&place, &record).root().is_some());
    // As a template it would lack what it lies over.
    let path: PathBuf = place.path("snapshot.tar");
    let problem = place.import_from(&path, Limits::default()).expect_err("it is refused");
    assert!(problem.help.contains("saggar snapshot import"), "{problem}");
}

#[test]
fn what_the_form_of_images_cannot_say_is_refused_by_name() {
    let place = Place::new();
    let refused = |number, upper: PathBuf, name: &str| {
        let taken = take(&place, &upper, &Wanted::new(number)).expect("it is small");
        let problem = export(&place, &taken.id).expect_err("it can't be said");
        assert!(problem.message.contains(name), "{problem}");
    };
    refused(1, changed(&place, ".wh.file", b"x"), "home/.wh.file");
    let upper = changed(&place, "attribute", b"x");
    setxattr(upper.join("home/attribute"), "user.a=b", b"c", XattrFlags::empty()).expect("ours");
    refused(2, upper, "user.a=b");
}
