//! Execs and events: what is kept, and how much of it.

use std::time::Duration;

use saggar_domain::{ExecId, GuestPath, SandboxId};
use saggar_store::{
    EVENTS_PER_SANDBOX_MAX, EXECS_PER_SANDBOX_MAX, Error, EventPage, Exec, ExecCursor, ExecOutput, ExecProgress,
    OUTPUTS_PER_SANDBOX_MAX, PageLimit, StartedExec, Tail,
};

use crate::fixture::{NOW, Scratch, ending, event, exec, exec_end, insert, random, sandbox, store_with_project};

fn output(text: &str) -> ExecOutput {
    ExecOutput { stdout: Tail::new(text.into(), 0), stderr: Tail::default() }
}

#[test]
fn a_tail_keeps_the_end_and_counts_the_rest() {
    let mut bytes = vec![b'a'; 5];
    bytes.extend(vec![b'b'; 256 << 10]);
    let tail = Tail::new(bytes, 7);
    assert_eq!((tail.bytes().len(), tail.dropped()), (256 << 10, 12));
    assert!(tail.bytes().iter().all(|byte| *byte == b'b'));
}

#[tokio::test]
async fn an_exec_reads_back_whole_from_start_to_end() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let owner = sandbox(&project);
    insert(&store, &owner).await;
    let asked = StartedExec { cwd: GuestPath::parse("/tmp").ok(), ..exec(&owner.id, NOW) };
    store.record_exec_started(asked.clone()).await.unwrap();
    let get = || store.exec(owner.id.clone(), asked.id.clone());
    assert_eq!(get().await, Ok(Some(Exec { asked: asked.clone(), progress: ExecProgress::Running })));

    let printed = ExecOutput { stdout: Tail::new(vec![0xff, 0, b'x'], 9), stderr: Tail::new(b"e".to_vec(), 0) };
    let end = exec_end(NOW.after(Duration::from_secs(1)));
    store.record_exec_ended(owner.id.clone(), asked.id.clone(), end, printed.clone()).await.unwrap();
    let ended = Exec { asked: asked.clone(), progress: ExecProgress::Ended(end) };
    assert_eq!(get().await, Ok(Some(ended.clone())));
    assert_eq!(store.exec_output(owner.id.clone(), asked.id.clone()).await, Ok(Some(printed)));

    // A second report of its end, and the end of the sandbox, change nothing.
    store.record_exec_ended(owner.id.clone(), asked.id.clone(), exec_end(NOW), output("other")).await.unwrap();
    store.end_sandbox(owner.id.clone(), ending(NOW)).await.unwrap();
    assert_eq!(get().await, Ok(Some(ended)));
    assert_eq!(store.exec(SandboxId::from_random(random()), asked.id.clone()).await, Ok(None));
}

#[tokio::test]
async fn an_end_that_comes_late_is_still_the_end() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let owner = sandbox(&project);
    insert(&store, &owner).await;
    let asked = exec(&owner.id, NOW);
    store.record_exec_started(asked.clone()).await.unwrap();
    store.end_sandbox(owner.id.clone(), ending(NOW)).await.unwrap();
    store.record_exec_ended(owner.id.clone(), asked.id.clone(), exec_end(NOW), output("x")).await.unwrap();
    let found = store.exec(owner.id.clone(), asked.id.clone()).await.unwrap().unwrap();
    assert_eq!(found.progress, ExecProgress::Ended(exec_end(NOW)));
    let orphan = exec(&SandboxId::from_random(random()), NOW);
    assert_eq!(store.record_exec_started(orphan).await, Err(Error::Missing { what: "the sandbox" }));
    assert_eq!(store.record_exec_started(asked).await, Err(Error::Taken { what: "an exec of that id" }));
    // An exec that was never started, or was deleted, can't record its end.
    let unknown = ExecId::from_random(random());
    assert_eq!(store.record_exec_ended(owner.id, unknown, exec_end(NOW), output("x")).await, Ok(()));
}

