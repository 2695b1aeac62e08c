//! A storm: clients that make, use and end sandboxes while the server is killed at random moments and started again.
//!
//! Each client keeps a ledger of what was acknowledged. A request that got no answer may have been carried out or not: one that may be
//! asked twice is asked again until it is answered; of one that may not, both outcomes are right. At the end the server must agree with
//! every ledger, and when all is ended nothing may be left.

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

/// Most sandboxes that a client keeps at once.
const LIVE_MAX: usize = 6;
/// The shortest and the longest that a server lives, in ms.
const LIFE_MS: [u64; 2] = [20, 1200];
/// How long a request is asked again before it is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(10);
/// What a sandbox of the storm is known by.
const WISHES: &str = r#"{"ttl":"1h","labels":{"soak":"storm"}}"#;
/// A file in which each acknowledged command leaves a line.
const APPEND: &str = r#"{"command":"echo x >> /home/user/lines"}"#;
/// How many lines there are.
const COUNT: &str = r#"{"command":"cat /home/user/lines 2>/dev/null | wc -l"}"#;
/// More output than is kept.
const FLOOD: &str = r#"{"command":["/usr/bin/head","-c","4194304","/dev/zero"]}"#;

/// What came of it.
#[derive(Clone, Debug)]
pub struct Storm {
    /// How often the server died.
    pub kills: u64,
    /// How long each start took until the server listened, everything adopted, in ms.
    pub starts: Vec<f64>,
    pub made: usize,
    /// Commands that were acknowledged, each of whose lines was looked for before its sandbox was ended.
    pub commands: u64,
    /// Requests without an answer.
    pub unanswered: u64,
    /// What there was when all was over.
    pub census: Census,
    /// What was lost, done twice or left.
    pub faults: Vec<String>,
}

/// What one client knows.
#[derive(Debug, Default)]
struct Ledger {
    live: BTreeMap<String, Lines>,
    ended: BTreeSet<String>,
    unanswered: u64,
    serial: u64,
    /// Acknowledged lines that were looked for.
    counted: u64,
    faults: Vec<String>,
}

/// Lines that a sandbox's file has: so many, and perhaps so many more.
#[derive(Clone, Copy, Debug, Default)]
struct Lines {
    acknowledged: u64,
    perhaps: u64,
}

/// Kills as often as asked. `cycles` has what there was before.
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
                // Its outcome is its own affair; that it does no harm is what counts.
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
    /// Makes one, by a name that makes it one however often it is asked for.
    fn make(&mut self, client: &mut Client, number: usize) -> Result<()> {
        self.serial += 1;
        let key = format!("storm-{number}-{}", self.serial);
        let ask = Ask { idempotency_key: Some(&key), ..Ask::post(SANDBOXES, WISHES) };
        let made = self.insist(client, 201, |client| client.ask(ask))?.json();
        let id = made["id"].as_str().context("a sandbox without an id")?.to_owned();
        ensure!(made["state"] == "running", "what was acknowledged as made is not there: {made}");
        self.live.insert(id, Lines::default());
        Ok(())
    }

    /// Appends a line, which can't be asked for twice.
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

    /// Asks until it is answered as it should be.
    fn insist(
        &mut self,
        client: &mut Client,
        status: u16,
        ask: impl FnMut(&mut Client) -> io::Result<Answer>,
    ) -> Result<Answer> {
        self.insist_on_any(client, ask)?.expect(status)
    }

    /// Asks until it is answered. A conflict may be with ourselves, asking before.
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

    /// Whether the server agrees with this ledger, when the storm is over.
    fn check(&mut self, client: &mut Client) -> Result<()> {
        for id in self.live.keys().cloned().collect::<Vec<_>>() {
            self.check_lines(client, &id)?;
        }
        for id in &self.ended {
            let answer = client.ask(Ask::new("GET", &format!("{SANDBOXES}/{id}")))?;
            // Forgotten is as good as ended.
            if answer.status != 404 && answer.json()["state"] != "ended" {
                self.faults.push(format!("{id} was ended and is not: {}", answer.text()));
            }
        }
        Ok(())
    }

    /// Whether a sandbox has each line that was acknowledged, and no more than were asked for.
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

/// Whether what lives is what the ledgers have, and no more.
fn check_live(client: &mut Client, ledgers: &[Ledger], faults: &mut Vec<String>) -> Result<()> {
    let known: BTreeSet<&str> = ledgers.iter().flat_map(|ledger| ledger.live.keys()).map(String::as_str).collect();
    let listed =
        client.ask(Ask::new("GET", &format!("{SANDBOXES}?limit=1000&label=soak%3Dstorm")))?.expect(200)?.json();
    for item in listed["items"].as_array().context("a list without items")? {
        let id = item["id"].as_str().unwrap_or_default();
        if !known.contains(id) {
            faults.push(format!("{id} lives and nobody was told of it"));
        }
    }
    Ok(())
}
