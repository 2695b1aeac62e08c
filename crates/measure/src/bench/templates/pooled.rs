//! Sandboxes from the pools of a server: of the host's template, and of an image.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::POOLED;
use super::image::run;
use crate::bench::server::life::{SANDBOXES, create, exec, kill, timed};
use crate::bench::statistics::median;
use crate::http::{Ask, Client};
use crate::patience::{pause, wait_until};
use crate::serving::Serving;

/// Requests: of the host's template, and of the image.
const WANTED: [&str; 2] = [r#"{"ttl":"1h"}"#, r#"{"ttl":"1h","template":"small"}"#];
/// Pools are full when their number hasn't changed for this long.
const QUIET: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(30);
/// Demand for both, before a pool of the image is expected.
const WARM_UP: usize = 10;

pub struct Pooled {
    server: Serving,
    client: Client,
}

impl Pooled {
    pub fn prepare(saggar: &Path, place: &Path, image: &Path) -> Result<Self> {
        let flags = ["--log", "warn", "--pool-min", "4", "--pool-max", "8", "--public-templates", "small"];
        let server = Serving::start(saggar, &place.join("pooled"), &flags)?;
        run(Command::new(saggar).args(["template", "import"]).arg(image).arg("--data-dir").arg(server.data()))?;
        let client = server.client();
        let mut pooled = Self { server, client };
        for _ in 0..WARM_UP {
            for wanted in WANTED {
                pooled.live_once(wanted)?;
            }
        }
        for wanted in WANTED {
            ensure!(pooled.is_pooled(wanted)?, "a sandbox like {wanted} doesn't come from a pool");
        }
        Ok(pooled)
    }

    /// Medians of a create, a first command and a kill, in ms.
    pub fn round(&mut self) -> Result<[f64; 2]> {
        let mut times = [Vec::new(), Vec::new()];
        for run in 0..POOLED {
            for at in [run % 2, (run + 1) % 2] {
                times[at].push(self.live_once(WANTED[at])?);
            }
        }
        Ok(times.map(|times| median(&times)))
    }

    fn live_once(&mut self, wanted: &str) -> Result<f64> {
        self.wait_until_quiet()?;
        let client = &mut self.client;
        let life = || {
            let id = create(client, wanted)?;
            exec(client, &id, &["/bin/busybox", "true"])?;
            kill(client, &id)
        };
        timed(life).map(|((), time)| time)
    }

    fn is_pooled(&mut self, wanted: &str) -> Result<bool> {
        self.wait_until_quiet()?;
        let client = &mut self.client;
        let id = create(client, wanted)?;
        let path = format!("{SANDBOXES}/{id}/events");
        let mut is_claimed = false;
        // Its events are stored a moment later.
        wait_until("its first event", PATIENCE, || {
            let events = client.ask(Ask::new("GET", &path)).context("asking for events")?.expect(200)?.text();
            is_claimed = events.contains(r#""claimed""#);
            Ok(events.contains(r#""started""#))
        })?;
        kill(client, &id)?;
        Ok(is_claimed)
    }

    /// Waits until no pool is being filled: that would disturb what is measured.
    fn wait_until_quiet(&self) -> Result<()> {
        let (mut count, mut since) = (self.server.sockets()?, Instant::now());
        let begin = Instant::now();
        while since.elapsed() < QUIET {
            ensure!(begin.elapsed() < PATIENCE, "the pools don't come to rest");
            pause(QUIET / 10);
            let now = self.server.sockets()?;
            if now != count {
                (count, since) = (now, Instant::now());
            }
        }
        Ok(())
    }
}
