//! Whole text files of the sandbox, up to a bound.

use crate::fault::Fault;
use crate::files::{FilePath, WriteOptions};
use crate::permit::Action;
use crate::runs::tools::sandbox::RunSandbox;

/// Maximum size of a file that can be edited, in bytes. Its history holds it as JSON.
pub(super) const TEXT_MAX: usize = 1 << 20;
/// Maximum size of a file that is read: an entry of the history may be longer than the text in it.
const READ_MAX: usize = 8 << 20;

/// The text; the inner error says for the model why it is none.
pub(super) async fn read_text(
    sandbox: &RunSandbox,
    action: Action,
    path: &FilePath,
) -> Result<Result<String, String>, Fault> {
    let files = sandbox.to_read(action).await?;
    let mut reading = files.read(path, 0, Some(READ_MAX as u64 + 1)).await?;
    let mut bytes = Vec::new();
    while let Some(some) = reading.next().await? {
        bytes.extend_from_slice(&some);
        if bytes.len() > READ_MAX {
            return Ok(Err(format!("the file has more than {READ_MAX} bytes")));
        }
    }
    let is_binary = bytes.contains(&0);
    Ok(String::from_utf8(bytes).ok().filter(|_| !is_binary).ok_or_else(|| "the file is not text".to_owned()))
}

pub(super) async fn write_text(sandbox: &RunSandbox, action: Action, path: &FilePath, text: &str) -> Result<(), Fault> {
    let files = sandbox.to_write(action).await?;
    let options = WriteOptions { mode: 0o644, parents: true, expected: Some(text.len() as u64) };
    let mut writing = files.write(path, options).await?;
    writing.data(text.as_bytes()).await?;
    writing.finish().await.map(drop)
}
