//! Which models the programs of a sandbox may call, under the name `model.internal`.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::route::RouteName;
use crate::mode::NetworkMode;
use crate::net::MODEL_HOST;
use crate::problem::{Code, Problem};

/// Maximum number of routes that one sandbox names.
const ROUTES_MAX: usize = 64;

/// Written as `false`, `true`, or a list of routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ModelAccess {
    #[default]
    None,
    /// Every route that there is, also one that is added later.
    All,
    /// Never empty.
    Routes(BTreeSet<RouteName>),
}

impl ModelAccess {
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }

    pub fn allows(&self, route: &RouteName) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Routes(routes) => routes.contains(route),
        }
    }

    /// The routes that are named.
    pub fn routes(&self) -> impl Iterator<Item = &RouteName> {
        let routes = match self {
            Self::None | Self::All => None,
            Self::Routes(routes) => Some(routes.iter()),
        };
        routes.into_iter().flatten()
    }

    /// What both allow.
    #[must_use]
    pub fn within(self, other: &Self) -> Self {
        match (self, other) {
            (Self::None, _) | (_, Self::None) => Self::None,
            (all, Self::All) => all,
            (Self::All, some) => some.clone(),
            (Self::Routes(routes), Self::Routes(others)) => routes.intersection(others).cloned().collect(),
        }
    }

    pub(crate) fn merge(self, other: Self) -> Result<Self, Problem> {
        match (self, other) {
            (Self::None, one) | (one, Self::None) => Ok(one),
            (Self::All, Self::All) => Ok(Self::All),
            (Self::Routes(one), Self::Routes(other)) => Ok(Self::Routes(one.into_iter().chain(other).collect())),
            (Self::All, Self::Routes(_)) | (Self::Routes(_), Self::All) => Err(Problem::new(
                Code::AmbiguousMerge,
                "models are given both in the spec file and on the command line, differently",
                "give them in one place: neither overrides the other",
            )),
        }
    }

    pub(crate) fn check(&self, network: Option<NetworkMode>) -> Result<(), Problem> {
        if self.routes().count() > ROUTES_MAX {
            return Err(Problem::new(
                Code::InvalidValue,
                format!("a sandbox names at most {ROUTES_MAX} models"),
                "allow all of them with `models = true`",
            ));
        }
        match network {
            Some(NetworkMode::Proxied) => Ok(()),
            None | Some(NetworkMode::None | NetworkMode::Host) if self.is_none() => Ok(()),
            None | Some(NetworkMode::None | NetworkMode::Host) => Err(Problem::new(
                Code::Contradiction,
                format!(
                    "the sandbox may call models, and its network mode is {}",
                    network.unwrap_or(NetworkMode::None)
                ),
                format!(
                    "programs reach models as {MODEL_HOST} through a managed network: choose the mode `proxied`, or leave `models` out"
                ),
            )),
        }
    }
}

/// None, if there is no route.
impl FromIterator<RouteName> for ModelAccess {
    fn from_iter<I: IntoIterator<Item = RouteName>>(routes: I) -> Self {
        let routes: BTreeSet<RouteName> = routes.into_iter().collect();
        if routes.is_empty() { Self::None } else { Self::Routes(routes) }
    }
}

impl Serialize for ModelAccess {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_bool(false),
            Self::All => serializer.serialize_bool(true),
            Self::Routes(routes) => serializer.collect_seq(routes),
        }
    }
}

impl<'de> Deserialize<'de> for ModelAccess {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Access;
        impl<'de> Visitor<'de> for Access {
            type Value = ModelAccess;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false, or a list of models")
            }

            fn visit_bool<E: de::Error>(self, all: bool) -> Result<ModelAccess, E> {
                Ok(if all { ModelAccess::All } else { ModelAccess::None })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ModelAccess, A::Error> {
                let mut routes = BTreeSet::new();
                while let Some(route) = list.next_element()? {
                    routes.insert(route);
                }
                Ok(routes.into_iter().collect())
            }
        }
        deserializer.deserialize_any(Access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(json: &str) -> ModelAccess {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn it_is_a_switch_or_a_list() {
        for (json, allows, written) in [
            ("false", [false, false], "false"),
            ("[]", [false, false], "false"),
            ("true", [true, true], "true"),
            (r#"["b", "a", "b"]"#, [true, false], r#"["a","b"]"#),
        ] {
            assert_eq!(
                ["a", "c"].map(|route| access(json).allows(&RouteName::parse(route).unwrap())),
                allows,
                "{json}"
            );
            assert_eq!(serde_json::to_string(&access(json)).unwrap(), written);
        }
        for wrong in [r#""all""#, "1", "{}", "null", r#"["a b"]"#, r#"[["a"]]"#] {
            assert!(serde_json::from_str::<ModelAccess>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_one_gets_more_than_both_allow() {
        for (one, other, both) in [
            ("true", "true", "true"),
            ("true", r#"["a"]"#, r#"["a"]"#),
            (r#"["a"]"#, "true", r#"["a"]"#),
            (r#"["a", "b"]"#, r#"["b", "c"]"#, r#"["b"]"#),
            (r#"["a"]"#, r#"["b"]"#, "false"),
            ("true", "false", "false"),
            ("false", "true", "false"),
        ] {
            assert_eq!(access(one).within(&access(other)), access(both), "{one} {other}");
        }
    }
}
