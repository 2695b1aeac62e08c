//! Questions to the sandbox's DNS: what each gets, and what is recorded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use saggar_egress::dns::{ANSWER_MAX, Desk};
use saggar_egress::names::{NAMES_MAX, Names};

use crate::session::Kept;

pub const A: u16 = 1;
pub const AAAA: u16 = 28;
const ID: [u8; 2] = [0xab, 0xcd];

pub fn wire(name: &str) -> Vec<u8> {
    let mut wire: Vec<u8> = name
        .split('.')
        .filter(|label| !label.is_empty())
        .flat_map(|label| [&[u8::try_from(label.len()).unwrap()], label.as_bytes()].concat())
        .collect();
    wire.push(0);
    wire
}

fn message(flags: u16, counts: [u16; 4], body: &[&[u8]]) -> Vec<u8> {
    let mut message = ID.to_vec();
    message.extend(flags.to_be_bytes());
    message.extend(counts.iter().flat_map(|count| count.to_be_bytes()));
    message.extend(body.concat());
    message
}

pub fn question(name: &str, kind: u16) -> Vec<u8> {
    message(0x0100, [1, 0, 0, 0], &[&wire(name), &kind.to_be_bytes(), &[0, 1]])
}

/// The code of a reply and the data of its only record.
fn read(reply: &[u8]) -> (u8, Option<Vec<u8>>) {
    assert_eq!((&reply[..2], reply[2] & 0x80), (&ID[..], 0x80), "not a reply to this question");
    assert!(reply.len() <= ANSWER_MAX);
    let code = reply[3] & 0xf;
    if reply[7] == 0 {
        return (code, None);
    }
    let name = 12 + reply[12..].iter().position(|&byte| byte == 0).unwrap() + 1;
    let record = &reply[name + 4..];
    assert_eq!(record[..2], [0xc0, 12]);
    let length = usize::from(record[11]);
    (code, Some(record[12..12 + length].to_vec()))
}

fn desk(session: &Arc<Kept>) -> Desk<Kept> {
    Desk::new(Arc::new(Names::default()), Arc::clone(session))
}

#[test]
fn each_question_gets_its_answer() {
    let session = Kept::new(&["*"], &[]);
    let desk = desk(&session);
    let first_v6 = [0xfd, 0xfe, 0x5a, 0x66, 0, 0, 0, 0, 0, 0, 0, 0, 198, 18, 0, 1];
    let loopback_v6 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let cases: &[(&str, u16, u8, Option<&[u8]>)] = &[
        ("files.example.com", A, 0, Some(&[198, 18, 0, 1])),
        ("files.example.com", AAAA, 0, Some(&first_v6)),
        ("FILES.example.COM", A, 0, Some(&[198, 18, 0, 1])),
        ("other.example.com", A, 0, Some(&[198, 18, 0, 2])),
        ("single", A, 0, Some(&[198, 18, 0, 3])),
        ("localhost", A, 0, Some(&[127, 0, 0, 1])),
        ("LOCALHOST", AAAA, 0, Some(&loopback_v6)),
        ("db.localhost", A, 0, Some(&[127, 0, 0, 1])),
        ("under_score.example", A, 3, None),
        ("b\u{fc}cher.example", AAAA, 3, None),
        ("nul\0.example", A, 3, None),
        ("192.0.2.1", A, 3, None),
        ("0x7f.1", A, 3, None),
        ("", A, 3, None),
        ("_http._tcp.deb.example", 33, 0, None),
        ("files.example.com", 65, 0, None),
        ("files.example.com", 64, 0, None),
        ("files.example.com", 16, 0, None),
        ("files.example.com", 15, 0, None),
        ("files.example.com", 10, 0, None),
        ("files.example.com", 5, 0, None),
        ("1.0.18.198.in-addr.arpa", 12, 0, None),
        ("files.example.com", 255, 5, None),
        ("files.example.com", 252, 5, None),
        ("files.example.com", 251, 5, None),
        ("files.example.com", 41, 5, None),
    ];
    for (name, kind, code, data) in cases {
        let reply = desk.answer(&question(name, *kind), Instant::now()).unwrap();
        assert_eq!(read(&reply), (*code, data.map(<[u8]>::to_vec)), "{name:?} {kind}");
        assert_eq!(reply[12..12 + wire(name).len()], wire(name), "{name:?} comes back as it was sent");
    }
}

