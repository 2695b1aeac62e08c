//! Takes care of the runs while processes are killed: starts them, answers, decides, and judges each when it has
//! ended.
//!
//! The server may be dead at any moment, so every request is repeated until it is answered, and requests that must
//! not be carried out twice have an idempotency key.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use super::judge::{self, Tally};
use crate::http::{Answer, Ask, Client};
use crate::ledger::{Ledger, result};
use crate::patience::pause;
use crate::runs::{self, RUNS};

/// Concurrent runs of each class.
const AT_ONCE: usize = 3;
/// Calls of a run by HTTP, and of one that uses a shell.
const CALLS: [usize; 2] = [24, 8];
/// Interval of polling all runs.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// Time limit for repeating a request, and for a run.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a step is parked before it is decided: requests of its dead worker have arrived by then.
const THOUGHT: Duration = Duration::from_millis(500);
/// The file to which the shell appends its lines.
const LINES: &str = "/home/user/lines";

/// The class of a tool's effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// May be done any number of times.
    Pure,
    /// Done once for each key.
    Keyed,
    /// A probe can tell whether it was done.
    Probeable,
    Once,
}

impl Class {
    /// In the order of the table.
    pub const ALL: [Self; 4] = [Self::Pure, Self::Keyed, Self::Probeable, Self::Once];

    /// The API's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pure => "pure",
            Self::Keyed => "keyed",
            Self::Probeable => "probeable",
            Self::Once => "once",
        }
    }

    /// The number of effects of a run of this class.
    pub fn calls(self) -> usize {
        CALLS[usize::from(self == Self::Probeable)]
    }
}

/// A run in progress.
#[derive(Clone, Debug)]
pub struct Watched {
    pub id: String,
    /// Identifies its effects in the ledger.
    pub tag: String,
    pub class: Class,
    begun: Instant,
    is_answered: bool,
    /// Since when it has been parked, and the number of the entry that says so.
    parked: Option<(u64, Instant)>,
}

/// The results of all runs.
#[derive(Debug, Default)]
pub struct Minded {
    /// By class, in the order of [`Class::ALL`].
    pub tallies: [Tally; 4],
    /// Number of decided steps, and of those that had been done already.
    pub decided: [u64; 2],
    /// Requests without a response.
    pub unanswered: u64,
    /// Runs that were lost, done twice or ended differently.
    pub faults: Vec<String>,
}

#[derive(Debug)]
pub struct Minder {
    client: Client,
    ledger: Ledger,
    watched: Vec<Watched>,
    serial: u64,
    minded: Minded,
}

impl Minder {
    pub fn new(client: Client, ledger: Ledger) -> Self {
        Self { client, ledger, watched: Vec::new(), serial: 0, minded: Minded::default() }
    }

    /// Keeps runs going until `is_over`, and then waits for the remaining ones.
    pub fn mind(mut self, is_over: &AtomicBool) -> Result<Minded> {
        loop {
            let is_last = is_over.load(SeqCst);
            for class in Class::ALL {
                while !is_last && self.watched.iter().filter(|run| run.class == class).count() < AT_ONCE {
                    self.begin(class)?;
                }
            }
            for mut run in std::mem::take(&mut self.watched) {
                if self.look(&mut run)? {
                    self.watched.push(run);
                }
            }
            if is_last && self.watched.is_empty() {
                return Ok(self.minded);
            }
            pause(LOOK_EVERY);
        }
    }

    fn begin(&mut self, class: Class) -> Result<()> {
        self.serial += 1;
        let tag = format!("{}-{}", class.name(), self.serial);
        let request = request(class, &tag, &self.ledger.url());
        let ask = Ask { idempotency_key: Some(&tag), ..Ask::post(RUNS, &request) };
        let made = self.insist(ask)?.expect(201)?.json();
        let id = made["id"].as_str().unwrap_or_default().to_owned();
        self.watched.push(Watched { id, tag, class, begun: Instant::now(), is_answered: false, parked: None });
        Ok(())
    }

    /// Does what a run needs. Returns whether it is still in progress.
    fn look(&mut self, run: &mut Watched) -> Result<bool> {
        let shown = self.insist(Ask::new("GET", &format!("{RUNS}/{}", run.id)))?;
        if shown.status != 200 {
            self.minded.faults.push(format!("{} was acknowledged and is lost: {}", run.tag, shown.text()));
            return Ok(false);
        }
        let shown = shown.json();
        match shown["state"].as_str() {
            Some("finished") => {
                self.judge(run, &shown)?;
                return Ok(false);
            }
            Some("asking") if !run.is_answered => {
                // One acknowledged answer is enough.
                let question = &shown["question"]["id"];
                let answer = json!({ "name": "answer", "question": question, "body": run.tag }).to_string();
                let told = self.insist(Ask::post(&format!("{RUNS}/{}/signal", run.id), &answer))?;
                // A conflict: the run is over, so an earlier attempt, whose response was lost, has been accepted.
                ensure!(matches!(told.status, 202 | 409), "an answer was refused: {}", told.text());
                run.is_answered = true;
            }
            Some("parked") => self.decide(run, &shown)?,
            _ => {}
        }
        if run.begun.elapsed() > PATIENCE {
            self.minded.faults.push(format!("{} does not come to its end: {shown}", run.tag));
            return Ok(false);
        }
        Ok(true)
    }

