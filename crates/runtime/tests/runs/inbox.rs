//! An inbox full of answers that nobody asked for, as an older program left it: the run reads them once, hears what steers it, and rests.

use std::time::{Duration, Instant};

use saggar_domain::{RunState, Timestamp};
use saggar_engine::{Class, Event};
use saggar_runtime::Action;
use saggar_runtime::runs::Instruction;
use saggar_store::{JsonText, LetterRoom, NewLetter, Store};

use crate::ledger::Ledger;
use crate::place::{PATIENCE, Place, agent};

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_that_nobody_asked_for_are_read_once_and_keep_no_run_from_being_steered() {
    let place = Place::new().await;
    let ledger = Ledger::start();
    let mut spec = agent("waits", Class::Keyed, &ledger.url, 0);
    let call = serde_json::json!({ "tool": "wait", "arguments": { "seconds": 3600 } });
    spec.model.model = serde_json::json!({ "turns": [{ "calls": [call] }, { "text": "done" }] }).to_string();
    spec.tools.insert("wait".to_owned(), spec.tools["http"].clone());
    let run = place.start_agent(spec).await;
    let _worker = place.worker(3000, &ledger.url);
    place.until(&run, "it waits", |row| row.state == RunState::Waiting && row.holder.is_none()).await;
    let store = Store::join(&place.directory).unwrap();
    let project = place.permit(Action::TellRun(run.clone())).project().clone();
    // As version 1 wrote them, and one that only a newer program can read.
    let letters =
        (0..300).map(|n| (format!("s{n}"), r#"{"v":1,"tell":"signal","name":"answer","body":{"text":"yes"}}"#));
    for (id, body) in letters.chain([("newer".to_owned(), r#"{"v":99,"tell":"something else"}"#)]) {
        let (project, run, body) = (project.clone(), run.clone(), JsonText::parse(body).unwrap());
        let at = Timestamp::from(std::time::SystemTime::now());
        store.put_letter(NewLetter { project, run, id, at, body }, LetterRoom::Data).await.unwrap();
    }
    let tell = async |instruction| {
        place.runs.tell(&place.permit(Action::TellRun(run.clone())), None, instruction).await.unwrap();
    };
    tell(Instruction::Pause).await;
    let begun = Instant::now();
    let row = loop {
        let left = store.letters(run.clone()).await.unwrap().len();
        let row = place.row(&run).await;
        if left == 1 && row.holder.is_none() {
            break row;
        }
        assert!(begun.elapsed() < PATIENCE, "it reads them and rests: {left} are left, {row:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let is_woken_later = row.wake_at.is_some_and(|at| at > row.updated_at.after(Duration::from_secs(60)));
    assert!(is_woken_later, "the letter that was left doesn't keep it awake: {row:?}");
    let left = store.letters(run.clone()).await.unwrap();
    assert_eq!(left.iter().map(|letter| letter.id.as_str()).collect::<Vec<_>>(), ["newer"]);
    let events = place.events(&run).await;
    let count = |is_it: fn(&Event) -> bool| events.iter().filter(|event| is_it(event)).count();
    assert_eq!(count(|event| matches!(event, Event::Paused { .. })), 1);
    assert_eq!(count(|event| matches!(event, Event::SignalReceived { .. })), 0);
    tell(Instruction::Cancel).await;
    place.until_finished(&run).await;
}
