//! What becomes of a connection once its destination is known: a tunnel, an inspected exchange, or a refusal that the program
//! can show.
//!
//! A refusal is an answer, never a reset: after a reset, package tools try again for up to a minute and then say nothing useful. So
//! a denied destination gets TLS and HTTP like an inspected one, and each of its requests is answered with a page.

use std::sync::Arc;
use std::time::{Duration, Instant};

use saggar_domain::net::{Destination, Host, Passage, Protocol, Refusal, RuleRef, Rules, Wire};
use saggar_jail::Rule;
use tokio::net::TcpStream;

use crate::budget::HostSlot;
use crate::hello::{self, ClientHello, PeekError, ServerName};
use crate::http::{Conn, Mode, Scheme};
use crate::link::Link;
use crate::record::{Asked, Record};
use crate::recording::ConnectionKind;
use crate::refuse::Page;
use crate::replay::Replay;
use crate::resolve::{DialError, Dialed};
use crate::{ask, tls, tunnel};

/// How long a program may be silent on a denied port that is neither 80 nor 443. In many protocols the server speaks first, and the
/// program would wait for it; it can be shown no page, so it should learn soon.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// A connection of the sandbox, and what was read of it already.
pub(crate) struct Client {
    pub stream: TcpStream,
    pub ahead: Vec<u8>,
}

/// A connection that the rules have decided about, before anything is read from the client.
pub(crate) struct Opening {
    pub to: Arc<Destination>,
    way: Way,
}

enum Way {
    /// Each request is decided, a denied destination's too.
    Requests,
    Tunnel(RuleRef),
    /// Its secrets didn't come in time.
    NotYet(Page),
    Raw {
        record: Arc<Record>,
        server: TcpStream,
    },
}

impl Client {
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, ahead: Vec::new() }
    }

    fn replay(self) -> Replay<TcpStream> {
        Replay::new(self.ahead, self.stream)
    }
}

/// From the decision to the end of the connection.
pub(crate) async fn serve(link: Arc<Link>, client: Client, to: Destination) {
    // A refusal has been recorded. There is no protocol in which the client could be told.
    if let Ok(opening) = open(&link, to).await {
        proceed(link, client, opening).await;
    }
}

/// Decides. Where no page could be shown later, because neither TLS nor HTTP is expected, the server is dialled now.
pub(crate) async fn open(link: &Arc<Link>, to: Destination) -> Result<Opening, Page> {
    let to = Arc::new(to);
    ask::settle(link, &to).await;
    let session = link.session();
    if !session.has_secrets() {
        let is_unread = matches!(session.rules().connection(&to), Passage::Tunnel { .. } | Passage::Raw { .. });
        // Which hosts are inspected depends on the secrets. Requests wait one by one.
        if is_unread && let Err(refusal) = session.until_secrets(&to).await {
            return without_secrets(link, to, refusal);
        }
    }
    let way = match session.rules().connection(&to) {
        Passage::Denied(_) | Passage::Inspect => Way::Requests,
        // What passes unread can't be recorded or replayed.
        Passage::Tunnel { .. } if link.session().has_tape() => Way::Requests,
        Passage::Tunnel { rule } => Way::Tunnel(rule),
        Passage::Raw { rule } => {
            let record = Record::new(link, Arc::clone(&to), Asked::Connection(Protocol::Tcp));
            record.allow(rule.0);
            admit(link, &to, &record)?;
            if let Some(recorder) = link.session().recorder() {
                recorder.connection(&to, ConnectionKind::Tcp);
            }
            let server = dial(link, &to, &record).await?;
            Way::Raw { record, server: server.stream }
        }
    };
    Ok(Opening { to, way })
}

/// A connection that would pass unread, and may lead to a host that a secret is for.
fn without_secrets(link: &Arc<Link>, to: Arc<Destination>, refusal: Refusal) -> Result<Opening, Page> {
    if let Passage::Raw { .. } = link.session().rules().connection(&to) {
        Record::new(link, Arc::clone(&to), Asked::Connection(Protocol::Tcp)).deny(&refusal);
        return Err(Page::not_yet(refusal));
    }
    Ok(Opening { to, way: Way::NotYet(Page::not_yet(refusal)) })
}

