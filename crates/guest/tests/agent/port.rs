//! Streams to listeners inside.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpListener};
use std::os::unix::net::UnixStream;

use saggar_guest::{OpenTarget, PortPreface};

use crate::host::{Host, opening};

fn connect(host: &mut Host, port: u16) -> (UnixStream, PortPreface) {
    let mut stream = host.open(opening(OpenTarget::Port(port)));
    let mut preface = [0; PortPreface::LEN];
    stream.read_exact(&mut preface).unwrap();
    (stream, PortPreface::decode(preface).unwrap())
}

fn echo(listener: TcpListener) -> u16 {
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            std::thread::spawn(move || {
                let mut copy = connection.try_clone().unwrap();
                // The other side may be gone at any time: that is what is tested.
                let _ = std::io::copy(&mut copy, &mut connection).and_then(|_| connection.write_all(b"end"));
            });
        }
    });
    port
}

#[test]
fn bytes_go_both_ways_and_half_closes_are_passed_on() {
    let four = echo(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let six = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).map(echo);
    let mut host = Host::start();
    for port in std::iter::once(four).chain(six) {
        let (mut stream, preface) = connect(&mut host, port);
        assert_eq!(preface, PortPreface::Connected);
        let sent: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
        let mut writer = stream.try_clone().unwrap();
        let copy = sent.clone();
        let sender = std::thread::spawn(move || {
            writer.write_all(&copy).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        sender.join().unwrap();
        assert!(got == [&sent[..], b"end"].concat(), "{} bytes came back", got.len());
    }
}

#[test]
fn where_nobody_listens_the_stream_says_so() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let mut host = Host::start();
    let (mut stream, preface) = connect(&mut host, free);
    assert_eq!(preface, PortPreface::Refused(libc::ECONNREFUSED));
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn the_connection_ends_when_the_host_is_gone() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut host = Host::start();
    for half_first in [false, true] {
        let (stream, _) = connect(&mut host, port);
        let (mut inside, _) = listener.accept().unwrap();
        (&stream).write_all(b"last words").unwrap();
        if half_first {
            stream.shutdown(Shutdown::Write).unwrap();
            inside.read_exact(&mut [0; 10]).unwrap();
            assert_eq!(inside.read(&mut [0]).unwrap(), 0, "an end of one direction only");
            (&stream).flush().unwrap();
            drop(stream);
            // The worker notices and exits; then nothing reads what is written.
            crate::host::wait_until("the connection is gone", || inside.write_all(&[0; 1000]).is_err());
        } else {
            drop(stream);
            let mut words = Vec::new();
            inside.read_to_end(&mut words).unwrap();
            assert_eq!(words, b"last words");
        }
    }
}

#[test]
fn the_stream_ends_when_who_listens_is_gone() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut host = Host::start();
    let (mut stream, _) = connect(&mut host, port);
    let (mut inside, _) = listener.accept().unwrap();
    inside.write_all(b"bye").unwrap();
    drop(inside);
    let mut words = Vec::new();
    stream.read_to_end(&mut words).unwrap();
    assert_eq!(words, b"bye");
}
