//! What is to be built, and with which limits.

use std::collections::BTreeMap;
use std::path::PathBuf;

use saggar_domain::{Code, Draft, Problem, TemplateName, Timestamp};
use saggar_image::Limits;
use serde::{Deserialize, Serialize};

use crate::recipe::Recipe;

const SCHEMA: &str = "saggar.build-request/v1";
/// The helper mode of the program: reads a [`Request`] from stdin and writes events to stdout, one per line.
pub const BUILD: &str = "__build";

/// A build for the process that a server starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    schema: String,
    pub data_dir: PathBuf,
    /// Whose templates and cache are used.
    pub project: String,
    pub order: Order,
}

impl Request {
    pub fn new(data_dir: PathBuf, project: String, order: Order) -> Self {
        Self { schema: SCHEMA.to_owned(), data_dir, project, order }
    }

    pub fn parse(text: &str) -> Result<Self, Problem> {
        let wrong = |what: String| {
            Problem::new(
                Code::InvalidValue,
                format!("the request to build can't be read: {what}"),
                "use the same version of saggar everywhere",
            )
        };
        let request: Self = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if request.schema == SCHEMA { Ok(request) } else { Err(wrong(format!("it is of schema {:?}", request.schema))) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub name: TemplateName,
    pub recipe: Recipe,
    /// The directory that COPY reads from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<PathBuf>,
    /// Further directories, by the names that COPY uses.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub contexts: BTreeMap<String, PathBuf>,
    /// Templates that the operator lets every project use: a stage may start from one if the project has none of that name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<TemplateName>,
    /// Limits, network and storage of each step's sandbox. Everything else follows from the recipe.
    #[serde(default)]
    pub sandbox: Draft,
    /// Bytes that the steps may write; as for an import, if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries_max: Option<u64>,
    #[serde(default)]
    pub no_cache: bool,
    /// Recorded with the name.
    pub now: Timestamp,
}

impl Order {
    pub(crate) fn limits(&self) -> Limits {
        let Limits { bytes_max, entries_max } = Limits::default();
        Limits { bytes_max: self.bytes_max.unwrap_or(bytes_max), entries_max: self.entries_max.unwrap_or(entries_max) }
    }

    /// Refuses what a step's sandbox can't have: files of the host would end in the template or be changed by it.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        self.recipe.check()?;
        if ["base", "host"].contains(&self.name.name()) {
            return Err(Problem::new(
                Code::InvalidValue,
                format!("the name {:?} is taken by a template that is built in", self.name.as_str()),
                "choose another with --name",
            ));
        }
        // Exhaustive, so that a new field of a spec forces a decision here.
        let Draft {
            schema: _,
            tier: _,
            template,
            workspace,
            workspace_user,
            fs,
            protect,
            mounts,
            volumes,
            env,
            cwd,
            user,
            network: _,
            egress: _,
            secrets,
            models,
            storage: _,
            limits: _,
            strict: _,
        } = &self.sandbox;
        let given = [
            ("template", template.is_some()),
            ("workspace", workspace.is_some()),
            ("workspace_user", workspace_user.is_some()),
            ("fs", fs.is_some()),
            ("protect", !protect.is_empty()),
            ("mounts", !mounts.is_empty()),
            ("volumes", !volumes.is_empty()),
            ("env", !env.is_empty()),
            ("cwd", cwd.is_some()),
            ("user", user.is_some()),
            ("secrets", !secrets.is_empty()),
            ("models", !models.is_none()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((field, _)) => Err(Problem::new(
                Code::Contradiction,
                format!("a build's sandboxes can't be given {field:?}"),
                "leave it out; the steps of the recipe say the user, the directory, variables and files",
            )),
        }
    }
}
