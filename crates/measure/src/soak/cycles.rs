//! Lives by the thousand: each sandbox is made, used in one of several ways, and ended; several clients at once, one server.
//!
//! Samples are taken while nobody asks for anything, at the start (after a warm-up that fills caches), after each tenth, and at the end.

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

/// Where sandboxes are made.
pub const SANDBOXES: &str = "/api/v1/sandboxes";
/// In which tenth parts samples are taken.
const SAMPLES: u64 = 10;
/// Cycles before the first sample, as a part of all.
const WARM_UP: u64 = 20;
/// Commands in a flood of them.
const FLOOD: usize = 20;
/// How long rows of the last sandboxes may stay: they are kept for a while, and removed once a minute.
const FORGETTING: Duration = Duration::from_secs(180);
/// What the store may use more of, empty, than when it was new: pages that are split stay so.
const STORE_SLACK: u64 = 64 * 1024;

/// What came of it.
#[derive(Clone, Debug)]
pub struct Cycles {
    /// How many lives there were.
    pub done: u64,
    /// How long they took.
    pub time: Duration,
    /// After how many lives, and what there was.
    pub samples: Vec<(u64, Census)>,
    /// What the store used when it was new, and with all of them forgotten.
    pub store_bytes: [u64; 2],
    /// Every sandbox there was.
    pub ids: BTreeSet<String>,
    pub faults: Vec<String>,
}

/// Runs them all, or as many as there is time for.
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
        faults.push(format!(
            "the store uses {store_after} bytes with nothing in it, and used {store_before} when it was new"
        ));
    }
    let ids = ids.into_inner().unwrap_or_default();
    Ok(Cycles { done, time, samples, store_bytes: [store_before, store_after], ids, faults })
}

fn sample(server: &Serving, ids: &Mutex<BTreeSet<String>>, expected: Option<&Census>) -> Result<Census> {
    Census::take_settled(server, &ids.lock().expect("nobody panics with it"), expected, POOL)
}

/// Waits until the store has forgotten every ended sandbox, and says what it uses then.
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

/// Shares so many lives among the clients; says how many there was time for.
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
            ids.lock().expect("nobody panics with it").insert(id);
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

/// One life, of one of several kinds.
fn live_once(client: &mut Client, random: &mut Random) -> Result<String> {
    // With wishes of its own a sandbox is not from the pool.
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

/// A POST that has nothing to say.
pub fn post(client: &mut Client, path: &str) -> std::io::Result<Answer> {
    client.ask(Ask::post(path, "{}"))
}

fn exec(client: &mut Client, at: &str, command: &str) -> Result<()> {
    let answer = client.ask(Ask::post(&format!("{at}/execs"), command))?.expect(200)?;
    let result = answer.json();
    ensure!(result["exit_code"] == 0, "{command} ended otherwise: {}", answer.text());
    Ok(())
}
