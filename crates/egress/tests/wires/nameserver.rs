//! A name server on the loopback that does what a test wants, and keeps what it was asked.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UdpSocket};

use crate::dns::{A, AAAA, wire};

#[derive(Clone)]
pub enum Answer {
    /// Owner, seconds to live, and address or alias. Only those of the asked type are sent.
    Records(Vec<(&'static str, u32, Data)>),
    Code(u8),
    Silence,
    /// Truncated over UDP, complete over TCP.
    TooLarge(Vec<(&'static str, u32, Data)>),
    /// First a reply of each kind that a forger could send, with this address; then the records.
    Forged(IpAddr, Vec<(&'static str, u32, Data)>),
    /// These bytes after the question, as so many records.
    Garbage(u16, Vec<u8>),
}

#[derive(Clone, Copy)]
pub enum Data {
    Address(&'static str),
    Alias(&'static str),
}

pub struct Nameserver {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<(String, u16)>>>,
}

type Answers = Arc<HashMap<&'static str, Answer>>;

impl Nameserver {
    /// A name that isn't among the answers doesn't exist.
    pub async fn start(answers: &[(&'static str, Answer)]) -> Self {
        let answers: Answers = Arc::new(answers.iter().cloned().collect());
        let asked = Arc::<Mutex<Vec<(String, u16)>>>::default();
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            // The port may be taken for TCP; then another one is tried.
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let address = udp.local_addr().unwrap();
        tokio::spawn(serve_udp(udp, Arc::clone(&answers), Arc::clone(&asked)));
        tokio::spawn(serve_tcp(tcp, answers));
        Self { address, asked }
    }

    pub fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// Names that were asked about over UDP since the last call, in order and each once.
    pub fn take(&self) -> Vec<String> {
        let mut names: Vec<String> =
            std::mem::take(&mut *self.asked.lock().unwrap()).into_iter().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        names
    }
}

async fn serve_udp(socket: UdpSocket, answers: Answers, asked: Arc<Mutex<Vec<(String, u16)>>>) {
    let mut buffer = [0; 1500];
    while let Ok((count, from)) = socket.recv_from(&mut buffer).await {
        let question = &buffer[..count];
        let (name, kind, _) = read(question);
        asked.lock().unwrap().push((name.clone(), kind));
        for message in replies(question, answers.get(name.as_str()), true) {
            socket.send_to(&message, from).await.unwrap();
        }
    }
}

async fn serve_tcp(listener: TcpListener, answers: Answers) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let length = stream.read_u16().await.unwrap();
        let mut question = vec![0; length.into()];
        stream.read_exact(&mut question).await.unwrap();
        let (name, ..) = read(&question);
        for message in replies(&question, answers.get(name.as_str()), false) {
            stream.write_u16(u16::try_from(message.len()).unwrap()).await.unwrap();
            stream.write_all(&message).await.unwrap();
        }
    }
}

/// Name, type and end of the question.
fn read(question: &[u8]) -> (String, u16, usize) {
    let mut at = 12;
    let mut labels = Vec::new();
    while question[at] != 0 {
        let end = at + 1 + usize::from(question[at]);
        labels.push(String::from_utf8(question[at + 1..end].to_vec()).unwrap());
        at = end;
    }
    (labels.join("."), u16::from_be_bytes([question[at + 1], question[at + 2]]), at + 5)
}

fn replies(question: &[u8], answer: Option<&Answer>, udp: bool) -> Vec<Vec<u8>> {
    let (_, kind, end) = read(question);
    let head = |flags: [u8; 2], count: u16| {
        [&question[..2], &flags, &[0, 1], &count.to_be_bytes(), &[0, 0, 0, 0], &question[12..end]].concat()
    };
    let records = |records: &[(&'static str, u32, Data)]| {
        let encoded: Vec<Vec<u8>> = records.iter().filter_map(|record| encode(record, kind)).collect();
        [head([0x81, 0x80], u16::try_from(encoded.len()).unwrap()), encoded.concat()].concat()
    };
    match answer {
        None => vec![head([0x81, 0x83], 0)],
        Some(Answer::Records(list)) => vec![records(list)],
        Some(Answer::Code(code)) => vec![head([0x81, 0x80 | code], 0)],
        Some(Answer::Silence) => vec![],
        Some(Answer::TooLarge(_)) if udp => vec![head([0x83, 0x80], 0)],
        Some(Answer::TooLarge(list)) => vec![records(list)],
        Some(Answer::Garbage(count, bytes)) => vec![[head([0x81, 0x80], *count), bytes.clone()].concat()],
        Some(Answer::Forged(address, list)) => {
            let forged = [head([0x81, 0x80], 1), encode_address(&[0xc0, 12], 60, *address)].concat();
            let mut other_id = forged.clone();
            other_id[0] ^= 0x55;
            let mut other_name = forged.clone();
            other_name[13] ^= 1;
            let mut no_answer = forged;
            no_answer[2] &= 0x7f;
            vec![other_id, other_name, no_answer, records(list)]
        }
    }
}

fn encode((owner, ttl, data): &(&'static str, u32, Data), kind: u16) -> Option<Vec<u8>> {
    match data {
        Data::Address(text) => {
            let address: IpAddr = text.parse().unwrap();
            (kind == if address.is_ipv4() { A } else { AAAA }).then(|| encode_address(&wire(owner), *ttl, address))
        }
        Data::Alias(target) => Some(encode_record(&wire(owner), 5, *ttl, &wire(target))),
    }
}

fn encode_address(owner: &[u8], ttl: u32, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => encode_record(owner, A, ttl, &v4.octets()),
        IpAddr::V6(v6) => encode_record(owner, AAAA, ttl, &v6.octets()),
    }
}

fn encode_record(owner: &[u8], kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).unwrap().to_be_bytes();
    [owner, &kind.to_be_bytes(), &[0, 1], &ttl.to_be_bytes(), &length, data].concat()
}
