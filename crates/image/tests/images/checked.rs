//! A check finds any change of what was stored.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use saggar_domain::TemplateName;
use saggar_image::{Request, Source};

use crate::image::Image;
use crate::place::{Place, demo, is_root, request};
use crate::tar::{Head, Tar};

fn archive() -> Vec<u8> {
    Tar::new()
        .directory("d")
        .file("d/f", b"content")
        .hard_link("d/g", "d/f")
        .file("d/h", b"content")
        .link("l", "d/f")
        .file("e/.wh.gone", b"")
        .add(&Head::new("p", b'6'), b"")
        .end()
}

/// Sets the time of a file back after a change, as an attacker would.
fn touched(path: &Path) {
    let time = rustix::fs::Timespec { tv_sec: 1_700_000_000, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .expect("the directory is ours");
}

#[test]
fn every_change_of_a_layer_is_found() {
    type Change = fn(&Path);
    let changes: &[(&str, Change)] = &[
        ("content", |tree| std::fs::write(tree.join("d/h"), "CONTENT").unwrap()),
        ("permissions", |tree| std::fs::set_permissions(tree.join("d/f"), PermissionsExt::from_mode(0o4644)).unwrap()),
        ("a new file", |tree| std::fs::write(tree.join("d/new"), "").unwrap()),
        ("a removed file", |tree| std::fs::remove_file(tree.join("d/h")).unwrap()),
        ("another name", |tree| std::fs::rename(tree.join("d/h"), tree.join("d/i")).unwrap()),
        ("a moved file", |tree| std::fs::rename(tree.join("d/h"), tree.join("h")).unwrap()),
        ("another target", |tree| {
            std::fs::remove_file(tree.join("l")).unwrap();
            symlink("d/h", tree.join("l")).unwrap();
            touched(&tree.join("l"));
        }),
        ("links parted", |tree| {
            std::fs::remove_file(tree.join("d/g")).unwrap();
            std::fs::copy(tree.join("d/f"), tree.join("d/g")).unwrap();
            touched(&tree.join("d/g"));
        }),
        ("a whiteout removed", |tree| std::fs::remove_file(tree.join("e/gone")).unwrap()),
        ("an attribute", |tree| {
            rustix::fs::setxattr(tree.join("d"), "user.overlay.opaque", b"y", rustix::fs::XattrFlags::empty()).unwrap();
        }),
        ("a time", |tree| {
            // A whole second, so that no fraction gives it away.
            let status =
                std::process::Command::new("touch").args(["-d", "@1600000000"]).arg(tree.join("d/f")).status().unwrap();
            assert!(status.success());
        }),
    ];
    for (name, change) in changes {
        let place = Place::new();
        let imported = place.import(&Image::new([archive()])).unwrap();
        assert!(place.store().check().unwrap().findings.is_empty(), "{name}");
        let tree = place.tree(imported.manifest.layers()[0].id.hex());
        change(&tree);
        for directory in ["d", "e", ""] {
            let path = tree.join(directory);
            // The directory's own time is no help either.
            if directory == "d" {
                touched(&path);
            } else {
                let status = std::process::Command::new("touch").args(["-d", "@0"]).arg(&path).status().unwrap();
                assert!(status.success());
            }
        }
        let found = place.store().check().unwrap().findings;
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        assert!(found[0].what.contains("changed after the import"), "{name}: {found:?}");
    }
}

#[test]
fn an_owner_that_changed_is_found() {
    if !is_root() {
        println!("not run here: only root can give a file another owner");
        return;
    }
    let place = Place::new();
    let imported = place.import(&Image::new([archive()])).unwrap();
    let tree = place.tree(imported.manifest.layers()[0].id.hex());
    let owner = rustix::fs::Uid::from_raw(0);
    rustix::fs::chownat(rustix::fs::CWD, tree.join("d/h"), Some(owner), None, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .unwrap();
    touched(&tree.join("d/h"));
    assert_eq!(place.store().check().unwrap().findings.len(), 1);
}

#[test]
fn damaged_and_missing_documents_are_found_and_refused_by_name() {
    let place = Place::new();
    let imported = place.import(&Image::new([archive()])).unwrap();
    let root = place.path("data/templates/local");
    let layer = root.join("layers").join(imported.manifest.layers()[0].id.hex());
    let manifest = root.join("manifests").join(format!("{}.json", imported.id.hex()));
    let find = || place.store().templates().find(&demo()).map(|_| ()).unwrap_err().message;
    let findings = || place.store().check().unwrap().findings.len();

    std::fs::rename(layer.join("layer.json"), layer.join("kept")).unwrap();
    assert!(find().contains(imported.manifest.layers()[0].id.as_str()), "{}", find());
    assert_eq!(findings(), 1);
    std::fs::write(layer.join("layer.json"), "{").unwrap();
    assert!(find().contains("layer sha256:"), "{}", find());
    assert_eq!(findings(), 1);
    std::fs::rename(layer.join("kept"), layer.join("layer.json")).unwrap();
    assert_eq!(findings(), 0);

    let document = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, document.replace("amd64", "arm64")).unwrap();
    assert_eq!(findings(), 2, "the manifest, and the name that leads to it");
    std::fs::write(&manifest, &document[1..]).unwrap();
    assert!(find().contains("can't be read"), "{}", find());
    // What a damaged manifest needs isn't known, so nothing is removed.
    assert!(place.store().collect().is_err());
    assert!(layer.exists());
    // An import of another image says so, and goes on.
    let source = place.path("other.tar");
    std::fs::write(&source, Image::new([Tar::new().file("a", b"other").end()]).saved()).unwrap();
    let name = TemplateName::parse("other").unwrap();
    let other = place.request(Request { name: name.clone(), ..request(Source::Files(source)) }).unwrap();
    assert!(other.not_collected.unwrap().message.contains(imported.id.as_str()));
    assert!(layer.exists() && place.store().templates().find(&name).is_ok());
    std::fs::remove_file(&manifest).unwrap();
    assert!(find().contains("doesn't exist"), "{}", find());
    assert_eq!(findings(), 1);
}
