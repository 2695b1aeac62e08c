//! Lookups that are under way: connections to the same name at the same time share one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use saggar_domain::net::HostName;
use tokio::sync::OnceCell;

/// Ended lookups are swept out when there are more entries than this.
const SWEEP_AT: usize = 256;

#[derive(Debug)]
pub(super) struct Flights<T> {
    /// Weak: a lookup lives as long as a connection waits for it.
    under_way: Mutex<HashMap<HostName, Weak<OnceCell<T>>>>,
}

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Self { under_way: Mutex::default() }
    }
}

impl<T: Clone> Flights<T> {
    /// The outcome of `lookup`, or that of one for the same name which others wait for. If the connection that runs the
    /// lookup is given up, the next one that waits runs its own.
    pub async fn share(&self, name: &HostName, lookup: impl Future<Output = T>) -> T {
        let cell = self.join(name);
        cell.get_or_init(|| lookup).await.clone()
    }

    fn join(&self, name: &HostName) -> Arc<OnceCell<T>> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = under_way.get(name).and_then(Weak::upgrade) {
            return cell;
        }
        if under_way.len() >= SWEEP_AT {
            under_way.retain(|_, cell| cell.strong_count() > 0);
        }
        let cell = Arc::default();
        under_way.insert(name.clone(), Arc::downgrade(&cell));
        cell
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn lookups_at_the_same_time_are_one() {
        let flights = Flights::default();
        let (a, b): (HostName, HostName) = ("a.example".parse().unwrap(), "b.example".parse().unwrap());
        let runs = Cell::new(0);
        let lookup = async || {
            runs.set(runs.get() + 1);
            tokio::task::yield_now().await;
            runs.get()
        };
        let together =
            tokio::join!(flights.share(&a, lookup()), flights.share(&a, lookup()), flights.share(&b, lookup()));
        assert_eq!((together, runs.get()), ((2, 2, 2), 2));
        assert_eq!(flights.share(&a, lookup()).await, 3, "an ended lookup is not shared");
    }

    #[tokio::test]
    async fn a_lookup_that_is_given_up_is_run_by_the_next() {
        let flights = Flights::default();
        let name: HostName = "a.example".parse().unwrap();
        let mut first = Box::pin(flights.share(&name, std::future::pending::<u8>()));
        let mut second = Box::pin(flights.share(&name, async { 2 }));
        tokio::select! {
            biased;
            _ = &mut first => panic!("the first never ends"),
            _ = &mut second => panic!("the second waits for the first"),
            () = tokio::task::yield_now() => {}
        }
        drop(first);
        assert_eq!(second.await, 2);
    }

    #[test]
    fn ended_lookups_do_not_pile_up() {
        let flights = Flights::<u8>::default();
        for index in 0..10 * SWEEP_AT {
            drop(flights.join(&format!("n{index}.example").parse().unwrap()));
        }
        assert!(flights.under_way.lock().unwrap().len() <= SWEEP_AT);
    }
}
