//! Set, change, list and remove, and what of it is in the files.

use saggar_domain::ProjectId;
use saggar_domain::secret::{SecretName, SecretValue, USES_MAX};
use saggar_runtime::{Action, Fault, HeaderRule, KEYS, Permit, Subject, Written};
use saggar_store::WhileUsed;

use crate::place::{CANARY, Place, is_anywhere, mode};

#[tokio::test]
async fn a_value_is_in_no_file_of_the_data_directory_nor_in_a_backup() {
    let place = Place::new();
    let project = place.open().await;
    project.set_new("openai", CANARY).await;
    // While the log has not been folded into the database, and afterwards.
    assert!(is_anywhere("api.example.com", &place.data()), "the binding shows that the files are looked through");
    assert!(!is_anywhere(CANARY, &place.data()));
    let backup = place.join("backup");
    std::fs::create_dir(&backup).unwrap();
    saggar_store::backup(&place.data(), &backup.join("backup.db"), saggar_domain::Timestamp::from_millis(0)).unwrap();
    assert!(is_anywhere("api.example.com", &backup));
    assert!(project.has("openai", CANARY).await);
    assert!(!project.has("openai", "sk-canary-other-value").await);
    drop(project);
    for text in [CANARY, "sk-canary-other-value"] {
        assert!(!is_anywhere(text, &place.data()) && !is_anywhere(text, &backup), "{text}");
    }
    let key = std::fs::read_to_string(place.key_path()).unwrap();
    let key = key.lines().find_map(|line| line.strip_prefix("saggar-sealing-key-v1:")).unwrap();
    assert!(!is_anywhere(key, &place.data()) && !is_anywhere(key, &backup));
    assert_eq!(mode(&place.key_path()), 0o600);
    assert_eq!(mode(place.key_path().parent().unwrap()), 0o700);
    assert_eq!(place.findings(), [""; 0]);
}

#[tokio::test]
async fn what_is_not_given_stays_and_a_repeated_request_changes_nothing() {
    let place = Place::new();
    let project = place.open().await;
    let fault = project.set("openai", Some(CANARY), None).await.unwrap_err();
    assert!(fault.to_string().contains("no binding"), "{fault}");
    let fault = project.set("openai", None, Some("api.example.com")).await.unwrap_err();
    assert!(fault.to_string().contains("no value"), "{fault}");
    assert_eq!(project.names().await, []);
    let set = async |value, host| project.set("openai", value, host).await.unwrap();
    assert_eq!(set(Some(CANARY), Some("api.example.com")).await, Written::Created);
    assert_eq!(set(Some(CANARY), Some("api.example.com")).await, Written::Same);
    assert_eq!(set(None, Some("api.example.com")).await, Written::Same);
    assert_eq!(set(None, Some("other.example.com")).await, Written::Changed);
    assert!(project.has("openai", CANARY).await, "the value stayed");
    assert_eq!(set(Some("sk-canary-second"), None).await, Written::Changed);
    let (row, users) =
        project.sandboxes.secret(&project.permit(), &SecretName::parse("openai").unwrap()).await.unwrap();
    assert_eq!((row.version, row.binding, users), (3, crate::place::binding("other.example.com"), Vec::new()));
}

#[tokio::test]
async fn more_header_rules_than_a_sandbox_can_use_are_refused_before_any_is_stored() {
    let place = Place::new();
    let project = place.open().await;
    let permit = Permit::decide(&Subject::Anybody { project: project.id.clone() }, Action::CreateSandbox).unwrap();
    let rule = |index: usize| HeaderRule {
        host: "api.example.com".parse().unwrap(),
        header: format!("x-key-{index}"),
        value: SecretValue::parse(CANARY).unwrap(),
    };
    let rules: Vec<HeaderRule> = (0..=USES_MAX).map(rule).collect();
    let fault = project.sandboxes.store_headers(&permit, &rules).await.unwrap_err();
    assert!(fault.to_string().contains("65 header rules are more than 64"), "{fault}");
    assert_eq!(project.names().await, []);
    assert_eq!(project.sandboxes.store_headers(&permit, &rules[1..]).await.unwrap().len(), USES_MAX);
}

#[tokio::test]
async fn writers_at_once_all_succeed_and_none_is_lost() {
    let place = Place::new();
    let project = std::sync::Arc::new(place.open().await);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8 {
        let project = project.clone();
        tasks.spawn(async move {
            project.set("shared", Some(&format!("sk-canary-{number}")), Some("api.example.com")).await.unwrap()
        });
    }
    let written = tasks.join_all().await;
    assert_eq!(written.iter().filter(|written| **written == Written::Created).count(), 1);
    assert_eq!(project.names().await, [("shared".to_owned(), 8)]);
}

#[tokio::test]
async fn a_permit_for_something_else_and_another_project_reach_nothing() {
    let place = Place::new();
    let project = place.open().await;
    project.set_new("openai", CANARY).await;
    let name = SecretName::parse("openai").unwrap();
    let subject = Subject::Anybody { project: project.id.clone() };
    let keys = Permit::decide(&subject, Action::Manage(KEYS)).unwrap();
    assert!(matches!(project.sandboxes.secrets(&keys).await, Err(Fault::WrongPermit)));
    assert!(matches!(project.sandboxes.secret(&keys, &name).await, Err(Fault::WrongPermit)));
    let removed = project.sandboxes.remove_secret(&keys, &name, WhileUsed::Remove).await;
    assert!(matches!(removed, Err(Fault::WrongPermit)));

    let other = crate::place::Project { sandboxes: project.sandboxes.clone(), id: ProjectId::from_random([2; 16]) };
    assert_eq!(other.names().await, []);
    let found = other.sandboxes.secret(&other.permit(), &name).await;
    assert!(matches!(found, Err(Fault::NotFound { what: "secret", .. })));
    let removed = other.sandboxes.remove_secret(&other.permit(), &name, WhileUsed::Remove).await;
    assert!(matches!(removed, Err(Fault::NotFound { .. })));
    assert_eq!(project.names().await, [("openai".to_owned(), 1)]);

    project.sandboxes.remove_secret(&project.permit(), &name, WhileUsed::Refuse).await.unwrap();
    assert_eq!(project.names().await, []);
}
