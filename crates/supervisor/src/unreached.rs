//! Counts how often programs in a sandbox without a network tried to use one.
//!
//! The kernel refuses such attempts by itself, with "network is unreachable", and counts them for the network
//! namespace. Reading the counters at the end costs nothing while programs run, and programs can't falsify them. They
//! tell how often, not which address. Name lookups count too: without a configured resolver, the C library sends
//! queries to port 53 of the loopback, where nothing listens.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use saggar_domain::{Denial, DenialCode};

/// Maximum length of each file of counters.
const COUNTERS_LEN: usize = 16 * 1024;
/// More than the longer one has on any kernel so far.
const COUNTERS_TYPICAL_LEN: usize = 6 * 1024;
/// No route to the destination, and no listener at the port: for IPv4 by table and name, for IPv6 by name.
const COUNTED: &[(&str, &str)] = &[("Ip", "OutNoRoutes"), ("Udp", "NoPorts")];
const COUNTED_V6: &[&str] = &["Ip6OutNoRoutes", "Udp6NoPorts"];

/// The counters of one sandbox's network namespace. They can be read as long as this exists, even after the sandbox is
/// gone.
#[derive(Debug)]
pub struct Unreached {
    files: Vec<std::fs::File>,
    seen: u64,
}

impl Unreached {
    /// From the counters of a new namespace, in which the set-up itself reaches for nothing: they begin at zero. `None` without any.
    pub fn of(counters: Vec<OwnedFd>) -> Option<Self> {
        let files: Vec<_> = counters.into_iter().map(std::fs::File::from).collect();
        (!files.is_empty()).then_some(Self { files, seen: 0 })
    }

    /// A denial for attempts since the last call, if there were any.
    pub fn take_denial(&mut self) -> Option<Denial> {
        let count = self.count();
        let more = count.saturating_sub(self.seen);
        self.seen = count;
        (more > 0).then(|| Denial {
            code: DenialCode::NetworkRefused,
            rule: "network/none".to_owned(),
            message: format!(
                "this sandbox has no network, and programs tried to reach one or to look up a name (tries: {more}); \
                 --net host shares the host's, unmanaged"
            ),
        })
    }

    fn count(&self) -> u64 {
        self.files.iter().map(|file| counted(&text(file))).sum()
    }
}

fn text(file: &std::fs::File) -> String {
    // All of it in one read. A buffer that grows as it is read takes nine reads for each file, twice in each life.
    let mut text = String::with_capacity(COUNTERS_TYPICAL_LEN);
    let mut place = Place { file, at: 0 }.take(COUNTERS_LEN as u64);
    // A file that can't be read counts as zero.
    let _ = place.read_to_string(&mut text);
    text
}

/// Reads from the beginning each time.
struct Place<'a> {
    file: &'a std::fs::File,
    at: u64,
}

impl Read for Place<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let length = self.file.read_at(bytes, self.at)?;
        self.at += length as u64;
        Ok(length)
    }
}

/// Sums the relevant counters in either format: a line of names and a line of numbers for each table, or a name and a
/// number per line.
fn counted(text: &str) -> u64 {
    let mut sum = 0;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some(table) = first.strip_suffix(':') {
            let Some(numbers) = lines.next_if(|next| next.starts_with(first)) else { continue };
            let numbers = numbers.split_whitespace().skip(1);
            let matching = words.zip(numbers).filter(|(name, _)| COUNTED.contains(&(table, name)));
            sum += matching.filter_map(|(_, number)| number.parse::<u64>().ok()).sum::<u64>();
        } else if COUNTED_V6.contains(&first) {
            sum += words.next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_found_no_way_is_counted_by_its_name() {
        let v4 = "Ip: Forwarding InReceives OutNoRoutes\nIp: 1 20 3\nTcp: RtoMin NoPorts\nTcp: 200 9\n\
                  Udp: InDatagrams NoPorts InErrors\nUdp: 5 4 6\n";
        assert_eq!(counted(v4), 7);
        assert_eq!(counted("Ip6InNoRoutes  8\nIp6OutNoRoutes \t2\nUdp6NoPorts 1\n"), 3);
        assert_eq!(counted("Ip: OutNoRoutes\nUdp: NoPorts\nUdp: x\n"), 0);
    }
}
