//! Hostile layers are refused: nothing is written outside, nothing is left, and the message names the entry.

use saggar_domain::Code;
use saggar_image::Limits;

use crate::image::{Image, Layer, gzip};
use crate::place::Place;
use crate::tar::{Head, Tar};

/// The import of one layer fails with this text, and leaves nothing.
fn check_refused(name: &str, archive: Vec<u8>, expected: &str) {
    check_image(name, &Image::new([archive]), Limits::default(), expected);
}

fn check_image(name: &str, image: &Image, limits: Limits, expected: &str) {
    let place = Place::new();
    std::fs::write(place.path("canary"), "alive").expect("the directory is ours");
    let layout = place.path("layout");
    image.layout(&layout);
    let before = beside(&place);
    let problem = match place.import_from(&layout, limits) {
        Ok(_) => panic!("{name}: imported"),
        Err(problem) => problem,
    };
    let text = problem.message.clone();
    assert!(text.contains(expected), "{name}: {text}");
    assert!(text.starts_with("layer 1 of 1, sha256:"), "{name}: {text}");
    assert_eq!(problem.code, Code::InvalidImage, "{name}");
    assert!(
        !problem.help.is_empty() && !text.contains(place.path("").to_str().expect("the directory is ours")),
        "{name}: {text}"
    );
    assert_eq!(place.stored(), Vec::<String>::new(), "{name}");
    assert_eq!(std::fs::read_to_string(place.path("canary")).expect("the directory is ours"), "alive", "{name}");
    assert_eq!(beside(&place), before, "{name}");
}

/// Everything in the test's directory, apart from the data directory's own.
fn beside(place: &Place) -> Vec<String> {
    let entries = std::fs::read_dir(place.path("")).expect("the directory is ours");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("the directory is ours").file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name != "data");
    names.sort();
    names
}

#[test]
fn names_and_links_that_lead_outside_are_refused() {
    // From a tree in the store: tree, layer, staging name, staging, project, templates, data.
    let up = "../".repeat(7) + "canary";
    let deep = "d/".repeat(201) + "x";
    for (name, archive, expected) in [
        ("up", Tar::new().file(&up, b"dead"), "'..'"),
        ("inner up", Tar::new().directory("a").file(&format!("a/../{up}"), b"dead"), "'..'"),
        ("absolute up", Tar::new().file(&format!("/{up}"), b"dead"), "'..'"),
        ("long name in pax", Tar::new().pax(&[("path", format!("a/{up}").as_bytes())]).file("x", b"dead"), "'..'"),
        ("through a link", Tar::new().link("l", &"../".repeat(7)).file("l/canary", b"dead"), "symbolic link"),
        ("through an absolute link", Tar::new().link("l", "/").file("l/tmp/x", b"dead"), "symbolic link"),
        ("deep through a link", Tar::new().directory("a").link("a/l", "/").file("a/l/b/c", b"x"), "symbolic link"),
        ("directory over a link", Tar::new().link("l", "/").directory("l"), "directory in one entry"),
        ("link over a directory", Tar::new().directory("d").link("d", "/"), "directory in one entry"),
        ("file over a directory", Tar::new().directory("d").file("d", b"x"), "directory in one entry"),
        ("a file as a directory", Tar::new().file("f", b"x").file("f/x", b"x"), "directory in one entry"),
        ("hard link outside", Tar::new().hard_link("h", &up), "'..'"),
        ("absolute hard link", Tar::new().hard_link("h", "/etc/passwd"), "nothing in this layer"),
        ("absolute hard link up", Tar::new().hard_link("h", &format!("/{up}")), "'..'"),
        ("hard link through a link", Tar::new().link("l", "/").hard_link("h", "l/etc/passwd"), "symbolic link"),
        ("hard link to nothing", Tar::new().hard_link("h", "etc/passwd"), "nothing in this layer"),
        ("hard link to a directory", Tar::new().directory("d").hard_link("h", "d"), "leads to a directory"),
        ("hard link to a whiteout", Tar::new().file(".wh.g", b"").hard_link("h", "g"), "nothing in this layer"),
        ("hard link to itself", Tar::new().file("a", b"x").hard_link("a", "a"), "leads to itself"),
        ("whiteout of nothing", Tar::new().file("a/.wh.", b""), "names nothing"),
        ("whiteout up", Tar::new().file("a/.wh...", b""), "names nothing"),
        ("whiteout through a link", Tar::new().link("l", "/").file("l/.wh.etc", b""), "symbolic link"),
        ("a file as the top", Tar::new().file("./", b"x"), "top of the layer"),
        ("deep", Tar::new().file("x", b"").pax(&[("path", deep.as_bytes())]).file("y", b""), "200 directories"),
        ("long", Tar::new().pax(&[("path", &[b'x'; 256])]).file("y", b""), "255 bytes"),
        ("empty link", Tar::new().link("l", ""), "impossible target"),
    ] {
        check_refused(name, archive.end(), expected);
    }
}

