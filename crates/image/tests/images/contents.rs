//! What an image has is in its layers afterwards: kinds, owners, permissions, times, links, holes, attributes.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use saggar_domain::template::{Dropped, ImageSource};
use saggar_image::{Limits, Source};
use saggar_sandbox::STORE_IDS;
use serde_json::json;

use crate::image::{Image, Layer, gzip};
use crate::place::{Place, demo, is_root, request};
use crate::tar::{Head, Tar, block, sealed};

fn tree_of(place: &Place, image: &Image, layer: usize) -> std::path::PathBuf {
    let imported = place.import(image).expect("the image is good");
    place.tree(imported.manifest.layers()[layer].id.hex())
}

fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = [0; 256];
    let length = rustix::fs::lgetxattr(path, name, &mut value).ok()?;
    Some(value[..length].to_vec())
}

#[test]
fn every_kind_of_entry_keeps_what_it_has() {
    let place = Place::new();
    let archive = Tar::new()
        .add(&Head { mode: 0o1777, modified: 1_600_000_000, ..Head::new("tmp/", b'5') }, b"")
        .add(&Head { mode: 0o750, uid: 7, gid: 8, ..Head::new("etc", b'5') }, b"")
        .add(&Head { mode: 0o640, uid: 1000, gid: 1001, modified: 5, ..Head::new("./etc/secret", b'0') }, b"s3cret")
        .add(&Head { mode: 0o4755, ..Head::new("etc/sudo", b'0') }, b"x")
        .hard_link("etc/other", "etc/secret")
        .link("lib", "/usr/lib")
        .add(&Head::new("pipe", b'6'), b"")
        .pax(&[("path", b"caf\xc3\xa9/\xff\xfe"), ("mtime", b"1700000000.25"), ("SCHILY.xattr.user.note", b"hi")])
        .file("short", b"odd")
        .end();
    let tree = tree_of(&place, &Image::new([archive]), 0);
    let at = |name: &str| std::fs::symlink_metadata(tree.join(name)).unwrap();
    // An ordinary user owns everything, may read everything, and has no set-id file.
    let base = if is_root() { STORE_IDS.start } else { 0 };
    let owner = |name: &str| (at(name).uid(), at(name).gid());
    let expected = |uid: u32, gid: u32| if is_root() { (base + uid, base + gid) } else { owner("tmp") };
    let mode = |with_owners: u32, without: u32| if is_root() { with_owners } else { without };
    assert_eq!((at("tmp").mode(), at("tmp").mtime()), (0o41777, 1_600_000_000));
    assert_eq!((at("etc").mode(), owner("etc")), (0o40750, expected(7, 8)));
    assert_eq!(
        (at("etc/secret").mode(), owner("etc/secret"), at("etc/secret").mtime()),
        (0o100640, expected(1000, 1001), 5)
    );
    assert_eq!(std::fs::read(tree.join("etc/secret")).unwrap(), b"s3cret");
    assert_eq!((at("etc/sudo").mode(), owner("etc/sudo")), (mode(0o104755, 0o100755), expected(0, 0)));
    assert_eq!((at("etc/other").ino(), at("etc/other").nlink()), (at("etc/secret").ino(), 2));
    assert_eq!(std::fs::read_link(tree.join("lib")).unwrap(), Path::new("/usr/lib"));
    assert_eq!((at("lib").mtime(), owner("lib")), (1_700_000_000, expected(0, 0)));
    assert!(at("pipe").file_type().is_fifo());
    let odd = tree.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"caf\xc3\xa9/\xff\xfe"));
    assert_eq!(std::fs::read(&odd).unwrap(), b"odd");
    assert_eq!(attribute(&odd, "user.note"), Some(b"hi".to_vec()));
    assert_eq!(std::fs::symlink_metadata(&odd).unwrap().mtime_nsec(), 250_000_000);
    // Directories that no entry describes.
    assert_eq!((at("café").mode(), owner("café"), at("café").mtime()), (0o40755, expected(0, 0), 0));
    assert!(place.store().check().unwrap().findings.is_empty());
}

