//! Verifies that every stored secret can be opened.

use saggar_store::SealedSecret;

use super::key_file::{KeyFault, KeyFile};
use super::seal::SealingKey;
use super::vault::{find, open_with};

/// Opens secrets one by one, with the keys as they were when it was made.
pub(crate) struct Opener(Result<Vec<SealingKey>, KeyFault>);

impl Opener {
    pub(crate) fn new(file: &KeyFile) -> Self {
        Self(file.keys())
    }

    /// What is wrong with a secret.
    pub(crate) fn judge(&mut self, secret: &SealedSecret) -> Option<String> {
        let keys = match &self.0 {
            Ok(keys) => keys,
            Err(fault) => return Some(format!("can't be opened: {fault}; it is sealed with key {}", secret.row.key)),
        };
        match find(keys, &secret.row.key) {
            Ok(key) => open_with(key, secret).err().map(|fault| fault.to_string()),
            Err(fault) => Some(format!("can't be opened: {fault}")),
        }
    }
}
