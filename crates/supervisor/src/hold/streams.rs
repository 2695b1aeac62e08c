//! Streams: sends output and events to followers, and forwards stdin.
//!
//! While an exec has followers, the agent gets credit back only as the slowest of them advances, so a slow reader makes
//! the program wait, as with any pipe. A reader that takes nothing for too long is no longer waited for, and is told
//! what it missed. Without followers the ring just moves on.

use std::collections::BTreeMap;

use saggar_guest::ToGuest;

use crate::control::{EventBody, Frame, Reply, encode_output};

use super::connection::{Connection, Following, Role};
use super::exec::{Exec, Feed, Lie};
use super::happenings::Heard;
use super::holder::Hold;
use super::moment::Moment;
use super::ring::Piece;

const PIECE_LEN: usize = 32 * 1024;

impl Hold {
    /// Sends everything that can be sent now.
    pub(super) fn pump(&mut self, now: Moment) {
        self.tell_ends(now);
        let Self { connections, execs, happenings, revisit, proxied, .. } = self;
        let is_settling = |number| proxied.as_ref().is_some_and(|proxied| proxied.is_settling(number));
        connections.retain(|token, connection| {
            let had_unsent = connection.has_unsent();
            // Until the reader takes no more, or nothing is left.
            loop {
                let number = followed(connection);
                let exec = execs.get(number).map(|exec| (exec, is_settling(number)));
                fill(connection, exec, |after| happenings.next(after), now);
                let is_moving = connection.has_unsent();
                if connection.flush(now).is_err() {
                    return connection.is_heard_out();
                }
                if !is_moving || connection.has_unsent() {
                    break;
                }
            }
            if had_unsent && !connection.has_unsent() {
                revisit.push_back(*token);
            }
            connection.has_unsent() || !matches!(connection.role, Role::Leaving)
        });
        self.settle();
    }

    /// Records events about execs that ended in this round, with what is known of them by its end.
    fn tell_ends(&mut self, now: Moment) {
        let proxied = &self.proxied;
        let is_settling = |exec: &Exec| proxied.as_ref().is_some_and(|proxied| proxied.is_settling(exec.number));
        let news = |exec: &mut Exec| {
            let is_news = !is_settling(exec) && std::mem::take(&mut exec.is_news);
            is_news.then(|| EventBody::ExecEnded(Box::new(exec.state(now))))
        };
        let events: Vec<EventBody> = self.execs.iter_mut().filter_map(news).collect();
        events.into_iter().for_each(|event| self.tell(event));
    }

    /// Returns credit, drops what is no longer needed, and sends stdin that now fits.
    fn settle(&mut self) {
        let Self { connections, execs, .. } = self;
        let needed = |number: u32| needed(connections, number);
        let mut frames = Vec::new();
        for exec in execs.iter_mut() {
            let taken = needed(exec.number).unwrap_or_else(|| exec.ring.end());
            exec.ring.trim(taken);
            if let Some(bytes) = exec.credit(taken) {
                frames.push(ToGuest::OutputTaken { exec: exec.number, bytes });
            }
            while let Some(feed) = exec.stdin.next() {
                frames.push(match feed {
                    Feed::Bytes(bytes) => ToGuest::Stdin { exec: exec.number, bytes },
                    Feed::End => ToGuest::StdinEnd { exec: exec.number },
                });
            }
        }
        execs.shed(needed);
        frames.iter().for_each(|frame| self.say(frame));
    }

    /// Drops output past an exec's bound that no reader waits for.
    pub(super) fn trim(&mut self, number: u32) {
        let needed = needed(&self.connections, number).unwrap_or(u64::MAX);
        if let Some(exec) = self.execs.get_mut(number) {
            exec.ring.trim(needed);
        }
    }

    /// Whether a client waits for a program.
    pub(super) fn is_busy(&self) -> bool {
        self.connections.values().any(|connection| match &connection.role {
            Role::Following(following) => self.execs.get(following.exec).is_some_and(Exec::is_running),
            Role::Starting { .. } => true,
            Role::Asking
            | Role::Hearing { .. }
            | Role::Burying { .. }
            | Role::Ruling
            | Role::BeginningAgain
            | Role::Stilling
            | Role::Dying
            | Role::Leaving => false,
        })
    }

    /// Whether the exec's feeder has to wait.
    pub(super) fn is_backed_up(&self, exec: u32) -> bool {
        self.execs.get(exec).is_some_and(|exec| exec.stdin.is_backed_up())
    }

    pub(super) fn has_feeder(&self, number: u32) -> bool {
        self.connections.values().any(|connection| match &connection.role {
            Role::Following(following) => following.exec == number && following.feeds && !connection.is_over,
            Role::Starting { exec, feeds, .. } => *exec == number && *feeds,
            Role::Asking
            | Role::Hearing { .. }
            | Role::Burying { .. }
            | Role::Ruling
            | Role::BeginningAgain
            | Role::Stilling
            | Role::Dying
            | Role::Leaving => false,
        })
    }

