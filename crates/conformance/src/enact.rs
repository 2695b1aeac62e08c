//! Runs one case and judges it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use saggar_domain::{
    Access, ByteSize, Draft, ExecStatus, FsMode, Sharing, Tier, Timestamp, User, VolumeMount, VolumeName,
};
use saggar_sandbox::{LOCAL_PROJECT, NewVolume, VolumeQuota, Volumes};
use serde::Deserialize;

use crate::after::{Before, events_in_order, indiscretions};
use crate::bench::{Bench, Ran};
use crate::case::Case;
use crate::check::Scene;
use crate::expect::{End, Expectation, Observation, ROOT_PREFIX};
use crate::fixture::{manifest, random_name};
use crate::outside::{Outside, Secrets};
use crate::removal::remove_tree;
use crate::report::{CaseResult, Verdict};
use crate::world::World;

pub(crate) fn enact(bench: &Bench, case: &Case, tier: Tier) -> CaseResult {
    let start = Instant::now();
    let mut record = Record::default();
    for user in &case.users {
        if let Err(error) = enact_as(bench, case, *user, case.expect.get(&tier), &mut record) {
            record.complaints.push(format!("the bench could not be set up: {error}"));
        }
    }
    let expectation = case.expect.get(&tier);
    let mut expected = BTreeMap::new();
    for observation in &record.observations {
        let accepted = match expectation {
            Some(expectation) => expectation.of(observation, bench.setting()),
            None => crate::expect::Accepted::held(),
        };
        if !accepted.accepts(observation) {
            record.complaints.push(format!("{}: observed {observation}, expected {accepted}", observation.member));
        }
        expected.insert(observation.member.clone(), accepted.to_string());
    }
    // An expectation for a member that was never tried would never be checked.
    let named = expectation.iter().flat_map(|expected| {
        expected
            .members
            .keys()
            .chain(expected.as_ordinary_user.keys())
            .chain(expected.on_image.keys())
            .chain(expected.as_ordinary_user_on_image.keys())
    });
    for member in named {
        let is_tried = record
            .observations
            .iter()
            .any(|seen| seen.member == *member || seen.member.strip_prefix(ROOT_PREFIX) == Some(member));
        if !is_tried {
            record.complaints.push(format!("{member}: expected, but not tried"));
        }
    }
    CaseResult {
        id: case.id.clone(),
        tier,
        verdict: record.verdict(case.documented.is_some()),
        observed: record.observations.iter().map(|seen| (seen.member.clone(), seen.to_string())).collect(),
        expected,
        ms: start.elapsed().as_millis() as u64,
        title: case.title.clone(),
        why: case.why.clone(),
        documented: case.documented.clone(),
        reasons: record.complaints,
    }
}

/// Observations, and complaints about them.
#[derive(Default)]
struct Record {
    observations: Vec<Observation>,
    complaints: Vec<String>,
}

