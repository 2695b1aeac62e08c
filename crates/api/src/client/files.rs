//! Files of a sandbox. Contents are streamed in both directions, so their size doesn't matter.

use hyper::Method;
use tokio::io::AsyncRead;

use super::body::{Body, Download};
use super::error::Error;
use super::events::FileWatch;
use super::sandboxes::SandboxHandle;
use crate::file::{
    FileEntry, FileList, FileQuery, ListQuery, MakeDirectory, Metadata, MoveFile, RemoveQuery, SignFile, SignedUrl,
    StatQuery, TreeReport, WatchQuery, WriteQuery, WriteReport,
};
use crate::route;

const BYTES: &str = "application/octet-stream";
const ARCHIVE: &str = "application/x-tar";

impl SandboxHandle {
    /// Reads a file.
    pub async fn read_file(&self, query: &FileQuery) -> Result<Download, Error> {
        Ok(self.call(Method::GET, route::FILES).query(query).answer().await?.into_download())
    }

    /// Reads part of a file, from one byte up to but excluding another; without an end, to the end of the file.
    pub async fn read_file_range(&self, query: &FileQuery, from: u64, to: Option<u64>) -> Result<Download, Error> {
        let last = to.map(|to| to.saturating_sub(1).to_string()).unwrap_or_default();
        let call = self.call(Method::GET, route::FILES).query(query).header("range", &format!("bytes={from}-{last}"));
        Ok(call.answer().await?.into_download())
    }

    /// Writes a file atomically. If a length is given, any other length is an error.
    pub async fn write_file(
        &self,
        query: &WriteQuery,
        reader: impl AsyncRead + Send + 'static,
        length: Option<u64>,
    ) -> Result<WriteReport, Error> {
        let call = self.call(Method::PUT, route::FILES).query(query);
        call.body(Body::streamed(reader, length), BYTES).value_whenever().await
    }

    /// Removes a file or directory.
    pub async fn remove_file(&self, query: &RemoveQuery) -> Result<(), Error> {
        self.call(Method::DELETE, route::FILES).query(query).done().await
    }

    /// Returns information about an entry.
    pub async fn stat_file(&self, query: &StatQuery) -> Result<FileEntry, Error> {
        self.call(Method::GET, route::FILES_STAT).query(query).value().await
    }

    /// Lists a directory.
    pub async fn list_files(&self, query: &ListQuery) -> Result<FileList, Error> {
        self.call(Method::GET, route::FILES_LIST).query(query).value().await
    }

    /// Creates a directory.
    pub async fn make_directory(&self, directory: &MakeDirectory) -> Result<(), Error> {
        self.call(Method::POST, route::FILES_MKDIR).json(directory).done().await
    }

    /// Renames an entry.
    pub async fn move_file(&self, change: &MoveFile) -> Result<(), Error> {
        self.call(Method::POST, route::FILES_MOVE).json(change).done().await
    }

    /// The metadata of a file.
    pub async fn file_metadata(&self, query: &FileQuery) -> Result<Metadata, Error> {
        self.call(Method::GET, route::FILES_METADATA).query(query).value().await
    }

    /// Replaces the metadata of a file.
    pub async fn set_file_metadata(&self, query: &FileQuery, metadata: &Metadata) -> Result<Metadata, Error> {
        self.call(Method::PUT, route::FILES_METADATA).query(query).json(metadata).value().await
    }

    /// Watches for changes.
    pub async fn watch_files(&self, query: &WatchQuery) -> Result<FileWatch, Error> {
        FileWatch::open(self, query).await
    }

    /// Downloads a directory tree as a tar archive.
    pub async fn download_tree(&self, query: &FileQuery) -> Result<Download, Error> {
        let call = self.call(Method::GET, route::FILES_TREE).query(query);
        Ok(call.accept(ARCHIVE).answer().await?.into_download())
    }

    /// Unpacks a tar archive, plain or gzipped, into a directory.
    pub async fn upload_tree(
        &self,
        query: &FileQuery,
        archive: impl AsyncRead + Send + 'static,
    ) -> Result<TreeReport, Error> {
        let call = self.call(Method::PUT, route::FILES_TREE).query(query);
        call.body(Body::streamed(archive, None), ARCHIVE).value_whenever().await
    }

    /// Creates a URL for one file that works without a key.
    pub async fn sign_file(&self, sign: &SignFile) -> Result<SignedUrl, Error> {
        self.call(Method::POST, route::FILES_SIGN).json(sign).value().await
    }
}
