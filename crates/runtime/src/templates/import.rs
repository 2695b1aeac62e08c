//! Imports on behalf of a client: from a registry that the operator allows, or from an archive that the client sends.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use saggar_domain::secret::{Binding, SecretName};
use saggar_domain::template::TemplateId;
use saggar_domain::{ByteSize, Code, Problem, ProjectId, TemplateName};
use saggar_image::{Credentials, Limits, Progress, RegistryOptions, Request, Source, import};
use zeroize::Zeroizing;

use super::document::{JobKind, JobState};
use super::job::{Job, JobView};
use super::jobs::JobFailure;
use super::manage::{TEMPLATES, blocking, refused};
use super::registries::Registries;
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::sandboxes::{Sandboxes, now};
use crate::secrets::unknown_secret;

const TLS_PORT: u16 = 443;
/// Maximum length of a name of an image within an archive.
const IMAGE_LEN_MAX: usize = 512;

/// An image of a registry to import.
#[derive(Clone, Debug)]
pub struct ImportRequest {
    /// `docker://REGISTRY/REPOSITORY:TAG`, or without the scheme.
    pub source: String,
    /// By default it follows from the source.
    pub name: Option<TemplateName>,
    pub credentials: Option<RegistryCredentials>,
}

/// A user of a registry. Not stored and not logged.
#[derive(Clone)]
pub struct RegistryCredentials {
    username: String,
    password: Zeroizing<String>,
    bound_to: Option<Binding>,
}

impl RegistryCredentials {
    pub fn new(username: String, password: &str) -> Self {
        Self { username, password: Zeroizing::new(password.to_owned()), bound_to: None }
    }
}

impl std::fmt::Debug for RegistryCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RegistryCredentials({:?}, …)", self.username)
    }
}

/// An archive while it arrives. The file has no name, so nothing of it is left when this process ends.
#[derive(Debug)]
pub struct Upload {
    file: File,
    bytes: u64,
    bytes_max: u64,
}

impl Upload {
    /// Adds a piece.
    pub async fn add(mut self, piece: Bytes) -> Result<Self, Fault> {
        self.bytes += piece.len() as u64;
        if self.bytes > self.bytes_max {
            return Err(too_large(self.bytes_max));
        }
        blocking("writing an upload", move || {
            self.file.write_all(&piece).map_err(|error| match error.kind() {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                    Fault::from(saggar_store::Error::Full)
                }
                _ => Fault::internal("writing an upload", error),
            })?;
            Ok(self)
        })
        .await
    }

    /// The file, at its beginning.
    pub(super) fn into_file(mut self) -> File {
        // It was written by us, and a regular file can always go back.
        let _ = self.file.rewind();
        self.file
    }

    /// The file as this process can open it.
    pub(crate) fn source(&self) -> Source {
        Source::Files(PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd())))
    }
}

impl Sandboxes {
    /// Starts an import from a registry.
    pub async fn import_template(&self, permit: &Permit, wanted: ImportRequest) -> Result<JobView, Fault> {
        permit.check(|action| *action == Action::Manage(TEMPLATES))?;
        let registries = self.registries().await?;
        let (request, _) = self.registry_request(wanted, registries, Arc::default())?;
        let request = request.map_err(refused)?;
        self.start_import(permit.project(), request, None).await
    }

    /// The value of a secret as the password of a registry's user. It goes only where the secret is bound to.
    pub async fn registry_secret(
        &self,
        permit: &Permit,
        username: String,
        name: &SecretName,
    ) -> Result<RegistryCredentials, Fault> {
        permit.check(|action| *action == Action::Manage(TEMPLATES))?;
        let sealed = self.store().secret(permit.project().clone(), name.clone()).await?;
        let sealed = sealed.ok_or_else(|| unknown_secret("the import", name))?;
        let value = self.vault().open(&sealed).await?;
        let bound_to = Some(sealed.row.binding);
        Ok(RegistryCredentials { bound_to, ..RegistryCredentials::new(username, value.expose()) })
    }

    /// How to import what a client wants, or why the server doesn't; and the template's name.
    pub(super) fn registry_request(
        &self,
        wanted: ImportRequest,
        registries: Registries,
        stop: Arc<AtomicBool>,
    ) -> Result<(Result<Request, Problem>, TemplateName), Fault> {
        let text = wanted.source.strip_prefix("docker://").unwrap_or(&wanted.source);
        let source = Source::parse(&format!("docker://{text}")).map_err(|complaint| {
            refused(Problem::new(Code::InvalidValue, complaint, "write it as docker://REGISTRY/REPOSITORY:TAG"))
        })?;
        let Source::Registry(reference) = &source else { unreachable!("the scheme is that of a registry") };
        let name = wanted.name.or_else(|| source.default_name()).ok_or_else(|| {
            refused(Problem::new(
                Code::InvalidValue,
                "no name for the template follows from its source",
                "give it one with `name`",
            ))
        })?;
        let credentials = wanted.credentials.map(checked).transpose()?;
        let to = match registries.check(reference.host(), reference.port().unwrap_or(TLS_PORT)) {
            Ok(to) => to,
            Err(problem) => return Ok((Err(problem), name)),
        };
        let registry = RegistryOptions {
            credentials,
            is_plain_http: registries.is_plain(&to),
            dialer: Arc::new(registries),
            ..RegistryOptions::default()
        };
        let request = Request { stop, ..self.image_request(source, name.clone(), None, registry) };
        Ok((Ok(request), name))
    }

