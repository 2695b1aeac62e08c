//! Checks on the host: what an attempt left there, or how the runtime treats what it is given. Each is a name in the data.

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

/// Every check there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum HostCheck {
    /// What was written inside is on the host, as it was written.
    WorkspaceAsWritten,
    /// Nothing in the workspace changed.
    WorkspaceUnchanged,
    /// What was there is as it was, and what was absent is absent.
    ProtectedUnchanged,
    /// What was written to the system's directories is neither on the host nor in the next sandbox.
    WritesStayInside,
    /// No file has a set-id bit.
    NoSetidFiles,
    /// Odd names arrived byte for byte, and are told without control characters.
    NamesPreserved,
    /// Names that look alike are different files.
    NamesDistinct,
    /// A deep tree can be removed, and can be a workspace again.
    DeepTreeGoes,
    /// A sparse file takes no room.
    StaysSparse,
    /// A pipe or socket in the workspace doesn't hold up a later start.
    SpecialFilesDontBlock,
    /// The host's git runs nothing that was planted.
    GitRunsNothing,
    /// A working directory grants nothing.
    CwdDoesNotWiden,
    /// Links on the way to a workspace, and in place of one.
    LinkedWorkspaces,
    /// A workspace that is replaced by a link while a sandbox starts.
    RacingWorkspace,
    /// Links where the runtime would make something of its own.
    PlantedLinks,
    /// No name on the host can be guessed.
    NoPredictableNames,
    /// The mount table is what it was.
    MountTableClean,
    /// What would act on a terminal is filtered on its way there.
    EscapesNeutralised,
    /// A sandbox sees nothing of the one before.
    SecondRunIsFresh,
    /// Loader variables reach the program and no one else.
    HelpersUnaffected,
    /// A daemon writes no more once the result is there.
    HeartbeatStops,
    /// The runtime holds the sandbox by a pidfd.
    HeldByPidfd,
    /// Codes, signals and kills can be told apart.
    EndsDistinguishable,
    /// A flood of refusals is told of within bounds.
    DenialsBounded,
    /// A working directory behind a descriptor is refused.
    OddWorkingDirectories,
    /// A network mode that isn't there is refused.
    ProxiedRefused,
    /// Output is kept up to its limit.
    OutputBounded,
    /// Every kind of hang ends in time.
    HangsEnd,
    /// `doctor` tells of everything.
    CapabilitiesTold,
    /// What isn't supported is refused before anything starts.
    UnsupportedRefused,
    /// What can't be enforced is told of, and refused when it was asked for.
    NothingDowngraded,
    /// `doctor` exits as it says.
    DoctorAgrees,
    /// The runtime sleeps while a program does that had many calls refused.
    SupervisorRests,
    /// Denials have a code, a rule and a remedy, and events carry the boundary.
    DenialsExplain,
    /// The workspace itself is no repository to git.
    NoRepositoryAtTop,
    /// Nothing of a repository that was made inside acts on the host's git.
    MadeIsHeldBack,
    /// No link is left in a git directory.
    NoLinksInGit,
    /// A protected file with a second name is refused.
    SecondNamesRefused,
    /// What is protected is not applied.
    ProtectedNotApplied,
    /// What is kept is never more than what could be stored, and nothing of it is lost without a word.
    KeptWithinBounds,
    /// Changes are applied to the workspace they are of, or not at all.
    AppliedNowhereElse,
    /// Errors about a spec file show what would act on a terminal.
    SpecErrorsHarmless,
    /// A record that someone else may have written is not acted on.
    ForgedRecords,
    /// Two sandboxes on one workspace, by whatever names: neither's end lets go of what the other holds.
    HeldTogether,
    /// What a sandbox uses up per user is not the host's.
    HostCountersUntouched,
}

/// What a check has to look at.
pub(crate) struct Scene<'a> {
    pub(crate) bench: &'a Bench,
    pub(crate) case: &'a Case,
    /// The case's workspace on the host.
    pub(crate) workspace: PathBuf,
    /// The directory it is in, for more of the kind.
    pub(crate) directory: PathBuf,
    /// What was in the workspace before.
    pub(crate) before: BTreeMap<PathBuf, String>,
    /// What came of the attempt, if there was one.
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
            Self::ProxiedRefused => starts::proxied_refused(scene),
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
