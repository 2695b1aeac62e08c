//! Watches a sandbox: stores its events as they happen, and notices its end at once.
//!
//! One task for each live sandbox. It needs no stopping: it ends with its sandbox, or with this process.

use std::sync::Arc;
use std::time::Duration;

use saggar_store::{Change, ExecOutput};
use saggar_supervisor::control::{Event, EventBody, Op, Reply};

use super::end::end_of;
use super::live::Live;
use super::{Sandboxes, now};
use crate::fault::Fault;
use crate::supervisor::{Connection, ControlError, Message};

/// Maximum number of events stored at once.
const BATCH: usize = 256;
/// How long events are gathered before they are stored: the sandbox's client goes first, and a short-lived sandbox is
/// recorded once, by its last words.
const GATHER: Duration = Duration::from_millis(10);
/// Delay before asking again after an error that is not an end.
const RETRY: Duration = Duration::from_millis(500);

impl Sandboxes {
    /// Follows a sandbox's events after `after`, to its end.
    pub(super) fn watch(&self, live: Arc<Live>, after: u64) {
        let this = self.clone();
        tokio::spawn(async move {
            let mut after = after;
            tokio::time::sleep(GATHER).await;
            loop {
                match this.follow_events(&live, &mut after).await {
                    // The connection ended with the supervisor, or it refuses because it is ending.
                    Ok(()) | Err(ControlError::Gone(_) | ControlError::Refused(_)) => match this.is_over(&live).await {
                        true => return,
                        false => tokio::time::sleep(RETRY).await,
                    },
                    Err(error) => {
                        tracing::warn!(sandbox = %live.id, error = %error, "following a sandbox's events failed");
                        tokio::time::sleep(RETRY).await;
                    }
                }
            }
        });
    }

    /// Whether a supervisor whose connection ended is gone; if so, records how it ended.
    async fn is_over(&self, live: &Arc<Live>) -> bool {
        match Connection::question(&live.socket, Op::Describe).await {
            Err(error) if error.is_gone() => {
                if let Err(fault) = self.find_end_of_live(&live.id).await {
                    tracing::error!(sandbox = %live.id, error = %fault, "recording the end of a sandbox failed");
                    return self.inner.register.get(&live.id).is_none();
                }
                true
            }
            Ok(_) | Err(_) => self.inner.register.get(&live.id).is_none(),
        }
    }

    async fn follow_events(&self, live: &Arc<Live>, after: &mut u64) -> Result<(), ControlError> {
        let mut connection = Connection::ask(&live.socket, Op::Events { after: *after }).await?;
        while let Some(message) = connection.next().await? {
            let mut batch = Vec::new();
            take(message, &mut batch)?;
            tokio::time::sleep(GATHER).await;
            // Events that arrived meanwhile go into the same commit.
            while batch.len() < BATCH
                && let Some(message) = connection.next_now()?
            {
                take(message, &mut batch)?;
            }
            let Some(last) = batch.last().map(|event| event.seq) else { continue };
            if let Err(fault) = self.write_batch(live, &batch).await {
                tracing::error!(sandbox = %live.id, error = %fault, "storing a sandbox's events failed");
                // They are requested again.
                tokio::time::sleep(RETRY).await;
                return Ok(());
            }
            *after = last;
            live.stored.send_replace(last);
        }
        Ok(())
    }

    async fn write_batch(&self, live: &Arc<Live>, batch: &[Event]) -> Result<(), Fault> {
        let steps = async {
            for event in batch {
                self.write_step(live, event).await?;
            }
            Ok(())
        };
        tokio::try_join!(self.write_events(&live.id, batch), steps)?;
        Ok(())
    }

    /// Updates the rows that an event changes.
    async fn write_step(&self, live: &Arc<Live>, event: &Event) -> Result<(), Fault> {
        match &event.body {
            EventBody::ExecEnded(state) => match end_of(state) {
                // The output stays with the supervisor until the sandbox ends.
                Some(end) => self.write_exec_ended(&live.id, state, end, ExecOutput::default()).await?,
                None => self.write_exec_started(&live.id, state).await?,
            },
            EventBody::Paused { by_itself } => {
                self.write_state(live, event.seq, Change::Paused { at: now() }).await?;
                if *by_itself {
                    self.keep_files_later(live);
                }
            }
            EventBody::Resumed => self.write_resumed(live, event.seq).await?,
            // The new egress process has none of its secrets.
            EventBody::NetworkRestored => self.rebind(&live.id).await,
            // A request records it too, unless its process died.
            EventBody::BeganAgain { template } => self.began_again(live, template).await?,
            EventBody::Started { .. }
            | EventBody::Claimed
            | EventBody::ExecStarted { .. }
            | EventBody::Denial { .. }
            | EventBody::Limit { .. }
            | EventBody::Decision { .. }
            | EventBody::RulesReplaced { .. }
            | EventBody::NetworkLost
            | EventBody::Ending { .. }
            | EventBody::Unknown => {}
        }
        Ok(())
    }

    /// Another process of this machine has resumed it: what was kept when it was paused is of another time. Unless it has been paused
    /// again since, which counts.
    async fn write_resumed(&self, live: &Live, seq: u64) -> Result<(), Fault> {
        let accounted = live.accounted.lock().await;
        if seq <= *accounted {
            return Ok(());
        }
        let _alone = self.lock_change(live).await?;
        if !self.is_running(live).await {
            return Ok(());
        }
        self.store().change_sandbox(live.id.clone(), Change::Resumed { at: now() }).await?;
        if let Err(fault) = self.forget_rest(live).await {
            tracing::warn!(sandbox = %live.id, error = %fault, "removing what a sandbox rested in failed");
        }
        Ok(())
    }

    /// Records that it was paused by itself. A requested change is recorded by the request, and may be
    /// outdated by now.
    async fn write_state(&self, live: &Live, seq: u64, change: Change) -> Result<(), Fault> {
        let accounted = live.accounted.lock().await;
        if seq > *accounted {
            self.store().change_sandbox(live.id.clone(), change).await?;
        }
        Ok(())
    }
}

fn take(message: Message, batch: &mut Vec<Event>) -> Result<(), ControlError> {
    match message {
        Message::Reply(Reply::Event(event)) => batch.push(*event),
        // Older ones were dropped; the rest is stored.
        Message::Reply(Reply::EventsGone { .. }) => {}
        Message::Reply(Reply::Error(problem)) => return Err(ControlError::Refused(problem)),
        Message::Reply(_) | Message::Output { .. } => {
            return Err(ControlError::Protocol("another answer than `event`".to_owned()));
        }
    }
    Ok(())
}
