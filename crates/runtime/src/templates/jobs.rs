//! All jobs of this server: started within bounds, told about, cancelled, and found again after a restart.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use saggar_domain::template::TemplateId;
use saggar_domain::{Code, JobId, Problem, ProjectId, TemplateName};
use tokio::sync::watch;

use super::document::{DOCUMENT_BYTES_MAX, JobDocument, JobKind, JobLine, JobOutcome, JobState};
use super::job::{Job, JobView, view};
use super::manage::{TEMPLATES, blocking};
use crate::fail_point::pass;
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::sandboxes::{Sandboxes, now, random};

/// Records of jobs that a project keeps; the oldest that are over are forgotten first.
const KEPT_MAX: usize = 200;
/// Builds of a project that are announced and not begun.
const WAITING_MAX: usize = 64;
/// How long an announced build may take to begin.
const ANNOUNCED_MAX: Duration = Duration::from_secs(60 * 60);
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Jobs that this process has started.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    all: Mutex<HashMap<JobId, Arc<Job>>>,
    /// Projects whose stores may have templates without a name.
    leftovers: Mutex<BTreeSet<ProjectId>>,
}

/// How a job's work ends if it doesn't succeed.
pub(super) struct JobFailure {
    pub(super) problem: Problem,
    pub(super) step: Option<String>,
}

impl From<Problem> for JobFailure {
    fn from(problem: Problem) -> Self {
        Self { problem, step: None }
    }
}

impl Jobs {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<JobId, Arc<Job>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of the project's, if this process has started it.
    pub(super) fn get(&self, project: &ProjectId, id: &JobId) -> Option<Arc<Job>> {
        self.lock().get(id).filter(|job| job.project == *project).cloned()
    }

    /// Adds a job unless the project has too many that are not over.
    fn add(&self, project: &ProjectId, most: usize, document: JobDocument) -> Result<Arc<Job>, Fault> {
        let mut all = self.lock();
        // What is over is on disk. What was announced long ago is not waited for any more.
        all.retain(|_, job| {
            let is_late = job.state() == JobState::Waiting && job.view().created_at.after(ANNOUNCED_MAX) < now();
            !job.state().is_over() && !is_late
        });
        match document.state {
            JobState::Waiting => check_room(&all, project, JobState::Waiting, WAITING_MAX)?,
            _ => check_room(&all, project, JobState::Running, most)?,
        }
        let id = document.id.clone();
        let job = Arc::new(Job::new(project.clone(), document));
        all.insert(id, Arc::clone(&job));
        Ok(job)
    }

    pub(crate) fn note_leftovers(&self, project: ProjectId) {
        self.leftovers.lock().unwrap_or_else(PoisonError::into_inner).insert(project);
    }

    pub(super) fn forget_leftovers(&self, project: &ProjectId) {
        self.leftovers.lock().unwrap_or_else(PoisonError::into_inner).remove(project);
    }

    pub(super) fn leftovers(&self) -> Vec<ProjectId> {
        self.leftovers.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Lets an announced job begin, once, unless the project has too many that run.
    pub(super) fn start(&self, job: &Job, most: usize) -> Result<(), Fault> {
        let all = self.lock();
        check_room(&all, &job.project, JobState::Running, most)?;
        match job.state() {
            JobState::Waiting => {
                job.begin();
                Ok(())
            }
            JobState::Running | JobState::Succeeded | JobState::Failed | JobState::Cancelled => Err(Fault::Conflict {
                what: "the build has begun already".to_owned(),
                help: "announce another one".to_owned(),
            }),
        }
    }

    fn forget(&self, id: &JobId) {
        self.lock().remove(id);
    }
}

fn check_room(all: &HashMap<JobId, Arc<Job>>, project: &ProjectId, state: JobState, most: usize) -> Result<(), Fault> {
    let count = all.values().filter(|job| job.project == *project && job.state() == state).count();
    if count >= most {
        return Err(Fault::Capacity {
            what: format!("the project has {count} template jobs in progress; the maximum is {most}"),
            retry_after: RETRY_AFTER,
        });
    }
    Ok(())
}

impl Sandboxes {
    /// Makes a job, and its record. It is not started yet.
    pub(super) async fn new_job(
        &self,
        project: &ProjectId,
        kind: JobKind,
        names: Vec<TemplateName>,
        state: JobState,
    ) -> Result<Arc<Job>, Fault> {
        let document = JobDocument { state, ..JobDocument::new(JobId::from_random(random()), kind, names, now()) };
        let job = self.jobs().add(project, self.settings().template_jobs_per_project, document.clone())?;
        let (this, project) = (self.clone(), project.clone());
        let recorded = blocking("recording a job", move || {
            let directory = this.job_directory(&project)?;
            write(&directory, &document)?;
            forget_oldest(&directory);
            Ok(())
        })
        .await;
        if let Err(fault) = recorded {
            self.jobs().forget(&job.view().id);
            return Err(fault);
        }
        pass("job/recorded");
        Ok(job)
    }

