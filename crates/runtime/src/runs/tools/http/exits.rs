//! The way out of this machine, shared by all runs of a process. Name servers and addresses of the host may change, so they are
//! read again every second while there are calls; names that were looked up are kept as long as they don't.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use saggar_domain::{Code, Problem};
use saggar_egress::outside::Outside;
use saggar_egress::tls::Roots;
use saggar_supervisor::egress::Upstream;

/// How long what was read about the host is used. Reading it takes longer than all the rest of a short call.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Exits {
    roots: OnceLock<Roots>,
    current: Mutex<Option<(Upstream, Arc<Outside>)>>,
    read: Mutex<Option<(Instant, Upstream)>>,
}

impl std::fmt::Debug for Exits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exits").finish_non_exhaustive()
    }
}

impl Exits {
    pub(crate) async fn own_addresses(&self) -> Result<Vec<IpAddr>, Problem> {
        Ok(self.upstream().await?.own)
    }

    pub(crate) async fn outside(self: &Arc<Self>) -> Result<Arc<Outside>, Problem> {
        let upstream = self.upstream().await?;
        let this = Arc::clone(self);
        // The first time, it reads the certificates of the host.
        blocking(move || this.outside_of(upstream)).await
    }

    async fn upstream(&self) -> Result<Upstream, Problem> {
        // The age counts from before it was read.
        let now = Instant::now();
        let known = self.read.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((since, upstream)) = known
            && now.duration_since(since) < FRESH
        {
            return Ok(upstream);
        }
        // The files of the kernel that it reads can be long: hundreds of thousands of routes.
        let upstream = blocking(saggar_sandbox::upstream_of_the_host).await?;
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, upstream.clone()));
        Ok(upstream)
    }

    fn outside_of(&self, upstream: Upstream) -> Result<Arc<Outside>, Problem> {
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

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Problem> + Send + 'static) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Problem::new(Code::SetupFailed, format!("the way out of this machine can't be read: {error}"), "try again"))
    })
}
