//! How many durable steps a second, through the real runtime and an HTTP tool: one run alone, and fifty at once.
//!
//! `cargo run --release --package saggar-runtime --example steps -- <directory on the disk in question> [runs] [steps]`
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "it measures, and stops at anything else")]

#[path = "../tests/runs/ledger.rs"]
#[allow(dead_code)]
mod ledger;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use saggar_domain::{KeyId, ProjectId, Timestamp};
use saggar_runtime::runs::engine::{AgentSpec, Body, Budget, Class, Entry, ModelRef, RetryPolicy, ToolSpec};
use saggar_runtime::runs::{Hub, NewRun, RealEffects, RunSettings, Runs, Worker, WorkerSettings};
use saggar_runtime::store::Store;
use saggar_runtime::{Action, Permit, PoolSize, Sandboxes, Settings, Subject};

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().expect("name a directory"));
    let runs: usize = arguments.next().map_or(50, |text| text.parse().unwrap());
    let steps: usize = arguments.next().map_or(100, |text| text.parse().unwrap());
    println!("fdatasync of 4 KiB: p50 {:.3} ms", fdatasync_ms(&directory));
    let place = Place::open(&directory.join("steps")).await;
    let (_, gaps) = place.measure(1, steps).await;
    println!("one run: {} steps, p50 {:.3} ms a step", steps, gaps);
    let (span, _) = place.measure(runs, steps).await;
    let all = (runs * steps) as f64;
    println!("{runs} runs of {steps} steps: {:.0} steps/s", all / span.as_secs_f64());
    println!("fdatasync of 4 KiB: p50 {:.3} ms", fdatasync_ms(&directory));
    std::fs::remove_dir_all(directory.join("steps")).unwrap();
}

fn fdatasync_ms(directory: &Path) -> f64 {
    let path = directory.join("sync");
    let file = File::create(&path).unwrap();
    let mut spans: Vec<f64> = (0..200)
        .map(|index| {
            let begun = Instant::now();
            file.write_all_at(&[7; 4096], index * 4096).unwrap();
            file.sync_data().unwrap();
            begun.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    std::fs::remove_file(path).unwrap();
    spans.sort_by(f64::total_cmp);
    spans[spans.len() / 2]
}

struct Place {
    runs: Runs,
    subject: Subject,
    ledger: ledger::Ledger,
    _stop: tokio::sync::watch::Sender<bool>,
    _worker: tokio::task::JoinHandle<()>,
}

impl Place {
    async fn open(directory: &Path) -> Self {
        let store = Store::open(directory).unwrap();
        let now = Timestamp::from(std::time::SystemTime::now());
        let project = store.default_project(ProjectId::from_random([1; 16]), now).await.unwrap().id;
        let subject = Subject::Key { key: KeyId::from_random([1; 16]), project };
        let ledger = ledger::Ledger::start();
        let settings = Settings {
            data_directory: directory.to_owned(),
            program: PathBuf::from("/nonexistent"),
            capacity: 1,
            pool: PoolSize { least: 0, most: 0 },
            default_ttl: Duration::from_secs(60),
            ttl_max: Duration::from_secs(60),
            allow_host_network: false,
            retention: Duration::from_secs(60),
            paused_max: Duration::from_secs(60),
        };
        let sandboxes = Sandboxes::open(settings, store.clone()).unwrap();
        let allowed = RunSettings { http_allowed: vec![ledger.url.clone()], ..RunSettings::default() };
        let effects = RealEffects::new(sandboxes, allowed);
        let hub = Hub::default();
        let settings = WorkerSettings { data_directory: Some(directory.to_owned()), ..WorkerSettings::default() };
        let worker = Worker::new(store.clone(), effects, hub.clone(), settings);
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let worker = tokio::spawn(async move { worker.run(stopped).await });
        Self { runs: Runs::new(store, hub), subject, ledger, _stop: stop, _worker: worker }
    }

    /// How long all took, and the median between two steps of the last run in milliseconds.
    async fn measure(&self, runs: usize, steps: usize) -> (Duration, f64) {
        let permit = |action| Permit::decide(&self.subject, action).unwrap();
        let begun = Instant::now();
        let mut ids = Vec::new();
        for _ in 0..runs {
            let new = NewRun { agent: agent(&self.ledger.url, steps), idempotency: None };
            ids.push(self.runs.start(&permit(Action::StartRun), new).await.unwrap().0.id);
        }
        for id in &ids {
            self.runs.finished(&permit(Action::ReadRun(id.clone()))).await.unwrap();
        }
        let span = begun.elapsed();
        let read = permit(Action::ReadRun(ids[0].clone()));
        let (mut times, mut after) = (Vec::new(), 0);
        loop {
            let page = self.runs.journal(&read, after).await.unwrap();
            let Some(last) = page.last() else { break };
            after = last.seq;
            times.extend(page.iter().map(|entry| Entry::decode(&entry.entry).unwrap().event.at().as_millis()));
        }
        // Milliseconds are too coarse for one step: the median over tens of them.
        let mut gaps: Vec<f64> = times.windows(41).map(|some| (some[40] - some[0]) as f64 / 20.0).collect();
        gaps.sort_by(f64::total_cmp);
        (span, gaps.get(gaps.len() / 2).copied().unwrap_or(f64::NAN))
    }
}

fn agent(url: &str, steps: usize) -> AgentSpec {
    let call = |index| serde_json::json!({ "tool": "http", "arguments": { "url": url, "body": index } });
    let calls: Vec<_> = (0..steps).map(call).collect();
    let script = serde_json::json!({ "turns": [{ "calls": calls }, { "text": "It is done." }] });
    let tool = ToolSpec { class: Class::Keyed, retry: RetryPolicy::default(), timeout_ms: 60_000 };
    AgentSpec {
        name: "steps".to_owned(),
        system: None,
        task: Body::text("do it"),
        model: ModelRef {
            provider: "scripted".to_owned(),
            model: script.to_string(),
            reply_tokens_max: 100,
            retry: RetryPolicy::default(),
        },
        tools: BTreeMap::from([("http".to_owned(), tool)]),
        budget: Budget::default(),
        repeats_max: 8,
        agents: BTreeMap::new(),
    }
}
