//! Tests of the writer from inside: groups can't be observed through the public interface.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::store::Store;

const INSERT: &str = "INSERT INTO meta (key, value) VALUES (?1, '')";
const WAIT: Duration = Duration::from_secs(20);

/// A store in its own directory.
struct Fixture {
    store: Option<Store>,
    directory: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let mut bits = [0; 16];
        rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty()).unwrap();
        let directory = std::env::temp_dir().join(format!("saggar-writer-{:032x}", u128::from_ne_bytes(bits)));
        Self { store: Some(Store::open(&directory).unwrap()), directory }
    }

    fn store(&self) -> Store {
        self.store.clone().unwrap()
    }

    async fn keys(&self) -> Vec<String> {
        let read = |connection: &Connection| {
            let mut statement = connection.prepare("SELECT key FROM meta WHERE key <> 'opens' ORDER BY key")?;
            let keys = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
            Ok(keys)
        };
        self.store().read(read).await.unwrap()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.store = None;
        std::fs::remove_dir_all(&self.directory).unwrap();
    }
}

/// Holds the writer in a write, so that all writes that arrive meanwhile form one group.
struct Held {
    go: mpsc::SyncSender<()>,
    done: tokio::task::JoinHandle<Result<(), Error>>,
}

impl Held {
    async fn new(store: &Store) -> Self {
        let (go, gone) = mpsc::sync_channel(1);
        let (entered, is_in) = oneshot::channel();
        let (gone, entered) = (std::sync::Mutex::new(gone), std::sync::Mutex::new(Some(entered)));
        let store = store.clone();
        let work = move |_: &Connection| {
            if let Some(entered) = entered.lock().unwrap().take() {
                entered.send(()).unwrap();
            }
            gone.lock().unwrap().recv_timeout(WAIT).unwrap();
            Ok(())
        };
        let done = tokio::spawn(async move { store.write(Durability::Process, work).await });
        is_in.await.unwrap();
        Self { go, done }
    }

    async fn release(self) {
        self.go.send(()).unwrap();
        self.done.await.unwrap().unwrap();
    }
}

/// Polls a write until it is queued, and returns the rest of the future.
async fn queue<T>(write: impl Future<Output = Result<T, Error>>) -> impl Future<Output = Result<T, Error>> {
    let mut write = Box::pin(write);
    let is_pending = std::future::poll_fn(|context| std::task::Poll::Ready(write.as_mut().poll(context).is_pending()));
    assert!(is_pending.await, "the writer is held, so nothing can be done yet");
    write
}

fn insert(connection: &Connection, key: &str) -> Result<(), Error> {
    connection.execute(INSERT, [key])?;
    Ok(())
}

fn synchronous(connection: &Connection) -> Result<u32, Error> {
    Ok(connection.query_row("PRAGMA synchronous", [], |row| row.get(0))?)
}

#[tokio::test]
async fn a_failing_member_undoes_itself_alone_and_the_group_is_one_transaction() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let held = Held::new(&store).await;
    let first = queue(store.write(Durability::Process, |connection| insert(connection, "first"))).await;
    let failing = queue(store.write::<(), _>(Durability::Process, |connection| {
        insert(connection, "undone")?;
        insert(connection, "first")
    }))
    .await;
    let path = fixture.directory.join("saggar.db");
    let last = queue(store.write(Durability::Process, move |connection| {
        insert(connection, "last")?;
        // Outside of the transaction nothing of the group is visible yet, though its first write is done.
        let outside = Connection::open(&path)?;
        Ok(outside.query_row("SELECT count(*) FROM meta WHERE key <> 'opens'", [], |row| row.get::<_, u32>(0))?)
    }))
    .await;
    held.release().await;
    assert_eq!(first.await, Ok(()));
    assert_eq!(failing.await, Err(Error::Taken { what: "a row" }));
    assert_eq!(last.await, Ok(0));
    assert_eq!(fixture.keys().await, ["first", "last"]);
}

#[tokio::test]
async fn a_lost_transaction_is_tried_again_one_by_one() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let held = Held::new(&store).await;
    let before = queue(store.write(Durability::Process, |connection| insert(connection, "before"))).await;
    let breaking = queue(store.write::<(), _>(Durability::Process, |connection| {
        // SQLite itself does this on a full disk.
        connection.execute_batch("ROLLBACK")?;
        Err(Error::Full)
    }))
    .await;
    let after = queue(store.write(Durability::Process, |connection| insert(connection, "after"))).await;
    held.release().await;
    assert_eq!((before.await, breaking.await, after.await), (Ok(()), Err(Error::Full), Ok(())));
    assert_eq!(fixture.keys().await, ["after", "before"]);
}

