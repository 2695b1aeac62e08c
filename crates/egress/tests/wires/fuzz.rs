//! A fuzzer that needs no other compiler: it changes the messages of the corpus at random and calls a target with each.
//!
//! The same numbers come up every time. `SAGGAR_FUZZ_SECONDS=60` shares that time among the targets instead of a fixed number of
//! tries each, from a seed of the clock; `make test` does. A failure prints the message as hexadecimal digits: put it into `corpus/`, and it stays a
//! case.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::corpus;
use crate::{requests, targets};

const TRIES: usize = 20_000;
/// A whole session takes longer than a parser.
const TRIES_OF_SESSIONS: usize = 500;
/// Tests that share the time.
const TARGETS: u32 = 5;
const MESSAGE_MAX: usize = 20_000;

#[test]
fn questions_hold_their_properties_under_fuzzing() {
    run("dns_question", targets::fuzz_dns_question);
}

#[test]
fn replies_hold_their_properties_under_fuzzing() {
    run("dns_reply", targets::fuzz_dns_reply);
}

#[test]
fn socks_requests_hold_their_properties_under_fuzzing() {
    run("socks", targets::fuzz_socks);
}

#[test]
fn hellos_hold_their_properties_under_fuzzing() {
    run("hello", targets::fuzz_hello);
}

#[test]
fn http_holds_its_properties_under_fuzzing() {
    run_with("http", requests::fuzz_http, TRIES_OF_SESSIONS);
}

fn run(kind: &str, target: fn(&[u8])) {
    run_with(kind, target, TRIES);
}

fn run_with(kind: &str, target: fn(&[u8]), most: usize) {
    let seeds: Vec<Vec<u8>> = corpus::messages(kind).into_iter().map(|(_, message)| message).collect();
    for seed in &seeds {
        check(kind, target, seed);
        // Every message, cut off at every byte.
        for end in 0..seed.len() {
            check(kind, target, &seed[..end]);
        }
    }
    let until = seconds().map(|seconds| Instant::now() + seconds);
    let mut random = Random(if until.is_some() { clock_seed() } else { 0x5a66 });
    let mut tries = 0;
    while until.map_or(tries < most, |until| Instant::now() < until) {
        let mut message = random.pick(&seeds).clone();
        for _ in 0..=random.below(6) {
            mutate(&mut message, &seeds, &mut random);
        }
        message.truncate(MESSAGE_MAX);
        check(kind, target, &message);
        tries += 1;
    }
    println!("{kind}: {tries} tries");
}

fn check(kind: &str, target: fn(&[u8]), message: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| target(message))).is_err() {
        let digits: String = message.iter().map(|byte| format!("{byte:02x}")).collect();
        panic!("{kind} failed with {digits}");
    }
}

fn seconds() -> Option<Duration> {
    let text = std::env::var("SAGGAR_FUZZ_SECONDS").ok()?;
    Some(Duration::from_secs(text.parse().expect("SAGGAR_FUZZ_SECONDS is a number of seconds")) / TARGETS)
}

fn clock_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_nanos() as u64 | 1
}

fn mutate(message: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    let at = random.below(message.len() + 1);
    match random.below(9) {
        0 if at < message.len() => message[at] ^= 1 << random.below(8),
        1 if at < message.len() => message[at] = random.below(256) as u8,
        2 if at < message.len() => message[at] = *random.pick(&[0, 1, 2, 3, 4, 5, 0x3f, 0x40, 0x7f, 0x80, 0xc0, 0xff]),
        3 => message.insert(at, random.below(256) as u8),
        4 if at < message.len() => {
            message.remove(at);
        }
        5 => message.truncate(at),
        // Repeat a part: entries of a list, labels, records.
        6 => {
            let part = message[at..(at + random.below(40)).min(message.len())].to_vec();
            message.splice(at..at, part);
        }
        // Continue as another message.
        7 => {
            let other = random.pick(seeds);
            let from = random.below(other.len() + 1);
            message.splice(at.., other[from..].iter().copied());
        }
        // A length that is off by a little.
        _ if at < message.len() => message[at] = message[at].wrapping_add(random.below(5) as u8).wrapping_sub(2),
        _ => message.push(0),
    }
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
