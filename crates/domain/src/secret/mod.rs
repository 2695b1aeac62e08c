//! Secrets: values that programs in a sandbox use and never see.
//!
//! A secret has a name, a value and a [`Binding`]: the requests it is for, and the [`Slot`] of a request that it goes into. A spec
//! names the secrets of a sandbox ([`SecretUse`]). Programs get a placeholder, and the egress process gets a [`Grant`] and
//! puts the value into matching requests. A binding allows nothing by itself: the network rules still decide.
//!
//! Pure, like the rest of this crate: where values are kept, and where randomness comes from, is others' business.

mod binding;
mod grant;
mod name;
mod slot;
mod used;
mod value;

pub use binding::Binding;
pub use grant::Grant;
pub use name::{SecretName, VariableName};
pub use slot::Slot;
pub use used::{SecretUse, USES_MAX};
pub(crate) use used::{as_policy, check_uses, check_variables};
pub use value::{SecretValue, SecretValueError};
