//! Runs that can be killed at any moment: they have steps of every kind, and their traces show whether one was done
//! twice or not at all.

use serde_json::{Value, json};

use super::ledger::{Ledger, result};
use super::{http, journal, results, said, shell, until_completed, write_file};
use crate::http::Server;

/// Rounds of a run: a file, a program and a call in each.
const ROUNDS: usize = 4;

/// Pseudo-random numbers, the same for a seed.
pub struct Dice(u64);

impl Dice {
    /// `SAGGAR_SEED` overrides the seed.
    pub fn new(seed: u64) -> Self {
        Self(std::env::var("SAGGAR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(seed))
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

pub fn rounds(url: &str) -> Value {
    let mut calls = Vec::new();
    for round in 0..ROUNDS {
        calls.push(write_file("/tmp/word", &format!("word {round}")));
        calls.push(shell("sleep 0.05; cat /tmp/word >> /tmp/ledger; echo >> /tmp/ledger"));
        calls.push(http(url, round));
    }
    calls.push(shell("cat /tmp/ledger"));
    json!([{ "text": "I begin.", "calls": calls }, { "text": "finished" }])
}

/// Checks that a run ended as it would have without kills, with every effect once.
pub fn check_end(server: &Server, ledger: &Ledger, run: &str) {
    until_completed(server, run);
    let given = results(server, run);
    // The first step is the model's, and a round has three.
    let key = |round: usize| format!("{run}/0/{}", 2 + 3 * round + 2);
    let mut expected = Vec::new();
    for round in 0..ROUNDS {
        expected.extend(["6 bytes written".to_owned(), "".to_owned(), result(&key(round))]);
    }
    expected.push((0..ROUNDS).map(|round| format!("word {round}\n")).collect());
    let plain = |text: &String| match text.starts_with('{') {
        true => said(text)["stdout"].as_str().expect("a text").to_owned(),
        false => text.clone(),
    };
    assert_eq!(given.iter().map(plain).collect::<Vec<_>>(), expected, "{run}: {:#?}", journal(server, run));
    let asked = ledger.asked();
    let keys: Vec<&String> = asked.keys().filter(|key| key.starts_with(run)).collect();
    assert_eq!(keys.len(), ROUNDS, "each call by its own key, and by no other: {keys:?}");
    assert!((0..ROUNDS).all(|round| ledger.has(&key(round))));
    let replay = server.get(&format!("/api/v1/runs/{run}/replay")).expect(200);
    assert_eq!(replay["divergence"], Value::Null, "{run}");
}