    /// Decides as a human would, after checking what was done.
    fn decide(&mut self, run: &mut Watched, shown: &Value) -> Result<()> {
        let journal = self.journal(&run.id)?;
        let Some(unknown) = journal.last().filter(|entry| entry["event"] == "step_unknown") else { return Ok(()) };
        let [seq, step] = ["seq", "step"].map(|name| unknown[name].as_u64().unwrap_or_default());
        let since = match run.parked {
            Some((parked, since)) if parked == seq => since,
            _ => run.parked.insert((seq, Instant::now())).1,
        };
        if since.elapsed() < THOUGHT {
            return Ok(());
        }
        let key = format!("{}/0/{step}", run.id);
        let is_done = match run.class {
            Class::Probeable => self.has_line(shown, step)?,
            Class::Pure | Class::Keyed | Class::Once => {
                self.ledger.find(|arrival| (arrival.key == key).then_some(())).is_some()
            }
        };
        let decision = match is_done {
            true => json!({ "decision": "done", "result": result(&key) }),
            false => json!({ "decision": "retry" }),
        };
        let decided =
            self.insist(Ask::post(&format!("{RUNS}/{}/steps/{step}/decide", run.id), &decision.to_string()))?;
        // A conflict: an earlier attempt, whose response was lost, has been accepted.
        ensure!(matches!(decided.status, 202 | 409), "a decision was refused: {}", decided.text());
        self.minded.decided[0] += 1;
        self.minded.decided[1] += u64::from(is_done);
        // Decided again later if it is still parked.
        run.parked = Some((seq, Instant::now()));
        Ok(())
    }

    /// Whether a step's shell left its line. Steps count from 1, and the first is the model's.
    fn has_line(&mut self, shown: &Value, step: u64) -> Result<bool> {
        // Without a sandbox nothing was done in one.
        let Some(sandbox) = shown["sandbox_id"].as_str() else { return Ok(false) };
        let at = format!("/api/v1/sandboxes/{sandbox}");
        self.insist(Ask::post(&format!("{at}/resume"), "{}"))?;
        let count = json!({ "command": format!("grep -cx step-{step} {LINES}") }).to_string();
        let answer = self.insist(Ask::post(&format!("{at}/execs"), &count))?.expect(200)?.json();
        Ok(answer["stdout"].as_str().is_some_and(|count| count.trim() != "0"))
    }

    fn judge(&mut self, run: &Watched, shown: &Value) -> Result<()> {
        let journal = self.journal(&run.id)?;
        let replayed = self.insist(Ask::new("GET", &format!("{RUNS}/{}/replay", run.id)))?.expect(200)?.json();
        let arrivals = self.ledger.arrivals_of(&format!("\"{}/", run.tag));
        let tally = &mut self.minded.tallies[run.class as usize];
        tally.runs += 1;
        let mut faults = Vec::new();
        faults.extend(runs::fault_in_end(shown));
        if !replayed["divergence"].is_null() || replayed["agreed"] != replayed["entries"] {
            faults.push(format!("its replay differs: {replayed}"));
        }
        if !run.is_answered {
            faults.push("it went on without an answer".to_owned());
        }
        faults.extend(judge::judge(run, &journal, &arrivals, tally));
        self.minded.faults.extend(faults.into_iter().map(|fault| format!("{} ({}): {fault}", run.tag, run.id)));
        Ok(())
    }

    fn journal(&mut self, id: &str) -> Result<Vec<Value>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match runs::journal(&mut self.client, id) {
                Ok(journal) => return Ok(journal),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => self.minded.unanswered += 1,
            }
            pause(LOOK_EVERY);
        }
    }

    /// Repeats a request until a server has answered it.
    fn insist(&mut self, ask: Ask<'_>) -> Result<Answer> {
        let deadline = Instant::now() + PATIENCE;
        let mut last = String::new();
        while Instant::now() < deadline {
            match self.client.ask(ask) {
                Ok(answer) if matches!(answer.status, 429 | 503) => last = answer.text(),
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    self.minded.unanswered += 1;
                    last = error.to_string();
                }
            }
            pause(LOOK_EVERY);
        }
        bail!("no answer in {} s; the last was {last}", PATIENCE.as_secs())
    }
}

/// A run with a question in its middle. Its effects are identified by its tag, not by anything from the engine.
fn request(class: Class, tag: &str, url: &str) -> String {
    let calls = class.calls();
    let ask = json!({ "tool": "ask_human", "arguments": { "question": "Go on?" } });
    let call = |index: usize| match class {
        // The first step is the model's, so call 0 is step 2.
        Class::Probeable => shell(&format!("echo step-{} >> {LINES}; sleep 0.01", step_of(index, calls))),
        Class::Pure | Class::Keyed | Class::Once => runs::http_call(url, format!("{tag}/{index}")),
    };
    let mut turn: Vec<Value> = (0..calls).map(call).collect();
    turn.insert(calls / 2, ask);
    if class == Class::Probeable {
        turn.push(shell(&format!("cat {LINES}")));
    }
    let tool = json!({ "class": class.name(), "attempts_max": 50 });
    let tools = match class {
        Class::Probeable => json!({ "shell": tool, "ask_human": {} }),
        Class::Pure | Class::Keyed | Class::Once => json!({ "http": tool, "ask_human": {} }),
    };
    runs::request(tag, &tools, vec![turn])
}

/// The step of a call: after the model's, and after the question if that comes first.
pub fn step_of(index: usize, calls: usize) -> usize {
    index + 2 + usize::from(index >= calls / 2)
}

fn shell(command: &str) -> Value {
    json!({ "tool": "shell", "arguments": { "command": command } })
}
