//! Which exec made a connection of the sandbox.
//!
//! The egress process announces each connection, and later names it in its decisions. If only one exec had processes when it arrived, that
//! one made it. Otherwise the processes that hold the connection are looked for, and each must belong to the same exec. A connection that
//! is over before it is looked for, or that several execs hold, belongs to none: nothing is guessed.
//!
//! INVARIANT: what a sandbox can make this cost is bounded: entries by [`KNOWN_MAX`], time by [`SEARCH_SHARE`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::caller;
use crate::egress::Connected;

use super::ancestry::{self, Process};
use super::exec::Exec;
use super::execs::Execs;
use super::moment::Moment;

/// Connections whose exec is remembered, the newest ones.
const KNOWN_MAX: usize = 16 * 1024;
/// Time that may be spent on searches within [`SEARCH_SPAN`]. Beyond it, a connection belongs to no exec.
const SEARCH_SHARE: Duration = Duration::from_millis(100);
const SEARCH_SPAN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Owners {
    /// The number of a connection and of its exec, oldest first.
    known: VecDeque<(u64, u32)>,
    searching_since: Instant,
    searched: Duration,
}

impl Owners {
    pub(super) fn new() -> Self {
        Self { known: VecDeque::new(), searching_since: Instant::now(), searched: Duration::ZERO }
    }

    /// Finds the exec of a connection. `first` is the sandbox's first process.
    pub(super) fn note(&mut self, connected: &Connected, execs: &Execs, first: i32) {
        let owner = match only_candidate(connected, execs) {
            Some(only) => Some(only),
            None => self.search(connected, execs, first),
        };
        let Some(owner) = owner else { return };
        if self.known.len() >= KNOWN_MAX {
            self.known.pop_front();
        }
        self.known.push_back((connected.connection, owner));
    }

    /// The number of the exec that made a connection.
    pub(super) fn of(&self, connection: u64) -> Option<u32> {
        // The numbers of a session grow.
        let at = self.known.binary_search_by_key(&connection, |(known, _)| *known).ok()?;
        self.known.get(at).map(|(_, exec)| *exec)
    }

    /// The session is over, and the next one counts from the beginning.
    pub(super) fn clear(&mut self) {
        self.known.clear();
    }

    fn search(&mut self, connected: &Connected, execs: &Execs, first: i32) -> Option<u32> {
        let begun = Instant::now();
        if begun.duration_since(self.searching_since) >= SEARCH_SPAN {
            (self.searching_since, self.searched) = (begun, Duration::ZERO);
        }
        if self.searched >= SEARCH_SHARE {
            return None;
        }
        let holders = caller::of_connection(first, connected.client, connected.server);
        let owner = holders.and_then(|holders| {
            let mut owners = holders.into_iter().map(|holder| owner_of(&ancestry::line(holder), execs));
            let one = owners.next()??;
            owners.all(|other| other == Some(one)).then_some(one)
        });
        self.searched += begun.elapsed();
        owner
    }
}

/// The exec that had processes when the connection arrived, if it was the only one. A process that has a connection open is alive.
fn only_candidate(connected: &Connected, execs: &Execs) -> Option<u32> {
    let arrived = Moment::from_nanos(connected.at_ns);
    let mut there = execs.iter().filter(|exec| exec.gone().is_none_or(|gone| gone >= arrived));
    match (connected.is_open, there.next(), there.next()) {
        (true, Some(only), None) => Some(only.number),
        _ => None,
    }
}

/// The exec of a process, by its ancestors: the program, or the keeper of the program's tree. A program may end before its keeper is
/// looked for; if that is so for one exec only, a keeper that isn't known is its keeper.
fn owner_of(line: &[Process], execs: &Execs) -> Option<u32> {
    let inside: Vec<u32> = line.iter().map(|process| process.inside).collect();
    let is_ancestor =
        |exec: &&Exec| exec.is_in_line(&inside) || line.iter().any(|process| exec.is_kept_by(process.outside));
    if let Some(exec) = execs.iter().rev().find(is_ancestor) {
        return Some(exec.number);
    }
    let [.., _, _keeper, Process { inside: 1, .. }] = line else { return None };
    let mut unknown = execs.iter().filter(|exec| exec.gone().is_none() && exec.keeper.is_none());
    match (unknown.next(), unknown.next()) {
        (Some(only), None) => Some(only.number),
        _ => None,
    }
}

