//! The journal's contract, tested on the simulator's model and on the store. Simulations prove something only if both
//! behave alike.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

use std::path::PathBuf;
use std::time::Duration;

use saggar_domain::{ProjectId, RunId, RunState, Timestamp, Uptime};
use saggar_runtime::runs::Journal;
use saggar_sim::Memory;
use saggar_store::{
    Append, Appended, Holder, JsonText, Lease, LetterRoom, NewLetter, NewRun, Now, Store, Summary, Taking,
};

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const ANY: Taking = Taking { most: 100, reserved: 0, per_agent: 100, per_project: 100 };

/// A journal, plus the operations that workers don't have.
trait Kept {
    type Journal: Journal;
    fn journal(&self) -> &Self::Journal;
    async fn create(&self, new: NewRun);
    async fn put_letter(&self, letter: NewLetter);
    fn project(&self) -> ProjectId;
}

struct InMemory(Memory);

impl Kept for InMemory {
    type Journal = Memory;

    fn journal(&self) -> &Memory {
        &self.0
    }

    async fn create(&self, new: NewRun) {
        self.0.create(new);
    }

    async fn put_letter(&self, letter: NewLetter) {
        assert!(self.0.put_letter(letter));
    }

    fn project(&self) -> ProjectId {
        ProjectId::from_random([1; 16])
    }
}

struct InStore(Store, ProjectId, PathBuf);

impl Kept for InStore {
    type Journal = Store;

    fn journal(&self) -> &Store {
        &self.0
    }

    async fn create(&self, new: NewRun) {
        self.0.create_run(new, None).await.unwrap();
    }

    async fn put_letter(&self, letter: NewLetter) {
        self.0.put_letter(letter, LetterRoom::Data).await.unwrap();
    }

    fn project(&self) -> ProjectId {
        self.1.clone()
    }
}

impl Drop for InStore {
    fn drop(&mut self) {
        // The directory is no longer used, so a leftover is harmless.
        let _ = std::fs::remove_dir_all(&self.2);
    }
}

