//! A world for tests: real connections, keys in memory, and a ledger that behaves as the store's.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use saggar_domain::model::Micros;
use saggar_domain::secret::{Binding, SecretName, SecretValue, Slot};
use saggar_domain::{ProjectId, RunId, SandboxId};
use saggar_egress::outside::Outside;
use saggar_egress::tls::Roots;
use saggar_gateway::{
    Answer, Ask, Bill, Caller, Catalogue, ClientWire, Failure, Gateway, ProviderKey, Reservation, ReserveError,
    Reserved, WayOut, World,
};
use saggar_supervisor::egress::Upstream;

/// Tokens that the budget of any run leaves.
pub const RUN_LEAVES: u64 = 100_000;
pub const PROJECT: &str = "prj_aaaaaaaaaaaaaaaaaaaaaaaaab";

#[derive(Default)]
pub struct Books {
    reserved: HashMap<String, Micros>,
    spent: Micros,
    pub bills: Vec<Bill>,
    pub refused: usize,
}

pub struct TestWorld {
    /// Told when a call is about to be booked. The booking takes another turn of the runtime.
    pub booking: tokio::sync::Notify,
    out: WayOut,
    pub books: Mutex<Books>,
    /// Bookings that fail from now on.
    pub unbooked: AtomicU32,
    /// Told when the run of the callers is over.
    pub run_ends: Arc<tokio::sync::Notify>,
    /// Whose keys were asked for.
    keys_of: Mutex<Vec<ProjectId>>,
    /// The slot and the host that every key is bound to.
    bound: (Slot, &'static str),
}

impl TestWorld {
    pub fn new(slot: Slot, host: &'static str) -> Arc<Self> {
        let upstream = Upstream { servers: Vec::new(), hosts: Default::default(), own: Vec::new() };
        let outside = Outside::new(upstream, &Roots::from_pem(Vec::new())).expect("TLS needs nothing");
        let out = WayOut { outside: Arc::new(outside), own: Vec::new() };
        Arc::new(Self {
            booking: Default::default(),
            run_ends: Default::default(),
            out,
            books: Mutex::default(),
            unbooked: AtomicU32::new(0),
            keys_of: Mutex::default(),
            bound: (slot, host),
        })
    }

    pub fn bills(&self) -> Vec<Bill> {
        self.books.lock().expect("no test panics inside").bills.clone()
    }

    pub fn spent(&self) -> Micros {
        self.books.lock().expect("no test panics inside").spent
    }

    pub fn asked_for_keys(&self) -> Vec<ProjectId> {
        self.keys_of.lock().expect("no test panics inside").clone()
    }

    /// Waits until so many calls are booked.
    pub async fn booked(&self, count: usize) -> Vec<Bill> {
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            let bills = self.bills();
            if bills.len() >= count {
                return bills;
            }
            assert!(tokio::time::Instant::now() < deadline, "only {} calls are booked", bills.len());
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}

impl World for TestWorld {
    fn way_out(&self) -> BoxFuture<'_, Result<WayOut, String>> {
        let out = self.out.clone();
        Box::pin(async move { Ok(out) })
    }

    fn key<'a>(&'a self, project: &'a ProjectId, name: &'a SecretName) -> BoxFuture<'a, Result<ProviderKey, String>> {
        Box::pin(async move {
            self.keys_of.lock().expect("no test panics inside").push(project.clone());
            let rule = self.bound.1.parse().map_err(|error| format!("{error}"))?;
            let binding = Binding::new(vec![rule], self.bound.0.clone(), None).map_err(|problem| problem.message)?;
            let value = SecretValue::parse(&format!("canary-{name}")).map_err(|error| error.to_string())?;
            Ok(ProviderKey { binding, value })
        })
    }

    fn reserve(&self, reservation: Reservation) -> BoxFuture<'_, Result<Reserved, ReserveError>> {
        Box::pin(async move {
            let mut books = self.books.lock().expect("no test panics inside");
            let by_run = reservation.caller.run_of_sandbox().is_some();
            if by_run && reservation.output > RUN_LEAVES {
                let (left, wanted) = (RUN_LEAVES.to_string(), reservation.output.to_string());
                return Err(ReserveError::RunExhausted { budget: "tokens", left, wanted });
            }
            let gone = books.reserved.values().fold(books.spent, |sum, amount| sum.plus(*amount));
            if reservation.limit.is_some_and(|limit| gone.plus(reservation.amount) > limit.limit) {
                books.refused += 1;
                return Err(ReserveError::Exhausted { gone });
            }
            books.reserved.insert(reservation.call, reservation.amount);
            Ok(Reserved { by_run })
        })
    }

    fn over(&self, caller: &Caller) -> BoxFuture<'static, String> {
        if caller.run_of_sandbox().is_none() {
            return Box::pin(std::future::pending());
        }
        let ended = Arc::clone(&self.run_ends);
        Box::pin(async move {
            ended.notified().await;
            "the run is over".to_owned()
        })
    }

    fn settle(&self, bill: Bill) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.booking.notify_one();
            tokio::task::yield_now().await;
            if self.unbooked.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                return Err("the store is full".to_owned());
            }
            let mut books = self.books.lock().expect("no test panics inside");
            assert_eq!(books.reserved.remove(&bill.call).is_some(), bill.is_reserved);
            assert!(books.bills.iter().all(|other| other.call != bill.call), "a call is booked once");
            books.spent = books.spent.plus(bill.usage.cost);
            books.bills.push(bill);
            Ok(())
        })
    }

    fn now(&self) -> (u64, u64) {
        (20_000, 1_728_000_000)
    }
}

pub fn gateway(world: &Arc<TestWorld>, catalogue: &str) -> Gateway {
    Gateway::new(
        Arc::clone(world) as Arc<dyn World>,
        Catalogue::parse(catalogue).expect("the test's catalogue is good"),
    )
}

pub fn caller() -> Caller {
    Caller::project(ProjectId::parse(PROJECT).expect("it is an id"))
}

/// A program in a sandbox of a run.
pub fn inside() -> Caller {
    let (run, sandbox) = (RunId::from_random([1; 16]), SandboxId::from_random([2; 16]));
    Caller { run: Some(run), sandbox: Some(sandbox), ..caller() }
}

pub fn ask(wire: ClientWire, body: &serde_json::Value) -> Ask {
    Ask { wire, headers: http::HeaderMap::new(), body: body.to_string().into() }
}

/// The whole answer as text, a stream's pieces joined.
pub async fn text(answer: Result<Answer, Failure>) -> Result<String, Failure> {
    match answer? {
        Answer::Whole { body, .. } => Ok(String::from_utf8_lossy(&body).into_owned()),
        Answer::Stream { mut pieces, .. } => {
            let mut all = Vec::new();
            while let Some(piece) = pieces.recv().await {
                all.extend_from_slice(&piece);
            }
            Ok(String::from_utf8_lossy(&all).into_owned())
        }
    }
}
