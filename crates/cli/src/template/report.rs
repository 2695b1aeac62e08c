//! What `saggar template` prints. Names, variables and labels come out of images; the caller escapes them.

use saggar_build::Built;
use saggar_domain::template::{Dropped, Manifest};
use saggar_domain::{Problem, TemplateName};
use saggar_image::{Collected, Imported, Store};
use serde_json::{Value, json};

use super::{Done, SCHEMA};

/// Digits of an id that a list shows.
const SHORT: usize = 12;

/// One JSON object on one line.
pub(super) fn object(mut fields: Value) -> String {
    fields["schema"] = SCHEMA.into();
    fields["error"] = Value::Null;
    format!("{fields}\n")
}

pub(super) fn imported(name: &TemplateName, imported: &Imported) -> Done {
    let Imported { id, manifest, shared_layers, dropped, replaced, collected, not_collected } = imported;
    let mut text = format!("imported {name}: {id}\n  {}", sizes(manifest));
    if *shared_layers > 0 {
        text.push_str(&format!(", {shared_layers} already stored"));
    }
    text.push('\n');
    if let Some(dropped) = left_out(dropped) {
        text.push_str(&format!("  left out: {dropped}\n"));
    }
    if let Some(replaced) = replaced {
        text.push_str(&format!("  the name led to {replaced} before\n"));
    }
    if let Some(collected) = collected.filter(|collected| !collected.is_empty()) {
        text.push_str(&format!("  {}\n", self::collected(collected)));
    }
    if let Some(Problem { message, help, .. }) = not_collected {
        text.push_str(&format!("  nothing was removed of earlier imports: {message}\n  help: {help}\n"));
    }
    let fields = json!({
        "name": name, "id": id, "manifest": manifest, "shared_layers": shared_layers, "dropped": dropped,
        "replaced": replaced, "collected": collected, "not_collected": not_collected,
    });
    Done::new(text, fields)
}

pub(super) fn list(store: &Store) -> Result<Done, Problem> {
    let mut rows = Vec::new();
    let mut entries = Vec::new();
    for (name, record) in store.templates().records()? {
        let Ok(record) = record else {
            entries.push(json!({"name": name, "id": null, "set_at": null, "bytes": null}));
            rows.push([name.to_string(), String::new(), "unreadable".to_owned(), String::new(), String::new()]);
            continue;
        };
        let held = store.templates().find(&name);
        let (size, layers) = match &held {
            Ok(held) => (size(held.manifest.bytes()), held.manifest.layers().len().to_string()),
            // `show` says why.
            Err(_) => ("unreadable".to_owned(), String::new()),
        };
        let bytes = held.as_ref().ok().map(|held| held.manifest.bytes());
        entries.push(json!({
            "name": name, "id": record.template, "set_at": record.set_at.to_string(), "bytes": bytes,
        }));
        let short = &record.template.hex()[..SHORT];
        rows.push([name.to_string(), short.to_owned(), size, layers, record.set_at.to_string()]);
    }
    let mut text = String::new();
    if !rows.is_empty() {
        rows.insert(0, ["NAME", "ID", "SIZE", "LAYERS", "SET"].map(str::to_owned));
        let widths: [usize; 5] = std::array::from_fn(|at| rows.iter().map(|row| row[at].len()).max().unwrap_or(0));
        for row in rows {
            let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            text.push_str(&format!("{}\n", cells.join("  ").trim_end()));
        }
    }
    Ok(Done::new(text, json!({"templates": entries})))
}

