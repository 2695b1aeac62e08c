//! `saggar template list|show|tag|rm|import|build` on a server.

use std::path::PathBuf;

use saggar_api::client::Client;
use saggar_api::{
    BuildTemplate, ImportTemplate, Secret, Template, TemplateJob, TemplateJobState, TemplateLogQuery, TemplateName,
    TemplateRest, UploadTemplate,
};
use saggar_domain::JobId;
use tokio::signal::unix::{SignalKind, signal};

use super::dispatch::{CommandResult, note, print, print_json};
use super::failure::CommandFailure;
use super::pipe::outward;
use super::shown::{line, now, size, span};
use super::table::{aligned, terminal_width};
use crate::template::Packing;

/// How long to wait before asking about a job again.
const POLL: std::time::Duration = std::time::Duration::from_millis(250);
/// Exit status after a second Ctrl-C.
const INTERRUPTED: u8 = 130;
/// Digits of an id that a list shows.
const SHORT: usize = 12;

/// What to do with the templates of a server.
pub(crate) enum TemplateTask {
    List,
    Show(TemplateName),
    Tag { from: TemplateName, name: TemplateName },
    Rm(TemplateName),
    Import(ImportTemplate),
    Upload { archive: PathBuf, query: UploadTemplate },
    Build { packing: Packing, query: BuildTemplate },
}

pub(crate) async fn main(client: &Client, task: TemplateTask, is_json: bool) -> CommandResult {
    match task {
        TemplateTask::List => {
            let templates = client.list_templates().await?;
            if is_json {
                print_json(&templates)?;
            } else {
                let rows: Vec<Vec<String>> = templates.items.iter().map(row).collect();
                let table = aligned(&["NAME", "ID", "SIZE", "SET", "FROM"], &rows, terminal_width());
                print(table.as_bytes())?;
            }
        }
        TemplateTask::Show(name) => {
            let template = client.template(&name).await?;
            match is_json {
                true => print_json(&template)?,
                false => print(shown(&template).as_bytes())?,
            }
        }
        TemplateTask::Tag { from, name } => {
            let template = client.tag_template(&name, &from).await?;
            match is_json {
                true => print_json(&template)?,
                false => print(format!("{name} leads to {}\n", template.id).as_bytes())?,
            }
        }
        TemplateTask::Rm(name) => {
            let removed = client.remove_template(&name).await?;
            let more = match removed.template {
                TemplateRest::Named => "; other names lead to the template",
                TemplateRest::InUse => "; a sandbox still uses the template, and it is removed after that",
                TemplateRest::Gone => " and the template",
            };
            match is_json {
                true => print_json(&removed)?,
                false => print(format!("removed {name}{more}\n").as_bytes())?,
            }
        }
        TemplateTask::Import(import) => {
            let job = client.import_template(&import).await?;
            return follow(client, job, "imported", is_json).await;
        }
        TemplateTask::Build { packing, query } => {
            let job = send(client, packing, &query).await?;
            return follow(client, job, "built", is_json).await;
        }
        TemplateTask::Upload { archive, query } => {
            let opened = tokio::fs::File::open(&archive).await;
            let file = opened.map_err(|error| CommandFailure::file(&archive, "opened", &error))?;
            let stat = file.metadata().await.map_err(|error| CommandFailure::file(&archive, "read", &error))?;
            if !stat.is_file() {
                return Err(CommandFailure::ours(
                    "invalid_value",
                    format!("{archive:?} is not a file"),
                    "a server takes an archive: pack an image layout with `tar -cf image.tar -C LAYOUT .`",
                ));
            }
            let job = client.upload_template(&query, file, Some(stat.len())).await?;
            return follow(client, job, "imported", is_json).await;
        }
    }
    Ok(0)
}

/// A user's credentials for a registry.
pub(crate) fn with_credentials(import: ImportTemplate, username: String, password: &str) -> ImportTemplate {
    ImportTemplate { username: Some(username), password: Some(Secret::new(password)), ..import }
}

