//! `saggar secret set|list|show|rm` over the API, and `saggar secret rekey` on a data directory.

use saggar_api::client::Client;
use saggar_api::{EffectiveSlot, ProjectSecret, RemoveSecret, SetSecret};
use saggar_server::OldKeys;

use super::dispatch::{CommandResult, note, print, print_json};
use super::failure::CommandFailure;
use super::secret_arguments::{SecretCommand, slot_text};
use super::secret_value;
use super::shown::{line, now, span};
use super::table::{aligned, terminal_width};
use crate::settings::{VaultFlags, naming};

pub(crate) async fn main(client: &Client, command: SecretCommand, is_json: bool) -> CommandResult {
    match command {
        SecretCommand::Set { name, binding, keep_value } => {
            let binding = binding.binding()?;
            let value = if keep_value { None } else { Some(secret_value::read(name.as_str())?) };
            let secret = client.set_secret(&name, &SetSecret { value, binding }).await?;
            match is_json {
                true => print_json(&secret)?,
                false => print(format!("{name} version {}\n", secret.version).as_bytes())?,
            }
        }
        SecretCommand::List => {
            let secrets = client.list_secrets().await?;
            if is_json {
                print_json(&secrets)?;
            } else {
                let rows: Vec<Vec<String>> = secrets.items.iter().map(row).collect();
                let table = aligned(&["NAME", "VERSION", "CHANGED", "SLOT", "BOUND TO"], &rows, terminal_width());
                print(table.as_bytes())?;
            }
        }
        SecretCommand::Show { name } => {
            let secret = client.secret(&name).await?;
            match is_json {
                true => print_json(&secret)?,
                false => print(shown(&secret).as_bytes())?,
            }
        }
        SecretCommand::Rm { name, force } => {
            client.remove_secret(&name, &RemoveSecret { force }).await?;
            match is_json {
                true => print_json(&serde_json::json!({ "name": name, "state": "removed" }))?,
                false => print(format!("{name} removed\n").as_bytes())?,
            }
        }
        SecretCommand::Rekey { vault, forget_old_keys } => return rekey(&vault, forget_old_keys, is_json).await,
    }
    Ok(0)
}

/// Changes the sealing key, with or without a running server.
pub(crate) async fn rekey(vault: &VaultFlags, forget_old_keys: bool, is_json: bool) -> CommandResult {
    let config = vault.load().map_err(|error| CommandFailure::ours("invalid_value", error.what, error.help))?;
    let old = if forget_old_keys { OldKeys::Forget } else { OldKeys::Keep };
    let done = saggar_server::rekey(config.data_directory(), &config.key_file(), old).await.map_err(|error| {
        CommandFailure::ours("sealing_key", naming(config.data_directory(), &error.to_string()), error.help())
    })?;
    if is_json {
        let (key, secrets, forgotten) = (done.key.as_str(), done.secrets, done.forgotten);
        print_json(&serde_json::json!({ "sealing_key": key, "secrets": secrets, "forgotten_keys": forgotten }))?;
        return Ok(0);
    }
    print(format!("resealed {} secrets with key {}\n", done.secrets, done.key).as_bytes())?;
    if !forget_old_keys {
        note("earlier keys stay in the key file: backups from before need them");
    }
    Ok(0)
}

fn row(secret: &ProjectSecret) -> Vec<String> {
    vec![
        secret.name.to_string(),
        secret.version.to_string(),
        format!("{} ago", span(secret.updated_at, now())),
        slot(secret),
        line(&secret.binding.rules.join(", ")),
    ]
}

fn shown(secret: &ProjectSecret) -> String {
    let users: Vec<&str> = secret.used_by.iter().flatten().map(|id| id.as_str()).collect();
    let fields = [
        ("name", secret.name.to_string()),
        ("version", secret.version.to_string()),
        ("bound to", line(&secret.binding.rules.join(", "))),
        ("slot", slot(secret)),
        ("placeholder", format!("{}saggar-…", line(secret.binding.placeholder_prefix.as_deref().unwrap_or_default()))),
        ("created", secret.created_at.to_string()),
        ("changed", secret.updated_at.to_string()),
        ("sealed with", line(&secret.sealing_key)),
        ("used by", if users.is_empty() { "no live sandbox".to_owned() } else { users.join(", ") }),
    ];
    fields.iter().map(|(name, value)| format!("{name:<12} {value}\n")).collect()
}

fn slot(secret: &ProjectSecret) -> String {
    line(&match &secret.binding.slot {
        EffectiveSlot::Known(slot) => slot_text(slot),
        EffectiveSlot::Other(other) => other.to_string(),
    })
}