#[test]
fn malformed_archives_are_refused() {
    let good = Tar::new().file("a", &[1; 2000]);
    let mut wrong_sum = good.clone().end();
    wrong_sum[0] ^= 1;
    let huge = |size: u64| Head { size: Some(size), ..Head::new("a", b'0') };
    let negative = {
        let mut block = crate::tar::block(&Head::new("a", b'0'), 0);
        block[124..136].fill(0xff);
        crate::tar::sealed(block)
    };
    for (name, archive, expected) in [
        ("wrong checksum", wrong_sum, "checksum"),
        ("cut in the data", good.clone().end()[..1500].to_vec(), "ends in the middle"),
        ("cut in a header", good.clone().end()[..300].to_vec(), "ends in the middle"),
        ("not an archive", b"#!/bin/sh\nexit 0\n".repeat(100), "checksum"),
        ("huge size", Tar::new().add(&huge(1 << 60), b"").end(), "larger than 16G"),
        ("largest size", Tar::new().add(&huge(u64::MAX), b"").end(), "larger than 16G"),
        ("negative size", Tar::new().padded(&negative).end(), "no number"),
        (
            "size of a directory",
            Tar::new().add(&Head { size: Some(9), ..Head::new("d", b'5') }, b"").end(),
            "has a size",
        ),
        ("unknown kind", Tar::new().add(&Head::new("a", b'Z'), b"").end(), "unknown kind"),
        ("huge header", Tar::new().add(&Head { size: Some(2 << 20), ..Head::new("x", b'x') }, b"").end(), "1 MiB"),
        ("huge long name", Tar::new().add(&Head { size: Some(1 << 40), ..Head::new("x", b'L') }, b"").end(), "1 MiB"),
        (
            "many headers",
            // Each one is small enough.
            Tar::new().pax(&[("a", &[b'x'; 600 << 10])]).pax(&[("a", &[b'x'; 600 << 10])]).file("a", b"").end(),
            "1 MiB",
        ),
        (
            "many empty headers",
            (0..2049).fold(Tar::new(), |tar, _| tar.add(&Head::new("x", b'g'), b"")).file("a", b"").end(),
            "1 MiB",
        ),
        ("bad records", Tar::new().add(&Head::new("x", b'x'), b"99 path=a\n").end(), "no list of records"),
        ("name with NUL", Tar::new().pax(&[("path", b"a\0b")]).file("x", b"").end(), "NUL"),
        (
            "bad sparse map",
            Tar::new().pax(&[("GNU.sparse.map", b"0,9,5,9"), ("GNU.sparse.size", b"100")]).file("s", b"x").end(),
            "overlap",
        ),
        (
            "a hole too large",
            Tar::new().pax(&[("GNU.sparse.map", b""), ("GNU.sparse.size", b"1099511627776")]).file("s", b"").end(),
            "larger than 16G",
        ),
        ("zeroes inside", Tar::new().padded(&[0; 512]).file("a", b"").end(), "zeroes between"),
    ] {
        check_refused(name, archive, expected);
    }
}

