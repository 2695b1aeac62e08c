//! What a worker needs from a store: claim runs, read, append, release.
//!
//! There are two implementations: the store, and the simulator's model of it, which also fails, delays and loses
//! responses. After an error it is unknown whether an append was made; the holder finds out by retrying.

use std::future::Future;

use saggar_domain::model::SandboxCalls;
use saggar_domain::{RunId, Timestamp, Uptime};
use saggar_store::{
    Append, Appended, BlobHash, Claimed, Error, Holder, JournalEntry, Lease, Letter, Now, Store, Taking,
};

use crate::sandboxes::now;

pub trait Journal: Clone + Send + Sync + 'static {
    /// Claims due runs that have no holder, raising their epochs.
    fn claim(
        &self,
        holder: Holder,
        at: Timestamp,
        lease: Lease,
        taking: Taking,
    ) -> impl Future<Output = Result<Vec<Claimed>, Error>> + Send;
    /// The runs of a holder: used after a claim whose outcome is unknown.
    fn held(&self, holder: Holder) -> impl Future<Output = Result<Vec<Claimed>, Error>> + Send;
    /// Whether there is a run to claim.
    fn is_due(&self, now: Now, taking: Taking) -> impl Future<Output = Result<bool, Error>> + Send;
    /// Whether a run waits for sandbox capacity.
    fn is_room_wanted(&self, now: Timestamp) -> impl Future<Output = Result<bool, Error>> + Send;
    /// Wakes the first runs that wait for capacity, because there is room for this many sandboxes.
    fn give_room(&self, now: Timestamp, most: u32) -> impl Future<Output = Result<usize, Error>> + Send;
    /// Extends every lease of a holder.
    fn renew(&self, holder: Holder, until: Uptime) -> impl Future<Output = Result<usize, Error>> + Send;
    /// Releases one run.
    fn release(&self, run: RunId, epoch: u64) -> impl Future<Output = Result<(), Error>> + Send;
    /// Marks that a finished run holds nothing any more.
    fn let_go(&self, run: RunId, epoch: u64) -> impl Future<Output = Result<(), Error>> + Send;
    /// Releases all runs of a dead holder.
    fn drop_holder(&self, holder: Holder, now: Timestamp) -> impl Future<Output = Result<usize, Error>> + Send;
    /// A holder's runs that have unread letters.
    fn with_letters(&self, holder: Holder) -> impl Future<Output = Result<Vec<RunId>, Error>> + Send;
    /// Wakes runs with unread letters: a new worker may be able to read letters that an older version left.
    fn wake_unread(&self, now: Timestamp) -> impl Future<Output = Result<usize, Error>> + Send;
    /// Unread letters of a run, in order.
    fn letters(&self, run: RunId) -> impl Future<Output = Result<Vec<Letter>, Error>> + Send;
    /// What programs in a run's sandboxes have asked of models so far.
    fn sandbox_calls(&self, run: RunId) -> impl Future<Output = Result<SandboxCalls, Error>> + Send;
    /// A page of entries after that number.
    fn page(&self, run: RunId, after: u64) -> impl Future<Output = Result<Vec<JournalEntry>, Error>> + Send;
    /// Appends if the writer still holds the run and knows its head.
    fn append(&self, append: Append) -> impl Future<Output = Result<Appended, Error>> + Send;
    /// Blocks a run with an unreadable journal until a human has decided. Does nothing if the caller no longer holds
    /// it.
    fn block(&self, run: RunId, epoch: u64, reason: String) -> impl Future<Output = Result<(), Error>> + Send;
    /// Stores bytes under their hash.
    fn put_blob(&self, bytes: Vec<u8>) -> impl Future<Output = Result<BlobHash, Error>> + Send;
    fn blob(&self, hash: BlobHash) -> impl Future<Output = Result<Option<Vec<u8>>, Error>> + Send;
}

impl Journal for Store {
    async fn claim(&self, holder: Holder, at: Timestamp, lease: Lease, taking: Taking) -> Result<Vec<Claimed>, Error> {
        self.claim_due(holder, at, lease, taking).await
    }

    async fn held(&self, holder: Holder) -> Result<Vec<Claimed>, Error> {
        self.runs_held_by(holder).await
    }

    async fn is_due(&self, now: Now, taking: Taking) -> Result<bool, Error> {
        self.is_run_due(now, taking).await
    }

    async fn is_room_wanted(&self, now: Timestamp) -> Result<bool, Error> {
        Store::is_room_wanted(self, now).await
    }

    async fn give_room(&self, now: Timestamp, most: u32) -> Result<usize, Error> {
        Store::give_room(self, now, most).await
    }

    async fn renew(&self, holder: Holder, until: Uptime) -> Result<usize, Error> {
        self.renew_leases(holder, until).await
    }

    async fn release(&self, run: RunId, epoch: u64) -> Result<(), Error> {
        self.release_run(run, epoch).await
    }

    async fn let_go(&self, run: RunId, epoch: u64) -> Result<(), Error> {
        self.let_go_run(run, epoch).await
    }

    async fn drop_holder(&self, holder: Holder, now: Timestamp) -> Result<usize, Error> {
        Store::drop_holder(self, holder, now).await
    }

    async fn with_letters(&self, holder: Holder) -> Result<Vec<RunId>, Error> {
        self.runs_with_letters(holder).await
    }

    async fn wake_unread(&self, now: Timestamp) -> Result<usize, Error> {
        Store::wake_unread(self, now).await
    }

    async fn letters(&self, run: RunId) -> Result<Vec<Letter>, Error> {
        Store::letters(self, run).await
    }

    async fn sandbox_calls(&self, run: RunId) -> Result<SandboxCalls, Error> {
        Store::sandbox_calls(self, run).await
    }

    async fn page(&self, run: RunId, after: u64) -> Result<Vec<JournalEntry>, Error> {
        self.journal_after(run, after).await
    }

    async fn append(&self, append: Append) -> Result<Appended, Error> {
        Store::append(self, append).await
    }

    async fn block(&self, run: RunId, epoch: u64, reason: String) -> Result<(), Error> {
        self.block_damaged(run, epoch, reason).await
    }

    async fn put_blob(&self, bytes: Vec<u8>) -> Result<BlobHash, Error> {
        Store::put_blob(self, bytes, now()).await
    }

    async fn blob(&self, hash: BlobHash) -> Result<Option<Vec<u8>>, Error> {
        Store::blob(self, hash).await
    }
}
