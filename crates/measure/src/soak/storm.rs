//! A storm: clients create, use and end sandboxes while the server is killed at random moments and restarted.
//!
//! Each client keeps a ledger of what was acknowledged. A request without a response may or may not have been carried
//! out: an idempotent one is repeated until it is answered; for any other, both outcomes are correct. In the end the
//! server must agree with every ledger, and after all sandboxes have ended nothing may be left over.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::POOL;
use super::census::Census;
use super::cycles::{Cycles, SANDBOXES, post};
use super::options::Options;
use super::random::Random;
use crate::http::{Answer, Ask, Client};
use crate::patience::pause;
use crate::serving::Serving;

/// Maximum number of sandboxes per client.
const LIVE_MAX: usize = 6;
/// Minimum and maximum life of a server, in ms.
const LIFE_MS: [u64; 2] = [20, 1200];
/// Time limit for repeating a request.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(10);
/// The label marks the storm's sandboxes.
const WISHES: &str = r#"{"ttl":"1h","labels":{"soak":"storm"}}"#;
/// Each acknowledged command appends a line to a file.
const APPEND: &str = r#"{"command":"echo x >> /home/user/lines"}"#;
/// Counts the lines.
const COUNT: &str = r#"{"command":"cat /home/user/lines 2>/dev/null | wc -l"}"#;
/// More output than is kept.
const FLOOD: &str = r#"{"command":["/usr/bin/head","-c","4194304","/dev/zero"]}"#;

#[derive(Clone, Debug)]
pub struct Storm {
    /// Number of kills.
    pub kills: u64,
    /// Time of each start until the server listened and had adopted everything, in ms.
    pub starts: Vec<f64>,
    pub made: usize,
    /// Acknowledged commands whose lines were verified before their sandbox was ended.
    pub commands: u64,
    /// Requests without a response.
    pub unanswered: u64,
    /// The census at the end.
    pub census: Census,
    /// What was lost, done twice or left over.
    pub faults: Vec<String>,
}

/// What one client knows.
#[derive(Debug, Default)]
struct Ledger {
    live: BTreeMap<String, Lines>,
    ended: BTreeSet<String>,
    unanswered: u64,
    serial: u64,
    /// Acknowledged lines that were verified.
    counted: u64,
    faults: Vec<String>,
}

/// Lines in a sandbox's file: at least so many, and possibly some more.
#[derive(Clone, Copy, Debug, Default)]
struct Lines {
    acknowledged: u64,
    perhaps: u64,
}

/// Kills as often as requested. `cycles` has the earlier census.
pub fn run(server: &mut Serving, options: &Options, random: &mut Random, cycles: &Cycles) -> Result<Storm> {
    let is_over = AtomicBool::new(false);
    let mut starts = Vec::new();
    let seats: Vec<(Client, Random)> = (0..options.clients).map(|_| (server.client(), random.split())).collect();
    let mut ledgers = std::thread::scope(|scope| -> Result<Vec<Ledger>> {
        let is_over = &is_over;
        let threads: Vec<_> = seats
            .into_iter()
            .enumerate()
            .map(|(number, (client, random))| scope.spawn(move || use_it(client, random, number, is_over)))
            .collect();
        let killed = (0..options.kills).try_for_each(|kill| -> Result<()> {
            pause(Duration::from_millis(LIFE_MS[0] + random.below(LIFE_MS[1] - LIFE_MS[0])));
            server.crash()?;
            starts.push(server.start_again()?.as_secs_f64() * 1000.0);
            if (kill + 1) % 10 == 0 {
                eprintln!("soak: {} of {} kills", kill + 1, options.kills);
            }
            Ok(())
        });
        is_over.store(true, SeqCst);
        let ledgers = threads.into_iter().map(|thread| thread.join().expect("a client does not panic")).collect();
        killed.and(ledgers)
    })?;
    let mut client = server.client();
    let mut faults = Vec::new();
    for ledger in &mut ledgers {
        ledger.check(&mut client)?;
        faults.append(&mut ledger.faults);
    }
    check_live(&mut client, &ledgers, &mut faults)?;
    let mut ids = cycles.ids.clone();
    for ledger in &ledgers {
        for id in ledger.live.keys() {
            client.ask(Ask::new("DELETE", &format!("{SANDBOXES}/{id}")))?.expect(200)?;
        }
        ids.extend(ledger.live.keys().chain(&ledger.ended).cloned());
    }
    let before = &cycles.samples[cycles.samples.len() - 1].1;
    let census = Census::take_settled(server, &ids, Some(before), POOL)?;
    faults.extend(census.growth(before));
    let commands = ledgers.iter().map(|ledger| ledger.counted).sum();
    let made = ledgers.iter().map(|ledger| ledger.live.len() + ledger.ended.len()).sum();
    let unanswered = ledgers.iter().map(|ledger| ledger.unanswered).sum();
    Ok(Storm { kills: options.kills, starts, made, commands, unanswered, census, faults })
}

