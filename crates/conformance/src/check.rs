//! Checks on the host: what an attempt left there, or how the runtime treats its input. The data refers to each by
//! name.

mod ends;
mod git;
mod kept;
mod records;
mod starts;
mod together;
mod told;
mod workspace;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::bench::{Bench, Ran};
use crate::case::Case;
use crate::expect::Observation;

pub(crate) use starts::race;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum HostCheck {
    /// Files written inside are on the host unchanged.
    WorkspaceAsWritten,
    /// Nothing in the workspace changed.
    WorkspaceUnchanged,
    /// Existing files are unchanged, and absent ones are still absent.
    ProtectedUnchanged,
    /// Files written to system directories are neither on the host nor in the next sandbox.
    WritesStayInside,
    /// No file has a set-id bit.
    NoSetidFiles,
    /// Unusual names arrived byte for byte, and are reported without control characters.
    NamesPreserved,
    /// Similar names are different files.
    NamesDistinct,
    /// A deep tree can be removed, and can be a workspace again.
    DeepTreeGoes,
    /// A sparse file takes no disk space.
    StaysSparse,
    /// A pipe or socket in the workspace doesn't block a later start.
    SpecialFilesDontBlock,
    /// The host's git runs nothing that was planted.
    GitRunsNothing,
    /// A working directory grants no access.
    CwdDoesNotWiden,
    /// Links on the way to a workspace, and in its place.
    LinkedWorkspaces,
    /// A workspace that is replaced by a link while a sandbox starts.
    RacingWorkspace,
    /// Links where the runtime would create files of its own.
    PlantedLinks,
    /// No name on the host is predictable.
    NoPredictableNames,
    /// The mount table is unchanged.
    MountTableClean,
    /// Sequences that would act on a terminal are filtered out.
    EscapesNeutralised,
    /// A sandbox sees no traces of the previous one.
    SecondRunIsFresh,
    /// Loader variables affect the program only.
    HelpersUnaffected,
    /// A daemon no longer writes once the result is available.
    HeartbeatStops,
    /// The runtime refers to the sandbox's PID 1 by a pidfd.
    HeldByPidfd,
    /// Codes, signals and kills can be told apart.
    EndsDistinguishable,
    /// The report of a flood of refusals is bounded.
    DenialsBounded,
    /// A working directory behind a descriptor is refused.
    OddWorkingDirectories,
    /// An unavailable network mode is refused.
    ProxiedOrNothing,
    /// Output is captured up to its limit.
    OutputBounded,
    /// Every kind of hang ends in time.
    HangsEnd,
    /// `doctor` reports everything.
    CapabilitiesTold,
    /// Unsupported requests are refused before anything starts.
    UnsupportedRefused,
    /// Unenforceable limits are reported, and refused if they were requested.
    NothingDowngraded,
    /// The exit status of `doctor` matches its report.
    DoctorAgrees,
    /// The runtime sleeps while a program that had many calls refused is asleep.
    SupervisorRests,
    /// Denials have a code, a rule and a remedy, and events carry the policy hash.
    DenialsExplain,
    /// git doesn't accept the workspace itself as a repository.
    NoRepositoryAtTop,
    /// Nothing in a repository created inside acts on the host's git.
    MadeIsHeldBack,
    /// No link is left in a git directory.
    NoLinksInGit,
    /// A protected file with a second hard link is refused.
    SecondNamesRefused,
    /// Protected paths are not applied.
    ProtectedNotApplied,
    /// Kept changes never exceed the storage limit, and no loss goes unreported.
    KeptWithinBounds,
    /// Changes are applied to their own workspace or not at all.
    AppliedNowhereElse,
    /// Errors about a spec file show control characters visibly.
    SpecErrorsHarmless,
    /// A record that another user may have written is ignored.
    ForgedRecords,
    /// Two sandboxes on one workspace, under any names: the end of one doesn't release the other's protection.
    HeldTogether,
    /// A sandbox doesn't use up the host's per-user counters.
    HostCountersUntouched,
}

