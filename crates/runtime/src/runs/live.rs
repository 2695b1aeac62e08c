//! Replies while models write them, for whoever follows a run.
//!
//! Shown and forgotten: nothing of it is stored, a follower that is too slow misses some, and a crash loses it without
//! harm, because the journal has each reply as a whole when it is complete. What isn't followed costs nothing. Clients follow runs at
//! the server; a worker in another process sends it what its models say: see `relay`.

mod relay;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use saggar_domain::RunId;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::mpsc;

pub use relay::{Ear, Relay};

/// Pieces that wait for a slow follower. The oldest make room.
const PIECES_MAX: usize = 256;

/// A piece of a reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    pub step: u64,
    pub attempt: u32,
    pub what: SaidWhat,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaidWhat {
    Text(String),
    Reasoning(String),
    /// The name of a tool that it begins to call.
    Call(String),
}

/// Passes pieces on. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Live {
    runs: Arc<Mutex<HashMap<RunId, broadcast::Sender<Said>>>>,
    /// The way to the server's followers, in another process.
    server: Option<mpsc::Sender<(RunId, Said)>>,
}

/// Hears what a run's model says from now on.
#[derive(Debug)]
pub struct Listener {
    live: Live,
    run: RunId,
    // Always there until it is dropped.
    pieces: Option<broadcast::Receiver<Said>>,
}

impl Live {
    /// For a worker beside the server of that data directory. What is said reaches the server's followers while the relay runs.
    pub fn to_server(data: &Path) -> (Self, Relay) {
        let (server, pieces) = mpsc::channel(relay::QUEUE_MAX);
        (Self { server: Some(server), ..Self::default() }, Relay::new(data, pieces))
    }

    /// For a server: passes on what workers beside it send.
    pub fn hear_workers(&self, data: &Path) -> io::Result<Ear> {
        Ear::open(self, data)
    }

    pub fn listen(&self, run: &RunId) -> Listener {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let pieces = runs.entry(run.clone()).or_insert_with(|| broadcast::channel(PIECES_MAX).0).subscribe();
        Listener { live: self.clone(), run: run.clone(), pieces: Some(pieces) }
    }

    pub(super) fn say(&self, run: &RunId, said: Said) {
        if let Some(server) = &self.server {
            // If too many wait already, this one is lost.
            let _ = server.try_send((run.clone(), said));
            return;
        }
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(followers) = runs.get(run) {
            // If the last one has just left, nobody misses it.
            let _ = followers.send(said);
        }
    }
}

impl Listener {
    /// The next piece. May be cancelled at any await.
    pub async fn next(&mut self) -> Said {
        let Some(pieces) = &mut self.pieces else { return std::future::pending().await };
        loop {
            match pieces.recv().await {
                Ok(said) => return said,
                Err(RecvError::Lagged(_)) => {}
                // The sender lives as long as a listener.
                Err(RecvError::Closed) => return std::future::pending().await,
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut runs = self.live.runs.lock().unwrap_or_else(PoisonError::into_inner);
        self.pieces = None;
        if runs.get(&self.run).is_some_and(|followers| followers.receiver_count() == 0) {
            runs.remove(&self.run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(step: u64) -> Said {
        Said { step, attempt: 1, what: SaidWhat::Text("a".to_owned()) }
    }

    #[tokio::test]
    async fn each_follower_hears_its_run_and_a_slow_one_the_newest() {
        let live = Live::default();
        let (one, other) = (RunId::from_random([1; 16]), RunId::from_random([2; 16]));
        live.say(&one, text(0));
        let (mut first, mut second, mut apart) = (live.listen(&one), live.listen(&one), live.listen(&other));
        live.say(&other, text(9));
        live.say(&one, text(1));
        assert_eq!((first.next().await, second.next().await, apart.next().await), (text(1), text(1), text(9)));
        for step in 0..PIECES_MAX as u64 * 3 {
            live.say(&one, text(step));
        }
        assert_eq!(first.next().await, text(PIECES_MAX as u64 * 2), "memory is bounded");
        drop((first, apart));
        assert_eq!(live.runs.lock().unwrap().len(), 1);
        drop(second);
        assert!(live.runs.lock().unwrap().is_empty(), "nothing is left of followers that are gone");
    }
}