#[tokio::test]
async fn no_room_for_one_is_no_loss_for_the_others() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let limit = |pages: &'static str| {
        move |connection: &Connection| -> Result<(), Error> {
            let now: u32 = connection.query_row("PRAGMA page_count", [], |row| row.get(0))?;
            let most = if pages == "now" { now } else { 1 << 20 };
            connection.query_row(&format!("PRAGMA max_page_count = {most}"), [], |_| Ok(()))?;
            Ok(())
        }
    };
    store.write(Durability::Process, limit("now")).await.unwrap();
    let held = Held::new(&store).await;
    let small = queue(store.write(Durability::Process, |connection| insert(connection, "small"))).await;
    let large = queue(store.write(Durability::Process, |connection| insert(connection, &"x".repeat(1 << 20)))).await;
    let other = queue(store.write(Durability::Process, |connection| insert(connection, "small too"))).await;
    held.release().await;
    assert_eq!((small.await, large.await, other.await), (Ok(()), Err(Error::Full), Ok(())));
    store.write(Durability::Process, limit("more")).await.unwrap();
    store.write(Durability::Process, |connection| insert(connection, &"y".repeat(1 << 20))).await.unwrap();
    assert_eq!(fixture.keys().await.len(), 3);
}

#[tokio::test]
async fn a_group_is_as_durable_as_its_most_durable_member() {
    let fixture = Fixture::new();
    let store = fixture.store();
    assert_eq!(store.write(Durability::Process, synchronous).await, Ok(1));
    assert_eq!(store.write(Durability::Power, synchronous).await, Ok(2));
    let held = Held::new(&store).await;
    let process = queue(store.write(Durability::Process, synchronous)).await;
    let power = queue(store.write(Durability::Power, synchronous)).await;
    held.release().await;
    assert_eq!((process.await, power.await), (Ok(2), Ok(2)));
    assert_eq!(store.write(Durability::Process, synchronous).await, Ok(1));
}

#[tokio::test]
async fn after_a_panic_everyone_gets_an_error_and_nobody_hangs() {
    let fixture = Fixture::new();
    let store = fixture.store();
    store.write(Durability::Process, |connection| insert(connection, "acknowledged")).await.unwrap();
    let held = Held::new(&store).await;
    let panicking = queue(store.write::<(), _>(Durability::Process, |_| panic!("a bug"))).await;
    let behind = queue(store.write(Durability::Process, |connection| insert(connection, "behind"))).await;
    held.release().await;
    let all = async {
        assert_eq!(panicking.await, Err(Error::Stopped));
        assert_eq!(behind.await, Err(Error::Stopped));
        for _ in 0..QUEUE_MAX + GROUP_MAX {
            let later = store.write(Durability::Process, |connection| insert(connection, "later"));
            assert_eq!(later.await, Err(Error::Stopped));
        }
    };
    tokio::time::timeout(WAIT, all).await.unwrap();
    assert_eq!(fixture.keys().await, ["acknowledged"]);
}

#[tokio::test]
async fn a_write_that_nobody_waits_for_is_done_all_the_same() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let held = Held::new(&store).await;
    drop(queue(store.write(Durability::Process, |connection| insert(connection, "left"))).await);
    held.release().await;
    store.write(Durability::Process, |connection| insert(connection, "next")).await.unwrap();
    assert_eq!(fixture.keys().await, ["left", "next"]);
}

#[tokio::test]
async fn what_is_queued_when_the_last_handle_goes_is_written() {
    let mut fixture = Fixture::new();
    let store = fixture.store();
    for index in 0..100 {
        let key = format!("{index:03}");
        poll_once(store.write(Durability::Process, move |connection| insert(connection, &key))).await;
    }
    drop(store);
    fixture.store = None;
    fixture.store = Some(Store::open(&fixture.directory).unwrap());
    assert_eq!(fixture.keys().await.len(), 100);
}

/// Polls a write once, which queues it, and drops it.
async fn poll_once<T>(write: impl Future<Output = Result<T, Error>>) {
    let mut write = Box::pin(write);
    std::future::poll_fn(|context| std::task::Poll::Ready(write.as_mut().poll(context).is_ready())).await;
}