/// Each request is answered with the page.
async fn not_yet(link: Arc<Link>, mut client: Client, to: Arc<Destination>, page: Page) {
    if link.session().rules().wire(&to) == Wire::Http {
        return exchange(link, client, to, Mode::Refuse(page)).await;
    }
    match peek(&mut client, hello::DEADLINE).await {
        Ok(hello) => {
            let shown = shown_name(&to, &hello);
            terminated(link, client, to, &shown, Mode::Refuse(page)).await;
        }
        Err(PeekError::NotTls { bytes }) => {
            client.ahead = bytes;
            exchange(link, client, to, Mode::Refuse(page)).await;
        }
        Err(error) => unreadable(&link, &to, &error),
    }
}

pub(crate) async fn proceed(link: Arc<Link>, client: Client, Opening { to, way }: Opening) {
    match way {
        Way::Raw { record, server } => copy(&link, client, server, &record).await,
        Way::Requests => requests(link, client, to).await,
        Way::NotYet(page) => not_yet(link, client, to, page).await,
        Way::Tunnel(rule) => match link.session().rules().wire(&to) {
            Wire::Http => plain(link, client, to).await,
            Wire::Tls | Wire::Either => tunnel_by_name(link, client, to, rule).await,
        },
    }
}

/// Dials, and counts the connection.
pub(crate) async fn dial(link: &Arc<Link>, to: &Destination, record: &Record) -> Result<Dialed, Page> {
    let slot = hold(link, to, record)?;
    dial_held(link, to, record, slot).await
}

/// Counts a request, or a connection that passes unread.
pub(crate) fn admit(link: &Link, to: &Destination, record: &Record) -> Result<(), Page> {
    link.session().budgets.admit(&to.host, Instant::now()).map_err(|refusal| {
        record.deny(&refusal);
        Page::too_many(refusal)
    })
}

pub(crate) fn hold(link: &Arc<Link>, to: &Destination, record: &Record) -> Result<Arc<HostSlot>, Page> {
    link.session().budgets.connect(&to.host).map(Arc::new).map_err(|refusal| {
        record.deny(&refusal);
        Page::too_many(refusal)
    })
}

pub(crate) async fn dial_held(
    link: &Arc<Link>,
    to: &Destination,
    record: &Record,
    slot: Arc<HostSlot>,
) -> Result<Dialed, Page> {
    record.hold(slot);
    let session = link.session();
    if let Some(library) = session.library() {
        let refusal = library.no_connection(to, ConnectionKind::Tcp);
        record.deny(&refusal);
        return Err(Page::denied(refusal));
    }
    let rules = session.rules();
    // A name that came by DNS was looked at there; CONNECT, SOCKS and a proxy's requests bring theirs along.
    if let Some(name) = to.host.name()
        && let Some(report) = session.suspects.notice(&rules, name)
    {
        session.decisions.send(report);
    }
    let dialled = session.dial().dial(to, &rules, session.limits.connect_time).await;
    match dialled {
        Ok(dialled) => {
            record.dialled(dialled.address.ip());
            recheck(link, record, &rules)?;
            Ok(dialled)
        }
        Err(DialError::Refused { refusal, address }) => {
            if let Some(address) = address {
                record.dialled(address);
            }
            record.deny(&refusal);
            Err(Page::denied(*refusal))
        }
        Err(error) => {
            let refusal = Refusal::new(
                "egress/upstream",
                format!("{to} can't be reached: {error}"),
                "check the name and the port, and whether the server is up",
            );
            record.fail(refusal.message.clone());
            Err(Page::failed(refusal))
        }
    }
}

/// Rules may have changed since `decided_by` allowed it. From now on, a change finds it in the connection's records.
pub(crate) fn recheck(link: &Link, record: &Record, decided_by: &Arc<Rules>) -> Result<(), Page> {
    let current = link.session().rules();
    if Arc::ptr_eq(&current, decided_by) {
        return Ok(());
    }
    record.forbidden_by(&current).map_or(Ok(()), |refusal| {
        record.deny(&refusal);
        Err(Page::denied(refusal))
    })
}

