//! `saggar net show|set|log|explain --sandbox`: the network of a server's sandboxes.

use saggar_api::client::{Client, SandboxHandle};
use saggar_api::{
    EffectiveEgress, EffectiveEgressLimits, EventsQuery, Sandbox, SandboxEvent, SandboxEventBody, SandboxNetwork,
};
use saggar_domain::net::{EgressDraft, HostTraffic, Rule, Rules};
use saggar_domain::{ByteSize, Count, NetworkMode, SandboxId};

use super::dispatch::{CommandResult, note, print, print_json};
use super::failure::CommandFailure;
use super::shown::{line, size};
use super::table::{aligned, terminal_width};
use crate::net::{Bindings, Sight, decision_line, explain};
use crate::outcome::OUR_FAILURE;

pub(crate) enum NetTask {
    Show { sandbox: SandboxId },
    Set { sandbox: SandboxId, rules: EgressDraft },
    Log { sandbox: SandboxId, follow: bool, sight: Sight },
    Explain { sandbox: SandboxId, target: Vec<String> },
}

pub(crate) async fn main(client: &Client, task: NetTask, is_json: bool) -> CommandResult {
    match task {
        NetTask::Show { sandbox } => show(&client.sandbox(sandbox), is_json).await,
        NetTask::Set { sandbox, rules } => set(&client.sandbox(sandbox), &rules, is_json).await,
        NetTask::Log { sandbox, follow: true, sight } => follow(&client.sandbox(sandbox), sight).await,
        NetTask::Log { sandbox, follow: false, sight } => log(&client.sandbox(sandbox), sight).await,
        // 1 means denied here.
        NetTask::Explain { sandbox, target } => {
            let explained = explain_sandbox(&client.sandbox(sandbox), &target, is_json).await;
            explained.map_err(|failure| failure.with_status(OUR_FAILURE))
        }
    }
}

async fn show(sandbox: &SandboxHandle, is_json: bool) -> CommandResult {
    let network = sandbox.network().await?;
    if is_json {
        print_json(&network)?;
        return Ok(0);
    }
    let SandboxNetwork { network: mode, egress, hosts } = network;
    let mut text = format!("network  {mode}\n");
    text.push_str(&egress.as_ref().map(rules_text).unwrap_or_default());
    if !hosts.is_empty() {
        let row = |sum: &HostTraffic| {
            vec![
                sum.allowed.to_string(),
                sum.denied.to_string(),
                size(sum.bytes_up),
                size(sum.bytes_down),
                line(&format!("{}:{}", sum.host, sum.port)),
            ]
        };
        let rows: Vec<Vec<String>> = hosts.iter().map(row).collect();
        text.push('\n');
        text.push_str(&aligned(&["ALLOWED", "DENIED", "UP", "DOWN", "HOST"], &rows, terminal_width()));
    }
    print(text.as_bytes())?;
    Ok(0)
}

async fn set(sandbox: &SandboxHandle, rules: &EgressDraft, is_json: bool) -> CommandResult {
    let changed: Sandbox = sandbox.set_egress(rules).await?;
    if is_json {
        print_json(&changed)?;
    } else {
        let egress = changed.spec.egress.unwrap_or_default();
        print(rules_text(&egress).as_bytes())?;
    }
    Ok(0)
}

fn rules_text(egress: &EffectiveEgress) -> String {
    let allow = if egress.allow.is_empty() { "allow    nothing\n".to_owned() } else { lines("allow", &egress.allow) };
    allow + &lines("deny", &egress.deny) + &lines("limit", &limits(&egress.limits))
}

/// The limits, each with its name in a spec.
fn limits(limits: &EffectiveEgressLimits) -> Vec<String> {
    let shown = |name: &str, value: Option<String>| value.map(|value| format!("{name} {value}"));
    let size = |size: Option<ByteSize>| size.map(|size| size.to_string());
    let count = |count: Option<Count>| count.map(|count| count.to_string());
    let all = [
        shown("bytes", size(limits.bytes)),
        shown("bytes_per_host", size(limits.bytes_per_host)),
        shown("connections", count(limits.connections)),
        shown("connections_per_host", count(limits.connections_per_host)),
        shown("requests_per_minute", count(limits.requests_per_minute)),
        shown("requests_per_minute_per_host", count(limits.requests_per_minute_per_host)),
    ];
    all.into_iter().flatten().collect()
}

fn lines(word: &str, rules: &[String]) -> String {
    rules.iter().map(|rule| format!("{word:<8} {}\n", line(rule))).collect()
}

async fn log(sandbox: &SandboxHandle, sight: Sight) -> CommandResult {
    let mut query = EventsQuery::default();
    loop {
        let page = sandbox.events(&query).await?;
        for event in &page.items {
            tell(event, sight)?;
        }
        query.after = page.items.last().map(|event| event.seq);
        if query.after.is_none_or(|seq| seq >= page.last_seq) {
            return Ok(0);
        }
    }
}

async fn follow(sandbox: &SandboxHandle, sight: Sight) -> CommandResult {
    let mut events = sandbox.follow_events(&EventsQuery::default()).await?;
    while let Some(event) = events.next().await? {
        tell(&event, sight)?;
    }
    Ok(0)
}

fn tell(event: &SandboxEvent, sight: Sight) -> Result<(), CommandFailure> {
    match &event.body {
        SandboxEventBody::Decision { decision } if sight.shows(decision.verdict) => match sight.is_json {
            true => print_json(event)?,
            false => {
                let text = decision_line(&event.at.to_string(), &decision.as_ref().clone().into());
                print(format!("{text}\n").as_bytes())?;
            }
        },
        SandboxEventBody::NetworkLost if !sight.is_json => {
            note(&format!("{} the network was lost: nothing was reached from here on", event.at));
        }
        SandboxEventBody::NetworkRestored if !sight.is_json => note(&format!("{} the network is back", event.at)),
        SandboxEventBody::Gap { events } if !sight.is_json => {
            note(&format!("{events} events are no longer kept here"));
        }
        _ => {}
    }
    Ok(())
}

async fn explain_sandbox(sandbox: &SandboxHandle, target: &[String], is_json: bool) -> CommandResult {
    let network = sandbox.network().await?;
    let egress = match (network.network, network.egress) {
        (NetworkMode::Proxied, Some(egress)) => egress,
        (mode, _) => {
            return Err(CommandFailure::ours(
                "conflict",
                format!("the network of sandbox {} is {mode}, which has no rules", sandbox.id()),
                "explain rules with --allow and --deny",
            ));
        }
    };
    let parsed = |texts: &[String]| -> Result<Vec<Rule>, CommandFailure> {
        let rule = |text: &String| {
            text.parse::<Rule>().map_err(|error| {
                let message = format!("the server's rule {text:?} can't be read: {error}");
                CommandFailure::ours("not_saggar", message, "use a version of saggar that is as new as the server")
            })
        };
        texts.iter().map(rule).collect()
    };
    let draft = EgressDraft::of(parsed(&egress.allow)?, parsed(&egress.deny)?);
    let explained = explain(Rules::new(draft)?, &Bindings::default(), target)?;
    print(if is_json { explained.json() } else { explained.text() }.as_bytes())?;
    Ok(u8::from(!explained.is_allowed()))
}
