//! Images whose parts don't match: digests, sizes, media types, documents.

use saggar_domain::template::ContentDigest;
use saggar_image::Limits;
use serde_json::{Value, json};

use crate::image::{Blob, Image, Parts, blob, descriptor, manifest};
use crate::place::Place;
use crate::tar::Tar;

fn image() -> Image {
    Image::new([Tar::new().file("a", b"first").end(), Tar::new().file("b", b"second").end()])
}

/// An import of these parts fails with this text and leaves nothing.
fn check_refused(name: &str, parts: &Parts, expected: &str) {
    let place = Place::new();
    let layout = place.path("layout");
    parts.layout(&layout);
    let problem = place.import_from(&layout, Limits::default()).map(|_| ()).expect_err("it is refused");
    assert!(problem.message.contains(expected), "{name}: {problem}");
    assert_eq!(place.stored(), Vec::<String>::new(), "{name}");
}

/// The same parts with another manifest.
fn with_manifest(mut parts: Parts, change: impl FnOnce(&mut Value)) -> Parts {
    let mut manifest: Value = serde_json::from_slice(&parts.manifest.bytes).expect("the test wrote it");
    change(&mut manifest);
    parts.manifest = blob(manifest.to_string().into_bytes());
    parts
}

fn with_config(mut parts: Parts, change: impl FnOnce(&mut Value)) -> Parts {
    let mut config: Value = serde_json::from_slice(&parts.config.bytes).expect("the test wrote it");
    change(&mut config);
    parts.config = blob(config.to_string().into_bytes());
    parts.manifest = blob(manifest(&parts.config, &parts.layers).to_string().into_bytes());
    parts
}

fn changed(blob: &mut Blob) {
    let middle = blob.bytes.len() / 2;
    blob.bytes[middle] ^= 1;
}

#[test]
fn a_blob_that_differs_from_its_digest_or_size_is_refused() {
    let mut parts = image().parts();
    changed(&mut parts.layers[1]);
    check_refused("layer", &parts, "layer 2 of 2");
    check_refused("layer", &parts, "has another content");

    let mut parts = image().parts();
    changed(&mut parts.config);
    check_refused("config", &parts, "has another content");

    let mut parts = image().parts();
    changed(&mut parts.manifest);
    check_refused("manifest", &parts, "has another content");

    for (size, expected) in [(2047, "more than the 2047"), (9999, "fewer than the 9999")] {
        let parts = with_manifest(image().parts(), |manifest| manifest["layers"][0]["size"] = json!(size));
        check_refused("size", &parts, expected);
    }
    let parts = with_manifest(image().parts(), |manifest| manifest["config"]["size"] = json!(5_u64 << 20));
    check_refused("config's size", &parts, "the maximum is");
    let parts = with_manifest(image().parts(), |manifest| manifest["config"]["size"] = json!(-1));
    check_refused("negative size", &parts, "can't be read");
}

#[test]
fn a_layer_that_differs_from_its_uncompressed_digest_is_refused() {
    let other = ContentDigest::of(b"other");
    let parts = with_config(image().parts(), |config| config["rootfs"]["diff_ids"][1] = json!(other));
    check_refused("diff id", &parts, "another digest when uncompressed");
    let parts = with_config(image().parts(), |config| {
        let ids = config["rootfs"]["diff_ids"].as_array_mut().unwrap();
        ids.swap(0, 1);
    });
    check_refused("swapped", &parts, "another digest when uncompressed");
}

#[test]
fn compressed_data_that_is_damaged_names_the_damage() {
    let mut image = image();
    let archive = image.layers[0].archive.clone();
    image.layers[0].blob = crate::image::gzip(&archive);
    let cut = image.layers[0].blob.len() - 10;
    let mut truncated = image.clone();
    truncated.layers[0].blob.truncate(cut);
    check_refused("truncated gzip with its own digest", &truncated.parts(), "can't be read");
    let mut parts = image.parts();
    changed(&mut parts.layers[0]);
    check_refused("damaged gzip", &parts, "has another content");
    let mut zstd = image.clone();
    zstd.layers[0].blob = b"\x28\xb5\x2f\xfd\xff\xff\xff\xff\xff\xff".to_vec();
    check_refused("not zstd", &zstd.parts(), "can't be read");
}

