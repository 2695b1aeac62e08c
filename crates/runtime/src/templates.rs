//! Templates of a project: list, show, name, remove; and jobs that bring new ones.
//!
//! The files are in `templates/PROJECT` of the data directory, and `crates/image` writes them. A project sees its own
//! templates and those that the operator publishes, and no others: for it, the rest doesn't exist.
//!
//! A job is one import. It runs in this process alone, so a server that ends takes its jobs with it: the next one
//! reports them as failed and removes what they left.

mod build;
mod document;
mod files;
mod import;
mod job;
mod jobs;
mod manage;
mod registries;

pub use build::{BuildBase, BuildRequest, BuildSource};
pub use document::{JobKind, JobLine, JobOutcome, JobState};
pub use files::FilesHash;
pub use import::{ImportRequest, RegistryCredentials, Upload};
pub use job::JobView;
pub(crate) use jobs::Jobs;
pub(crate) use manage::blocking;
pub use manage::{RemovedTemplate, TEMPLATES, TemplateContents, TemplateRest, TemplateView};
pub use registries::RegistryRule;
