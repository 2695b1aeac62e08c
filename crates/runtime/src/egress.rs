//! The egress process of a server's sandboxes: started when it is first needed, adopted by the next server, restarted when it dies.
//!
//! ```text
//!          ensure                         its connection ends
//!  (none) ────────▶ started or adopted ─────────────────────▶ (none) ──▶ started again, at once
//!                       │ of another version
//!                       └──▶ a new one is started, the old one is told to retire and ends with its last session
//! ```
//! The process outlives this one. Its supervisors connect to it by the name of its socket, so replacing the name is enough for new
//! sessions to go to another process. A server and workers may share a data directory: a lock decides who starts a process.

mod calls;
mod process;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use saggar_domain::secret::Grant;
use saggar_domain::{Code, Problem, SandboxId};
use saggar_sandbox::EgressPlace;
use saggar_supervisor::egress::{ManageError, Management, Upstream, backoff, upstream_of_the_host};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::models::ModelConnection;

/// How often the host's name servers and addresses are read.
const UPSTREAM_EVERY: Duration = Duration::from_secs(10);

/// How long an answer may wait to be read.
const ANSWERING: Duration = Duration::from_millis(10);

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Service {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    place: EgressPlace,
    program: PathBuf,
    /// The process that takes new sessions.
    current: tokio::sync::Mutex<Option<Arc<Link>>>,
    /// Processes that were replaced, and still have sessions.
    replaced: Mutex<Vec<Arc<Link>>>,
    /// Who takes connections of sandboxes to models.
    models: OnceLock<mpsc::Sender<ModelConnection>>,
}

/// A connection to a process.
#[derive(Debug)]
struct Link {
    management: Mutex<Management>,
    is_over: AtomicBool,
}