#[test]
fn a_label_with_a_dot_of_its_own_is_no_name() {
    let desk = desk(&Kept::new(&["*"], &[]));
    let dotted = message(0x0100, [1, 0, 0, 0], &[b"\x09evil.good\x07example\0", &[0, 1, 0, 1]]);
    assert_eq!(read(&desk.answer(&dotted, Instant::now()).unwrap()), (3, None));
}

#[test]
fn malformed_messages_get_an_error_or_nothing() {
    let desk = desk(&Kept::new(&["*"], &[]));
    let name = wire("a.example");
    let a_in: &[u8] = &[0, 1, 0, 1];
    let opt: &[u8] = &[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];
    let one = [1, 0, 0, 0];
    let good: &[&[u8]] = &[&name, a_in];
    let long_name = [&[63], &[b'a'; 63][..]].concat().repeat(4);
    let cases: Vec<(&str, Vec<u8>, Option<u8>)> = vec![
        ("nothing", vec![], None),
        ("half a header", message(0x0100, one, &[])[..11].to_vec(), None),
        ("an answer", message(0x8180, one, good), None),
        ("a status request", message(0x1000, one, good), Some(4)),
        ("an update", message(0x2800, one, good), Some(4)),
        ("no question", message(0x0100, [0, 0, 0, 0], &[]), Some(1)),
        ("two questions", message(0x0100, [2, 0, 0, 0], &[&name, a_in, &name, a_in]), Some(1)),
        ("a record in the answer section", message(0x0100, [1, 1, 0, 0], good), Some(1)),
        ("a record in the authority section", message(0x0100, [1, 0, 1, 0], good), Some(1)),
        ("two additional records", message(0x0100, [1, 0, 0, 2], &[&name, a_in, opt, opt]), Some(1)),
        (
            "another additional record",
            message(0x0100, [1, 0, 0, 1], &[&name, a_in, &[0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0]]),
            Some(1),
        ),
        ("OPT of a name", message(0x0100, [1, 0, 0, 1], &[&name, a_in, &name, &opt[1..]]), Some(1)),
        ("OPT that is cut off", message(0x0100, [1, 0, 0, 1], &[&name, a_in, &opt[..10]]), Some(1)),
        ("two questions of which one is missing", message(0x0100, [2, 0, 0, 0], good), Some(1)),
        ("a label of 64 bytes", message(0x0100, one, &[&[64], &[b'a'; 64], &[0], a_in]), Some(1)),
        ("OPT that isn't of the root", message(0x0100, [1, 0, 0, 1], &[&name, a_in, &[9], &opt[1..]]), Some(1)),
        ("a compressed name", message(0x0100, one, &[&[0xc0, 12], a_in]), Some(1)),
        ("a label with reserved bits", message(0x0100, one, &[&[0x41, b'a', 0], a_in]), Some(1)),
        ("a name without an end", message(0x0100, one, &[&[3, b'a', b'b', b'c']]), Some(1)),
        ("a name that is too long", message(0x0100, one, &[&long_name, &[0], a_in]), Some(1)),
        ("a question without a class", message(0x0100, one, &[&name, &[0, 1]]), Some(1)),
        ("bytes after the question", message(0x0100, one, &[&name, a_in, &[0]]), Some(1)),
        ("a truncated question", message(0x0300, one, good), Some(1)),
        (
            "more than a question may have",
            message(0x0100, [1, 0, 0, 1], &[&name, a_in, &opt[..9], &[4, 176], &[0; 1200]]),
            Some(1),
        ),
        ("class CHAOS", message(0x0100, one, &[&name, &[0, 16, 0, 3]]), Some(5)),
        ("class ANY", message(0x0100, one, &[&name, &[0, 1, 0, 255]]), Some(5)),
    ];
    for (case, message, code) in cases {
        let reply = desk.answer(&message, Instant::now());
        assert_eq!(reply.map(|reply| read(&reply)), code.map(|code| (code, None)), "{case}");
    }
}

