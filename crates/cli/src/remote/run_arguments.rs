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
        /// Only what comes after this entry
        #[arg(long, value_name = "N")]
        after: Option<u64>,
    },
    /// Say something to a run, or answer its question
    #[command(after_help = "Example:\n  saggar runs signal $id answer 'the blue one'")]
    Signal {
        /// Its id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
        /// What kind: `answer` for a question of the run's, anything else is said to the agent
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
        /// After this step; without it, after everything there is
        #[arg(long, value_name = "STEP")]
        at: Option<u64>,
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
