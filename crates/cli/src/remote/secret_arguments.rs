//! The command line of `saggar secret`, as typed values.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use saggar_domain::net::Rule;
use saggar_domain::secret::{Binding, SecretName, Slot};

use super::arguments::{STATUS, ServerArguments};
use super::failure::CommandFailure;
use crate::settings::VaultFlags;

/// Store, list and remove secrets, which programs in a sandbox use and never see
#[derive(Args, Debug)]
#[command(after_help = STATUS)]
pub(crate) struct SecretArguments {
    #[command(subcommand)]
    pub(crate) command: SecretCommand,
    /// Use this secrets file of `saggar run` instead of a server
    #[arg(long, value_name = "FILE", global = true, conflicts_with = "local")]
    pub(crate) file: Option<PathBuf>,
    /// Use the default secrets file of `saggar run`, ~/.config/saggar/secrets.toml, instead of a server
    #[arg(long, global = true)]
    pub(crate) local: bool,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

#[derive(Subcommand, Debug)]
pub(crate) enum SecretCommand {
    /// Store a secret or its next value, read from stdin or asked for on the terminal
    #[command(
        after_help = "Examples:\n  saggar secret set openai --bind api.openai.com --slot bearer --placeholder-prefix sk- < key\n  \
        saggar secret set github --bind 'GET api.github.com/repos/acme/**' --slot bearer\n  \
        saggar secret set openai < new-key\n  \
        saggar secret set openai --local --bind api.openai.com --slot bearer\n  \
        saggar secret set openai --keep-value --bind 'POST api.openai.com/v1/**' --slot bearer"
    )]
    Set {
        /// Name of the secret: lower-case letters, digits, - and _
        #[arg(value_name = "NAME")]
        name: SecretName,
        #[command(flatten)]
        binding: BindingFlags,
        /// Change only where the secret is used
        #[arg(long, requires = "rules")]
        keep_value: bool,
    },
    /// List secrets, without their values
    #[command(visible_alias = "ls")]
    List,
    /// Show a secret without its value, and the live sandboxes that use it
    Show {
        /// Name of the secret
        #[arg(value_name = "NAME")]
        name: SecretName,
    },
    /// Remove a secret
    Rm {
        /// Name of the secret
        #[arg(value_name = "NAME")]
        name: SecretName,
        /// Remove it although live sandboxes use it: they go on without it
        #[arg(long)]
        force: bool,
    },
    /// Change the key that a server's secrets are sealed with; the server may keep running
    #[command(
        after_help = "The new key is added to the file that secrets_key_file names. Earlier keys stay in it, because backups need them.\n\
        The command can be interrupted and repeated: every secret stays readable.\n\n\
        Example:\n  saggar secret rekey --data-dir /var/lib/saggar"
    )]
    Rekey {
        #[command(flatten)]
        vault: VaultFlags,
        /// Remove all earlier keys: backups from before, and other data directories that use them, lose their secrets
        #[arg(long)]
        forget_old_keys: bool,
    },
}

/// The requests that get a secret, and where in them.
#[derive(Args, Debug)]
pub(crate) struct BindingFlags {
    /// Requests that get the value: [METHOD ]HOST[:PORT][/PATH] (repeatable)
    #[arg(long = "bind", id = "rules", value_name = "RULE", requires = "slot")]
    rules: Vec<Rule>,
    /// Where the value goes: bearer, basic:USER, header:NAME[:PREFIX], query:PARAMETER or
    /// sigv4:ACCESS_KEY_ID:REGION:SERVICE
    #[arg(long, value_name = "SLOT", value_parser = slot, requires = "rules")]
    slot: Option<Slot>,
    /// What placeholders begin with, for programs that check the form of a key
    #[arg(long, value_name = "PREFIX", requires = "rules")]
    placeholder_prefix: Option<String>,
}

impl BindingFlags {
    /// `None` if nothing is to change.
    pub(crate) fn binding(self) -> Result<Option<Binding>, CommandFailure> {
        match self.slot {
            Some(slot) => Ok(Some(Binding::new(self.rules, slot, self.placeholder_prefix)?)),
            None => Ok(None),
        }
    }
}

/// A slot in the form of the command line.
fn slot(text: &str) -> Result<Slot, String> {
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    let some = |what: &str, text: &str| match text {
        "" => Err(format!("write it as {what}")),
        text => Ok(text.to_owned()),
    };
    match kind {
        "bearer" if rest.is_empty() => Ok(Slot::Bearer),
        "basic" => Ok(Slot::Basic { user: some("basic:USER", rest)? }),
        "header" => {
            let (name, prefix) = rest.split_once(':').unwrap_or((rest, ""));
            Ok(Slot::Header { name: some("header:NAME", name)?, prefix: prefix.to_owned() })
        }
        "query" => Ok(Slot::Query { parameter: some("query:PARAMETER", rest)? }),
        "sigv4" => match rest.split(':').collect::<Vec<_>>()[..] {
            [access_key_id, region, service] => Ok(Slot::SigV4 {
                access_key_id: access_key_id.to_owned(),
                region: region.to_owned(),
                service: service.to_owned(),
            }),
            _ => Err("write it as sigv4:ACCESS_KEY_ID:REGION:SERVICE".to_owned()),
        },
        _ => Err("choose one of: bearer, basic:USER, header:NAME[:PREFIX], query:PARAMETER, \
                  sigv4:ACCESS_KEY_ID:REGION:SERVICE"
            .to_owned()),
    }
}

/// The form that [`slot`] reads.
pub(crate) fn slot_text(slot: &Slot) -> String {
    match slot {
        Slot::Bearer => "bearer".to_owned(),
        Slot::Basic { user } => format!("basic:{user}"),
        Slot::Header { name, prefix } if prefix.is_empty() => format!("header:{name}"),
        Slot::Header { name, prefix } => format!("header:{name}:{prefix}"),
        Slot::Query { parameter } => format!("query:{parameter}"),
        Slot::SigV4 { access_key_id, region, service } => format!("sigv4:{access_key_id}:{region}:{service}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_shown_as_it_is_written() {
        for text in [
            "bearer",
            "basic:x-access-token",
            "header:x-api-key",
            "header:authorization:token ",
            "query:key",
            "sigv4:AKIDEXAMPLE:eu-central-1:s3",
        ] {
            assert_eq!(slot_text(&slot(text).unwrap()), text);
        }
        for wrong in ["", "bearer:x", "basic", "basic:", "header", "header::x", "query:", "sigv4:a:b", "cookie:x"] {
            assert!(slot(wrong).is_err(), "{wrong}");
        }
    }
}
