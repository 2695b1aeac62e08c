//! Names of secrets, and of the variables that hold their placeholders.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::name::name;

/// Maximum length of a secret's name, in bytes.
const NAME_LEN_MAX: usize = 63;
/// Maximum length of a variable's name, in bytes.
const VARIABLE_LEN_MAX: usize = 128;

name!(
    /// Not a secret itself: it appears in specs, records and messages.
    SecretName,
    is_name,
    unshown "the name of a secret: 1 to 63 lower-case letters, digits, '-' and '_', beginning with a letter"
);
name!(
    /// An environment variable that every shell and program can read.
    VariableName,
    is_variable,
    unshown "the name of a variable: letters, digits and '_', not beginning with a digit"
);

macro_rules! from_text {
    ($($name:ident),+) => {$(
        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                Self::parse(text).ok_or_else(|| Self::complaint(text))
            }
        }
    )+};
}
from_text!(SecretName, VariableName);

fn is_name(text: &str) -> bool {
    (1..=NAME_LEN_MAX).contains(&text.len())
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_'))
}

fn is_variable(text: &str) -> bool {
    (1..=VARIABLE_LEN_MAX).contains(&text.len())
        && !text.starts_with(|first: char| first.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_form() {
        for good in ["a", "openai", "github-bot_2", &"x".repeat(63)] {
            assert!(SecretName::parse(good).is_some(), "{good}");
        }
        for wrong in ["", "OpenAI", "2fa", "-a", "_a", "a.b", "a b", "a/b", "a\n", "é", &"x".repeat(64)] {
            assert!(SecretName::parse(wrong).is_none(), "{wrong:?}");
        }
        for good in ["OPENAI_API_KEY", "_x", "k9"] {
            assert!(VariableName::parse(good).is_some(), "{good}");
        }
        for wrong in ["", "9K", "A-B", "A=B", "A B", "A\0", &"x".repeat(129)] {
            assert!(VariableName::parse(wrong).is_none(), "{wrong:?}");
        }
    }
}
