//! `saggar sandbox logs` and `watch`: past and current events and output.

use std::io::IsTerminal;

use saggar_api::client::{Client, SandboxHandle};
use saggar_api::{
    EventsQuery, ExecState, ExecStatus, FileChange, FileEvent, FilePath, PauseReason, SandboxEvent, SandboxEventBody,
    StreamQuery, WatchQuery,
};
use saggar_domain::{ExecId, SandboxId};
use saggar_supervisor::EscapeFilter;

use super::dispatch::{CommandResult, note, print, print_json};
use super::exec::{exit_status, follow};
use super::failure::CommandFailure;
use super::shown::line;
use crate::net::decision_text;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// Stop at what has happened so far.
    Now,
    /// Follow until nothing more can come.
    Ended,
}

pub(crate) async fn main(
    client: &Client,
    sandbox: SandboxId,
    exec: Option<ExecId>,
    until: Until,
    is_json: bool,
) -> CommandResult {
    let sandbox = client.sandbox(sandbox);
    match exec {
        Some(exec) => output(&sandbox, exec, until, is_json).await,
        None => history(&sandbox, until, is_json).await,
    }
}

/// Prints one exec's output. When following, the exit status is the program's.
async fn output(sandbox: &SandboxHandle, exec: ExecId, until: Until, is_json: bool) -> CommandResult {
    let exec = sandbox.exec(exec);
    if until == Until::Ended && !is_json {
        let mut stream = exec.follow(StreamQuery::default()).await?;
        let ended = follow(&mut stream).await?;
        return Ok(exit_status(&ended));
    }
    let result = exec.get().await?;
    if is_json {
        print_json(&result)?;
        return Ok(0);
    }
    let output = &result.output;
    let dropped = output.stdout_dropped + output.stderr_dropped;
    if dropped > 0 {
        note(&format!("{dropped} bytes of earlier output were dropped"));
    }
    print(&harmless(&output.stdout, std::io::stdout().is_terminal()))?;
    let mut stderr = std::io::stderr().lock();
    std::io::Write::write_all(&mut stderr, &harmless(&output.stderr, std::io::stderr().is_terminal()))?;
    Ok(0)
}

async fn history(sandbox: &SandboxHandle, until: Until, is_json: bool) -> CommandResult {
    match (until, is_json) {
        (Until::Now, false) => {
            let mut text = sandbox.logs().await?;
            let is_terminal = std::io::stdout().is_terminal();
            let mut filter = EscapeFilter::default();
            while let Some(piece) = text.next().await? {
                print(&filtered(&mut filter, &piece, is_terminal))?;
            }
        }
        (Until::Now, true) => {
            let mut query = EventsQuery::default();
            loop {
                let page = sandbox.events(&query).await?;
                for event in &page.items {
                    print_json(event)?;
                }
                query.after = page.items.last().map(|event| event.seq);
                if query.after.is_none_or(|seq| seq >= page.last_seq) {
                    break;
                }
            }
        }
        (Until::Ended, _) => events(sandbox, is_json).await?,
    }
    Ok(0)
}

pub(crate) async fn watch(
    client: &Client,
    sandbox: SandboxId,
    path: Option<FilePath>,
    recursive: bool,
    is_json: bool,
) -> CommandResult {
    let sandbox = client.sandbox(sandbox);
    let Some(path) = path else {
        events(&sandbox, is_json).await?;
        return Ok(0);
    };
    let mut watch = sandbox.watch_files(&WatchQuery { path, recursive, user: None }).await?;
    while let Some(event) = watch.next().await? {
        if let FileEvent::Failed { problem } = event {
            return Err(saggar_api::client::Error::from(problem).into());
        }
        if is_json {
            print_json(&event)?;
        } else if let Some(text) = file_line(&event) {
            print(text.as_bytes())?;
        }
    }
    Ok(0)
}

async fn events(sandbox: &SandboxHandle, is_json: bool) -> Result<(), CommandFailure> {
    let mut events = sandbox.follow_events(&EventsQuery::default()).await?;
    while let Some(event) = events.next().await? {
        if is_json {
            print_json(&event)?;
        } else {
            print(event_line(&event).as_bytes())?;
        }
    }
    Ok(())
}

