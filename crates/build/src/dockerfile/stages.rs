//! From instructions to stages.

use std::collections::BTreeMap;

use saggar_domain::Problem;
use saggar_domain::template::ExposedPort;

use super::instruction::{command, flags, json, pairs};
use super::lines::{Line, cut};
use super::words::{Allowance, Words};
use super::{Given, Notice, Parsed, wrong};
use crate::recipe::{Action, Base, Command, Recipe, STAGES_MAX, STEPS_MAX, Stage, Step};

/// Archives that ADD would unpack.
const ARCHIVES: &[&str] = &[".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst"];
/// Arguments that exist without being declared. Their values stay with the client.
const ALWAYS_KNOWN: &[&str] = &["HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"];
const KNOWN: &str = "known are FROM, COPY, ADD, RUN, ENV, ARG, WORKDIR, USER, ENTRYPOINT, CMD, EXPOSE, LABEL and SHELL";

/// Reads a Dockerfile. Never panics, whatever the text is.
pub fn read(text: &str, given: Given<'_>) -> Result<Parsed, Problem> {
    let (lines, escape) = cut(text)?;
    let mut reader = Reader {
        given,
        escape,
        allowance: Allowance::new(),
        global: platform(),
        stages: Vec::new(),
        steps: 0,
        vars: BTreeMap::new(),
        args: BTreeMap::new(),
        envs: Vec::new(),
        declared: Vec::new(),
        names: stage_names(&lines),
        notices: Vec::new(),
    };
    for line in &lines {
        reader.line(line)?;
    }
    reader.finish(lines.last().map_or(1, |line| line.number))
}

struct Reader<'a> {
    given: Given<'a>,
    escape: char,
    allowance: Allowance,
    /// Arguments declared before the first FROM.
    global: BTreeMap<String, String>,
    stages: Vec<Stage>,
    /// Of all stages.
    steps: usize,
    /// Arguments and environment of the current stage.
    vars: BTreeMap<String, String>,
    /// Arguments of the current stage.
    args: BTreeMap<String, String>,
    /// The environment of each stage, at its end so far.
    envs: Vec<BTreeMap<String, String>>,
    declared: Vec<String>,
    /// Names of all stages with their lines, also of those to come.
    names: Vec<(String, u32)>,
    notices: Vec<Notice>,
}

