//! The conversation of a session: one supervisor, one sandbox.

use std::net::{TcpListener as StdListener, UdpSocket as StdUdp};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::Problem;
use saggar_domain::net::Summed;
use saggar_jail::original_destination;
use saggar_supervisor::egress::{DESCRIPTORS_MAX, FromEgress, GateCounts, Open, ToEgress};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use super::controls::{Controls, displaced, rules};
use super::wire::{Control, Incoming};
use super::{broken, check_version, misused, tape};
use crate::decisions::Decisions;
use crate::limits::Limits;
use crate::names::Names;
use crate::secret::file;
use crate::session::{Session, Setup};
use crate::setting::Setting;

/// How long a refusal may take to be delivered. It is short, and its program reads it or is gone.
const SETTLING: Duration = Duration::from_millis(50);
/// How long connections may take to end and to be reported when the session is over.
const LAST_DECISIONS: Duration = Duration::from_secs(1);

/// Serves one sandbox, until its supervisor closes the session.
pub async fn converse(control: Control, setting: &Setting) {
    let served = async {
        match control.receive().await.map_err(broken)? {
            Incoming::Message(ToEgress::Open(open), files) => {
                let accepted = Accepted::begin(*open, files, setting).await?;
                serve_opened(&control, accepted).await
            }
            Incoming::Message(..) => Err(misused("a session begins with `open`")),
            Incoming::End => Ok(()),
        }
    };
    if let Err(problem) = served.await {
        // The supervisor may be gone; then there is no one to tell.
        let _ = control.send(&FromEgress::Failed(problem)).await;
    }
}

/// A session that is open, and what it reports.
pub(crate) struct Accepted {
    session: Session,
    decisions: Decisions,
    placeholders: Vec<String>,
    pub controls: Arc<Controls>,
}

impl Accepted {
    /// `files` have the secrets.
    pub async fn begin(open: Open, files: Vec<OwnedFd>, setting: &Setting) -> Result<Self, Problem> {
        check_version(open.v)?;
        let (names, known) = (open.secrets.clone(), open.placeholders.clone());
        let grants = match names.is_empty() {
            true => Vec::new(),
            false => {
                let read = move || file::grants(&names, &known, files);
                tokio::task::spawn_blocking(read).await.map_err(broken)??
            }
        };
        let placeholders = grants.iter().map(|grant| grant.placeholder.clone()).collect();
        let setup = Setup {
            rules: rules(open.egress.clone(), &open.upstream.own)?,
            limits: Limits::default(),
            roots: setting.roots.clone(),
            dial: (setting.dialers)(&open.upstream),
            names: Arc::new(Names::of_generation(open.generation)),
            models: open.models.then(|| setting.models.of(open.sandbox_id.clone())),
        };
        let (session, decisions) = Session::open(setup).map_err(broken)?;
        session.bind(grants)?;
        if open.awaits_secrets {
            session.await_secrets();
        }
        if open.asks {
            session.ask();
        }
        if open.attributes {
            session.announce_connections();
        }
        let controls = Controls::new(session.handle(), setting.clone(), open.egress, open.upstream.own);
        Ok(Self { session, decisions, placeholders, controls: Arc::new(controls) })
    }
}

/// Until the supervisor closes the session. Its last decisions are sent even if it closed only its half.
pub(crate) async fn serve_opened(control: &Control, accepted: Accepted) -> Result<(), Problem> {
    let Accepted { session, mut decisions, placeholders, controls } = accepted;
    let opened = FromEgress::Opened { ca_pem: session.ca_pem().to_owned(), placeholders };
    control.send(&opened).await.map_err(broken)?;
    let ended = attend(control, session, &controls, &mut decisions).await;
    // The session is dropped: every connection ends, and says so.
    let rest = async {
        while let Some(message) = decisions.next_message().await {
            if control.send(&message).await.is_err() {
                return;
            }
        }
        tell_flood(control, &decisions).await;
    };
    // A connection that takes longer is not reported.
    let _ = timeout(LAST_DECISIONS, rest).await;
    ended
}