#[test]
fn documents_that_make_no_sense_are_refused() {
    for (name, expected, change) in [
        (
            "both kinds",
            "neither a manifest nor an index",
            (|m: &mut Value| m["manifests"] = json!([])) as fn(&mut Value),
        ),
        ("other media type", "neither a manifest nor an index", |m| {
            m["mediaType"] = json!("application/vnd.oci.image.index.v1+json")
        }),
        ("first schema", "Docker's first format", |m| m["schemaVersion"] = json!(1)),
        ("too few layers", "has 1 layers and the configuration 2", |m| drop(m["layers"].as_array_mut().unwrap().pop())),
        ("encrypted", "unknown media type", |m| m["layers"][0]["mediaType"] = json!("application/vnd.example.secret")),
        ("other digest", "not a SHA-256 digest", |m| m["layers"][0]["digest"] = json!("sha512:00")),
        ("digest with a path", "not a SHA-256 digest", |m| {
            m["layers"][0]["digest"] = json!("sha256:../../../../etc/passwd")
        }),
        ("no config", "neither a manifest nor an index", |m| drop(m.as_object_mut().unwrap().remove("config"))),
    ] {
        check_refused(name, &with_manifest(image().parts(), change), expected);
    }
    for (name, expected, change) in [
        ("no layers", "has 0 layers", (|c: &mut Value| c["rootfs"]["diff_ids"] = json!([])) as fn(&mut Value)),
        ("many layers", "has 128 layers", |c| c["rootfs"]["diff_ids"] = json!(vec!["x"; 128])),
        ("relative cwd", "can't be used", |c| c["config"]["WorkingDir"] = json!("srv")),
        ("odd user", "is not a user", |c| c["config"]["User"] = json!("a b")),
        ("odd port", "is not a port", |c| c["config"]["ExposedPorts"] = json!({"http": {}})),
        ("NUL in a variable", "NUL", |c| c["config"]["Env"] = json!(["A=\u{0}"])),
        ("Windows", "this host runs", |c| c["os"] = json!("windows")),
    ] {
        check_refused(name, &with_config(image().parts(), change), expected);
    }
}

/// The longest configuration, and more layers in the manifest than it can take.
#[test]
fn a_manifest_that_could_not_be_read_again_is_refused() {
    const DOCUMENT_BYTES_MAX: usize = 4 << 20;
    let mut image = Image::new(vec![Tar::new().file("a", b"first").end(); 127]);
    image.defaults["Labels"]["rest"] = json!("");
    for number in 0..32 {
        image.defaults["Labels"][number.to_string()] = json!("x".repeat(129_000));
    }
    let rest = DOCUMENT_BYTES_MAX - image.config().to_string().len();
    image.defaults["Labels"]["rest"] = json!("x".repeat(rest));
    assert_eq!(image.config().to_string().len(), DOCUMENT_BYTES_MAX);
    check_refused("manifest", &image.parts(), "its manifest would have");
}

#[test]
fn an_index_that_leads_to_indexes_forever_is_refused() {
    let place = Place::new();
    let layout = place.path("layout");
    image().layout(&layout);
    let mut inner = image().parts().manifest;
    for _ in 0..5 {
        let index = json!({
            "schemaVersion": 2,
            "manifests": [descriptor("application/vnd.oci.image.index.v1+json", &inner)],
        });
        inner = blob(index.to_string().into_bytes());
        std::fs::write(layout.join("blobs/sha256").join(inner.digest.hex()), &inner.bytes).unwrap();
    }
    std::fs::write(layout.join("index.json"), &inner.bytes).unwrap();
    let problem = place.import_from(&layout, Limits::default()).map(|_| ()).unwrap_err();
    assert!(problem.message.contains("indexes lead to one another"), "{problem}");
}

#[test]
fn files_that_hold_no_image_say_so() {
    let place = Place::new();
    std::fs::create_dir(place.path("empty")).unwrap();
    std::fs::write(place.path("image.tar.gz"), crate::image::gzip(&image().saved())).unwrap();
    std::fs::write(place.path("text"), "hello").unwrap();
    std::fs::write(place.path("other.tar"), Tar::new().file("a", b"b").end()).unwrap();
    let saved = Tar::new().file("manifest.json", br#"[{"Config": "../../etc/passwd", "Layers": []}]"#).end();
    std::fs::write(place.path("lost.tar"), saved).unwrap();
    let long = "x".repeat(4096);
    let named = Tar::new().pax(&[("path", long.as_bytes())]).file("x", b"").end();
    std::fs::write(place.path("long.tar"), named).unwrap();
    let linked = Tar::new().pax(&[("linkpath", long.as_bytes())]).link("x", "y").end();
    std::fs::write(place.path("linked.tar"), linked).unwrap();
    let status = std::process::Command::new("mkfifo").arg(place.path("pipe")).status().unwrap();
    assert!(status.success());
    for (name, expected) in [
        ("empty", "there is no image"),
        ("missing", "can't be opened"),
        ("image.tar.gz", "compressed as a whole"),
        ("text", "ends in the middle"),
        ("other.tar", "there is no image"),
        ("lost.tar", "it is missing"),
        ("long.tar", "a name of more than 4095 bytes"),
        ("linked.tar", "a name of more than 4095 bytes"),
        ("pipe", "neither a directory nor a file"),
    ] {
        let problem = place.import_from(&place.path(name), Limits::default()).map(|_| ()).unwrap_err();
        assert!(problem.message.contains(expected), "{name}: {problem}");
    }
}

#[test]
fn a_link_or_a_pipe_in_place_of_a_blob_is_refused() {
    let place = Place::new();
    let layout = place.path("layout");
    let parts = image().parts();
    parts.layout(&layout);
    let blob = layout.join("blobs/sha256").join(parts.config.digest.hex());
    std::fs::rename(&blob, place.path("outside")).unwrap();
    std::os::unix::fs::symlink(place.path("outside"), &blob).unwrap();
    assert!(place.import_from(&layout, Limits::default()).is_err());
    std::fs::remove_file(&blob).unwrap();
    let status = std::process::Command::new("mkfifo").arg(&blob).status().unwrap();
    assert!(status.success());
    let problem = place.import_from(&layout, Limits::default()).map(|_| ()).unwrap_err();
    assert!(problem.message.contains("it is not a file"), "{problem}");
}
