//! API keys.

use hyper::Method;
use saggar_domain::KeyId;

use super::error::Error;
use super::send::Client;
use crate::key::{CreateKey, CreatedKey, KeyList};
use crate::route;

impl Client {
    /// Creates a key in our project. Only this response has its secret.
    pub async fn create_key(&self, key: &CreateKey) -> Result<CreatedKey, Error> {
        self.post(route::KEYS).json(key).value().await
    }

    /// All keys of our project.
    pub async fn list_keys(&self) -> Result<KeyList, Error> {
        self.get(route::KEYS).value().await
    }

    /// Revokes a key, effective immediately.
    pub async fn revoke_key(&self, key: &KeyId) -> Result<(), Error> {
        self.request(Method::DELETE, &route::KEY.replace("{key}", key.as_str())).done().await
    }
}
