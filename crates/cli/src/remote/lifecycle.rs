//! `saggar sandbox create|list|show|pause|resume|kill`.

use std::io::IsTerminal;

use saggar_api::client::{Client, Error, SandboxHandle};
use saggar_api::{
    CreateSandbox, Labels, ListSandboxes, PauseSandbox, Ports, ResumeSandbox, Sandbox, SandboxState, States,
};
use saggar_domain::model::{ModelAccess, RouteName};
use saggar_domain::{SandboxId, Timeout};

use super::arguments::{CreateArguments, HostDirectory, ListArguments};
use super::dispatch::{CommandResult, note, print, print_json};
use super::failure::CommandFailure;
use super::shown::{labels, line, now, span};
use super::table::{aligned, terminal_width};

/// Maximum page size of a list request.
const PAGE_MAX: u32 = 1000;
/// Stands for every model.
const ALL_MODELS: &str = "all";

pub(crate) async fn create(client: &Client, arguments: CreateArguments, is_json: bool) -> CommandResult {
    let key = arguments.idempotency_key.clone();
    let request = request(arguments)?;
    let made = match key {
        Some(key) => client.create_once(&request, &key).await?,
        None => client.create(&request).await?,
    };
    if is_json {
        print_json(&made)?;
        return Ok(0);
    }
    print(format!("{}\n", made.sandbox.id).as_bytes())?;
    if !made.sandbox.unenforced.is_empty() {
        let names: Vec<&str> =
            made.sandbox.unenforced.iter().map(|text| text.split(':').next().unwrap_or(text)).collect();
        note(&format!("not enforced on the server's host: {}", line(&names.join(", "))));
    }
    if let Some(token) = &made.access_token
        && std::io::stdout().is_terminal()
    {
        note(&format!("access token for its ports, shown only once: {}", line(token.reveal())));
    }
    Ok(0)
}

fn request(arguments: CreateArguments) -> Result<CreateSandbox, CommandFailure> {
    let (workspace, directory) = match arguments.workspace {
        None => (None, None),
        Some(HostDirectory::Named(name)) => (Some(name), None),
        Some(HostDirectory::Path(path)) => (None, Some(path)),
    };
    Ok(CreateSandbox {
        template: match arguments.snapshot {
            Some(snapshot) => snapshot.template_name(),
            None => arguments.template.unwrap_or_default(),
        },
        workspace,
        directory,
        fs: arguments.fs,
        labels: collected(arguments.labels)?,
        ttl: arguments.ttl,
        on_timeout: arguments.on_timeout.unwrap_or_default(),
        idle_timeout: arguments.idle_timeout,
        auto_resume: arguments.auto_resume,
        ports: Ports {
            public: arguments.public_ports,
            allow: (!arguments.allowed_ports.is_empty()).then_some(arguments.allowed_ports),
            host: arguments.port_host,
        },
        models: models(arguments.models),
        ..arguments.spec_flags.draft()?.try_into()?
    })
}

/// The word `all` stands for every model. One of that name is among them.
fn models(named: Vec<RouteName>) -> ModelAccess {
    if named.iter().any(|name| name.as_str() == ALL_MODELS) { ModelAccess::All } else { named.into_iter().collect() }
}

/// Labels as a request takes them: each name at most once.
pub(crate) fn collected(given: Vec<saggar_api::Label>) -> Result<Labels, CommandFailure> {
    let mut labels = Labels::default();
    for label in given {
        labels
            .insert(label)
            .map_err(|complaint| CommandFailure::ours("invalid_value", complaint, "give each label once"))?;
    }
    Ok(labels)
}

pub(crate) async fn list(client: &Client, arguments: ListArguments, is_json: bool) -> CommandResult {
    let states = if arguments.all { SandboxState::ALL.to_vec() } else { arguments.states };
    let states = (!states.is_empty()).then_some(States(states));
    let query = ListSandboxes { state: states, label: arguments.labels, limit: None, cursor: None };
    let (items, next_cursor) = listed(client, query, arguments.limit).await?;
    if is_json {
        print_json(&serde_json::json!({"items": items, "next_cursor": next_cursor}))?;
        return Ok(0);
    }
    if arguments.quiet {
        print(items.iter().map(|sandbox| format!("{}\n", sandbox.id)).collect::<String>().as_bytes())?;
    } else {
        let now = now();
        let rows: Vec<Vec<String>> = items.iter().map(|sandbox| row(sandbox, now)).collect();
        let titles = ["ID", "STATE", "TEMPLATE", "NETWORK", "AGE", "LEFT", "LABELS"];
        print(aligned(&titles, &rows, terminal_width()).as_bytes())?;
    }
    if next_cursor.is_some() {
        note("there are more; show them with a higher --limit");
    }
    Ok(0)
}

/// The newest sandboxes that match, and the cursor of the rest.
async fn listed(
    client: &Client,
    mut query: ListSandboxes,
    most: u32,
) -> Result<(Vec<Sandbox>, Option<String>), CommandFailure> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut items: Vec<Sandbox> = Vec::new();
    loop {
        let left = u32::try_from(most - items.len()).unwrap_or(u32::MAX);
        query.limit = Some(left.min(PAGE_MAX));
        if left == 0 {
            break;
        }
        let page = client.list(&query).await?;
        // An empty page with a cursor would be requested again forever.
        let is_last = page.next_cursor.is_none() || page.items.is_empty();
        items.extend(page.items);
        items.truncate(most);
        query.cursor = page.next_cursor;
        if is_last {
            break;
        }
    }
    Ok((items, query.cursor))
}

