//! Attempts to use more of a managed network than its limits allow. What is allowed works first; after that, one more is too many.

use std::io;
use std::net::TcpStream;

use crate::Attempt;
use crate::out::Out;
use crate::proxied::{ask, connect, control, get};
use crate::world::ALLOWED;

pub const ATTEMPTS: &[Attempt] = &[("proxied-many-connections", connections), ("proxied-many-requests", requests)];

/// More connections than any case allows.
const CONNECTIONS: usize = 16;
/// How often one more is tried.
const TRIES: usize = 40;
/// More requests than any case allows. Each takes more than a hundred bytes, in both directions together.
const REQUESTS: usize = 40;

fn one_request() -> io::Result<()> {
    ask(connect((ALLOWED, 80))?, &get(&ALLOWED.to_string()))
}

/// Holds connections that say nothing, and opens one more.
fn connections(out: &Out, arguments: &[String]) {
    control(out, arguments, one_request);
    let hold = || -> Vec<TcpStream> { (0..CONNECTIONS).filter_map(|_| connect((ALLOWED, 7000)).ok()).collect() };
    let mut held = hold();
    // The kernel connects before anybody counts, so the first ones may come before those that are held; and the server leaves clients
    // that say nothing, after seconds. So new ones are held each time, beside those of the time before.
    let mut tries = (0..TRIES).map(|_| {
        let before = std::mem::replace(&mut held, hold());
        let result = connect((ALLOWED, 7000)).and_then(|stream| ask(stream, b"hello\n"));
        drop(before);
        result
    });
    out.tried("one more", tries.find(io::Result::is_err).unwrap_or(Ok(())));
}

/// Makes many requests, and one more.
fn requests(out: &Out, arguments: &[String]) {
    control(out, arguments, one_request);
    for _ in 0..REQUESTS {
        // Some of them pass.
        drop(one_request());
    }
    out.tried("one more", one_request());
}
