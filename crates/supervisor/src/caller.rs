//! Which program made a connection, found from outside by its source port. Advisory: a program chooses its own name, and may be gone.

use std::fs::{self, File};
use std::io::Read;
use std::net::SocketAddr;

/// Maximum length of the kernel's list of connections that is read.
const LIST_LEN: u64 = 1024 * 1024;

/// The name of a program in the sandbox whose first process is `first`.
pub(crate) fn name(first: i32, client: SocketAddr) -> Option<String> {
    let inode = ["tcp", "tcp6"].iter().find_map(|list| inode(&format!("/proc/{first}/net/{list}"), client.port()))?;
    let socket = format!("socket:[{inode}]");
    let network = fs::read_link(format!("/proc/{first}/ns/net")).ok()?;
    let pids =
        fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let holds = |pid: &i32| {
        fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|other| other == network)
            && fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|open| {
                open.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|link| link.as_os_str() == socket.as_str()))
            })
    };
    let pid = pids.into_iter().find(holds)?;
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

fn inode(list: &str, port: u16) -> Option<u64> {
    let mut text = String::new();
    File::open(list).ok()?.take(LIST_LEN).read_to_string(&mut text).ok()?;
    let port = format!(":{port:04X}");
    text.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        fields.nth(1).filter(|local| local.ends_with(&port))?;
        // Nine fields after the local address.
        fields.nth(7)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_leads_to_its_program() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        let first = std::process::id() as i32;
        assert_eq!(name(first, client.local_addr().unwrap()).as_deref(), Some(own.trim_end()));
        let unused = listener.local_addr().unwrap();
        drop((listener, client));
        assert_eq!(name(first, unused), None);
    }
}
