//! What a session tells its supervisor beside decisions.

use std::net::SocketAddr;

use saggar_domain::net::Destination;
use saggar_supervisor::egress::FromEgress;
use tokio::sync::mpsc;

/// The rest wait or are given up.
const CAPACITY: usize = 64;

/// The sending end.
#[derive(Clone, Debug)]
pub(crate) struct Notices(mpsc::Sender<FromEgress>);

pub(crate) fn notices() -> (Notices, mpsc::Receiver<FromEgress>) {
    let (sender, receiver) = mpsc::channel(CAPACITY);
    (Notices(sender), receiver)
}

impl Notices {
    /// Whether the question could be put.
    pub fn question(&self, question: u64, to: &Destination, client: SocketAddr) -> bool {
        let (host, port) = (to.host.to_string(), to.port);
        self.0.try_send(FromEgress::Question { question, host, port, client }).is_ok()
    }

    /// Called at most once in a session.
    pub fn recording_failed(&self, reason: String) {
        // The session is over, or its supervisor reads nothing at all.
        let _ = self.0.try_send(FromEgress::RecordingFailed { reason });
    }
}
