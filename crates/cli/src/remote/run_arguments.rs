//! The command line of `saggar runs`, as typed values.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use saggar_api::{Label, StepDecision};
use saggar_domain::{RunId, RunState, Timeout};

use super::arguments::{STATUS, ServerArguments};
use super::run_files::RunAt;

#[derive(Args, Debug)]
#[command(after_help = STATUS)]
pub(crate) struct RunsArguments {
    #[command(subcommand)]
    pub(crate) command: RunsCommand,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

#[derive(Subcommand, Debug)]
pub(crate) enum RunsCommand {
    /// Start a run of an agent and print its id
    #[command(after_help = "Examples:\n  id=$(saggar runs start agent.toml)\n  saggar runs start agent.json --follow")]
    Start {
        /// Agent file in TOML or JSON; a script given as a path is read relative to it
        #[arg(value_name = "AGENT")]
        agent: PathBuf,
        /// Label for finding the run again (repeatable)
        #[arg(short, long = "label", value_name = "K=V", value_parser = Label::parse)]
        labels: Vec<Label>,
        /// Idempotency key: repeating the request with the same key returns the same run
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
        /// Follow the run to its end
        #[arg(short, long)]
        follow: bool,
    },
    /// List runs, newest first
    #[command(
        visible_alias = "ls",
        after_help = "Examples:\n  saggar runs list --state parked\n  saggar runs list --agent mender --label team=red --since 2h"
    )]
    List {
        /// Only runs in this state: queued, running, waiting, asking, parked, paused, finished
        #[arg(long, value_name = "STATE", value_parser = run_state)]
        state: Option<RunState>,
        /// Only runs of the agent with this name
        #[arg(long, value_name = "NAME")]
        agent: Option<String>,
        /// Only runs with this label (repeatable)
        #[arg(short, long = "label", value_name = "K=V", value_parser = Label::parse)]
        labels: Vec<Label>,
        /// Only runs started within this time, such as 2h
        #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
        since: Option<Timeout>,
        /// Only runs started longer ago than this, such as 7d
        #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
        before: Option<Timeout>,
        /// Only child runs of this run
        #[arg(long, value_name = "RUN", value_parser = run_id)]
        child_of: Option<RunId>,
        /// Maximum number to list
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Show one run
    Show {
        /// The run's id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
    },
    /// Print a run's past and new journal entries until it is over
    #[command(
        after_help = "claimed: a worker has taken the run. intended: the step is recorded and starts. settled: the result of the step is recorded; a command may still have failed, see its exit_code. A line that ends with … is cut; --json prints everything."
    )]
    Follow {
        /// The run's id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
        /// Only entries after this one, numbered as printed: e12
        #[arg(long, value_name = "ENTRY", value_parser = entry)]
        after: Option<u64>,
    },
    /// Answer a run's question
    #[command(
        after_help = "`saggar runs show RUN` prints the open question and its number.\n\nExample:\n  saggar runs answer $id --question 2 'the blue one'"
    )]
    Answer {
        /// The run's id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
        /// Text of the answer; several words are joined by spaces
        #[arg(value_name = "TEXT", required = true)]
        text: Vec<String>,
        /// Number of the question, so that a repeated answer never answers the next question
        #[arg(long, value_name = "ID")]
        question: Option<u64>,
    },
    /// Tell a run's agent something
    #[command(
        after_help = "The agent reads it before its model's next reply. To answer the run's question, use: saggar runs answer.\n\nExample:\n  saggar runs say $id the tests are in the other directory"
    )]
    Say {
        /// The run's id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
        /// Text of the message; several words are joined by spaces
        #[arg(value_name = "TEXT", required = true)]
        text: Vec<String>,
        /// Message id: a message with the same id is delivered once
        #[arg(long, value_name = "ID")]
        id: Option<String>,
    },
    /// Send a signal, which ends a wait for it
    #[command(
        after_help = "To tell the agent something, use: saggar runs say. To answer its question: saggar runs answer.\n\nExample:\n  saggar runs signal $id built 'all tests passed'"
    )]
    Signal {
        /// The run's id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
        /// Name of the signal, such as `built`; the agent is given the text
        #[arg(value_name = "NAME")]
        name: String,
        /// Text of the message
        #[arg(value_name = "TEXT")]
        body: String,
        /// Message id: a message with the same id is delivered once
        #[arg(long, value_name = "ID")]
        id: Option<String>,
    },
    /// Pause a run: it starts nothing new
    Pause {
        /// The run's id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
    },
    /// Resume a paused run
    Resume {
        /// The run's id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
    },
    /// Cancel a run for good
    Cancel {
        /// The run's id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
    },
    /// Raise the budget of a run
    #[command(
        after_help = "Each limit that the run has grows by so much; one that waits for its budget goes on.\n\nExample:\n  saggar runs budget $id --steps 50 --time 1h"
    )]
    Budget {
        /// The run's id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
        #[command(flatten)]
        more: MoreBudget,
        /// Request id: a request with the same id is effective once
        #[arg(long, value_name = "ID")]
        id: Option<String>,
    },
    /// Decide about a step whose outcome is unknown
    #[command(
        after_help = "Examples:\n  saggar runs decide $id 7 retry\n  saggar runs decide $id 7 done --result 'it was sent'\n  saggar runs decide $id 7 abandon"
    )]
    Decide {
        /// The run's id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
        /// The step at which the run is parked
        #[arg(value_name = "STEP")]
        step: u64,
        /// Decision: retry, done or abandon
        #[arg(value_name = "DECISION", value_parser = decision)]
        decision: StepDecision,
        /// Attempt that the decision is about, as `runs show` prints it [default: the one that is parked now]
        #[arg(long, value_name = "N")]
        attempt: Option<u32>,
        /// Result of the step, with done
        #[arg(long, value_name = "TEXT")]
        result: Option<String>,
    },
    /// Start a new run from a point in a run's history and print its id
    Fork {
        /// The run's id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
        /// Fork after this step (3) or this entry (e12), as `runs follow` prints them [default: the last entry]
        #[arg(long, value_name = "STEP|ENTRY", value_parser = fork_at)]
        at: Option<ForkAt>,
        /// Message to the fork's agent
        #[arg(long, value_name = "TEXT")]
        with: Option<String>,
    },
    /// Take a run back to the end of an earlier step, with its files
    ///
    /// What was done outside its sandbox is not undone, and is listed.
    #[command(after_help = "Example:\n  saggar runs rollback $id --at 7 --with 'leave the tests alone'")]
    Rollback {
        /// The run's id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
        /// The last step that counts, as `runs follow` prints it; 0 for the beginning
        #[arg(long, value_name = "STEP")]
        at: u64,
        /// Message to the agent
        #[arg(long, value_name = "TEXT")]
        with: Option<String>,
    },
    /// Compare the files of two runs, or of two steps of a run
    ///
    /// Those of the newest snapshot are compared, or of the newest one at or before a step.
    #[command(after_help = "Examples:\n  saggar runs diff $id@3 $id@9 --patch\n  saggar runs diff $id $fork")]
    Diff {
        /// A run, or a run at a step: run_…@7
        #[arg(value_name = "FROM", value_parser = RunAt::parse)]
        from: RunAt,
        /// The other
        #[arg(value_name = "TO", value_parser = RunAt::parse)]
        to: RunAt,
        /// Show what changed in files of text
        #[arg(long)]
        patch: bool,
    },
    /// Remove finished runs, including all their child runs
    #[command(visible_alias = "remove")]
    Rm {
        /// Run ids
        #[arg(value_name = "RUN", required = true, value_parser = run_id)]
        runs: Vec<RunId>,
    },
    /// Replay a run from its journal and show differences
    Replay {
        /// The run's id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
    },
    /// Export a run as a fixture for `saggar test`
    Export {
        /// The run's id
        #[arg(value_name = "RUN", value_parser = run_id)]
        run: RunId,
    },
}