/// Inspected, or denied.
async fn requests(link: Arc<Link>, mut client: Client, to: Arc<Destination>) {
    let wire = link.session().rules().wire(&to);
    let is_denied = matches!(link.session().rules().connection(&to), Passage::Denied(_));
    if wire == Wire::Http && !is_denied {
        return plain(link, client, to).await;
    }
    let patience = if is_denied && !matches!(to.port, 80 | 443) { SILENCE_MAX } else { hello::DEADLINE };
    match peek(&mut client, patience).await {
        Ok(hello) => {
            let mode = match agreement(&to, &hello) {
                Ok(()) => Mode::Forward,
                Err(page) if !is_denied => Mode::Refuse(page),
                // The rule is the better reason.
                Err(_) => Mode::Forward,
            };
            let shown =
                if is_denied || matches!(mode, Mode::Refuse(_)) { shown_name(&to, &hello) } else { to.host.clone() };
            terminated(link, client, to, &shown, mode).await;
        }
        Err(PeekError::NotTls { bytes }) => {
            let speaks_http = bytes.first().is_some_and(u8::is_ascii_uppercase);
            client.ahead = bytes;
            if !speaks_http {
                refuse(&link, &to, unexpected(&to, wire));
            } else if wire == Wire::Tls && !is_denied {
                let page = Page::ambiguous(unexpected(&to, wire));
                exchange(link, client, to, Mode::Refuse(page)).await;
            } else {
                plain(link, client, to).await;
            }
        }
        Err(error) => unreadable(&link, &to, &error),
    }
}

async fn plain(link: Arc<Link>, client: Client, to: Arc<Destination>) {
    exchange(link, client, to, Mode::Forward).await;
}

async fn exchange(link: Arc<Link>, client: Client, to: Arc<Destination>, mode: Mode) {
    Conn::new(link, Some(to), Scheme::Http, mode).serve_http1(client.replay()).await;
}

/// TLS that passes unread, if it asks for the name that was dialled.
async fn tunnel_by_name(link: Arc<Link>, mut client: Client, to: Arc<Destination>, rule: RuleRef) {
    let hello = match peek(&mut client, hello::DEADLINE).await {
        Ok(hello) => hello,
        Err(PeekError::NotTls { bytes }) => {
            let wire = link.session().rules().wire(&to);
            client.ahead = bytes;
            if wire == Wire::Either {
                return plain(link, client, to).await;
            }
            if client.ahead.first().is_some_and(u8::is_ascii_uppercase) {
                let page = Page::ambiguous(unexpected(&to, wire));
                return exchange(link, client, to, Mode::Refuse(page)).await;
            }
            return refuse(&link, &to, unexpected(&to, wire));
        }
        Err(error) => return unreadable(&link, &to, &error),
    };
    let is_hidden = hello.ech && Rule::EgressHiddenName.is_on();
    let agreed = agreement(&to, &hello).and_then(|()| if is_hidden { Err(hidden_name(&to)) } else { Ok(()) });
    if let Err(page) = agreed {
        let shown = shown_name(&to, &hello);
        return terminated(link, client, to, &shown, Mode::Refuse(page)).await;
    }
    let record = Record::new(&link, Arc::clone(&to), Asked::Connection(Protocol::Tls));
    record.allow(rule.0);
    let dialled = match admit(&link, &to, &record) {
        Ok(()) => dial(&link, &to, &record).await,
        Err(page) => Err(page),
    };
    match dialled {
        Ok(server) => copy(&link, client, server.stream, &record).await,
        Err(page) => {
            // Recorded here, with its reason; the page only shows it.
            drop(record);
            terminated(link, client, to.clone(), &to.host, Mode::Show(page)).await;
        }
    }
}

async fn terminated(link: Arc<Link>, client: Client, to: Arc<Destination>, shown: &Host, mode: Mode) {
    match tls::accept(link.session(), client.replay(), shown).await {
        Ok(stream) => {
            let speaks_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let conn = Conn::new(link, Some(to), Scheme::Https, mode);
            if speaks_http2 {
                conn.serve_http2(stream).await;
            } else {
                conn.serve_http1(stream).await;
            }
        }
        // No page can be shown. The records still have the reason.
        Err(reason) => match mode {
            Mode::Show(_) => {}
            Mode::Refuse(page) => refuse(&link, &to, page.refusal),
            Mode::Forward | Mode::Proxy => {
                let help = "let the program trust the certificate in SSL_CERT_FILE, or allow the host without methods and paths";
                refuse(&link, &to, Refusal::new("egress/client-tls", reason, help));
            }
        },
    }
}

