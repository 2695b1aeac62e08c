//! An in-memory model of the store's contract. The tests in `tests/contract.rs` run on this model and on the real
//! store.
//!
//! It has only what workers need, and no durability.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use saggar_domain::model::{CallAmount, SandboxCalls, TokenUsage};
use saggar_domain::{ProjectId, RunId, RunState, Timestamp, Uptime};
use saggar_engine::{Entry, Event};
use saggar_runtime::runs::{agent_of_entry, with_agent};
use saggar_store::{
    Append, Appended, BlobHash, Block, BlockKind, Claimed, Holder, JournalEntry, LEASE_MAX, Lease, LeftForSandboxes,
    Letter, NewLetter, NewRun, Now, RunRow, Taking,
};

/// Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    runs: BTreeMap<RunId, Kept>,
    inbox: Vec<(RunId, Letter)>,
    letters: i64,
    blobs: BTreeMap<String, Vec<u8>>,
}

#[derive(Debug)]
struct Kept {
    row: RunRow,
    lease_until: Option<Uptime>,
    entries: Vec<String>,
    /// The same, decoded.
    events: Vec<Event>,
    /// Calls of models by programs in its sandboxes.
    calls: SandboxCalls,
    left: LeftForSandboxes,
}

impl Kept {
    fn new(row: RunRow, events: Vec<Event>, first: String) -> Self {
        let (calls, left) = (SandboxCalls::default(), LeftForSandboxes::default());
        Self { row, lease_until: None, entries: vec![first], events, calls, left }
    }
}

impl Kept {
    fn is_free(&self, now: Uptime) -> bool {
        let is_held = |until| until > now && until <= now.after(LEASE_MAX);
        self.row.holder.is_none() || !self.lease_until.is_some_and(is_held)
    }

    fn waits_for_room(&self, now: Timestamp) -> bool {
        let is_later = self.row.wake_at.is_some_and(|at| at > now);
        self.row.room_since.is_some() && self.row.state == RunState::Waiting && is_later
    }

    fn is_due(&self, now: Now) -> bool {
        self.row.block.is_none() && self.row.wake_at.is_some_and(|at| at <= now.wall) && self.is_free(now.uptime)
    }
}

impl Inner {
    /// The next due runs, in the store's order: projects take turns, within limits.
    fn due(&self, now: Now, taking: Taking) -> Vec<RunId> {
        let mut held: Vec<&RunRow> =
            self.runs.values().filter(|kept| !kept.is_free(now.uptime)).map(|kept| &kept.row).collect();
        let mut due: Vec<&RunRow> = self.runs.values().filter(|kept| kept.is_due(now)).map(|kept| &kept.row).collect();
        let is_within = |held: &[&RunRow], row: &RunRow| {
            let of_project = held.iter().filter(|other| other.project == row.project);
            let of_agent = of_project.clone().filter(|other| other.agent == row.agent).count();
            of_project.count() < taking.per_project as usize && of_agent < taking.per_agent as usize
        };
        due.retain(|row| is_within(&held, row));
        due.sort_by_key(|row| (row.wake_at, &row.id));
        let mut turns: BTreeMap<&ProjectId, u64> = BTreeMap::new();
        held.iter().for_each(|row| *turns.entry(&row.project).or_default() += 1);
        due.sort_by_cached_key(|row| {
            let turn = turns.entry(&row.project).or_default();
            *turn += 1;
            *turn
        });
        let mut chosen = Vec::new();
        for row in due {
            let left = (taking.most as usize).saturating_sub(chosen.len());
            let has_none = held.iter().all(|other| other.project != row.project);
            if left > 0 && is_within(&held, row) && (has_none || left > taking.reserved as usize) {
                held.push(row);
                chosen.push(row.id.clone());
            }
        }
        chosen
    }

