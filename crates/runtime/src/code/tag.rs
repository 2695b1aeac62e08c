//! The tag of a context's exec, by which the context is found again: `saggar-code/1 CONTEXT LANGUAGE [default] [env]`.
//!
//! A client can start an exec with such a tag; it then has a context that fails.

use saggar_domain::{CodeLanguage, ContextId};

const FORMAT: &str = "saggar-code/1";
const DEFAULT: &str = "default";
const ENV: &str = "env";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) id: ContextId,
    pub(super) language: CodeLanguage,
    /// Whether it is the one that code of its language runs in if no context is named.
    pub(super) is_default: bool,
    /// Whether it has variables of its own. Only the process that made it knows them.
    pub(super) has_env: bool,
}

impl Tag {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        if words.next()? != FORMAT {
            return None;
        }
        let (id, language) = (ContextId::parse(words.next()?)?, CodeLanguage::parse(words.next()?)?);
        let rest: Vec<&str> = words.collect();
        Some(Self { id, language, is_default: rest.contains(&DEFAULT), has_env: rest.contains(&ENV) })
    }
}

impl std::fmt::Display for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{FORMAT} {} {}", self.id, self.language)?;
        for (is_so, word) in [(self.is_default, DEFAULT), (self.has_env, ENV)] {
            if is_so {
                write!(f, " {word}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_reads_back_and_others_are_not_contexts() {
        for (is_default, has_env) in [(false, false), (true, false), (false, true), (true, true)] {
            let id = ContextId::from_random([7; 16]);
            let tag = Tag { id, language: CodeLanguage::Bash, is_default, has_env };
            assert_eq!(Tag::parse(&tag.to_string()), Some(tag));
        }
        for other in ["", "saggar-code/1", "saggar-code/1 ctx_x python", "saggar-code/2 x", "mine"] {
            assert_eq!(Tag::parse(other), None);
        }
    }
}
