//! The model gateway: what it adds to a call, how many calls and streams it carries, beside a direct connection and LiteLLM's proxy;
//! and tools of a run that are called at once.
//!
//! The provider, the gateway and LiteLLM share the machine, and every contender gets the same requests from the same client. The gateway
//! books each call, and checks a budget before it, as a server does that is used by several people.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::options::Options;
use crate::machine::{Load, Machine};
use crate::provider::{Provider, QUICK, paced};
use crate::serving::Serving;
use crate::workplace::Workplace;
use report::Report;

mod calls;
mod litellm;
mod parallel;
mod rate;
mod report;
mod streams;

/// A disk, as for durable runs: bookings are written to it.
const DISK: &str = "/var/tmp";

/// `peers` is the directory into which `scripts/setup.sh bench` installs them.
pub fn measure(options: &Options, saggar: &Path, peers: &Path) -> Result<Report> {
    let workplace =
        Workplace::make_in(Path::new(DISK), "bench-models").context("making a directory for the benchmark")?;
    let machine = Machine::look().context("looking at the machine")?;
    let load_before = Load::now()?;
    let provider = Provider::start()?;
    let server = gateway(saggar, &provider, workplace.path())?;
    let calls = calls::measure(options, &provider, &server).context("timing calls one by one")?;
    let rate =
        rate::measure(options, &provider, &server, peers, workplace.path()).context("counting calls a second")?;
    // A new server, so that its peak of memory is of the streams.
    drop(server);
    let streams = streams::measure(options, saggar, &provider, workplace.path()).context("following many streams")?;
    let parallel = parallel::measure(options, saggar, workplace.path()).context("timing tools at once")?;
    let loads = [load_before, Load::now()?];
    Ok(Report::new(machine, calls, rate, streams, parallel, loads))
}

/// A server whose models are the provider's, with a budget for its project.
fn gateway(saggar: &Path, provider: &Provider, place: &Path) -> Result<Serving> {
    serve(saggar, provider, place, "gateway")
}

fn serve(saggar: &Path, provider: &Provider, place: &Path, name: &str) -> Result<Serving> {
    let file = models_file(provider, place)?;
    let file = file.to_str().context("a path that is text")?;
    Serving::start(saggar, &place.join(name), &["--log", "warn", "--pool-max", "0", "--models-file", file])
}

fn models_file(provider: &Provider, place: &Path) -> Result<PathBuf> {
    let prices = r#"prices = { input = "3", output = "15" }"#;
    let model =
        |name: &str| format!("[models.\"{name}\"]\ntargets = [{{ provider = \"p\", model = \"{name}\", {prices} }}]\n");
    let text = format!(
        "[providers.p]\nkind = \"compatible\"\nurl = \"http://{}/v1\"\n{}{}[budgets.default]\ndollars = 1000000\n",
        provider.address(),
        model(QUICK),
        model(&paced(streams::TOKENS, streams::PER_SECOND)),
    );
    let file = place.join("models.toml");
    std::fs::write(&file, text).context("writing the file of models")?;
    Ok(file)
}

/// A request of a client, as short as they come.
fn request(model: &str, is_stream: bool) -> String {
    format!(
        r#"{{"model":"{model}","stream":{is_stream},"max_tokens":1000,"messages":[{{"role":"user","content":"Count to four."}}]}}"#
    )
}

const PATH: &str = "/v1/chat/completions";
