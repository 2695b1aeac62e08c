//! Room for the bodies of requests that are being answered: they are large, and this process holds them until the answer is complete.
//!
//! A sandbox has some, a project with all of its sandboxes has more, and all together have an end. A request waits for all of it before its
//! body is read.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt as _;
use saggar_domain::{ProjectId, SandboxId};
use saggar_gateway::{Failure, FailureKind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::BODY_BYTES_MAX;

/// Bytes of the bodies of one sandbox, of one project, and of all: one of the largest, or many ordinary ones.
const OF_SANDBOX: usize = BODY_BYTES_MAX;
const OF_PROJECT: usize = 8 * BODY_BYTES_MAX;
const OF_ALL: usize = 32 * BODY_BYTES_MAX;
/// Semaphores count to a third of what a `u32` does on some machines; so bodies are counted in blocks.
const BLOCK: usize = 1024;
/// How long a request waits for room.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whose request it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Whose {
    Sandbox(SandboxId),
    Project(ProjectId),
}

#[derive(Debug)]
pub(crate) struct Room {
    of: Mutex<HashMap<Whose, Weak<Semaphore>>>,
    of_all: Arc<Semaphore>,
}

impl Default for Room {
    fn default() -> Self {
        Self { of: Mutex::default(), of_all: Arc::new(Semaphore::new(OF_ALL / BLOCK)) }
    }
}

/// The room of one body. It is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    permits: Vec<OwnedSemaphorePermit>,
}

impl Room {
    /// Waits for room for a body whose headers these are. `is_empty`: there is none.
    pub(super) async fn take(&self, whose: &Whose, headers: &HeaderMap, is_empty: bool) -> Result<Held, Failure> {
        let length = match headers.get(CONTENT_LENGTH) {
            Some(length) => length.to_str().ok().and_then(|length| length.parse().ok()).unwrap_or(BODY_BYTES_MAX),
            None if is_empty => 0,
            None => BODY_BYTES_MAX,
        };
        let blocks = blocks(length.min(BODY_BYTES_MAX));
        // Their own first: who waits for that keeps nothing from the others.
        let taken = timeout(PATIENCE, async {
            let own = self.own(whose).acquire_many_owned(blocks).await.ok()?;
            let mut held = Held { permits: vec![own] };
            // What is of a sandbox is of its project too, and counts for all there.
            if let Whose::Project(_) = whose {
                held.permits.push(Arc::clone(&self.of_all).acquire_many_owned(blocks).await.ok()?);
            }
            Some(held)
        });
        taken.await.ok().flatten().ok_or_else(|| {
            let message =
                "the server has no room for more requests of this size; wait for answers, or send smaller ones";
            Failure::new(FailureKind::Overloaded, message).after(Some(Duration::from_secs(1)))
        })
    }

    fn own(&self, whose: &Whose) -> Arc<Semaphore> {
        let mut all = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = all.get(whose).and_then(Weak::upgrade) {
            return room;
        }
        all.retain(|_, room| room.strong_count() > 0);
        let most = match whose {
            Whose::Sandbox(_) => OF_SANDBOX,
            Whose::Project(_) => OF_PROJECT,
        };
        let room = Arc::new(Semaphore::new(most / BLOCK));
        all.insert(whose.clone(), Arc::downgrade(&room));
        room
    }
}

impl Held {
    /// Gives back what a body that has arrived doesn't need.
    pub(super) fn shrink(&mut self, length: usize) {
        let needed = blocks(length) as usize;
        for permit in &mut self.permits {
            drop(permit.split(permit.num_permits().saturating_sub(needed)));
        }
    }

    /// Until the response has been sent.
    pub(super) fn until_sent(self, response: Response) -> Response {
        response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                // It is given back with the body.
                let _ = &self;
                frame
            }))
        })
    }
}

fn blocks(length: usize) -> u32 {
    u32::try_from(length.div_ceil(BLOCK)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(length: usize) -> HeaderMap {
        HeaderMap::from_iter([(CONTENT_LENGTH, length.into())])
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_has_more_room_than_their_own_and_all_have_an_end() {
        let room = Room::default();
        let whose = |number: u8| Whose::Project(ProjectId::from_random([number; 16]));
        let mut all = Vec::new();
        for number in 0..4 {
            for _ in 0..8 {
                all.push(room.take(&whose(number), &headers(BODY_BYTES_MAX), false).await.unwrap());
            }
            let failure = room.take(&whose(number), &headers(1), false).await.unwrap_err();
            assert_eq!((failure.kind, failure.kind.status()), (FailureKind::Overloaded, 529), "{number}");
        }
        assert!(room.take(&whose(9), &headers(1), false).await.is_err(), "all of it is taken");
        assert!(room.take(&whose(9), &HeaderMap::new(), true).await.is_ok(), "no body needs none");
        all.pop();
        let mut unknown = room.take(&whose(9), &HeaderMap::new(), false).await.unwrap();
        assert!(room.take(&whose(3), &headers(1), false).await.is_err());
        unknown.shrink(10);
        assert!(room.take(&whose(3), &headers(BODY_BYTES_MAX - BLOCK), false).await.is_ok());
        // Many sandboxes of one project are bounded by that project.
        let sandbox = Whose::Sandbox(SandboxId::from_random([1; 16]));
        let first = room.take(&sandbox, &HeaderMap::new(), false).await.unwrap();
        assert!(room.take(&sandbox, &headers(1), false).await.is_err());
        drop(first);
        assert!(room.take(&sandbox, &headers(1), false).await.is_ok());
    }
}
