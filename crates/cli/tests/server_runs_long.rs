//! A long conversation on a real wire: its journal grows by the same for every turn, and the server's memory stays bounded, although each
//! request has the whole conversation.
//!
//! `SAGGAR_TURNS` sets the number of turns.

mod http;
mod model_standin;
mod runs;

use http::Server;
use model_standin::serving::{agent, server_with};
use model_standin::{Standin, Turn};
use runs::ledger::Ledger;
use runs::{begin, journal, until_completed};
use serde_json::{Value, json};

/// Turns in an ordinary test.
const TURNS: usize = 100;
/// Maximum memory of a server, in KiB, with a conversation of any length here.
const MEMORY_KIB_MAX: u64 = 160 << 10;
/// Maximum size of one turn in the journal: a reply, a call and its result, each intended and settled.
const TURN_BYTES_MAX: usize = 4096;

fn turns_wanted() -> usize {
    std::env::var("SAGGAR_TURNS").ok().and_then(|turns| turns.parse().ok()).unwrap_or(TURNS)
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

#[test]
fn heavy_a_long_conversation_stays_within_bounds() {
    let turns = turns_wanted();
    let ledger = Ledger::start();
    let url = ledger.url.clone();
    let standin = Standin::saying(move |replies, _| match replies < turns {
        true => {
            let arguments = json!({ "url": url, "body": replies }).to_string();
            Turn::calls(&[("http", &arguments)])
        }
        false => Turn::says("It is done."),
    });
    let server = server_with(&standin, "", &["--http-allowed", &ledger.url]);
    let before = size_of(&server.data());
    let run = begin(&server, &agent("chat", json!({ "tools": { "http": {} } })));
    let mut shown = Value::Null;
    // Long runs take longer than one wait.
    while shown["state"] != "finished" {
        let asked = standin.asked().len();
        http::eventually("another turn", || {
            shown = runs::show(&server, &run);
            shown["state"] == "finished" || standin.asked().len() > asked
        });
    }
    until_completed(&server, &run);
    assert_eq!((standin.asked().len(), ledger.asked().len()), (turns + 1, turns));
    let journal = journal(&server, &run);
    let sizes: Vec<usize> = journal.iter().map(|entry| entry.to_string().len()).collect();
    let part = sizes.len() / 4;
    let (early, late) = (sizes[part..2 * part].iter().sum::<usize>(), sizes[3 * part..].iter().sum::<usize>());
    assert!(late < early + early / 10, "late turns take more than early ones: {early} {late}");
    let most = *sizes.iter().skip(5).max().expect("entries");
    assert!(sizes.iter().sum::<usize>() / turns < TURN_BYTES_MAX && most < TURN_BYTES_MAX, "{most}");
    // The last request alone has the whole conversation; were each stored, the data would grow by the square of the turns.
    let last = standin.asked().pop().expect("it was asked").body.to_string().len() as u64;
    let stored = size_of(&server.data()) - before;
    assert!(last > 200 * turns as u64, "the last request has all turns: {last}");
    assert!(stored < (16 << 20) + 16 * 1024 * turns as u64, "{stored} bytes are stored");
    let most = memory_most(&server);
    assert!(most < MEMORY_KIB_MAX, "the server had {most} KiB");
    let replay = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
    assert_eq!(replay["divergence"], Value::Null);
}
