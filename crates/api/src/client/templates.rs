//! Templates of a project, and the jobs that make them.

use hyper::Method;
use saggar_domain::{JobId, TemplateName};
use tokio::io::AsyncRead;

use super::body::Body;
use super::error::Error;
use super::send::Client;
use crate::template::{
    BuildTemplate, ImportTemplate, RemovedTemplate, TagTemplate, Template, TemplateJob, TemplateJobList, TemplateList,
    TemplateLog, TemplateLogQuery, UploadTemplate,
};
use crate::{read, route};

const ARCHIVE: &str = "application/x-tar";

impl Client {
    /// All templates that our project can use.
    pub async fn list_templates(&self) -> Result<TemplateList, Error> {
        self.get(route::TEMPLATES).value().await
    }

    /// One template, with its layers and defaults.
    pub async fn template(&self, name: &TemplateName) -> Result<Template, Error> {
        self.get(&path(name)).value().await
    }

    /// Makes a name lead to a template.
    pub async fn tag_template(&self, name: &TemplateName, from: &TemplateName) -> Result<Template, Error> {
        self.request(Method::PUT, &path(name)).json(&TagTemplate { from: from.clone() }).value().await
    }

    /// Removes a name, and with its last name the template.
    pub async fn remove_template(&self, name: &TemplateName) -> Result<RemovedTemplate, Error> {
        self.request(Method::DELETE, &path(name)).value().await
    }

    /// Starts an import from a registry.
    pub async fn import_template(&self, import: &ImportTemplate) -> Result<TemplateJob, Error> {
        self.request(Method::POST, route::TEMPLATE_IMPORT).json(import).value().await
    }

    /// Sends an archive, which becomes a template.
    pub async fn upload_template(
        &self,
        query: &UploadTemplate,
        archive: impl AsyncRead + Send + 'static,
        length: Option<u64>,
    ) -> Result<TemplateJob, Error> {
        let path = format!("{}?{}", route::TEMPLATE_UPLOAD, read::to_query(query));
        self.request(Method::POST, &path).body(Body::streamed(archive, length), ARCHIVE).value_whenever().await
    }

    /// Sends an archive of a directory, and builds a template from the Dockerfile in it.
    pub async fn build_template(
        &self,
        query: &BuildTemplate,
        archive: impl AsyncRead + Send + 'static,
    ) -> Result<TemplateJob, Error> {
        let path = format!("{}?{}", route::TEMPLATE_BUILD, read::to_query(query));
        self.request(Method::POST, &path).body(Body::streamed(archive, None), ARCHIVE).value_whenever().await
    }

    /// The jobs of our project, newest first.
    pub async fn list_template_jobs(&self) -> Result<TemplateJobList, Error> {
        self.get(route::TEMPLATE_JOBS).value().await
    }

    /// One job.
    pub async fn template_job(&self, id: &JobId) -> Result<TemplateJob, Error> {
        self.get(&route::TEMPLATE_JOB.replace("{job}", id.as_str())).value().await
    }

    /// Lines of a job's log.
    pub async fn template_job_log(&self, id: &JobId, query: &TemplateLogQuery) -> Result<TemplateLog, Error> {
        let path = route::TEMPLATE_JOB_LOG.replace("{job}", id.as_str());
        self.get(&format!("{path}?{}", read::to_query(query))).value().await
    }

    /// Asks a job to end.
    pub async fn cancel_template_job(&self, id: &JobId) -> Result<TemplateJob, Error> {
        self.request(Method::DELETE, &route::TEMPLATE_JOB.replace("{job}", id.as_str())).value().await
    }
}

fn path(name: &TemplateName) -> String {
    route::TEMPLATE.replace("{template}", name.as_str())
}