pub(super) fn show(store: &Store, name: &TemplateName) -> Result<Done, Problem> {
    let held = store.templates().find(name)?;
    let manifest = &held.manifest;
    let mut text = format!("name      {name}\nid        {}\nsize      {}\n", held.id, sizes(manifest));
    let image = manifest.image();
    text.push_str(&format!("image     {} ({}, {})\n", image.config, image.platform, image.source));
    if let Some(created) = image.created {
        text.push_str(&format!("created   {created}\n"));
    }
    for layer in &held.layers {
        let note = left_out(&layer.record.dropped).map_or_else(String::new, |dropped| format!(", left out: {dropped}"));
        text.push_str(&format!("layer     {} ({}{note})\n", layer.id, size(layer.record.stored.bytes)));
    }
    let defaults = manifest.defaults();
    for (variable, value) in &defaults.env {
        text.push_str(&format!("env       {}\n", line(&format!("{variable}={value}"))));
    }
    for (what, value) in [("cwd", defaults.cwd.as_ref().map(ToString::to_string)), ("user", defaults.user.clone())] {
        if let Some(value) = value {
            text.push_str(&format!("{what:<9} {}\n", line(&value)));
        }
    }
    for (what, words) in [("entry", &defaults.entrypoint), ("command", &defaults.command)] {
        if !words.is_empty() {
            text.push_str(&format!("{what:<9} {}\n", json!(words)));
        }
    }
    for port in &defaults.ports {
        text.push_str(&format!("port      {port}\n"));
    }
    for (what, command) in [("start", &defaults.start), ("ready", &defaults.ready)] {
        if let Some(command) = command {
            text.push_str(&format!("{what:<9} {}\n", line(command)));
        }
    }
    for (label, value) in &defaults.labels {
        text.push_str(&format!("label     {}\n", line(&format!("{label}={value}"))));
    }
    let layers: Vec<Value> = held.layers.iter().map(|layer| json!(layer.record)).collect();
    Ok(Done::new(text, json!({"name": name, "id": held.id, "manifest": manifest, "layers": layers})))
}

pub(super) fn collected(collected: Collected) -> String {
    let Collected { interrupted, templates, layers, cached, in_use } = collected;
    let mut text = format!(
        "removed {}, {} and {} that nothing uses",
        counted(layers, "layer"),
        counted(templates, "template"),
        counted(interrupted, "interrupted import"),
    );
    if cached > 0 {
        text.push_str(&format!("; forgot {cached} steps of builds"));
    }
    if in_use > 0 {
        let verb = if in_use == 1 { "is" } else { "are" };
        text.push_str(&format!("; {} without a name {verb} in use", counted(in_use, "template")));
    }
    text
}

/// A number of things.
pub(super) fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

pub(super) fn built(built: &Built) -> Done {
    let Built { id, name, layers, bytes, steps, cached_steps, replaced } = built;
    let mut text = format!(
        "built {name}: {id}\n  {} in {}; {cached_steps} of {steps} steps cached\n",
        size(*bytes),
        counted(*layers as u64, "layer")
    );
    if let Some(replaced) = replaced {
        text.push_str(&format!("  the name led to {replaced} before\n"));
    }
    Done::new(text, serde_json::to_value(built).expect("our own types have only text keys"))
}

fn sizes(manifest: &Manifest) -> String {
    let layers = manifest.layers();
    let entries: u64 = layers.iter().map(|layer| layer.entries).sum();
    format!("{} in {}, {entries} entries", size(manifest.bytes()), counted(layers.len() as u64, "layer"))
}

/// What of an image is not in its template; `None` if nothing.
fn left_out(dropped: &Dropped) -> Option<String> {
    let Dropped { devices, capabilities, attributes, set_ids, owners } = *dropped;
    let list: Vec<String> = [
        (devices, "devices"),
        (capabilities, "file capabilities"),
        (attributes, "extended attributes"),
        (set_ids, "set-id bits"),
        (owners, "owners above 65535"),
    ]
    .iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    (!list.is_empty()).then(|| list.join(", "))
}

/// A value that stays on its line.
fn line(text: &str) -> String {
    text.replace('\n', "\\n")
}

pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} kB", bytes.div_ceil(1000)),
        1_000_000..1_000_000_000 => format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10),
        _ => format!("{}.{} GB", bytes / 1_000_000_000, bytes / 100_000_000 % 10),
    }
}
