//! Projects and API keys.

use std::time::Duration;

use saggar_domain::{KeyId, ProjectId, Timestamp};
use saggar_store::{
    ApiKey, Error, KEYS_PER_PROJECT_MAX, KeyCheck, KeyName, KeySecret, NewKey, Permissions, Revoked, Store,
};

use crate::fixture::{NOW, Scratch, project, random, store_with_project};

fn new_key(project: &ProjectId, created_at: Timestamp) -> NewKey {
    NewKey {
        id: KeyId::from_random(random()),
        project: project.clone(),
        name: KeyName::parse("laptop").unwrap(),
        permissions: Permissions::Full,
        created_at,
        expires_at: None,
    }
}

/// Polls until a write without a waiting caller is visible.
async fn last_used(store: &Store, project: &ProjectId, expected: Timestamp) -> ApiKey {
    for _ in 0..10_000 {
        let key = store.keys(project.clone()).await.unwrap().remove(0);
        if key.last_used_at == Some(expected) {
            return key;
        }
        tokio::task::yield_now().await;
    }
    panic!("the key was never noted as used at {expected:?}");
}

#[tokio::test]
async fn a_project_is_found_by_id_and_name_and_no_two_share_one() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let (one, two) = (project("one"), project("two"));
    store.create_project(one.clone()).await.unwrap();
    store.create_project(two.clone()).await.unwrap();
    assert_eq!(store.project(one.id.clone()).await, Ok(Some(one.clone())));
    assert_eq!(store.project_by_name(two.name.clone()).await, Ok(Some(two.clone())));
    assert_eq!(store.create_project(project("one")).await, Err(Error::Taken { what: "a project of that name" }));
    let default = store.default_project(ProjectId::from_random(random()), NOW).await.unwrap();
    assert_eq!(store.default_project(ProjectId::from_random(random()), NOW).await, Ok(default));
    assert_eq!(store.projects().await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_key_opens_its_project_and_its_secret_is_nowhere() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let (key, secret) = store.create_key(new_key(&project, NOW)).await.unwrap();
    assert_eq!(store.check_key(&secret, NOW).await, Ok(KeyCheck::Valid(key.clone())));
    assert_eq!(store.check_key(&KeySecret::generate().unwrap(), NOW).await, Ok(KeyCheck::Unknown));
    assert!(secret.expose().starts_with(&key.prefix));
    drop(store);
    let file = std::fs::read(scratch.join("saggar.db")).unwrap();
    let holds = |text: &str| file.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(holds(&key.prefix), "the prefix shows that the file is what is looked through");
    assert!(!holds(&secret.expose()[key.prefix.len()..]));
}

#[tokio::test]
async fn a_key_is_worth_nothing_once_revoked_or_expired() {
    let scratch = Scratch::new();
    let (store, project_id) = store_with_project(&scratch).await;
    let (revoked, revoked_secret) = store.create_key(new_key(&project_id, NOW)).await.unwrap();
    let expires_at = NOW.after(Duration::from_secs(1));
    let new = NewKey { expires_at: Some(expires_at), ..new_key(&project_id, NOW) };
    let (expiring, expiring_secret) = store.create_key(new).await.unwrap();

    let elsewhere = project("elsewhere");
    store.create_project(elsewhere.clone()).await.unwrap();
    assert_eq!(store.revoke_key(elsewhere.id, revoked.id.clone(), NOW).await, Ok(Revoked::Absent));
    assert!(matches!(store.check_key(&revoked_secret, NOW).await, Ok(KeyCheck::Valid(_))));
    for at in [NOW, expires_at] {
        assert_eq!(store.revoke_key(project_id.clone(), revoked.id.clone(), at).await, Ok(Revoked::Done));
    }
    assert_eq!(store.check_key(&revoked_secret, NOW).await, Ok(KeyCheck::Revoked(revoked.id.clone())));

    assert!(matches!(store.check_key(&expiring_secret, NOW).await, Ok(KeyCheck::Valid(_))));
    assert_eq!(store.check_key(&expiring_secret, expires_at).await, Ok(KeyCheck::Expired(expiring.id)));
    let listed = store.keys(project_id).await.unwrap();
    let listed = listed.iter().find(|key| key.id == revoked.id).unwrap();
    assert_eq!(listed.revoked_at, Some(NOW), "the first time stands");
}

#[tokio::test]
async fn use_is_noted_at_most_once_a_minute() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let (_, secret) = store.create_key(new_key(&project, NOW)).await.unwrap();
    let at = |seconds| NOW.after(Duration::from_secs(seconds));
    store.check_key(&secret, at(1)).await.unwrap();
    last_used(&store, &project, at(1)).await;
    store.check_key(&secret, at(60)).await.unwrap();
    // Our own write is queued behind any write that the check has queued.
    store.create_project(crate::fixture::project("after")).await.unwrap();
    last_used(&store, &project, at(1)).await;
    store.check_key(&secret, at(61)).await.unwrap();
    last_used(&store, &project, at(61)).await;
}

#[tokio::test]
async fn a_key_needs_a_project() {
    let scratch = Scratch::new();
    let store = scratch.open();
    let key = store.create_key(new_key(&ProjectId::from_random(random()), NOW)).await;
    assert_eq!(key.unwrap_err(), Error::Missing { what: "the project" });
}

#[tokio::test]
async fn a_project_has_so_many_keys_and_dead_ones_make_room() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..KEYS_PER_PROJECT_MAX {
        let (store, new) = (store.clone(), new_key(&project, NOW));
        tasks.spawn(async move { store.create_key(new).await.unwrap().0.id });
    }
    let ids = tasks.join_all().await;
    let one_more = || store.create_key(new_key(&project, NOW));
    assert_eq!(one_more().await.unwrap_err(), Error::TooMany { what: "keys in the project" });
    store.revoke_key(project.clone(), ids[0].clone(), NOW).await.unwrap();
    one_more().await.unwrap();
    let listed = store.keys(project.clone()).await.unwrap();
    assert_eq!(listed.len(), KEYS_PER_PROJECT_MAX as usize);
    assert!(listed.iter().all(|key| key.id != ids[0]));
    assert!(one_more().await.is_err());
}
