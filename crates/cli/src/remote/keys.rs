//! `saggar key create|list|revoke` over the API; `create` also works without a server, for the case that no key is
//! left to authenticate with.

use std::io::IsTerminal;
use std::path::Path;

use saggar_api::client::Client;
use saggar_api::{CreateKey, CreatedKey, Key, KeyName, Timestamp};
use saggar_domain::{ProjectName, Timeout};

use super::arguments::KeyCommand;
use super::dispatch::{CommandResult, note, print, print_json};
use super::failure::CommandFailure;
use super::shown::{line, now, span};
use super::table::{aligned, terminal_width};
use crate::settings::naming;

pub(crate) async fn main(client: &Client, command: KeyCommand, is_json: bool) -> CommandResult {
    match command {
        KeyCommand::Create { name, expires, data_dir: _, project: _ } => {
            show_made(&client.create_key(&CreateKey { name, expires }).await?, is_json)?;
        }
        KeyCommand::List => {
            let keys = client.list_keys().await?;
            if is_json {
                print_json(&keys)?;
            } else {
                let now = now();
                let rows: Vec<Vec<String>> = keys.items.iter().map(|key| row(key, now)).collect();
                let table =
                    aligned(&["ID", "BEGINS", "STATE", "AGE", "EXPIRES", "USED", "NAME"], &rows, terminal_width());
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

/// Creates a key directly in the store while no server runs, for an operator who has lost every key.
pub(crate) async fn create_offline(
    data: &Path,
    project: Option<ProjectName>,
    name: &KeyName,
    expires: Option<Timeout>,
    is_json: bool,
) -> CommandResult {
    let made = saggar_server::create_key(data, project, name, expires.map(Timeout::duration)).await;
    let failed = |error: saggar_server::ServeError| {
        CommandFailure::ours("data_directory", naming(data, &error.to_string()), error.help())
    };
    let made = made.map_err(failed)?;
    show_made(&made, is_json)?;
    Ok(0)
}

fn show_made(made: &CreatedKey, is_json: bool) -> Result<(), CommandFailure> {
    if is_json {
        return print_json(made);
    }
    print(format!("{}\n", made.secret.reveal()).as_bytes())?;
    if std::io::stderr().is_terminal() {
        note(&format!("this is shown once; revoke it with: saggar key revoke {}", made.key.id));
    }
    Ok(())
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
        key.expires_at.map_or_else(
            || "never".to_owned(),
            |expiry| {
                if expiry <= now { format!("{} ago", span(expiry, now)) } else { format!("in {}", span(now, expiry)) }
            },
        ),
        key.last_used_at.map_or_else(|| "never".to_owned(), |used| format!("{} ago", span(used, now))),
        line(key.name.as_str()),
    ]
}
