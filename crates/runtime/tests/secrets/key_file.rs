//! The key file: where it may be, who may read it, and what happens without it.

use std::os::unix::fs::symlink;

use saggar_runtime::Fault;

use crate::place::{CANARY, Place, set_mode};

/// What setting a secret says, with the keys at this path.
async fn refusal(place: &Place, path: std::path::PathBuf) -> String {
    let project = place.open_with(path).await;
    match project.set("openai", Some(CANARY), Some("api.example.com")).await {
        Err(Fault::SealingKey { what, help, .. }) => {
            assert!(!help.is_empty() && !what.contains('/'), "no path of the host: {what}");
            what
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn keys_are_not_kept_in_the_data_directory_by_any_name() {
    let place = Place::new();
    let inside = "the file with the sealing keys is inside the data directory";
    assert_eq!(refusal(&place, place.data().join("secrets.key")).await, inside);
    assert_eq!(refusal(&place, place.data().join("new/secrets.key")).await, inside);
    assert_eq!(refusal(&place, place.join("data/../data/secrets.key")).await, inside);
    symlink(place.data(), place.join("link")).unwrap();
    assert_eq!(refusal(&place, place.join("link/secrets.key")).await, inside);
    std::fs::write(place.data().join("target"), "").unwrap();
    symlink(place.data().join("target"), place.join("linked.key")).unwrap();
    assert_eq!(refusal(&place, place.join("linked.key")).await, inside);
    assert!(!place.data().join("secrets.key").exists());
}

#[tokio::test]
async fn keys_that_others_could_read_are_refused() {
    let place = Place::new();
    let project = place.open().await;
    project.set_new("openai", CANARY).await;
    drop(project);
    for mode in [0o640, 0o604, 0o620, 0o644] {
        set_mode(&place.key_path(), mode);
        let expected =
            format!("the file with the sealing keys can be read or changed by other users (mode {mode:04o})");
        assert_eq!(refusal(&place, place.key_path()).await, expected);
    }
    set_mode(&place.key_path(), 0o400);
    assert!(place.open().await.has("openai", CANARY).await, "one that even its owner can't change is read");
    let directory = refusal(&place, place.join("keys")).await;
    assert!(directory.contains("not a regular file"), "{directory}");
}

#[tokio::test]
async fn a_missing_or_wrong_key_is_named_and_never_replaced() {
    let place = Place::new();
    let project = place.open().await;
    project.set_new("openai", CANARY).await;
    let id = project.sandboxes.store().sealing_key().await.unwrap().unwrap();
    drop(project);
    let kept = std::fs::read(place.key_path()).unwrap();

    std::fs::remove_file(place.key_path()).unwrap();
    assert_eq!(refusal(&place, place.key_path()).await, "the file with the sealing keys is missing");
    assert!(!place.key_path().exists(), "no new key is made while something is sealed");
    let found = place.findings();
    assert!(found.len() == 1 && found[0].contains(id.as_str()) && found[0].contains("missing"), "{found:?}");

    let other = Place::new();
    other.open().await.set_new("other", CANARY).await;
    let theirs = other.open().await.sandboxes.store().sealing_key().await.unwrap().unwrap();
    let missing = format!("the sealing key {id} is missing: the key file has {theirs}");
    assert_eq!(refusal(&place, other.key_path()).await, missing);

    // Both keys in one file serve both data directories.
    let both = [std::fs::read(other.key_path()).unwrap(), kept].concat();
    std::fs::write(other.key_path(), both).unwrap();
    assert!(place.open_with(other.key_path()).await.has("openai", CANARY).await);
    assert!(other.open().await.has("other", CANARY).await);
}

#[tokio::test]
async fn once_nothing_is_sealed_a_lost_key_is_replaced() {
    let place = Place::new();
    let project = place.open().await;
    for _ in 0..2 {
        project.set_new("openai", CANARY).await;
        let before = project.sandboxes.store().sealing_key().await.unwrap();
        std::fs::remove_file(place.key_path()).unwrap();
        let name = saggar_domain::secret::SecretName::parse("openai").unwrap();
        let permit = project.permit();
        project.sandboxes.remove_secret(&permit, &name, saggar_store::WhileUsed::Refuse).await.unwrap();
        project.set_new("another", CANARY).await;
        assert_ne!(project.sandboxes.store().sealing_key().await.unwrap(), before);
        let name = saggar_domain::secret::SecretName::parse("another").unwrap();
        project.sandboxes.remove_secret(&permit, &name, saggar_store::WhileUsed::Refuse).await.unwrap();
    }
}

#[tokio::test]
async fn a_file_that_is_damaged_is_refused_as_a_whole() {
    let place = Place::new();
    place.open().await.set_new("openai", CANARY).await;
    let text = std::fs::read_to_string(place.key_path()).unwrap();
    let key = text.lines().find(|line| line.starts_with("saggar")).unwrap().to_owned();
    for (text, expected) in [
        (String::new(), "has no key"),
        ("# only a comment\n".to_owned(), "has no key"),
        (format!("{key}\nnonsense\n"), "line 2 of"),
        (format!("\n{}\n", &key[..key.len() - 4]), "line 2 of"),
        ("x".repeat(70_000), "not a regular file"),
    ] {
        std::fs::write(place.key_path(), &text).unwrap();
        let told = refusal(&place, place.key_path()).await;
        assert!(told.contains(expected) && !told.contains(&key), "{told}");
    }
    std::fs::write(place.key_path(), format!("\n  {key}  \n# end")).unwrap();
    assert!(place.open().await.has("openai", CANARY).await);
}

#[tokio::test]
async fn a_start_is_refused_with_unsafe_keys_and_not_for_want_of_a_key() {
    let place = Place::new();
    let start = async |path| place.open_with(path).await.sandboxes.check_sealing_keys().await;
    // Nothing is sealed, and the place is used by nothing.
    start(place.data().join("secrets.key")).await.unwrap();
    place.open().await.set_new("openai", CANARY).await;
    start(place.key_path()).await.unwrap();
    start(place.join("missing")).await.unwrap();
    std::fs::copy(place.key_path(), place.data().join("copy")).unwrap();
    set_mode(&place.key_path(), 0o644);
    for path in [place.key_path(), place.data().join("copy")] {
        let fault = start(path).await.unwrap_err();
        assert!(matches!(fault, Fault::SealingKey { is_unsafe: true, .. }), "{fault:?}");
    }
}
