//! `saggar key create|list|revoke`.

use std::io::IsTerminal;

use saggar_api::client::Client;
use saggar_api::{CreateKey, Key, Timestamp};

use super::arguments::KeyCommand;
use super::dispatch::{Outcome, note, print, print_json};
use super::shown::{line, now, span};
use super::table::{aligned, terminal_width};

pub(crate) async fn main(client: &Client, command: KeyCommand, is_json: bool) -> Outcome {
    match command {
        KeyCommand::Create { name, expires } => {
            let made = client.create_key(&CreateKey { name, expires }).await?;
            if is_json {
                print_json(&made)?;
            } else {
                print(format!("{}\n", made.secret.reveal()).as_bytes())?;
                if std::io::stderr().is_terminal() {
                    note(&format!("this is shown once; revoke it with: saggar key revoke {}", made.key.id));
                }
            }
        }
        KeyCommand::List => {
            let keys = client.list_keys().await?;
            if is_json {
                print_json(&keys)?;
            } else {
                let now = now();
                let rows: Vec<Vec<String>> = keys.items.iter().map(|key| row(key, now)).collect();
                let table = aligned(&["ID", "BEGINS", "STATE", "AGE", "USED", "NAME"], &rows, terminal_width());
                print(table.as_bytes())?;
            }
        }
        KeyCommand::Revoke { key } => {
            client.revoke_key(&key).await?;
            if is_json {
                print_json(&serde_json::json!({ "id": key, "state": "revoked" }))?;
            } else {
                print(format!("{key} revoked\n").as_bytes())?;
            }
        }
    }
    Ok(0)
}

fn row(key: &Key, now: Timestamp) -> Vec<String> {
    let state = match (key.revoked_at, key.expires_at) {
        (Some(_), _) => "revoked",
        (None, Some(expiry)) if expiry <= now => "expired",
        _ => "active",
    };
    vec![
        key.id.to_string(),
        line(&key.prefix),
        state.to_owned(),
        span(key.created_at, now),
        key.last_used_at.map_or_else(|| "never".to_owned(), |used| format!("{} ago", span(used, now))),
        line(key.name.as_str()),
    ]
}