#[tokio::test]
async fn a_sandbox_keeps_so_many_execs_and_the_output_of_fewer() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let owner = sandbox(&project);
    insert(&store, &owner).await;
    // The oldest exec still runs, so it is kept whatever follows.
    let running = exec(&owner.id, NOW);
    store.record_exec_started(running.clone()).await.unwrap();
    let mut ids = Vec::new();
    for index in 1..=u64::from(EXECS_PER_SANDBOX_MAX) + 20 {
        let at = NOW.after(Duration::from_millis(index));
        let asked = exec(&owner.id, at);
        ids.push(asked.id.clone());
        store.record_exec_started(asked.clone()).await.unwrap();
        store.record_exec_ended(owner.id.clone(), asked.id, exec_end(at), output("12345")).await.unwrap();
    }
    let mut kept = Vec::new();
    let mut cursor = None;
    loop {
        let page = store.execs(owner.id.clone(), PageLimit::parse(300).unwrap(), cursor).await.unwrap();
        kept.extend(page.items.into_iter().map(|exec| exec.asked.id));
        match page.next {
            Some(next) => cursor = Some(ExecCursor::parse(&next.to_string()).unwrap()),
            None => break,
        }
    }
    let newest = ids.iter().rev().take(EXECS_PER_SANDBOX_MAX as usize).cloned();
    assert_eq!(kept, newest.chain([running.id]).collect::<Vec<_>>());
    let mut with_output = 0;
    for id in kept {
        let output = store.exec_output(owner.id.clone(), id).await.unwrap().unwrap();
        let (kept, dropped) = (output.stdout.bytes().len(), output.stdout.dropped());
        assert!([(5, 0), (0, 5), (0, 0)].contains(&(kept, dropped)), "{kept} {dropped}");
        with_output += u32::from(kept > 0);
    }
    assert_eq!(with_output, OUTPUTS_PER_SANDBOX_MAX);
}

#[tokio::test]
async fn events_come_in_order_after_a_number_and_may_be_reported_twice() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let owner = sandbox(&project);
    insert(&store, &owner).await;
    let after = |seq, limit| store.events_after(owner.id.clone(), seq, PageLimit::parse(limit).unwrap());
    assert_eq!(after(None, 10).await, Ok(EventPage { events: vec![], newest: None }));
    assert_eq!(store.last_event(owner.id.clone()).await, Ok(None));
    store.append_events(owner.id.clone(), vec![event(0), event(1), event(2)]).await.unwrap();
    let mut changed = event(2);
    changed.body = saggar_store::JsonText::parse("{}").unwrap();
    store.append_events(owner.id.clone(), vec![event(1), changed, event(3)]).await.unwrap();
    assert_eq!(after(None, 10).await.unwrap().events, [event(0), event(1), event(2), event(3)]);
    assert_eq!(after(Some(0), 2).await.unwrap().events, [event(1), event(2)]);
    assert_eq!(after(Some(3), 2).await, Ok(EventPage { events: vec![], newest: Some(3) }));
    assert_eq!(store.last_event(owner.id.clone()).await, Ok(Some(3)));
    // The number comes from an untrusted header: any value must work.
    assert_eq!(after(Some(u64::MAX), 2).await.unwrap().events, []);
    let orphan = store.append_events(SandboxId::from_random(random()), vec![event(0)]).await;
    assert_eq!(orphan, Err(Error::Missing { what: "the sandbox" }));
}

#[tokio::test]
async fn a_sandbox_keeps_so_many_events_and_the_oldest_go() {
    let scratch = Scratch::new();
    let (store, project) = store_with_project(&scratch).await;
    let (owner, other) = (sandbox(&project), sandbox(&project));
    insert(&store, &owner).await;
    insert(&store, &other).await;
    store.append_events(other.id.clone(), vec![event(0)]).await.unwrap();
    let last = EVENTS_PER_SANDBOX_MAX + 2_500;
    for from in (0..=last).step_by(1000) {
        let events = (from..=last.min(from + 999)).map(event).collect();
        store.append_events(owner.id.clone(), events).await.unwrap();
    }
    let page = store.events_after(owner.id.clone(), None, PageLimit::MAX).await.unwrap();
    let oldest = last - EVENTS_PER_SANDBOX_MAX + 1;
    assert_eq!((page.events[0].seq, page.newest), (oldest, Some(last)));
    let others = store.events_after(other.id, None, PageLimit::MAX).await.unwrap();
    assert_eq!(others.events, [event(0)]);
}
