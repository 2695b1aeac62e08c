//! Keys made without a server: for an operator who has none, and for a new project.
//!
//! Whoever may write to the data directory owns everything in it, so no key is asked for. The store's lock keeps a running server out, and
//! is refused while there is one.

use std::path::Path;
use std::time::Duration;

use saggar_api::{CreatedKey, KeyName, Secret};
use saggar_domain::{Code, Problem, ProjectName};
use saggar_http::wire;
use saggar_runtime::Fault;
use saggar_store::Store;

use crate::serve::ServeError;

/// Makes a key of a project, and the project if it isn't there; `None` is the one that every server has.
pub async fn create_key(
    data_directory: &Path,
    project: Option<ProjectName>,
    name: &KeyName,
    life: Option<Duration>,
) -> Result<CreatedKey, ServeError> {
    let refused = |what: &str, help: &str| Fault::Refused(Problem::new(Code::DataDirectory, what, help));
    if !Store::is_in(data_directory) {
        return Err(refused(
            "the data directory has no store",
            "name the data directory of a server that has been started before",
        )
        .into());
    }
    let store = Store::open(data_directory)?;
    let (key, secret) = saggar_runtime::create_key_in(&store, project, name.as_str(), life).await?;
    let key = wire::key(key).map_err(|_| refused("the key's name can't be shown", "choose another"))?;
    Ok(CreatedKey { key, secret: Secret::new(secret.expose()) })
}