    /// Inserts a run, unless the id exists.
    fn create(&mut self, new: NewRun) {
        if self.runs.contains_key(&new.id) {
            return;
        }
        let row = RunRow {
            id: new.id.clone(),
            project: new.project,
            agent: new.agent,
            labels: new.labels,
            state: RunState::Queued,
            created_at: new.created_at,
            updated_at: new.created_at,
            head: 1,
            epoch: 0,
            holder: None,
            wake_at: Some(new.created_at),
            root: new.id.clone(),
            parent: None,
            child_of: new.child_of,
            generation: 0,
            room_since: None,
            sandbox: None,
            outcome: None,
            files: None,
            began_with: None,
            block: None,
        };
        let events = match agent_of_entry(1, &new.first) {
            // The blob must be stored before the entry that names it.
            Some(hash) => {
                with_agent(&new.first, &self.blobs[&hash.to_hex()]).map(|entry| entry.event).into_iter().collect()
            }
            None => decode(&new.first),
        };
        self.runs.insert(new.id, Kept::new(row, events, new.first));
    }

    fn put_letter(&mut self, new: NewLetter) -> bool {
        let kept = self.runs.get_mut(&new.run).filter(|kept| kept.row.project == new.project);
        let Some(kept) = kept.filter(|kept| kept.row.state != RunState::Finished) else { return false };
        kept.row.wake_at = Some(kept.row.wake_at.map_or(new.at, |at| at.min(new.at)));
        if !self.inbox.iter().any(|(run, letter)| *run == new.run && letter.id == new.id) {
            self.letters += 1;
            self.inbox.push((new.run, Letter { n: self.letters, id: new.id, at: new.at, body: new.body }));
        }
        true
    }

    /// A new letter from one run to another replaces the earlier one.
    fn deliver(&mut self, new: NewLetter) {
        self.inbox.retain(|(run, letter)| *run != new.run || letter.id != new.id);
        self.put_letter(new);
    }
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Inserts a run that is due at once.
    pub fn create(&self, new: NewRun) {
        self.lock().create(new);
    }

    /// Adds a letter; `false` if the run is over or doesn't exist.
    pub fn put_letter(&self, new: NewLetter) -> bool {
        self.lock().put_letter(new)
    }

    pub fn row(&self, run: &RunId) -> Option<RunRow> {
        self.lock().runs.get(run).map(|kept| kept.row.clone())
    }

    pub fn ids(&self) -> Vec<RunId> {
        self.lock().runs.keys().cloned().collect()
    }

    /// Reads a run's journal.
    pub fn events<T>(&self, run: &RunId, look: impl FnOnce(&[Event]) -> T) -> T {
        let inner = self.lock();
        look(inner.runs.get(run).map(|kept| kept.events.as_slice()).unwrap_or_default())
    }

    /// Unread letters of a run.
    pub fn letters(&self, run: &RunId) -> Vec<Letter> {
        self.lock().inbox.iter().filter(|(of, _)| of == run).map(|(_, letter)| letter.clone()).collect()
    }

    /// A program in a sandbox of a run calls a model, which may come to so much; `false` if it is refused.
    pub fn begin_call(&self, run: &RunId, amount: CallAmount) -> bool {
        let mut inner = self.lock();
        let kept = inner.runs.get_mut(run).filter(|kept| kept.row.state != RunState::Finished);
        let Some(kept) = kept else { return false };
        if kept.left.is_exceeded_by(kept.calls.at_most().plus(amount)) {
            return false;
        }
        kept.calls.under_way = kept.calls.under_way.plus(amount);
        true
    }

    /// It has ended, and came to this much.
    pub fn end_call(&self, run: &RunId, amount: CallAmount, usage: &TokenUsage) {
        if let Some(kept) = self.lock().runs.get_mut(run) {
            let under_way = &mut kept.calls.under_way;
            under_way.tokens -= amount.tokens;
            under_way.micros -= amount.micros;
            kept.calls.models.entry("m".to_owned()).or_default().add(usage);
        }
    }

    /// What programs in a run's sandboxes have asked of models so far.
    pub fn sandbox_calls(&self, run: &RunId) -> SandboxCalls {
        self.lock().runs.get(run).map(|kept| kept.calls.clone()).unwrap_or_default()
    }

    pub(crate) fn claim(&self, holder: &Holder, at: Timestamp, lease: Lease, taking: Taking) -> Vec<Claimed> {
        let now = Now { wall: at, uptime: lease.from };
        let mut inner = self.lock();
        let mut claimed = Vec::new();
        for id in inner.due(now, taking) {
            let Some(kept) = inner.runs.get_mut(&id) else { continue };
            let run = kept.row.clone();
            kept.row.epoch += 1;
            kept.row.holder = Some(holder.clone());
            kept.row.updated_at = at;
            kept.lease_until = Some(lease.until);
            claimed.push(Claimed { run, epoch: kept.row.epoch });
        }
        claimed
    }