impl Reader<'_> {
    fn line(&mut self, line: &Line) -> Result<(), Problem> {
        let number = line.number;
        match line.name.as_str() {
            "FROM" => return self.from(line),
            "ARG" => return self.arg(line),
            "MAINTAINER" | "HEALTHCHECK" | "STOPSIGNAL" => {
                self.notice(number, format!("{} has no effect", line.name));
                return Ok(());
            }
            "VOLUME" => {
                self.notice(number, "VOLUME has no effect: what is below it is part of the template");
                return Ok(());
            }
            "ONBUILD" => {
                return Err(wrong(number, "ONBUILD is not supported", "write the steps where they are needed"));
            }
            _ => {}
        }
        if self.stages.is_empty() {
            return Err(wrong(number, format!("{} comes before FROM", line.name), "begin with FROM"));
        }
        if self.steps == STEPS_MAX {
            return Err(wrong(
                number,
                format!("there are more than {STEPS_MAX} steps"),
                "join steps, or build in parts",
            ));
        }
        self.steps += 1;
        let action = self.action(line)?;
        if let Action::Env { set } = &action {
            self.vars.extend(set.clone());
            if let Some(env) = self.envs.last_mut() {
                env.extend(set.clone());
            }
        }
        let stage = self.stages.last_mut().expect("there is one, as was just seen");
        stage.steps.push(Step { line: Some(number), force: false, action });
        Ok(())
    }

    fn action(&mut self, line: &Line) -> Result<Action, Problem> {
        let number = line.number;
        let one = |reader: &Self, what: &str| match reader.expanded(line)? {
            text if text.is_empty() => {
                Err(wrong(number, format!("{} names no {what}", line.name), "write one after it"))
            }
            text => Ok(text),
        };
        match line.name.as_str() {
            "RUN" => self.run(line),
            "COPY" | "ADD" => self.copy(line),
            "ENV" => Ok(Action::Env { set: pairs(line, &self.words())? }),
            "LABEL" => Ok(Action::Label { set: pairs(line, &self.words())? }),
            "WORKDIR" => Ok(Action::Workdir { path: one(self, "directory")? }),
            "USER" => Ok(Action::User { user: one(self, "user")? }),
            "ENTRYPOINT" => Ok(Action::Entrypoint { command: command(line, &line.rest)? }),
            "CMD" => Ok(Action::Cmd { command: command(line, &line.rest)? }),
            "EXPOSE" => {
                let parse = |word: &String| {
                    ExposedPort::parse(&word.to_ascii_lowercase()).ok_or_else(|| {
                        wrong(
                            number,
                            format!("{word:?} is not a port"),
                            "write 80, 80/tcp or 53/udp; ranges are not supported",
                        )
                    })
                };
                Ok(Action::Expose { ports: self.split(line, &line.rest)?.iter().map(parse).collect::<Result<_, _>>()? })
            }
            "SHELL" => match json(&line.rest) {
                Some(words) if !words.is_empty() => Ok(Action::Shell { words }),
                _ => Err(wrong(number, "SHELL needs a list", r#"write SHELL ["/bin/sh", "-c"]"#)),
            },
            name => Err(wrong(number, format!("the instruction {name:?} is not known"), KNOWN)),
        }
    }

    fn from(&mut self, line: &Line) -> Result<(), Problem> {
        let number = line.number;
        if self.stages.len() == STAGES_MAX {
            return Err(wrong(number, format!("there are more than {STAGES_MAX} stages"), "build in parts"));
        }
        let (flags, rest) = flags(line);
        let words = Words { vars: &self.global, ..self.words() };
        let fail = |what: String| wrong(number, what, "write FROM NAME or FROM NAME AS STAGE");
        for (name, value) in flags {
            let value = words.expand(&value).map_err(fail)?;
            if name != "platform" || !["", self.global["TARGETPLATFORM"].as_str()].contains(&value.as_str()) {
                return Err(fail(format!("--{name}={value} is not supported here")));
            }
        }
        let words = words.split(rest).map_err(fail)?;
        let (base, name) = match words.as_slice() {
            [base] => (base, None),
            [base, keyword, name] if keyword.eq_ignore_ascii_case("as") => (base, Some(name.to_ascii_lowercase())),
            _ => return Err(fail("FROM is not understood".to_owned())),
        };
        if base.is_empty() {
            return Err(fail("FROM names nothing: a variable in it has no value".to_owned()));
        }
        let earlier = self.stages.iter().rposition(|stage| stage.name.as_deref() == Some(&base.to_ascii_lowercase()));
        let (from, env) = match earlier {
            Some(index) => (Base::Stage(index), self.envs[index].clone()),
            None if base == "scratch" => (Base::Scratch, BTreeMap::new()),
            None => {
                let env = (self.given.env_of)(base).map_err(|problem| self.unknown_base(line, base, problem))?;
                (Base::Template(base.clone()), env)
            }
        };
        self.allowance.take_all(&env).map_err(fail)?;
        self.vars = env.clone();
        self.args.clear();
        self.envs.push(env);
        self.stages.push(Stage { name, from, steps: Vec::new() });
        Ok(())
    }

    fn unknown_base(&self, line: &Line, base: &str, problem: Problem) -> Problem {
        match self.names.iter().find(|(name, at)| *name == base.to_ascii_lowercase() && *at >= line.number) {
            Some((_, at)) => wrong(
                line.number,
                format!("the stage {base:?} begins on line {at}, and a stage can only use earlier ones"),
                "change the order of the stages, and remove the cycle if they need each other",
            ),
            None => {
                Problem { message: format!("line {} of the Dockerfile: {}", line.number, problem.message), ..problem }
            }
        }
    }

    fn arg(&mut self, line: &Line) -> Result<(), Problem> {
        let is_global = self.stages.is_empty();
        let fail = |what: String| wrong(line.number, what, "write ARG NAME or ARG NAME=DEFAULT");
        let vars = if is_global { &self.global } else { &self.vars };
        let words = Words { vars, ..self.words() }.split(&line.rest).map_err(fail)?;
        if words.is_empty() {
            return Err(fail("ARG names nothing".to_owned()));
        }
        for word in words {
            let (name, default) =
                word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value.to_owned())));
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                return Err(fail(format!("{name:?} can't be the name of an argument")));
            }
            self.declared.push(name.to_owned());
            let inherited = if is_global { None } else { self.global.get(name).cloned() };
            let Some(value) = self.given.args.get(name).cloned().or(default).or(inherited) else { continue };
            if is_global {
                self.global.insert(name.to_owned(), value);
                continue;
            }
            // A variable of the environment wins over an argument of the same name.
            let is_env = self.envs.last().is_some_and(|env| env.contains_key(name));
            if !is_env {
                self.vars.insert(name.to_owned(), value.clone());
                self.args.insert(name.to_owned(), value);
            }
        }
        Ok(())
    }

    fn run(&mut self, line: &Line) -> Result<Action, Problem> {
        let (flags, rest) = flags(line);
        for (name, value) in flags {
            match (name.as_str(), value.as_str()) {
                ("network", "default") | ("security", "sandbox") => {}
                ("mount", value) if value.split(',').any(|part| part == "type=cache") => {
                    self.notice(
                        line.number,
                        "--mount=type=cache has no effect: the directory is part of the step's layer",
                    );
                }
                ("mount", _) => {
                    return Err(wrong(
                        line.number,
                        format!("RUN --mount={value} is not supported"),
                        "COPY what the step needs; secrets reach a build only as rules of its network",
                    ));
                }
                _ => {
                    return Err(wrong(
                        line.number,
                        format!("RUN --{name} is not supported"),
                        "leave it out; the network of all steps is chosen with --net",
                    ));
                }
            }
        }
        let command = match line.documents.as_slice() {
            [] => command(line, rest)?,
            // Nothing but the document: it is the script itself.
            [only] if is_marker(rest, &only.marker) => Command::Shell(only.body.clone()),
            several => {
                let texts: Vec<&str> = several.iter().map(|document| document.text.as_str()).collect();
                Command::Shell(format!("{rest}\n{}\n", texts.join("\n")))
            }
        };
        if matches!(&command, Command::Exec(words) if words.is_empty()) {
            return Err(wrong(line.number, "RUN names no program", "write one after it"));
        }
        self.allowance
            .take_all(&self.args)
            .map_err(|what| wrong(line.number, what, "declare large arguments after the steps that don't need them"))?;
        Ok(Action::Run { command, user: None, args: self.args.clone() })
    }

    fn copy(&mut self, line: &Line) -> Result<Action, Problem> {
        let number = line.number;
        let fail = |what: String| wrong(number, what, format!("write {} SOURCE… DESTINATION", line.name));
        if !line.documents.is_empty() {
            return Err(wrong(
                number,
                "here-documents are supported for RUN alone",
                "put the content into a file of the context",
            ));
        }
        let (flags, rest) = flags(line);
        let (mut from, mut chown, mut chmod) = (None, None, None);
        for (name, value) in flags {
            let value = self.words().expand(&value).map_err(fail)?;
            match name.as_str() {
                "from" if line.name == "COPY" => from = Some(self.copied_from(number, value)?),
                "chown" => chown = Some(value),
                "chmod" => {
                    let mode = u32::from_str_radix(&value, 8).ok().filter(|mode| *mode <= 0o7777);
                    chmod = Some(mode.ok_or_else(|| {
                        wrong(
                            number,
                            format!("--chmod={value} is not understood"),
                            "write permissions as an octal number: --chmod=755",
                        )
                    })?);
                }
                // How layers are stored is ours to decide.
                "link" => {}
                _ => {
                    return Err(wrong(
                        number,
                        format!("{} --{name} is not supported", line.name),
                        "leave it out, or use RUN",
                    ));
                }
            }
        }
        let mut words = match json(rest) {
            Some(words) => {
                let expand =
                    |word: &String| self.words().expand(&word.replace(self.escape, &format!("{0}{0}", self.escape)));
                words.iter().map(expand).collect::<Result<_, _>>().map_err(fail)?
            }
            None => self.split(line, rest)?,
        };
        let to = words
            .pop()
            .filter(|_| !words.is_empty())
            .ok_or_else(|| fail(format!("{} needs a source and a destination", line.name)))?;
        if to.is_empty() || words.iter().any(String::is_empty) {
            return Err(fail(format!(
                "a source or the destination of {} is empty: a variable has no value",
                line.name
            )));
        }
        if line.name == "ADD" {
            for source in &words {
                if source.contains("://") || source.starts_with("git@") {
                    return Err(wrong(
                        number,
                        format!("ADD of {source:?} is not supported"),
                        "fetch it in a RUN, with --net proxied and a rule for its host",
                    ));
                }
                if ARCHIVES.iter().any(|suffix| source.ends_with(suffix)) {
                    return Err(wrong(
                        number,
                        format!("ADD doesn't unpack {source:?}"),
                        "COPY it and unpack it with RUN tar",
                    ));
                }
            }
        }
        if words.len() > 1 && !to.ends_with('/') && to != "." {
            return Err(fail(format!("several sources need a directory, and {to:?} doesn't end with '/'")));
        }
        let to = if to == "." { "./".to_owned() } else { to };
        Ok(Action::Copy { from, sources: words, to, chown, chmod })
    }

    /// A stage that is not an earlier one is an error here; any other name may be a template's.
    fn copied_from(&self, number: u32, from: String) -> Result<String, Problem> {
        let current = self.stages.len() - 1;
        let is_earlier = |(index, stage): (usize, &Stage)| {
            index < current && (stage.name.as_deref() == Some(&from.to_ascii_lowercase()) || index.to_string() == from)
        };
        if self.stages.iter().enumerate().any(is_earlier) {
            return Ok(from);
        }
        let later = self.names.iter().any(|(name, _)| *name == from.to_ascii_lowercase());
        if later || from.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong(
                number,
                format!("the stage {from:?} is not an earlier one, and a stage can only use earlier ones"),
                "change the order of the stages, and remove the cycle if they need each other",
            ));
        }
        Ok(from)
    }

    fn finish(mut self, last_line: u32) -> Result<Parsed, Problem> {
        if self.stages.is_empty() {
            return Err(wrong(last_line, "there is no FROM", "begin with FROM NAME"));
        }
        if let Some(target) = self.given.target {
            let target = target.to_ascii_lowercase();
            let index = self.stages.iter().rposition(|stage| stage.name.as_ref() == Some(&target));
            let Some(index) = index else {
                let names: Vec<&str> = self.names.iter().map(|(name, _)| name.as_str()).collect();
                return Err(wrong(
                    last_line,
                    format!("there is no stage {target:?}"),
                    format!("the stages are: {}", names.join(", ")),
                ));
            };
            self.stages.truncate(index + 1);
        }
        for name in self.given.args.keys() {
            let is_known = ALWAYS_KNOWN.contains(&name.to_ascii_uppercase().as_str());
            if !is_known && !self.declared.contains(name) {
                self.notice(
                    last_line,
                    format!("the build argument {name:?} is not declared with ARG, and has no effect"),
                );
            }
        }
        Ok(Parsed { recipe: Recipe::new(self.stages), notices: self.notices })
    }

    fn words(&self) -> Words<'_> {
        Words { vars: &self.vars, escape: self.escape, allowance: &self.allowance }
    }

    fn split(&self, line: &Line, text: &str) -> Result<Vec<String>, Problem> {
        self.words().split(text).map_err(|what| wrong(line.number, what, "correct the quotes and variables"))
    }

    fn expanded(&self, line: &Line) -> Result<String, Problem> {
        self.words().expand(&line.rest).map_err(|what| wrong(line.number, what, "correct the quotes and variables"))
    }

    fn notice(&mut self, line: u32, text: impl Into<String>) {
        self.notices.push(Notice { line, text: text.into() });
    }
}

/// Names of all stages with their lines.
fn stage_names(lines: &[Line]) -> Vec<(String, u32)> {
    let name = |line: &Line| {
        let words: Vec<&str> = line.rest.split_whitespace().filter(|word| !word.starts_with("--")).collect();
        match words.as_slice() {
            [_, keyword, name] if keyword.eq_ignore_ascii_case("as") => Some((name.to_ascii_lowercase(), line.number)),
            _ => None,
        }
    };
    lines.iter().filter(|line| line.name == "FROM").filter_map(name).collect()
}

fn is_marker(rest: &str, marker: &str) -> bool {
    let name = rest.strip_prefix("<<").map(|rest| rest.trim_start_matches('-').trim_matches(['"', '\'']));
    name == Some(marker)
}

/// Arguments that every file has.
fn platform() -> BTreeMap<String, String> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let platform = format!("linux/{architecture}");
    let pairs = ["TARGET", "BUILD"].into_iter().flat_map(|side| {
        [("PLATFORM", platform.clone()), ("OS", "linux".to_owned()), ("ARCH", architecture.to_owned())]
            .map(|(name, value)| (format!("{side}{name}"), value))
    });
    pairs.collect()
}
