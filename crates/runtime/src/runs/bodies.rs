//! Long bodies: stored as blobs, before the entry that names them.

use saggar_domain::model::{Stop, Verbatim};
use saggar_engine::{
    AgentSpec, BODY_INLINE_MAX, Body, BuiltIn, ModelReply, Report, Said, SaidPart, ToolCall, ToolResult,
};
use saggar_store::{BlobHash, Error};

use super::journal::Journal;
use super::output;
use super::tools::{Tool, check_arguments};

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
async fn shelve_call<J: Journal>(journal: &J, agent: Option<&AgentSpec>, call: &mut ToolCall) -> Result<(), Error> {
    if let Body::Text(text) = &call.arguments {
        let endpoint = agent.and_then(|agent| agent.tools.get(&call.tool)?.endpoint.as_ref());
        match (endpoint, Tool::find(&call.tool)) {
            (Some(endpoint), _) => call.invalid = check_arguments(&call.tool, endpoint, text).err(),
            (None, Some(tool)) => match tool.check(text) {
                Ok(arguments) => {
                    call.class = tool.class_of.and_then(|class_of| class_of(&arguments));
                    let schema =
                        agent.and_then(|agent| agent.output.as_deref()).filter(|_| tool.name == BuiltIn::FINISH);
                    call.invalid = schema.and_then(|schema| output::wrong_finish(schema, &arguments));
                }
                Err(complaint) => call.invalid = Some(complaint),
            },
            (None, None) => {}
        }
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

/// What a model said, with its long bodies stored as blobs.
async fn shelve_said<J: Journal>(journal: &J, said: Said) -> Result<Said, Error> {
    let Said { parts, stop, usage, origin } = said;
    let mut kept = Vec::with_capacity(parts.len());
    for part in parts {
        kept.push(match part {
            SaidPart::Text { verbatim } => SaidPart::Text { verbatim: shelve_verbatim(journal, verbatim).await? },
            SaidPart::Call { verbatim } => SaidPart::Call { verbatim: shelve_verbatim(journal, verbatim).await? },
            SaidPart::Part(part) => {
                // The bodies of a part come in a fixed order, so they are stored first and put back after.
                let mut bodies = Vec::new();
                let part = part.try_map(&mut |body| {
                    bodies.push(body);
                    Ok::<_, Error>(())
                })?;
                let mut stored = std::collections::VecDeque::with_capacity(bodies.len());
                for body in bodies {
                    stored.push_back(shelve(journal, body).await?);
                }
                let mut next = |()| Ok::<_, Error>(stored.pop_front().expect("one for each"));
                SaidPart::Part(part.try_map(&mut next)?)
            }
        });
    }
    Ok(Said { parts: kept, stop, usage, origin })
}

async fn shelve_verbatim<J: Journal>(
    journal: &J,
    verbatim: Option<Verbatim<Body>>,
) -> Result<Option<Verbatim<Body>>, Error> {
    let Some(Verbatim { wire, origin, data }) = verbatim else { return Ok(None) };
    Ok(Some(Verbatim { wire, origin, data: shelve(journal, data).await? }))
}

/// The same report with its long bodies stored as blobs.
pub(super) async fn shelve_report<J: Journal>(
    journal: &J,
    agent: Option<&AgentSpec>,
    report: Report,
) -> Result<Report, Error> {
    Ok(match report {
        Report::Replied { reply, usage } => {
            let is_cut = reply.stop() == Some(Stop::MaxTokens);
            let mut calls = reply.calls;
            for call in &mut calls {
                shelve_call(journal, agent, call).await?;
            }
            if let Some(complaint) = calls.last_mut().filter(|_| is_cut).and_then(|call| call.invalid.as_mut()) {
                complaint.push_str(". Your reply was cut off at its limit of tokens: say less in one reply");
            }
            let schema = agent.and_then(|agent| agent.output.as_deref()).filter(|_| calls.is_empty());
            let invalid =
                schema.and_then(|schema| output::wrong_reply(schema, reply.text.as_text().unwrap_or_default()));
            let text = shelve(journal, reply.text).await?;
            let said = match reply.said {
                Some(said) => Some(Box::new(shelve_said(journal, *said).await?)),
                None => None,
            };
            Report::Replied { reply: ModelReply { text, calls, said, invalid }, usage }
        }
        Report::Returned { result: ToolResult { content, is_error, network, restored }, snapshot } => {
            let content = shelve(journal, content).await?;
            Report::Returned { result: ToolResult { content, is_error, network, restored }, snapshot }
        }
        other @ (Report::Failed { .. }
        | Report::Kept { .. }
        | Report::Delayed { .. }
        | Report::Unknown { .. }
        | Report::NeverDone) => other,
    })
}
