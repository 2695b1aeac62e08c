//! A long conversation on a real wire: its journal grows by the same for every turn, and the server's memory stays bounded, although each
//! request has the whole conversation.
//!
//! docs/durability.md states the bounds. One that is summed up always has a thousand turns. One that isn't has so many with `WHOLE_SUITE`,
//! as in `make test-all`: its requests grow, so that takes minutes. `SAGGAR_TURNS` sets another number for both.

mod http;
mod model_standin;
mod runs;

use std::sync::atomic::{AtomicUsize, Ordering};

use http::Server;
use model_standin::serving::{agent, server_with};
use model_standin::{Standin, Turn};
use runs::ledger::Ledger;
use runs::{begin, journal, until_completed};
use serde_json::{Value, json};

/// Turns of a conversation that isn't summed up, in an ordinary test.
const TURNS_IN_SHORT: usize = 100;
const TURNS: usize = 1000;
/// Maximum memory of a server, in KiB, with a conversation of any length here.
const MEMORY_KIB_MAX: u64 = 160 << 10;
/// Maximum size of one turn in the journal: a reply, a call and its result, each intended and settled.
const TURN_BYTES_MAX: usize = 4096;

fn turns_or(otherwise: usize) -> usize {
    std::env::var("SAGGAR_TURNS").ok().and_then(|turns| turns.parse().ok()).unwrap_or(otherwise)
}

/// Peak memory of a process, in KiB.
fn memory_most(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("every process has one");
    most.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// The bytes of a directory's files.
fn size_of(directory: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(directory).expect("ours").flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => size_of(&entry.path()),
            Ok(found) => found.len(),
            // It went away meanwhile.
            Err(_) => 0,
        })
        .sum()
}

/// A finished conversation of so many turns, each with one call.
struct Long {
    server: Server,
    standin: Standin,
    run: String,
    /// Bytes that the data directory has grown by.
    stored: u64,
}

fn converse(turns: usize, more: Value) -> Long {
    let ledger = Ledger::start();
    let url = ledger.url.clone();
    let calls = AtomicUsize::new(0);
    let standin = Standin::saying(move |_, asked| {
        if asked.body.to_string().contains("will be replaced by a summary") {
            return Turn::says("Some calls were made.");
        }
        match calls.fetch_add(1, Ordering::SeqCst) {
            call if call < turns => Turn::calls(&[("http", &json!({ "url": url, "body": call }).to_string())]),
            _ => Turn::says("It is done."),
        }
    });
    standin.forget();
    let server = server_with(&standin, "", &["--http-allowed", &ledger.url]);
    let before = size_of(&server.data());
    let mut agent = agent("chat", json!({ "tools": { "http": {} } }));
    for (name, value) in more.as_object().into_iter().flatten() {
        agent["agent"][name] = value.clone();
    }
    let run = begin(&server, &agent);
    let mut shown = Value::Null;
    // Long runs take longer than one wait.
    while shown["state"] != "finished" {
        let asked = standin.times_asked();
        http::eventually("another turn", || {
            shown = runs::show(&server, &run);
            shown["state"] == "finished" || standin.times_asked() > asked
        });
    }
    until_completed(&server, &run);
    assert_eq!(ledger.asked().len(), turns, "each call once");
    let stored = size_of(&server.data()) - before;
    assert!(stored < (16 << 20) + 16 * 1024 * turns as u64, "{stored} bytes are stored");
    let most = memory_most(&server);
    assert!(most < MEMORY_KIB_MAX, "the server had {most} KiB");
    println!("{turns} turns: the server had {most} KiB at most, and {stored} bytes are stored");
    let replay = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
    assert_eq!(replay["divergence"], Value::Null);
    Long { server, standin, run, stored }
}

/// Every turn takes as much of the journal as any other, and none more than its bound.
fn check_journal(long: &Long, turns: usize) {
    let sizes: Vec<usize> = journal(&long.server, &long.run).iter().map(|entry| entry.to_string().len()).collect();
    let part = sizes.len() / 4;
    let (early, late) = (sizes[part..2 * part].iter().sum::<usize>(), sizes[3 * part..].iter().sum::<usize>());
    assert!(late < early + early / 10, "late turns take more than early ones: {early} {late}");
    let most = *sizes.iter().skip(5).max().expect("entries");
    assert!(sizes.iter().sum::<usize>() / turns < TURN_BYTES_MAX && most < TURN_BYTES_MAX, "{most}");
}

#[test]
fn heavy_a_long_conversation_stays_within_bounds() {
    let is_whole = std::env::var_os("WHOLE_SUITE").is_some_and(|whole| !whole.is_empty());
    let turns = turns_or(if is_whole { TURNS } else { TURNS_IN_SHORT });
    let long = converse(turns, json!({}));
    assert_eq!(long.standin.times_asked(), turns + 1);
    check_journal(&long, turns);
    // The last request alone has the whole conversation; were each stored, the data would grow by the square of the turns.
    let last = long.standin.asked().pop().expect("it was asked").body.to_string().len() as u64;
    assert!(last > 200 * turns as u64, "the last request has all turns: {last}");
    assert!(long.stored < last * turns as u64 / 4 || turns < 500, "{} bytes are stored", long.stored);
}

#[test]
fn heavy_a_conversation_that_is_summed_up_asks_for_no_more_at_its_end() {
    let turns = turns_or(TURNS);
    let long = converse(turns, json!({ "context": { "tokens_max": 5000, "keep_tokens": 1000 } }));
    check_journal(&long, turns);
    assert!(long.standin.times_asked() > turns + turns / 50, "it was summed up again and again");
    let last = long.standin.asked().pop().expect("it was asked").body.to_string().len();
    assert!(last < 3 * 5000, "the last request has {last} bytes: a token for every 3");
}
