//! Secrets of a project.

use hyper::Method;
use saggar_domain::secret::SecretName;

use super::error::Error;
use super::send::Client;
use crate::project_secret::{ProjectSecret, RemoveSecret, SecretList, SetSecret};
use crate::{read, route};

impl Client {
    /// Stores a secret, or changes one. Live sandboxes that use it have the new version when this returns.
    pub async fn set_secret(&self, name: &SecretName, set: &SetSecret) -> Result<ProjectSecret, Error> {
        self.request(Method::PUT, &path(name)).json(set).value().await
    }

    /// All secrets of our project, without their values.
    pub async fn list_secrets(&self) -> Result<SecretList, Error> {
        self.get(route::SECRETS).value().await
    }

    /// One secret without its value, and the live sandboxes that use it.
    pub async fn secret(&self, name: &SecretName) -> Result<ProjectSecret, Error> {
        self.get(&path(name)).value().await
    }

    /// Removes a secret.
    pub async fn remove_secret(&self, name: &SecretName, how: &RemoveSecret) -> Result<(), Error> {
        let query = read::to_query(how);
        self.request(Method::DELETE, &format!("{}?{query}", path(name))).done().await
    }
}

fn path(name: &SecretName) -> String {
    route::SECRET.replace("{secret}", name.as_str())
}
