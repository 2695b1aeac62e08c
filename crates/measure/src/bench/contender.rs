//! The contenders: the same program, bare and in each kind of sandbox, started as each one's documentation
//! recommends.
//!
//! A contender that can't run here is an [`Absence`] with the reason; it is never left out silently.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, bail, ensure};

use super::bundle::Bundle;
use super::options::Options;

/// The program that every contender runs.
pub const PROGRAM: &str = "/bin/true";

/// One way to run the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// Without a sandbox: the lower bound.
    Bare,
    /// Ours, printing only its version: the cost of starting the binary.
    Version,
    /// Ours, with everything enabled.
    Saggar,
    /// The lightest peer.
    Bubblewrap,
    /// The runtime of most containers.
    Runc,
}

impl Contender {
    /// In the order of the tables.
    pub const ALL: [Self; 5] = [Self::Bare, Self::Version, Self::Saggar, Self::Bubblewrap, Self::Runc];

    /// The column's heading.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Version => "saggar --version",
            Self::Saggar => "saggar",
            Self::Bubblewrap => "bubblewrap",
            Self::Runc => "runc",
        }
    }

    /// The measured command line, for people.
    pub fn command_line(self) -> &'static str {
        match self {
            Self::Bare => "/bin/true",
            Self::Version => "saggar --version",
            Self::Saggar => "saggar run -- /bin/true",
            Self::Bubblewrap => "bwrap --unshare-all --ro-bind / / --proc /proc --dev /dev /bin/true",
            Self::Runc => "runc run --bundle BUNDLE ID",
        }
    }
}

/// Starts a contender repeatedly.
#[derive(Debug)]
pub struct Launcher {
    pub contender: Contender,
    /// Number of runs per round.
    pub runs: usize,
    argv: Vec<OsString>,
}

impl Launcher {
    /// The command line is the same for each run, except for a unique name if the contender needs one.
    pub fn new(contender: Contender, runs: usize, argv: Vec<OsString>) -> Self {
        Self { contender, runs, argv }
    }

    /// The command of one run. `serial` must be unique.
    pub fn command(&self, serial: usize) -> Command {
        let mut command = Command::new(&self.argv[0]);
        command.args(&self.argv[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if self.contender == Contender::Runc {
            command.arg(format!("saggar-bench-{}-{serial}", std::process::id()));
        }
        command
    }

    /// Runs once, untimed: warms the caches and shows whether it works here.
    fn try_out(&self) -> Result<()> {
        let output = self.command(usize::MAX).stderr(Stdio::piped()).output()?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        let first_line = complaint.lines().find(|line| !line.trim().is_empty()).unwrap_or("without a word");
        ensure!(output.status.success(), "ended with {}: {first_line}", output.status);
        Ok(())
    }
}

/// A contender that is not measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    pub contender: Contender,
    /// The reason, and what to do about it.
    pub reason: String,
}

#[derive(Debug)]
pub struct Field {
    /// Contenders that run, in the order of the tables.
    pub launchers: Vec<Launcher>,
    /// Contenders that don't.
    pub absences: Vec<Absence>,
    /// Versions of the peers.
    pub versions: Vec<String>,
}

impl Field {
    /// Finds the contenders and tries each. Their files go to `workplace`. The bare program and ours must run.
    pub fn gather(saggar: &Path, options: &Options, workplace: &Path) -> Result<Self> {
        let mut field = Self { launchers: Vec::new(), absences: Vec::new(), versions: Vec::new() };
        for contender in Contender::ALL {
            match launcher(contender, saggar, options, workplace) {
                Ok((launcher, version)) => {
                    field.launchers.push(launcher);
                    field.versions.extend(version);
                }
                Err(error) if matches!(contender, Contender::Bare | Contender::Version | Contender::Saggar) => {
                    bail!("{} does not run: {error:#}", contender.command_line());
                }
                Err(error) => {
                    let absence = Absence { contender, reason: format!("{error:#}") };
                    eprintln!("bench: {} is NOT measured: {}", contender.name(), absence.reason);
                    field.absences.push(absence);
                }
            }
        }
        Ok(field)
    }
}

fn launcher(
    contender: Contender,
    saggar: &Path,
    options: &Options,
    workplace: &Path,
) -> Result<(Launcher, Option<String>)> {
    let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
    let (argv, version) = match contender {
        Contender::Bare => (words(&[PROGRAM]), None),
        Contender::Version => ([vec![saggar.into()], words(&["--version"])].concat(), None),
        Contender::Saggar => ([vec![saggar.into()], words(&["run", "--", PROGRAM])].concat(), None),
        Contender::Bubblewrap => {
            let program = find("bwrap", "bubblewrap")?;
            let version = first_line(&program)?;
            let arguments = ["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", PROGRAM];
            ([vec![program.into()], words(&arguments)].concat(), Some(version))
        }
        Contender::Runc => {
            let program = find("runc", "runc")?;
            let version = first_line(&program)?;
            let bundle = Bundle::make(&program, &workplace.join("bundle"))?;
            (vec![program.into(), "run".into(), "--bundle".into(), bundle.path().into()], Some(version))
        }
    };
    let runs = if contender == Contender::Runc { options.runc_runs } else { options.runs };
    let launcher = Launcher::new(contender, runs, argv);
    launcher.try_out()?;
    Ok((launcher, version))
}

/// Also searches root's directories, which are not in an ordinary user's PATH.
fn find(name: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
    let mut candidates = places.map(|place| place.join(name));
    match candidates.find(|candidate| candidate.is_file()) {
        Some(found) => Ok(found),
        None => bail!("{name} is not installed (on Debian: apt-get install {package}, or make setup-bench)"),
    }
}

fn first_line(program: &Path) -> Result<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or("of unknown version").replace(" version ", " ").trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contender_that_is_not_there_says_what_to_install() {
        let error = find("no-such-sandbox", "no-such-package").unwrap_err().to_string();
        assert!(error.contains("not installed") && error.contains("apt-get install no-such-package"), "{error}");
    }

    #[test]
    fn only_a_container_gets_a_name_and_each_run_another() {
        let command = |contender, serial| {
            let launcher = Launcher::new(contender, 1, vec!["program".into(), "run".into()]);
            format!("{:?}", launcher.command(serial))
        };
        assert_eq!(command(Contender::Bubblewrap, 1), command(Contender::Bubblewrap, 2));
        assert_ne!(command(Contender::Runc, 1), command(Contender::Runc, 2));
    }

    #[test]
    fn a_contender_that_fails_is_told_with_its_own_words() {
        let argv = ["/bin/sh", "-c", "echo no such namespace >&2; exit 3"].map(OsString::from).to_vec();
        let launcher = Launcher::new(Contender::Bubblewrap, 1, argv);
        let error = launcher.try_out().unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("no such namespace"), "{error}");
    }
}
