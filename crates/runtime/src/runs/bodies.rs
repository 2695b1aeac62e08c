//! Long bodies: stored as blobs, before the entry that names them.

use saggar_engine::{BODY_INLINE_MAX, Body, BuiltIn, ModelReply, Report, ToolCall, ToolResult};
use saggar_store::{BlobHash, Error};

use super::journal::Journal;
use super::tools::Tool;

/// Stores a long body as a blob; a short one stays as it is.
pub async fn shelve<J: Journal>(journal: &J, body: Body) -> Result<Body, Error> {
    match body {
        Body::Text(text) if text.len() > BODY_INLINE_MAX => {
            let length = text.len() as u64;
            let hash = journal.put_blob(text.into_bytes()).await?;
            Ok(Body::Blob { hash: hash.to_hex(), length })
        }
        other => Ok(other),
    }
}

/// The text of a body, wherever it is stored.
pub async fn fetch<J: Journal>(journal: &J, body: &Body) -> Result<String, Error> {
    let Body::Blob { hash, .. } = body else { return Ok(body.as_text().unwrap_or_default().to_owned()) };
    let damaged = |what: &str| Error::Corrupt { what: what.to_owned() };
    let hash = BlobHash::parse(hash).ok_or_else(|| damaged("an entry has an invalid blob hash"))?;
    let bytes = journal.blob(hash).await?.ok_or_else(|| damaged("an entry names a missing blob"))?;
    String::from_utf8(bytes).map_err(|_| damaged("a blob is not valid text"))
}

/// Checks the arguments of a call, and stores them as a blob if they are long. Arguments that the engine has to read
/// are parsed before.
async fn shelve_call<J: Journal>(journal: &J, call: &mut ToolCall) -> Result<(), Error> {
    if let (Body::Text(text), Some(tool)) = (&call.arguments, Tool::find(&call.tool)) {
        call.invalid = tool.check(text).err();
    }
    if let Body::Text(text) = &call.arguments
        && call.arguments.is_too_long()
        && let Some(Ok(read)) = BuiltIn::parse(&call.tool, text)
    {
        let read = match read.body().cloned() {
            Some(body) => read.with_body(shelve(journal, body).await?),
            None => read,
        };
        call.read = Some(Box::new(read));
    }
    call.arguments = shelve(journal, call.arguments.clone()).await?;
    Ok(())
}

/// The same report with its long bodies stored as blobs.
pub(super) async fn shelve_report<J: Journal>(journal: &J, report: Report) -> Result<Report, Error> {
    Ok(match report {
        Report::Replied { reply, usage } => {
            let mut calls = reply.calls;
            for call in &mut calls {
                shelve_call(journal, call).await?;
            }
            let text = shelve(journal, reply.text).await?;
            Report::Replied { reply: ModelReply { text, calls }, usage }
        }
        Report::Returned { result: ToolResult { content, is_error, network }, snapshot } => {
            let content = shelve(journal, content).await?;
            Report::Returned { result: ToolResult { content, is_error, network }, snapshot }
        }
        other @ (Report::Failed { .. } | Report::Delayed { .. } | Report::Unknown { .. } | Report::NeverDone) => other,
    })
}
