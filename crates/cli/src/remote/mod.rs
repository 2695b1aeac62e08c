//! Commands that talk to a server: `saggar sandbox …`, `saggar code …`, `saggar agent …`, `saggar runs …`, `saggar key …`, `saggar secret …`, `saggar template --server …` and `saggar changes --server …`.
//!
//! They use only the API's client, like any external program, and nothing of the host. The async runtime starts here
//! and nowhere earlier, so that `run` and `doctor` don't pay for it.

mod agent_arguments;
mod agent_commands;
mod agent_file;
mod agent_run;
mod arguments;
mod changes;
mod code;
mod code_arguments;
mod copy;
mod dispatch;
mod exec;
mod failure;
mod journal_line;
mod keys;
mod lifecycle;
mod local_server;
mod logs;
mod models;
mod net;
mod pipe;
mod place;
mod progress;
mod run_arguments;
mod run_commands;
mod run_files;
mod run_usage;
mod run_view;
mod secret_arguments;
mod secret_file;
mod secret_value;
mod secrets;
mod settings;
mod shell;
mod shown;
mod snapshot_arguments;
mod snapshots;
mod table;
mod templates;
mod unpack;

pub(crate) use agent_arguments::AgentArguments;
pub(crate) use arguments::{KeyArguments, SandboxArguments, ServerArguments, sandbox_id};
pub(crate) use code_arguments::CodeArguments;
pub(crate) use dispatch::{agent, changes, code, key, models, net, runs, sandbox, secret, snapshot, template};
pub(crate) use models::ModelArguments;
pub(crate) use net::NetTask;
pub(crate) use run_arguments::RunsArguments;
pub(crate) use secret_arguments::SecretArguments;
pub(crate) use shown::{line, size};
pub(crate) use snapshot_arguments::SnapshotArguments;
pub(crate) use table::{aligned, terminal_width};
pub(crate) use templates::{TemplateTask, with_credentials};
