//! Admission of connections, and which idle one is closed if the limit is reached.
//!
//! A connection without a request in progress is idle. Reopening an idle connection is cheap for its client, so idle
//! ones give way to new ones: of the same address if that has reached its limit, otherwise of the address with the
//! most. A connection that never presented a valid credential is closed first, then the one that has been idle
//! longest. A connection with a request in progress is never closed for another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use super::caller::Caller;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub all: usize,
    pub per_address: usize,
}

/// All connections of a server.
#[derive(Clone, Debug)]
pub struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bounds: Bounds,
    state: Mutex<Table>,
    open: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Table {
    places: HashMap<u64, Place>,
    next: u64,
    /// A logical clock, which orders idle connections without a real clock.
    moments: u64,
}

#[derive(Debug)]
struct Place {
    address: Caller,
    requests: usize,
    is_known: bool,
    idle_since: u64,
    leave: Arc<Notify>,
}

/// The slot of one connection; freed on drop.
#[derive(Debug)]
pub struct Connection {
    all: Connections,
    number: u64,
    leave: Arc<Notify>,
}

impl Connections {
    pub fn new(bounds: Bounds) -> Self {
        let shared = Shared { bounds, state: Mutex::default(), open: watch::Sender::new(0) };
        Self(Arc::new(shared))
    }

    /// A slot for one more; `None` if there is none and no idle connection to close.
    pub fn admit(&self, address: Caller) -> Option<Connection> {
        let address = address.neighbourhood();
        let Bounds { all, per_address } = self.0.bounds;
        let mut state = self.lock();
        if state.of(&address) >= per_address {
            state.make_room(Some(&address))?;
        } else if state.places.len() >= all {
            state.make_room(None)?;
        }
        let (number, moment, leave) = (state.next, state.moment(), Arc::new(Notify::new()));
        state.next += 1;
        let place = Place { address, requests: 0, is_known: false, idle_since: moment, leave: Arc::clone(&leave) };
        state.places.insert(number, place);
        self.tell(&state);
        Some(Connection { all: self.clone(), number, leave })
    }

    /// Returns when there is no connection. May be cancelled at any await.
    pub async fn none_left(&self) {
        // It can't fail, because we hold the sender.
        let _ = self.0.open.subscribe().wait_for(|open| *open == 0).await;
    }

    fn tell(&self, state: &Table) {
        self.0.open.send_replace(state.places.len());
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn of(&self, address: &Caller) -> usize {
        self.places.values().filter(|place| place.address == *address).count()
    }

    fn moment(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }

    /// Closes one idle connection: of this address, or of the one with the most.
    fn make_room(&mut self, address: Option<&Caller>) -> Option<()> {
        let mut counts: HashMap<&Caller, usize> = HashMap::new();
        for place in self.places.values() {
            *counts.entry(&place.address).or_default() += 1;
        }
        let idle = self
            .places
            .iter()
            .filter(|(_, place)| place.requests == 0 && address.is_none_or(|address| *address == place.address));
        let first = idle.min_by_key(|(_, place)| {
            let crowd = counts.get(&place.address).copied().unwrap_or_default();
            (std::cmp::Reverse(crowd), place.is_known, place.idle_since)
        });
        let number = first.map(|(number, _)| *number)?;
        let place = self.places.remove(&number)?;
        place.leave.notify_one();
        Some(())
    }
}

impl Connection {
    /// Returns when this one has to close. May be cancelled at any await.
    pub async fn has_to_leave(&self) {
        self.leave.notified().await;
    }

    /// The client has presented a valid credential.
    pub fn is_known(&self) {
        if let Some(place) = self.all.lock().places.get_mut(&self.number) {
            place.is_known = true;
        }
    }

