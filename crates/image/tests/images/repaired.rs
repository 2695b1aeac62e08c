//! Damage is repaired by importing again, and a name that can't be read can be removed or replaced.

use std::io::Read;
use std::time::Duration;

use saggar_image::{Progress, Rest, Source};

use crate::image::{Image, Layer, blob, manifest};
use crate::place::{Place, demo, request};
use crate::tar::Tar;

fn archive() -> Vec<u8> {
    Tar::new().directory("d").file("d/f", b"content").end()
}

/// Does it to a layer.
type Damage = fn(&std::path::Path);

#[test]
fn importing_again_repairs_a_damaged_layer() {
    let image = Image::new([archive()]);
    let damages: &[(&str, Damage)] = &[
        ("content", |layer| std::fs::write(layer.join("tree/d/f"), "changed").unwrap()),
        ("a lost file", |layer| std::fs::remove_file(layer.join("tree/d/f")).unwrap()),
        ("lost files", |layer| std::fs::remove_dir_all(layer.join("tree")).unwrap()),
        ("a damaged record", |layer| std::fs::write(layer.join("layer.json"), "{").unwrap()),
        ("a lost record", |layer| std::fs::remove_file(layer.join("layer.json")).unwrap()),
    ];
    for (name, damage) in damages {
        let place = Place::new();
        let imported = place.import(&image).unwrap();
        let id = imported.manifest.layers()[0].id.clone();
        let layer = place.path("data/templates/local/layers").join(id.hex());
        // A live sandbox keeps what it has, even if that is damaged.
        let held = place.store().templates().find(&demo()).unwrap();
        damage(&layer);
        assert_eq!(place.store().check().unwrap().findings.len(), 1, "{name}");
        let again = place.import(&image).unwrap();
        assert_eq!((again.id, again.shared_layers), (imported.id, 0), "{name}");
        assert_eq!(place.store().check().unwrap().findings, [], "{name}");
        assert_eq!(std::fs::read_to_string(layer.join("tree/d/f")).unwrap(), "content", "{name}");
        place.store().collect().unwrap();
        let kept = std::fs::read_dir(place.path("data/templates/local/staging")).unwrap().count();
        assert_eq!(kept, 1, "{name}");
        if *name == "content" {
            let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
            let file = rustix::fs::openat(held.layers[0].tree(), "d/f", flags, rustix::fs::Mode::empty()).unwrap();
            let mut text = String::new();
            std::fs::File::from(file).read_to_string(&mut text).unwrap();
            assert_eq!(text, "changed");
        }
        drop(held);
        assert_eq!(place.store().collect().unwrap().unwrap().interrupted, 1, "{name}");
        assert!(place.stored().iter().all(|name| !name.starts_with("staging/")), "{name}");
    }
}

#[test]
fn importing_again_repairs_a_damaged_manifest_and_name() {
    let image = Image::new([archive()]);
    let place = Place::new();
    let imported = place.import(&image).unwrap();
    let root = place.path("data/templates/local");
    let manifest = root.join("manifests").join(format!("{}.json", imported.id.hex()));
    for text in ["", "{", "{}"] {
        std::fs::write(&manifest, text).unwrap();
        assert!(!place.store().check().unwrap().findings.is_empty());
        place.import(&image).unwrap();
        assert_eq!(place.store().check().unwrap().findings, []);
    }
    std::fs::write(root.join("names/demo/latest"), "{").unwrap();
    let findings = place.store().check().unwrap().findings;
    assert_eq!((findings.len(), findings[0].about.as_str()), (1, "demo"));
    assert!(place.store().templates().find(&demo()).is_err());
    place.import(&image).unwrap();
    assert_eq!(place.store().check().unwrap().findings, []);
    assert!(place.store().templates().find(&demo()).is_ok());
    // While a sandbox uses it, its lock is on the damaged file, which must stay.
    let held = place.store().templates().find(&demo()).unwrap();
    std::fs::write(&manifest, "{").unwrap();
    let refused = place.import(&image).unwrap_err();
    assert!(refused.message.contains("a live sandbox uses it"), "{refused}");
    drop(held);
    assert!(place.import(&image).is_ok());
}

#[test]
fn a_name_that_cannot_be_read_can_be_removed() {
    let place = Place::new();
    place.import(&Image::new([archive()])).unwrap();
    std::fs::write(place.path("data/templates/local/names/demo/latest"), "{").unwrap();
    // What it led to isn't known, so nothing may be removed before the name is.
    assert!(place.store().collect().is_err());
    let removed = place.store().remove(&demo()).unwrap();
    assert_eq!((removed.id, removed.rest), (None, Rest::Unknown));
    let collected = place.store().collect().unwrap().unwrap();
    assert_eq!((collected.templates, collected.layers), (1, 1));
    assert_eq!(place.stored(), Vec::<String>::new());
}

#[test]
fn an_import_does_not_wait_for_a_check_that_reads_layers() {
    let place = Place::new();
    place.import(&Image::new([archive()])).unwrap();
    let layout = place.path("other");
    Image::new([Tar::new().file("other", b"").end()]).layout(&layout);
    let mut imported = 0;
    let checked = place.store().check_each(&mut |_| {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let (store, request) = (place.store(), request(Source::Files(layout.clone())));
        let import =
            std::thread::spawn(move || sender.send(saggar_image::import(&store, &request, &mut |_| {}).is_ok()));
        // The import would never end; the time only ends the test.
        assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(true));
        import.join().unwrap().unwrap();
        imported += 1;
    });
    assert_eq!((checked.unwrap().findings, imported), (Vec::new(), 1));
}

/// An image that names the content of a stored layer, and brings other data for it.
#[test]
fn a_stored_layer_is_given_only_to_an_image_that_brings_it() {
    let place = Place::new();
    let good = Image::new([archive()]);
    place.import(&good).unwrap();
    let other = Layer::gzip(Tar::new().file("other", b"").end());
    let mut parts = good.parts();
    parts.layers = vec![blob(other.blob)];
    parts.manifest = blob(manifest(&parts.config, &parts.layers).to_string().into_bytes());
    let layout = place.path("lying");
    parts.layout(&layout);
    let refused = place.import_from(&layout, saggar_image::Limits::default()).unwrap_err();
    assert!(refused.message.contains("has another digest when uncompressed"), "{refused}");
    // Without any data for it neither.
    std::fs::remove_file(layout.join("blobs/sha256").join(parts.layers[0].digest.hex())).unwrap();
    assert!(place.import_from(&layout, saggar_image::Limits::default()).is_err());
    // The same content in another form is read once, and known from then on.
    let mut compressed = good.clone();
    compressed.layers = vec![Layer::gzip(archive())];
    let parts = compressed.parts();
    let layout = place.path("compressed");
    parts.layout(&layout);
    let import = || {
        let mut shared = Vec::new();
        let request = request(Source::Files(layout.clone()));
        let imported = saggar_image::import(&place.store(), &request, &mut |progress| {
            if let Progress::Layer { is_shared, .. } = progress {
                shared.push(is_shared);
            }
        });
        (shared, imported.map(|imported| imported.id).map_err(|problem| problem.message))
    };
    let (shared, id) = import();
    assert_eq!(shared, [true]);
    std::fs::remove_file(layout.join("blobs/sha256").join(parts.layers[0].digest.hex())).unwrap();
    assert_eq!(import(), (vec![true], id));
}
