//! Rounds: the contenders take turns run by run, so that changes of the machine's load affect all of them.

use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::contender::{Contender, Launcher};
use super::statistics::Summary;
use super::watchdog::Watchdog;

/// Runs of each contender before anything is timed.
const WARM_UP_RUNS: usize = 5;

/// One round's results, in milliseconds, of each contender that took part.
#[derive(Clone, Debug, PartialEq)]
pub struct Round<C = Contender> {
    summaries: Vec<(C, Summary)>,
}

impl<C: Copy + PartialEq> Round<C> {
    pub fn new(summaries: Vec<(C, Summary)>) -> Self {
        Self { summaries }
    }

    /// `None` if the contender did not take part.
    pub fn of(&self, contender: C) -> Option<Summary> {
        self.summaries.iter().find(|(name, _)| *name == contender).map(|(_, summary)| *summary)
    }

    /// The ratio of two contenders' medians.
    pub fn ratio(&self, of: C, to: C) -> Option<f64> {
        Some(self.of(of)?.median / self.of(to)?.median)
    }
}

/// Warms up, then times `rounds` rounds.
pub fn measure(launchers: &[Launcher], rounds: usize) -> Result<Vec<Round>> {
    let watchdog = Watchdog::start()?;
    let turns: Vec<(Contender, usize)> = launchers.iter().map(|launcher| (launcher.contender, launcher.runs)).collect();
    take_turns(&turns, rounds, |turn, serial| time_one(&launchers[turn], serial, &watchdog))
}

/// The same for anything that can be timed. `turns` are the contenders with their runs per round; `time` gets the
/// index of a contender and a unique number.
pub fn take_turns<C: Copy + PartialEq>(
    turns: &[(C, usize)],
    rounds: usize,
    mut time: impl FnMut(usize, usize) -> Result<f64>,
) -> Result<Vec<Round<C>>> {
    let runs: Vec<usize> = turns.iter().map(|(_, runs)| *runs).collect();
    let mut serials = 0..;
    let mut time = |turn: usize| time(turn, serials.next().context("counting runs")?);
    for turn in schedule(0, &vec![WARM_UP_RUNS; turns.len()]) {
        time(turn)?;
    }
    let mut measured = Vec::new();
    for round in 0..rounds {
        eprintln!("bench: round {} of {rounds}", round + 1);
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); turns.len()];
        for turn in schedule(round, &runs) {
            times[turn].push(time(turn)?);
        }
        let summaries = turns.iter().zip(&times).map(|((contender, _), times)| (*contender, Summary::of(times)));
        measured.push(Round::new(summaries.collect()));
    }
    Ok(measured)
}

/// Milliseconds from before the spawn to after the wait.
pub fn time_one(launcher: &Launcher, serial: usize, watchdog: &Watchdog) -> Result<f64> {
    let mut command = launcher.command(serial);
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("starting {}", launcher.contender.name()))?;
    watchdog.watch(child.id());
    let status = child.wait();
    let elapsed = start.elapsed();
    watchdog.leave();
    match status {
        Ok(status) if status.success() => Ok(elapsed.as_secs_f64() * 1000.0),
        Ok(status) => bail!("a run of {} ended with {status}", launcher.contender.name()),
        Err(error) => Err(error).with_context(|| format!("waiting for {}", launcher.contender.name())),
    }
}

/// The order of turns: contender `i` gets `runs[i]` turns, spread evenly over the round.
///
/// Successive laps use all possible orders, so that no contender always follows the same one: a sandbox leaves work
/// to the kernel that slows down the next contender.
pub fn schedule(round: usize, runs: &[usize]) -> Vec<usize> {
    let laps = runs.iter().copied().max().unwrap_or(0);
    let mut turns = Vec::with_capacity(runs.iter().sum());
    for lap in 0..laps {
        let has_turn = |contender: &usize| (lap + 1) * runs[*contender] / laps > lap * runs[*contender] / laps;
        turns.extend(order(runs.len(), lap * ORDER_STRIDE + round).into_iter().filter(has_turn));
    }
    turns
}

/// Coprime to the number of orders of up to six contenders, and to the number of laps between the turns of a rare
/// one, so that every order occurs for the rare one too.
const ORDER_STRIDE: usize = 7;

/// The `number`th permutation of `count` things, modulo their number.
fn order(count: usize, mut number: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..count).collect();
    let mut order = Vec::with_capacity(count);
    while !left.is_empty() {
        let choices = left.len();
        order.push(left.remove(number % choices));
        number /= choices;
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_gets_the_turns_they_were_promised() {
        for runs in [&[100, 100, 100, 20][..], &[7, 3], &[1], &[5, 5, 5]] {
            let turns = schedule(3, runs);
            let count = |contender| turns.iter().filter(|turn| **turn == contender).count();
            assert_eq!((0..runs.len()).map(count).collect::<Vec<_>>(), runs);
        }
    }

    #[test]
    fn every_order_comes_once_before_one_comes_again() {
        let orders: std::collections::BTreeSet<_> = (0..24).map(|number| order(4, number * ORDER_STRIDE)).collect();
        assert_eq!(orders.len(), 24);
        assert_eq!(order(4, 24), order(4, 0));
    }

    #[test]
    fn a_rare_contender_is_spread_over_the_round() {
        let turns = schedule(0, &[100, 100, 100, 20]);
        let places: Vec<usize> = (0..turns.len()).filter(|place| turns[*place] == 3).collect();
        assert!(places.windows(2).all(|pair| (12..=20).contains(&(pair[1] - pair[0]))), "{places:?}");
    }

    #[test]
    fn everybody_follows_everybody() {
        let turns = schedule(0, &[100, 100, 100, 20]);
        for (first, second) in (0..4).flat_map(|first| (0..4).map(move |second| (first, second))) {
            let times = turns.windows(2).filter(|pair| **pair == [first, second]).count();
            let is_rare = first == 3 || second == 3;
            assert!(first == second || times >= if is_rare { 3 } else { 20 }, "{second} after {first}: {times}");
        }
    }

    #[test]
    fn a_ratio_needs_both() {
        let summary = |median| Summary { p10: 0.0, median, p90: 0.0 };
        let round = Round::new(vec![(Contender::Saggar, summary(3.0)), (Contender::Bubblewrap, summary(4.0))]);
        assert_eq!(round.ratio(Contender::Saggar, Contender::Bubblewrap), Some(0.75));
        assert_eq!(round.ratio(Contender::Runc, Contender::Saggar), None);
    }
}
