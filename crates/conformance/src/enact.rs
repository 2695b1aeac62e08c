//! One case, from its data to its verdict.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::FdFlags;
use saggar_domain::{ExecStatus, FsMode, Tier, User};
use serde::Deserialize;

use crate::after::{Before, events_in_order, indiscretions};
use crate::bench::{Bench, Ran};
use crate::case::Case;
use crate::check::Scene;
use crate::expect::{End, Expectation, Observation, ROOT_PREFIX};
use crate::fixture::{manifest, random_name};
use crate::removal::remove_tree;
use crate::report::{CaseResult, Verdict};

/// Enacts a case and judges it.
pub(crate) fn enact(bench: &Bench, case: &Case, tier: Tier) -> CaseResult {
    let start = Instant::now();
    let mut record = Record::default();
    for user in &case.users {
        if let Err(error) = enact_as(bench, case, *user, case.expect.get(&tier), &mut record) {
            record.complaints.push(format!("the bench failed: {error}"));
        }
    }
    let expectation = case.expect.get(&tier);
    let mut expected = BTreeMap::new();
    for observation in &record.observations {
        let accepted = match expectation {
            Some(expectation) => expectation.of(observation, bench.is_root),
            None => crate::expect::Accepted::held(),
        };
        if !accepted.accepts(observation) {
            record.complaints.push(format!("{}: observed {observation}, expected {accepted}", observation.member));
        }
        expected.insert(observation.member.clone(), accepted.to_string());
    }
    // An expectation of a member that nobody tried would never bite.
    let named = expectation
        .iter()
        .flat_map(|expectation| expectation.members.keys().chain(expectation.as_ordinary_user.keys()));
    for member in named {
        let is_tried = record
            .observations
            .iter()
            .any(|seen| seen.member == *member || seen.member.strip_prefix(ROOT_PREFIX) == Some(member));
        if !is_tried {
            record.complaints.push(format!("{member}: expected, and not tried"));
        }
    }
    CaseResult {
        id: case.id.clone(),
        tier,
        verdict: if record.complaints.is_empty() { Verdict::Pass } else { Verdict::Fail },
        observed: record.observations.iter().map(|seen| (seen.member.clone(), seen.to_string())).collect(),
        expected,
        ms: start.elapsed().as_millis() as u64,
        title: case.title.clone(),
        why: case.why.clone(),
        documented: case.documented.clone(),
        reasons: record.complaints,
    }
}

/// What was seen, and what was wrong with it.
#[derive(Default)]
struct Record {
    observations: Vec<Observation>,
    complaints: Vec<String>,
}

fn enact_as(
    bench: &Bench,
    case: &Case,
    user: User,
    expectation: Option<&Expectation>,
    record: &mut Record,
) -> std::io::Result<()> {
    let place = Place::new(bench, case)?;
    let before = manifest(&place.workspace());
    let descriptors = Before::look();
    let outside = Outside::new(case.leaky)?;
    let mut sandboxes = Vec::new();
    let mut ran = None;
    if let (Some(attempt), Some(expectation)) = (&case.attempt, expectation) {
        let arguments: Vec<String> = case.args.iter().map(|text| outside.filled_in(bench, text)).collect();
        let mut draft = case.sandbox.draft.clone();
        draft.user = Some(user);
        if case.sandbox.workspace.is_some() {
            draft.workspace = bench.draft(&place.workspace()).workspace;
        }
        if draft.fs.is_none() && draft.workspace.is_some() {
            draft.fs = Some(FsMode::WorkspaceWrite);
        }
        let this = bench.run(draft, bench.attempt(attempt, &arguments));
        sandboxes.extend(this.sandbox.as_ref().map(ToString::to_string));
        heard(&this, user, record);
        record.complaints.extend(ends_as_expected(&this, expectation));
        record.complaints.extend(events_in_order(&this));
        record.complaints.extend(indiscretions(bench, &this));
        for rule in &expectation.denials {
            if !this.denied_by().contains(&rule.as_str()) {
                record.complaints.push(format!("no denial names the rule {rule}"));
            }
        }
        ran = Some(this);
    }
    if let Some(check) = case.check {
        let scene =
            Scene { bench, case, workspace: place.workspace(), directory: place.directory.clone(), before, ran };
        record.observations.extend(check.examine(&scene));
    }
    drop(outside);
    record.complaints.extend(descriptors.leftovers(bench, &sandboxes));
    place.remove()
}

/// A directory for one case.
struct Place {
    directory: PathBuf,
}

impl Place {
    fn new(bench: &Bench, case: &Case) -> std::io::Result<Self> {
        let directory = bench.directory.join(format!("case-{}", random_name()?));
        fs::create_dir(&directory)?;
        let place = Self { directory };
        if let Some(fixture) = case.sandbox.workspace {
            fixture.make(&place.workspace())?;
        }
        Ok(place)
    }

    fn workspace(&self) -> PathBuf {
        self.directory.join("workspace")
    }