/// One client, until the storm is over.
fn use_it(mut client: Client, mut random: Random, number: usize, is_over: &AtomicBool) -> Result<Ledger> {
    let mut ledger = Ledger::default();
    while !is_over.load(SeqCst) {
        let choice = random.below(20);
        let chosen = random.below(ledger.live.len().max(1) as u64) as usize;
        let Some(id) = ledger.live.keys().nth(chosen).cloned() else {
            ledger.make(&mut client, number)?;
            continue;
        };
        let at = format!("{SANDBOXES}/{id}");
        match choice {
            0..6 if ledger.live.len() < LIVE_MAX => ledger.make(&mut client, number)?,
            0..12 => ledger.append(&mut client, &id)?,
            12..14 => {
                // Its outcome doesn't matter; it only must do no harm.
                ledger.unanswered += u64::from(client.ask(Ask::post(&format!("{at}/execs"), FLOOD)).is_err());
            }
            14..16 => {
                ledger.insist(&mut client, 200, |client| post(client, &format!("{at}/pause")))?;
                ledger.insist(&mut client, 200, |client| post(client, &format!("{at}/resume")))?;
            }
            _ => {
                ledger.check_lines(&mut client, &id)?;
                ledger.insist(&mut client, 200, |client| client.ask(Ask::new("DELETE", &at)))?;
                ledger.live.remove(&id);
                ledger.ended.insert(id);
            }
        }
    }
    Ok(ledger)
}

impl Ledger {
    /// Creates one, with an idempotency key that allows repeating the request.
    fn make(&mut self, client: &mut Client, number: usize) -> Result<()> {
        self.serial += 1;
        let key = format!("storm-{number}-{}", self.serial);
        let ask = Ask { idempotency_key: Some(&key), ..Ask::post(SANDBOXES, WISHES) };
        let made = self.insist(client, 201, |client| client.ask(ask))?.json();
        let id = made["id"].as_str().context("a sandbox without an id")?.to_owned();
        ensure!(made["state"] == "running", "an acknowledged sandbox is not running: {made}");
        self.live.insert(id, Lines::default());
        Ok(())
    }

    /// Appends a line; this request can't be repeated.
    fn append(&mut self, client: &mut Client, id: &str) -> Result<()> {
        let outcome = client.ask(Ask::post(&format!("{SANDBOXES}/{id}/execs"), APPEND));
        let lines = self.live.entry(id.to_owned()).or_default();
        match outcome {
            Ok(answer) => {
                ensure!(answer.status == 200 && answer.json()["exit_code"] == 0, "a command failed: {}", answer.text());
                lines.acknowledged += 1;
            }
            Err(_) => {
                lines.perhaps += 1;
                self.unanswered += 1;
            }
        }
        Ok(())
    }

    /// Repeats a request until it gets the expected response.
    fn insist(
        &mut self,
        client: &mut Client,
        status: u16,
        ask: impl FnMut(&mut Client) -> io::Result<Answer>,
    ) -> Result<Answer> {
        self.insist_on_any(client, ask)?.expect(status)
    }

    /// Repeats a request until it is answered. A conflict may be caused by our own earlier attempt.
    fn insist_on_any(
        &mut self,
        client: &mut Client,
        mut ask: impl FnMut(&mut Client) -> io::Result<Answer>,
    ) -> Result<Answer> {
        let deadline = Instant::now() + PATIENCE;
        let mut last = String::new();
        while Instant::now() < deadline {
            match ask(client) {
                Ok(answer) if matches!(answer.status, 409 | 429 | 503) => last = answer.text(),
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    self.unanswered += 1;
                    last = error.to_string();
                }
            }
            pause(PAUSE);
        }
        bail!("no answer in {} s; the last was {last}", PATIENCE.as_secs())
    }

    /// Whether the server agrees with this ledger after the storm.
    fn check(&mut self, client: &mut Client) -> Result<()> {
        for id in self.live.keys().cloned().collect::<Vec<_>>() {
            self.check_lines(client, &id)?;
        }
        for id in &self.ended {
            let answer = client.ask(Ask::new("GET", &format!("{SANDBOXES}/{id}")))?;
            // A deleted row counts as ended.
            if answer.status != 404 && answer.json()["state"] != "ended" {
                self.faults.push(format!("{id} was ended and is not: {}", answer.text()));
            }
        }
        Ok(())
    }

    /// Whether a sandbox has each acknowledged line, and no more than were requested.
    fn check_lines(&mut self, client: &mut Client, id: &str) -> Result<()> {
        let path = format!("{SANDBOXES}/{id}/execs");
        let answer = self.insist_on_any(client, |client| client.ask(Ask::post(&path, COUNT)))?;
        let count = answer.json()["stdout"].as_str().and_then(|text| text.trim().parse::<u64>().ok());
        let Lines { acknowledged, perhaps } = self.live.get(id).copied().unwrap_or_default();
        self.counted += acknowledged;
        self.faults.extend(match count {
            Some(count) if (acknowledged..=acknowledged + perhaps).contains(&count) => None,
            Some(count) => {
                Some(format!("{id} has {count} lines, and {acknowledged} were acknowledged and {perhaps} not answered"))
            }
            None => Some(format!("{id} was acknowledged and is lost: {}", answer.text())),
        });
        Ok(())
    }
}

/// Whether the live sandboxes are exactly those of the ledgers.
fn check_live(client: &mut Client, ledgers: &[Ledger], faults: &mut Vec<String>) -> Result<()> {
    let known: BTreeSet<&str> = ledgers.iter().flat_map(|ledger| ledger.live.keys()).map(String::as_str).collect();
    let listed =
        client.ask(Ask::new("GET", &format!("{SANDBOXES}?limit=1000&label=soak%3Dstorm")))?.expect(200)?.json();
    for item in listed["items"].as_array().context("a list without items")? {
        let id = item["id"].as_str().unwrap_or_default();
        if !known.contains(id) {
            faults.push(format!("{id} is live but was never acknowledged"));
        }
    }
    Ok(())
}
