//! The effects of one run that are in progress. They are polled by the task that drives the run, so that dropping it
//! drops them all.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use saggar_engine::Report;

/// Which effect of a run it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doing {
    pub(super) step: u64,
    pub(super) attempt: u32,
    pub(super) is_probe: bool,
}

/// An effect in progress.
pub(super) type Reporting = Pin<Box<dyn Future<Output = Report> + Send>>;

/// As many as the run has open steps at most, which the engine bounds.
#[derive(Default)]
pub(super) struct UnderWay(Vec<(Doing, Reporting)>);

impl UnderWay {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has(&self, doing: Doing) -> bool {
        self.0.iter().any(|(other, _)| *other == doing)
    }

    pub(super) fn add(&mut self, doing: Doing, report: Reporting) {
        self.0.push((doing, report));
    }

    /// Drops the others.
    pub(super) fn keep(&mut self, is_kept: impl Fn(Doing) -> bool) {
        self.0.retain(|(doing, _)| is_kept(*doing));
    }

    /// Waits until at least one has ended, and takes all that have, in the order in which they were begun. Cancelling
    /// it loses nothing.
    pub(super) async fn reports(&mut self) -> Vec<(Doing, Report)> {
        poll_fn(|context| {
            let mut reports = Vec::new();
            self.0.retain_mut(|(doing, report)| match report.as_mut().poll(context) {
                Poll::Ready(report) => {
                    reports.push((*doing, report));
                    false
                }
                Poll::Pending => true,
            });
            if reports.is_empty() { Poll::Pending } else { Poll::Ready(reports) }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doing(step: u64) -> Doing {
        Doing { step, attempt: 1, is_probe: false }
    }

    #[tokio::test]
    async fn those_that_ended_together_are_taken_together_and_the_others_go_on() {
        let mut under_way = UnderWay::default();
        let (send, receive) = tokio::sync::oneshot::channel::<()>();
        under_way.add(doing(1), Box::pin(async { Report::NeverDone }));
        under_way.add(
            doing(2),
            Box::pin(async move {
                receive.await.unwrap();
                Report::unknown("late")
            }),
        );
        under_way.add(doing(3), Box::pin(async { Report::unknown("three") }));
        let steps = |reports: Vec<(Doing, Report)>| reports.iter().map(|(doing, _)| doing.step).collect::<Vec<_>>();
        assert_eq!(steps(under_way.reports().await), [1, 3]);
        send.send(()).unwrap();
        assert_eq!(steps(under_way.reports().await), [2]);
        under_way.add(doing(4), Box::pin(std::future::pending()));
        under_way.keep(|doing| doing.step != 4);
        assert!(under_way.is_empty());
    }
}
