//! Secrets: versions, the fence around the sealing key, removal while in use, and what is in the file.

use saggar_domain::secret::{Binding, SecretName};
use saggar_domain::{NetworkMode, ProjectId};
use saggar_store::{
    Error, Finding, NewSandbox, NewSecret, Put, Removed, SECRETS_PER_PROJECT_MAX, Sealed, SealingKeyId, SecretRow,
    Store, WhileUsed, backup, check, restore,
};

use crate::fixture::{NOW, Scratch, ending, insert, project, random, sandbox, store_with_project};

const BOUND: &str = r#"{"rules":["api.example.com"],"slot":"bearer"}"#;

fn name(text: &str) -> SecretName {
    SecretName::parse(text).unwrap()
}

fn key(digit: char) -> SealingKeyId {
    SealingKeyId::parse(&String::from(digit).repeat(16)).unwrap()
}

fn new(project: &ProjectId, text: &str, version: u64, key: &SealingKeyId) -> NewSecret {
    NewSecret {
        project: project.clone(),
        name: name(text),
        version,
        at: NOW,
        key: key.clone(),
        binding_text: BOUND.to_owned(),
        sealed: Sealed(format!("sealed {text} {version}").into_bytes()),
    }
}

async fn names(store: &Store, project: &ProjectId) -> Vec<(String, u64)> {
    let rows = store.secrets(project.clone()).await.unwrap();
    rows.into_iter().map(|row| (row.name.to_string(), row.version)).collect()
}

#[tokio::test]
async fn a_secret_has_versions_and_the_second_writer_is_told() {
    let scratch = Scratch::new();
    let (store, project_id) = store_with_project(&scratch).await;
    let used = key('a');
    assert_eq!(store.sealing_key().await, Ok(None));
    assert_eq!(store.put_secret(new(&project_id, "b", 1, &used)).await, Ok(Put::Done));
    assert_eq!(store.sealing_key().await, Ok(Some(used.clone())));
    assert_eq!(store.put_secret(new(&project_id, "b", 1, &used)).await, Ok(Put::Changed));
    assert_eq!(store.put_secret(new(&project_id, "b", 3, &used)).await, Ok(Put::Changed));
    let later = NewSecret { at: NOW.after(std::time::Duration::from_secs(1)), ..new(&project_id, "b", 2, &used) };
    assert_eq!(store.put_secret(later.clone()).await, Ok(Put::Done));
    assert_eq!(store.put_secret(new(&project_id, "a", 1, &used)).await, Ok(Put::Done));

    let found = store.secret(project_id.clone(), name("b")).await.unwrap().unwrap();
    let row = SecretRow {
        project: project_id.clone(),
        name: name("b"),
        version: 2,
        created_at: NOW,
        updated_at: later.at,
        key: used.clone(),
        binding: serde_json::from_str::<Binding>(BOUND).unwrap(),
    };
    assert_eq!((found.row, found.binding_text.as_str(), found.sealed), (row, BOUND, later.sealed));
    assert_eq!(names(&store, &project_id).await, [("a".to_owned(), 1), ("b".to_owned(), 2)]);

    let elsewhere = project("elsewhere");
    store.create_project(elsewhere.clone()).await.unwrap();
    assert_eq!(store.secret(elsewhere.id.clone(), name("b")).await, Ok(None));
    assert_eq!(names(&store, &elsewhere.id).await, []);
    let missing = store.put_secret(new(&ProjectId::from_random(random()), "b", 1, &used)).await;
    assert_eq!(missing, Err(Error::Missing { what: "the project" }));
}

#[tokio::test]
async fn nothing_is_written_under_another_key_than_the_current_one() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let (old, current) = (key('a'), key('b'));
    for text in ["one", "two", "three"] {
        assert_eq!(store.put_secret(new(&project, text, 1, &old)).await, Ok(Put::Done));
    }
    store.set_sealing_key(current.clone()).await.unwrap();
    assert_eq!(store.put_secret(new(&project, "one", 2, &old)).await, Ok(Put::OtherKey));
    assert_eq!(store.put_secret(new(&project, "one", 2, &current)).await, Ok(Put::Done));

    let rest = store.secrets_under_other_keys(current.clone()).await.unwrap();
    assert_eq!(rest.iter().map(|secret| secret.row.name.as_str()).collect::<Vec<_>>(), ["three", "two"]);
    // It is changed while it is being resealed: the change stays.
    assert_eq!(store.put_secret(new(&project, "two", 2, &current)).await, Ok(Put::Done));
    let again: Vec<_> = rest.into_iter().map(|secret| (secret, Sealed(b"again".to_vec()))).collect();
    assert_eq!(store.reseal_secrets(old, again.clone()).await, Ok(false), "the key of an overtaken change");
    assert_eq!(store.reseal_secrets(current.clone(), again).await, Ok(true));
    let sealed = async |text| store.secret(project.clone(), name(text)).await.unwrap().unwrap().sealed.0;
    assert_eq!([sealed("three").await, sealed("two").await], [b"again".to_vec(), b"sealed two 2".to_vec()]);
    assert_eq!(store.secrets_under_other_keys(current.clone()).await, Ok(Vec::new()));
    assert_eq!(store.sealing_keys_in_use().await.unwrap(), [(current, 3)].into());
}