/// Sends a directory, packed on a thread of its own while it is sent.
async fn send(client: &Client, packing: Packing, query: &BuildTemplate) -> Result<TemplateJob, CommandFailure> {
    let context = packing.context().to_owned();
    let (mut packer, packed) = outward();
    let packing = tokio::task::spawn_blocking(move || match packing.write(&mut packer) {
        Ok(()) => Ok(()),
        Err(error) => {
            let copy = std::io::Error::new(error.kind(), error.to_string());
            packer.fail(error);
            Err(copy)
        }
    });
    match client.build_template(query, packed).await {
        Ok(job) => Ok(job),
        // The server's reason takes precedence; if the connection merely broke, our own side may know why.
        Err(error) if error.problem().is_some() => Err(error.into()),
        Err(error) => match packing.await {
            Ok(Err(ours)) if ours.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(CommandFailure::file(&context, "sent", &ours))
            }
            _ => Err(error.into()),
        },
    }
}

/// Prints a job's log until it is over. Ctrl-C cancels it, and a second one only stops following.
async fn follow(client: &Client, job: TemplateJob, done: &str, is_json: bool) -> CommandResult {
    let id: JobId = job.id;
    let mut interrupt = signal(SignalKind::interrupt())
        .map_err(|error| CommandFailure::ours("internal", format!("watching for Ctrl-C: {error}"), "try again"))?;
    let mut is_cancelled = false;
    let mut from = 0;
    let state = loop {
        let log = client.template_job_log(&id, &TemplateLogQuery { from, limit: None }).await?;
        if !is_json {
            log.items.iter().for_each(|written| note(&line(&written.text)));
        }
        from = log.next;
        match log.state {
            TemplateJobState::Waiting | TemplateJobState::Running => tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                _ = interrupt.recv() => {
                    if is_cancelled {
                        return Ok(INTERRUPTED);
                    }
                    is_cancelled = true;
                    note("cancelling; again to leave it to the server");
                    client.cancel_template_job(&id).await?;
                }
            },
            over if log.items.is_empty() => break over,
            TemplateJobState::Succeeded | TemplateJobState::Failed | TemplateJobState::Cancelled => {}
        }
    };
    let job = client.template_job(&id).await?;
    if is_json {
        print_json(&job)?;
        return Ok(u8::from(state != TemplateJobState::Succeeded));
    }
    match (state, job.problem) {
        (TemplateJobState::Succeeded, _) => {
            let id = job.template.map(|id| id.to_string()).unwrap_or_default();
            print(format!("{done} {}: {id}\n", job.name).as_bytes())?;
            Ok(0)
        }
        (_, Some(problem)) => Err(CommandFailure::ours(&problem.code, problem.detail, problem.help).with_status(1)),
        (_, None) => Err(CommandFailure::ours("cancelled", format!("the job {id} was cancelled"), "").with_status(1)),
    }
}

fn row(template: &Template) -> Vec<String> {
    vec![
        template.name.to_string(),
        template.id.hex()[..SHORT].to_owned(),
        template.bytes.map_or_else(|| "unreadable".to_owned(), size),
        format!("{} ago", span(template.set_at, now())),
        if template.public { "operator" } else { "project" }.to_owned(),
    ]
}

fn shown(template: &Template) -> String {
    let mut fields = vec![("name", template.name.to_string()), ("id", template.id.to_string())];
    if let Some(contents) = &template.contents {
        fields.push(("platform", line(&contents.platform)));
        fields.extend(contents.layers.iter().map(|layer| ("layer", format!("{} ({})", layer.id, size(layer.bytes)))));
        fields.extend(contents.env.iter().map(|(name, value)| ("env", line(&format!("{name}={value}")))));
        fields.extend(contents.cwd.iter().map(|cwd| ("cwd", line(cwd))));
        fields.extend(contents.user.iter().map(|user| ("user", line(user))));
        for (what, words) in [("entry", &contents.entrypoint), ("command", &contents.command)] {
            if !words.is_empty() {
                fields.push((what, line(&serde_json::json!(words).to_string())));
            }
        }
        fields.extend(contents.ports.iter().map(|port| ("port", line(port))));
        fields.extend(contents.labels.iter().map(|(name, value)| ("label", line(&format!("{name}={value}")))));
    }
    fields.iter().map(|(name, value)| format!("{name:<9} {value}\n")).collect()
}
