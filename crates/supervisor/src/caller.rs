//! Which processes have a connection, found from outside: the kernel's list of connections leads to a socket, and the socket to the
//! processes of the sandbox that hold it.

use std::fs::{self, File};
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Maximum length of the kernel's list of connections that is read.
const LIST_LEN: u64 = 1024 * 1024;
/// Descriptors that are looked at in one search.
const DESCRIPTORS_MAX: usize = 8192;

/// The name of a program that made a connection from `client`. Advisory: a program chooses its own name, and may be gone.
pub(crate) fn name(first: i32, client: SocketAddr) -> Option<String> {
    let pid = holders(first, |local, _| local == client)?.into_iter().next()?;
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

/// The processes that have the connection between these two, in the sandbox whose first process is `first`. `None` if not all
/// of them can be told; empty if there is none any more.
pub(crate) fn of_connection(first: i32, client: SocketAddr, server: SocketAddr) -> Option<Vec<u32>> {
    let (client, server) = (canonical(client), canonical(server));
    holders(first, |local, remote| local == client && remote == server)
}

fn holders(first: i32, is_it: impl Fn(SocketAddr, SocketAddr) -> bool) -> Option<Vec<u32>> {
    let found = ["tcp", "tcp6"].iter().find_map(|list| inode(&format!("/proc/{first}/net/{list}"), &is_it).transpose());
    let Some(inode) = found.transpose().ok()? else { return Some(Vec::new()) };
    let socket = format!("socket:[{inode}]");
    let network = fs::read_link(format!("/proc/{first}/ns/net")).ok()?;
    let pids =
        fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let (mut holders, mut looked_at) = (Vec::new(), 0);
    for pid in pids {
        if !fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|other| other == network) {
            continue;
        }
        // A process that has ended holds nothing.
        let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for descriptor in open.flatten() {
            looked_at += 1;
            if looked_at > DESCRIPTORS_MAX {
                return None;
            }
            if fs::read_link(descriptor.path()).is_ok_and(|link| link.as_os_str() == socket.as_str()) {
                holders.push(pid);
                break;
            }
        }
    }
    Some(holders)
}

/// The kernel's list can't be read to its end.
struct Unread;

/// The socket of a connection.
fn inode(list: &str, is_it: &impl Fn(SocketAddr, SocketAddr) -> bool) -> Result<Option<u64>, Unread> {
    let mut text = String::new();
    // Without a list there are no connections of its kind.
    let Ok(file) = File::open(list) else { return Ok(None) };
    let read = file.take(LIST_LEN).read_to_string(&mut text).map_err(|_| Unread)?;
    let found = text.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, remote) = (address(fields.next()?)?, address(fields.next()?)?);
        // Seven fields after the remote address. A connection that no process has any more has the number 0.
        let inode: u64 = fields.nth(6)?.parse().ok()?;
        (is_it(local, remote) && inode != 0).then_some(inode)
    });
    if found.is_none() && read as u64 >= LIST_LEN { Err(Unread) } else { Ok(found) }
}

/// An address of the list: the words of the address as this machine has them in memory, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (words, port) = text.split_once(':')?;
    let word = |at: usize| Some(u32::from_str_radix(words.get(8 * at..8 * at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match words.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, four) in bytes.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?)))
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_leads_to_its_program() {
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        let first = std::process::id() as i32;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let client = TcpStream::connect(server).unwrap();
        let address = client.local_addr().unwrap();
        assert_eq!(name(first, address).as_deref(), Some(own.trim_end()));
        assert_eq!(of_connection(first, address, server), Some(vec![std::process::id()]));
        // The other end has these two the other way round.
        let elsewhere: SocketAddr = "192.0.2.1:80".parse().unwrap();
        assert_eq!(of_connection(first, address, elsewhere), Some(Vec::new()));
        drop(client);
        assert_eq!((name(first, address), of_connection(first, address, server)), (None, Some(Vec::new())));
    }

    #[test]
    fn addresses_of_the_list_are_read_as_this_machine_writes_them() {
        for (text, expected) in [
            ("0100007F:1F90", Some("127.0.0.1:8080")),
            ("00000000000000000000000001000000:0050", Some("[::1]:80")),
            ("0000000000000000FFFF00000100007F:0050", Some("127.0.0.1:80")),
            ("0100007:1F90", None),
            ("0100007F", None),
            ("local_address", None),
        ] {
            assert_eq!(address(text), expected.map(|text| text.parse().unwrap()), "{text}");
        }
    }
}