#[test]
fn what_must_not_be_kept_is_left_out_and_counted() {
    let place = Place::new();
    let archive = Tar::new()
        .add(&Head::new("dev/null", b'3'), b"")
        .add(&Head::new("dev/sda", b'4'), b"")
        .pax(&[("SCHILY.xattr.security.capability", b"\x01\0\0\x02"), ("SCHILY.xattr.security.selinux", b"x")])
        .file("ping", b"p")
        .pax(&[("SCHILY.xattr.user.overlay.opaque", b"y"), ("SCHILY.xattr.trusted.overlay.opaque", b"y")])
        .directory("opaque")
        .pax(&[("SCHILY.xattr.user.x", b"1")])
        .link("link", "ping")
        .add(&Head { uid: 65_536, gid: 2, ..Head::new("far", b'0') }, b"")
        .add(&Head { uid: u64::from(u32::MAX) + 7, gid: 3, ..Head::new("farther", b'0') }, b"")
        .end();
    let imported = place.import(&Image::new([archive])).unwrap();
    let owners = if is_root() { 2 } else { 0 };
    assert_eq!(imported.dropped, Dropped { devices: 2, capabilities: 1, attributes: 4, set_ids: 0, owners });
    let tree = place.tree(imported.manifest.layers()[0].id.hex());
    for (name, attribute_name) in [
        ("ping", "security.capability"),
        ("opaque", "user.overlay.opaque"),
        ("opaque", "trusted.overlay.opaque"),
        ("link", "user.x"),
    ] {
        assert_eq!(attribute(&tree.join(name), attribute_name), None, "{name} {attribute_name}");
    }
    assert!(!tree.join("dev/null").exists() && !tree.join("dev/sda").exists());
    if is_root() {
        for name in ["far", "farther"] {
            assert_eq!(std::fs::symlink_metadata(tree.join(name)).unwrap().uid(), STORE_IDS.start + 65_534, "{name}");
        }
    }
}

#[test]
fn sparse_files_keep_their_holes_in_each_form() {
    let size = 4 << 20;
    let content = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        let ends = (bytes[0], bytes[511], bytes[512], bytes[bytes.len() - 1]);
        (bytes.len(), ends, bytes.iter().filter(|byte| **byte != 0).count())
    };
    // GNU's own form: 512 bytes at the beginning, and a hole.
    let mut gnu = block(&Head { size: Some(512), ..Head::new("gnu", b'S') }, 0);
    gnu[386..410].copy_from_slice(b"00000000000\x0000000001000\0");
    gnu[410..434].copy_from_slice(format!("{size:011o}\x0000000000000\0").as_bytes());
    gnu[483..495].copy_from_slice(format!("{size:011o}\0").as_bytes());
    let real_size = size.to_string();
    let archive = Tar::new()
        .padded(&sealed(gnu))
        .padded(&[7; 512])
        .pax(&[
            ("GNU.sparse.major", b"1"),
            ("GNU.sparse.minor", b"0"),
            ("GNU.sparse.name", b"pax"),
            ("GNU.sparse.realsize", real_size.as_bytes()),
        ])
        .file(
            "GNUSparseFile.0/pax",
            &[format!("1\n0\n512\n{}", "\0".repeat(504)).into_bytes()[..512].to_vec(), vec![7; 512]].concat(),
        )
        .pax(&[("GNU.sparse.map", format!("0,512,{size},0").as_bytes()), ("GNU.sparse.size", real_size.as_bytes())])
        .file("old", &[7; 512])
        .end();
    let place = Place::new();
    let tree = tree_of(&place, &Image::new([archive]), 0);
    for name in ["gnu", "pax", "old"] {
        assert_eq!(content(&tree.join(name)), (size, (7, 7, 0, 0), 512), "{name}");
        let blocks = std::fs::metadata(tree.join(name)).unwrap().blocks();
        assert!(blocks * 512 < size as u64 / 100, "{name} takes {blocks} blocks");
    }
    assert!(place.store().check().unwrap().findings.is_empty());
}