fn event_line(event: &SandboxEvent) -> String {
    let told = match &event.body {
        SandboxEventBody::Started { unenforced } if unenforced.is_empty() => String::new(),
        SandboxEventBody::Started { unenforced } => format!("not enforced: {}", unenforced.join("; ")),
        SandboxEventBody::Claimed
        | SandboxEventBody::Resumed
        | SandboxEventBody::NetworkLost
        | SandboxEventBody::NetworkRestored
        | SandboxEventBody::Other => String::new(),
        SandboxEventBody::Decision { decision } => decision_text(&decision.as_ref().clone().into()),
        SandboxEventBody::RolledBack { template } => template.clone(),
        SandboxEventBody::RulesReplaced { policy_hash } => policy_hash.clone(),
        SandboxEventBody::Paused { reason: PauseReason::Asked } => "as asked".to_owned(),
        SandboxEventBody::Paused { reason: PauseReason::TimeUp } => "its time was up".to_owned(),
        SandboxEventBody::ExecStarted { exec_id, program } => format!("{exec_id} {program}"),
        SandboxEventBody::ExecEnded { exec_id, status, exit_code, signal } => match (status, exit_code, signal) {
            (ExecState::Ended(ExecStatus::Exited), Some(code), _) => format!("{exec_id} exited {code}"),
            (ExecState::Ended(ExecStatus::Signaled), _, Some(signal)) => format!("{exec_id} signal {signal}"),
            (status, _, _) => format!("{exec_id} {}", status.as_str()),
        },
        SandboxEventBody::Denied { denial } | SandboxEventBody::LimitReached { denial } => {
            format!("{} ({})", denial.message, denial.rule)
        }
        SandboxEventBody::Ending { reason } => reason.as_str().to_owned(),
        SandboxEventBody::Ended { reason, detail } if detail.is_empty() => reason.as_str().to_owned(),
        SandboxEventBody::Ended { reason, detail } => format!("{}: {detail}", reason.as_str()),
        SandboxEventBody::Gap { events } => format!("{events} events were dropped"),
    };
    format!("{} {:<13} {}", event.at, event.body.name(), line(&told)).trim_end().to_owned() + "\n"
}

fn file_line(event: &FileEvent) -> Option<String> {
    match event {
        FileEvent::Created(change)
        | FileEvent::Written(change)
        | FileEvent::Removed(change)
        | FileEvent::Moved(change)
        | FileEvent::Attributes(change) => {
            let FileChange { path, is_directory } = change;
            let tail = if *is_directory { "/" } else { "" };
            Some(format!("{:<10} {}{tail}\n", event.name(), line(path)))
        }
        FileEvent::Overflow => Some("overflow   some changes were missed\n".to_owned()),
        FileEvent::Watching | FileEvent::Failed { .. } | FileEvent::Other => None,
    }
}

/// Output comes from a sandbox: on a terminal its escape sequences must not act.
fn harmless(bytes: &[u8], is_terminal: bool) -> Vec<u8> {
    filtered(&mut EscapeFilter::default(), bytes, is_terminal)
}

fn filtered(filter: &mut EscapeFilter, bytes: &[u8], is_terminal: bool) -> Vec<u8> {
    if !is_terminal {
        return bytes.to_vec();
    }
    let mut shown = Vec::with_capacity(bytes.len());
    filter.pass(bytes, |byte| shown.push(byte));
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use saggar_api::Timestamp;

    fn check(body: SandboxEventBody, expected: &str) {
        let event = SandboxEvent { seq: 1, at: Timestamp::from_millis(0), body };
        assert_eq!(event_line(&event), format!("1970-01-01T00:00:00.000Z {expected}\n"));
    }

    #[test]
    fn an_event_is_one_line_that_acts_on_nothing() {
        check(SandboxEventBody::Resumed, "resumed");
        check(SandboxEventBody::Paused { reason: PauseReason::TimeUp }, "paused        its time was up");
        let exec_id = ExecId::from_random([0; 16]);
        check(
            SandboxEventBody::ExecStarted { exec_id: exec_id.clone(), program: "a\x1b]0;t\x07\nb".into() },
            &format!("exec_started  {exec_id} a\\u{{1b}}]0;t\\u{{7}}\\nb"),
        );
    }

    #[test]
    fn a_file_name_can_not_make_a_second_line() {
        let change = FileChange { path: "/tmp/a\nremoved    /etc".into(), is_directory: false };
        assert_eq!(file_line(&FileEvent::Created(change)), Some("created    /tmp/a\\nremoved    /etc\n".to_owned()));
    }
}
