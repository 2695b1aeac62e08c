//! Names of routes: what a client or an agent asks for as its model.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::name::name;

/// Maximum length of a route's name, in bytes.
const NAME_LEN_MAX: usize = 128;

name!(
    /// Often the name of a provider's model, such as `gpt-5` or `meta-llama/Llama-3.3-70B`.
    RouteName,
    is_route,
    "the name of a route: 1 to 128 letters, digits and . _ : / @ + -, beginning with a letter or a digit"
);

impl FromStr for RouteName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text).ok_or_else(|| Self::complaint(text))
    }
}

fn is_route(text: &str) -> bool {
    (1..=NAME_LEN_MAX).contains(&text.len())
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:/@+-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_are_names_of_routes() {
        for good in ["gpt-5", "claude-sonnet-5", "meta-llama/Llama-3.3-70B", "qwen3:8b", "a@2026-01-01", "7b"] {
            assert!(RouteName::parse(good).is_some(), "{good}");
        }
        for wrong in ["", "-a", " a", "a b", "a\n", "ü", "../a", "a?b", &"x".repeat(129)] {
            assert!(RouteName::parse(wrong).is_none(), "{wrong:?}");
        }
    }
}