#[test]
fn whiteouts_are_those_of_an_overlay_with_user_attributes() {
    let is_gone = |path: &Path| {
        let metadata = std::fs::symlink_metadata(path).unwrap();
        metadata.file_type().is_char_device() && metadata.rdev() == 0
    };
    let opaque = |path: &Path| attribute(path, "user.overlay.opaque");
    let lower = Tar::new().directory("etc").file("etc/a", b"a").directory("var").file("var/b", b"b").end();
    let upper = Tar::new()
        .file("etc/.wh.a", b"")
        .directory("var")
        .file("var/.wh..wh..opq", b"")
        .file("var/c", b"c")
        // Gone below and there again, in both orders, as a directory and as a file.
        .file(".wh.first", b"")
        .directory("first")
        .directory("second")
        .file(".wh.second", b"")
        .file(".wh.implied", b"")
        .file("implied/x", b"")
        .file(".wh.file", b"")
        .file("file", b"new")
        .file(".wh..wh.plnk", b"")
        .end();
    let place = Place::new();
    let tree = tree_of(&place, &Image::new([lower, upper]), 1);
    assert!(is_gone(&tree.join("etc/a")));
    for name in ["var", "first", "second", "implied"] {
        assert_eq!(opaque(&tree.join(name)), Some(b"y".to_vec()), "{name}");
    }
    assert_eq!(opaque(&tree.join("etc")), None);
    assert_eq!(std::fs::read(tree.join("file")).unwrap(), b"new");
    assert!(!tree.join(".wh..wh.plnk").exists() && !tree.join("var/.wh..wh..opq").exists());
    assert!(place.store().check().unwrap().findings.is_empty());
}

#[test]
fn a_later_entry_replaces_an_earlier_one_and_not_what_it_was_linked_to() {
    let archive = Tar::new()
        .file("a", b"first")
        .hard_link("b", "a")
        .file("a", b"second")
        .link("c", "a")
        .file("c", b"third")
        .directory("d")
        .add(&Head { mode: 0o700, ..Head::new("d", b'5') }, b"")
        .end();
    let place = Place::new();
    let tree = tree_of(&place, &Image::new([archive]), 0);
    let read = |name: &str| String::from_utf8(std::fs::read(tree.join(name)).unwrap()).unwrap();
    assert_eq!((read("a"), read("b"), read("c")), ("second".into(), "first".into(), "third".into()));
    assert_eq!(std::fs::metadata(tree.join("d")).unwrap().mode(), 0o40700);
}

#[test]
fn every_source_and_compression_gives_the_same_layers() {
    let first = Tar::new().file("a", &vec![1; 300_000]).end();
    let second = Tar::new().file("b", b"b").end();
    let image = Image::new([first.clone(), second.clone(), first.clone()]);
    let place = Place::new();
    let expected = place.import(&image).unwrap();
    assert_eq!(expected.shared_layers, 1);
    let layers = expected.manifest.layers().to_vec();
    assert_eq!(layers.iter().map(|layer| (layer.bytes, layer.entries)).collect::<Vec<_>>()[0], (first.len() as u64, 1));

    let halves = [gzip(&first[..1000]), gzip(&first[1000..])].concat();
    let zstd = |bytes: &[u8]| ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest);
    let skipped = b"\x50\x2a\x4d\x18\x03\0\0\0abc";
    let frames = [&skipped[..], &zstd(&second[..512]), skipped, &zstd(&second[512..])].concat();
    let mut compressed = image.clone();
    compressed.layers = vec![
        Layer { archive: first.clone(), blob: halves },
        Layer { archive: second.clone(), blob: frames },
        Layer::gzip(first),
    ];
    for (name, bytes, source) in [
        ("layout.tar", image.layout_archive(), ImageSource::Layout),
        ("saved.tar", image.saved(), ImageSource::Archive),
        ("compressed.tar", compressed.layout_archive(), ImageSource::Layout),
        ("saved-compressed.tar", compressed.saved(), ImageSource::Archive),
    ] {
        // Each in a store of its own, so that every layer is written.
        let place = Place::new();
        std::fs::write(place.path(name), bytes).unwrap();
        let imported = place.import_from(&place.path(name), Limits::default()).unwrap();
        assert_eq!(imported.manifest.layers(), layers, "{name}");
        assert_eq!(imported.manifest.image().source, source, "{name}");
        assert!(place.store().check().unwrap().findings.is_empty(), "{name}");
    }
}

