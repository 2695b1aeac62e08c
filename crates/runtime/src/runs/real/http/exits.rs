//! The way out of this machine, shared by all runs of a process. Name servers and addresses of the host may change, so they are
//! read again for each call; names that were looked up are kept as long as they don't.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use saggar_domain::{Code, Problem};
use saggar_egress::outside::Outside;
use saggar_egress::tls::Roots;
use saggar_supervisor::egress::Upstream;

#[derive(Default)]
pub(in crate::runs::real) struct Exits {
    roots: OnceLock<Roots>,
    current: Mutex<Option<(Upstream, Arc<Outside>)>>,
}

impl std::fmt::Debug for Exits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exits").finish_non_exhaustive()
    }
}

impl Exits {
    pub(super) fn own_addresses(&self) -> Result<Vec<IpAddr>, Problem> {
        Ok(saggar_sandbox::upstream_of_the_host()?.own)
    }

    pub(super) fn outside(&self) -> Result<Arc<Outside>, Problem> {
        let upstream = saggar_sandbox::upstream_of_the_host()?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, outside)) = &*current
            && *known == upstream
        {
            return Ok(Arc::clone(outside));
        }
        let roots = self.roots.get_or_init(Roots::of_the_host);
        let outside = Outside::new(upstream.clone(), roots)
            .map_err(|error| Problem::new(Code::SetupFailed, format!("TLS can't be prepared: {error}"), "report it"))?;
        let outside = Arc::new(outside);
        *current = Some((upstream, Arc::clone(&outside)));
        Ok(outside)
    }
}
