//! What a spec takes from the image that its sandbox starts from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::TemplateId;
use crate::path::GuestPath;

/// The values that apply where a spec says nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenByTemplate {
    pub id: TemplateId,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<GuestPath>,
    /// The user that programs run as; `None` if the image has no say in that.
    pub account: Option<Account>,
}

/// A user of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Its number, if it has no name.
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub home: String,
}
