//! `saggar template`: imports and builds images, and manages templates, of this host without a server or of a server.

mod build;
mod context;
mod on_server;
mod report;

pub(crate) use build::process as build_process;
pub(crate) use context::Packing;

use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use clap::{Args, Subcommand};
use saggar_domain::secret::SecretName;
use saggar_domain::{ByteSize, Code, Problem, TemplateName, Timestamp};
use saggar_image::{CacheRest, Credentials, Limits, Progress, RegistryOptions, Request, Rest, Source, Store, import};
use saggar_sandbox::{DataDirectory, LOCAL_PROJECT};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::outcome::{OUR_FAILURE, problem_text, visible};
use crate::remote::{self, ServerArguments};

/// Schema name in the `--json` output of every subcommand.
const SCHEMA: &str = "saggar.templates/v1";
/// A check has findings.
const FINDINGS: u8 = 1;
/// Longest password that is read.
const PASSWORD_BYTES_MAX: u64 = 64 << 10;

#[derive(Args, Debug)]
#[command(
    after_help = "Exit status: 0 done; 1 `check` has findings, a step of `build` failed, or the server refused; 125 saggar failed."
)]
pub(crate) struct TemplateArguments {
    #[command(subcommand)]
    command: TemplateCommand,
    #[command(flatten)]
    server: ServerArguments,
    /// Use the templates of a server instead of this host's; --url implies it
    #[arg(long = "server", id = "on_server", global = true, help_heading = "Server", conflicts_with = "data_dir")]
    on_server: bool,
    /// Data directory: where templates are kept
    #[arg(long, value_name = "DIR", global = true)]
    data_dir: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum TemplateCommand {
    /// Import an image as a template
    Import(Box<ImportArguments>),
    /// Build a template from a Dockerfile or a recipe
    Build(Box<build::BuildArguments>),
    /// List all templates
    List,
    /// Show a template's layers and defaults
    Show {
        /// The template's name, with or without a tag
        #[arg(value_name = "NAME[:TAG]", value_parser = template_name)]
        name: TemplateName,
    },
    /// Give a template another name, or move a name to it
    #[command(
        after_help = "Examples:\n  saggar template tag python:3.12 python\n  saggar template tag tools:build-17 tools:stable"
    )]
    Tag {
        /// A name that leads to the template
        #[arg(value_name = "FROM", value_parser = template_name)]
        from: TemplateName,
        /// The name that leads there from now on
        #[arg(value_name = "NAME[:TAG]", value_parser = template_name)]
        name: TemplateName,
    },
    /// Remove a template's name, and the template with its last name
    Rm {
        /// The template's name, with or without a tag
        #[arg(value_name = "NAME[:TAG]", value_parser = template_name)]
        name: TemplateName,
    },
    /// Compare every stored layer with its digest
    Check,
    /// Remove layers that no template uses, and what interrupted imports and builds left behind
    Gc {
        /// Forget all steps of builds; otherwise those stay that were used within a week
        #[arg(long)]
        all: bool,
    },
}

#[derive(Args, Debug)]
struct ImportArguments {
    /// An OCI image layout (a directory or a .tar file), a .tar file of `docker save`, or
    /// docker://REGISTRY/REPOSITORY:TAG
    #[arg(value_parser = Source::parse)]
    source: Source,
    /// Name of the template [default: from the source]
    #[arg(long, value_name = "NAME[:TAG]", value_parser = template_name)]
    name: Option<TemplateName>,
    /// Which image, if the source has several
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    /// User of the registry
    #[arg(long, value_name = "USER")]
    username: Option<String>,
    /// Read the password of the registry's user from stdin
    #[arg(long, requires = "username")]
    password_stdin: bool,
    /// Secret of the server's project that is the password; it must be bound to the registry's host
    #[arg(long, value_name = "NAME", requires = "username", conflicts_with = "password_stdin", value_parser = secret_name)]
    secret: Option<SecretName>,
    /// Use no TLS; only for a registry on a loopback address
    #[arg(long)]
    plain_http: bool,
    /// Maximum size of the image, uncompressed [default: 16G]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse)]
    max_size: Option<ByteSize>,
    /// Maximum number of files, directories and others in the image [default: 1000000]
    #[arg(long, value_name = "N")]
    max_entries: Option<u64>,
}

