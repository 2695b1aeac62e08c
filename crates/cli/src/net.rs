//! `saggar net`: which rule decides about a destination, what the named sets contain, and the network of a server's sandboxes. Sets,
//! explanations of rules from the command line, and event files need no server. Nothing here connects to a destination.

mod bindings;
mod explain;
mod line;
mod log_file;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use saggar_domain::net::{EgressDraft, Rules, Set};
use saggar_domain::{Code, NetworkMode, Problem, SandboxId};
use saggar_front::{NetworkLimitFlags, RuleFlags, read_spec};
use saggar_sandbox::{Answers, DataDirectory};
use serde_json::json;

use crate::outcome::{OUR_FAILURE, problem_text, visible};
use crate::remote::{self, ServerArguments, aligned, sandbox_id, terminal_width};

pub(crate) use bindings::Bindings;
pub(crate) use explain::explain;
pub(crate) use line::{Sight, decision_line, decision_text};

#[derive(Args, Debug)]
#[command(
    after_help = "Rules: [METHOD[,METHOD] ][https://|http://]HOST[:PORT|:LOW-HIGH|:*][/PATH], or @SET\n  api.example.com                  ports 80 and 443 of this host\n  '*.example.com'                  every host below it, at any depth\n  '*'                              every public host\n  db.example.com:5432              another port; :* means every port\n  10.0.0.0/8, '[fd00::]/8'         addresses; private ones must be named this way\n  'GET,HEAD example.com'           these methods only\n  'example.com/v1/**'              everything below a path; * stands for a part of one segment\n  @pypi                            a named set\nA deny rule wins over every allow rule. What no rule allows is denied."
)]
pub(crate) struct NetArguments {
    #[command(subcommand)]
    command: NetCommand,
    #[command(flatten)]
    server: ServerArguments,
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
        after_help = "Examples:\n  saggar net explain --allow @pypi pypi.org\n  saggar net explain --allow 'GET api.example.com/v1/**' POST https://api.example.com/v1/items\n  saggar net explain --sandbox $id pypi.org\n\nWithout a method and a path it explains the connection; with one of them, a request.\nExit status: 0 allowed, 1 denied, 125 saggar failed."
    )]
    Explain {
        /// Explain the rules in force for this sandbox of a server
        #[arg(long, value_name = "SANDBOX", value_parser = sandbox_id, conflicts_with_all = ["allow", "deny"])]
        sandbox: Option<SandboxId>,
        #[command(flatten)]
        rules: RuleFlags,
        /// Also tell which secrets of this file a request gets; values are not shown
        #[arg(long, value_name = "FILE", conflicts_with = "sandbox")]
        secrets: Option<PathBuf>,
        /// A URL, or HOST[:PORT][/PATH], port 443 by default; a method may stand before it
        #[arg(value_name = "[METHOD] TARGET", required = true, num_args = 1..=2)]
        target: Vec<String>,
    },
    /// List the hosts that were allowed for good when `saggar run --ask` asked, by workspace
    #[command(after_help = "Examples:\n  saggar net answers\n  saggar net answers --forget api.example.com")]
    Answers {
        /// Ask about this host again, in every workspace; written as it is listed
        #[arg(long, value_name = "HOST")]
        forget: Option<String>,
        /// Data directory: where records of live sandboxes are kept
        #[arg(long, value_name = "DIR")]
        data_dir: Option<PathBuf>,
    },
    /// Show the network rules of a sandbox, and what it did with its network
    Show {
        /// The sandbox's id
        #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
        sandbox: SandboxId,
    },
    /// Replace all network rules of a running sandbox; connections that the new rules forbid are cut
    #[command(
        after_help = "Examples:\n  saggar net set $id --allow @pypi --allow api.example.com\n  saggar net set $id --spec sandbox.toml\n  saggar net set $id --none"
    )]
    Set {
        /// The sandbox's id
        #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
        sandbox: SandboxId,
        #[command(flatten)]
        rules: RuleFlags,
        #[command(flatten)]
        limits: Box<NetworkLimitFlags>,
        /// Take the rules and limits of a spec file; those of the flags are added
        #[arg(long, value_name = "FILE")]
        spec: Option<PathBuf>,
        /// No rules: everything is denied
        #[arg(long, conflicts_with_all = ["allow", "deny", "spec"])]
        none: bool,
    },
    /// Show the decisions about a sandbox's network, one per line
    #[command(
        after_help = "Examples:\n  saggar net log $id\n  saggar net log $id --follow --denied\n  saggar net log --file events.jsonl\n\nA server keeps the last 5,000 allowed and the last 5,000 denied decisions of each sandbox."
    )]
    Log {
        /// The sandbox's id
        #[arg(value_name = "SANDBOX", value_parser = sandbox_id, required_unless_present = "file")]
        sandbox: Option<SandboxId>,
        /// Read the events file of `saggar run --events FILE` instead
        #[arg(long, value_name = "FILE", conflicts_with_all = ["sandbox", "follow"])]
        file: Option<PathBuf>,
        /// Keep following until the sandbox ends
        #[arg(short, long)]
        follow: bool,
        /// Only what was denied
        #[arg(long)]
        denied: bool,
    },
}

