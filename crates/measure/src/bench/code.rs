//! Warm Python contexts: from the request to the first result, compared with a program that does the same imports.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::options::Options;
use super::report::{NOTHING, circumstances, summary_text};
use super::rounds::{Round, take_turns};
use super::server::life;
use super::statistics::Spread;
use super::table::Table;
use super::target::{self, Bound, Target};
use crate::http::{Ask, Client};
use crate::machine::{Load, Machine};
use crate::patience::wait_until;
use crate::serving::Serving;
use crate::workplace::Workplace;

/// What data science imports, if the sandbox has it, and otherwise the slow ones of Python itself.
const IMPORTS: [&str; 2] = [
    "numpy,pandas",
    "asyncio,concurrent.futures,ctypes,decimal,difflib,doctest,email.mime.multipart,http.server,logging.handlers,lzma,\
     multiprocessing.pool,pydoc,sqlite3,ssl,tarfile,unittest.mock,urllib.request,xml.dom.minidom,xmlrpc.client",
];
/// Maximum ratio of a warm context's first result to the program.
const SHARE_MAX: f64 = 0.3;
/// Time limit of the imports, on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Runs of each contender in a round at most: a context takes a hundred times as long as a plain program.
const RUNS_MAX: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// `python3 -c` in a running sandbox.
    Program,
    /// A context that imports for itself.
    Cold,
    /// A context that forks from the warm process.
    Warm,
}

impl Way {
    const ALL: [Self; 3] = [Self::Program, Self::Cold, Self::Warm];

    fn name(self) -> &'static str {
        match self {
            Self::Program => "python3 -c",
            Self::Cold => "context, cold",
            Self::Warm => "context, warm",
        }
    }
}

#[derive(Debug)]
pub struct Report {
    pub targets: Vec<Target>,
    machine: Machine,
    imports: &'static str,
    rounds: Vec<Round<Way>>,
    runs: usize,
    loads: [Load; 2],
}

pub fn measure(options: &Options, saggar: &Path) -> Result<Report> {
    let workplace = Workplace::make("bench-code").context("making a directory for the benchmark")?;
    let machine = Machine::look().context("looking at the machine")?;
    let loads_before = Load::now()?;
    let cold = Serving::start(saggar, &workplace.path().join("cold"), &["--log", "warn"])?;
    let mut cold_client = cold.client();
    let cold_id = life::create(&mut cold_client, life::CREATE)?;
    let there = |imports: &&str| program(&mut cold_client, &cold_id, imports).is_ok();
    let imports = IMPORTS.into_iter().find(there).context("python3 doesn't run in a sandbox")?;
    let warm = Serving::start(saggar, &workplace.path().join("warm"), &["--log", "warn", "--warm-imports", imports])?;
    let mut warm_client = warm.client();
    let warm_id = life::create(&mut warm_client, life::CREATE)?;
    let listens = ["/bin/sh", "-c", "test -S /tmp/.saggar-code-*/python.sock"];
    wait_until("the warm process listens", START_PATIENCE, || {
        Ok(life::exec(&mut warm_client, &warm_id, &listens).is_ok())
    })?;
    let runs = options.runs.min(RUNS_MAX);
    let asked = format!(r"import {imports}\n1");
    let rounds = take_turns(&Way::ALL.map(|way| (way, runs)), options.rounds, |turn, _| match Way::ALL[turn] {
        Way::Program => program(&mut cold_client, &cold_id, imports),
        Way::Cold => first_result(&mut cold_client, &cold_id, &asked),
        Way::Warm => first_result(&mut warm_client, &warm_id, &asked),
    })
    .with_context(|| format!("the servers said:\n{}\n{}", cold.last_words(), warm.last_words()))?;
    let shares: Vec<f64> = rounds.iter().filter_map(|round| round.ratio(Way::Warm, Way::Program)).collect();
    let targets = vec![Target {
        name: "first result of a warm Python context, over python3 -c with its imports",
        bound: Bound::AtMost(SHARE_MAX),
        unit: "×",
        measured: Ok(Spread::of(&shares)),
    }];
    Ok(Report { targets, machine, imports, rounds, runs, loads: [loads_before, Load::now()?] })
}

/// Runs the program, in ms.
fn program(client: &mut Client, sandbox: &str, imports: &str) -> Result<f64> {
    let line = format!("import {imports}");
    life::timed(|| life::exec(client, sandbox, &["python3", "-c", &line])).map(|((), time)| time)
}

/// From the request for a context to its first result, in ms.
fn first_result(client: &mut Client, sandbox: &str, code: &str) -> Result<f64> {
    let contexts = format!("{}/{sandbox}/code/contexts", life::SANDBOXES);
    let (id, time) = life::timed(|| {
        let made = client.ask(Ask::post(&contexts, "{}")).context("asking for a context")?.expect(201)?;
        let text = String::from_utf8_lossy(&made.body).into_owned();
        let id = text.split_once(r#""id":""#).and_then(|(_, rest)| Some(rest.split_once('"')?.0.to_owned()));
        let id = id.with_context(|| format!("a context without an id: {text}"))?;
        let run = format!(r#"{{"context":"{id}","code":"{code}"}}"#);
        let path = format!("{}/{sandbox}/code/run", life::SANDBOXES);
        let ran = client.ask(Ask::post(&path, &run)).context("running code")?.expect(200)?;
        let text = String::from_utf8_lossy(&ran.body);
        if !text.contains(r#""text/plain":"1""#) {
            bail!("the code failed: {text}");
        }
        Ok(id)
    })?;
    client.ask(Ask::new("DELETE", &format!("{contexts}/{id}"))).context("removing a context")?.expect(204)?;
    Ok(time)
}

impl Report {
    pub fn text(&self) -> String {
        let names = Way::ALL.map(Way::name);
        let mut table = Table::new([&["round"], &names[..], &["warm / python3 -c"]].concat());
        for (number, round) in self.rounds.iter().enumerate() {
            let times = Way::ALL.map(|way| round.of(way).map_or(NOTHING.into(), summary_text));
            let share = round.ratio(Way::Warm, Way::Program).map_or(NOTHING.into(), |share| format!("{share:.2}×"));
            table.add([&[(number + 1).to_string()], &times[..], &[share]].concat());
        }
        let (imports, runs) = (self.imports, self.runs);
        let about = format!(
            "Code contexts of Python, up to the first result, in ms: median (p10..p90). Runs of each in a round: {runs}. Imports: {imports}."
        );
        let circumstances = circumstances(&self.machine, self.loads);
        [format!("{circumstances}\n"), target::table(&self.targets).to_string(), format!("{about}\n\n{table}")]
            .join("\n")
    }
}