    pub(crate) fn held(&self, holder: &Holder) -> Vec<Claimed> {
        let inner = self.lock();
        let held = inner.runs.values().filter(|kept| kept.row.holder.as_ref() == Some(holder));
        held.map(|kept| Claimed { run: kept.row.clone(), epoch: kept.row.epoch }).collect()
    }

    pub(crate) fn is_due(&self, now: Now, taking: Taking) -> bool {
        !self.lock().due(now, taking).is_empty()
    }

    pub(crate) fn is_room_wanted(&self, now: Timestamp) -> bool {
        self.lock().runs.values().any(|kept| kept.waits_for_room(now))
    }

    pub(crate) fn give_room(&self, now: Timestamp, most: u32) -> usize {
        let mut inner = self.lock();
        let mut turns: BTreeMap<ProjectId, u64> = BTreeMap::new();
        let mut queue: Vec<&mut Kept> = inner.runs.values_mut().filter(|kept| kept.waits_for_room(now)).collect();
        queue.sort_by_key(|kept| (kept.row.room_since, kept.row.id.clone()));
        queue.sort_by_cached_key(|kept| {
            let turn = turns.entry(kept.row.project.clone()).or_default();
            *turn += 1;
            *turn
        });
        let first = queue.into_iter().filter(|kept| kept.row.holder.is_none()).take(most as usize);
        first.map(|kept| kept.row.wake_at = Some(now)).count()
    }

    pub(crate) fn renew(&self, holder: &Holder, until: Uptime) -> usize {
        let mut inner = self.lock();
        let held = inner.runs.values_mut().filter(|kept| kept.row.holder.as_ref() == Some(holder));
        held.map(|kept| kept.lease_until = Some(until)).count()
    }

    pub(crate) fn release(&self, run: &RunId, epoch: u64) {
        if let Some(kept) = self.lock().runs.get_mut(run).filter(|kept| kept.row.epoch == epoch) {
            (kept.row.holder, kept.lease_until) = (None, None);
        }
    }

    pub(crate) fn block(&self, run: &RunId, epoch: u64, reason: &str) {
        let mut inner = self.lock();
        let kept = inner.runs.get_mut(run).filter(|kept| kept.row.epoch == epoch && kept.row.block.is_none());
        if let Some(kept) = kept {
            (kept.row.holder, kept.lease_until) = (None, None);
            kept.row.block = Some(Block { kind: BlockKind::Damaged, reason: reason.to_owned() });
            if kept.row.state != RunState::Finished {
                kept.row.state = RunState::Parked;
            }
        }
    }

    pub(crate) fn let_go(&self, run: &RunId, epoch: u64) {
        let mut inner = self.lock();
        let kept = inner.runs.get_mut(run).filter(|kept| kept.row.epoch == epoch);
        if let Some(kept) = kept.filter(|kept| kept.row.state == RunState::Finished) {
            (kept.row.holder, kept.lease_until, kept.row.wake_at) = (None, None, None);
        }
    }

    pub(crate) fn drop_holder(&self, holder: &Holder, now: Timestamp) -> usize {
        let mut inner = self.lock();
        let held = inner.runs.values_mut().filter(|kept| kept.row.holder.as_ref() == Some(holder));
        held.map(|kept| {
            (kept.row.holder, kept.lease_until) = (None, None);
            kept.row.wake_at = Some(kept.row.wake_at.map_or(now, |at| at.min(now)));
        })
        .count()
    }

    pub(crate) fn with_letters(&self, holder: &Holder) -> Vec<RunId> {
        let inner = self.lock();
        let held = inner.runs.values().filter(|kept| kept.row.holder.as_ref() == Some(holder));
        let ids = held.map(|kept| kept.row.id.clone());
        ids.filter(|id| inner.inbox.iter().any(|(run, _)| run == id)).collect()
    }

