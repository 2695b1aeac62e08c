//! Named sets of rules: the hosts that well-known clients contact, as data files in `sets/`.
//!
//! A file has one rule per line. Lines that begin with `#` are comments; the first one says what the set is for. Sets are embedded, so
//! a version of Saggar always means the same by a name.

use std::fmt;
use std::sync::LazyLock;

use crate::net::rule::{Kind, Match, Rule};
use crate::problem::{Code, Problem};

/// Maximum length of a set's name, in bytes.
const NAME_LEN_MAX: usize = 32;

/// The name of a set, without the `@`. The set need not exist: a spec of another version may name one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetName(String);

impl SetName {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if text.is_empty() || text.len() > NAME_LEN_MAX || !text.bytes().all(is_name) {
            return Err("a set is written as @name, alone; `saggar net sets` lists them".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug)]
pub struct Set {
    name: &'static str,
    text: &'static str,
    rules: Vec<Match>,
}

impl Set {
    /// In alphabetical order.
    pub fn all() -> &'static [Self] {
        &SETS
    }

    /// Finds a set by its name, with or without the `@`.
    pub fn find(name: &str) -> Result<&'static Self, Problem> {
        let name = name.strip_prefix('@').unwrap_or(name);
        SETS.iter().find(|set| set.name == name).ok_or_else(|| {
            let names: Vec<String> = SETS.iter().map(|set| format!("@{}", set.name)).collect();
            Problem::new(
                Code::InvalidValue,
                format!("there is no set {:?}", format!("@{}", name.chars().take(NAME_LEN_MAX).collect::<String>())),
                format!("use one of {}, or write the hosts themselves", names.join(", ")),
            )
        })
    }

    /// Without the `@`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// One line that says what it is for.
    pub fn description(&self) -> &'static str {
        self.text.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default()
    }

    /// The data file, comments included.
    pub fn text(&self) -> &'static str {
        self.text
    }

    pub fn rules(&self) -> impl Iterator<Item = Rule> {
        self.rules.iter().map(|rule| Rule(Kind::Match(rule.clone())))
    }

    pub(super) fn matches(&self) -> &[Match] {
        &self.rules
    }
}

fn parse(name: &'static str, text: &'static str) -> Set {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let rule = |line: &str| match line.parse::<Rule>() {
        Ok(Rule(Kind::Match(rule))) => rule,
        other => panic!("line {line:?} of set {name} is no rule, which a test would have found: {other:?}"),
    };
    Set { name, text, rules: lines.map(rule).collect() }
}

macro_rules! sets {
    ($($name:literal),+ $(,)?) => {
        LazyLock::new(|| vec![$(parse($name, include_str!(concat!("../../sets/", $name, ".txt")))),+])
    };
}

static SETS: LazyLock<Vec<Set>> = sets![
    "alpine",
    "anthropic",
    "conda",
    "crates",
    "debian",
    "docker",
    "github",
    "github-read",
    "gitlab",
    "go",
    "google-ai",
    "huggingface",
    "maven",
    "mistral",
    "npm",
    "openai",
    "openrouter",
    "pypi",
    "rubygems",
    "rustup",
    "ubuntu",
];
