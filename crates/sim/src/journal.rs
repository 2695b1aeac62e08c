//! A worker's view of the store: slow, unreliable, and sometimes duplicating calls.
//!
//! A call that has left its worker is completed even if the worker is killed, just as a queued write is committed
//! though its process dies.

use std::future::pending;

use saggar_domain::model::SandboxCalls;
use saggar_domain::{RunId, Timestamp, Uptime};
use saggar_runtime::runs::Journal;
use saggar_store::{
    Append, Appended, BlobHash, Claimed, Error, Holder, JOURNAL_PAGE, JournalEntry, Lease, Letter, Now, Taking,
};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::faults::{AtCall, StoreFate};
use crate::memory::Memory;
use crate::world::World;

/// The store as seen by one worker.
#[derive(Clone, Debug)]
pub struct FaultyJournal {
    memory: Memory,
    world: World,
    worker: usize,
}

impl FaultyJournal {
    pub(crate) fn new(memory: Memory, world: World, worker: usize) -> Self {
        Self { memory, world, worker }
    }

    async fn call<T, F>(&self, name: &'static str, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Fn(&Memory) -> T + Send + 'static,
    {
        let fate = self.world.store_fate();
        self.send(name, fate, work).await
    }

    async fn send<T, F>(&self, name: &'static str, fate: StoreFate, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Fn(&Memory) -> T + Send + 'static,
    {
        sleep(fate.there).await;
        match fate.at_call {
            Some(AtCall::FailBefore) => return Err(Error::Busy),
            Some(AtCall::KillBefore) => {
                self.world.kill(self.worker);
                return pending().await;
            }
            Some(AtCall::FailAfter | AtCall::KillAfter) | None => {}
        }
        let (reply, answer) = oneshot::channel();
        let (memory, world, worker) = (self.memory.clone(), self.world.clone(), self.worker);
        tokio::spawn(async move {
            let done = work(&memory);
            world.note(format!("worker {worker}: {name}"));
            if let Some(again_after) = fate.again_after {
                tokio::spawn(async move {
                    sleep(again_after).await;
                    work(&memory);
                    world.note(format!("worker {worker}: {name}, again"));
                });
            }
            sleep(fate.back).await;
            // The worker may be gone.
            let _ = reply.send(done);
        });
        let done = answer.await.map_err(|_| Error::Stopped)?;
        match fate.at_call {
            Some(AtCall::FailAfter) => Err(Error::Failed { message: "the answer was lost".to_owned() }),
            Some(AtCall::KillAfter) => {
                self.world.kill(self.worker);
                pending().await
            }
            Some(AtCall::FailBefore | AtCall::KillBefore) | None => Ok(done),
        }
    }
}

impl Journal for FaultyJournal {
    async fn claim(&self, holder: Holder, at: Timestamp, lease: Lease, taking: Taking) -> Result<Vec<Claimed>, Error> {
        // A duplicated claim would take a run that no worker asked for; our stores never do that.
        let fate = StoreFate { again_after: None, ..self.world.store_fate() };
        self.send("claim", fate, move |memory| memory.claim(&holder, at, lease, taking)).await
    }

    async fn held(&self, holder: Holder) -> Result<Vec<Claimed>, Error> {
        self.call("held", move |memory| memory.held(&holder)).await
    }

    async fn is_due(&self, now: Now, taking: Taking) -> Result<bool, Error> {
        // Not counted as a call: workers poll this all the time.
        Ok(self.memory.is_due(now, taking))
    }

    async fn is_room_wanted(&self, now: Timestamp) -> Result<bool, Error> {
        Ok(self.memory.is_room_wanted(now))
    }

    async fn give_room(&self, now: Timestamp, most: u32) -> Result<usize, Error> {
        self.call("give room", move |memory| memory.give_room(now, most)).await
    }

    async fn renew(&self, holder: Holder, until: Uptime) -> Result<usize, Error> {
        self.call("renew", move |memory| memory.renew(&holder, until)).await
    }

    async fn release(&self, run: RunId, epoch: u64) -> Result<(), Error> {
        self.call("release", move |memory| memory.release(&run, epoch)).await
    }

    async fn let_go(&self, run: RunId, epoch: u64) -> Result<(), Error> {
        self.call("let go", move |memory| memory.let_go(&run, epoch)).await
    }

    async fn drop_holder(&self, holder: Holder, now: Timestamp) -> Result<usize, Error> {
        self.call("drop holder", move |memory| memory.drop_holder(&holder, now)).await
    }

    async fn with_letters(&self, holder: Holder) -> Result<Vec<RunId>, Error> {
        Ok(self.memory.with_letters(&holder))
    }

    async fn wake_unread(&self, now: Timestamp) -> Result<usize, Error> {
        // Not counted as a call: its failure has no consequences.
        Ok(self.memory.wake_unread(now))
    }

    async fn letters(&self, run: RunId) -> Result<Vec<Letter>, Error> {
        self.call("letters", move |memory| memory.letters(&run)).await
    }

    async fn sandbox_calls(&self, run: RunId) -> Result<SandboxCalls, Error> {
        self.call("sandbox calls", move |memory| memory.sandbox_calls(&run)).await
    }

    async fn page(&self, run: RunId, after: u64) -> Result<Vec<JournalEntry>, Error> {
        self.call("page", move |memory| memory.page(&run, after, JOURNAL_PAGE as usize)).await
    }

    async fn append(&self, append: Append) -> Result<Appended, Error> {
        let world = self.world.clone();
        self.call("append", move |memory| {
            let appended = memory.append(&append);
            world.check_append(&append, appended);
            appended
        })
        .await
    }

    async fn block(&self, run: RunId, epoch: u64, reason: String) -> Result<(), Error> {
        self.call("block", move |memory| memory.block(&run, epoch, &reason)).await
    }

    async fn put_blob(&self, bytes: Vec<u8>) -> Result<BlobHash, Error> {
        self.call("put blob", move |memory| memory.put_blob(&bytes)).await
    }

    async fn blob(&self, hash: BlobHash) -> Result<Option<Vec<u8>>, Error> {
        self.call("blob", move |memory| memory.blob(hash)).await
    }
}

/// Without faults, for the contract's own tests.
impl Journal for Memory {
    async fn claim(&self, holder: Holder, at: Timestamp, lease: Lease, taking: Taking) -> Result<Vec<Claimed>, Error> {
        Ok(Memory::claim(self, &holder, at, lease, taking))
    }

    async fn held(&self, holder: Holder) -> Result<Vec<Claimed>, Error> {
        Ok(Memory::held(self, &holder))
    }

    async fn is_due(&self, now: Now, taking: Taking) -> Result<bool, Error> {
        Ok(Memory::is_due(self, now, taking))
    }

    async fn is_room_wanted(&self, now: Timestamp) -> Result<bool, Error> {
        Ok(Memory::is_room_wanted(self, now))
    }

    async fn give_room(&self, now: Timestamp, most: u32) -> Result<usize, Error> {
        Ok(Memory::give_room(self, now, most))
    }

    async fn renew(&self, holder: Holder, until: Uptime) -> Result<usize, Error> {
        Ok(Memory::renew(self, &holder, until))
    }

    async fn release(&self, run: RunId, epoch: u64) -> Result<(), Error> {
        Memory::release(self, &run, epoch);
        Ok(())
    }

    async fn let_go(&self, run: RunId, epoch: u64) -> Result<(), Error> {
        Memory::let_go(self, &run, epoch);
        Ok(())
    }

    async fn drop_holder(&self, holder: Holder, now: Timestamp) -> Result<usize, Error> {
        Ok(Memory::drop_holder(self, &holder, now))
    }

    async fn with_letters(&self, holder: Holder) -> Result<Vec<RunId>, Error> {
        Ok(Memory::with_letters(self, &holder))
    }

    async fn wake_unread(&self, now: Timestamp) -> Result<usize, Error> {
        Ok(Memory::wake_unread(self, now))
    }

    async fn letters(&self, run: RunId) -> Result<Vec<Letter>, Error> {
        Ok(Memory::letters(self, &run))
    }

    async fn sandbox_calls(&self, run: RunId) -> Result<SandboxCalls, Error> {
        Ok(Memory::sandbox_calls(self, &run))
    }

    async fn page(&self, run: RunId, after: u64) -> Result<Vec<JournalEntry>, Error> {
        Ok(Memory::page(self, &run, after, JOURNAL_PAGE as usize))
    }

    async fn append(&self, append: Append) -> Result<Appended, Error> {
        Ok(Memory::append(self, &append))
    }

    async fn block(&self, run: RunId, epoch: u64, reason: String) -> Result<(), Error> {
        Memory::block(self, &run, epoch, &reason);
        Ok(())
    }

    async fn put_blob(&self, bytes: Vec<u8>) -> Result<BlobHash, Error> {
        Ok(Memory::put_blob(self, &bytes))
    }

    async fn blob(&self, hash: BlobHash) -> Result<Option<Vec<u8>>, Error> {
        Ok(Memory::blob(self, hash))
    }
}
