//! A sandbox as a fake supervisor has it: a state, an owner, events, and nothing inside.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use saggar_domain::net::EgressDraft;
use saggar_domain::{DeadlineAction, EndReason, NetworkMode, SandboxState, Spec};
use saggar_supervisor::control::{CONTROL, Description, Event, EventBody, Final, Reply, Sample, Start, Terms};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::wire::Wire;

/// A sandbox as its supervisor has it.
#[derive(Debug)]
pub struct Held {
    pub(super) start: Start,
    pub(super) now: Mutex<Now>,
    events: watch::Sender<Vec<Event>>,
    pub(super) is_mute: watch::Sender<bool>,
    /// How often it was sent rules.
    pub rulings: AtomicUsize,
    pub(super) process: Mutex<Option<AbortHandle>>,
}

#[derive(Debug)]
pub(super) struct Now {
    pub(super) state: SandboxState,
    pub(super) is_claimed: bool,
    pub(super) terms: Terms,
    pub(super) env: BTreeMap<String, String>,
    /// The rules in force, if its network has any.
    pub(super) egress: Option<EgressDraft>,
}

impl Held {
    pub(super) fn new(start: Start) -> Self {
        let started = Event { seq: 1, at_ms: 1, body: EventBody::Started { unenforced: Vec::new() } };
        let now = Now {
            state: SandboxState::Running,
            is_claimed: !start.is_pooled,
            terms: start.terms,
            env: start.spec.env.clone().into_map(),
            egress: (start.spec.network == Some(NetworkMode::Proxied)).then(|| start.spec.egress.clone()),
        };
        Self {
            start,
            now: Mutex::new(now),
            events: watch::Sender::new(vec![started]),
            is_mute: watch::Sender::new(false),
            rulings: AtomicUsize::new(0),
            process: Mutex::default(),
        }
    }

    /// What it was told to hold.
    pub fn start(&self) -> &Start {
        &self.start
    }

    /// The environment that its execs would get.
    pub fn env(&self) -> BTreeMap<String, String> {
        self.now.lock().expect("ours").env.clone()
    }

    /// The rules in force.
    pub fn egress(&self) -> Option<EgressDraft> {
        self.now.lock().expect("ours").egress.clone()
    }

    /// Something happens in it.
    pub fn tell(&self, body: EventBody) {
        self.happen(body);
    }

    pub fn state(&self) -> SandboxState {
        self.now.lock().expect("ours").state
    }

    /// Its time is up, and it is frozen.
    pub fn pause_by_itself(&self) {
        self.change(SandboxState::Paused, EventBody::Paused { by_itself: true });
    }

    pub(super) fn claim(&self, terms: Terms, env: BTreeMap<String, String>) {
        let mut now = self.now.lock().expect("ours");
        now.is_claimed = true;
        now.terms = terms;
        now.env.extend(env);
        drop(now);
        self.happen(EventBody::Claimed);
    }

    pub(super) fn change(&self, state: SandboxState, body: EventBody) {
        self.now.lock().expect("ours").state = state;
        self.happen(body);
    }

    fn happen(&self, body: EventBody) {
        self.events.send_modify(|events| {
            let seq = events.len() as u64 + 1;
            events.push(Event { seq, at_ms: seq, body });
        });
    }

    pub(super) fn describe(&self) -> Description {
        let now = self.now.lock().expect("ours");
        Description {
            protocol: CONTROL,
            version: "fake".into(),
            sandbox_id: self.start.sandbox_id.clone(),
            pid: 1_000_000,
            state: now.state,
            is_claimed: now.is_claimed,
            ttl_left_ms: now.terms.ttl_ms,
            then: DeadlineAction::Kill,
            idle_ms: now.terms.idle_ms,
            idle_for_ms: 0,
            policy_hash: Spec::resolve(self.start.spec.clone())
                .map_or_else(|_| String::new(), |spec| spec.policy_hash().as_str().to_owned()),
            unenforced: Vec::new(),
            execs: Vec::new(),
            last_event: self.events.borrow().len() as u64,
            guest_protocol: 3,
            egress: now.egress.clone(),
            based_on: None,
            account: None,
            has_changes: false,
        }
    }

    pub(super) async fn tell_events(&self, after: u64, wire: &mut Wire) {
        let mut events = self.events.subscribe();
        let mut told = usize::try_from(after).expect("few");
        loop {
            let new = events.borrow_and_update()[told..].to_vec();
            told += new.len();
            for event in new {
                wire.write(&Reply::Event(Box::new(event))).await;
            }
            if events.changed().await.is_err() {
                return;
            }
        }
    }

    /// Last words, and no socket any more: as the real one, in this order.
    pub(super) fn leave(&self, reason: EndReason) -> Final {
        self.change(SandboxState::Ending, EventBody::Ending { reason });
        let last = Final {
            v: CONTROL,
            sandbox_id: self.start.sandbox_id.clone(),
            is_claimed: self.now.lock().expect("ours").is_claimed,
            reason,
            ended_ms: 1,
            usage: Sample::default(),
            execs: Vec::new(),
            events: self.events.borrow().clone(),
            error: None,
        };
        std::fs::write(self.path("ended", "json"), serde_json::to_vec(&last).expect("ours")).expect("writable");
        // One that was killed before has left none.
        let _ = std::fs::remove_file(self.path("control", "sock"));
        last
    }

    pub(super) fn path(&self, directory: &str, extension: &str) -> PathBuf {
        self.start.data_directory.join(directory).join(format!("{}.{extension}", self.start.sandbox_id))
    }
}