async fn in_store(name: &str) -> InStore {
    let directory = std::env::temp_dir().join(format!("saggar-sim-{name}-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let store = Store::open(&directory).unwrap();
    let project = store.default_project(ProjectId::from_random([1; 16]), NOW).await.unwrap().id;
    InStore(store, project, directory)
}

fn run(number: u8) -> RunId {
    RunId::from_random([number; 16])
}

fn holder(name: &str) -> Holder {
    Holder::parse(name).unwrap()
}

/// The clock of leases runs with the wall clock here.
fn up(at: Timestamp) -> Uptime {
    Uptime::from_millis(at.as_millis() - NOW.before(Duration::from_secs(7200)).as_millis())
}

fn both(at: Timestamp) -> Now {
    Now { wall: at, uptime: up(at) }
}

fn lease(from: Timestamp) -> Lease {
    Lease { from: up(from), until: up(from).after(Duration::from_secs(1)) }
}

fn append(id: &RunId, epoch: u64, head: u64, state: RunState, wake_at: Option<Timestamp>) -> Append {
    let outcome = (state == RunState::Finished).then(|| JsonText::parse("{}").unwrap());
    let summary = Summary { state, at: NOW, wake_at, outcome, room_since: None, sandbox: None };
    Append {
        run: id.clone(),
        epoch,
        head,
        entries: vec!["entry".to_owned()],
        summary,
        consumed: Vec::new(),
        seen: 0,
        children: Vec::new(),
        letters: Vec::new(),
        files: None,
        generation: None,
        left: Default::default(),
        known_calls: None,
    }
}

/// Everything that happens to three runs, as lines; equal for every implementation of the contract.
async fn story(kept: &impl Kept) -> Vec<String> {
    let mut lines = Vec::new();
    let journal = kept.journal();
    for number in 1..=3 {
        let created_at = NOW.after(Duration::from_millis(number.into()));
        let new = NewRun {
            id: run(number),
            project: kept.project(),
            agent: "a".to_owned(),
            labels: saggar_domain::Labels::default(),
            created_at,
            first: "first".to_owned(),
            child_of: None,
        };
        kept.create(new).await;
    }
    let taken = |claimed: Vec<saggar_store::Claimed>| {
        let taken = claimed.iter().map(|claimed| format!("{} {}", claimed.run.id, claimed.epoch));
        taken.collect::<Vec<_>>().join(", ")
    };
    let later = NOW.after(Duration::from_secs(10));
    let due = (journal.is_due(both(NOW), ANY).await, journal.is_due(both(later), ANY).await);
    lines.push(format!("due: {:?} {:?}", due.0, due.1));
    let first = Taking { most: 2, ..ANY };
    lines.push(taken(journal.claim(holder("one"), later, lease(later), first).await.unwrap()));
    lines.push(taken(journal.claim(holder("two"), later, lease(later), Taking { per_agent: 2, ..ANY }).await.unwrap()));
    lines.push(taken(journal.claim(holder("two"), later, lease(later), ANY).await.unwrap()));
    lines.push(taken(journal.held(holder("one")).await.unwrap()));
    lines.push(format!("{:?}", journal.append(append(&run(1), 1, 1, RunState::Running, Some(NOW))).await));
    lines.push(format!("{:?}", journal.append(append(&run(1), 1, 1, RunState::Running, Some(NOW))).await));
    lines.push(format!("{:?}", journal.append(append(&run(1), 7, 2, RunState::Running, Some(NOW))).await));
    lines.push(format!("{:?}", journal.append(append(&run(9), 1, 0, RunState::Running, Some(NOW))).await));
    // A renewed lease lasts longer. After it, another worker claims the run, and the first can do nothing.
    lines.push(format!("{:?}", journal.renew(holder("one"), up(later.after(Duration::from_secs(5)))).await));
    let then = later.after(Duration::from_secs(2));
    lines.push(taken(journal.claim(holder("three"), then, lease(then), ANY).await.unwrap()));
    let then = later.after(Duration::from_secs(6));
    lines.push(taken(journal.claim(holder("three"), then, lease(then), ANY).await.unwrap()));
    lines.push(format!("{:?}", journal.append(append(&run(1), 1, 2, RunState::Running, Some(NOW))).await));
    lines.push(format!("{:?}", journal.renew(holder("one"), up(then)).await));
    // The run sleeps forever unless a letter arrives; a letter that arrives before the append keeps it awake.
    let letter = |id: &str| NewLetter {
        project: kept.project(),
        run: run(1),
        id: id.to_owned(),
        at: NOW,
        body: JsonText::parse("1").unwrap(),
    };
    kept.put_letter(letter("a")).await;
    kept.put_letter(letter("a")).await;
    lines.push(format!("{:?}", journal.with_letters(holder("three")).await));
    let letters = journal.letters(run(1)).await.unwrap();
    lines.push(format!("{:?}", letters.iter().map(|letter| letter.id.clone()).collect::<Vec<_>>()));
    lines.push(format!("{:?}", journal.append(append(&run(1), 2, 2, RunState::Asking, None)).await));
    journal.release(run(1), 1).await.unwrap();
    lines.push(taken(journal.claim(holder("four"), then, lease(then), ANY).await.unwrap()));
    journal.release(run(1), 2).await.unwrap();
    lines.push(taken(journal.claim(holder("four"), then, lease(then), ANY).await.unwrap()));
    let consuming = Append { consumed: vec![letters[0].n], ..append(&run(1), 3, 3, RunState::Asking, None) };
    lines.push(format!("{:?}", journal.append(consuming).await));
    journal.release(run(1), 3).await.unwrap();
    lines.push(format!("due: {:?}", taken(journal.claim(holder("five"), then, lease(then), ANY).await.unwrap())));
    kept.put_letter(letter("b")).await;
    lines.push(taken(journal.claim(holder("five"), then, lease(then), ANY).await.unwrap()));
    lines.push(format!("{:?}", journal.append(append(&run(1), 4, 4, RunState::Finished, None)).await));
    lines.push(format!("{:?}", journal.append(append(&run(1), 4, 5, RunState::Running, Some(NOW))).await));
    lines.push(format!("{:?}", journal.letters(run(1)).await.unwrap().len()));
    lines.push(format!("{:?}", journal.drop_holder(holder("five"), then).await));
    lines.push(format!("{:?}", journal.drop_holder(holder("three"), then).await));
    lines.push(taken(journal.claim(holder("six"), then, lease(then), ANY).await.unwrap()));
    // A lease that ends later than any possible lease was given in an earlier boot.
    let back = NOW.after(Duration::from_secs(5)).before(Duration::from_secs(3));
    lines.push(format!("{:?}", journal.renew(holder("six"), up(then.after(Duration::from_secs(3600)))).await));
    lines.push(taken(journal.claim(holder("seven"), back, lease(back), ANY).await.unwrap()));
    // A child exists with the append that starts it; a newer letter replaces the earlier one; a finished run is held
    // until it is released.
    let child = NewRun {
        id: run(8),
        project: kept.project(),
        agent: "child".to_owned(),
        labels: saggar_domain::Labels::default(),
        created_at: NOW,
        first: "first".to_owned(),
        child_of: Some((run(2), 2)),
    };
    let word = |text: &str| NewLetter { run: run(8), body: JsonText::parse(text).unwrap(), ..letter("@parent") };
    let held = taken(journal.held(holder("seven")).await.unwrap());
    let epoch = journal.held(holder("seven")).await.unwrap()[0].epoch;
    lines.push(held);
    let starts = Append {
        children: vec![child.clone()],
        letters: vec![word("1")],
        ..append(&run(2), epoch, 1, RunState::Waiting, None)
    };
    lines.push(format!("{:?}", journal.append(Append { epoch: 99, ..starts.clone() }).await));
    lines.push(format!("{:?}", journal.letters(run(8)).await.unwrap().len()));
    lines.push(format!("{:?} {:?}", journal.append(starts.clone()).await, journal.append(starts).await));
    let says = Append {
        children: vec![child],
        letters: vec![word("2")],
        ..append(&run(2), epoch, 2, RunState::Waiting, None)
    };
    lines.push(format!("{:?}", journal.append(says).await));
    let waiting = journal.letters(run(8)).await.unwrap();
    lines.push(format!("{:?}", waiting.iter().map(|letter| letter.body.as_str().to_owned()).collect::<Vec<_>>()));
    lines.push(taken(journal.claim(holder("eight"), back, lease(back), ANY).await.unwrap()));
    lines.push(format!("{:?}", journal.append(append(&run(8), 1, 1, RunState::Finished, Some(NOW))).await));
    lines.push(format!("{:?}", journal.drop_holder(holder("eight"), back).await));
    lines.push(taken(journal.claim(holder("nine"), back, lease(back), ANY).await.unwrap()));
    journal.let_go(run(8), 1).await.unwrap();
    lines.push(taken(journal.held(holder("nine")).await.unwrap()));
    journal.let_go(run(8), 2).await.unwrap();
    lines.push(format!(
        "{:?} {:?}",
        journal.held(holder("nine")).await.unwrap().len(),
        journal.is_due(both(then), ANY).await
    ));
    // Setting the wall clock forward ends no lease. A run with an unreadable journal is not claimed until a human
    // unblocks it.
    let held = journal.claim(holder("ten"), then, lease(then), ANY).await.unwrap();
    lines.push(taken(held.clone()));
    let late = Now { wall: then.after(Duration::from_secs(3600)), uptime: up(then) };
    lines.push(format!("{:?}", journal.is_due(late, ANY).await));
    lines.push(taken(journal.claim(holder("eleven"), late.wall, lease(then), ANY).await.unwrap()));
    let (unread, epoch) = (held[0].run.id.clone(), held[0].epoch);
    journal.block(unread.clone(), epoch + 1, "not whose it is".to_owned()).await.unwrap();
    lines.push(taken(journal.held(holder("ten")).await.unwrap()));
    journal.block(unread, epoch, "damaged".to_owned()).await.unwrap();
    lines.push(taken(journal.held(holder("ten")).await.unwrap()));
    journal.drop_holder(holder("ten"), then).await.unwrap();
    lines.push(taken(journal.claim(holder("eleven"), then, lease(then), ANY).await.unwrap()));
    let page = journal.page(run(1), 1).await.unwrap();
    lines.push(format!("{:?}", page.iter().map(|entry| (entry.seq, entry.entry.clone())).collect::<Vec<_>>()));
    let hash = journal.put_blob(vec![1, 2, 3]).await.unwrap();
    lines.push(format!("{:?} {:?}", hash.to_hex(), journal.blob(hash).await));
    lines
}

#[tokio::test]
async fn the_model_and_the_store_tell_the_same_story() {
    let kept = in_store("story").await;
    let (model, store) = (story(&InMemory(Memory::default())).await, story(&kept).await);
    assert_eq!(model, store);
    assert!(
        model.contains(&format!("{:?}", Ok::<_, saggar_store::Error>(Appended::Fenced { epoch: 2 }))),
        "{model:#?}"
    );
    assert!(model.contains(&format!("{:?}", Ok::<_, saggar_store::Error>(Appended::Finished))), "{model:#?}");
    assert!(model.len() > 40);
    assert!(model.contains(&"[\"2\"]".to_owned()), "{model:#?}");
}
