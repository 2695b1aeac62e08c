//! x
use saggar_domain::Capabilities;
use crate::DataDirectory;
/// x
pub fn examine(_data: &DataDirectory) -> Option<Capabilities> { None }
