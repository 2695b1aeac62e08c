//! One job while it runs: its state, its log, and what stops it. Bounded, whatever it says.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use saggar_domain::template::TemplateLimits;
use saggar_domain::{JobId, ProjectId, TemplateName, Timestamp};
use tokio::sync::watch;

use super::document::{JobDocument, JobKind, JobLine, JobOutcome, JobState};

/// Maximum number of lines that are kept, and of bytes in them.
const LINES_MAX: usize = 10_000;
const LINES_BYTES_MAX: usize = 4 << 20;
/// Maximum length of one line, in bytes.
const LINE_BYTES_MAX: usize = 16 << 10;

/// What is told about a job.
#[derive(Clone, Debug)]
pub struct JobView {
    pub id: JobId,
    pub kind: JobKind,
    /// The names that the template gets.
    pub names: Vec<TemplateName>,
    pub created_at: Timestamp,
    pub state: JobState,
    /// How many steps are done, and of how many; `None` before they are counted.
    pub progress: Option<(u32, u32)>,
    pub outcome: Option<JobOutcome>,
    /// Number of lines of the log.
    pub lines: usize,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) project: ProjectId,
    stop: Arc<AtomicBool>,
    told: Mutex<Told>,
    /// Counts changes.
    changed: watch::Sender<u64>,
}

#[derive(Debug)]
struct Told {
    document: JobDocument,
    progress: Option<(u32, u32)>,
    limits: TemplateLimits,
    bytes: usize,
    dropped: u64,
}

impl Job {
    pub(super) fn new(project: ProjectId, document: JobDocument) -> Self {
        let told = Told { document, progress: None, limits: TemplateLimits::default(), bytes: 0, dropped: 0 };
        Self { project, stop: Arc::default(), told: Mutex::new(told), changed: watch::Sender::new(0) }
    }

    pub(super) fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn state(&self) -> JobState {
        self.lock().document.state
    }

    pub(super) fn view(&self) -> JobView {
        let told = self.lock();
        view(&told.document, told.progress)
    }

    /// Lines from this one on, counted from 0.
    pub(super) fn lines(&self, from: usize, most: usize) -> Vec<JobLine> {
        self.lock().document.lines.iter().skip(from).take(most).cloned().collect()
    }

    pub(super) fn say(&self, at: Timestamp, step: Option<u32>, is_error: bool, text: &str) {
        let mut told = self.lock();
        let mut text = text.trim_end_matches(['\r', '\n']);
        if text.len() > LINE_BYTES_MAX {
            let end = (0..=LINE_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            text = &text[..end];
        }
        if told.document.lines.len() >= LINES_MAX || told.bytes + text.len() > LINES_BYTES_MAX {
            // The first lines are kept, so that the number of a line never changes; the end is in the problem.
            told.dropped += 1;
            return;
        }
        told.bytes += text.len();
        told.document.lines.push(JobLine { at, step, is_error, text: text.to_owned() });
        drop(told);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn progress(&self, done: u32, count: u32) {
        self.lock().progress = Some((done, count));
        self.changed.send_modify(|count| *count += 1);
    }

    /// Before it begins.
    pub(super) fn set_limits(&self, limits: TemplateLimits) {
        self.lock().limits = limits;
    }

    pub(super) fn limits(&self) -> TemplateLimits {
        self.lock().limits
    }

    pub(super) fn begin(&self) {
        self.lock().document.state = JobState::Running;
    }

    /// The record of its end, which is told when [`Job::publish`] says so.
    pub(super) fn finished(&self, state: JobState, outcome: JobOutcome) -> JobDocument {
        let mut told = self.lock();
        if told.dropped > 0 {
            let text = format!("{} more lines were not kept", told.dropped);
            told.document.lines.push(JobLine { at: outcome.at, step: None, is_error: false, text });
            told.dropped = 0;
        }
        JobDocument { state, outcome: Some(outcome), ..told.document.clone() }
    }

    /// Tells what was recorded.
    pub(super) fn publish(&self, document: JobDocument) {
        self.lock().document = document;
        self.changed.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn view(document: &JobDocument, progress: Option<(u32, u32)>) -> JobView {
    JobView {
        id: document.id.clone(),
        kind: document.kind,
        names: document.names.clone(),
        created_at: document.created_at,
        state: document.state,
        progress,
        outcome: document.outcome.clone(),
        lines: document.lines.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_bounded_and_says_what_is_missing() {
        let at = Timestamp::from_millis(1);
        let document =
            JobDocument::new(JobId::from_random([1; 16]), JobKind::Import, vec![TemplateName::default()], at);
        let job = Job::new(ProjectId::from_random([2; 16]), document);
        job.say(at, None, false, &"é".repeat(LINE_BYTES_MAX));
        for _ in 0..LINES_MAX + 5 {
            job.say(at, Some(1), true, "x\n");
        }
        let lines = job.lines(0, usize::MAX);
        assert_eq!((lines.len(), lines[0].text.len(), lines[1].text.as_str()), (LINES_MAX, LINE_BYTES_MAX, "x"));
        let outcome = JobOutcome { at, template: None, problem: None, step: None };
        let document = job.finished(JobState::Succeeded, outcome);
        assert_eq!(document.lines.last().map(|line| line.text.as_str()), Some("6 more lines were not kept"));
        assert_eq!(JobDocument::parse(&document.encode()).as_ref(), Some(&document));
        assert_eq!(job.state(), JobState::Running, "it is told after it is recorded");
        job.publish(document);
        assert_eq!(job.state(), JobState::Succeeded);
    }
}
