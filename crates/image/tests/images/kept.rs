//! What is kept and what is removed: names, templates in use, shared layers, rests of interrupted imports.

use saggar_domain::TemplateName;
use saggar_image::{Collected, Request, Rest, Source};

use crate::image::Image;
use crate::place::{Place, demo, request};
use crate::tar::Tar;

fn layer(name: &str) -> Vec<u8> {
    Tar::new().file(name, name.as_bytes()).end()
}

fn import_as(place: &Place, name: &str, image: &Image) -> saggar_image::Imported {
    let layout = place.path(&format!("layout-{name}"));
    image.layout(&layout);
    place.request(Request { name: parse(name), ..request(Source::Files(layout)) }).expect("the image is good")
}

fn parse(name: &str) -> TemplateName {
    TemplateName::parse(name).expect("the test wrote it")
}

fn layers(place: &Place) -> usize {
    place.stored().iter().filter(|name| name.starts_with("layers/")).count()
}

#[test]
fn a_layer_goes_with_the_last_template_that_uses_it() {
    let place = Place::new();
    let (base, a, b) = (layer("base"), layer("a"), layer("b"));
    import_as(&place, "one", &Image::new([base.clone(), a]));
    import_as(&place, "two:1.0", &Image::new([base, b.clone()]));
    import_as(&place, "two:same", &Image::new([layer("base"), b]));
    assert_eq!(layers(&place), 3);
    let names: Vec<String> =
        place.store().templates().names().unwrap().into_iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(names, ["one", "two:1.0", "two:same"]);

    let gone = |layers| Rest::Gone(Some(Collected { layers, ..Collected::default() }));
    assert_eq!(place.store().remove(&parse("one")).unwrap().rest, gone(1));
    assert_eq!(place.store().remove(&parse("two:1.0")).unwrap().rest, Rest::Named);
    assert_eq!(layers(&place), 2);
    assert!(place.store().check().unwrap().findings.is_empty());
    assert_eq!(place.store().remove(&parse("two:same")).unwrap().rest, gone(2));
    assert_eq!(place.stored(), Vec::<String>::new());
    let missing = place.store().remove(&parse("two")).unwrap_err();
    assert!(missing.message.contains("no template \"two\""), "{missing}");
}

#[test]
fn a_template_in_use_outlives_its_name() {
    let place = Place::new();
    let first = import_as(&place, "demo", &Image::new([layer("first")]));
    let held = place.store().templates().find(&demo()).unwrap();
    // The name moves on, and is removed.
    let second = import_as(&place, "demo", &Image::new([layer("second")]));
    assert_eq!(second.replaced, Some(first.id.clone()));
    let collected = place.store().collect().unwrap().unwrap();
    assert_eq!(collected, Collected { in_use: 1, ..Collected::default() });
    assert_eq!(layers(&place), 2);
    let file = held.layers[0].path().join("first");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "first");
    let also = place.store().templates().find(&demo()).unwrap();
    assert_eq!(place.store().remove(&demo()).unwrap().rest, Rest::InUse);
    assert!(file.exists());
    assert!(place.store().templates().find(&demo()).is_err());
    drop(held);
    let collected = place.store().collect().unwrap().unwrap();
    assert_eq!(collected, Collected { templates: 1, layers: 1, in_use: 1, ..Collected::default() });
    assert!(!file.exists());
    drop(also);
    let collected = place.store().collect().unwrap().unwrap();
    assert_eq!(collected, Collected { templates: 1, layers: 1, ..Collected::default() });
    assert_eq!(place.stored(), Vec::<String>::new());
}

#[test]
fn nothing_is_removed_during_an_import_and_the_rest_of_one_is_removed_after_it() {
    let place = Place::new();
    let layout = place.path("layout");
    Image::new([layer("a"), layer("b")]).layout(&layout);
    let mut asked = 0;
    let store = place.store();
    let outcome = saggar_image::import(&store, &request(Source::Files(layout)), &mut |_| {
        asked += 1;
        assert_eq!(place.store().collect().unwrap(), None);
        assert!(place.stored().iter().any(|name| name.starts_with("staging/")));
    });
    assert!(outcome.is_ok() && asked == 3);
    assert_eq!(place.store().collect().unwrap(), Some(Collected::default()));

    let root = place.path("data/templates/local");
    std::fs::create_dir_all(root.join("staging/rest/x/tree/d")).unwrap();
    std::fs::create_dir_all(root.join("layers").join("0".repeat(64)).join("tree")).unwrap();
    std::fs::write(root.join("manifests/.half"), "{").unwrap();
    let again = import_as(&place, "other", &Image::new([layer("a")]));
    let expected = Collected { interrupted: 2, layers: 1, ..Collected::default() };
    assert_eq!(again.collected, Some(expected));
    assert!(place.store().check().unwrap().findings.is_empty());
}

#[test]
fn names_that_are_built_in_are_not_given_away() {
    let place = Place::new();
    let layout = place.path("layout");
    Image::new([layer("a")]).layout(&layout);
    for name in ["base", "host", "base:x"] {
        let refused = place.request(Request { name: parse(name), ..request(Source::Files(layout.clone())) });
        assert!(refused.unwrap_err().message.contains("built in"), "{name}");
    }
}

#[test]
fn a_missing_template_names_those_that_exist() {
    let place = Place::new();
    let find = || place.store().templates().find(&parse("nope")).map(|_| ()).unwrap_err();
    assert!(find().message.contains("there are none yet"), "{}", find());
    import_as(&place, "some:1", &Image::new([layer("a")]));
    assert!(find().message.contains("there are: some:1"), "{}", find());
    assert!(find().help.contains("saggar template import"), "{}", find().help);
}

#[test]
fn sources_name_their_templates() {
    for (source, expected) in [
        ("images/My.tar", None),
        ("images/demo-1.tar", Some("demo-1")),
        ("images/demo", Some("demo")),
        ("docker://127.0.0.1:5000/team/app:2", Some("app:2")),
        ("docker://alpine", Some("alpine")),
    ] {
        let name = Source::parse(source).unwrap().default_name().map(|name| name.to_string());
        assert_eq!(name.as_deref(), expected, "{source}");
    }
    assert!(Source::parse("https://example.com/x").is_err());
}