    /// Runs a job's work on a thread of its own, and records how it ends.
    pub(super) fn run_job(
        &self,
        job: Arc<Job>,
        work: impl FnOnce(&Sandboxes, &Job) -> Result<TemplateId, JobFailure> + Send + 'static,
    ) {
        job.begin();
        let this = self.clone();
        tokio::spawn(async move {
            let (worker, worked) = (this.clone(), Arc::clone(&job));
            let done = tokio::task::spawn_blocking(move || work(&worker, &worked)).await;
            let ended = |template, problem, step| JobOutcome { at: now(), template, problem, step };
            let (state, outcome) = match done {
                Ok(Ok(template)) => (JobState::Succeeded, ended(Some(template), None, None)),
                Ok(Err(_)) if job.is_stopped() => (JobState::Cancelled, ended(None, None, None)),
                Ok(Err(failure)) => (JobState::Failed, ended(None, Some(failure.problem), failure.step)),
                Err(error) => {
                    tracing::error!(error = %error, "a template job panicked");
                    (JobState::Failed, ended(None, Some(internal()), None))
                }
            };
            // A name may have moved.
            this.jobs().note_leftovers(job.project.clone());
            this.end_job(&job, state, outcome).await;
            this.drop_stale_pools().await;
        });
    }

    async fn end_job(&self, job: &Arc<Job>, state: JobState, outcome: JobOutcome) {
        let document = job.finished(state, outcome);
        let (this, project, written) = (self.clone(), job.project.clone(), document.clone());
        let recorded = blocking("recording a job", move || write(&this.job_directory(&project)?, &written)).await;
        if let Err(fault) = recorded {
            // A later start reports it as failed, which is the safe side.
            tracing::error!(error = %fault, job = %document.id, "the end of a template job can't be recorded");
        }
        pass("job/ended");
        job.publish(document);
    }

    /// A job of the project.
    pub async fn template_job(&self, permit: &Permit, id: &JobId) -> Result<JobView, Fault> {
        permit.check(|action| *action == Action::Manage(TEMPLATES))?;
        if let Some(job) = self.jobs().get(permit.project(), id) {
            return Ok(job.view());
        }
        Ok(view(&self.recorded_job(permit.project(), id).await?, None))
    }

    /// The project's jobs, newest first.
    pub async fn template_jobs(&self, permit: &Permit) -> Result<Vec<JobView>, Fault> {
        permit.check(|action| *action == Action::Manage(TEMPLATES))?;
        let (this, project) = (self.clone(), permit.project().clone());
        let mut views = blocking("listing jobs", move || {
            let directory = this.job_directory(&project)?;
            let recorded = listed(&directory).into_iter().filter_map(|path| read(&path));
            Ok(recorded.map(|document| view(&document, None)).collect::<Vec<_>>())
        })
        .await?;
        for view in &mut views {
            if let Some(job) = self.jobs().get(permit.project(), &view.id) {
                *view = job.view();
            }
        }
        views.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
        Ok(views)
    }

    /// Lines of a job's log from this one on, counted from 0, and the job as it is then.
    pub async fn template_job_lines(
        &self,
        permit: &Permit,
        id: &JobId,
        from: usize,
        most: usize,
    ) -> Result<(JobView, Vec<JobLine>), Fault> {
        permit.check(|action| *action == Action::Manage(TEMPLATES))?;
        if let Some(job) = self.jobs().get(permit.project(), id) {
            // In this order: a job that is over has no more lines.
            let view = job.view();
            return Ok((view, job.lines(from, most)));
        }
        let document = self.recorded_job(permit.project(), id).await?;
        let lines = document.lines.iter().skip(from).take(most).cloned().collect();
        Ok((view(&document, None), lines))
    }

    /// Changes when the job does; `None` for one that ended before this process started.
    pub fn template_job_changes(&self, permit: &Permit, id: &JobId) -> Option<watch::Receiver<u64>> {
        self.jobs().get(permit.project(), id).map(|job| job.subscribe())
    }

