//! What an operator does to a data directory without the API: create a key, change the key that secrets are sealed with.
//!
//! Write access to the data directory includes everything in it, so no key is required. Creating a key takes the store's
//! lock, so it fails while a server runs, and no server can start meanwhile. The sealing key can be changed either way.

use std::path::Path;
use std::time::Duration;

use saggar_api::{CreatedKey, KeyName, Secret};
use saggar_domain::{Code, Problem, ProjectName};
use saggar_http::wire;
use saggar_runtime::{Fault, KeyFile, OldKeys, Rekeyed};
use saggar_store::{OpenError, Store};

use crate::serve::ServeError;

/// Creates a key of a project, and the project if missing; `None` means the default project.
pub async fn create_key(
    data_directory: &Path,
    project: Option<ProjectName>,
    name: &KeyName,
    life: Option<Duration>,
) -> Result<CreatedKey, ServeError> {
    expect_store(data_directory)?;
    let store = Store::open(data_directory)?;
    let (key, secret) = saggar_runtime::create_key_in(&store, project, name.as_str(), life).await?;
    let key = wire::key(key).map_err(|_| refused("the key's name can't be shown", "choose another"))?;
    Ok(CreatedKey { key, secret: Secret::new(secret.expose()) })
}

/// Makes a new sealing key and reseals every secret with it, beside a running server or without one.
pub async fn rekey(data_directory: &Path, file: &KeyFile, old: OldKeys) -> Result<Rekeyed, ServeError> {
    expect_store(data_directory)?;
    let store = match Store::open(data_directory) {
        Err(OpenError::Locked { .. }) => Store::join(data_directory)?,
        store => store?,
    };
    Ok(saggar_runtime::rekey(&store, file, old).await?)
}

/// Whether a server has been started on this data directory before.
pub fn has_store(data_directory: &Path) -> bool {
    Store::is_in(data_directory)
}

fn expect_store(data_directory: &Path) -> Result<(), ServeError> {
    match Store::is_in(data_directory) {
        true => Ok(()),
        false => Err(refused(
            "the data directory has no store",
            "name the data directory of a server that has been started before",
        )
        .into()),
    }
}

fn refused(what: &str, help: &str) -> Fault {
    Fault::Refused(Problem::new(Code::DataDirectory, what, help))
}
