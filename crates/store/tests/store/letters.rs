//! The inbox of a run.

use std::time::Duration;

use saggar_domain::{ProjectId, RunState};
use saggar_store::{Append, Appended, InboxError, JsonText, LetterRoom, NewLetter};

use crate::fixture::{NOW, Scratch, random, store_with_project};
use crate::runs::{ANY, append, both, claim, create, holder};

#[tokio::test]
async fn a_letter_is_kept_once_wakes_its_run_and_goes_with_its_answer() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let run = create(&store, &project, "a").await;
    let epoch = claim(&store, "w", NOW).await[0].epoch;
    let mut asleep = append(&run, epoch, 1, &["asks"]);
    asleep.summary.wake_at = None;
    asleep.summary.state = RunState::Asking;
    store.append(asleep).await.unwrap();
    store.release_run(run.clone(), epoch).await.unwrap();
    assert!(claim(&store, "w", NOW.after(Duration::from_secs(9999))).await.is_empty(), "nothing wakes it");
    let letter = NewLetter {
        project: project.clone(),
        run: run.clone(),
        id: "s1".to_owned(),
        at: NOW,
        body: JsonText::parse("\"yes\"").unwrap(),
    };
    store.put_letter(letter.clone(), LetterRoom::Data).await.unwrap();
    store.put_letter(letter.clone(), LetterRoom::Data).await.unwrap();
    let epoch = claim(&store, "w", NOW).await[0].epoch;
    let letters = store.letters(run.clone()).await.unwrap();
    assert_eq!((letters.len(), letters[0].id.as_str()), (1, "s1"));
    let answered = Append { consumed: vec![letters[0].n], ..append(&run, epoch, 2, &["answered"]) };
    store.append(answered).await.unwrap();
    assert!(store.letters(run.clone()).await.unwrap().is_empty());
    let foreign = NewLetter { project: ProjectId::from_random(random()), ..letter.clone() };
    assert!(matches!(store.put_letter(foreign, LetterRoom::Data).await, Err(InboxError::NoRun)));
    let mut finished = append(&run, epoch, 3, &["done"]);
    finished.summary.state = RunState::Finished;
    finished.summary.outcome = JsonText::parse("{}");
    finished.summary.wake_at = None;
    store.append(finished).await.unwrap();
    assert!(matches!(store.put_letter(letter, LetterRoom::Data).await, Err(InboxError::Finished)));
    assert!(
        claim(&store, "w", NOW.after(Duration::from_secs(9999))).await.is_empty(),
        "a finished run is never claimed"
    );
}

#[tokio::test]
async fn a_letter_that_was_seen_and_left_does_not_keep_its_run_awake() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let run = create(&store, &project, "a").await;
    let epoch = claim(&store, "w", NOW).await[0].epoch;
    let letter = |id: &str| NewLetter {
        project: project.clone(),
        run: run.clone(),
        id: id.to_owned(),
        at: NOW,
        body: JsonText::parse("1").unwrap(),
    };
    store.put_letter(letter("newer"), LetterRoom::Data).await.unwrap();
    let seen = store.letters(run.clone()).await.unwrap()[0].n;
    let rest = |head: u64, seen: i64| {
        let mut rest = Append { seen, ..append(&run, epoch, head, &["rests"]) };
        (rest.summary.state, rest.summary.wake_at) = (RunState::Asking, None);
        rest
    };
    store.append(rest(1, seen)).await.unwrap();
    assert!(!store.is_run_due(both(NOW), ANY).await.unwrap());
    store.put_letter(letter("next"), LetterRoom::Data).await.unwrap();
    store.append(rest(2, seen)).await.unwrap();
    store.release_run(run.clone(), epoch).await.unwrap();
    assert!(store.is_run_due(both(NOW), ANY).await.unwrap(), "one that came later does");
    let epoch = claim(&store, "w", NOW).await[0].epoch;
    store.append(Append { epoch, ..rest(3, seen + 1) }).await.unwrap();
    store.release_run(run.clone(), epoch).await.unwrap();
    assert!(!store.is_run_due(both(NOW), ANY).await.unwrap());
    assert_eq!(store.wake_unread(NOW).await.unwrap(), 1);
    assert!(store.is_run_due(both(NOW), ANY).await.unwrap(), "a worker that begins looks at what was left");
}

#[tokio::test]
async fn what_is_said_to_a_run_leaves_room_for_what_steers_it() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let run = create(&store, &project, "a").await;
    let letter = |id: String| NewLetter {
        project: project.clone(),
        run: run.clone(),
        id,
        at: NOW,
        body: JsonText::parse("1").unwrap(),
    };
    let put = async |id: String, room: LetterRoom| store.put_letter(letter(id), room).await;
    for n in 0..1000 {
        put(format!("said {n}"), LetterRoom::Data).await.unwrap();
    }
    assert!(matches!(put("one more".to_owned(), LetterRoom::Data).await, Err(InboxError::Full)));
    put("said 7".to_owned(), LetterRoom::Data).await.unwrap();
    for n in 0..100 {
        put(format!("steers {n}"), LetterRoom::Control).await.unwrap();
    }
    assert!(matches!(put("steers more".to_owned(), LetterRoom::Control).await, Err(InboxError::Full)));
    put("cancel".to_owned(), LetterRoom::Unbounded).await.unwrap();
    let other = NewLetter { body: JsonText::parse("2").unwrap(), ..letter("said 7".to_owned()) };
    assert!(matches!(store.put_letter(other, LetterRoom::Data).await, Err(InboxError::Different)));
}

#[tokio::test]
async fn a_refused_append_leaves_its_letters() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let run = create(&store, &project, "a").await;
    let epoch = claim(&store, "w", NOW).await[0].epoch;
    let body = JsonText::parse("1").unwrap();
    let letter = NewLetter { project, run: run.clone(), id: "x".to_owned(), at: NOW, body };
    store.put_letter(letter, LetterRoom::Data).await.unwrap();
    let n = store.letters(run.clone()).await.unwrap()[0].n;
    let stale = Append { consumed: vec![n], ..append(&run, epoch + 7, 1, &["stale"]) };
    assert_eq!(store.append(stale).await, Ok(Appended::Fenced { epoch }));
    assert_eq!(store.letters(run).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_letter_that_the_holder_does_not_know_of_is_not_slept_over() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let run = create(&store, &project, "a").await;
    let epoch = claim(&store, "w", NOW).await[0].epoch;
    let body = JsonText::parse("1").unwrap();
    store
        .put_letter(NewLetter { project, run: run.clone(), id: "x".to_owned(), at: NOW, body }, LetterRoom::Data)
        .await
        .unwrap();
    assert_eq!(store.runs_with_letters(holder("w")).await, Ok(vec![run.clone()]));
    let mut asleep = append(&run, epoch, 1, &["asks"]);
    asleep.summary.wake_at = None;
    asleep.summary.state = RunState::Asking;
    store.append(asleep).await.unwrap();
    store.release_run(run, epoch).await.unwrap();
    assert_eq!(claim(&store, "w", NOW).await.len(), 1, "the letter has made it due");
}