#[test]
fn archives_without_end_marks_or_with_junk_after_them_are_read() {
    let place = Place::new();
    let cut = Tar::new().file("a", b"x").cut();
    let unfilled = Tar::new().file("a", b"xyz").cut()[..512 + 3].to_vec();
    let junk = [Tar::new().file("b", b"x").end(), vec![9; 700]].concat();
    let imported = place.import(&Image::new([cut, unfilled, junk])).unwrap();
    let entries: Vec<u64> = imported.manifest.layers().iter().map(|layer| layer.entries).collect();
    assert_eq!(entries, [1, 1, 1]);
}

#[test]
fn bombs_stop_at_their_bounds() {
    let small = Limits { bytes_max: 1 << 20, entries_max: 100 };
    let zeroes = Tar::new().file("zero", &vec![0; 4 << 20]).end();
    let bomb = Image { layers: vec![Layer { blob: gzip(&zeroes), archive: zeroes }], ..Image::new([]) };
    assert!(bomb.layers[0].blob.len() < 1 << 19);
    check_image("bytes", &bomb, small, "larger than 1M");
    let many = (0..101).fold(Tar::new(), |tar, index| tar.file(&format!("f{index}"), b"")).end();
    check_image("entries", &Image::new([many]), small, "more than 100 entries");
    let implied = (0..60).fold(Tar::new(), |tar, index| tar.file(&format!("d{index}/f"), b"")).end();
    check_image("implied directories", &Image::new([implied]), small, "more than 100 entries");
    let junk = [Tar::new().end(), vec![0; 2 << 20]].concat();
    let trailing = Image { layers: vec![Layer { blob: gzip(&junk), archive: junk }], ..Image::new([]) };
    check_image("zeroes after the end", &trailing, small, "larger than 1M");
    // Every frame counts, the first one too. Before the window is full, a decoder gives out nothing.
    for (name, frames) in [("window", vec![windowed(18)]), ("second window", vec![windowed(0), windowed(18)])] {
        let layer = Layer { blob: frames.concat(), archive: Vec::new() };
        let image = Image { layers: vec![layer], ..Image::new([]) };
        check_image(name, &image, small, "needs a window of 268435456 bytes");
    }
}

#[test]
fn compressed_data_that_yields_nothing_is_bounded() {
    let small = Limits { bytes_max: 1 << 20, entries_max: 100 };
    let archive = Tar::new().file("a", b"x").end();
    // A zstd frame that is skipped, and empty gzip members.
    let length: u32 = 3 << 20;
    let skipped = [&[0x50, 0x2a, 0x4d, 0x18][..], &length.to_le_bytes(), &vec![0; length as usize]].concat();
    let empty = gzip(b"");
    let members = empty.repeat((3 << 20) / empty.len());
    for (name, blob) in [("skipped", skipped), ("members", [members, gzip(&archive)].concat())] {
        let layer = Layer { blob, archive: archive.clone() };
        let image = Image { layers: vec![layer], ..Image::new([]) };
        check_image(name, &image, small, "more than the layer may have uncompressed");
    }
}

/// A zstd frame with a window of 1 KiB times a power of two, and one block of 128 zeroes.
fn windowed(exponent: u8) -> Vec<u8> {
    let block = (128_u32 << 3) | (1 << 1) | 1;
    [&[0x28, 0xb5, 0x2f, 0xfd, 0, exponent << 3][..], &block.to_le_bytes()[..3], &[0]].concat()
}

#[test]
fn names_in_messages_are_escaped_and_short() {
    let place = Place::new();
    let name = format!("\u{1b}[2J\n/../{}", "x".repeat(50));
    let problem = place.import(&Image::new([Tar::new().file(&name, b"").end()])).unwrap_err();
    assert!(problem.message.contains("\\x1b[2J\\n/../"), "{problem}");
    assert!(!problem.message.contains(['\u{1b}', '\n']), "{problem}");
    assert!(problem.message.len() < 500, "{problem}");
}
