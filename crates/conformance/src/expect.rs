//! Outcomes and expected outcomes.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize, de};

/// The outcome of one member of a case, as the attacker reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttemptOutcome {
    /// It failed with an error.
    Refused,
    Allowed,
    /// The target doesn't exist.
    Absent,
    /// A property was checked and holds.
    Held,
    /// A property was checked and doesn't hold.
    Broken,
    /// The process that tried it was killed.
    Killed,
}

impl AttemptOutcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Allowed => "allowed",
            Self::Absent => "absent",
            Self::Held => "held",
            Self::Broken => "broken",
            Self::Killed => "killed",
        }
    }

    /// Whether it shows that something is not stopped.
    pub(crate) fn is_gap(self) -> bool {
        matches!(self, Self::Allowed | Self::Broken)
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Refused, Self::Allowed, Self::Absent, Self::Held, Self::Broken, Self::Killed]
            .into_iter()
            .find(|outcome| outcome.as_str() == text)
    }
}

/// The observed outcome of one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    pub member: String,
    pub outcome: AttemptOutcome,
    /// The name of an error, or a few words.
    #[serde(default)]
    pub detail: String,
    #[serde(skip, default)]
    pub(crate) witness: Witness,
}

/// The source of an observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Witness {
    /// The attacker, inside.
    #[default]
    Attacker,
    /// A check on the host, which always expects `held`.
    Host,
}

impl Observation {
    /// An observation of a check on the host.
    pub(crate) fn examined(member: impl Into<String>, is_kept: bool, detail: impl Into<String>) -> Self {
        let outcome = if is_kept { AttemptOutcome::Held } else { AttemptOutcome::Broken };
        Self { member: member.into(), outcome, detail: detail.into(), witness: Witness::Host }
    }
}

impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.outcome.as_str())?;
        if self.detail.is_empty() { Ok(()) } else { write!(f, " {}", self.detail) }
    }
}

/// Accepted outcomes: `"refused"`, `"refused EPERM"`, or a list of such.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Accepted(Vec<(AttemptOutcome, Option<String>)>);

impl Accepted {
    /// The expectation of every check on the host.
    pub(crate) fn held() -> Self {
        Self(vec![(AttemptOutcome::Held, None)])
    }

    /// Whether this outcome is accepted, with any detail.
    pub(crate) fn accepts_kind(&self, outcome: AttemptOutcome) -> bool {
        self.0.iter().any(|(accepted, _)| *accepted == outcome)
    }

    pub(crate) fn accepts(&self, observation: &Observation) -> bool {
        self.0.iter().any(|(outcome, detail)| {
            *outcome == observation.outcome && detail.as_ref().is_none_or(|detail| *detail == observation.detail)
        })
    }
}

impl fmt::Display for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (outcome, detail)) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(" or ")?;
            }
            f.write_str(outcome.as_str())?;
            if let Some(detail) = detail {
                write!(f, " {detail}")?;
            }
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Accepted {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Text {
            One(String),
            Any(Vec<String>),
        }
        let texts = match Text::deserialize(deserializer)? {
            Text::One(text) => vec![text],
            Text::Any(texts) => texts,
        };
        let parse = |text: &String| {
            let (outcome, detail) = text
                .split_once(' ')
                .map_or((text.as_str(), None), |(outcome, detail)| (outcome, Some(detail.to_owned())));
            let outcome = AttemptOutcome::parse(outcome).ok_or_else(|| {
                de::Error::custom(format!(
                    "{text:?} doesn't begin with an outcome: refused, allowed, absent, held, broken or killed"
                ))
            })?;
            Ok((outcome, detail))
        };
        if texts.is_empty() {
            return Err(de::Error::custom("an expectation without an outcome"));
        }
        texts.iter().map(parse).collect::<Result<_, _>>().map(Self)
    }
}

/// How the attacker must end: having reported everything, or ended by the runtime as the case requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum End {
    /// By itself, after its last line.
    Done,
    /// At its deadline.
    TimedOut,
    /// Killed by the kernel when its memory ran out.
    OutOfMemory,
}

/// The circumstances of an attempt on which expectations depend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// Whether root runs the probe.
    pub(crate) is_root: bool,
    /// Whether the sandbox starts from an image.
    pub(crate) is_image: bool,
}

impl Setting {
    /// That of other runtimes.
    pub(crate) const USUAL: Self = Self { is_root: true, is_image: false };
}

/// What a tier must do with a case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expectation {
    /// For every member that isn't named.
    pub(crate) default: Accepted,
    #[serde(default)]
    pub(crate) members: BTreeMap<String, Accepted>,
    /// For these members when an ordinary user runs the probe; docs/platforms.md lists each difference.
    #[serde(default)]
    pub(crate) as_ordinary_user: BTreeMap<String, Accepted>,
    /// For these members when the sandbox starts from an image: its root can be written, and has the image's own files.
    #[serde(default)]
    pub(crate) on_image: BTreeMap<String, Accepted>,
    /// For these members in both cases at once: all files of an image belong to the one id that programs have.
    #[serde(default)]
    pub(crate) as_ordinary_user_on_image: BTreeMap<String, Accepted>,
    /// Rules that a denial must name.
    #[serde(default)]
    pub(crate) denials: Vec<String>,
    #[serde(default = "by_itself")]
    pub(crate) end: Vec<End>,
}

fn by_itself() -> Vec<End> {
    vec![End::Done]
}

impl Expectation {
    /// The expectation for one member. A member that was tried as root of the sandbox uses its own entry or that of the
    /// same member as user.
    pub(crate) fn of(&self, observation: &Observation, setting: Setting) -> Accepted {
        let plain = observation.member.strip_prefix(ROOT_PREFIX).unwrap_or(&observation.member);
        let names = [observation.member.as_str(), plain];
        let of_image = names.iter().find_map(|name| self.on_image.get(*name)).filter(|_| setting.is_image);
        let ordinary = names.iter().find_map(|name| self.as_ordinary_user.get(*name)).filter(|_| !setting.is_root);
        let is_both = setting.is_image && !setting.is_root;
        let both = names.iter().find_map(|name| self.as_ordinary_user_on_image.get(*name)).filter(|_| is_both);
        let named = both.or(of_image).or(ordinary).or_else(|| names.iter().find_map(|name| self.members.get(*name)));
        match (named, observation.witness) {
            (Some(accepted), _) => accepted.clone(),
            (None, Witness::Attacker) => self.default.clone(),
            (None, Witness::Host) => Accepted::held(),
        }
    }
}

/// Prefix of members that were tried as root of the sandbox.
pub(crate) const ROOT_PREFIX: &str = "root: ";
