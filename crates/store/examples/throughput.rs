//! Measures how many sandboxes per second can be inserted, by number of concurrent writers and by durability.
//!
//! `cargo run --release --package saggar-store --example throughput -- <directory on the disk in question>`
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use saggar_domain::{BootId, DeadlineAction, Draft, GuestPath, Labels, ProjectId, PublicPorts, SandboxId, Timestamp};
use saggar_store::{Durability, KeyCheck, KeySecret, Lifetime, NewSandbox, Settings, Store};

const SPAN: Duration = Duration::from_secs(3);
const WRITERS: [usize; 3] = [1, 50, 200];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).ok_or("name a directory")?;
    println!("{:<10} {:>8} {:>12} {:>12}", "survives", "writers", "rows/s", "mean ms");
    for durability in [Durability::Process, Durability::Power] {
        for writers in WRITERS {
            let directory = Path::new(&directory).join(format!("{durability:?}-{writers}"));
            let rate = measure(&directory, durability, writers).await?;
            println!(
                "{:<10} {writers:>8} {rate:>12.0} {:>12.3}",
                format!("{durability:?}"),
                writers as f64 * 1e3 / rate
            );
            std::fs::remove_dir_all(directory)?;
        }
    }
    Ok(())
}

async fn measure(directory: &Path, durability: Durability, writers: usize) -> Result<f64, Box<dyn Error>> {
    let store = Store::open_with(directory, Settings { durability })?;
    let now = Timestamp::from(std::time::SystemTime::now());
    let project = store.default_project(ProjectId::from_random([1; 16]), now).await?.id;
    let template = sandbox(project, now).ok_or("the row to write is malformed")?;
    let next = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..writers {
        let (store, template, next) = (store.clone(), template.clone(), Arc::clone(&next));
        tasks.spawn(async move {
            while begun.elapsed() < SPAN {
                let number = u128::from(next.fetch_add(1, Ordering::Relaxed));
                // Spread over the index as random ids are.
                let bits = number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_le_bytes();
                let created_at = template.created_at.after(begun.elapsed());
                let new = NewSandbox { id: SandboxId::from_random(bits), created_at, ..template.clone() };
                store.insert_sandbox(new, None).await?;
            }
            Ok::<_, saggar_store::Error>(())
        });
    }
    for outcome in tasks.join_all().await {
        outcome?;
    }
    let rate = next.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
    if writers == 1 {
        println!("{:<10} {:>8} {:>12.0}  (checks of a key)", "", "", check_keys(&store).await?);
    }
    Ok(rate)
}

async fn check_keys(store: &Store) -> Result<f64, Box<dyn Error>> {
    let secret = KeySecret::generate()?;
    let now = Timestamp::from(std::time::SystemTime::now());
    let begun = Instant::now();
    let mut checks = 0u32;
    while begun.elapsed() < SPAN / 3 {
        assert_eq!(store.check_key(&secret, now).await?, KeyCheck::Unknown);
        checks += 1;
    }
    Ok(f64::from(checks) / begun.elapsed().as_secs_f64())
}

fn sandbox(project: ProjectId, now: Timestamp) -> Option<NewSandbox> {
    Some(NewSandbox {
        id: SandboxId::from_random([0; 16]),
        project,
        created_at: now,
        lifetime: Lifetime { deadline: Some(now), on_deadline: DeadlineAction::Kill, idle_timeout: None },
        auto_resume: false,
        boot_id: BootId::parse("0b0e8c1e-8b7e-4a3c-9f59-1f2a3b4c5d6e")?,
        policy_hash: None,
        access_token_hash: None,
        ingress: saggar_domain::Ingress::default(),
        public_ports: PublicPorts::default(),
        labels: Labels::default(),
        spec: Draft { cwd: GuestPath::parse(&format!("/{}", "x".repeat(500))).ok(), ..Draft::default() },
        env_names: Default::default(),
    })
}
