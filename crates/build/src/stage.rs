//! The state of a stage while its steps are done: layers and defaults.

use std::collections::BTreeMap;

use saggar_domain::template::{Defaults, Image, ImageSource, LayerEntry, Manifest};
use saggar_domain::{Code, GuestPath, Problem};

use crate::recipe::{Action, Command, Recipe};

const SHELL: &[&str] = &["/bin/sh", "-c"];

#[derive(Clone, Debug)]
pub(crate) struct State {
    /// The first is the bottom.
    pub(crate) layers: Vec<LayerEntry>,
    pub(crate) defaults: Defaults,
    shell: Vec<String>,
    /// Whether a CMD belongs to an ENTRYPOINT of this stage.
    has_own_command: bool,
    /// Set once a step must not come from the cache: what follows depends on it.
    pub(crate) is_uncached: bool,
}

impl State {
    pub(crate) fn new(layers: Vec<LayerEntry>, defaults: Defaults) -> Self {
        let shell = SHELL.iter().map(ToString::to_string).collect();
        Self { layers, defaults, shell, has_own_command: false, is_uncached: false }
    }

    /// The state that a stage begins with which starts from this one.
    pub(crate) fn derived(&self) -> Self {
        Self { is_uncached: self.is_uncached, ..Self::new(self.layers.clone(), self.defaults.clone()) }
    }

    /// The program of a command.
    pub(crate) fn program(&self, command: &Command) -> Vec<String> {
        match command {
            Command::Exec(words) => words.clone(),
            Command::Shell(line) => self.shell.iter().chain([line]).cloned().collect(),
        }
    }

    /// A path of a step, absolute.
    pub(crate) fn absolute(&self, path: &str) -> String {
        match (path.starts_with('/'), &self.defaults.cwd) {
            (true, _) => path.to_owned(),
            (false, Some(cwd)) => format!("{}/{path}", cwd.as_str().trim_end_matches('/')),
            (false, None) => format!("/{path}"),
        }
    }

    /// Does what an action says about the defaults.
    pub(crate) fn apply(&mut self, action: &Action) -> Result<(), Problem> {
        let defaults = &mut self.defaults;
        match action {
            Action::Copy { .. } | Action::Run { .. } => {}
            Action::Env { set } => defaults.env.extend(set.clone()),
            Action::Label { set } => defaults.labels.extend(set.clone()),
            Action::User { user } => defaults.user = Some(user.clone()),
            Action::Expose { ports } => {
                for port in ports {
                    if !defaults.ports.contains(port) {
                        defaults.ports.push(*port);
                    }
                }
            }
            Action::Shell { words } if words.is_empty() => return Err(wrong("SHELL names no program".to_owned())),
            Action::Shell { words } => self.shell = words.clone(),
            Action::Entrypoint { command } => {
                let program = self.program(command);
                self.defaults.entrypoint = program;
                // The command of the base belonged to the base's entry point.
                if !self.has_own_command {
                    self.defaults.command = Vec::new();
                }
            }
            Action::Cmd { command } => {
                self.defaults.command = self.program(command);
                self.has_own_command = true;
            }
            Action::Workdir { path } => {
                let path = normal(&self.absolute(path));
                self.defaults.cwd = Some(GuestPath::parse(&path).map_err(wrong)?);
            }
        }
        self.defaults.clone().check().map_err(wrong)?;
        Ok(())
    }

    /// The template that the stage is now. Its recipe names it, not the time.
    pub(crate) fn manifest(&self, recipe: &Recipe, defaults: Defaults) -> Result<Manifest, Problem> {
        let image = Image {
            source: ImageSource::Build,
            config: recipe.digest(),
            platform: format!("linux/{}", architecture()),
            created: None,
        };
        Manifest::new(self.layers.clone(), defaults, image).map_err(|why| {
            Problem::new(
                Code::InvalidValue,
                format!("the result can't be a template: {why}"),
                "COPY some files first; join several RUN into one if there are too many layers",
            )
        })
    }

    /// The environment of a step.
    pub(crate) fn env(&self, args: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut env = args.clone();
        env.extend(self.defaults.env.clone());
        env
    }
}

/// Without `.`, `..` and empty names, as far as that is possible by name.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    format!("/{}", parts.join("/"))
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn wrong(what: String) -> Problem {
    Problem::new(Code::InvalidValue, what, "correct the step, then build again")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(actions: &[Action]) -> State {
        let mut state = State::new(Vec::new(), Defaults { command: vec!["bash".into()], ..Defaults::default() });
        for action in actions {
            state.apply(action).unwrap();
        }
        state
    }

    fn workdir(path: &str) -> Action {
        Action::Workdir { path: path.to_owned() }
    }

    #[test]
    fn directories_are_relative_to_the_one_before() {
        for (steps, expected) in [
            (vec!["/srv", "app"], "/srv/app"),
            (vec!["app"], "/app"),
            (vec!["/srv/app", "../x/./y"], "/srv/x/y"),
            (vec!["/", ".."], "/"),
        ] {
            let steps: Vec<Action> = steps.into_iter().map(workdir).collect();
            assert_eq!(state(&steps).defaults.cwd.unwrap().as_str(), expected);
        }
    }

    #[test]
    fn an_entry_point_drops_the_command_of_the_base_alone() {
        let entrypoint = Action::Entrypoint { command: Command::Exec(vec!["run".into()]) };
        let cmd = Action::Cmd { command: Command::Shell("x".into()) };
        assert_eq!(state(std::slice::from_ref(&entrypoint)).defaults.command, Vec::<String>::new());
        assert_eq!(state(&[cmd.clone(), entrypoint]).defaults.command, ["/bin/sh", "-c", "x"]);
        let shell = Action::Shell { words: vec!["/bin/ash".into(), "-ec".into()] };
        assert_eq!(state(&[shell, cmd]).defaults.command, ["/bin/ash", "-ec", "x"]);
    }

    #[test]
    fn a_variable_of_the_image_wins_over_an_argument_of_the_build() {
        let set = BTreeMap::from([("A".to_owned(), "image".to_owned())]);
        let args = BTreeMap::from([("A".to_owned(), "arg".to_owned()), ("B".to_owned(), "arg".to_owned())]);
        let env = state(&[Action::Env { set }]).env(&args);
        assert_eq!((env["A"].as_str(), env["B"].as_str()), ("image", "arg"));
    }
}
