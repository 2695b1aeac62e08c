//! `saggar code`: runs code in a sandbox, and manages the contexts that keep what it defines.
//!
//! Text results go to stdout, as in a notebook; what isn't text is saved as files, or mentioned. What comes from the
//! sandbox is a stranger's: on a terminal it can't act on it, and names of files are ours.

use std::io::{IsTerminal, Read};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use saggar_api::client::{Client, SandboxHandle};
use saggar_api::{
    CodeEvent, CodeLanguage, CodeStatus, CreateCodeContext, CreateSandbox, Environment, RaisedError, RunCode,
    ShownResult,
};
use tokio::signal::unix::{SignalKind, signal};

use super::code_arguments::{CodeCommand, RunCodeArguments};
use super::dispatch::{CommandResult, note, print, print_json};
use super::exec::{Sink, refused};
use super::failure::CommandFailure;
use super::shown::{line, now, span};
use super::table::{aligned, terminal_width};
use crate::outcome::{CANCELLED, TIMED_OUT};

/// Maximum length of code, as the server has it.
const CODE_LEN_MAX: u64 = 1 << 20;
/// The exit status of code that raised an error.
const RAISED: u8 = 1;

pub(crate) async fn main(client: &Client, command: CodeCommand, is_json: bool) -> CommandResult {
    match command {
        CodeCommand::Run(arguments) => return run(client, *arguments, is_json).await,
        CodeCommand::Create { sandbox, language, cwd, env } => {
            let language = language.unwrap_or(CodeLanguage::Python);
            let wanted = CreateCodeContext { language, cwd, env: Environment::of(env)? };
            let context = client.sandbox(sandbox).create_code_context(&wanted).await?;
            match is_json {
                true => print_json(&context)?,
                false => print(format!("{}\n", context.id).as_bytes())?,
            }
        }
        CodeCommand::List { sandbox } => {
            let contexts = client.sandbox(sandbox).code_contexts().await?;
            if is_json {
                print_json(&contexts)?;
                return Ok(0);
            }
            let now = now();
            let row = |context: &saggar_api::CodeContext| {
                let default = if context.default { "yes" } else { "" };
                let age = span(context.started_at, now);
                vec![context.id.to_string(), context.language.to_string(), default.to_owned(), age, line(&context.cwd)]
            };
            let rows: Vec<Vec<String>> = contexts.items.iter().map(row).collect();
            print(aligned(&["ID", "LANGUAGE", "DEFAULT", "AGE", "DIRECTORY"], &rows, terminal_width()).as_bytes())?;
        }
        CodeCommand::Restart { sandbox, context } => {
            let context = client.sandbox(sandbox).restart_code_context(&context).await?;
            match is_json {
                true => print_json(&context)?,
                false => print(format!("{} started anew\n", context.id).as_bytes())?,
            }
        }
        CodeCommand::Remove { sandbox, context } => {
            client.sandbox(sandbox).remove_code_context(&context).await?;
            match is_json {
                true => print_json(&serde_json::json!({ "id": context, "state": "removed" }))?,
                false => print(format!("{context} removed\n").as_bytes())?,
            }
        }
    }
    Ok(0)
}

async fn run(client: &Client, arguments: RunCodeArguments, is_json: bool) -> CommandResult {
    let request = request(&arguments)?;
    if let Some(sandbox) = arguments.sandbox {
        return follow(&client.sandbox(sandbox), &request, arguments.save.as_deref(), is_json).await;
    }
    let wanted = CreateSandbox { template: arguments.template.unwrap_or_default(), ..CreateSandbox::default() };
    let made = client.create(&wanted).await?;
    let sandbox = client.sandbox(made.sandbox.id);
    let outcome = follow(&sandbox, &request, arguments.save.as_deref(), is_json).await;
    if let Err(error) = sandbox.kill().await {
        note(&format!(
            "the sandbox {} was not removed, and ends when its time is up: {}",
            sandbox.id(),
            line(&error.to_string())
        ));
    }
    outcome
}

fn request(arguments: &RunCodeArguments) -> Result<RunCode, CommandFailure> {
    let code = match (&arguments.code, &arguments.file) {
        (Some(code), _) => code.clone(),
        (None, Some(path)) if path.as_os_str() != "-" => {
            saggar_given::read_given_text(path, CODE_LEN_MAX).map_err(|error| CommandFailure::given(path, &error))?
        }
        (None, _) => {
            let mut code = String::new();
            std::io::stdin().take(CODE_LEN_MAX + 1).read_to_string(&mut code)?;
            code
        }
    };
    if code.len() as u64 > CODE_LEN_MAX {
        let help = "copy it into the sandbox with `saggar sandbox cp`, and run it from there";
        return Err(CommandFailure::ours("too_large", "the code is longer than 1 MiB", help));
    }
    let by_name = arguments.file.as_deref().and_then(Path::extension).and_then(|end| match end.to_str()? {
        "js" | "mjs" | "cjs" => Some(CodeLanguage::JavaScript),
        "ts" | "mts" => Some(CodeLanguage::TypeScript),
        "sh" | "bash" => Some(CodeLanguage::Bash),
        _ => None,
    });
    let language = if arguments.context.is_some() { None } else { arguments.language.or(by_name) };
    let env = Environment::of(arguments.env.clone())?;
    Ok(RunCode { code, context: arguments.context.clone(), language, env, timeout: arguments.timeout })
}