/// Looks for the keeper of a program's tree: the child of the sandbox's first process whose child the program is.
pub(super) fn keeper_of(program: u32, first: u32, execs: &Execs) -> Option<u32> {
    let keepers = ancestry::children(first).into_iter().map(|process| process.outside);
    let mut unknown = keepers.filter(|keeper| !execs.iter().any(|exec| exec.is_kept_by(*keeper)));
    unknown.find(|keeper| ancestry::children(*keeper).iter().any(|child| child.inside == program))
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use saggar_domain::{ExecId, ExecSpec, ExecStatus};

    use super::super::exec::{Accepted, Ended};
    use super::*;

    /// An exec whose program has the pid.
    fn add(execs: &mut Execs, pid: u32) -> u32 {
        let number = execs.next_number();
        let spec = ExecSpec { argv: vec!["x".to_owned()], ..ExecSpec::default() };
        let mut exec = Exec::new(Accepted {
            id: ExecId::from_random([number as u8; 16]),
            number,
            spec: &spec,
            cwd: "/",
            output_max: 1024,
            deadline: None,
            portion: None,
            now_ms: 0,
        });
        exec.hear_started(pid, 0).unwrap();
        execs.add(exec);
        number
    }

    fn end(execs: &mut Execs, number: u32, gone: Option<Moment>) {
        let exec = execs.get_mut(number).unwrap();
        let (status, exit_code) = (ExecStatus::Exited, Some(0));
        exec.end(Ended { at: Moment::at(0), at_ms: 0, status, exit_code, signal: None, error: None });
        if let Some(gone) = gone {
            exec.hear_tree_gone().unwrap();
            exec.note_gone(gone);
        }
    }

    fn arrival(connection: u64, at_ms: u64, is_open: bool) -> Connected {
        let nowhere: SocketAddr = "192.0.2.1:1".parse().unwrap();
        Connected { connection, client: nowhere, server: nowhere, at_ns: at_ms * 1_000_000, is_open }
    }

    fn own() -> i32 {
        std::process::id() as i32
    }

    #[test]
    fn the_only_exec_with_processes_made_what_was_open_when_it_arrived() {
        let (mut execs, mut owners) = (Execs::default(), Owners::new());
        let first = add(&mut execs, 7);
        owners.note(&arrival(1, 10, true), &execs, own());
        // It was over already, so whoever made it may be gone.
        owners.note(&arrival(2, 10, false), &execs, own());
        end(&mut execs, first, Some(Moment::at(20)));
        let second = add(&mut execs, 8);
        // The end of the first one became known after this arrived.
        owners.note(&arrival(3, 15, true), &execs, own());
        owners.note(&arrival(4, 21, true), &execs, own());
        let found: Vec<_> = (1..=5).map(|connection| owners.of(connection)).collect();
        assert_eq!(found, [Some(first), None, None, Some(second), None]);
        owners.clear();
        assert_eq!(owners.of(1), None);
    }

    #[test]
    fn among_several_execs_the_one_whose_process_holds_the_connection_made_it() {
        let (mut execs, mut owners) = (Execs::default(), Owners::new());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let stream = TcpStream::connect(server).unwrap();
        let client = stream.local_addr().unwrap();
        let connected = |connection| Connected { client, server, ..arrival(connection, 10, true) };
        add(&mut execs, u32::MAX);
        let holder = add(&mut execs, std::process::id());
        owners.note(&connected(1), &execs, own());
        drop(stream);
        owners.note(&connected(2), &execs, own());
        assert_eq!((owners.of(1), owners.of(2)), (Some(holder), None));
    }

    #[test]
    fn searches_have_a_share_of_the_time_and_entries_a_bound() {
        let (mut execs, mut owners) = (Execs::default(), Owners::new());
        let only = add(&mut execs, 7);
        for connection in 1..=KNOWN_MAX as u64 + 1 {
            owners.note(&arrival(connection, 10, true), &execs, own());
        }
        assert_eq!((owners.of(1), owners.of(2), owners.known.len()), (None, Some(only), KNOWN_MAX));
        owners.searched = SEARCH_SHARE;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let stream = TcpStream::connect(server).unwrap();
        let client = stream.local_addr().unwrap();
        add(&mut execs, std::process::id());
        let number = KNOWN_MAX as u64 + 2;
        owners.note(&Connected { client, server, ..arrival(number, 10, true) }, &execs, own());
        assert_eq!(owners.of(number), None);
    }

    #[test]
    fn a_process_that_left_its_program_is_found_by_the_keeper_of_its_tree() {
        let mut execs = Execs::default();
        let (running, left) = (add(&mut execs, 7), add(&mut execs, 8));
        let process = |outside, inside| Process { outside, inside };
        let line = [process(130, 30), process(120, 20), process(101, 1)];
        let own = [process(130, 30), process(107, 7), process(119, 19), process(101, 1)];
        assert_eq!((owner_of(&own, &execs), owner_of(&line, &execs)), (Some(running), None), "two keepers are unknown");
        execs.get_mut(running).unwrap().keeper = Some(119);
        assert_eq!(owner_of(&line, &execs), Some(left), "one is unknown");
        assert_eq!(owner_of(&line[1..], &execs), None, "its keeper was killed");
        execs.get_mut(left).unwrap().keeper = Some(120);
        end(&mut execs, left, None);
        assert_eq!(owner_of(&line, &execs), Some(left));
        // Whoever has the keeper's number after its end is another process.
        execs.get_mut(left).unwrap().note_gone(Moment::at(5));
        assert_eq!(owner_of(&line, &execs), None);
        assert_eq!(keeper_of(7, u32::MAX, &execs), None);
    }
}
