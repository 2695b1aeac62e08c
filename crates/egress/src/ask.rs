//! Questions to a person about hosts that no rule allows.
//!
//! A connection waits for its answer, within bounds; connections to the same host and port share one question. What a deny rule forbids
//! is never asked about, nor are special addresses: their refusals have other rules. An answer becomes an allow rule, so everything
//! that is decided by rules goes by it: addresses are checked, and deny rules win.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use saggar_domain::net::{Destination, Host, Passage, Rule, Rules, SELF_TEST_NAME};
use saggar_supervisor::egress::HostAnswer;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::link::Link;
use crate::session::Shared;

/// How long a connection waits. Longer than a person has, so that the refusal can say what happened.
const PATIENCE: Duration = Duration::from_secs(90);
/// Questions that are open at once.
const OPEN_MAX: usize = 64;
/// Rules that answers may add.
pub(crate) const ANSWERED_MAX: usize = 256;

#[derive(Default)]
pub(crate) struct Questions(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    open: Vec<Open>,
}

struct Open {
    number: u64,
    to: Destination,
    said: watch::Sender<Option<Said>>,
}

/// What became of a question.
#[derive(Clone)]
pub(crate) enum Said {
    Host,
    Once(Arc<Once>),
    No(HostAnswer),
}

/// A rule that lasts as long as the connections that it was given for.
pub(crate) struct Once {
    session: Weak<Shared>,
    rule: Rule,
}

impl Drop for Once {
    fn drop(&mut self) {
        if let Some(session) = self.session.upgrade() {
            session.withdraw(&self.rule);
        }
    }
}

/// Asks about a destination, if it may be asked about, and waits for the answer. From then on the session's rules decide.
pub(crate) async fn settle(link: &Link, to: &Destination) {
    let session = link.session();
    let Some(questions) = session.questions() else { return };
    if !is_unknown(&session.rules(), to) {
        return;
    }
    let said = match questions.put(session, link, to) {
        Some(mut waiting) => match timeout(PATIENCE, waiting.wait_for(Option::is_some)).await {
            Ok(Ok(said)) => said.clone(),
            Ok(Err(_)) | Err(_) => None,
        },
        None => Some(Said::No(HostAnswer::TooMany)),
    };
    match said {
        Some(Said::Host) => {}
        Some(Said::Once(once)) => link.keep(once),
        Some(Said::No(answer)) => link.explain(to, answer),
        None => link.explain(to, HostAnswer::TooLate),
    }
}

fn is_unknown(rules: &Rules, to: &Destination) -> bool {
    let is_ours = matches!(&to.host, Host::Name(name) if name.as_str() == SELF_TEST_NAME);
    !is_ours && matches!(rules.connection(to), Passage::Denied(refusal) if refusal.rule == "egress/default")
}

impl Questions {
    /// Joins the question about this destination, or puts a new one. `None` if there are too many.
    fn put(&self, session: &Shared, link: &Link, to: &Destination) -> Option<watch::Receiver<Option<Said>>> {
        let mut state = self.state();
        // Those that nobody waits for any more.
        state.open.retain(|open| !open.said.is_closed());
        if let Some(open) = state.open.iter().find(|open| open.to == *to) {
            return Some(open.said.subscribe());
        }
        if state.open.len() >= OPEN_MAX {
            return None;
        }
        state.next += 1;
        let number = state.next;
        if !session.notices.question(number, to, link.client()) {
            return None;
        }
        let (said, waiting) = watch::channel(None);
        state.open.push(Open { number, to: to.clone(), said });
        Some(waiting)
    }

    /// An answer to a question that is not open any more changes nothing.
    pub fn answer(&self, session: &Arc<Shared>, number: u64, answer: HostAnswer) {
        let mut state = self.state();
        let Some(index) = state.open.iter().position(|open| open.number == number) else { return };
        let Open { to, said, .. } = state.open.swap_remove(index);
        drop(state);
        let allowed = match answer {
            HostAnswer::AllowOnce | HostAnswer::AllowHost => rule_for(&to).filter(|rule| session.allow(rule.clone())),
            HostAnswer::Deny | HostAnswer::NoTerminal | HostAnswer::TooMany | HostAnswer::TooLate => None,
        };
        let result = match (allowed, answer) {
            (Some(rule), HostAnswer::AllowOnce) => {
                Said::Once(Arc::new(Once { session: Arc::downgrade(session), rule }))
            }
            (Some(_), _) => Said::Host,
            (None, HostAnswer::AllowOnce | HostAnswer::AllowHost) => Said::No(HostAnswer::TooMany),
            (None, answer) => Said::No(answer),
        };
        // Nobody may wait any more; then what was allowed once ends here.
        let _ = said.send(Some(result));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What `--allow` would have to say.
fn rule_for(to: &Destination) -> Option<Rule> {
    let text = match &to.host {
        _ if !matches!(to.port, 80 | 443) => to.to_string(),
        Host::V6(address) => format!("[{address}]"),
        host => host.to_string(),
    };
    text.parse().ok()
}

/// The end of a refusal's message.
pub(crate) fn why(answer: HostAnswer) -> &'static str {
    match answer {
        HostAnswer::NoTerminal => "and there is no terminal to ask on",
        HostAnswer::TooMany => "and too many questions were asked to ask another one",
        HostAnswer::TooLate => "and nobody answered the question in time",
        HostAnswer::Deny | HostAnswer::AllowOnce | HostAnswer::AllowHost => "and you said no when asked",
    }
}