/// Shows what happens until the end. Leaving interrupts the code.
async fn follow(sandbox: &SandboxHandle, request: &RunCode, save: Option<&Path>, is_json: bool) -> CommandResult {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        status = show(sandbox, request, save, is_json) => status,
        _ = interrupt.recv() => Ok(CANCELLED),
        _ = terminate.recv() => Ok(CANCELLED),
    }
}

async fn show(sandbox: &SandboxHandle, request: &RunCode, save: Option<&Path>, is_json: bool) -> CommandResult {
    let mut stream = sandbox.stream_code(request).await.map_err(refused)?;
    let mut stdout = Sink::new(tokio::io::stdout(), std::io::stdout().is_terminal());
    let mut stderr = Sink::new(tokio::io::stderr(), std::io::stderr().is_terminal());
    let mut saved = 0;
    while let Some(event) = stream.next().await? {
        if let CodeEvent::Failed { problem } = event {
            return Err(refused(problem.into()));
        }
        if is_json {
            print_json(&event)?;
        }
        match event {
            CodeEvent::Ended { status, .. } => return Ok(exit_status(status)),
            CodeEvent::Result { result } => {
                if let Some(directory) = save {
                    save_result(directory, &result, &mut saved)?;
                }
                if !is_json {
                    stdout.write(shown(&result, save.is_some()).as_bytes()).await?;
                }
            }
            CodeEvent::Stdout { text } if !is_json => stdout.write(text.as_bytes()).await?,
            CodeEvent::Stderr { text } if !is_json => stderr.write(text.as_bytes()).await?,
            CodeEvent::Error { error } if !is_json => stderr.write(raised(&error).as_bytes()).await?,
            CodeEvent::Stdout { .. }
            | CodeEvent::Stderr { .. }
            | CodeEvent::Error { .. }
            | CodeEvent::Started { .. }
            | CodeEvent::Failed { .. }
            | CodeEvent::Other => {}
        }
    }
    Err(CommandFailure::ours("connection_lost", "the stream ended before the code did", "run the code again"))
}

fn shown(result: &ShownResult, is_saved: bool) -> String {
    let others: Vec<&str> = result.formats.0.keys().filter_map(|kind| extension(kind).map(|_| kind.as_str())).collect();
    let text = ["text/plain", "text/markdown", "text/latex"].iter().find_map(|kind| result.formats.text(kind));
    match (text, others.is_empty() || is_saved) {
        (Some(text), _) => format!("{text}\n"),
        (None, true) => String::new(),
        (None, false) => format!("({}; --save DIR keeps it)\n", line(&others.join(", "))),
    }
}

fn raised(error: &RaisedError) -> String {
    let text =
        if error.traceback.is_empty() { format!("{}: {}", error.name, error.value) } else { error.traceback.clone() };
    // What was raised may not be in the traceback.
    let is_named = text.contains(&error.name) || error.name == "ExitStatus";
    let text = if is_named { text } else { format!("{text}\n{}: {}", error.name, error.value) };
    format!("{}\n", text.trim_end())
}

/// Writes what isn't plain text to files `result-1.png`, `result-2.json` and so on.
fn save_result(directory: &Path, result: &ShownResult, saved: &mut u32) -> Result<(), CommandFailure> {
    for (kind, value) in &result.formats.0 {
        let Some((extension, is_base64)) = extension(kind) else { continue };
        let text = result.formats.text(kind);
        let bytes = match (text, is_base64) {
            (Some(text), true) => match STANDARD.decode(text.trim()) {
                Ok(bytes) => bytes,
                Err(_) => continue,
            },
            (Some(text), false) => text.into_bytes(),
            (None, _) => value.get().as_bytes().to_vec(),
        };
        *saved += 1;
        let path = directory.join(format!("result-{saved}.{extension}"));
        let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, bytes));
        written.map_err(|error| CommandFailure::file(&path, "write", &error))?;
    }
    Ok(())
}

/// The end of the name of a file in this format, and whether its text is base64; `None` for plain text and unknown ones.
fn extension(kind: &str) -> Option<(&'static str, bool)> {
    Some(match kind {
        "text/html" => ("html", false),
        "text/markdown" => ("md", false),
        "text/latex" => ("tex", false),
        "image/svg+xml" => ("svg", false),
        "image/png" => ("png", true),
        "image/jpeg" => ("jpg", true),
        "application/pdf" => ("pdf", true),
        "application/json" => ("json", false),
        "application/javascript" => ("js", false),
        "e2b/data" => ("data.json", false),
        "e2b/chart" => ("chart.json", false),
        _ => return None,
    })
}

fn exit_status(status: CodeStatus) -> u8 {
    match status {
        CodeStatus::Ok => 0,
        CodeStatus::Error | CodeStatus::Died => RAISED,
        CodeStatus::Interrupted => CANCELLED,
        CodeStatus::TimedOut => TIMED_OUT,
    }
}