impl Record {
    /// A documented gap that is closed on this host and for this user is an ordinary pass.
    fn verdict(&self, is_documented: bool) -> Verdict {
        let has_gap = self.observations.iter().any(|seen| seen.outcome.is_gap());
        match (self.complaints.is_empty(), is_documented && has_gap) {
            (false, _) => Verdict::Fail,
            (true, true) => Verdict::Documented,
            (true, false) => Verdict::Pass,
        }
    }
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
    let world = case.world.as_ref().map(|_| World::enter(bench)).transpose()?.flatten();
    let mut sandboxes = Vec::new();
    let mut ran = None;
    if let (Some(attempt), Some(expectation)) = (&case.attempt, expectation) {
        let secrets = Secrets { private: &bench.private, data: &bench.data_path, canary: &bench.canary };
        let filled_in = |text: &String| {
            let world = if world.is_some() { "world" } else { "alone" };
            outside.filled_in(&secrets, text).replace("{world}", world)
        };
        let arguments: Vec<String> = case.args.iter().map(filled_in).collect();
        let mut draft = case.sandbox.draft.clone();
        draft.user = Some(user);
        if case.sandbox.workspace.is_some() {
            draft.workspace = bench.draft(&place.workspace()).workspace;
        }
        if draft.fs.is_none() && draft.workspace.is_some() {
            draft.fs = Some(FsMode::WorkspaceWrite);
        }
        let volumes = BenchVolumes::make(bench, &mut draft)?;
        let this = bench.run(draft, bench.attempt(attempt, &arguments));
        volumes.remove(bench)?;
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
    if let (Some(world), Some(expected)) = (world, &case.world) {
        let seen = world.leave()?;
        if seen != *expected {
            record.complaints.push(format!("servers outside saw {seen:?}, expected {expected:?}"));
        }
    }
    drop(outside);
    record.complaints.extend(descriptors.leftovers(bench, &sandboxes));
    place.remove()
}

/// The volumes of a case, of the smallest size, with one file. Their names are random: workers share a data directory.
struct BenchVolumes(Vec<VolumeName>);

impl BenchVolumes {
    fn make(bench: &Bench, draft: &mut Draft) -> std::io::Result<Self> {
        let volumes = Volumes::new(&bench.data, LOCAL_PROJECT);
        let mut made = Self(Vec::new());
        for wanted in &mut draft.volumes {
            let name = format!("{}-{}", wanted.name, random_name()?);
            wanted.name = name.parse().map_err(std::io::Error::other)?;
            let new = NewVolume {
                name: wanted.name.clone(),
                size: ByteSize::mebibytes(16),
                sharing: Sharing::Exclusive,
                now: Timestamp::from(std::time::SystemTime::now()),
                quota: VolumeQuota::NONE,
            };
            volumes.create(&new).map_err(|problem| std::io::Error::other(problem.message))?;
            made.0.push(wanted.name.clone());
            let writable = VolumeMount { mode: Access::ReadWrite, ..wanted.clone() };
            let ran = bench.run(
                Draft { volumes: vec![writable], ..Draft::default() },
                ["/bin/sh", "-c", "echo kept > /volume/file"].map(|word| word.as_bytes().to_vec()).to_vec(),
            );
            if !ran.succeeded() {
                return Err(std::io::Error::other(format!("the volume can't be written: {}", ran.ending())));
            }
        }
        Ok(made)
    }

    fn remove(self, bench: &Bench) -> std::io::Result<()> {
        let volumes = Volumes::new(&bench.data, LOCAL_PROJECT);
        let remove = |name: &VolumeName| volumes.remove(&bench.data, name);
        self.0.iter().try_for_each(remove).map_err(|problem| std::io::Error::other(problem.message))
    }
}

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

/// One line of the attacker's output.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Member(Observation),
    Done { done: bool },
}

fn lines(output: &[u8]) -> impl Iterator<Item = Line> {
    output.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
}

/// Records the attacker's output. It is untrusted: malformed lines are skipped, and their members then missing.
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

/// Whether the attempt reported that it finished.
pub(crate) fn is_done(output: &[u8]) -> bool {
    lines(output).last().is_some_and(|line| matches!(line, Line::Done { done: true }))
}

/// The members an attempt reported, when it ran in another runtime.
pub(crate) fn members(output: &[u8]) -> Vec<Observation> {
    lines(output)
        .filter_map(|line| if let Line::Member(observation) = line { Some(observation) } else { None })
        .collect()
}

/// Cases with a deadline allow less than a second, plus some time to end. Taking longer than this means that the
/// deadline was not enforced.
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

/// Whether a path exists, whatever its kind.
pub(crate) fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_documented_and_was_not_stopped_is_called_documented() {
        let verdict = |is_kept: bool, complaints: &[&str], is_documented: bool| {
            let observations = vec![Observation::examined("other", true, ""), Observation::examined("it", is_kept, "")];
            let complaints = complaints.iter().map(|text| (*text).to_owned()).collect();
            Record { observations, complaints }.verdict(is_documented)
        };
        assert_eq!(verdict(false, &[], true), Verdict::Documented);
        assert_eq!(verdict(true, &[], true), Verdict::Pass);
        assert_eq!(verdict(false, &[], false), Verdict::Pass);
        assert_eq!(verdict(false, &["it: expected held"], true), Verdict::Fail);
    }
}
