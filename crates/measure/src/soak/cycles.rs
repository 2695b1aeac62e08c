//! Thousands of life cycles: each sandbox is created, used in one of several ways, and ended; several clients, one
//! server.
//!
//! Samples are taken while no client is active: at the start (after a warm-up that fills caches), after each tenth,
//! and at the end.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::POOL;
use super::census::{Census, memory_growth, store_bytes_used};
use super::options::Options;
use super::random::Random;
use crate::http::{Answer, Ask, Client};
use crate::patience::{pause, wait_until};
use crate::serving::Serving;

pub const SANDBOXES: &str = "/api/v1/sandboxes";
/// Number of samples.
const SAMPLES: u64 = 10;
/// Cycles before the first sample, as a fraction of all.
const WARM_UP: u64 = 20;
/// Commands in a burst.
const FLOOD: usize = 20;
/// Time limit for the deletion of the last rows: they are kept for a while, and deleted once a minute.
const FORGETTING: Duration = Duration::from_secs(180);
/// Allowed growth of an empty store compared with a new one: split pages stay split.
const STORE_SLACK: u64 = 64 * 1024;

#[derive(Clone, Debug)]
pub struct Cycles {
    /// Number of life cycles.
    pub done: u64,
    pub time: Duration,
    /// The number of life cycles so far, and the census.
    pub samples: Vec<(u64, Census)>,
    /// Bytes used by the new store, and by the store after all rows were deleted.
    pub store_bytes: [u64; 2],
    /// All sandboxes that ever existed.
    pub ids: BTreeSet<String>,
    pub faults: Vec<String>,
}

/// Runs all of them, or as many as time allows.
pub fn run(server: &mut Serving, options: &Options, random: &mut Random, deadline: Instant) -> Result<Cycles> {
    server.stop()?;
    let store_before = store_bytes_used(server.data())?;
    server.start_again()?;
    let ids = Mutex::new(BTreeSet::new());
    let mut clients: Vec<(Client, Random)> = (0..options.clients).map(|_| (server.client(), random.split())).collect();
    live_many(&mut clients, (options.cycles / WARM_UP).max(options.clients), deadline, &ids)?;
    let mut samples = vec![(0, sample(server, &ids, None)?)];
    let start = Instant::now();
    let mut done = 0;
    for part in 1..=SAMPLES {
        let wanted = options.cycles * part / SAMPLES - done;
        done += live_many(&mut clients, wanted, deadline, &ids)?;
        samples.push((done, sample(server, &ids, Some(&samples[0].1))?));
        eprintln!("soak: {done} of {} cycles", options.cycles);
    }
    let time = start.elapsed();
    let mut faults = samples[samples.len() - 1].1.growth(&samples[0].1);
    faults.extend(memory_growth(&samples));
    if done < options.cycles {
        faults.push(format!("only {done} of {} cycles were done in {} minutes", options.cycles, options.minutes));
    }
    let store_after = forget_all(server, &mut clients[0].0)?;
    if store_after > store_before + STORE_SLACK {
        faults.push(format!("the empty store uses {store_after} bytes; a new one used {store_before}"));
    }
    let ids = ids.into_inner().unwrap_or_default();
    Ok(Cycles { done, time, samples, store_bytes: [store_before, store_after], ids, faults })
}

fn sample(server: &Serving, ids: &Mutex<BTreeSet<String>>, expected: Option<&Census>) -> Result<Census> {
    Census::take_settled(server, &ids.lock().expect("no thread panics while holding it"), expected, POOL)
}

/// Waits until the store has deleted every ended sandbox, and returns the bytes it uses then.
fn forget_all(server: &mut Serving, client: &mut Client) -> Result<u64> {
    let path = format!("{SANDBOXES}?state=ended&limit=1");
    wait_until("the rows of ended sandboxes to go", FORGETTING, || {
        pause(Duration::from_millis(200));
        let listed = client.ask(Ask::new("GET", &path))?.expect(200)?.json();
        Ok(listed["items"].as_array().is_some_and(Vec::is_empty))
    })?;
    server.stop()?;
    let bytes = store_bytes_used(server.data())?;
    server.start_again()?;
    Ok(bytes)
}

/// Distributes the life cycles over the clients. Returns how many there was time for.
fn live_many(
    clients: &mut [(Client, Random)],
    count: u64,
    deadline: Instant,
    ids: &Mutex<BTreeSet<String>>,
) -> Result<u64> {
    let (begun, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = |(client, random): &mut (Client, Random)| -> Result<()> {
        while begun.fetch_add(1, SeqCst) < count && Instant::now() < deadline {
            let id = live_once(client, random)?;
            ids.lock().expect("no thread panics while holding it").insert(id);
            done.fetch_add(1, SeqCst);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = clients.iter_mut().map(|client| scope.spawn(move || work(client))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a client does not panic"))
    })?;
    Ok(done.load(SeqCst))
}

/// One life cycle, of one of several kinds.
fn live_once(client: &mut Client, random: &mut Random) -> Result<String> {
    // A sandbox with settings of its own doesn't come from the pool.
    let wishes = if random.below(2) == 0 { r#"{"ttl":"10m"}"# } else { r#"{"ttl":"10m","limits":{"pids":100}}"# };
    let made = client.ask(Ask::post(SANDBOXES, wishes))?.expect(201)?.json();
    let id = made["id"].as_str().context("a sandbox without an id")?.to_owned();
    let at = format!("{SANDBOXES}/{id}");
    match random.below(20) {
        0..10 => exec(client, &at, r#"{"command":["/bin/true"]}"#)?,
        10..12 => {
            for _ in 0..FLOOD {
                exec(client, &at, r#"{"command":["/bin/true"]}"#)?;
            }
        }
        12..14 => exec(client, &at, r#"{"command":["/usr/bin/head","-c","4194304","/dev/zero"]}"#)?,
        14..16 => {
            post(client, &format!("{at}/pause"))?.expect(200)?;
            post(client, &format!("{at}/resume"))?.expect(200)?;
            exec(client, &at, r#"{"command":["/bin/true"]}"#)?;
        }
        16..17 => {
            post(client, &format!("{at}/pause"))?.expect(200)?;
        }
        // Left running, one of them a daemon.
        17..19 => {
            let command = r#"{"command":"(setsid sleep 1000 &) ; exec sleep 1000","wait":false}"#;
            client.ask(Ask::post(&format!("{at}/execs"), command))?.expect(201)?;
        }
        _ => {
            let path = format!("{at}/files/mkdir");
            client.ask(Ask::post(&path, r#"{"path":"/home/user/a/b","parents":true}"#))?;
        }
    }
    client.ask(Ask::new("DELETE", &at))?.expect(200)?;
    Ok(id)
}

/// A POST with an empty body.
pub fn post(client: &mut Client, path: &str) -> std::io::Result<Answer> {
    client.ask(Ask::post(path, "{}"))
}

fn exec(client: &mut Client, at: &str, command: &str) -> Result<()> {
    let answer = client.ask(Ask::post(&format!("{at}/execs"), command))?.expect(200)?;
    let result = answer.json();
    ensure!(result["exit_code"] == 0, "{command} ended otherwise: {}", answer.text());
    Ok(())
}