async fn attend(
    control: &Control,
    mut session: Session,
    controls: &Controls,
    decisions: &mut Decisions,
) -> Result<(), Problem> {
    loop {
        tokio::select! {
            incoming = control.receive() => {
                let answer = match incoming.map_err(broken)? {
                    Incoming::Message(ToEgress::Gates(counts), descriptors) => {
                        open_gates(&mut session, counts, descriptors)?;
                        FromEgress::Listening {}
                    }
                    Incoming::Message(ToEgress::Rules(draft), _) => {
                        controls.replace_rules(draft)?;
                        FromEgress::Ruled {}
                    }
                    Incoming::Message(ToEgress::Record {}, files) => tape::record(&session, files)?,
                    Incoming::Message(ToEgress::Replay {}, files) => tape::replay(&session, files).await?,
                    Incoming::Message(ToEgress::Settle {}, _) => {
                        settle(control, controls, decisions).await?;
                        FromEgress::Settled {}
                    }
                    Incoming::Message(ToEgress::Answer { question, answer }, _) => {
                        session.answer(question, answer);
                        continue;
                    }
                    Incoming::Message(ToEgress::Open(_), _) => return Err(misused("the session is open already")),
                    Incoming::Message(
                        ToEgress::Manage { .. }
                        | ToEgress::SecretsOf(_)
                        | ToEgress::UpstreamNow(_)
                        | ToEgress::Models {}
                        | ToEgress::Retire {},
                        _,
                    ) => {
                        return Err(misused("a session does not manage the process"));
                    }
                    Incoming::End => return Ok(()),
                };
                control.send(&answer).await.map_err(broken)?;
            }
            () = controls.until_displaced() => return Err(displaced()),
            Some(notice) = session.notice() => control.send(&notice).await.map_err(broken)?,
            Some(message) = decisions.next_message() => {
                control.send(&message).await.map_err(broken)?;
                tell_flood(control, decisions).await;
            }
        }
    }
}

/// Sends the decision about every refusal that was begun.
async fn settle(control: &Control, controls: &Controls, decisions: &mut Decisions) -> Result<(), Problem> {
    let mut settled = std::pin::pin!(timeout(SETTLING, controls.until_settled()));
    loop {
        tokio::select! {
            biased;
            Some(message) = decisions.next_message() => {
                control.send(&message).await.map_err(broken)?;
            }
            // One that takes longer is reported later.
            _ = &mut settled => return Ok(()),
        }
    }
}

/// If a message fails here, the next one fails too.
async fn tell_flood(control: &Control, decisions: &Decisions) {
    let Summed { decisions, further } = decisions.take_flood();
    for decision in decisions {
        // As said above.
        let _ = control.send(&FromEgress::Decision(Box::new(decision))).await;
    }
    if further > 0 {
        // As said above.
        let _ = control.send(&FromEgress::Dropped { decisions: further }).await;
    }
}

fn open_gates(session: &mut Session, counts: GateCounts, descriptors: Vec<OwnedFd>) -> Result<(), Problem> {
    if counts.sum() != descriptors.len() || counts.sum() > DESCRIPTORS_MAX {
        return Err(misused("the gates are not as many as the message says"));
    }
    let mut rest = descriptors.into_iter();
    let mut take = |count: usize| rest.by_ref().take(count).collect::<Vec<_>>();
    for gate in take(counts.tcp) {
        session.serve_gate(listener(gate)?, |stream: &TcpStream| original_destination(stream));
    }
    for gate in take(counts.proxy) {
        session.serve_proxy(listener(gate)?);
    }
    for gate in take(counts.dns_udp) {
        let socket = UdpSocket::from_std(StdUdp::from(gate)).map_err(broken)?;
        session.serve_dns_udp(socket);
    }
    for gate in take(counts.dns_tcp) {
        session.serve_dns_tcp(listener(gate)?);
    }
    Ok(())
}

fn listener(gate: OwnedFd) -> Result<TcpListener, Problem> {
    TcpListener::from_std(StdListener::from(gate)).map_err(broken)
}
