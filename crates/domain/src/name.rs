//! Validated names of projects, templates and boots.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

/// Maximum length of a project name, in characters.
const PROJECT_NAME_LEN_MAX: usize = 64;
/// Maximum length of a template name, in bytes.
const TEMPLATE_NAME_LEN_MAX: usize = 64;
/// Maximum length of a template's tag, in bytes.
const TAG_LEN_MAX: usize = 64;
/// The tag of a name that is written without one.
const DEFAULT_TAG: &str = "latest";

macro_rules! name {
    // A text that is none is shown, unless it may be a secret that was put in the wrong place.
    ($(#[$doc:meta])* $name:ident, $check:expr, $form:literal) => {
        $crate::name::name!($(#[$doc])* $name, $check, |text: &str| format!(concat!("{:?} is not ", $form), text));
    };
    ($(#[$doc:meta])* $name:ident, $check:expr, unshown $form:literal) => {
        $crate::name::name!($(#[$doc])* $name, $check, |_: &str| concat!("this is not ", $form).to_owned());
    };
    ($(#[$doc:meta])* $name:ident, $check:expr, $complaint:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// `None` if the text is not a valid name.
            pub fn parse(text: &str) -> Option<Self> {
                let check: fn(&str) -> bool = $check;
                check(text).then(|| Self(text.to_owned()))
            }

            /// Why a text is not a valid name.
            pub(crate) fn complaint(text: &str) -> String {
                let complain: fn(&str) -> String = $complaint;
                complain(text)
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).ok_or_else(|| de::Error::custom(Self::complaint(&text)))
            }
        }
    };
}

pub(crate) use name;

name!(
    /// A project's display name: any text on one line, without surrounding spaces.
    ProjectName, is_line, "a name of 1 to 64 characters on one line"
);
name!(
    /// A directory of the host that the operator of a server lets sandboxes use.
    WorkspaceName, is_slug, "a workspace's name of 1 to 64 lower-case letters, digits, '.', '_' and '-'"
);
name!(
    /// A boot of the host, by the kernel's `boot_id`. No sandbox outlives its boot.
    BootId, is_uuid, "a boot id"
);

/// A template's name, with a tag unless it is [`DEFAULT_TAG`]: `python` or `python:3.12`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct TemplateName(String);

impl TemplateName {
    /// `None` if the text is not a valid name. `name:latest` becomes `name`, so that each template has one spelling.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, tag) = text.split_once(':').unwrap_or((text, DEFAULT_TAG));
        let text = if tag == DEFAULT_TAG { name } else { text };
        (is_slug(name) && is_tag(tag)).then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Without the tag.
    pub fn name(&self) -> &str {
        self.0.split_once(':').map_or(self.as_str(), |(name, _)| name)
    }

    pub fn tag(&self) -> &str {
        self.0.split_once(':').map_or(DEFAULT_TAG, |(_, tag)| tag)
    }
}

impl fmt::Display for TemplateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for TemplateName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            de::Error::custom(format!(
                "{text:?} is not a name of 1 to 64 lower-case letters, digits, '.', '_' and '-', with or without a :tag"
            ))
        })
    }
}

/// The template that is built in.
impl Default for TemplateName {
    fn default() -> Self {
        Self("base".to_owned())
    }
}

fn is_line(text: &str) -> bool {
    let length = text.chars().count();
    (1..=PROJECT_NAME_LEN_MAX).contains(&length) && !text.chars().any(char::is_control) && text.trim() == text
}

fn is_slug(text: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-');
    (1..=TEMPLATE_NAME_LEN_MAX).contains(&text.len())
        && text.bytes().all(is_inner)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
}

/// As registries write tags.
fn is_tag(text: &str) -> bool {
    (1..=TAG_LEN_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        && !text.starts_with(['.', '-'])
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_in_their_form_alone() {
        for good in ["default", "Zoë's project", "x"] {
            assert!(ProjectName::parse(good).is_some(), "{good}");
        }
        for wrong in ["", " a", "a\n", "a\u{7}b", &"x".repeat(65)] {
            assert!(ProjectName::parse(wrong).is_none(), "{wrong:?}");
        }
        for good in ["base", "python-3.12", "a_b", "a:3.12-Slim", "a:_x", &"x".repeat(64)] {
            assert!(TemplateName::parse(good).is_some(), "{good}");
        }
        let long = format!("a:{}", "x".repeat(65));
        for wrong in
            ["", ".", "../x", "Base", "a/b", "-a", "a:", ":a", "a:.", "a:..", "a:b:c", "a:b/c", &long, &"x".repeat(65)]
        {
            assert!(TemplateName::parse(wrong).is_none(), "{wrong:?}");
        }
        let parts = |text| {
            TemplateName::parse(text).map(|name| [name.as_str().to_owned(), name.name().into(), name.tag().into()])
        };
        assert_eq!(parts("a:latest"), Some(["a", "a", "latest"].map(str::to_owned)));
        assert_eq!(parts("a:1"), Some(["a:1", "a", "1"].map(str::to_owned)));
        assert!(BootId::parse("0b0e8c1e-8b7e-4a3c-9f59-1f2a3b4c5d6e").is_some());
        assert!(BootId::parse("0b0e8c1e-8b7e-4a3c-9f59-1f2a3b4c5d6\n").is_none());
    }
}
