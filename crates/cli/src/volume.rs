//! `saggar volume`: makes, lists and removes the volumes of this host, without a server.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{Args, Subcommand};
use saggar_domain::{ByteSize, Problem, SandboxId, Sharing, Timestamp, VolumeName, VolumeRecord};
use saggar_sandbox::{DataDirectory, LOCAL_PROJECT, NewVolume, VolumeQuota, Volumes, volume_users};
use serde_json::{Value, json};

use crate::outcome::{OUR_FAILURE, problem_text, visible};
use crate::remote::{aligned, terminal_width};

/// Schema name in the `--json` output of every subcommand.
const SCHEMA: &str = "saggar.volumes/v1";

#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0 done; 125 saggar failed.")]
pub(crate) struct VolumeArguments {
    #[command(subcommand)]
    command: VolumeCommand,
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
    /// Data directory: where volumes are kept
    #[arg(long, value_name = "DIR", global = true)]
    data_dir: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum VolumeCommand {
    /// Make a volume; all of its size is taken from the disk at once
    Create {
        /// Its name: letters, digits, dash and underscore
        name: VolumeName,
        /// How much it can hold, its own administration included
        #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse)]
        size: ByteSize,
        /// Let several sandboxes use it at once; by default only one can
        #[arg(long)]
        shared: bool,
    },
    /// List the volumes, and the sandboxes that use them
    List,
    /// Show one volume
    Show {
        /// The volume's name
        name: VolumeName,
    },
    /// Remove a volume and everything in it; refused while a sandbox uses it
    Rm {
        /// The volume's name
        name: VolumeName,
    },
    /// Repair the filesystem of a volume that no sandbox uses
    Repair {
        /// The volume's name
        name: VolumeName,
    },
}

pub(crate) fn main(arguments: VolumeArguments) -> ExitCode {
    let is_json = arguments.json;
    let outcome = DataDirectory::open(arguments.data_dir.as_deref()).and_then(|data| execute(&data, arguments.command));
    match outcome {
        Ok((text, mut fields)) => {
            fields["schema"] = json!(SCHEMA);
            let text = if is_json { format!("{fields}\n") } else { visible(&text) };
            match std::io::stdout().write_all(text.as_bytes()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::from(OUR_FAILURE),
            }
        }
        Err(problem) if is_json => {
            println!("{}", json!({"schema": SCHEMA, "error": problem}));
            ExitCode::from(OUR_FAILURE)
        }
        Err(problem) => {
            eprint!("{}", problem_text(&problem));
            ExitCode::from(OUR_FAILURE)
        }
    }
}

/// One form for people and one for programs.
fn execute(data: &DataDirectory, command: VolumeCommand) -> Result<(String, Value), Problem> {
    let volumes = Volumes::new(data, LOCAL_PROJECT);
    match command {
        VolumeCommand::Create { name, size, shared } => {
            let sharing = if shared { Sharing::Shared } else { Sharing::Exclusive };
            let now = Timestamp::from(SystemTime::now());
            let record = volumes.create(&NewVolume { name, size, sharing, now, quota: VolumeQuota::NONE })?;
            let text = format!("made volume {} of {}, {}\n", record.name, record.size, record.sharing);
            Ok((text, json!({"volume": record})))
        }
        VolumeCommand::List => {
            let mut users = volume_users(data);
            let listed: Vec<(VolumeRecord, Vec<SandboxId>)> = volumes
                .list()?
                .into_iter()
                .map(|record| {
                    let used_by = users.remove(&record.id).unwrap_or_default();
                    (record, used_by)
                })
                .collect();
            let text = match listed.is_empty() {
                true => "no volumes; make one with: saggar volume create NAME --size SIZE\n".to_owned(),
                false => table(&listed),
            };
            let items: Vec<Value> = listed.iter().map(|(record, users)| shown(record, users)).collect();
            Ok((text, json!({"volumes": items})))
        }
        VolumeCommand::Show { name } => {
            let record = volumes.get(&name)?;
            let users = volume_users(data).remove(&record.id).unwrap_or_default();
            let mut text = format!(
                "name     {}\nid       {}\nsize     {}\nsharing  {}\ncreated  {}\n",
                record.name, record.id, record.size, record.sharing, record.created_at
            );
            for user in &users {
                text.push_str(&format!("used by  {user}\n"));
            }
            Ok((text, json!({"volume": shown(&record, &users)})))
        }
        VolumeCommand::Rm { name } => {
            volumes.remove(data, &name)?;
            Ok((format!("removed volume {name}\n"), json!({"name": name})))
        }
        VolumeCommand::Repair { name } => {
            volumes.repair(data, &name)?;
            Ok((format!("volume {name} is in order\n"), json!({"name": name})))
        }
    }
}

fn table(listed: &[(VolumeRecord, Vec<SandboxId>)]) -> String {
    let row = |(record, users): &(VolumeRecord, Vec<SandboxId>)| {
        let used = match users.as_slice() {
            [] => "-".to_owned(),
            [one] => one.to_string(),
            many => format!("{} sandboxes", many.len()),
        };
        vec![record.name.to_string(), record.size.to_string(), record.sharing.to_string(), used]
    };
    let rows: Vec<Vec<String>> = listed.iter().map(row).collect();
    aligned(&["NAME", "SIZE", "SHARING", "USED BY"], &rows, terminal_width())
}

fn shown(record: &VolumeRecord, users: &[SandboxId]) -> Value {
    let mut shown = serde_json::to_value(record).expect("our own types have only text keys");
    shown["used_by"] = json!(users);
    shown
}
