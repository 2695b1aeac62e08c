//! What a layer leaves to those below it: directories that it doesn't describe, links on the way, files that it links to.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use saggar_image::Imported;
use saggar_sandbox::STORE_IDS;

use crate::image::Image;
use crate::place::{Place, is_root};
use crate::tar::{Head, Tar};

/// The trees of an import, bottom first.
fn trees(place: &Place, imported: &Imported) -> Vec<PathBuf> {
    imported.manifest.layers().iter().map(|layer| place.tree(layer.id.hex())).collect()
}

fn attribute(path: &std::path::Path, name: &str) -> Option<Vec<u8>> {
    let mut value = [0; 64];
    let length = rustix::fs::lgetxattr(path, name, &mut value).ok()?;
    Some(value[..length].to_vec())
}

/// Mode, owner, group and time.
fn facts(path: PathBuf) -> (u32, u32, u32, i64) {
    let metadata = std::fs::symlink_metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let id = |id: u32| if is_root() { id.wrapping_sub(STORE_IDS.start) } else { 0 };
    (metadata.mode(), id(metadata.uid()), id(metadata.gid()), metadata.mtime())
}

fn ids(uid: u32, gid: u32) -> (u32, u32) {
    if is_root() { (uid, gid) } else { (0, 0) }
}

fn lower() -> Vec<u8> {
    Tar::new()
        .add(&Head { mode: 0o750, uid: 5, gid: 6, ..Head::new("./", b'5') }, b"")
        .pax(&[("SCHILY.xattr.user.note", b"kept")])
        .add(&Head { mode: 0o1770, uid: 101, gid: 102, modified: 7, ..Head::new("var/lib/db", b'5') }, b"")
        .directory("usr")
        .add(&Head { mode: 0o711, modified: 9, ..Head::new("usr/lib", b'5') }, b"")
        .link("lib", "usr/lib")
        .link("abs", "/usr/lib")
        .link("up", "../../usr/./lib")
        .link("chain", "var/back/lib")
        .link("var/back", "../")
        .link("dangling", "new/place")
        .pax(&[("SCHILY.xattr.user.note", b"of a file")])
        .add(&Head { mode: 0o4750, uid: 7, gid: 8, modified: 11, ..Head::new("usr/lib/tool", b'0') }, b"tool")
        .link("usr/lib/tool-link", "tool")
        .end()
}

#[test]
fn a_directory_that_is_not_described_is_as_the_one_below() {
    let upper = Tar::new().file("var/lib/db/new", b"x").file("var/lib/other/new", b"y").end();
    // Over one layer, and over another between them that has nothing to do with it.
    let between = Tar::new().file("elsewhere", b"").end();
    let gone = Tar::new().file("var/lib/.wh.db", b"").end();
    let place = Place::new();
    let imported = place.import(&Image::new([lower(), between, upper.clone()])).unwrap();
    let top = trees(&place, &imported)[2].clone();
    let (uid, gid) = ids(101, 102);
    assert_eq!(facts(top.join("var/lib/db")), (0o41770, uid, gid, 7));
    assert_eq!(attribute(&top.join("var/lib/db"), "user.note"), Some(b"kept".to_vec()));
    assert_eq!(facts(top.join("var/lib/other")), (0o40755, 0, 0, 0));
    // The top of the image too, in each layer, since the uppermost is what is seen.
    let (uid, gid) = ids(5, 6);
    for tree in trees(&place, &imported) {
        let (mode, top_uid, top_gid, _) = facts(tree);
        assert_eq!((mode, top_uid, top_gid), (0o40750, uid, gid));
    }
    // The same layer where the directory is gone below.
    let imported = place.import(&Image::new([lower(), gone, upper])).unwrap();
    assert_eq!(facts(trees(&place, &imported)[2].join("var/lib/db")), (0o40755, 0, 0, 0));
    assert!(place.store().check().unwrap().findings.is_empty());
}