    pub(crate) fn wake_unread(&self, now: Timestamp) -> usize {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let has_letters = |id: &RunId| inner.inbox.iter().any(|(run, _)| run == id);
        let unread = inner.runs.iter_mut().filter(|(id, kept)| kept.row.state != RunState::Finished && has_letters(id));
        unread.map(|(_, kept)| kept.row.wake_at = Some(kept.row.wake_at.map_or(now, |at| at.min(now)))).count()
    }

    pub(crate) fn page(&self, run: &RunId, after: u64, most: usize) -> Vec<JournalEntry> {
        let inner = self.lock();
        let entries = inner.runs.get(run).map(|kept| kept.entries.as_slice()).unwrap_or_default();
        let numbered = (1..).zip(entries).filter(|(seq, _)| *seq > after).take(most);
        numbered.map(|(seq, entry)| JournalEntry { seq, entry: entry.clone() }).collect()
    }

    pub(crate) fn append(&self, append: &Append) -> Appended {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let Some(kept) = inner.runs.get_mut(&append.run) else { return Appended::Absent };
        if kept.row.epoch != append.epoch {
            return Appended::Fenced { epoch: kept.row.epoch };
        }
        if kept.row.head != append.head {
            return Appended::Moved { head: kept.row.head };
        }
        if kept.row.state == RunState::Finished {
            return Appended::Finished;
        }
        if let Some(known) = append.known_calls {
            let now = kept.calls.at_most();
            let has_grown = now.tokens > known.amount.tokens || now.micros > known.amount.micros;
            if has_grown && (!known.may_grow || append.left.is_exceeded_by(now)) {
                return Appended::Overtaken;
            }
        }
        kept.left = append.left;
        kept.events.extend(append.entries.iter().flat_map(|entry| decode(entry)));
        kept.entries.extend(append.entries.iter().cloned());
        let summary = &append.summary;
        let is_over = summary.state == RunState::Finished;
        inner.inbox.retain(|(run, letter)| *run != append.run || !(is_over || append.consumed.contains(&letter.n)));
        let has_letters = inner.inbox.iter().any(|(run, letter)| *run == append.run && letter.n > append.seen);
        kept.row.head += append.entries.len() as u64;
        let is_running = summary.state == RunState::Running && kept.row.state == RunState::Running;
        // A run that continues to wait as before is already due, and stays so.
        let has_room = summary.room_since.is_none() && kept.row.room_since.is_none();
        let goes_on =
            is_running && has_room && summary.sandbox.is_none() && kept.row.wake_at.is_some_and(|at| at <= summary.at);
        kept.row.state = summary.state;
        kept.row.updated_at = summary.at;
        kept.row.outcome = summary.outcome.clone();
        kept.row.room_since = summary.room_since;
        if !goes_on {
            kept.row.wake_at = summary.wake_at;
        }
        if has_letters && !goes_on {
            kept.row.wake_at = Some(summary.wake_at.map_or(summary.at, |at| at.min(summary.at)));
        }
        if let Some(sandbox) = &summary.sandbox {
            kept.row.sandbox = Some(sandbox.clone());
        }
        if let Some(files) = &append.files {
            kept.row.files = Some(files.clone());
        }
        if let Some(generation) = append.generation {
            (kept.row.generation, kept.row.sandbox) = (generation, None);
        }
        if is_over && kept.row.wake_at.is_none() {
            (kept.row.holder, kept.lease_until) = (None, None);
        }
        let head = kept.row.head;
        append.children.iter().for_each(|child| inner.create(child.clone()));
        append.letters.iter().for_each(|letter| inner.deliver(letter.clone()));
        Appended::Done { head }
    }

    pub(crate) fn put_blob(&self, bytes: &[u8]) -> BlobHash {
        let hash = BlobHash::of(bytes);
        self.lock().blobs.insert(hash.to_hex(), bytes.to_vec());
        hash
    }

    pub(crate) fn blob(&self, hash: BlobHash) -> Option<Vec<u8>> {
        self.lock().blobs.get(&hash.to_hex()).cloned()
    }
}

/// Empty for text that isn't an entry: the contract's own tests append arbitrary text.
fn decode(entry: &str) -> Vec<Event> {
    Entry::decode(entry).map(|entry| entry.event).into_iter().collect()
}
