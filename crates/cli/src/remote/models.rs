//! `saggar models list|check`: which models a server offers, and whether their providers answer.

use std::time::Instant;

use clap::{Args, Subcommand};
use saggar_api::client::Client;
use saggar_api::{Model, ModelTarget};
use saggar_domain::model::{Price, RouteName, TokenUsage};
use serde_json::{Value, json};

use super::arguments::{STATUS, ServerArguments};
use super::dispatch::{CommandResult, print, print_json};
use super::table::{aligned, terminal_width};

/// List and try the models of a server
#[derive(Args, Debug)]
#[command(after_help = STATUS)]
pub(crate) struct ModelArguments {
    #[command(subcommand)]
    pub(crate) command: ModelCommand,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ModelCommand {
    /// List models, their providers and prices, and what the project has spent
    List,
    /// Send one small request to each model, and report who answered, how fast, and at what cost
    Check {
        /// Try only these; all without any
        models: Vec<RouteName>,
    },
}

pub(crate) async fn main(client: &Client, command: ModelCommand, is_json: bool) -> CommandResult {
    match command {
        ModelCommand::List => list(client, is_json).await,
        ModelCommand::Check { models } => check(client, &models, is_json).await,
    }
}

async fn list(client: &Client, is_json: bool) -> CommandResult {
    let list = client.models().await?;
    if is_json {
        print_json(&list)?;
        return Ok(0);
    }
    let mut rows = Vec::new();
    for model in &list.data {
        let sum = list.spending.routes.get(model.id.as_str()).copied().unwrap_or_default();
        let tokens = format!("{} / {}", sum.input, sum.output);
        for (index, target) in model.details.targets.iter().enumerate() {
            let first = |text: String| if index == 0 { text } else { String::new() };
            let by = format!("{}/{}", target.provider, target.model);
            let prices = [target.prices.input, target.prices.output].map(dollars);
            let (calls, spent) = (sum.calls.to_string(), sum.micros.to_string());
            let row = [model.id.to_string(), calls, tokens.clone(), spent].map(first);
            let [model, calls, tokens, spent] = row;
            rows.push(vec![model, prices.join(" / "), calls, tokens, spent, by]);
        }
    }
    let head = ["MODEL", "$ PER M IN / OUT", "CALLS", "TOKENS IN / OUT", "SPENT", "PROVIDER"];
    print(aligned(&head, &rows, terminal_width()).as_bytes())?;
    let spending = &list.spending;
    let budget = spending.budget_micros.map(|budget| format!(" of {budget}")).unwrap_or_default();
    print(
        format!("spent {}{budget}, {} of it today\n", spending.spent_micros, spending.spent_today_micros).as_bytes(),
    )?;
    Ok(0)
}

/// Exit status 1 if any model doesn't answer.
async fn check(client: &Client, only: &[RouteName], is_json: bool) -> CommandResult {
    let known = client.models().await?.data;
    let all = known.iter().map(|model| &model.id).filter(|id| only.is_empty() || only.contains(id));
    // One that isn't listed is tried too, so that the server's own answer is shown.
    let unknown = only.iter().filter(|name| known.iter().all(|model| model.id != **name));
    let (mut rows, mut reports, mut failed) = (Vec::new(), Vec::<Value>::new(), false);
    for name in all.chain(unknown) {
        let begun = Instant::now();
        let tried = client.try_model(name).await;
        let millis = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        match tried {
            Ok(trial) => {
                let usage = trial.usage;
                let cost = target(&known, name, &trial.model).map(|target| {
                    let (input, output) = (usage.prompt_tokens, usage.completion_tokens);
                    target.prices.cost(&TokenUsage { input, output, ..TokenUsage::default() })
                });
                let tokens = format!("{} + {}", usage.prompt_tokens, usage.completion_tokens);
                let price = cost.map_or_else(|| "-".to_owned(), |cost| cost.to_string());
                rows.push(vec![
                    name.to_string(),
                    "ok".to_owned(),
                    format!("{millis} ms"),
                    tokens,
                    price,
                    trial.model.clone(),
                ]);
                reports.push(json!({
                    "model": name, "ok": true, "latency_ms": millis, "answered_by": trial.model,
                    "input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens, "cost_micros": cost,
                }));
            }
            Err(error) => {
                failed = true;
                rows.push(vec![
                    name.to_string(),
                    "failed".to_owned(),
                    format!("{millis} ms"),
                    "-".to_owned(),
                    "-".to_owned(),
                    super::shown::line(&error.to_string()),
                ]);
                reports.push(json!({ "model": name, "ok": false, "latency_ms": millis, "error": error.to_string() }));
            }
        }
    }
    match is_json {
        true => print_json(&json!({ "models": reports }))?,
        false => {
            let titles = ["MODEL", "STATE", "TIME", "TOKENS", "COST", "ANSWERED BY"];
            print(aligned(&titles, &rows, None).as_bytes())?;
        }
    }
    Ok(u8::from(failed))
}

/// The target that answered: by its model, or the only one.
fn target<'a>(known: &'a [Model], name: &RouteName, model: &str) -> Option<&'a ModelTarget> {
    let targets = &known.iter().find(|known| known.id == *name)?.details.targets;
    targets.iter().find(|target| target.model == model).or(targets.first().filter(|_| targets.len() == 1))
}

/// Dollars per million tokens, without trailing zeros.
fn dollars(price: Price) -> String {
    let text = format!("{}.{:06}", price.0 / 1_000_000, price.0 % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