#[test]
fn edns_is_answered_in_kind() {
    let desk = desk(&Kept::new(&["*"], &[]));
    let name = wire("a.example");
    let with_opt = |version: u8, options: &[u8]| {
        let length = u16::try_from(options.len()).unwrap().to_be_bytes();
        let opt = [&[0, 0, 41, 16, 0, 0, version, 0x80, 0], &length[..], options].concat();
        message(0x0120, [1, 0, 0, 1], &[&name, &[0, 1, 0, 1], &opt])
    };
    let cookie = [0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8];
    for (version, options, code, extended) in [(0, &[][..], 0, 0), (0, &cookie[..], 0, 0), (1, &[][..], 0, 1)] {
        let reply = desk.answer(&with_opt(version, options), Instant::now()).unwrap();
        assert_eq!(reply[3] & 0xf, code);
        assert_eq!(reply[10..12], [0, 1], "one additional record");
        assert_eq!(reply[reply.len() - 11..], [0, 0, 41, 4, 208, extended, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn a_denied_name_has_an_address_and_is_recorded_once() {
    let session = Kept::new(&["good.example"], &["bad.example"]);
    let desk = desk(&session);
    for name in ["good.example", "evil.example", "bad.example", "evil.example"] {
        for kind in [A, AAAA] {
            let (code, data) = read(&desk.answer(&question(name, kind), Instant::now()).unwrap());
            assert!(code == 0 && data.is_some(), "{name}");
        }
    }
    let denied = |host: &str, rule: &str| (host.to_owned(), "denied".to_owned(), rule.to_owned());
    assert_eq!(
        session.take(),
        [denied("evil.example", "egress/default"), denied("bad.example", "egress/deny:bad.example")]
    );
}

#[test]
fn records_of_denied_names_end_at_their_bound() {
    let session = Kept::new(&[], &[]);
    let desk = desk(&session);
    for index in 0..2_000 {
        desk.answer(&question(&format!("n{index}.example"), A), Instant::now()).unwrap();
    }
    let recorded = session.take();
    assert_eq!(recorded.len(), 1_025);
    assert_eq!(recorded[1_024].2, "egress/dns-denials");
}

#[test]
fn a_full_pool_fails_and_is_recorded_once() {
    let session = Kept::new(&["*"], &[]);
    let names = Arc::new(Names::default());
    for index in 0..NAMES_MAX {
        names.assign(&format!("n{index}.example").parse().unwrap()).unwrap();
    }
    let desk = Desk::new(names, Arc::clone(&session));
    for name in ["one.more.example", "and.another.example"] {
        assert_eq!(read(&desk.answer(&question(name, A), Instant::now()).unwrap()), (2, None));
    }
    assert_eq!(read(&desk.answer(&question("n7.example", A), Instant::now()).unwrap()).0, 0);
    assert_eq!(session.take(), [(String::new(), "denied".to_owned(), "egress/dns-names".to_owned())]);
}

#[test]
fn more_questions_than_the_rate_are_refused_and_recorded_once() {
    let session = Kept::new(&["*"], &[]);
    let desk = desk(&session);
    let now = Instant::now();
    let refused =
        |now| (0..11_000).filter(|_| read(&desk.answer(&question("a.example", A), now).unwrap()).0 == 5).count();
    assert_eq!(refused(now), 1_000);
    assert_eq!(refused(now + Duration::from_secs(1)), 6_000);
    assert_eq!(session.take(), [(String::new(), "denied".to_owned(), "egress/dns-rate".to_owned())]);
}

#[test]
fn data_in_names_under_a_wildcard_is_recorded_once_per_domain() {
    let session =
        Kept::new(&["*.wild.example", "nbswy3dpeb3w64tmmqwcayjanrxw4zzanvsxg43bm5sse5dimvzgk.exact.example"], &[]);
    let desk = desk(&session);
    for name in [
        "files.wild.example",
        "nbswy3dpeb3w64tmmqwcayjanrxw4zzanvsxg43bm5sse5dimvzgk.wild.example",
        "orugkidtmvrxezlueb2gqzjamfxgi2lomvzsayldmvzsa5dfon2gs3lqn5xa.wild.example",
        "nbswy3dpeb3w64tmmqwcayjanrxw4zzanvsxg43bm5sse5dimvzgk.exact.example",
    ] {
        desk.answer(&question(name, A), Instant::now()).unwrap();
    }
    let name = "nbswy3dpeb3w64tmmqwcayjanrxw4zzanvsxg43bm5sse5dimvzgk.wild.example";
    assert_eq!(session.take(), [(name.to_owned(), "allowed".to_owned(), "egress/dns-data".to_owned())]);
}