/// The input of a check.
pub(crate) struct Scene<'a> {
    pub(crate) bench: &'a Bench,
    pub(crate) case: &'a Case,
    pub(crate) workspace: PathBuf,
    /// The directory that contains the workspace.
    pub(crate) directory: PathBuf,
    /// Contents of the workspace before the attempt.
    pub(crate) before: BTreeMap<PathBuf, String>,
    /// The result of the attempt, if there was one.
    pub(crate) ran: Option<Ran>,
}

impl HostCheck {
    pub(crate) fn examine(self, scene: &Scene<'_>) -> Vec<Observation> {
        match self {
            Self::WorkspaceAsWritten => workspace::as_written(scene),
            Self::WorkspaceUnchanged => workspace::unchanged(scene),
            Self::ProtectedUnchanged => workspace::protected_unchanged(scene),
            Self::WritesStayInside => ends::writes_stay_inside(scene),
            Self::NoSetidFiles => workspace::no_setid_files(scene),
            Self::NamesPreserved => workspace::names_preserved(scene),
            Self::NamesDistinct => workspace::names_distinct(scene),
            Self::DeepTreeGoes => workspace::deep_tree_goes(scene),
            Self::StaysSparse => workspace::stays_sparse(scene),
            Self::SpecialFilesDontBlock => workspace::special_files_dont_block(scene),
            Self::GitRunsNothing => workspace::git_runs_nothing(scene),
            Self::CwdDoesNotWiden => starts::cwd_does_not_widen(scene),
            Self::LinkedWorkspaces => starts::linked_workspaces(scene),
            Self::RacingWorkspace => starts::racing_workspace(scene),
            Self::PlantedLinks => starts::planted_links(scene),
            Self::NoPredictableNames => starts::no_predictable_names(scene),
            Self::OddWorkingDirectories => starts::odd_working_directories(scene),
            Self::ProxiedOrNothing => starts::proxied_or_nothing(scene),
            Self::UnsupportedRefused => starts::unsupported_refused(scene),
            Self::NothingDowngraded => starts::nothing_downgraded(scene),
            Self::MountTableClean => ends::mount_table_clean(scene),
            Self::SecondRunIsFresh => ends::second_run_is_fresh(scene),
            Self::HeartbeatStops => ends::heartbeat_stops(scene),
            Self::HeldByPidfd => ends::held_by_pidfd(scene),
            Self::EndsDistinguishable => ends::distinguishable(scene),
            Self::OutputBounded => ends::output_bounded(scene),
            Self::HangsEnd => ends::hangs_end(scene),
            Self::SupervisorRests => ends::supervisor_rests(scene),
            Self::EscapesNeutralised => told::escapes_neutralised(scene),
            Self::HelpersUnaffected => told::helpers_unaffected(scene),
            Self::DenialsBounded => told::denials_bounded(scene),
            Self::CapabilitiesTold => told::capabilities_told(scene),
            Self::DoctorAgrees => told::doctor_agrees(scene),
            Self::DenialsExplain => told::denials_explain(scene),
            Self::NoRepositoryAtTop => git::no_repository_at_top(scene),
            Self::MadeIsHeldBack => git::made_is_held_back(scene),
            Self::NoLinksInGit => git::no_links_in_git(scene),
            Self::SecondNamesRefused => git::second_names_refused(scene),
            Self::ProtectedNotApplied => kept::protected_not_applied(scene),
            Self::KeptWithinBounds => kept::within_bounds(scene),
            Self::AppliedNowhereElse => kept::applied_nowhere_else(scene),
            Self::SpecErrorsHarmless => told::spec_errors_harmless(scene),
            Self::ForgedRecords => records::forged_records(scene),
            Self::HeldTogether => together::held_together(scene),
            Self::HostCountersUntouched => together::host_counters_untouched(scene),
        }
    }
}