#[test]
fn a_layer_is_shared_only_where_it_would_be_the_same() {
    let described = Tar::new().directory("./").directory("a").file("a/x", b"x").end();
    let implied = Tar::new().directory("./").file("a/y", b"y").end();
    let topless = Tar::new().file("z", b"z").end();
    let base = |mode, top| {
        let top = Head { mode: top, ..Head::new("./", b'5') };
        Tar::new().add(&top, b"").add(&Head { mode, ..Head::new("a", b'5') }, b"").end()
    };
    let place = Place::new();
    let import = |bottom: Vec<u8>| {
        let image = Image::new([bottom, described.clone(), implied.clone(), topless.clone()]);
        let imported = place.import(&image).unwrap();
        let ids: Vec<String> = imported.manifest.layers().iter().map(|layer| layer.id.to_string()).collect();
        (ids, trees(&place, &imported).iter().map(|tree| facts(tree.clone()).0).collect::<Vec<_>>())
    };
    let (first, _) = import(base(0o700, 0o755));
    let (again, _) = import(base(0o700, 0o755));
    assert_eq!(first, again);
    let (other, _) = import(base(0o711, 0o755));
    assert_eq!(first[1], other[1], "it describes everything itself");
    assert_ne!(first[2], other[2], "what is below it decides");
    assert_eq!(first[3], other[3], "the top is as usual below both");
    let (private, modes) = import(base(0o700, 0o700));
    assert_eq!((private[1].as_str(), modes[1]), (first[1].as_str(), 0o40755));
    let place = Place::new();
    let image = Image::new([base(0o700, 0o700), topless.clone()]);
    let imported = place.import(&image).unwrap();
    assert_eq!(facts(trees(&place, &imported)[1].clone()).0, 0o40700);
    // A layer that lies at the bottom has its own id, and is not taken for one above others.
    let place = Place::new();
    let bottom = place.import(&Image::new([implied.clone()])).unwrap();
    let above = place.import(&Image::new([base(0o700, 0o755), implied])).unwrap();
    assert_ne!(bottom.manifest.layers()[0].id, above.manifest.layers()[1].id);
    assert_eq!(facts(trees(&place, &above)[1].join("a")).0, 0o40700);
}

#[test]
fn an_entry_behind_a_link_of_a_lower_layer_is_where_the_link_leads_inside() {
    let upper = Tar::new()
        .file("lib/one", b"1")
        .file("abs/two", b"2")
        .file("up/three", b"3")
        .file("chain/four", b"4")
        .add(&Head { mode: 0o700, modified: 5, ..Head::new("lib/sub", b'5') }, b"")
        .file("lib/sub/five", b"5")
        .file("lib/.wh.tool-link", b"")
        .file("dangling/six", b"6")
        .end();
    let place = Place::new();
    let imported = place.import(&Image::new([lower(), upper])).unwrap();
    let top = trees(&place, &imported)[1].clone();
    for name in ["one", "two", "three", "four", "sub/five"] {
        assert!(top.join("usr/lib").join(name).is_file(), "{name}");
    }
    assert!(top.join("new/place/six").is_file());
    assert_eq!(facts(top.join("usr/lib/sub")).0, 0o40700);
    assert_eq!(facts(top.join("usr/lib/sub")).3, 5);
    assert_eq!(facts(top.join("usr/lib/tool-link")).0 & 0o170000, 0o020000, "a whiteout");
    for link in ["lib", "abs", "up", "chain", "dangling"] {
        assert!(!top.join(link).exists(), "{link} stays the link of the lower layer");
    }
    assert_eq!(facts(top.join("usr/lib")).0, 0o40711);
    assert!(place.store().check().unwrap().findings.is_empty());
}

#[test]
fn links_of_lower_layers_never_lead_outside_or_round_in_circles() {
    let place = Place::new();
    std::fs::write(place.path("canary"), "alive").unwrap();
    let up = "../".repeat(9);
    let lower = Tar::new().link("l", &up).link("round", "round").link("a", "b").link("b", "a").end();
    let outside = Tar::new().file(&format!("l{}/canary", place.path("").display()), b"dead").end();
    let imported = place.import(&Image::new([lower.clone(), outside])).unwrap();
    let top = trees(&place, &imported)[1].clone();
    let inside = top.join(place.path("canary").strip_prefix("/").unwrap());
    assert_eq!(std::fs::read_to_string(inside).unwrap(), "dead");
    assert_eq!(std::fs::read_to_string(place.path("canary")).unwrap(), "alive");
    for name in ["round/x", "a/x"] {
        let problem = place.import(&Image::new([lower.clone(), Tar::new().file(name, b"").end()])).unwrap_err();
        assert!(problem.message.contains("behind more than 40 links"), "{problem}");
    }
    let far = Tar::new().link("l", &"d/".repeat(49)).end();
    let deep = Tar::new().pax(&[("path", format!("l/{}x", "e/".repeat(160)).as_bytes())]).file("x", b"").end();
    let problem = place.import(&Image::new([far, deep])).unwrap_err();
    assert!(problem.message.contains("200 directories"), "{problem}");
}