    /// Handles the frames that arrived on a connection, as far as its role allows.
    pub(super) fn heed(&mut self, token: u64, now: Moment) {
        loop {
            let Some(connection) = self.connections.get(&token) else { return };
            let is_ready = match &connection.role {
                Role::Asking => !connection.has_unsent(),
                Role::Following(following) => !self.is_backed_up(following.exec),
                Role::Starting { .. } => false,
                Role::Hearing { .. }
                | Role::Burying { .. }
                | Role::Ruling
                | Role::BeginningAgain
                | Role::Stilling
                | Role::Dying
                | Role::Leaving => true,
            };
            let Some(connection) = self.connections.get_mut(&token) else { return };
            if !is_ready {
                return;
            }
            let frame = match connection.decoder.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(error) => {
                    self.refuse_frame(token, &error.to_string());
                    return;
                }
            };
            match (&connection.role, frame) {
                (Role::Asking, Frame::Json(json)) => self.obey(token, &json, now),
                (Role::Stilling, Frame::Json(json)) => self.obey_stilling(token, &json, now),
                (Role::Following(Following { exec, feeds, .. }), Frame::Stdin(bytes)) => {
                    let (exec, feeds) = (*exec, *feeds);
                    self.lifetime.touch(now);
                    if let Some(exec) = self.execs.get_mut(exec).filter(|_| feeds) {
                        exec.stdin.take(bytes);
                    }
                    self.feed(exec);
                }
                (Role::Following(Following { exec, .. }), Frame::Json(json)) => {
                    let exec = *exec;
                    self.lifetime.touch(now);
                    self.obey_follower(token, exec, &json);
                }
                (Role::Asking, Frame::Stdin(_)) => self.refuse_frame(token, "stdin was sent before a request"),
                (Role::Asking | Role::Following(_), Frame::Output { .. }) => {
                    self.refuse_frame(token, "only the supervisor sends output");
                }
                // No more frames are expected on these.
                (
                    Role::Starting { .. }
                    | Role::Hearing { .. }
                    | Role::Burying { .. }
                    | Role::Ruling
                    | Role::BeginningAgain
                    | Role::Stilling
                    | Role::Dying
                    | Role::Leaving,
                    _,
                ) => {}
            }
        }
    }

    /// Sends stdin as far as the window allows.
    pub(super) fn feed(&mut self, number: u32) {
        while let Some(feed) = self.execs.get_mut(number).and_then(|exec| exec.stdin.next()) {
            self.say(&match feed {
                Feed::Bytes(bytes) => ToGuest::Stdin { exec: number, bytes },
                Feed::End => ToGuest::StdinEnd { exec: number },
            });
        }
    }

    /// The agent took stdin, so there may be room for what a feeder has sent since.
    pub(super) fn hear_stdin_taken(&mut self, number: u32, bytes: u32) -> Result<(), Lie> {
        self.execs.get_mut(number).ok_or(Lie)?.hear_stdin_taken(bytes)?;
        self.feed(number);
        let feeders = self.connections.iter().filter_map(|(token, connection)| match &connection.role {
            Role::Following(following) if following.exec == number && following.feeds => Some(*token),
            _ => None,
        });
        self.revisit.extend(feeders);
        Ok(())
    }
}

/// The position from which an exec's output is still needed, if it has a follower that is waited for.
fn needed(connections: &BTreeMap<u64, Connection>, number: u32) -> Option<u64> {
    let following = connections.values().filter_map(|connection| match &connection.role {
        Role::Following(following) if following.exec == number && !following.is_lossy => Some(following),
        _ => None,
    });
    following.map(|following| following.cursor.at()).min()
}

fn followed(connection: &Connection) -> u32 {
    match &connection.role {
        Role::Following(following) => following.exec,
        Role::Asking
        | Role::Starting { .. }
        | Role::Hearing { .. }
        | Role::Burying { .. }
        | Role::Ruling
        | Role::BeginningAgain
        | Role::Stilling
        | Role::Dying
        | Role::Leaving => 0,
    }
}

/// Fills a connection's buffer with what it waits for, as far as there is room. The end of an exec waits until it is settled.
pub(super) fn fill<'a>(
    connection: &mut Connection,
    exec: Option<(&Exec, bool)>,
    mut heard: impl FnMut(&mut u64) -> Option<Heard<'a>>,
    now: Moment,
) {
    if !connection.has_unsent() {
        // A reader's time-out begins when there is something for it to read.
        if matches!(connection.role, Role::Following(_)) {
            connection.moved = now;
        }
    }
    while connection.has_room() && !connection.is_deaf() {
        match &mut connection.role {
            Role::Following(following) => {
                let Some((exec, is_settling)) = exec else {
                    // The exec was dropped for lack of room while this reader was not waited for.
                    connection.role = Role::Leaving;
                    return;
                };
                match exec.ring.read(&mut following.cursor, PIECE_LEN) {
                    Some(Piece::Bytes { stream, offset, bytes }) => {
                        encode_output(connection.out(), stream, offset, bytes).expect("a piece fits into a frame");
                    }
                    Some(Piece::Gap { stream, bytes }) => {
                        connection.say(&Reply::Gap { stream, bytes });
                    }
                    None if exec.is_running() || is_settling => {
                        // It has everything so far, so it is waited for again like any other.
                        following.is_lossy = false;
                        return;
                    }
                    None => {
                        connection.say(&Reply::Exited(Box::new(exec.state(now))));
                        connection.role = Role::Leaving;
                        return;
                    }
                }
            }
            Role::Hearing { after } => match heard(after) {
                Some(Heard::Gone(through)) => connection.say(&Reply::EventsGone { through }),
                Some(Heard::Event(event)) => connection.say(&Reply::Event(Box::new(event.clone()))),
                None => return,
            },
            Role::Asking
            | Role::Starting { .. }
            | Role::Burying { .. }
            | Role::Ruling
            | Role::BeginningAgain
            | Role::Stilling
            | Role::Dying
            | Role::Leaving => return,
        }
    }
}
