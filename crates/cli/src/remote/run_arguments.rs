//! The command line of `saggar runs`, as typed values.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use saggar_api::{Label, StepDecision};
use saggar_domain::{RunId, RunState, Timeout};

use super::arguments::{STATUS, ServerArguments};

/// `saggar runs`.
#[derive(Args, Debug)]
#[command(after_help = STATUS)]
pub(crate) struct RunsArguments {
    #[command(subcommand)]
    pub(crate) command: RunsCommand,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

/// What to do with runs.
#[derive(Subcommand, Debug)]
pub(crate) enum RunsCommand {
    /// Begin a run of an agent, and print its id
    #[command(after_help = "Examples:\n  id=$(saggar runs start agent.toml)\n  saggar runs start agent.json --follow")]
    Start {
        /// The agent, in TOML or JSON; a script named by a path is read from there
        #[arg(value_name = "AGENT")]
        agent: PathBuf,
        /// For finding it again (repeatable)
        #[arg(short, long = "label", value_name = "K=V", value_parser = Label::parse)]
        labels: Vec<Label>,
        /// The same key again gives the same run
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
        /// Follow it to its end
        #[arg(short, long)]
        follow: bool,
    },
    /// List runs, newest first
    #[command(
        visible_alias = "ls",
        after_help = "Examples:\n  saggar runs list --state parked\n  saggar runs list --agent mender --label team=red --since 2h"
    )]
    List {
        /// Only those in this state: queued, running, waiting, asking, parked, paused, finished
        #[arg(long, value_name = "STATE", value_parser = run_state)]
        state: Option<RunState>,
        /// Only those of the agent of this name
        #[arg(long, value_name = "NAME")]
        agent: Option<String>,
        /// Only those with this label (repeatable)
        #[arg(short, long = "label", value_name = "K=V", value_parser = Label::parse)]
        labels: Vec<Label>,
        /// Only those begun within this time, such as 2h
        #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
        since: Option<Timeout>,
        /// Only those begun longer ago than this, such as 7d
        #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
        before: Option<Timeout>,
        /// Only those that this run started
        #[arg(long, value_name = "RUN", value_parser = run_id)]
        child_of: Option<RunId>,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Show one run
    Show {
        /// Its id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
    },
    /// Print what happened to a run and what happens, until it is over
    Follow {
        /// Its id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
        /// Only what comes after this entry, by its number as it is printed: e12
        #[arg(long, value_name = "ENTRY", value_parser = entry)]
        after: Option<u64>,
    },
    /// Answer the question that a run asks
    #[command(
        after_help = "`saggar runs show RUN` prints the question and its number.\n\nExample:\n  saggar runs answer $id --question 2 'the blue one'"
    )]
    Answer {
        /// Its id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
        /// The answer
        #[arg(value_name = "TEXT")]
        text: String,
        /// The question's number, so that a repeated answer never answers the next question
        #[arg(long, value_name = "ID")]
        question: Option<u64>,
    },
    /// Say something to the agent of a run
    #[command(
        after_help = "To answer a question of the run's: saggar runs answer.\n\nExample:\n  saggar runs signal $id note 'the tests are in the other directory'"
    )]
    Signal {
        /// Its id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
        /// What kind of message, in a word of your choice, such as `note`; the agent is told the text
        #[arg(value_name = "NAME")]
        name: String,
        /// What
        #[arg(value_name = "TEXT")]
        body: String,
        /// The same id again is taken once
        #[arg(long, value_name = "ID")]
        id: Option<String>,
    },
    /// Let a run begin nothing new
    Pause {
        /// Its id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
    },
    /// Let a paused run go on
    Resume {
        /// Its id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
    },
    /// Stop a run for good
    Cancel {
        /// Its id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
    },
    /// Decide about a step of which nobody knows whether it was done
    #[command(
        after_help = "Examples:\n  saggar runs decide $id 7 retry\n  saggar runs decide $id 7 done --result 'it was sent'\n  saggar runs decide $id 7 abandon"
    )]
    Decide {
        /// Its id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
        /// The step it is parked at
        #[arg(value_name = "STEP")]
        step: u64,
        /// retry, done or abandon
        #[arg(value_name = "DECISION", value_parser = decision)]
        decision: StepDecision,
        /// What came of it, where it was done
        #[arg(long, value_name = "TEXT")]
        result: Option<String>,
    },
    /// Begin another run from a run's past, and print its id
    Fork {
        /// Its id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
        /// After this step (3), or after this entry (e12), as `runs follow` prints them; without it, after everything there is
        #[arg(long, value_name = "STEP|ENTRY", value_parser = fork_at)]
        at: Option<ForkAt>,
        /// Something to say to the fork
        #[arg(long, value_name = "TEXT")]
        with: Option<String>,
    },
    /// Remove runs that are over, with every run that they started
    #[command(visible_alias = "remove")]
    Rm {
        /// Their ids
        #[arg(value_name = "RUN", required = true, value_parser = run_id)]
        runs: Vec<RunId>,
    },
    /// Derive a run again from its journal, and show where that differs
    Replay {
        /// Its id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
    },
    /// Print a run as a fixture, for `saggar test`
    Export {
        /// Its id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
    },
}

/// Where to fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForkAt {
    Step(u64),
    Entry(u64),
}

/// A step or an entry, as `runs follow` prints them.
fn fork_at(text: &str) -> Result<ForkAt, String> {
    let number = |text: &str| text.trim().parse().ok();
    let step = number(text.strip_prefix("step").unwrap_or(text)).map(ForkAt::Step);
    step.or_else(|| text.strip_prefix('e').and_then(number).map(ForkAt::Entry))
        .ok_or_else(|| "not a step such as 3, nor an entry such as e12; `saggar runs follow` prints both".to_owned())
}

fn entry(text: &str) -> Result<u64, String> {
    text.strip_prefix('e')
        .unwrap_or(text)
        .parse()
        .map_err(|_| "not an entry such as e12; `saggar runs follow` prints them".to_owned())
}

fn run_id(text: &str) -> Result<RunId, String> {
    RunId::parse(text).ok_or_else(|| "not an id of the form run_…; `saggar runs list` shows them".to_owned())
}

fn run_state(text: &str) -> Result<RunState, String> {
    RunState::parse(text).ok_or_else(|| {
        let names: Vec<&str> = RunState::ALL.iter().map(|state| state.as_str()).collect();
        format!("not a state: one of {}", names.join(", "))
    })
}

fn decision(text: &str) -> Result<StepDecision, String> {
    match text {
        "retry" => Ok(StepDecision::Retry),
        "done" => Ok(StepDecision::Done),
        "abandon" => Ok(StepDecision::Abandon),
        _ => Err("not a decision: retry, done or abandon".to_owned()),
    }
}
