//! `saggar secret` on the file in which `saggar run` finds secrets, without a server.
//!
//! The file belongs to its user, who may edit it, too: other tables and their comments stay as they are. It is replaced as a
//! whole, and only by a text that reads back as intended.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use saggar_domain::secret::{Binding, SecretName, SecretValue, Slot};
use saggar_egress::secret::file::{self, Entry};
use zeroize::Zeroizing;

use super::dispatch::{CommandResult, print, print_json};
use super::failure::CommandFailure;
use super::secret_arguments::{SecretCommand, slot_text};
use super::secret_value;
use super::shown::line;
use super::table::{aligned, terminal_width};

/// Maximum size of the file, in bytes. `saggar run` has the same.
const LEN_MAX: u64 = 1 << 20;

type Entries = BTreeMap<SecretName, Entry>;

pub(crate) fn main(path: &Path, command: SecretCommand, is_json: bool) -> CommandResult {
    let text = read(path)?;
    let mut entries = file::parse(&text)?;
    match command {
        SecretCommand::Set { name, binding, keep_value } => {
            let before = entries.get(&name).cloned();
            let binding = given(
                binding.binding()?,
                before.as_ref().map(|entry| entry.binding.clone()),
                &name,
                "--bind and --slot",
            )?;
            let value = match keep_value {
                true => given(None, before.map(|entry| entry.value), &name, "a value")?,
                false => value(&name)?,
            };
            entries.insert(name.clone(), Entry { binding, value });
            write(path, &text, &entries, &name)?;
            say(is_json, &name, "stored in", path)?;
        }
        SecretCommand::Rm { name, force: _ } => {
            if entries.remove(&name).is_none() {
                return Err(unknown(&name, path));
            }
            write(path, &text, &entries, &name)?;
            say(is_json, &name, "removed from", path)?;
        }
        SecretCommand::List if is_json => {
            let items: Vec<_> = entries.iter().map(|(name, entry)| json(name, entry)).collect();
            print_json(&serde_json::json!({ "items": items }))?;
        }
        SecretCommand::List => {
            let row = |(name, entry): (&SecretName, &Entry)| {
                vec![name.to_string(), line(&slot_text(entry.binding.slot())), line(&rules(&entry.binding))]
            };
            let rows: Vec<Vec<String>> = entries.iter().map(row).collect();
            print(aligned(&["NAME", "SLOT", "BOUND TO"], &rows, terminal_width()).as_bytes())?;
        }
        SecretCommand::Show { name } => {
            let entry = entries.get(&name).ok_or_else(|| unknown(&name, path))?;
            match is_json {
                true => print_json(&json(&name, entry))?,
                false => print(shown(&name, entry, path).as_bytes())?,
            }
        }
        SecretCommand::Rekey { .. } => {
            return Err(CommandFailure::ours(
                "invalid_value",
                "a secrets file has no key: its values are in it as they are",
                "leave out --file and --local",
            ));
        }
    }
    Ok(0)
}

/// Where `saggar run` looks by default; an error without a home directory.
pub(crate) fn default_path() -> Result<PathBuf, CommandFailure> {
    saggar_front::default_secrets_file()
        .ok_or_else(|| CommandFailure::ours("file", "there is no home directory", "name a file with --file"))
}

/// The text of the file; nothing if it doesn't exist yet.
fn read(path: &Path) -> Result<Zeroizing<String>, CommandFailure> {
    let found = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Zeroizing::default()),
        found => found.map_err(|error| CommandFailure::file(path, "read", &error))?,
    };
    if found.mode() & 0o077 != 0 {
        let help = format!("chmod 600 {}", path.display());
        return Err(CommandFailure::ours("exposed_file", format!("{path:?} can be read by other users"), help));
    }
    let text = saggar_given::read_given_text(path, LEN_MAX).map_err(|error| CommandFailure::given(path, &error))?;
    Ok(Zeroizing::new(text))
}

/// Replaces the table of one secret, and nothing else if that is possible.
fn write(path: &Path, before: &str, entries: &Entries, name: &SecretName) -> Result<(), CommandFailure> {
    let mut edited = Zeroizing::new(without(before, name));
    if let Some(entry) = entries.get(name) {
        if !edited.is_empty() {
            edited.push('\n');
        }
        edited.push_str(&table(name, entry));
    }
    let is_right = file::parse(&edited).is_ok_and(|read| same(&read, entries));
    let text = match is_right {
        true => edited,
        // Written in a way that only a parser understands: then the other tables are written anew.
        false => Zeroizing::new(entries.iter().map(|(name, entry)| table(name, entry)).collect::<Vec<_>>().join("\n")),
    };
    replace(path, &text).map_err(|error| CommandFailure::file(path, "written", &error))
}

fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !directory.exists() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    // A link stays one: what it leads to is replaced.
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let new = target.with_extension(format!("{}.new", std::process::id()));
    let written = (|| {
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &target)
    })();
    if written.is_err() {
        // It holds values; whatever kept it from being renamed is reported.
        let _ = std::fs::remove_file(&new);
    }
    written
}

/// The lines of a file without those of one table.
fn without(text: &str, name: &SecretName) -> String {
    let mut is_inside = false;
    let mut kept = String::with_capacity(text.len());
    for line in text.lines() {
        let heading = line.trim();
        if heading.starts_with('[') {
            is_inside = heading
                .strip_prefix('[')
                .and_then(|rest| rest.strip_prefix(name.as_str()))
                .is_some_and(|rest| rest.starts_with(']') || rest.starts_with('.'));
        }
        if !is_inside {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept.truncate(kept.trim_end().len());
    if !kept.is_empty() {
        kept.push('\n');
    }
    kept
}

fn table(name: &SecretName, Entry { binding, value }: &Entry) -> String {
    let rules: Vec<String> = binding.rules().iter().map(|rule| quoted(&rule.to_string())).collect();
    let mut text = format!(
        "[{name}]\nvalue = {}\nrules = [{}]\nslot = {}\n",
        quoted(value.expose()),
        rules.join(", "),
        slot(binding.slot())
    );
    if let Some(prefix) = binding.placeholder_prefix() {
        text.push_str(&format!("placeholder_prefix = {}\n", quoted(prefix)));
    }
    text
}

fn slot(slot: &Slot) -> String {
    match slot {
        Slot::Bearer => quoted("bearer"),
        Slot::Header { name, prefix } if prefix.is_empty() => format!("{{ header = {{ name = {} }} }}", quoted(name)),
        Slot::Header { name, prefix } => {
            format!("{{ header = {{ name = {}, prefix = {} }} }}", quoted(name), quoted(prefix))
        }
        Slot::Basic { user } => format!("{{ basic = {{ user = {} }} }}", quoted(user)),
        Slot::Query { parameter } => format!("{{ query = {{ parameter = {} }} }}", quoted(parameter)),
        Slot::SigV4 { access_key_id, region, service } => {
            let [id, region, service] = [access_key_id, region, service].map(|text| quoted(text));
            format!("{{ sigv4 = {{ access_key_id = {id}, region = {region}, service = {service} }} }}")
        }
    }
}

/// Texts here have no control characters, so only two characters need a backslash.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn same(one: &Entries, other: &Entries) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).all(|((name, one), (other_name, other))| {
            name == other_name && one.binding == other.binding && one.value.expose() == other.value.expose()
        })
}

fn value(name: &SecretName) -> Result<SecretValue, CommandFailure> {
    let secret = secret_value::read(name.as_str())?;
    SecretValue::parse(secret.reveal()).map_err(|error| CommandFailure::ours("invalid_value", error.to_string(), ""))
}

fn given<T>(given: Option<T>, before: Option<T>, name: &SecretName, what: &str) -> Result<T, CommandFailure> {
    given.or(before).ok_or_else(|| {
        let message = format!("secret {name} does not exist yet, and {what} is missing");
        CommandFailure::ours("invalid_value", message, "give a new secret both a value and a binding")
    })
}

fn unknown(name: &SecretName, path: &Path) -> CommandFailure {
    let help = "list the existing ones with: saggar secret list";
    CommandFailure::ours("not_found", format!("no secret {:?} exists in {path:?}", name.as_str()), help).with_status(1)
}

fn say(is_json: bool, name: &SecretName, what: &str, path: &Path) -> Result<(), CommandFailure> {
    match is_json {
        true => print_json(&serde_json::json!({ "name": name, "state": what.split(' ').next() })),
        false => print(format!("{name} {what} {}\n", line(&path.display().to_string())).as_bytes()),
    }
}

fn json(name: &SecretName, entry: &Entry) -> serde_json::Value {
    serde_json::json!({ "name": name, "binding": entry.binding })
}

fn shown(name: &SecretName, entry: &Entry, path: &Path) -> String {
    let prefix = entry.binding.placeholder_prefix().unwrap_or_default();
    let fields = [
        ("name", name.to_string()),
        ("bound to", line(&rules(&entry.binding))),
        ("slot", line(&slot_text(entry.binding.slot()))),
        ("placeholder", format!("{prefix}saggar-…")),
        ("file", line(&path.display().to_string())),
    ];
    fields.iter().map(|(name, value)| format!("{name:<12} {value}\n")).collect()
}

fn rules(binding: &Binding) -> String {
    binding.rules().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