    /// A request has arrived, and is in progress while the returned value is held.
    pub fn begin(self: &Arc<Self>) -> Answering {
        if let Some(place) = self.all.lock().places.get_mut(&self.number) {
            place.requests += 1;
        }
        Answering(Arc::clone(self))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.all.lock();
        state.places.remove(&self.number);
        self.all.tell(&state);
    }
}

/// A request in progress on a connection.
#[derive(Debug)]
pub struct Answering(Arc<Connection>);

impl Drop for Answering {
    fn drop(&mut self) {
        let mut state = self.0.all.lock();
        let moment = state.moment();
        if let Some(place) = state.places.get_mut(&self.0.number) {
            place.requests -= 1;
            place.idle_since = moment;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use futures_util::FutureExt;
    use saggar_domain::HostUser;

    use super::*;

    const HERE: Caller = Caller::Network(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)));
    const THERE: Caller = Caller::Network(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)));

    fn network(address: &str) -> Caller {
        Caller::Network(address.parse().unwrap())
    }

    fn connections(all: usize, per_address: usize) -> Connections {
        Connections::new(Bounds { all, per_address })
    }

    fn admit(connections: &Connections, address: Caller) -> Arc<Connection> {
        Arc::new(connections.admit(address).expect("there is room"))
    }

    fn leaves(connection: &Connection) -> bool {
        connection.has_to_leave().now_or_never().is_some()
    }

    #[test]
    fn whoever_is_idle_makes_room_strangers_first_then_the_longest_idle() {
        let all = connections(3, 3);
        let known = admit(&all, HERE);
        known.is_known();
        let (old, young) = (admit(&all, HERE), admit(&all, HERE));
        // Idle since the end of its last request.
        drop(old.begin());
        let _first = admit(&all, HERE);
        assert_eq!((leaves(&known), leaves(&old), leaves(&young)), (false, false, true));
        let _second = admit(&all, HERE);
        assert_eq!((leaves(&known), leaves(&old)), (false, true));
    }

    #[test]
    fn whoever_is_answered_stays_and_one_more_is_refused() {
        let all = connections(2, 2);
        let (one, other) = (admit(&all, HERE), admit(&all, HERE));
        let answering = (one.begin(), other.begin());
        assert!(all.admit(THERE).is_none());
        drop(answering);
        assert!(all.admit(THERE).is_some());
    }

    #[test]
    fn an_address_has_its_share_and_takes_no_more_from_others() {
        let all = connections(4, 3);
        let held: Vec<_> = (0..3).map(|_| admit(&all, HERE)).collect();
        let answering: Vec<_> = held.iter().map(Connection::begin).collect();
        assert!(all.admit(HERE).is_none(), "more than its share");
        let other = admit(&all, THERE);
        assert!(all.admit(HERE).is_none() && !leaves(&other), "at the cost of another");
        drop(answering);
        // A connection of the busiest address is closed, for any new client.
        let _more = admit(&all, THERE);
        assert!(!leaves(&other) && held.iter().filter(|place| leaves(place)).count() == 1);
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one() {
        let all = connections(9, 1);
        let _held = admit(&all, network("2001:db8::1")).begin();
        assert!(all.admit(network("2001:db8::ffff:2")).is_none());
        assert!(all.admit(network("2001:db8:0:1::1")).is_some());
        let _mapped = admit(&all, network("::ffff:10.0.0.1")).begin();
        assert!(all.admit(HERE).is_none(), "one address, however it is written");
        let _user = admit(&all, Caller::Local(HostUser { uid: 1000, gid: 1 })).begin();
        assert!(all.admit(Caller::Local(HostUser { uid: 1000, gid: 2 })).is_none(), "one user, whatever group");
        assert!(all.admit(Caller::Local(HostUser { uid: 1001, gid: 1 })).is_some());
    }

    #[tokio::test]
    async fn the_last_one_to_go_is_waited_for() {
        let all = connections(2, 2);
        let one = admit(&all, HERE);
        assert!(all.none_left().now_or_never().is_none());
        drop(one);
        all.none_left().await;
    }
}