fn row(sandbox: &Sandbox, now: saggar_api::Timestamp) -> Vec<String> {
    vec![
        sandbox.id.to_string(),
        sandbox.state.as_str().to_owned(),
        line(sandbox.spec.template.as_str()),
        sandbox.spec.network.as_str().to_owned(),
        span(sandbox.created_at, now),
        match (&sandbox.ended, sandbox.deadline) {
            (None, Some(deadline)) => span(now, deadline),
            _ => "-".to_owned(),
        },
        labels(&sandbox.labels),
    ]
}

pub(crate) async fn show(client: &Client, id: SandboxId, is_json: bool) -> CommandResult {
    let sandbox = client.sandbox(id).get().await?;
    if is_json {
        print_json(&sandbox)?;
    } else {
        print(facts(&sandbox).as_bytes())?;
    }
    Ok(0)
}

fn facts(sandbox: &Sandbox) -> String {
    let now = now();
    let limits = &sandbox.spec.limits;
    let time = |instant: saggar_api::Timestamp| format!("{instant} ({} ago)", span(instant, now));
    let mut facts = vec![
        ("id", sandbox.id.to_string()),
        ("state", sandbox.state.as_str().to_owned()),
        ("template", line(sandbox.spec.template.as_str())),
        ("labels", labels(&sandbox.labels)),
        ("tier", sandbox.spec.tier.to_string()),
        (
            "network",
            if sandbox.spec.network_managed {
                sandbox.spec.network.to_string()
            } else {
                format!("{} (unmanaged)", sandbox.spec.network)
            },
        ),
        ("user", sandbox.spec.user.to_string()),
        (
            "limits",
            format!(
                "memory {}, cpus {}, pids {}, disk {}, files {}, output {}",
                limits.memory, limits.cpus, limits.pids, limits.disk, limits.files, limits.output
            ),
        ),
        ("created", time(sandbox.created_at)),
    ];
    facts.extend(sandbox.started_at.map(|started| ("started", time(started))));
    facts.extend(sandbox.deadline.map(|deadline| {
        let then = match sandbox.on_timeout {
            saggar_api::DeadlineAction::Kill => "killed",
            saggar_api::DeadlineAction::Pause => "paused",
            saggar_api::DeadlineAction::Rest => "paused without its memory",
        };
        ("deadline", format!("{deadline} (in {}), then {then}", span(now, deadline)))
    }));
    facts.extend(sandbox.idle_timeout.map(|timeout| ("idle timeout", timeout.to_string())));
    if let Some(egress) = &sandbox.spec.egress {
        let allow = if egress.allow.is_empty() { "nothing".to_owned() } else { egress.allow.join(", ") };
        facts.push(("allow", line(&allow)));
        if !egress.deny.is_empty() {
            facts.push(("deny", line(&egress.deny.join(", "))));
        }
    }
    if let Some(allowed) = &sandbox.ports.allow {
        let ports: Vec<String> = allowed.iter().map(u16::to_string).collect();
        facts.push(("ports", if ports.is_empty() { "none".to_owned() } else { ports.join(", ") }));
    }
    facts.extend(sandbox.ports.host.as_ref().map(|host| ("port host", line(host))));
    if !sandbox.ports.public.is_empty() {
        let ports: Vec<String> = sandbox.ports.public.iter().map(u16::to_string).collect();
        facts.push(("public ports", ports.join(", ")));
    }
    if !sandbox.unenforced.is_empty() {
        facts.push(("unenforced", line(&sandbox.unenforced.join("; "))));
    }
    facts.extend(sandbox.policy_hash.as_ref().map(|hash| ("policy hash", hash.to_string())));
    facts.extend(
        sandbox
            .ended
            .as_ref()
            .map(|ended| ("ended", format!("{}, {}: {}", time(ended.at), ended.reason.as_str(), line(&ended.detail)))),
    );
    facts.into_iter().map(|(name, value)| format!("{name:<13} {value}").trim_end().to_owned() + "\n").collect()
}

pub(crate) async fn pause(client: &Client, ids: Vec<SandboxId>, pause: PauseSandbox, is_json: bool) -> CommandResult {
    each(client, ids, is_json, async |sandbox| sandbox.pause(&pause).await).await
}

pub(crate) async fn resume(client: &Client, ids: Vec<SandboxId>, ttl: Option<Timeout>, is_json: bool) -> CommandResult {
    each(client, ids, is_json, async |sandbox| sandbox.resume(&ResumeSandbox { ttl }).await).await
}

pub(crate) async fn kill(client: &Client, ids: Vec<SandboxId>, is_json: bool) -> CommandResult {
    each(client, ids, is_json, async |sandbox| sandbox.kill().await).await
}

/// Ends every live sandbox of the project, or those with all of these labels. One that ends in the meantime counts as
/// ended.
pub(crate) async fn kill_all(client: &Client, labels: Vec<saggar_api::Label>, is_json: bool) -> CommandResult {
    let query = ListSandboxes { state: None, label: labels, limit: None, cursor: None };
    let (sandboxes, _) = listed(client, query, u32::MAX).await?;
    let ids = sandboxes.into_iter().map(|sandbox| sandbox.id).collect();
    each(client, ids, is_json, async |sandbox| sandbox.kill().await).await
}

/// Acts on one sandbox after another and prints each as it is done; the first failure stops the loop.
async fn each(
    client: &Client,
    ids: Vec<SandboxId>,
    is_json: bool,
    act: impl AsyncFn(SandboxHandle) -> Result<Sandbox, Error>,
) -> CommandResult {
    for id in ids {
        let sandbox = act(client.sandbox(id)).await?;
        if is_json {
            print_json(&sandbox)?;
        } else {
            print(format!("{} {}\n", sandbox.id, sandbox.state.as_str()).as_bytes())?;
        }
    }
    Ok(0)
}