pub(crate) fn main(arguments: TemplateArguments) -> ExitCode {
    if arguments.on_server || arguments.server.url.is_some() {
        return match on_server::task(arguments.command) {
            Ok(task) => remote::template(&arguments.server, task),
            Err(problem) => failed(problem.into(), arguments.server.json),
        };
    }
    let is_json = arguments.server.json;
    let outcome = DataDirectory::open(arguments.data_dir.as_deref())
        .and_then(|data| Store::open(&data, LOCAL_PROJECT).map(|store| (data, store)))
        .map_err(Unsuccessful::from)
        .and_then(|(data, store)| match arguments.command {
            TemplateCommand::Build(arguments) => build::build(&data, &store, *arguments, is_json),
            command => execute(&store, command).map_err(Into::into),
        });
    match outcome {
        Ok(done) => {
            let text = if is_json { report::object(done.fields) } else { visible(&done.text) };
            match std::io::stdout().write_all(text.as_bytes()) {
                Ok(()) => done.code,
                Err(_) => ExitCode::from(OUR_FAILURE),
            }
        }
        Err(unsuccessful) => failed(unsuccessful, is_json),
    }
}

fn failed(unsuccessful: Unsuccessful, is_json: bool) -> ExitCode {
    let Unsuccessful { problem, mut fields, code } = unsuccessful;
    if is_json {
        fields["schema"] = SCHEMA.into();
        fields["error"] = json!(problem);
        println!("{fields}");
    } else {
        eprint!("{}", problem_text(&problem));
    }
    ExitCode::from(code)
}

fn no_name() -> Problem {
    Problem::new(
        Code::InvalidValue,
        "no name for the template follows from its source",
        "give it one with --name: lower-case letters, digits, '.', '_' and '-', with or without a :tag",
    )
}

/// What is printed instead, if it can't be done.
struct Unsuccessful {
    problem: Problem,
    /// Of the JSON object, beside the problem.
    fields: Value,
    code: u8,
}

impl From<Problem> for Unsuccessful {
    fn from(problem: Problem) -> Self {
        Self { problem, fields: json!({}), code: OUR_FAILURE }
    }
}

/// What a subcommand prints: one form for people and one for programs.
struct Done {
    text: String,
    fields: Value,
    code: ExitCode,
}

impl Done {
    fn new(text: String, fields: Value) -> Self {
        Self { text, fields, code: ExitCode::SUCCESS }
    }
}

fn execute(store: &Store, command: TemplateCommand) -> Result<Done, Problem> {
    match command {
        TemplateCommand::Import(arguments) => bring(store, *arguments),
        TemplateCommand::Build(_) => unreachable!("the caller does it"),
        TemplateCommand::List => report::list(store),
        TemplateCommand::Show { name } => report::show(store, &name),
        TemplateCommand::Tag { from, name } => tag(store, &from, &name),
        TemplateCommand::Rm { name } => remove(store, &name),
        TemplateCommand::Check => check(store),
        TemplateCommand::Gc { all } => collect(store, if all { CacheRest::Nothing } else { CacheRest::Used }),
    }
}

fn bring(store: &Store, arguments: ImportArguments) -> Result<Done, Problem> {
    let name = arguments.name.or_else(|| arguments.source.default_name()).ok_or_else(no_name)?;
    if let Some(secret) = arguments.secret {
        return Err(Problem::new(
            Code::InvalidValue,
            format!("{secret} would be a secret of a server's project, and this import needs no server"),
            "add --server, or use --password-stdin",
        ));
    }
    let credentials = match (arguments.username, arguments.password_stdin) {
        (Some(username), true) => Some(read_password(username)?),
        (Some(_), false) => return Err(no_password()),
        (None, _) => None,
    };
    let limits = Limits::default();
    let request = Request {
        source: arguments.source,
        name,
        image: arguments.image,
        limits: Limits {
            bytes_max: arguments.max_size.map_or(limits.bytes_max, ByteSize::bytes),
            entries_max: arguments.max_entries.unwrap_or(limits.entries_max),
        },
        registry: RegistryOptions { credentials, is_plain_http: arguments.plain_http, ..RegistryOptions::default() },
        now: Timestamp::from(SystemTime::now()),
        stop: Arc::default(),
    };
    let is_terminal = std::io::stderr().is_terminal();
    let imported = import(store, &request, &mut |progress| {
        if is_terminal {
            eprintln!("{}", progress_line(&progress));
        }
    })?;
    Ok(report::imported(&request.name, &imported))
}