#[test]
fn a_hard_link_to_a_file_of_a_lower_layer_shares_a_copy_of_it() {
    let upper = Tar::new()
        .hard_link("usr/lib/other", "usr/lib/tool")
        .hard_link("again", "lib/tool")
        .hard_link("also-a-link", "/usr/lib/tool-link")
        .end();
    let place = Place::new();
    let imported = place.import(&Image::new([lower(), upper])).unwrap();
    let top = trees(&place, &imported)[1].clone();
    let (uid, gid) = ids(7, 8);
    let mode = if is_root() { 0o104750 } else { 0o100750 };
    for name in ["usr/lib/tool", "usr/lib/other", "again"] {
        assert_eq!(facts(top.join(name)), (mode, uid, gid, 11), "{name}");
        assert_eq!(std::fs::read(top.join(name)).unwrap(), b"tool", "{name}");
        assert_eq!(std::fs::metadata(top.join(name)).unwrap().nlink(), 3, "{name}");
        assert_eq!(attribute(&top.join(name), "user.note"), Some(b"of a file".to_vec()), "{name}");
    }
    assert_eq!(std::fs::read_link(top.join("also-a-link")).unwrap(), PathBuf::from("tool"));
    for (target, expected) in [("usr/lib", "leads to a directory"), ("usr/lib/none", "nothing in this layer or those")]
    {
        let upper = Tar::new().hard_link("h", target).end();
        let problem = place.import(&Image::new([lower(), upper])).unwrap_err();
        assert!(problem.message.contains(expected), "{problem}");
    }
    let itself = Tar::new().hard_link("lib/tool", "usr/lib/tool").end();
    let problem = place.import(&Image::new([lower(), itself])).unwrap_err();
    assert!(problem.message.contains("leads to itself"), "{problem}");
    assert!(place.store().check().unwrap().findings.is_empty());
}

#[test]
fn a_copy_counts_against_the_bound_of_the_image() {
    let lower = Tar::new().file("big", &vec![7; 600 << 10]).end();
    let upper = Tar::new().hard_link("h", "big").end();
    let place = Place::new();
    let layout = place.path("layout");
    Image::new([lower, upper]).layout(&layout);
    let limits = saggar_image::Limits { bytes_max: 1 << 20, entries_max: 100 };
    let problem = place.import_from(&layout, limits).unwrap_err();
    assert!(problem.message.contains("larger than 1M"), "{problem}");
}

#[test]
fn a_whiteout_of_the_whole_root_leaves_the_layers_below_out() {
    let place = Place::new();
    for (number, upper) in [
        Tar::new().file(".wh..wh..opq", b"").file("usr/lib/new", b"").end(),
        Tar::new().file("fresh", b"").file(".wh..wh..opq", b"").file("usr/lib/new", b"").end(),
    ]
    .into_iter()
    .enumerate()
    {
        let last = Tar::new().file("usr/lib/last", b"").end();
        // Twice: written, and found in the store.
        for _ in 0..2 {
            let imported = place.import(&Image::new([lower(), upper.clone(), last.clone()])).unwrap();
            let trees = trees(&place, &imported);
            assert_eq!(trees.len(), 2, "{number}");
            assert_eq!(facts(trees[0].join("usr/lib")).0, 0o40755, "{number}: nothing is left of the one below");
            assert_eq!(facts(trees[0].clone()).0, 0o40750, "{number}: the top itself stays as it was");
        }
        assert_eq!(place.store().remove(&crate::place::demo()).unwrap().rest, {
            let layers = 2;
            saggar_image::Rest::Gone(Some(saggar_image::Collected { layers, ..Default::default() }))
        });
    }
    assert_eq!(place.stored(), Vec::<String>::new());
}

#[test]
fn absolute_names_begin_at_the_top_of_the_layer() {
    let place = Place::new();
    let archive = Tar::new().directory("/etc").file("/etc/a", b"a").hard_link("/etc/b", "/etc/a").end();
    let imported = place.import(&Image::new([archive])).unwrap();
    let tree = trees(&place, &imported)[0].clone();
    assert_eq!(std::fs::read(tree.join("etc/b")).unwrap(), b"a");
}
