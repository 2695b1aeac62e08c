//! The recipe of a template: stages of steps, with everything expanded. One form for Dockerfiles, files and clients.

use std::collections::BTreeMap;
use std::fmt;

use saggar_domain::template::{ContentDigest, ExposedPort};
use saggar_domain::{Code, Problem, canonical_json};
use serde::{Deserialize, Serialize};

const SCHEMA: &str = "saggar.build/v1";
/// Maximum number of stages.
pub(crate) const STAGES_MAX: usize = 64;
/// Maximum number of steps of all stages.
pub(crate) const STEPS_MAX: usize = 1000;
/// Maximum length of a step as it is shown.
const SHOWN_MAX: usize = 200;

/// The last stage is the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    schema: String,
    pub stages: Vec<Stage>,
    /// A line for a shell: what a server starts in each new sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// A line for a shell: succeeds once what was started is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub from: Base,
    #[serde(default)]
    pub steps: Vec<Step>,
}

/// What a stage starts from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Base {
    /// Nothing.
    Scratch,
    /// A template of the same project: `NAME[:TAG]`.
    Template(String),
    /// An earlier stage, counted from 0.
    Stage(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// In the Dockerfile, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The cache is not used from here on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    #[serde(flatten)]
    pub action: Action,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    Copy {
        /// An earlier stage by its name or number, a further context, or a template. `None`: the context.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
        sources: Vec<String>,
        to: String,
        /// `USER[:GROUP]` of the image, by names or numbers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        chown: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        chmod: Option<u32>,
    },
    Run {
        command: Command,
        /// Instead of the user of earlier steps.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<String>,
        /// Added to the environment of this step alone.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        args: BTreeMap<String, String>,
    },
    Env {
        set: BTreeMap<String, String>,
    },
    Workdir {
        path: String,
    },
    User {
        user: String,
    },
    Entrypoint {
        command: Command,
    },
    Cmd {
        command: Command,
    },
    Expose {
        ports: Vec<ExposedPort>,
    },
    Label {
        set: BTreeMap<String, String>,
    },
    /// Runs the commands that are lines for a shell.
    Shell {
        words: Vec<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Command {
    /// A line for a shell.
    Shell(String),
    /// A program and its arguments.
    Exec(Vec<String>),
}

impl Recipe {
    pub fn new(stages: Vec<Stage>) -> Self {
        Self { schema: SCHEMA.to_owned(), stages, start: None, ready: None }
    }

    /// Reads a recipe that somebody wrote as TOML.
    pub fn from_toml(text: &str) -> Result<Self, Problem> {
        toml::from_str(text).map_err(|error| wrong(error.to_string().trim_end().to_owned()))
    }

    /// Checks the bounds, and that stages only use earlier ones.
    pub fn check(&self) -> Result<(), Problem> {
        if self.schema != SCHEMA {
            return Err(wrong(format!("it is of schema {:?}, and this version reads {SCHEMA:?}", self.schema)));
        }
        let steps: usize = self.stages.iter().map(|stage| stage.steps.len()).sum();
        if self.stages.is_empty() || self.stages.len() > STAGES_MAX || steps > STEPS_MAX {
            return Err(wrong(format!(
                "it has {} stages and {steps} steps; it must have 1 to {STAGES_MAX} stages and at most {STEPS_MAX} steps",
                self.stages.len()
            )));
        }
        for (index, stage) in self.stages.iter().enumerate() {
            if let Base::Stage(base) = stage.from
                && base >= index
            {
                return Err(wrong(format!("stage {index} starts from stage {base}, which is not an earlier one")));
            }
        }
        Ok(())
    }

    /// The stage that a COPY of another stage names.
    pub(crate) fn stage_of(&self, from: &str, before: usize) -> Option<usize> {
        let is_it = |(index, stage): &(usize, &Stage)| {
            stage.name.as_deref().is_some_and(|name| name.eq_ignore_ascii_case(from)) || index.to_string() == from
        };
        self.stages.iter().enumerate().take(before).filter(is_it).map(|(index, _)| index).next_back()
    }

    /// The stages that the last one needs, in order.
    pub(crate) fn needed(&self) -> Vec<usize> {
        let mut is_needed = vec![false; self.stages.len()];
        if let Some(last) = is_needed.last_mut() {
            *last = true;
        }
        for index in (0..self.stages.len()).rev().filter(|index| *index < self.stages.len()) {
            if !is_needed[index] {
                continue;
            }
            let stage = &self.stages[index];
            if let Base::Stage(base) = stage.from {
                is_needed[base] = true;
            }
            for step in &stage.steps {
                if let Action::Copy { from: Some(from), .. } = &step.action
                    && let Some(other) = self.stage_of(from, index)
                {
                    is_needed[other] = true;
                }
            }
        }
        (0..self.stages.len()).filter(|index| is_needed[*index]).collect()
    }

    /// Of what it says, wherever it stands in a file.
    pub(crate) fn digest(&self) -> ContentDigest {
        let mut plain = self.clone();
        for step in plain.stages.iter_mut().flat_map(|stage| &mut stage.steps) {
            (step.line, step.force) = (None, false);
        }
        ContentDigest::of(canonical_json(&plain).as_bytes())
    }
}

fn wrong(what: String) -> Problem {
    Problem::new(Code::InvalidValue, format!("the recipe can't be used: {what}"), "see docs/templates.md for its form")
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shell(line) => f.write_str(line),
            Self::Exec(words) => f.write_str(&serde_json::to_string(words).unwrap_or_default()),
        }
    }
}