impl Service {
    /// Starts nothing.
    pub(crate) fn open(data: &Path, program: PathBuf) -> std::io::Result<Self> {
        let inner = Inner {
            place: EgressPlace::open(data)?,
            program,
            current: Default::default(),
            replaced: Mutex::default(),
            models: OnceLock::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Makes sure that a process serves the sandboxes.
    pub async fn ensure(&self) -> Result<(), Problem> {
        let mut current = self.inner.current.lock().await;
        if current.as_ref().is_some_and(|link| !link.is_over()) {
            return Ok(());
        }
        let management = self.connect_or_start().await?;
        let link = self.hold(management)?;
        self.lead_models(&link).await?;
        *current = Some(link);
        Ok(())
    }

    /// Replaces all secrets of a sandbox. If it has no session, the problem's code is [`Code::SandboxEnded`].
    pub async fn bind_secrets(&self, sandbox: SandboxId, grants: Vec<Grant>) -> Result<(), Problem> {
        let current = self.inner.current.lock().await.clone();
        let links: Vec<Arc<Link>> = current.into_iter().chain(self.inner.replaced().iter().cloned()).collect();
        blocking(move || {
            let mut outcome = Err(Problem::new(
                Code::SandboxEnded,
                format!("no egress process has a session of {sandbox}"),
                "it may have ended; a session that opens later gets its secrets then",
            ));
            for link in links.iter().filter(|link| !link.is_over()) {
                outcome = link.management().bind(sandbox.clone(), grants.clone());
                match &outcome {
                    Err(problem) if problem.code == Code::SandboxEnded => {}
                    Ok(()) | Err(_) => break,
                }
            }
            outcome
        })
        .await?
    }

    /// Finds the processes of earlier servers. Starts one if `is_needed`.
    pub(crate) async fn adopt(&self, is_needed: bool) -> Result<(), Problem> {
        self.sweep().await;
        let this = self.clone();
        let replaced = blocking(move || {
            this.inner
                .place
                .replaced()
                .iter()
                .filter_map(|address| Management::connect(address).ok())
                .collect::<Vec<_>>()
        })
        .await?;
        for management in replaced {
            let link = self.hold(management)?;
            self.inner.replaced().push(link);
        }
        let this = self.clone();
        let exists = blocking(move || this.inner.place.address().exists()).await?;
        if is_needed || exists { self.ensure().await } else { Ok(()) }
    }

    /// Removes what processes left that have ended.
    pub(crate) async fn sweep(&self) {
        let this = self.clone();
        if let Err(problem) = blocking(move || this.inner.place.sweep()).await {
            tracing::error!(error = %problem, "removing the leftovers of egress processes failed");
        }
    }

    async fn connect_or_start(&self) -> Result<Management, Problem> {
        let this = self.clone();
        let (lock, found) = blocking(move || {
            let lock = this.inner.place.lock().map_err(|error| failed(&error.kind()))?;
            Ok::<_, Problem>((lock, Management::connect(&this.inner.place.address())))
        })
        .await??;
        let old = match found {
            Ok(management) if management.version == env!("CARGO_PKG_VERSION") => {
                tracing::info!(sessions = management.sessions, "adopted the egress process");
                return Ok(management);
            }
            Ok(management) => Some(management),
            Err(ManageError::Absent(_)) => None,
            Err(ManageError::Failed(problem)) => {
                tracing::warn!(error = %problem, "the egress process does not answer; starting another one");
                None
            }
        };
        let (place, program) = (&self.inner.place, &self.inner.program);
        process::start(place, program, &lock).await?;
        let address = place.address();
        let management = blocking(move || Management::connect(&address)).await?.map_err(|error| match error {
            ManageError::Absent(errno) => failed(&errno),
            ManageError::Failed(problem) => problem,
        })?;
        drop(lock);
        tracing::info!("started an egress process");
        if let Some(mut old) = old {
            let (version, sessions) = (old.version.clone(), old.sessions);
            let old = blocking(move || old.retire().map(|()| old)).await?;
            tracing::info!(version, sessions, "replaced the egress process of another version");
            // It may have ended at once.
            if let Ok(link) = old.and_then(|old| self.hold(old)) {
                self.inner.replaced().push(link);
            }
        }
        Ok(management)
    }

    /// Keeps a connection, and watches it.
    fn hold(&self, management: Management) -> Result<Arc<Link>, Problem> {
        // Only its readiness is waited for: the runtime has no type for sockets of packets.
        let socket = management.as_fd().try_clone_to_owned().map_err(|error| failed(&error.kind()))?;
        rustix::io::ioctl_fionbio(&socket, true).map_err(|errno| failed(&errno))?;
        let socket = UnixStream::from_std(socket.into()).map_err(|error| failed(&error.kind()))?;
        let link = Arc::new(Link { management: Mutex::new(management), is_over: AtomicBool::new(false) });
        let (watched, service) = (Arc::clone(&link), Arc::downgrade(&self.inner));
        tokio::spawn(async move {
            watched.watch(&socket).await;
            watched.is_over.store(true, Ordering::Release);
            restart(service, &watched).await;
        });
        Ok(link)
    }
}

impl Inner {
    fn replaced(&self) -> MutexGuard<'_, Vec<Arc<Link>>> {
        self.replaced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn management(&self) -> MutexGuard<'_, Management> {
        self.management.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until the process has ended. Meanwhile it hears of changes of the host's network.
    async fn watch(self: &Arc<Self>, socket: &UnixStream) {
        let mut known = read_upstream().await;
        loop {
            tokio::select! {
                () = self.ended(socket) => return,
                () = tokio::time::sleep(UPSTREAM_EVERY) => {}
            }
            let now = read_upstream().await;
            if now.is_none() || now == known {
                continue;
            }
            known.clone_from(&now);
            let this = Arc::clone(self);
            let told = blocking(move || now.map_or(Ok(()), |now| this.management().replace_upstream(now))).await;
            match told.and_then(|told| told) {
                Ok(()) => tracing::info!("the host's network has changed; told the egress process"),
                Err(problem) => {
                    tracing::warn!(error = %problem, "telling the egress process about the host's network failed")
                }
            }
        }
    }

    /// Until the other side has closed. The process says nothing unasked, but its answers make the socket readable, too.
    async fn ended(&self, socket: &UnixStream) {
        use rustix::net::{RecvFlags, recv};
        loop {
            let peek = || Ok(recv(socket, &mut [0u8; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT)?);
            if socket.readable().await.is_err() {
                return;
            }
            match socket.try_io(Interest::READABLE, peek) {
                // An answer, which another thread is about to read, or which came too late for it.
                Ok((_, 1..)) => {
                    tokio::time::sleep(ANSWERING).await;
                    if let Ok(mut management) = self.management.try_lock() {
                        management.forget_late();
                    }
                }
                Err(error)
                    if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted) => {}
                Ok(_) | Err(_) => return,
            }
        }
    }
}

/// Starts another process in the place of one that has ended, unless that one was replaced.
async fn restart(service: Weak<Inner>, ended: &Arc<Link>) {
    for failed in 0.. {
        let Some(inner) = service.upgrade() else { return };
        inner.replaced().retain(|link| !Arc::ptr_eq(link, ended));
        let is_current = inner.current.lock().await.as_ref().is_some_and(|current| Arc::ptr_eq(current, ended));
        if !is_current {
            return;
        }
        if failed == 0 {
            tracing::warn!("the egress process ended; sandboxes have no network until another one serves them");
        }
        match (Service { inner }).ensure().await {
            Ok(()) => return,
            Err(problem) => tracing::error!(error = %problem, "starting the egress process failed"),
        }
        tokio::time::sleep(backoff(failed)).await;
    }
}

async fn read_upstream() -> Option<Upstream> {
    blocking(upstream_of_the_host).await.ok()?.ok()
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work).await.map_err(|error| failed(&error))
}

fn failed(why: &dyn std::fmt::Display) -> Problem {
    Problem::new(
        Code::SetupFailed,
        format!("the egress process can't be started: {why}"),
        "try again; `saggar doctor` shows whether this host can manage a sandbox's network",
    )
}
