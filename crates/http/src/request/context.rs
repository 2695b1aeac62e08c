//! The context of the current request: its subject, its origin, its object. For its log line and for the limit of
//! concurrent requests per key.
//!
//! It is attached to the task that handles the request, so that it need not be passed on. It is held until the last
//! byte of the response, or the end of an upgraded connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use saggar_api::{Code, Problem};
use saggar_domain::{KeyId, RunId, SandboxId};
use saggar_runtime::{Action, Subject};

use crate::listen::{Answering, Caller, Connection};
use crate::refusal::Refusal;

tokio::task_local! {
    static CURRENT: Arc<Context>;
}

/// Retry-After of a request beyond the limit, in seconds.
const RETRY_AFTER_SECONDS: u32 = 1;

/// Who sent it; part of every request that came through a listener.
#[derive(Clone, Debug)]
pub struct Peer {
    pub caller: Caller,
    pub connection: Arc<Connection>,
}

/// The number of concurrent requests of each key, and of each sandbox's token.
#[derive(Clone, Debug)]
pub struct UnderWay {
    most: usize,
    counts: Arc<Mutex<HashMap<Holder, usize>>>,
}

/// The subjects that share one limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Holder {
    Key(KeyId),
    /// Clients with a sandbox's token, a signed URL of it, or the address of a public port.
    Sandbox(SandboxId),
}

#[derive(Debug)]
pub struct Context {
    under_way: UnderWay,
    peer: Option<Peer>,
    known: Mutex<Known>,
    _answering: Option<Answering>,
}

#[derive(Debug, Default)]
struct Known {
    key: Option<KeyId>,
    sandbox: Option<SandboxId>,
    run: Option<RunId>,
    counted: Option<Counted>,
    is_for_sandbox: bool,
}

/// What the log says about the subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub key: Option<KeyId>,
    pub sandbox: Option<SandboxId>,
    pub run: Option<RunId>,
    pub peer: Option<Caller>,
    /// Whether it is forwarded into a sandbox.
    pub is_for_sandbox: bool,
}

impl UnderWay {
    pub fn new(most: usize) -> Self {
        Self { most, counts: Arc::default() }
    }

    fn count(&self, holder: Holder) -> Result<Counted, Refusal> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(holder.clone()).or_default();
        if *count >= self.most {
            return Err(too_many(&holder, self.most));
        }
        *count += 1;
        Ok(Counted { under_way: self.clone(), holder })
    }
}

/// A counted request.
#[derive(Debug)]
struct Counted {
    under_way: UnderWay,
    holder: Holder,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.under_way.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.holder) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.holder);
            }
        }
    }
}

impl Context {
    pub fn new(under_way: UnderWay, peer: Option<Peer>) -> Arc<Self> {
        let answering = peer.as_ref().map(|peer| peer.connection.begin());
        Arc::new(Self { under_way, peer, known: Mutex::default(), _answering: answering })
    }

    /// Handles a request with this as the current context. May be cancelled if `answer` may.
    pub async fn scope<T>(self: &Arc<Self>, answer: impl Future<Output = T>) -> T {
        CURRENT.scope(Arc::clone(self), answer).await
    }

    pub fn told(&self) -> Told {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let peer = self.peer.as_ref().map(|peer| peer.caller.clone());
        Told {
            key: known.key.clone(),
            sandbox: known.sandbox.clone(),
            run: known.run.clone(),
            peer,
            is_for_sandbox: known.is_for_sandbox,
        }
    }

    fn note(&self, subject: &Subject, action: Option<&Action>) -> Result<(), Refusal> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.sandbox = action.and_then(Action::sandbox).cloned().or(known.sandbox.take());
        known.run = action.and_then(Action::run).cloned().or(known.run.take());
        let holder = match subject {
            Subject::Key { key, .. } => {
                known.key = Some(key.clone());
                Some(Holder::Key(key.clone()))
            }
            Subject::Bearer { action, .. } => action.sandbox().cloned().map(Holder::Sandbox),
            // Without keys all clients are the same, and only the limit of connections applies.
            Subject::Anybody { .. } | Subject::Run { .. } => None,
        };
        if known.counted.is_none() {
            known.counted = holder.map(|holder| self.under_way.count(holder)).transpose()?;
        }
        if let Some(peer) = &self.peer {
            peer.connection.is_known();
        }
        Ok(())
    }
}

/// Records the subject and the action once authenticated, and refuses beyond the limit. Does nothing outside of a
/// request.
pub fn note(subject: &Subject, action: Option<&Action>) -> Result<(), Refusal> {
    CURRENT.try_with(|context| context.note(subject, action)).unwrap_or(Ok(()))
}

/// Records that the current request is forwarded into a sandbox. Does nothing outside of a request.
pub fn is_for_sandbox() {
    // Outside of a request there is nothing to record.
    let _ = CURRENT.try_with(|context| {
        context.known.lock().unwrap_or_else(PoisonError::into_inner).is_for_sandbox = true;
    });
}

/// Keeps the current request open beyond its response, for an upgraded connection.
pub fn hold() -> Option<Arc<Context>> {
    CURRENT.try_with(Arc::clone).ok()
}

fn too_many(holder: &Holder, most: usize) -> Refusal {
    let whose = match holder {
        Holder::Key(key) => format!("key {key} has"),
        Holder::Sandbox(_) => "clients of this sandbox's token or public address have".to_owned(),
    };
    let problem = Problem::new(
        Code::Capacity,
        format!("{whose} {most} requests and streams in progress, which is the limit"),
        "close unneeded streams, or raise the setting `requests_per_key`",
    );
    Refusal::from(problem.retry_after(RETRY_AFTER_SECONDS))
}

#[cfg(test)]
mod tests {
    use saggar_domain::ProjectId;

    use super::*;

    fn holder_of_key(number: u8) -> Subject {
        Subject::Key { key: KeyId::from_random([number; 16]), project: ProjectId::from_random([0; 16]) }
    }

    #[tokio::test]
    async fn one_key_has_its_bound_and_another_its_own() {
        let under_way = UnderWay::new(2);
        let ask = async |number| {
            let context = Context::new(under_way.clone(), None);
            context.scope(async { note(&holder_of_key(number), None) }).await.map(|()| context)
        };
        let first = ask(1).await.unwrap();
        let _second = ask(1).await.unwrap();
        let refusal = ask(1).await.unwrap_err();
        assert_eq!((refusal.0.status, refusal.0.retry_after_seconds), (429, Some(RETRY_AFTER_SECONDS)));
        ask(2).await.unwrap();
        drop(first);
        ask(1).await.unwrap();
    }

    #[tokio::test]
    async fn one_request_counts_once_however_often_it_is_decided_on() {
        let context = Context::new(UnderWay::new(1), None);
        let sandbox = SandboxId::from_random([7; 16]);
        context
            .scope(async {
                note(&holder_of_key(1), Some(&Action::ReadSandbox(sandbox.clone()))).unwrap();
                note(&holder_of_key(1), Some(&Action::ListSandboxes)).unwrap();
            })
            .await;
        let told = context.told();
        assert_eq!((told.sandbox, told.key), (Some(sandbox), Some(KeyId::from_random([1; 16]))));
    }
}
