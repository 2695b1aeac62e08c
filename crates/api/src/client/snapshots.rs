//! Snapshots of a project, and forks of its sandboxes.

use hyper::Method;
use saggar_domain::template::ContentDigest;
use saggar_domain::{SandboxId, SnapshotId};
use tokio::io::AsyncRead;

use super::body::{Body, Download};
use super::error::Error;
use super::send::Client;
use crate::sandbox::Sandbox;
use crate::snapshot::{
    CreateSnapshot, DiffQuery, ForkSandbox, ForkedSandboxes, ImportSnapshot, ListSnapshots, RemovedSnapshot,
    RollBackSandbox, Snapshot, SnapshotDiff, SnapshotList,
};
use crate::{read, route};

const ARCHIVE: &str = "application/x-tar";

impl Client {
    /// Takes a snapshot of a sandbox, whose programs go on.
    pub async fn take_snapshot(&self, sandbox: &SandboxId, snapshot: &CreateSnapshot) -> Result<Snapshot, Error> {
        self.post(&route::SANDBOX_SNAPSHOTS.replace("{id}", sandbox.as_str())).json(snapshot).value().await
    }

    /// Snapshots of our project, oldest first.
    pub async fn list_snapshots(&self, query: &ListSnapshots) -> Result<SnapshotList, Error> {
        self.get(route::SNAPSHOTS).query(query).value().await
    }

    /// One snapshot.
    pub async fn snapshot(&self, id: &SnapshotId) -> Result<Snapshot, Error> {
        self.get(&path(id)).value().await
    }

    /// Removes a snapshot. What sandboxes use of it stays for them.
    pub async fn remove_snapshot(&self, id: &SnapshotId) -> Result<RemovedSnapshot, Error> {
        self.request(Method::DELETE, &path(id)).value().await
    }

    /// What changed from one snapshot to another.
    pub async fn diff_snapshots(&self, from: &SnapshotId, to: &SnapshotId) -> Result<SnapshotDiff, Error> {
        let query = DiffQuery { from: from.clone() };
        self.get(&route::SNAPSHOT_DIFF.replace("{snapshot}", to.as_str())).query(&query).value().await
    }

    /// Downloads a snapshot as one file, with its digest.
    pub async fn export_snapshot(&self, id: &SnapshotId) -> Result<(ContentDigest, Download), Error> {
        let call = self.get(&route::SNAPSHOT_ARCHIVE.replace("{snapshot}", id.as_str()));
        let answer = call.accept(ARCHIVE).answer().await?;
        let digest = answer.tag().and_then(ContentDigest::parse);
        let digest = digest.ok_or_else(|| Error::Answer("a snapshot without a digest".to_owned()))?;
        Ok((digest, answer.into_download()))
    }

    /// Sends a file that a snapshot was exported to.
    pub async fn import_snapshot(
        &self,
        query: &ImportSnapshot,
        file: impl AsyncRead + Send + 'static,
        length: Option<u64>,
    ) -> Result<Snapshot, Error> {
        let path = format!("{}?{}", route::SNAPSHOT_IMPORT, read::to_query(query));
        self.request(Method::POST, &path).body(Body::streamed(file, length), ARCHIVE).value_whenever().await
    }

    /// Takes a sandbox back to a snapshot. Its programs are ended.
    pub async fn roll_back_sandbox(&self, sandbox: &SandboxId, snapshot: &SnapshotId) -> Result<Sandbox, Error> {
        let asked = RollBackSandbox { snapshot: snapshot.clone() };
        self.post(&route::SANDBOX_ROLLBACK.replace("{id}", sandbox.as_str())).json(&asked).value().await
    }

    /// Makes sandboxes with the files that a sandbox has now.
    pub async fn fork_sandbox(&self, sandbox: &SandboxId, fork: &ForkSandbox) -> Result<ForkedSandboxes, Error> {
        self.post(&route::SANDBOX_FORK.replace("{id}", sandbox.as_str())).json(fork).value().await
    }
}

fn path(id: &SnapshotId) -> String {
    route::SNAPSHOT.replace("{snapshot}", id.as_str())
}
