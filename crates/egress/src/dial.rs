//! How a session reaches the outside world: by the resolver and dialer in production, by a table in tests.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use saggar_domain::net::{Destination, Rules};

use crate::resolve::{DialError, Dialed, Dialer};

pub trait Dial: Send + Sync + 'static {
    /// Connects to an address of `to` that `rules` allow. Dropping the future closes what was opened.
    fn dial<'a>(
        &'a self,
        to: &'a Destination,
        rules: &'a Rules,
        within: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<Dialed, DialError>> + Send + 'a>>;
}

impl Dial for Dialer {
    fn dial<'a>(
        &'a self,
        to: &'a Destination,
        rules: &'a Rules,
        within: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<Dialed, DialError>> + Send + 'a>> {
        Box::pin(Dialer::dial(self, to, rules, within))
    }
}
