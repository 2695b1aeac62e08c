//! What all sessions of a process share: nothing that one of them can change.

use std::sync::Arc;

use saggar_supervisor::egress::Upstream;

use crate::dial::Dial;
use crate::models::Models;
use crate::resolve::{self, Dialer};
use crate::tls::Roots;

#[derive(Clone)]
pub struct Setting {
    /// Trusted for the servers outside.
    pub roots: Roots,
    /// Makes the dialer of a session.
    pub dialers: Dialers,
    /// The models of the server.
    pub models: Models,
}

pub type Dialers = Arc<dyn Fn(&Upstream) -> Arc<dyn Dial> + Send + Sync>;

impl Setting {
    /// Sessions ask the host's name servers. Each has its own cache.
    pub fn of_the_host(roots: Roots) -> Self {
        let dialers: Dialers = Arc::new(|upstream: &Upstream| {
            let Upstream { servers, hosts, own: _ } = upstream.clone();
            Arc::new(Dialer::new(resolve::Upstream::new(servers, hosts)))
        });
        Self { roots, dialers, models: Models::default() }
    }
}
