//! The clients: `wrk` for requests and `curl` for streams, each in a sandbox of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::patience::wait_until;
use crate::processes;

const SECONDS: u32 = 2;
const PATIENCE: Duration = Duration::from_secs(30);
/// The program that sandboxes run where only their start counts.
const NOTHING: &str = "/bin/true";

/// Where a request goes, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    DirectHttp,
    DirectTls,
    /// Through our egress process.
    PlainHttp,
    /// TLS that passes unread.
    PassThrough,
    Inspected,
    /// Through haproxy, TLS on both sides.
    Haproxy,
    /// The same with mitmproxy.
    Mitmproxy,
}

impl Way {
    fn url(self) -> &'static str {
        match self {
            Self::DirectHttp | Self::PlainHttp => "http://bench.test",
            Self::DirectTls | Self::PassThrough | Self::Inspected => "https://bench.test",
            Self::Haproxy => "https://127.0.0.1:8443",
            Self::Mitmproxy => "https://127.0.0.1:8444",
        }
    }

    /// The server's address is one of this host, so a rule has to name it.
    fn network(self) -> &'static [&'static str] {
        match self {
            Self::DirectHttp | Self::DirectTls | Self::Haproxy | Self::Mitmproxy => &["--net", "host"],
            Self::PlainHttp | Self::PassThrough => {
                &["--net", "proxied", "--allow", "bench.test", "--allow", "203.0.113.10"]
            }
            Self::Inspected => &["--net", "proxied", "--allow", "bench.test/**", "--allow", "203.0.113.10"],
        }
    }
}

#[derive(Debug)]
pub struct Client {
    saggar: PathBuf,
    data: PathBuf,
}

impl Client {
    pub fn new(saggar: PathBuf, place: &Path) -> Self {
        Self { saggar, data: place.join("data") }
    }

    /// Shows that every way works, before anything is timed.
    pub fn warm_up(&self) -> Result<()> {
        let ways = [
            Way::DirectHttp,
            Way::DirectTls,
            Way::PlainHttp,
            Way::PassThrough,
            Way::Inspected,
            Way::Haproxy,
            Way::Mitmproxy,
        ];
        for way in ways {
            let said = self.curl(way, "/", "%{http_code}").with_context(|| format!("trying {way:?}"))?;
            ensure!(said == "200", "{way:?} is answered with {said}");
        }
        Ok(())
    }

    /// The median time of a request on one kept connection, in ms.
    pub fn latency_ms(&self, way: Way) -> Result<f64> {
        median_ms(&self.wrk(way, 1, SECONDS, &[])?).with_context(|| format!("wrk's latency, {way:?}"))
    }

    /// The time of a new connection with one request, in ms.
    pub fn connection_ms(&self, way: Way) -> Result<f64> {
        let said = self.wrk(way, 1, SECONDS, &["--header", "Connection: close"])?;
        Ok(1000.0 / rate(&said).with_context(|| format!("wrk's rate, {way:?}"))?)
    }

    /// Requests per second on so many kept connections.
    pub fn rate(&self, way: Way, connections: usize) -> Result<f64> {
        rate(&self.wrk(way, connections, SECONDS, &[])?).with_context(|| format!("wrk's rate, {way:?}"))
    }

    /// One stream, in MB/s.
    pub fn stream_mbs(&self, way: Way) -> Result<f64> {
        let said = self.curl(way, "/stream", "%{speed_download}")?;
        Ok(said.parse::<f64>().with_context(|| format!("curl said {said:?}"))? / 1e6)
    }

    /// The memory of the egress process for each of so many inspected connections, in KiB.
    pub fn connection_kib(&self, connections: usize) -> Result<f64> {
        let held = |connections: usize| -> Result<f64> {
            let mut child =
                Held(self.command(Way::Inspected, &self.wrk_arguments(Way::Inspected, connections, 6, &[])).spawn()?);
            let mut most = 0.0_f64;
            let began = Instant::now();
            // It grows until all of them are open; the most that is seen counts.
            wait_until("wrk that ends", PATIENCE, || {
                most = most.max(self.egress_kib()?);
                Ok(child.0.try_wait()?.is_some())
            })?;
            ensure!(began.elapsed() > Duration::from_secs(1), "wrk ended early");
            Ok(most)
        };
        Ok((held(connections)? - held(1)?) / (connections - 1) as f64)
    }