#[tokio::test]
async fn a_secret_that_a_live_sandbox_uses_is_removed_only_by_force() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let remove = |text, how| store.remove_secret(project.clone(), name(text), how);
    store.put_secret(new(&project, "used", 1, &key('a'))).await.unwrap();
    store.put_secret(new(&project, "idle", 1, &key('a'))).await.unwrap();
    let using = |text: &str| {
        let mut new = sandbox(&project);
        new.spec.network = Some(NetworkMode::Proxied);
        new.spec.secrets = vec![text.parse().unwrap()];
        new
    };
    let (user, other): (NewSandbox, NewSandbox) = (using("KEY=used"), sandbox(&project));
    let ended = using("idle");
    for new in [&user, &other, &ended] {
        insert(&store, new).await;
    }
    store.end_sandbox(ended.id.clone(), ending(NOW)).await.unwrap();

    assert_eq!(store.secret_users(project.clone(), name("used")).await, Ok(vec![user.id.clone()]));
    assert_eq!(remove("used", WhileUsed::Refuse).await, Ok(Removed::InUse(vec![user.id.clone()])));
    assert_eq!(remove("idle", WhileUsed::Refuse).await, Ok(Removed::Done(Vec::new())));
    assert_eq!(remove("idle", WhileUsed::Refuse).await, Ok(Removed::Absent));
    assert_eq!(remove("used", WhileUsed::Remove).await, Ok(Removed::Done(vec![user.id])));
    assert_eq!(names(&store, &project).await, []);
}

#[tokio::test]
async fn secrets_are_found_by_how_their_names_begin_after_those_that_are_skipped() {
    let scratch = Scratch::new();
    let (store, project_id) = store_with_project(&scratch).await;
    let used = key('a');
    for (seconds, text) in
        [(2, "header-new"), (1, "header-old"), (1, "header-old-too"), (0, "other"), (9, "header-late")]
    {
        let at = NOW.after(std::time::Duration::from_secs(seconds));
        assert_eq!(store.put_secret(NewSecret { at, ..new(&project_id, text, 1, &used) }).await, Ok(Put::Done));
    }
    let found = async |skipped| {
        let before = NOW.after(std::time::Duration::from_secs(9));
        let found = store.secrets_named("header-", before, skipped).await.unwrap();
        found.into_iter().map(|(_, name)| name.to_string()).collect::<Vec<_>>()
    };
    let all = ["header-old", "header-old-too", "header-new"];
    for skipped in 0..=all.len() {
        assert_eq!(found(u32::try_from(skipped).unwrap()).await, all[skipped..]);
    }
}

#[tokio::test]
async fn a_project_has_so_many_secrets() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let used = key('a');
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..SECRETS_PER_PROJECT_MAX {
        let (store, new) = (store.clone(), new(&project, &format!("s{number}"), 1, &used));
        tasks.spawn(async move { store.put_secret(new).await.unwrap() });
    }
    assert!(tasks.join_all().await.iter().all(|put| *put == Put::Done));
    let one_more = store.put_secret(new(&project, "more", 1, &used)).await;
    assert_eq!(one_more, Err(Error::TooMany { what: "secrets in the project" }));
    assert_eq!(store.put_secret(new(&project, "s7", 2, &used)).await, Ok(Put::Done), "a new version is not one more");
}

#[tokio::test]
async fn a_backup_has_the_secrets_and_a_check_looks_at_each() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    store.put_secret(new(&project, "one", 1, &key('a'))).await.unwrap();
    store.put_secret(new(&project, "two", 1, &key('a'))).await.unwrap();
    let file = scratch.join("backup.db");
    backup(scratch.path(), &file, NOW).unwrap();
    let elsewhere = Scratch::new();
    restore(&file, elsewhere.path()).unwrap();
    let restored = elsewhere.open();
    let found = restored.secret(project.clone(), name("one")).await.unwrap().unwrap();
    assert_eq!(found.sealed.0, b"sealed one 1");
    assert_eq!(restored.sealing_key().await, Ok(Some(key('a'))));
    drop((store, restored));

    let connection = rusqlite::Connection::open(scratch.join("saggar.db")).unwrap();
    connection.execute("UPDATE secret SET binding_json = '{}' WHERE name = 'two'", []).unwrap();
    connection.close().unwrap();
    let checked = check(scratch.path(), |_, _, _| None, |secret| Some(format!("seal of {}", secret.sealed.0.len())));
    let checked = checked.unwrap();
    let finding = |about: &str, what: &str| Finding { about: about.to_owned(), what: what.to_owned() };
    assert_eq!(checked.secrets, 2);
    assert_eq!(
        checked.findings,
        [
            finding("secret one", "seal of 12"),
            finding("secret in row 2", "the store is damaged: column binding_json can't be parsed"),
        ]
    );
}
