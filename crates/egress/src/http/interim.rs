//! Interim answers (1xx) of a server. They are not passed on, but they are bytes of the server: they count against the budgets,
//! and there can't be endlessly many of them.
//!
//! Only HTTP/1.1 tells us of them. Those of HTTP/2 are skipped by its library; `heads` bounds their number.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Request;
use hyper::ext::on_informational;
use saggar_domain::net::{Destination, Refusal};
use tokio::sync::Notify;

use crate::http::body::Body;
use crate::http::forward::head_len;
use crate::record::{Record, Spent};
use crate::refuse::Page;

/// Interim answers before one answer. A server that is slow sends a few to say so.
pub(super) const INTERIM_MAX: usize = 64;

/// About the size of a status line.
const STATUS_LINE: usize = 16;

pub(crate) struct Interim {
    record: Arc<Record>,
    is_enough: Arc<Notify>,
}

impl Interim {
    pub fn watch(request: &mut Request<Body>, record: &Arc<Record>) -> Self {
        let (count, is_enough) = (AtomicUsize::new(0), Arc::new(Notify::new()));
        let (counted, enough) = (Arc::clone(record), Arc::clone(&is_enough));
        on_informational(request, move |answer| {
            let spent = counted.take_down(STATUS_LINE + head_len(answer.headers())).err();
            let is_too_many = count.fetch_add(1, Ordering::Relaxed) >= INTERIM_MAX;
            let is_spent = spent.is_some();
            if let Some(Spent(refusal)) = spent {
                counted.break_off(Page::too_many(refusal));
            }
            if is_spent || is_too_many {
                enough.notify_one();
            }
        });
        Self { record: Arc::clone(record), is_enough }
    }

    /// Waits until there were too many. The record says why. May be cancelled at any time.
    pub async fn ended(&self, to: &Destination) -> Page {
        self.is_enough.notified().await;
        if let Some(page) = self.record.broken_off() {
            return page.clone();
        }
        let message = format!("{to} failed: it sent more than {INTERIM_MAX} interim answers, and no other");
        self.record.fail(message.clone());
        Page::failed(Refusal::new("egress/upstream", message, "check the server"))
    }
}