    /// Begins the upload of an archive.
    pub async fn begin_upload(&self, permit: &Permit) -> Result<Upload, Fault> {
        permit.check(|action| *action == Action::Manage(TEMPLATES))?;
        self.upload_for(permit.project()).await
    }

    pub(crate) async fn upload_for(&self, project: &ProjectId) -> Result<Upload, Fault> {
        let bytes_max = self.settings().import_size_max.bytes();
        let (this, project) = (self.clone(), project.clone());
        blocking("beginning an upload", move || {
            // In the directory of the templates, because /tmp may be in memory.
            let store = this.template_store(&project)?;
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let file = rustix::fs::open(store.templates().root(), flags, Mode::from_raw_mode(0o600))
                .map_err(|errno| Fault::internal("beginning an upload", std::io::Error::from(errno)))?;
            Ok(Upload { file: File::from(file), bytes: 0, bytes_max })
        })
        .await
    }

    /// Starts the import of an archive that has arrived.
    pub async fn import_upload(
        &self,
        permit: &Permit,
        upload: Upload,
        name: TemplateName,
        image: Option<String>,
    ) -> Result<JobView, Fault> {
        permit.check(|action| *action == Action::Manage(TEMPLATES))?;
        if image.as_ref().is_some_and(|image| image.len() > IMAGE_LEN_MAX) {
            return Err(refused(Problem::new(Code::InvalidValue, "the image's name is too long", "check `image`")));
        }
        let request = self.image_request(upload.source(), name, image, RegistryOptions::default());
        self.start_import(permit.project(), request, Some(upload)).await
    }

    fn image_request(
        &self,
        source: Source,
        name: TemplateName,
        image: Option<String>,
        registry: RegistryOptions,
    ) -> Request {
        let limits = Limits { bytes_max: self.settings().import_size_max.bytes(), ..Limits::default() };
        Request { source, name, image, limits, registry, now: now(), stop: Arc::default() }
    }

    async fn start_import(
        &self,
        project: &ProjectId,
        request: Request,
        upload: Option<Upload>,
    ) -> Result<JobView, Fault> {
        let job = self.new_job(project, JobKind::Import, vec![request.name.clone()], JobState::Running).await?;
        let view = job.view();
        let request = Request { stop: job.stop_flag(), ..request };
        self.run_job(job, move |sandboxes, job| {
            let done = imported(sandboxes, job, &request);
            drop(upload);
            done
        });
        Ok(view)
    }

    /// What imports may reach. The addresses of this host may change, so they are read each time.
    pub(super) async fn registries(&self) -> Result<Registries, Fault> {
        let allowed = self.settings().import_registries.clone();
        blocking("reading this host's addresses", move || {
            let own = saggar_sandbox::upstream_of_the_host().map_err(refused)?.own;
            Registries::new(&allowed, own).map_err(refused)
        })
        .await
    }
}

pub(super) fn imported(sandboxes: &Sandboxes, job: &Job, request: &Request) -> Result<TemplateId, JobFailure> {
    let store = sandboxes.template_store(&job.project).map_err(|fault| {
        JobFailure::from(Problem::new(Code::DataDirectory, fault.to_string(), "tell the operator of the server"))
    })?;
    let done = import(&store, request, &mut |progress| match progress {
        Progress::Layer { number, count, id, is_shared } => {
            let note = if is_shared { " (already stored)" } else { "" };
            job.progress(u32::try_from(number - 1).unwrap_or(u32::MAX), u32::try_from(count).unwrap_or(u32::MAX));
            job.say(now(), None, false, &format!("layer {number} of {count}: {id}{note}"));
        }
        Progress::Completing => job.say(now(), None, false, "writing to disk"),
    })?;
    let count = u32::try_from(done.manifest.layers().len()).unwrap_or(u32::MAX);
    job.progress(count, count);
    job.say(now(), None, false, &format!("imported {}: {}", request.name, done.id));
    Ok(done.id)
}

/// Credentials that can be sent.
fn checked(given: RegistryCredentials) -> Result<Credentials, Fault> {
    let RegistryCredentials { username, password, bound_to } = given;
    // A header separates the two by the first colon.
    let is_wrong = username.is_empty()
        || username.contains([':', '\r', '\n'])
        || password.is_empty()
        || password.contains(['\r', '\n', '\0']);
    if is_wrong {
        return Err(refused(Problem::new(
            Code::InvalidValue,
            "the credentials of the registry can't be sent",
            "give a username without colons and a password on one line",
        )));
    }
    Ok(Credentials { username, password, bound_to })
}

fn too_large(most: u64) -> Fault {
    refused(Problem::new(
        Code::InvalidImage,
        format!("the archive is larger than {}", ByteSize::from_bytes(most)),
        "send a smaller one; the operator's setting is `import_size_max`",
    ))
}
