//! Acknowledged writes survive a kill at any moment.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use saggar_domain::{ExecId, ProjectId, SandboxId};
use saggar_store::{ExecOutput, PageLimit, SandboxQuery, Scope, Store, Tail};

use crate::fixture::{NOW, Scratch, event, exec, exec_end, insert, part, random, sandbox};

const WRITE: &str = "SAGGAR_STORE_WRITE";
/// Concurrent writers, so that a kill hits groups.
const WRITERS: usize = 8;
const ROUNDS: u32 = 24;
/// Maximum number of acknowledgements before a kill.
const ACKNOWLEDGED_MAX: u32 = 150;
/// Output of each exec: about a hundred of them fill the log, so that kills hit checkpoints too.
const OUTPUT_BYTES: usize = 150_000;
const WAIT: Duration = Duration::from_secs(20);

/// The process that the next tests kill; does nothing by itself. It writes forever, and prints what was acknowledged.
#[test]
fn part_that_writes() {
    let Some(directory) = std::env::var_os(WRITE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let store = Store::open(Path::new(&directory)).unwrap();
        let project = store.default_project(ProjectId::from_random(random()), NOW).await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..WRITERS {
            let (store, project) = (store.clone(), project.id.clone());
            tasks.spawn(async move {
                loop {
                    let acknowledged = write_one(&store, &project).await;
                    writeln!(std::io::stdout(), "\n{acknowledged}").unwrap();
                }
            });
        }
        tasks.join_all().await;
    });
}

async fn write_one(store: &Store, project: &ProjectId) -> String {
    let new = sandbox(project);
    insert(store, &new).await;
    let run = exec(&new.id, NOW);
    store.record_exec_started(run.clone()).await.unwrap();
    let output = ExecOutput { stdout: Tail::new(vec![b'x'; OUTPUT_BYTES], 0), stderr: Tail::default() };
    store.record_exec_ended(new.id.clone(), run.id.clone(), exec_end(NOW), output).await.unwrap();
    store.append_events(new.id.clone(), vec![event(0), event(1)]).await.unwrap();
    format!("acknowledged {} {}", new.id, run.id)
}

fn start(scratch: &Scratch) -> Child {
    part("crash::part_that_writes", WRITE, scratch.path()).stdout(Stdio::piped()).spawn().unwrap()
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "it ended by itself: {status:?}");
}

#[test]
fn heavy_what_was_acknowledged_is_there_after_a_kill() {
    let scratch = Scratch::new();
    let mut acknowledged: Vec<(SandboxId, ExecId)> = Vec::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for round in 0..ROUNDS {
        let before = acknowledged.len();
        let mut child = start(&scratch);
        let output = child.stdout.take().unwrap();
        let mut lines = BufReader::new(output).lines().map_while(Result::ok).filter_map(|line| parse(&line));
        let wanted = u32::from_ne_bytes(random()) % ACKNOWLEDGED_MAX;
        acknowledged.extend(lines.by_ref().take(wanted as usize));
        kill(child);
        // Lines still in the pipe were acknowledged too; a line that the kill cut in two doesn't parse.
        acknowledged.extend(lines);
        let missing = runtime.block_on(missing(&scratch.open(), &acknowledged[before..]));
        assert_eq!(missing, None, "round {round}, {} acknowledged", acknowledged.len());
    }
    assert_eq!(runtime.block_on(missing(&scratch.open(), &acknowledged)), None);
    assert!(acknowledged.len() > ROUNDS as usize, "only {} were ever acknowledged", acknowledged.len());
}

fn parse(line: &str) -> Option<(SandboxId, ExecId)> {
    let (sandbox, exec) = line.strip_prefix("acknowledged ")?.split_once(' ')?;
    Some((SandboxId::parse(sandbox)?, ExecId::parse(exec)?))
}

async fn missing(store: &Store, acknowledged: &[(SandboxId, ExecId)]) -> Option<String> {
    for (sandbox, exec) in acknowledged {
        if store.sandbox_of_any(sandbox.clone()).await.unwrap().is_none() {
            return Some(format!("sandbox {sandbox}"));
        }
        let output = store.exec_output(sandbox.clone(), exec.clone()).await.unwrap();
        if output.is_none_or(|output| output.stdout.bytes() != vec![b'x'; OUTPUT_BYTES]) {
            return Some(format!("output of {exec}"));
        }
        let events = store.events_after(sandbox.clone(), None, PageLimit::MAX).await.unwrap();
        if events.events != [event(0), event(1)] {
            return Some(format!("events of {sandbox}"));
        }
    }
    None
}

#[test]
fn a_kill_while_the_store_is_made_leaves_one_that_opens() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for file in ["saggar.lock", "saggar.db", "saggar.db-wal", "saggar.db-shm"].repeat(6) {
        let scratch = Scratch::new();
        let mut child = start(&scratch);
        // Its output isn't read, so it can't get further than a full pipe.
        let output = child.stdout.take();
        let begun = Instant::now();
        while !scratch.join(file).exists() {
            assert!(begun.elapsed() < WAIT, "{file} never came");
            std::thread::yield_now();
        }
        kill(child);
        drop(output);
        let store = scratch.open();
        runtime.block_on(store.sandboxes(SandboxQuery::new(Scope::All))).unwrap();
    }
}