/// What is added to the limits of a run. A leading `+` is allowed, for those who want to see it.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct MoreBudget {
    /// Calls of the model and of tools
    #[arg(long, value_name = "N", value_parser = more)]
    pub(crate) steps: Option<u64>,
    /// Time from the start, such as 1h
    #[arg(long, value_name = "TIME", value_parser = more_time)]
    pub(crate) time: Option<Timeout>,
    /// Tokens of models
    #[arg(long, value_name = "N", value_parser = more)]
    pub(crate) tokens: Option<u64>,
    /// Money, in millionths
    #[arg(long, value_name = "N", value_parser = more)]
    pub(crate) micros: Option<u64>,
    /// Calls of tools
    #[arg(long, value_name = "N", value_parser = more)]
    pub(crate) tool_calls: Option<u64>,
    /// Attempts after the first
    #[arg(long, value_name = "N", value_parser = more)]
    pub(crate) retries: Option<u64>,
    /// Runs started by it, and by those
    #[arg(long, value_name = "N", value_parser = more)]
    pub(crate) children: Option<u64>,
}

fn more(text: &str) -> Result<u64, String> {
    text.strip_prefix('+').unwrap_or(text).parse().map_err(|_| "not a whole number such as 50".to_owned())
}

fn more_time(text: &str) -> Result<Timeout, String> {
    Timeout::parse(text.strip_prefix('+').unwrap_or(text))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForkAt {
    Step(u64),
    Entry(u64),
}

fn fork_at(text: &str) -> Result<ForkAt, String> {
    let number = |text: &str| text.trim().parse().ok();
    let step = number(text.strip_prefix("step").unwrap_or(text)).map(ForkAt::Step);
    step.or_else(|| text.strip_prefix('e').and_then(number).map(ForkAt::Entry))
        .ok_or_else(|| "neither a step such as 3 nor an entry such as e12; `saggar runs follow` prints both".to_owned())
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