    /// One start of a sandbox, in ms.
    pub fn start_ms(&self, is_proxied: bool) -> Result<f64> {
        let mut command = Command::new(&self.saggar);
        command.arg("run");
        if is_proxied {
            command.args(Way::PassThrough.network());
        }
        command.args(["--", NOTHING]).env("SAGGAR_DATA_DIR", &self.data);
        let began = Instant::now();
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().context("starting a sandbox")?;
        let elapsed = began.elapsed();
        ensure!(status.success(), "a sandbox ended with {status}");
        Ok(elapsed.as_secs_f64() * 1000.0)
    }

    /// Of all egress processes that run our binary; there is one.
    fn egress_kib(&self) -> Result<f64> {
        let is_egress = |pid: &u32| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.windows(8).any(|part| part == b"__egress"))
        };
        let all = processes::all()?;
        let found = all.iter().map(|process| process.pid).filter(is_egress);
        Ok(found.filter_map(processes::pss_kib).sum())
    }

    fn wrk_arguments(&self, way: Way, connections: usize, seconds: u32, more: &[&str]) -> Vec<String> {
        let mut arguments: Vec<String> =
            ["wrk", "--latency", "--threads", "1", "--timeout", "30s"].map(str::to_owned).to_vec();
        arguments.extend(["--connections".to_owned(), connections.to_string()]);
        arguments.extend(["--duration".to_owned(), format!("{seconds}s")]);
        arguments.extend(more.iter().map(|word| (*word).to_owned()));
        arguments.push(format!("{}/", way.url()));
        arguments
    }

    fn wrk(&self, way: Way, connections: usize, seconds: u32, more: &[&str]) -> Result<String> {
        let said = self.output(way, &self.wrk_arguments(way, connections, seconds, more))?;
        let is_whole = !said.contains("Socket errors") && !said.contains("Non-2xx");
        ensure!(is_whole, "wrk saw failures, {way:?}:\n{said}");
        Ok(said)
    }

    fn curl(&self, way: Way, path: &str, shown: &str) -> Result<String> {
        let url = format!("{}{path}", way.url());
        // The proxies show certificates of their own.
        let words = ["curl", "--silent", "--show-error", "--insecure", "--noproxy", "*", "--http1.1"];
        let rest = ["--max-time", "60", "--output", "/dev/null", "--write-out", shown, &url];
        let arguments: Vec<String> = words.into_iter().chain(rest).map(str::to_owned).collect();
        self.output(way, &arguments)
    }

    fn command(&self, way: Way, program: &[String]) -> Command {
        let mut command = Command::new(&self.saggar);
        command.args(["run", "--timeout", "2m"]).args(way.network()).arg("--").args(program);
        command.env("SAGGAR_DATA_DIR", &self.data).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn output(&self, way: Way, program: &[String]) -> Result<String> {
        let output = self.command(way, program).stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{way:?}: {} ended with {}:\n{complaint}", program[0], output.status);
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

/// Ends with us.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        // It has ended already, unless the measurement failed.
        let _ = self.0.kill();
        let _ = self.0.wait(); // As above.
    }
}

/// The line `50%  83.00us` of wrk's report.
fn median_ms(said: &str) -> Option<f64> {
    let text = said.lines().find_map(|line| line.trim().strip_prefix("50%"))?.trim();
    let (number, factor) = [("us", 1e-3), ("ms", 1.0), ("s", 1e3)]
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    Some(number.parse::<f64>().ok()? * factor)
}

/// The line `Requests/sec:  11234.50`.
fn rate(said: &str) -> Option<f64> {
    said.lines().find_map(|line| line.strip_prefix("Requests/sec:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_wrk_is_understood() {
        let said = "  Latency Distribution\n     50%   83.00us\n     75%    1.20ms\nRequests/sec:  11234.50\n";
        assert_eq!((median_ms(said), rate(said)), (Some(0.083), Some(11234.5)));
        assert_eq!(median_ms("     50%    1.50ms"), Some(1.5));
        assert_eq!(median_ms("     50%    2.00s"), Some(2000.0));
        assert_eq!((median_ms("nothing"), rate("nothing")), (None, None));
    }
}