fn progress_line(progress: &Progress) -> String {
    match progress {
        Progress::Layer { number, count, id, is_shared } => {
            let note = if *is_shared { " (already stored)" } else { "" };
            format!("layer {number} of {count}: {id}{note}")
        }
        Progress::Completing => "writing to disk".to_owned(),
    }
}

fn secret_name(text: &str) -> Result<SecretName, String> {
    text.parse()
}

fn no_password() -> Problem {
    Problem::new(
        Code::InvalidValue,
        "a user of a registry needs a password",
        "add --password-stdin; or with --server --secret NAME",
    )
}

/// One line; its end is not part of the password.
fn read_password(username: String) -> Result<Credentials, Problem> {
    let fail =
        |what: &str| Problem::new(Code::InvalidStdin, format!("the password {what}"), "pass it on stdin, on one line");
    let mut password = Zeroizing::new(String::new());
    std::io::stdin()
        .take(PASSWORD_BYTES_MAX)
        .read_to_string(&mut password)
        .map_err(|error| fail(&format!("can't be read: {}", error.kind())))?;
    let length = password.trim_end_matches(['\r', '\n']).len();
    password.truncate(length);
    if password.is_empty() || password.contains(['\r', '\n', '\0']) {
        return Err(fail("is empty or has several lines"));
    }
    // A header separates the two by the first colon.
    if username.is_empty() || username.contains([':', '\r', '\n']) {
        return Err(Problem::new(
            Code::InvalidValue,
            "the username can't be sent",
            "give one without colons and line ends",
        ));
    }
    Ok(Credentials { username, password, bound_to: None })
}

fn remove(store: &Store, name: &TemplateName) -> Result<Done, Problem> {
    let removed = store.remove(name)?;
    let (note, state) = match removed.rest {
        Rest::Unknown => (
            "; it was damaged, and `saggar template gc` removes its template if nothing else leads to it".to_owned(),
            "unknown",
        ),
        Rest::Named => ("; other names lead to the template".to_owned(), "named"),
        Rest::InUse => {
            ("; a sandbox still uses the template, and `saggar template gc` removes it later".to_owned(), "in_use")
        }
        Rest::Gone(Some(collected)) => (format!(" and {} of its layers", collected.layers), "gone"),
        Rest::Gone(None) => ("; an import is in progress, and its layers are removed after that".to_owned(), "gone"),
    };
    let fields = json!({"name": name, "id": removed.id, "template": state});
    Ok(Done::new(format!("removed {name}{note}\n"), fields))
}

fn tag(store: &Store, from: &TemplateName, name: &TemplateName) -> Result<Done, Problem> {
    let tagged = store.tag(from, name, Timestamp::from(SystemTime::now()))?;
    let mut text = format!("{name} leads to {}\n", tagged.id);
    if let Some(replaced) = &tagged.replaced {
        text.push_str(&format!("  it led to {replaced} before\n"));
    }
    Ok(Done::new(text, json!({"name": name, "id": tagged.id, "replaced": tagged.replaced})))
}

fn check(store: &Store) -> Result<Done, Problem> {
    let checked = store.check()?;
    let mut text = String::new();
    for finding in &checked.findings {
        text.push_str(&format!("{}: {}\n", finding.about, finding.what));
    }
    let count = checked.findings.len();
    text.push_str(&format!(
        "checked {}, {}, {}, {}: {}\n",
        report::counted(checked.templates, "template"),
        report::counted(checked.layers, "layer"),
        if checked.entries == 1 { "1 entry".to_owned() } else { format!("{} entries", checked.entries) },
        report::size(checked.bytes),
        report::counted(count as u64, "finding"),
    ));
    let code = if count == 0 { ExitCode::SUCCESS } else { ExitCode::from(FINDINGS) };
    let fields = serde_json::to_value(&checked).expect("our own types have only text keys");
    Ok(Done { text, fields, code })
}

fn collect(store: &Store, cache: CacheRest) -> Result<Done, Problem> {
    let Some(collected) = store.collect_with(cache)? else {
        return Err(Problem::new(
            Code::DataDirectory,
            "an import or a build is in progress, so nothing was removed",
            "run the command again when it has ended",
        ));
    };
    let fields = serde_json::to_value(collected).expect("our own types have only text keys");
    Ok(Done::new(format!("{}\n", report::collected(collected)), fields))
}

fn template_name(text: &str) -> Result<TemplateName, String> {
    TemplateName::parse(text).ok_or_else(|| {
        "not a template's name: use at most 64 of a-z, 0-9, dot, dash and underscore, a letter or digit first, with or without a :tag"
            .to_owned()
    })
}
