//! How the host resolves names, and its own addresses. The egress process can open no file.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};

use super::message::Upstream;
use saggar_domain::{Code, Problem};

const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";
const ROUTES_V4: &str = "/proc/net/fib_trie";
const ADDRESSES_V6: &str = "/proc/net/if_inet6";
/// Bytes read of each file.
const FILE_MAX: u64 = 64 * 1024;
/// As many as the C library uses.
const SERVERS_MAX: usize = 3;
/// Names of the hosts file. Longer ones are block lists, whose entries lead nowhere.
const HOSTS_MAX: usize = 512;
/// Addresses of the host.
const OWN_MAX: usize = 2048;
/// Bytes of a list of routes: hundreds of thousands of them.
const KERNEL_FILE_MAX: u64 = 64 << 20;
const DNS_PORT: u16 = 53;

/// Fails if the host's own addresses can't be told: without them, a rule such as `*` would open them.
pub fn of_the_host() -> Result<Upstream, Problem> {
    let mut own = own_v4(&whole(ROUTES_V4)?);
    own.extend(own_v6(&whole(ADDRESSES_V6)?));
    if own.len() > OWN_MAX {
        return Err(untold(&format!("there are more than {OWN_MAX}")));
    }
    Ok(Upstream { servers: servers(&text(RESOLV_CONF)), hosts: hosts(&text(HOSTS)), own })
}

/// All of a file of the kernel. One that doesn't exist is empty: a host without IPv6 has none.
fn whole(path: &str) -> Result<String, Problem> {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(KERNEL_FILE_MAX + 1).read_to_end(&mut bytes)) {
        Ok(length) if length as u64 <= KERNEL_FILE_MAX => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Ok(_) => Err(untold("the host has too many routes")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(untold(&error.kind().to_string())),
    }
}

fn untold(why: &str) -> Problem {
    Problem::new(
        Code::SetupFailed,
        format!("the host's own addresses, which a sandbox must not reach, can't be listed: {why}"),
        "use `--net none`, or run it on a host with fewer addresses and routes",
    )
}

/// A file that can't be read counts as empty, as for the C library.
fn text(path: &str) -> String {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_MAX).read_to_end(&mut bytes));
    read.map_or_else(|_| String::new(), |_| String::from_utf8_lossy(&bytes).into_owned())
}

fn servers(text: &str) -> Vec<SocketAddr> {
    let named = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        // A scope, as in fe80::1%eth0, needs an interface; such a server is left out.
        Some(SocketAddr::new(address.parse().ok()?, DNS_PORT))
    });
    let mut servers: Vec<_> = named.take(SERVERS_MAX).collect();
    if servers.is_empty() {
        // As for the C library.
        servers.push(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), DNS_PORT));
    }
    servers
}

fn hosts(text: &str) -> Vec<(IpAddr, String)> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let entries = lines.flat_map(|line| {
        let mut words = line.split_whitespace();
        let address: Option<IpAddr> = words.next().and_then(|word| word.parse().ok());
        words.filter_map(move |name| Some((address?, name.to_ascii_lowercase())))
    });
    entries.take(HOSTS_MAX).collect()
}

/// The addresses with a route of their own to this host, as the kernel lists them: the address, then `/32 host LOCAL`.
fn own_v4(text: &str) -> Vec<IpAddr> {
    let mut own: Vec<IpAddr> = Vec::new();
    let mut last = None;
    for line in text.lines() {
        match line.trim().strip_prefix("|-- ") {
            Some(address) => last = address.parse().ok(),
            // The table is listed twice.
            None if line.trim() == "/32 host LOCAL" => own.extend(last.filter(|address| !own.contains(address))),
            None => {}
        }
    }
    own
}

/// One address per line, in 32 hexadecimal digits.
fn own_v6(text: &str) -> Vec<IpAddr> {
    let digits = text.lines().filter_map(|line| line.split_whitespace().next());
    digits.filter_map(|digits| Some(IpAddr::from(u128::from_str_radix(digits, 16).ok()?.to_be_bytes()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_read_as_the_c_library_reads_them() {
        let text = "# nameserver 9.9.9.9\nsearch example.com\nnameserver 10.0.0.1\n nameserver\t::1 extra\n\
                    nameserver fe80::1%eth0\nnameserver nonsense\nnameserver 1.1.1.1\nnameserver 8.8.8.8\n";
        let found: Vec<_> = servers(text).iter().map(SocketAddr::to_string).collect();
        assert_eq!(found, ["10.0.0.1:53", "[::1]:53", "1.1.1.1:53"]);
        assert_eq!(servers("").iter().map(SocketAddr::to_string).collect::<Vec<_>>(), ["127.0.0.1:53"]);
    }

    #[test]
    fn the_hosts_own_addresses_are_those_of_its_interfaces() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 10.0.2.15\n        \
                    /32 host LOCAL\n     |-- 10.0.2.255\n        /32 link BROADCAST\n     |-- 203.0.113.0\n        \
                    /24 host LOCAL\nLocal:\n     |-- 10.0.2.15\n        /32 host LOCAL\n";
        assert_eq!(own_v4(trie), ["10.0.2.15".parse::<IpAddr>().unwrap()]);
        let six =
            "fe80000000000000000000fffe000001 02 40 20 80 eth0\n00000000000000000000000000000001 01 80 10 80 lo\n";
        assert_eq!(own_v6(six), ["fe80::ff:fe00:1", "::1"].map(|text| text.parse::<IpAddr>().unwrap()));
    }

    #[test]
    fn every_name_of_a_line_gets_its_address() {
        let text = "127.0.0.1 localhost # here\n10.0.0.7 Build.Corp  build\n#1.1.1.1 no\nnonsense x\n\n::1 six\n";
        let found: Vec<_> = hosts(text).into_iter().map(|(address, name)| format!("{name}={address}")).collect();
        assert_eq!(found, ["localhost=127.0.0.1", "build.corp=10.0.0.7", "build=10.0.0.7", "six=::1"]);
    }
}
