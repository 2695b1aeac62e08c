//! The command lines of `saggar snapshot`, as typed values.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use saggar_api::{Label, TemplateName};
use saggar_domain::template::ContentDigest;
use saggar_domain::{SandboxId, SnapshotId, Timeout};
use saggar_front::template_name;

use super::arguments::{STATUS, ServerArguments, sandbox_id};

/// Keep the files of sandboxes as snapshots, and start and fork others from them
#[derive(Args, Debug)]
#[command(after_help = STATUS)]
pub(crate) struct SnapshotArguments {
    #[command(subcommand)]
    pub(crate) command: SnapshotCommand,
    #[command(flatten)]
    pub(crate) server: ServerArguments,
}

#[derive(Subcommand, Debug)]
pub(crate) enum SnapshotCommand {
    /// Take a snapshot of a sandbox and print its id; its programs go on
    #[command(
        after_help = "It has the files of the sandbox's root, its home and /tmp among them; neither workspaces, volumes, memory nor processes.\n\nExamples:\n  snap=$(saggar snapshot create $id)\n  saggar snapshot create $id --name before-migration --label team=red --ttl 7d\n  saggar sandbox create --snapshot $snap"
    )]
    Create {
        /// The sandbox's id
        #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
        sandbox: SandboxId,
        /// Another name that sandboxes can be started by; it moves from an earlier snapshot that has it
        #[arg(long, value_name = "NAME", value_parser = template_name)]
        name: Option<TemplateName>,
        /// Label for finding the snapshot again (repeatable)
        #[arg(short, long = "label", value_name = "K=V", value_parser = Label::parse)]
        labels: Vec<Label>,
        /// Remove it after this long [default: never]
        #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
        ttl: Option<Timeout>,
    },
    /// List snapshots, oldest first
    #[command(visible_alias = "ls")]
    List {
        /// Only those of this sandbox
        #[arg(long, value_name = "SANDBOX", value_parser = sandbox_id)]
        sandbox: Option<SandboxId>,
        /// Only those with this label (repeatable; all must match)
        #[arg(short, long = "label", value_name = "K=V", value_parser = Label::parse)]
        labels: Vec<Label>,
    },
    /// Show which snapshot came from which
    Tree,
    /// Show what changed from one snapshot to another: added (A), changed (M) and removed (D) paths
    Diff {
        /// The snapshot that counts as before
        #[arg(value_name = "FROM", value_parser = snapshot_id)]
        from: SnapshotId,
        /// The snapshot that counts as after
        #[arg(value_name = "TO", value_parser = snapshot_id)]
        to: SnapshotId,
        /// Show the changed lines of small texts too
        #[arg(short, long)]
        patch: bool,
    },
    /// Take a sandbox back to a snapshot: its programs are ended, and it keeps its id
    Rollback {
        /// The sandbox's id
        #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
        sandbox: SandboxId,
        /// The snapshot whose files it gets
        #[arg(value_name = "SNAPSHOT", value_parser = snapshot_id)]
        snapshot: SnapshotId,
    },
    /// Make sandboxes with the files that a sandbox has now, and print their ids; they start without its programs
    Fork {
        /// The sandbox's id
        #[arg(value_name = "SANDBOX", value_parser = sandbox_id)]
        sandbox: SandboxId,
        /// How many
        #[arg(short = 'n', long, value_name = "N", default_value_t = 1)]
        count: u32,
        /// Lifetime of each [default: the server's]
        #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
        ttl: Option<Timeout>,
    },
    /// Write a snapshot to standard output as one file, and its digest to standard error
    #[command(
        after_help = "The file is an archive of an OCI image layout, which other programs read too.\n\nExamples:\n  saggar snapshot export $snap > snapshot.tar\n  saggar snapshot import snapshot.tar"
    )]
    Export {
        /// The snapshot's id
        #[arg(value_name = "SNAPSHOT", value_parser = snapshot_id)]
        snapshot: SnapshotId,
    },
    /// Make a snapshot of an exported file and print its new id
    Import {
        /// The file; `-` for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The digest that the export printed; with another one it is refused
        #[arg(long, value_name = "DIGEST", value_parser = digest)]
        digest: Option<ContentDigest>,
        /// Another name that sandboxes can be started by; it moves from an earlier snapshot that has it
        #[arg(long, value_name = "NAME", value_parser = template_name)]
        name: Option<TemplateName>,
        /// Label for finding it again (repeatable) [default: those that it was exported with]
        #[arg(short, long = "label", value_name = "K=V", value_parser = Label::parse)]
        labels: Vec<Label>,
        /// Remove it after this long [default: never]
        #[arg(long, value_name = "TIME", value_parser = Timeout::parse)]
        ttl: Option<Timeout>,
    },
    /// Remove snapshots; sandboxes that use their files keep them
    Rm {
        /// Snapshot ids
        #[arg(value_name = "SNAPSHOT", required = true, value_parser = snapshot_id)]
        snapshots: Vec<SnapshotId>,
    },
}

pub(crate) fn snapshot_id(text: &str) -> Result<SnapshotId, String> {
    SnapshotId::parse(text).ok_or_else(|| {
        "not an id of the form snap_…; `saggar snapshot list` shows them. A sandbox starts from a name with --template NAME"
            .to_owned()
    })
}

fn digest(text: &str) -> Result<ContentDigest, String> {
    ContentDigest::parse(text)
        .ok_or_else(|| "not a digest of the form sha256:…; `saggar snapshot export` prints it".to_owned())
}