pub(crate) fn main(arguments: NetArguments) -> ExitCode {
    let NetArguments { command, server } = arguments;
    let is_json = server.json;
    let done = match command {
        NetCommand::Sets { name } => sets(name.as_deref(), is_json).map(|text| (text, true)),
        NetCommand::Answers { forget, data_dir } => {
            answers(forget.as_deref(), data_dir.as_deref(), is_json).map(|text| (text, true))
        }
        NetCommand::Explain { sandbox: None, rules, secrets, target } => {
            let explained = Rules::new(rules.draft())
                .and_then(|rules| explain(rules, &Bindings::read(secrets.as_deref())?, &target));
            explained.map(|explained| {
                let text = if is_json { explained.json() } else { explained.text() };
                (text, explained.is_allowed())
            })
        }
        NetCommand::Explain { sandbox: Some(sandbox), rules: _, secrets: _, target } => {
            return remote::net(&server, remote::NetTask::Explain { sandbox, target });
        }
        NetCommand::Show { sandbox } => return remote::net(&server, remote::NetTask::Show { sandbox }),
        NetCommand::Set { sandbox, rules, limits, spec, none } => {
            match asked(EgressDraft { limits: limits.limits(), ..rules.draft() }, spec, none) {
                Ok(rules) => return remote::net(&server, remote::NetTask::Set { sandbox, rules }),
                Err(problem) => Err(problem),
            }
        }
        NetCommand::Log { sandbox: Some(sandbox), file: _, follow, denied } => {
            return remote::net(&server, remote::NetTask::Log { sandbox, follow, sight: Sight { denied, is_json } });
        }
        NetCommand::Log { sandbox: None, file, follow: _, denied } => {
            // Clap requires one of the two.
            log_file::read(&file.unwrap_or_default(), Sight { denied, is_json }).map(|text| (text, true))
        }
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

fn answers(forget: Option<&str>, data: Option<&Path>, is_json: bool) -> Result<String, Problem> {
    let answers = Answers::of(&DataDirectory::open(data)?);
    if let Some(host) = forget {
        return match answers.forget(host)? {
            0 => Err(Problem::new(
                Code::InvalidValue,
                format!("{host:?} was not allowed for good in any workspace"),
                "list what was with: saggar net answers",
            )),
            count => Ok(format!("forgotten in {count} {}\n", if count == 1 { "workspace" } else { "workspaces" })),
        };
    }
    let all = answers.all()?;
    if is_json {
        return Ok(format!("{}\n", json!({ "answers": all })));
    }
    let lines =
        all.iter().flat_map(|(workspace, rules)| rules.iter().map(move |rule| format!("{workspace}  {rule}\n")));
    Ok(lines.collect())
}

/// The rules that `net set` asks for. Without any, that must be said.
fn asked(flags: EgressDraft, spec: Option<PathBuf>, is_none: bool) -> Result<EgressDraft, Problem> {
    let of_file = match &spec {
        Some(path) => {
            let draft = read_spec(path)?;
            let mode = draft.network.unwrap_or(NetworkMode::Proxied);
            if mode != NetworkMode::Proxied {
                return Err(Problem::new(
                    saggar_domain::Code::Contradiction,
                    format!("the spec has network mode {mode}, which has no rules"),
                    "name a spec with network mode proxied",
                ));
            }
            draft.egress
        }
        None => EgressDraft::default(),
    };
    let rules = of_file.merge(flags)?;
    if rules.is_empty() && !is_none && spec.is_none() {
        return Err(Problem::new(
            saggar_domain::Code::InvalidValue,
            "no rules are given",
            "give them with --allow, --deny or --spec, or deny everything with --none",
        ));
    }
    Ok(rules)
}

fn sets(name: Option<&str>, is_json: bool) -> Result<String, Problem> {
    let shown = |set: &Set| {
        let rules: Vec<&str> = set.text().lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        json!({ "name": set.name().to_string(), "description": set.description(), "rules": rules })
    };
    Ok(match (name, is_json) {
        (Some(name), false) => Set::find(name)?.text().to_owned(),
        (Some(name), true) => format!("{}\n", shown(Set::find(name)?)),
        (None, true) => format!("{}\n", json!({ "sets": Set::all().iter().map(shown).collect::<Vec<_>>() })),
        (None, false) => {
            let row = |set: &Set| vec![format!("@{}", set.name()), set.description().to_owned()];
            aligned(&["SET", "FOR"], &Set::all().iter().map(row).collect::<Vec<_>>(), terminal_width())
        }
    })
}