async fn copy(link: &Link, client: Client, mut server: TcpStream, record: &Arc<Record>) {
    use tokio::io::AsyncWriteExt as _;
    let Client { stream, ahead } = client;
    let copying = async {
        if record.take_up(ahead.len()).is_err() {
            return;
        }
        if let Err(error) = server.write_all(&ahead).await {
            return record.fail(format!("the connection broke: {}", error.kind()));
        }
        drop(ahead);
        tunnel::copy_sockets(&stream, &server, record).await;
    };
    tokio::select! {
        () = copying => {}
        () = link.until_cut() => {}
    }
}

async fn peek(client: &mut Client, patience: Duration) -> Result<ClientHello, PeekError> {
    let mut replay = Replay::new(std::mem::take(&mut client.ahead), &mut client.stream);
    let peeked = hello::peek(&mut replay, patience).await;
    let (unread, _) = replay.into_parts();
    match peeked {
        Ok(peeked) => {
            client.ahead = peeked.bytes;
            client.ahead.extend(unread);
            Ok(peeked.hello)
        }
        Err(PeekError::NotTls { mut bytes }) => {
            bytes.extend(unread);
            Err(PeekError::NotTls { bytes })
        }
        Err(error) => Err(error),
    }
}

/// The name in the ClientHello must be the name that was dialled. An address has no name.
fn agreement(to: &Destination, hello: &ClientHello) -> Result<(), Page> {
    let asked = match (&to.host, &hello.name) {
        (Host::Name(dialled), ServerName::Name(asked)) if dialled == asked => return Ok(()),
        (Host::V4(_) | Host::V6(_), ServerName::Absent) => return Ok(()),
        (host, ServerName::Address(asked)) if host.address() == Some(asked.to_canonical()) => return Ok(()),
        _ if !Rule::EgressServerName.is_on() => return Ok(()),
        (_, ServerName::Name(asked)) => asked.to_string(),
        (_, ServerName::Address(asked)) => asked.to_string(),
        (_, ServerName::Absent) => "no name".to_owned(),
    };
    Err(Page::misdirected(Refusal::new(
        "egress/server-name",
        format!("the connection leads to {to}, but its TLS asks for {asked}"),
        "connect to the host whose name TLS asks for",
    )))
}

fn hidden_name(to: &Destination) -> Page {
    Page::denied(Refusal::new(
        "egress/encrypted-hello",
        format!("the TLS connection to {to} hides a name (ECH)"),
        "switch encrypted ClientHello off in the program",
    ))
}

/// The name for which the program will check the certificate.
fn shown_name(to: &Destination, hello: &ClientHello) -> Host {
    match &hello.name {
        ServerName::Name(name) => Host::Name(name.clone()),
        ServerName::Address(address) => (*address).into(),
        ServerName::Absent => to.host.clone(),
    }
}

fn unexpected(to: &Destination, wire: Wire) -> Refusal {
    let expected = match wire {
        Wire::Tls => "TLS",
        Wire::Http => "HTTP",
        Wire::Either => "TLS or HTTP",
    };
    Refusal::new(
        "egress/protocol",
        format!("the program does not speak {expected} to {to}"),
        format!("use {expected}; for other protocols, allow the port by number"),
    )
}

fn unreadable(link: &Arc<Link>, to: &Arc<Destination>, error: &PeekError) {
    let is_denied = matches!(link.session().rules().connection(to), Passage::Denied(_));
    if matches!(error, PeekError::Ended { read: 0 }) && !is_denied {
        // A program that tries both families of addresses closes one connection unused.
        return;
    }
    refuse(link, to, Refusal::new("egress/client-hello", format!("{to}: {error}"), "check the program's TLS settings"));
}

/// The end of a connection in which nothing can be shown. What the rules say is the better reason, if they deny it.
fn refuse(link: &Arc<Link>, to: &Arc<Destination>, otherwise: Refusal) {
    let refusal = match link.session().rules().connection(to) {
        Passage::Denied(refusal) => link.explained(to, refusal),
        Passage::Inspect | Passage::Tunnel { .. } | Passage::Raw { .. } => otherwise,
    };
    Record::new(link, Arc::clone(to), Asked::Connection(Protocol::Tcp)).deny(&refusal);
}
