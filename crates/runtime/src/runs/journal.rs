//! What a worker needs of a store: to take runs, to read and append, to give back.
//!
//! Two things keep this contract: the store, and the simulator's model of it, which also fails, delays and forgets to answer. After an
//! error nobody knows whether the append was made; whoever holds the run can tell by trying it again.

use std::future::Future;

use saggar_domain::{RunId, Timestamp, Uptime};
use saggar_store::{
    Append, Appended, BlobHash, Claimed, Error, Holder, JournalEntry, Lease, Letter, Now, Store, Taking,
};

use crate::sandboxes::now;

/// Where runs are kept.
pub trait Journal: Clone + Send + Sync + 'static {
    /// Takes runs that are due and that nobody holds, raising their epochs.
    fn claim(
        &self,
        holder: Holder,
        at: Timestamp,
        lease: Lease,
        taking: Taking,
    ) -> impl Future<Output = Result<Vec<Claimed>, Error>> + Send;
    /// What a holder has: after a claim of which nobody knows whether it was made.
    fn held(&self, holder: Holder) -> impl Future<Output = Result<Vec<Claimed>, Error>> + Send;
    /// Whether there is something to take.
    fn is_due(&self, now: Now, taking: Taking) -> impl Future<Output = Result<bool, Error>> + Send;
    /// Whether a run waits for room for a sandbox.
    fn is_room_wanted(&self, now: Timestamp) -> impl Future<Output = Result<bool, Error>> + Send;
    /// There is room for so many sandboxes: wakes the first runs that wait for it.
    fn give_room(&self, now: Timestamp, most: u32) -> impl Future<Output = Result<usize, Error>> + Send;
    /// Prolongs every lease of a holder.
    fn renew(&self, holder: Holder, until: Uptime) -> impl Future<Output = Result<usize, Error>> + Send;
    /// Gives one run back.
    fn release(&self, run: RunId, epoch: u64) -> impl Future<Output = Result<(), Error>> + Send;
    /// A run that has finished holds nothing any more.
    fn let_go(&self, run: RunId, epoch: u64) -> impl Future<Output = Result<(), Error>> + Send;
    /// Gives back everything of a holder that is dead.
    fn drop_holder(&self, holder: Holder, now: Timestamp) -> impl Future<Output = Result<usize, Error>> + Send;
    /// Runs of a holder that somebody has written to.
    fn with_letters(&self, holder: Holder) -> impl Future<Output = Result<Vec<RunId>, Error>> + Send;
    /// Wakes runs with unread letters: a worker that begins may read what an older program left.
    fn wake_unread(&self, now: Timestamp) -> impl Future<Output = Result<usize, Error>> + Send;
    /// What waits for a run, in order.
    fn letters(&self, run: RunId) -> impl Future<Output = Result<Vec<Letter>, Error>> + Send;
    /// A page of entries after that number.
    fn page(&self, run: RunId, after: u64) -> impl Future<Output = Result<Vec<JournalEntry>, Error>> + Send;
    /// Appends, if the run is still the writer's and where they left it.
    fn append(&self, append: Append) -> impl Future<Output = Result<Appended, Error>> + Send;
    /// What the journal of a run says can't be read: nobody takes it until a person has decided. Does nothing for who no longer holds it.
    fn block(&self, run: RunId, epoch: u64, reason: String) -> impl Future<Output = Result<(), Error>> + Send;
    /// Keeps bytes under their hash.
    fn put_blob(&self, bytes: Vec<u8>) -> impl Future<Output = Result<BlobHash, Error>> + Send;
    /// The bytes of a hash.
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
