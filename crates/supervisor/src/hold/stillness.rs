//! Stillness: every process of the sandbox is frozen while a connection reads what the sandbox changed.
//!
//! It ends with the connection, however that ends: a server that dies keeps no sandbox still. It is no pause: deadlines that passed meanwhile
//! are moved, and nobody is told. If the sandbox is paused when the last connection has gone, it stays frozen.

use std::os::fd::AsFd;
use std::time::Duration;

use saggar_domain::{Code, Problem};

use crate::control::{Op, Reply, Stillness};

use super::connection::Role;
use super::holder::Hold;
use super::moment::Moment;
use super::requests::read_request;

/// How long a sandbox may stand still, whatever its readers do.
const STILL_MAX: Duration = Duration::from_secs(60);

impl Hold {
    /// Freezes everything for this connection, and hands it the directory of the changes.
    pub(super) fn keep_still(&mut self, token: u64, now: Moment) -> Result<(), Problem> {
        if self.changes.is_none() {
            return Err(Problem::new(
                Code::UnsupportedCapability,
                "the files of this sandbox can't be read from outside: an earlier version of Saggar made it",
                "create a new sandbox",
            ));
        }
        if self.still.is_none() && self.paused.is_none() {
            self.freeze()?;
        }
        self.still.get_or_insert(now);
        let reply = Reply::Still(Box::new(Stillness {
            base: self.changes.as_ref().and_then(|changes| changes.base),
            was_paused: self.paused.is_some(),
        }));
        let (Some(connection), Some(changes)) = (self.connections.get_mut(&token), &self.changes) else {
            return Ok(());
        };
        connection.role = Role::Stilling;
        if connection.hand_over(&reply, changes.upper.as_fd()).is_err() {
            self.connections.remove(&token);
        }
        self.end_stillness(now);
        Ok(())
    }

    /// Handles what a connection says that keeps the sandbox still.
    pub(super) fn obey_stilling(&mut self, token: u64, json: &[u8], now: Moment) {
        if !matches!(read_request(json), Ok(Op::GoOn)) {
            self.refuse_frame(token, "this connection keeps the sandbox still, and can only end that");
            return self.end_stillness(now);
        }
        let was_still = self.still.is_some();
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.role = Role::Leaving;
        }
        // Before the answer: who hears it may count on a sandbox that goes on.
        self.end_stillness(now);
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.say(&Reply::WentOn { was_still });
        }
    }

    /// Thaws everything once no connection keeps it still.
    pub(super) fn end_stillness(&mut self, now: Moment) {
        let Some(since) = self.still else { return };
        if self.connections.values().any(|connection| matches!(connection.role, Role::Stilling)) {
            return;
        }
        // If it can't be thawed it is frozen for good; its owner can kill it, and a pause and a resume try again.
        if self.paused.is_none() && self.thaw().is_err() {
            return;
        }
        self.still = None;
        if self.paused.is_none() {
            let span = now.since(since);
            self.execs.iter_mut().filter_map(|exec| exec.deadline.as_mut()).for_each(|deadline| deadline.move_on(span));
        }
    }

    /// When it has stood still for too long.
    pub(super) fn still_until(&self) -> Option<Moment> {
        self.still.map(|since| since + STILL_MAX)
    }

    /// Drops readers that take too long.
    pub(super) fn tick_still(&mut self, now: Moment) {
        if self.still_until().is_none_or(|until| now < until) {
            return;
        }
        self.connections.retain(|_, connection| !matches!(connection.role, Role::Stilling));
        self.end_stillness(now);
    }
}