    /// Asks a job to end. One that is over stays as it is.
    pub async fn cancel_template_job(&self, permit: &Permit, id: &JobId) -> Result<JobView, Fault> {
        permit.check(|action| *action == Action::Manage(TEMPLATES))?;
        if let Some(job) = self.jobs().get(permit.project(), id) {
            job.stop();
            if job.state() == JobState::Waiting {
                let outcome = JobOutcome { at: now(), template: None, problem: None, step: None };
                self.end_job(&job, JobState::Cancelled, outcome).await;
            }
            return Ok(job.view());
        }
        Ok(view(&self.recorded_job(permit.project(), id).await?, None))
    }

    /// Cancels all jobs, for a server that stops, and waits until they have ended.
    pub async fn stop_template_jobs(&self) {
        let jobs: Vec<Arc<Job>> = self.jobs().lock().values().cloned().collect();
        for job in &jobs {
            job.stop();
        }
        for job in jobs {
            let mut changed = job.subscribe();
            while job.state() == JobState::Running {
                // The sender lives as long as the job, which we hold.
                let _ = changed.changed().await;
            }
        }
    }

    /// Reports jobs that an earlier server took with it as failed. What they left is removed soon after. Before any job starts.
    pub async fn recover_template_jobs(&self) -> Result<usize, Fault> {
        let this = self.clone();
        blocking("reading the records of jobs", move || {
            let mut found = 0;
            for project in this.projects_with_templates() {
                this.jobs().note_leftovers(project.clone());
                this.forget_interrupted_builds(&project);
                for path in listed(&this.job_directory(&project)?) {
                    let Some(document) = read(&path).filter(|document| !document.state.is_over()) else { continue };
                    let outcome = JobOutcome { at: now(), template: None, problem: Some(interrupted()), step: None };
                    let ended = JobDocument { state: JobState::Failed, outcome: Some(outcome), ..document };
                    write(&this.job_directory(&project)?, &ended)?;
                    found += 1;
                }
            }
            Ok(found)
        })
        .await
    }

    async fn recorded_job(&self, project: &ProjectId, id: &JobId) -> Result<JobDocument, Fault> {
        let (this, project, id) = (self.clone(), project.clone(), id.clone());
        blocking("reading the record of a job", move || {
            let directory = this.job_directory(&project)?;
            read(&directory.join(format!("{id}.json")))
                .filter(|document| document.id == id)
                .ok_or(Fault::NotFound { what: "template job", id: id.to_string() })
        })
        .await
    }

    pub(crate) fn projects_with_templates(&self) -> Vec<ProjectId> {
        let Ok(entries) = std::fs::read_dir(self.settings().data_directory.join("templates")) else {
            return Vec::new();
        };
        entries.flatten().filter_map(|entry| ProjectId::parse(entry.file_name().to_str()?)).collect()
    }

    fn job_directory(&self, project: &ProjectId) -> Result<PathBuf, Fault> {
        let directory = self.settings().data_directory.join("templates").join(project.as_str()).join("jobs");
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(unwritable)?;
        Ok(directory)
    }
}

fn listed(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect()
}

fn read(path: &Path) -> Option<JobDocument> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(DOCUMENT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    JobDocument::parse(&bytes)
}

/// In one step, durably.
fn write(directory: &Path, document: &JobDocument) -> Result<(), Fault> {
    let (path, beside) = (directory.join(format!("{}.json", document.id)), directory.join(format!(".{}", document.id)));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let written =
        rustix::fs::open(&beside, flags, Mode::from_raw_mode(0o600)).map_err(std::io::Error::from).and_then(|file| {
            let mut file = File::from(file);
            file.write_all(&document.encode())?;
            file.sync_all()?;
            std::fs::rename(&beside, &path)?;
            File::open(directory)?.sync_all()
        });
    written.map_err(unwritable)
}

fn forget_oldest(directory: &Path) {
    let mut records: Vec<_> =
        listed(directory).into_iter().filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path))).collect();
    records.sort();
    let surplus = records.len().saturating_sub(KEPT_MAX);
    for (_, path) in records.into_iter().take(surplus) {
        if read(&path).is_none_or(|document| document.state.is_over()) {
            // Tried again with the next job.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn unwritable(error: std::io::Error) -> Fault {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => saggar_store::Error::Full.into(),
        std::io::ErrorKind::ReadOnlyFilesystem => saggar_store::Error::ReadOnly.into(),
        _ => Fault::internal("writing to the data directory", error),
    }
}

fn interrupted() -> Problem {
    Problem::new(Code::SetupFailed, "the server stopped before the job had ended", "start the job again")
}

fn internal() -> Problem {
    Problem::new(Code::SetupFailed, "the job failed inside the server", "try again; the server's log has the reason")
}
