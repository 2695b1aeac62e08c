//! Watches directories for clients that poll. Events in between are kept here, within bounds.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use http::request::Parts;
use saggar_domain::SandboxId;
use saggar_http::access::Insider;
use saggar_runtime::{Action, Heard};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::watch::{WatchRequest, Watched};
use crate::connect;
use crate::failure::{CallFailure, Code};
use crate::state::Shared;

/// Maximum number of watchers of one sandbox, and of all.
const OF_ONE_MAX: usize = 64;
const OF_ALL_MAX: usize = 4096;
/// Maximum number of events that a watcher keeps, and their maximum size in bytes.
const EVENTS_MAX: usize = 10_000;
const BYTES_MAX: usize = 1 << 19;
/// Maximum number of concurrent polls of one watcher.
const QUESTIONS_MAX: usize = 16;
/// How long a poll waits until all events have arrived.
const SETTLE_PATIENCE: Duration = Duration::from_secs(5);
/// A watcher that isn't polled for this long is removed.
const UNASKED_MAX: Duration = Duration::from_secs(3600);

/// All watchers. They belong to this process: after a restart there are none, and clients are told so.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    list: Mutex<HashMap<String, Watcher>>,
    last: AtomicU64,
}

#[derive(Debug)]
struct Watcher {
    sandbox: SandboxId,
    kept: Arc<Mutex<Kept>>,
    questions: mpsc::Sender<Question>,
    task: AbortHandle,
    asked_at: Instant,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A request for a notification when all events until now are kept. Dropped if that can't be known.
type Question = oneshot::Sender<()>;

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<Value>,
    bytes: usize,
    /// Why there will be no more events, once that is so.
    end: Option<CallFailure>,
}

impl Kept {
    /// Keeps more events if they fit; else no more are kept, and the reason is recorded.
    fn add(&mut self, events: Vec<Value>) -> bool {
        self.bytes += events.iter().map(|event| event.to_string().len()).sum::<usize>();
        self.events.extend(events);
        if self.events.len() <= EVENTS_MAX && self.bytes <= BYTES_MAX {
            return true;
        }
        self.end = Some(CallFailure::new(Code::DataLoss, "too many events were not fetched in time"));
        false
    }

    fn take(&mut self) -> Vec<Value> {
        self.bytes = 0;
        Vec::from(std::mem::take(&mut self.events))
    }
}