    fn remove(self) -> std::io::Result<()> {
        remove_tree(&self.directory)
    }
}

/// What is outside for the attacker to reach: listeners, and descriptors that someone forgot to close.
struct Outside {
    abstract_name: String,
    _abstract: UnixListener,
    tcp: TcpListener,
    tcp6: Option<TcpListener>,
    _leaks: Vec<OwnedFd>,
}

impl Outside {
    fn new(is_leaky: bool) -> std::io::Result<Self> {
        let abstract_name = format!("saggar-probe-{}", random_name()?);
        let address = SocketAddr::from_abstract_name(&abstract_name)?;
        Ok(Self {
            abstract_name,
            _abstract: UnixListener::bind_addr(&address)?,
            tcp: TcpListener::bind("127.0.0.1:0")?,
            // A host without version 6 has none to be reached.
            tcp6: TcpListener::bind("[::1]:0").ok(),
            _leaks: if is_leaky { leaks()? } else { Vec::new() },
        })
    }

    /// An argument with its placeholders filled in.
    fn filled_in(&self, bench: &Bench, text: &str) -> String {
        let port = |listener: &TcpListener| listener.local_addr().map_or(1, |address| address.port());
        let token = bench.private.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let pairs = [
            ("{abstract}", self.abstract_name.clone()),
            ("{listener}", format!("127.0.0.1:{}", port(&self.tcp))),
            ("{listener6}", format!("[::1]:{}", self.tcp6.as_ref().map_or(1, port))),
            ("{data}", bench.data_path.display().to_string()),
            ("{token}", token),
            ("{namespaces}", namespaces()),
            ("{secret-reversed}", bench.canary.chars().rev().collect()),
        ];
        pairs.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }
}

/// The runtime's own, as the kernel names them.
fn namespaces() -> String {
    let names = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
    let links = names.iter().filter_map(|name| fs::read_link(format!("/proc/self/ns/{name}")).ok());
    links.map(|link| link.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// One of each kind, all of them to be inherited by whoever is executed.
fn leaks() -> std::io::Result<Vec<OwnedFd>> {
    let directory = |path: &str| fs::File::open(path).map(OwnedFd::from);
    let leaks = vec![
        directory("/")?,
        directory("/etc")?,
        directory("/proc/self/ns/net")?,
        rustix::event::eventfd(0, rustix::event::EventfdFlags::empty())?,
        rustix::event::epoll::create(rustix::event::epoll::CreateFlags::empty())?,
        rustix::fs::memfd_create("leak", rustix::fs::MemfdFlags::empty())?,
        rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty())?,
        OwnedFd::from(std::os::unix::net::UnixStream::pair()?.0),
    ];
    for leak in &leaks {
        rustix::io::fcntl_setfd(leak, FdFlags::empty())?;
    }
    Ok(leaks)
}

/// A line of the attacker's.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Member(Observation),
    Done { done: bool },
}

fn lines(output: &[u8]) -> impl Iterator<Item = Line> {
    output.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
}

/// Takes down what the attacker said. It is untrusted: what isn't a line of its language is left out, and then missing.
fn heard(ran: &Ran, user: User, record: &mut Record) {
    for line in lines(&ran.report.output.stdout) {
        if let Line::Member(mut observation) = line {
            if user == User::Root {
                observation.member.insert_str(0, ROOT_PREFIX);
            }
            record.observations.push(observation);
        }
    }
}

/// Whether a finished attempt said that it was.
pub(crate) fn is_done(output: &[u8]) -> bool {
    lines(output).last().is_some_and(|line| matches!(line, Line::Done { done: true }))
}

/// The members an attempt reported, for those who run it elsewhere.
pub(crate) fn members(output: &[u8]) -> Vec<Observation> {
    lines(output)
        .filter_map(|line| if let Line::Member(observation) = line { Some(observation) } else { None })
        .collect()
}

/// Cases that run out of time have less than a second, and a little to end by themselves: who needs longer kept no deadline.
const TIMED_OUT_WITHIN: Duration = Duration::from_secs(5);

fn ends_as_expected(ran: &Ran, expectation: &Expectation) -> Option<String> {
    let is_met = expectation.end.iter().any(|end| match end {
        End::Done => ran.succeeded() && is_done(&ran.report.output.stdout),
        End::TimedOut => ran.report.status == ExecStatus::TimedOut && ran.elapsed < TIMED_OUT_WITHIN,
        End::OutOfMemory => ran.report.status == ExecStatus::OutOfMemory,
    });
    if is_met {
        return None;
    }
    let said = String::from_utf8_lossy(&ran.report.output.stderr);
    let said = said.lines().next().map(|line| format!(": {}", line.escape_debug())).unwrap_or_default();
    let after_ms = ran.elapsed.as_millis();
    Some(format!("the attempt ended as {} after {after_ms} ms, not as {:?}{said}", ran.ending(), expectation.end))
}

/// Whether a path is there, whatever it is.
pub(crate) fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