#[test]
fn defaults_come_from_the_images_configuration() {
    let mut image = Image::new([Tar::new().directory("srv").end()]);
    image.defaults = json!({
        "Env": ["PATH=/bin", "A=1", "A=2=3", "NOTHING"], "WorkingDir": "/srv", "User": "app:staff",
        "Entrypoint": ["/bin/run"], "Cmd": ["-v", "x y"], "ExposedPorts": {"80/tcp": {}, "53/udp": {}},
        "Labels": {"a": "b"}, "Volumes": {"/x": {}},
    });
    let place = Place::new();
    let imported = place.import(&image).unwrap();
    let expected = json!({
        "env": {"A": "2=3", "PATH": "/bin"}, "cwd": "/srv", "user": "app:staff", "entrypoint": ["/bin/run"],
        "command": ["-v", "x y"], "ports": ["53/udp", "80/tcp"], "labels": {"a": "b"},
    });
    assert_eq!(serde_json::to_value(imported.manifest.defaults()).unwrap(), expected);
    let held = place.store().templates().find(&demo()).unwrap();
    assert_eq!((&held.id, &held.manifest), (&imported.id, &imported.manifest));
    // A second import of the same image is the same template.
    let again = place.import(&image).unwrap();
    assert_eq!((again.id, again.shared_layers, again.replaced), (imported.id, 1, None));
}

#[test]
fn an_image_is_chosen_by_platform_and_by_name() {
    let mut other = Image::new([Tar::new().file("other", b"").end()]);
    other.architecture = "s390x";
    let mine = Image::new([Tar::new().file("mine", b"").end()]);
    let place = Place::new();
    let refused = place.import(&other).unwrap_err();
    assert!(refused.message.contains("linux/s390x") && refused.message.contains("linux/amd64"), "{refused}");

    let layout = place.path("two");
    other.layout(&layout);
    mine.layout(&layout);
    let (mine, other) = (mine.parts(), other.parts());
    let named = |parts: &crate::image::Parts, architecture: Option<&str>, name: &str| {
        let mut descriptor = parts.index()["manifests"][0].clone();
        if let Some(architecture) = architecture {
            descriptor["platform"] = json!({"os": "linux", "architecture": architecture});
        }
        descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        descriptor
    };
    let write = |manifests: serde_json::Value| {
        let index = json!({"schemaVersion": 2, "manifests": manifests});
        std::fs::write(layout.join("index.json"), index.to_string()).unwrap();
    };
    write(json!([named(&other, Some("s390x"), "x"), named(&mine, Some("amd64"), "x")]));
    assert!(place.import_from(&layout, Limits::default()).is_ok());
    write(json!([named(&other, None, "x"), named(&mine, None, "y")]));
    let refused = place.import_from(&layout, Limits::default()).unwrap_err();
    assert!(refused.message.contains("has 2 images") && refused.help.contains("--image"), "{refused}");
    let chosen = saggar_image::Request { image: Some("y".into()), ..request(Source::Files(layout)) };
    assert!(place.request(chosen).is_ok());
}
