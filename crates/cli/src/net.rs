//! `saggar net`: which rule decides about a destination, and what the named sets contain. Asks no server and opens no connection.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use saggar_domain::net::{Destination, Passage, Refusal, RuleRef, Rules, Set, Wire, parse_authority};
use saggar_domain::{Code, Problem};
use saggar_front::RuleFlags;

use crate::outcome::{OUR_FAILURE, problem_text, visible};
use crate::remote::{aligned, terminal_width};

#[derive(Args, Debug)]
#[command(
    after_help = "Rules: [METHOD[,METHOD] ][https://|http://]HOST[:PORT|:LOW-HIGH|:*][/PATH], or @SET\n  api.example.com                  ports 80 and 443 of this host\n  '*.example.com'                  every host below it, at any depth\n  '*'                              every public host\n  db.example.com:5432              another port; :* means every port\n  10.0.0.0/8, '[fd00::]/8'         addresses; private ones must be named this way\n  'GET,HEAD example.com'           these methods only\n  'example.com/v1/**'              everything below a path; * stands for a part of one segment\n  @pypi                            a named set\nA deny rule wins over every allow rule. What no rule allows is denied."
)]
pub(crate) struct NetArguments {
    #[command(subcommand)]
    command: NetCommand,
}

#[derive(Subcommand, Debug)]
enum NetCommand {
    /// List the named sets of rules, or show the rules of one
    Sets {
        /// Name of a set, with or without the @
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Explain which rule decides about a host, a URL or a request
    #[command(
        after_help = "Examples:\n  saggar net explain --allow @pypi pypi.org\n  saggar net explain --allow 'GET api.example.com/v1/**' POST https://api.example.com/v1/items\n\nWithout a method and a path it explains the connection; with one of them, a request.\nExit status: 0 allowed, 1 denied, 125 saggar failed."
    )]
    Explain {
        #[command(flatten)]
        rules: RuleFlags,
        /// A URL, or HOST[:PORT][/PATH], port 443 by default; a method may stand before it
        #[arg(value_name = "[METHOD] TARGET", required = true, num_args = 1..=2)]
        target: Vec<String>,
    },
}

pub(crate) fn main(arguments: &NetArguments) -> ExitCode {
    let done = match &arguments.command {
        NetCommand::Sets { name: None } => Ok((all_sets(), true)),
        NetCommand::Sets { name: Some(name) } => Set::find(name).map(|set| (set.text().to_owned(), true)),
        NetCommand::Explain { rules, target } => explain(rules, target),
    };
    match done {
        Ok((text, is_allowed)) => match io::stdout().write_all(visible(&text).as_bytes()) {
            Ok(()) => ExitCode::from(u8::from(!is_allowed)),
            Err(_) => ExitCode::from(OUR_FAILURE),
        },
        Err(problem) => {
            eprint!("{}", problem_text(&problem));
            ExitCode::from(OUR_FAILURE)
        }
    }
}

fn all_sets() -> String {
    let rows: Vec<Vec<String>> =
        Set::all().iter().map(|set| vec![format!("@{}", set.name()), set.description().to_owned()]).collect();
    aligned(&["SET", "FOR"], &rows, terminal_width())
}

/// The explanation, and whether the answer is yes.
fn explain(flags: &RuleFlags, words: &[String]) -> Result<(String, bool), Problem> {
    let rules = Rules::new(flags.draft())?;
    let (target, method) = words.split_last().expect("clap takes one or two words");
    let method = method.first().map(String::as_str);
    let (to, path) = parse_target(target)?;
    Ok(match (method, path) {
        (None, None) => explain_connection(&rules, &to),
        (method, path) => explain_request(&rules, &to, method.unwrap_or("GET"), path.unwrap_or("/")),
    })
}

fn explain_connection(rules: &Rules, to: &Destination) -> (String, bool) {
    match rules.connection(to) {
        Passage::Denied(refusal) => (denied(&to.to_string(), &refusal), false),
        Passage::Inspect => {
            let (allow, deny) = rules.about(to);
            let lines = |word: &str, rules: Vec<RuleRef>| -> String {
                rules.iter().map(|rule| format!("  {word}: {rule}\n")).collect()
            };
            let text = format!(
                "{to} is inspected: these rules decide each request\n{}{}",
                lines("allow", allow),
                lines("deny", deny)
            );
            (text, true)
        }
        Passage::Tunnel { rule } => {
            let how = match rules.wire(to) {
                Wire::Http => "plain HTTP; the Host header of each request must be this host",
                Wire::Tls | Wire::Either => "TLS for this name passes through; requests are not seen",
            };
            (allowed(&to.to_string(), &rule, how), true)
        }
        Passage::Raw { rule } => (
            allowed(&to.to_string(), &rule, "bytes pass as they are, whatever the protocol; requests are not seen"),
            true,
        ),
    }
}

fn explain_request(rules: &Rules, to: &Destination, method: &str, path: &str) -> (String, bool) {
    let what = format!("{method} {path} on {to}");
    match rules.request(to, method, path) {
        Err(refusal) => (denied(&what, &refusal), false),
        Ok(rule) => {
            let how = match rules.connection(to) {
                Passage::Inspect => "requests to this host are inspected",
                Passage::Tunnel { .. } | Passage::Raw { .. } | Passage::Denied(_) if to.port == 80 => {
                    "plain HTTP; no rule for this host has a method or a path"
                }
                Passage::Tunnel { .. } | Passage::Raw { .. } | Passage::Denied(_) => {
                    "requests to this host are not seen: no rule for it has a method or a path"
                }
            };
            (allowed(&what, &rule, how), true)
        }
    }
}

fn allowed(what: &str, rule: &RuleRef, how: &str) -> String {
    format!("{what} is allowed\n  rule: {rule}\n  how: {how}\n")
}

fn denied(what: &str, refusal: &Refusal) -> String {
    format!("{what} is denied: {}\n  rule: {}\n  help: {}\n", refusal.message, refusal.rule, refusal.help)
}

/// A destination, and a path with its query if there is one.
fn parse_target(text: &str) -> Result<(Destination, Option<&str>), Problem> {
    let wrong = |why: String| {
        Problem::new(
            Code::InvalidValue,
            format!("{text:?} is no target: {why}"),
            "write a URL, or HOST[:PORT][/PATH], such as api.example.com or https://api.example.com/v1",
        )
    };
    let (port, rest) = match text.split_once("://") {
        Some(("https", rest)) => (443, rest),
        Some(("http", rest)) => (80, rest),
        Some(_) => return Err(wrong("it is neither https nor http".to_owned())),
        None => (443, text),
    };
    let rest = rest.split('#').next().unwrap_or_default();
    let (authority, path) = match rest.find(['/', '?']) {
        Some(end) if rest[end..].starts_with('/') => (&rest[..end], Some(&rest[end..])),
        // A query without a path belongs to the front page, which is all that rules see of it.
        Some(end) => (&rest[..end], Some("/")),
        None => (rest, None),
    };
    // The path that every URL has doesn't ask about a request.
    let path = path.filter(|path| *path != "/");
    let to = parse_authority(authority.as_bytes(), Some(port)).map_err(|error| wrong(error.to_string()))?;
    Ok((to, path))
}