impl Watchers {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Watcher>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_room(&self, sandbox: &SandboxId) -> Result<(), CallFailure> {
        let mut list = self.lock();
        list.retain(|_, watcher| watcher.asked_at.elapsed() < UNASKED_MAX);
        let of_one = list.values().filter(|watcher| watcher.sandbox == *sandbox).count();
        if of_one >= OF_ONE_MAX || list.len() >= OF_ALL_MAX {
            return Err(CallFailure::new(Code::ResourceExhausted, "too many watchers: remove some"));
        }
        Ok(())
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WatcherRequest {
    watcher_id: String,
}

pub(super) async fn create(
    server: &Shared,
    insider: &Insider,
    parts: &Parts,
    body: Body,
) -> Result<Value, CallFailure> {
    let request: WatchRequest = connect::unary(parts, body).await?;
    server.watchers.check_room(insider.id())?;
    let watched = Watched::begin(server, insider, parts, &request).await?;
    let kept = Arc::new(Mutex::new(Kept::default()));
    let (questions, asked) = mpsc::channel(QUESTIONS_MAX);
    let task = tokio::spawn(collect(watched, Arc::clone(&kept), asked)).abort_handle();
    // The id is not a capability: a client must present the sandbox's token too.
    let id = format!("w{}", server.watchers.last.fetch_add(1, Ordering::Relaxed) + 1);
    let watcher = Watcher { sandbox: insider.id().clone(), kept, questions, task, asked_at: Instant::now() };
    server.watchers.lock().insert(id.clone(), watcher);
    Ok(json!({ "watcherId": id }))
}

async fn collect(mut watched: Watched, kept: Arc<Mutex<Kept>>, mut questions: mpsc::Receiver<Question>) {
    // They are answered in the order in which they arrived.
    let mut asking: VecDeque<Question> = VecDeque::new();
    loop {
        let told = tokio::select! {
            heard = watched.hear() => match heard {
                Ok(Some(Heard::Event(event))) => watched.told(event).await,
                Ok(Some(Heard::Settled)) => {
                    // The client may be gone.
                    let _ = asking.pop_front().map(|question| question.send(()));
                    continue;
                }
                Ok(None) => Err(CallFailure::new(Code::Unavailable, "the connection to the sandbox ended")),
                Err(failure) => Err(failure),
            },
            Some(question) = questions.recv(), if asking.len() < QUESTIONS_MAX => match watched.settle().await {
                Ok(true) => {
                    asking.push_back(question);
                    continue;
                }
                Ok(false) => continue,
                Err(failure) => Err(failure),
            },
        };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        match told {
            Ok(events) => {
                if !kept.add(events) {
                    return;
                }
            }
            Err(failure) => {
                kept.end = Some(failure);
                return;
            }
        }
    }
}

pub(super) async fn events(
    server: &Shared,
    insider: &Insider,
    parts: &Parts,
    body: Body,
) -> Result<Value, CallFailure> {
    let WatcherRequest { watcher_id } = connect::unary(parts, body).await?;
    let (kept, questions) = {
        let mut list = server.watchers.lock();
        let watcher = list.get_mut(&watcher_id).filter(|watcher| watcher.sandbox == *insider.id());
        let watcher = watcher.ok_or_else(|| not_found(&watcher_id))?;
        watcher.asked_at = Instant::now();
        (Arc::clone(&watcher.kept), watcher.questions.clone())
    };
    server.sandboxes.check_runs(&insider.may(Action::ReadSandbox)?).await?;
    let settled = async {
        let (question, answer) = oneshot::channel();
        if questions.send(question).await.is_ok() {
            // Without a reply there is nothing to wait for: the watch is over, or its agent can't report it.
            let _ = answer.await;
        }
    };
    // If it takes longer, the events so far are returned.
    let _ = tokio::time::timeout(SETTLE_PATIENCE, settled).await;
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    let events = kept.take();
    match &kept.end {
        // The kept events are returned before the reason for the end.
        Some(failure) if events.is_empty() => Err(failure.clone()),
        Some(_) | None => Ok(json!({ "events": events })),
    }
}

pub(super) async fn remove(
    server: &Shared,
    insider: &Insider,
    parts: &Parts,
    body: Body,
) -> Result<Value, CallFailure> {
    let WatcherRequest { watcher_id } = connect::unary(parts, body).await?;
    let mut list = server.watchers.lock();
    if list.get(&watcher_id).is_none_or(|watcher| watcher.sandbox != *insider.id()) {
        return Err(not_found(&watcher_id));
    }
    list.remove(&watcher_id);
    Ok(json!({}))
}

fn not_found(id: &str) -> CallFailure {
    let id: String = id.chars().take(64).collect();
    CallFailure::new(Code::NotFound, format!("watcher with id {id} not found"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_asks_for_is_kept_within_bounds() {
        for (name, most) in [("x".repeat(4000), BYTES_MAX / 4000), ("x".to_owned(), EVENTS_MAX)] {
            let mut kept = Kept::default();
            let event = json!({ "name": name });
            let mut count = 0;
            while kept.add(vec![event.clone()]) {
                count += 1;
            }
            assert!(count <= most && count > most / 2, "{count}");
            assert!(kept.end.is_some() && kept.take().len() == count + 1);
            // A client that polls in time can continue forever.
            let mut asked = Kept::default();
            assert!((0..3 * most).all(|_| asked.add(vec![event.clone()]) && asked.take().len() == 1));
        }
    }
}