/// As a line of a Dockerfile, shortened, without the values of variables: they may be secrets.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |set: &BTreeMap<String, String>| set.keys().cloned().collect::<Vec<_>>().join(" ");
        let text = match self {
            Self::Copy { from, sources, to, .. } => {
                let from = from.as_ref().map_or_else(String::new, |from| format!("--from={from} "));
                format!("COPY {from}{} {to}", sources.join(" "))
            }
            Self::Run { command, .. } => format!("RUN {command}"),
            Self::Env { set } => format!("ENV {}", names(set)),
            Self::Workdir { path } => format!("WORKDIR {path}"),
            Self::User { user } => format!("USER {user}"),
            Self::Entrypoint { command } => format!("ENTRYPOINT {command}"),
            Self::Cmd { command } => format!("CMD {command}"),
            Self::Expose { ports } => {
                format!("EXPOSE {}", ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
            }
            Self::Label { set } => format!("LABEL {}", names(set)),
            Self::Shell { words } => format!("SHELL {}", Command::Exec(words.clone())),
        };
        let line = text.replace('\n', " ");
        match line.char_indices().nth(SHOWN_MAX) {
            None => f.write_str(&line),
            Some((end, _)) => write!(f, "{}…", &line[..end]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_has_one_form() {
        let text = r#"
            schema = "saggar.build/v1"
            [[stages]]
            from = "scratch"
            name = "first"
            steps = [{ do = "copy", sources = ["a"], to = "/", chmod = 493 }]
            [[stages]]
            from = { template = "debian:12" }
            steps = [
                { do = "run", command = "make" },
                { do = "run", command = ["make", "install"], user = "app", force = true },
                { do = "expose", ports = ["80/tcp"] },
            ]
        "#;
        let recipe = Recipe::from_toml(text).unwrap();
        recipe.check().unwrap();
        let json = serde_json::to_string(&recipe).unwrap();
        assert_eq!(serde_json::from_str::<Recipe>(&json).unwrap(), recipe);
        assert_eq!(recipe.stages[1].steps[1].action.to_string(), r#"RUN ["make","install"]"#);
        assert_eq!(recipe.needed(), [1]);
        for (from, to) in
            [("build/v1", "build/v2"), ("do = \"run\"", "do = \"walk\""), ("chmod", "mode"), ("schema", "scheme")]
        {
            let wrong = Recipe::from_toml(&text.replacen(from, to, 1)).and_then(|recipe| recipe.check());
            assert!(wrong.is_err(), "{to}");
        }
    }

    #[test]
    fn only_earlier_stages_can_be_used() {
        let stage = |from| Stage { name: None, from, steps: Vec::new() };
        for (stages, is_right) in [
            (vec![stage(Base::Scratch), stage(Base::Stage(0))], true),
            (vec![stage(Base::Stage(0))], false),
            (vec![stage(Base::Stage(1)), stage(Base::Scratch)], false),
            (vec![], false),
        ] {
            assert_eq!(Recipe::new(stages.clone()).check().is_ok(), is_right, "{stages:?}");
        }
    }

    #[test]
    fn values_of_variables_are_not_shown() {
        let set = BTreeMap::from([("TOKEN".to_owned(), "secret".to_owned())]);
        assert_eq!(Action::Env { set }.to_string(), "ENV TOKEN");
    }
}
