//! Templates of a project, and the jobs that make them.

use std::collections::BTreeMap;

use saggar_domain::secret::SecretName;
use saggar_domain::template::{LayerId, TemplateId};
use saggar_domain::{JobId, TemplateName};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::object::only_from_an_object;
use crate::schema;
use crate::secret::Secret;
use crate::time::Timestamp;

/// A name, and the template that it leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    /// The name, with a tag unless it is `latest`.
    #[schema(value_type = schema::TemplateName)]
    pub name: TemplateName,
    /// What it leads to: a hash of the layers and defaults.
    #[schema(value_type = schema::TemplateId)]
    pub id: TemplateId,
    /// When the name was last set.
    #[schema(value_type = schema::Instant)]
    pub set_at: Timestamp,
    /// Whether it is published by the operator. The project can't change it.
    pub public: bool,
    /// Size of all layers, uncompressed. Absent if the template is damaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub bytes: Option<u64>,
    /// What is in it. Only in the response to a request for one template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub contents: Option<TemplateContents>,
}

/// The layers and defaults of a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateContents {
    /// The first is the bottom.
    pub layers: Vec<TemplateLayer>,
    /// `linux/amd64`, or with a variant.
    pub platform: String,
    /// Variables of every program.
    pub env: BTreeMap<String, String>,
    /// Working directory of programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub cwd: Option<String>,
    /// User of programs: a name or number of the template's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub user: Option<String>,
    /// Begins the command of `saggar run`.
    pub entrypoint: Vec<String>,
    /// The command of `saggar run` if none is given.
    pub command: Vec<String>,
    /// Ports that its programs usually listen on.
    #[schema(example = json!(["80/tcp"]))]
    pub ports: Vec<String>,
    /// Labels of the image.
    pub labels: BTreeMap<String, String>,
}

/// A layer of a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateLayer {
    /// The digest of its content.
    #[schema(value_type = schema::TemplateId)]
    pub id: LayerId,
    /// Bytes of its files on disk.
    pub bytes: u64,
    /// Number of its files, directories and others.
    pub entries: u64,
}

/// All templates that a project can use, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateList {
    /// The templates.
    pub items: Vec<Template>,
}

/// Makes a name lead to a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct TagTemplate {
    /// A name that leads to the template.
    #[schema(value_type = schema::TemplateName)]
    pub from: TemplateName,
}

/// What the removal of a name did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedTemplate {
    /// The name that is gone.
    #[schema(value_type = schema::TemplateName)]
    pub name: TemplateName,
    /// What it led to. Absent if that couldn't be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TemplateId>, nullable = false)]
    pub id: Option<TemplateId>,
    /// What became of the template.
    pub template: TemplateRest,
}

/// What became of a template when a name of it was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TemplateRest {
    /// Other names lead to it.
    Named,
    /// A live sandbox uses it. It is removed after that.
    InUse,
    /// It is removed.
    Gone,
}

/// An image of a registry to import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct ImportTemplate {
    /// `docker://REGISTRY/REPOSITORY:TAG`, or `…@sha256:DIGEST`. The operator decides which registries.
    #[schema(max_length = 512, example = "docker://ghcr.io/acme/tools:1")]
    pub source: String,
    /// Name of the template. By default it follows from the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TemplateName>, nullable = false)]
    pub name: Option<TemplateName>,
    /// User of the registry. Used once, and neither stored nor logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256, nullable = false, write_only)]
    pub username: Option<String>,
    /// Password of that user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 65536, nullable = false, write_only)]
    pub password: Option<Secret>,
    /// Instead of the password: a secret of the project, which must be bound to the registry's host, and to the host of its token service if
    /// that is another. Its value goes nowhere else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SecretName>, nullable = false)]
    pub secret: Option<SecretName>,
}

/// What an uploaded archive becomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct UploadTemplate {
    /// Name of the template.
    #[param(value_type = schema::TemplateName)]
    pub name: TemplateName,
    /// Which image, if the archive has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(max_length = 512)]
    pub image: Option<String>,
}

/// What an archive with a Dockerfile becomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct BuildTemplate {
    /// Name of the template.
    #[param(value_type = schema::TemplateName)]
    pub name: TemplateName,
    /// Path of the Dockerfile in the archive, or of a recipe if it ends with `.toml`; `Dockerfile` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(max_length = 512)]
    pub file: Option<String>,
    /// The stage of the Dockerfile to end with; the last one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(max_length = 512)]
    pub target: Option<String>,
    /// Build arguments, `NAME=VALUE` each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arg: Vec<String>,
    /// Run every step, also those that were run before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_cache: bool,
}

/// A job that makes a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateJob {
    /// The job's id.
    #[schema(value_type = schema::JobId)]
    pub id: JobId,
    /// What it does.
    pub kind: TemplateJobKind,
    /// The template's name.
    #[schema(value_type = schema::TemplateName)]
    pub name: TemplateName,
    /// How far it is.
    pub state: TemplateJobState,
    /// Steps that are done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub steps_done: Option<u32>,
    /// Number of steps: layers of an image, or steps of a build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub steps: Option<u32>,
    /// When it began.
    #[schema(value_type = schema::Instant)]
    pub created_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Instant>, nullable = false)]
    pub ended_at: Option<Timestamp>,
    /// The template, if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TemplateId>, nullable = false)]
    pub template: Option<TemplateId>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub problem: Option<TemplateJobProblem>,
}

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateJobProblem {
    /// The kind of problem.
    #[schema(example = "invalid_image")]
    pub code: String,
    /// What happened, to which object.
    pub detail: String,
    /// What to do next.
    pub help: String,
    /// The step of a build that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub step: Option<String>,
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TemplateJobKind {
    /// Brings an image.
    Import,
    /// Makes an image from steps.
    Build,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TemplateJobState {
    /// It was asked for, and its parts are not all there.
    Waiting,
    /// It runs.
    Running,
    /// The template exists.
    Succeeded,
    /// Nothing was made.
    Failed,
    /// Nothing was made, because a client cancelled it.
    Cancelled,
}

/// The jobs of a project, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateJobList {
    /// The jobs.
    pub items: Vec<TemplateJob>,
}

/// Which lines of a job's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct TemplateLogQuery {
    /// The number of the first line, counted from 0.
    pub from: u32,
    /// Maximum number of lines; 1000 if absent.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
}

/// Lines of a job's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateLog {
    /// The lines.
    pub items: Vec<TemplateLogLine>,
    /// Where the next lines begin.
    pub next: u32,
    /// The job's state before these lines were read: if it is over and there are no lines, there will be none.
    pub state: TemplateJobState,
}

/// One line of a job's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TemplateLogLine {
    /// When it was written.
    #[schema(value_type = schema::Instant)]
    pub at: Timestamp,
    /// The step of a build that it belongs to, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub step: Option<u32>,
    /// Whether a program wrote it to its standard error.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
    /// The line, without its end.
    pub text: String,
}

only_from_an_object!(TagTemplate, ImportTemplate);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_does_not_tell_the_password() {
        let import: ImportTemplate =
            serde_json::from_str(r#"{"source":"docker://a.b/c","username":"u","password":"canary"}"#).unwrap();
        assert!(!format!("{import:?}").contains("canary"));
    }
}
