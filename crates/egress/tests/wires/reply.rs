//! Replies of name servers: what is read from them, and what is refused.

use saggar_egress::resolve::{Alias, Family, Query, Reply, ReplyError, WireName};

use crate::dns::wire;

const POINTER_TO_NAME: &[u8] = &[0xc0, 12];

fn name(text: &str) -> WireName {
    WireName::from(&text.parse().unwrap())
}

fn query() -> Query {
    Query { id: 0x1234, name: name("a.example"), family: Family::V4 }
}

fn reply(flags: u16, counts: [u16; 2], body: &[&[u8]]) -> Vec<u8> {
    let mut message = vec![0x12, 0x34];
    message.extend([flags, counts[0], counts[1], 0, 0].iter().flat_map(|value| value.to_be_bytes()));
    message.extend(body.concat());
    message
}

fn asked(text: &str, kind: u8) -> Vec<u8> {
    [wire(text), vec![0, kind, 0, 1]].concat()
}

fn record(owner: &[u8], kind: u8, class: u8, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).unwrap().to_be_bytes();
    [owner, &[0, kind, 0, class, 0, 0, 0, 60], &length, data].concat()
}

fn understood(code: u8, addresses: &[(&str, &str)], aliases: &[(&str, &str)]) -> Result<Reply, ReplyError> {
    Ok(Reply {
        code,
        truncated: false,
        addresses: addresses.iter().map(|(owner, address)| (name(owner), 60, address.parse().unwrap())).collect(),
        aliases: aliases
            .iter()
            .map(|(owner, target)| Alias { owner: name(owner), ttl: 60, target: name(target) })
            .collect(),
    })
}

#[test]
fn addresses_and_aliases_are_read_and_the_rest_is_skipped() {
    let question = asked("A.Example", 1);
    let two = [192, 0, 2, 2];
    let cases: Vec<(&str, Vec<u8>, Result<Reply, ReplyError>)> = vec![
        ("no such name", reply(0x8183, [1, 0], &[&question]), understood(3, &[], &[])),
        ("a refusal without the question", reply(0x8185, [0, 0], &[]), understood(5, &[], &[])),
        (
            "an address",
            reply(0x8180, [1, 1], &[&question, &record(POINTER_TO_NAME, 1, 1, &two)]),
            understood(0, &[("a.example", "192.0.2.2")], &[]),
        ),
        (
            "records of other types and classes",
            reply(
                0x8180,
                [1, 3],
                &[
                    &question,
                    &record(POINTER_TO_NAME, 16, 1, b"\x04text"),
                    &record(POINTER_TO_NAME, 28, 1, &[0; 16]),
                    &record(POINTER_TO_NAME, 1, 3, &two),
                ],
            ),
            understood(0, &[], &[]),
        ),
        (
            "an alias that is compressed",
            reply(0x8180, [1, 1], &[&question, &record(POINTER_TO_NAME, 5, 1, b"\x03CDN\xc0\x0e")]),
            understood(0, &[], &[("a.example", "cdn.example")]),
        ),
        (
            "sections that are never looked at",
            [reply(0x8180, [1, 0], &[&question]), vec![0xff; 40]].concat(),
            understood(0, &[], &[]),
        ),
    ];
    for (case, message, expected) in cases {
        assert_eq!(query().parse_reply(&message), expected, "{case}");
    }
}

#[test]
fn what_is_cut_off_is_only_accepted_as_truncated() {
    let cut = |flags| {
        reply(
            flags,
            [1, 2],
            &[&asked("a.example", 1), &record(POINTER_TO_NAME, 1, 1, &[192, 0, 2, 2]), POINTER_TO_NAME],
        )
    };
    assert_eq!(query().parse_reply(&cut(0x8180)), Err(ReplyError::Malformed));
    let truncated = query().parse_reply(&cut(0x8380)).unwrap();
    assert!(truncated.truncated);
}

#[test]
fn replies_to_other_questions_are_strangers() {
    let question = asked("a.example", 1);
    let mut other_id = reply(0x8180, [1, 0], &[&question]);
    other_id[1] ^= 1;
    for (case, message) in [
        ("nothing", vec![]),
        ("half a header", reply(0x8180, [1, 0], &[])[..11].to_vec()),
        ("another id", other_id),
        ("a question", reply(0x0100, [1, 0], &[&question])),
        ("another opcode", reply(0x9180, [1, 0], &[&question])),
        ("another name", reply(0x8180, [1, 0], &[&asked("b.example", 1)])),
        ("another type", reply(0x8180, [1, 0], &[&asked("a.example", 28)])),
        ("another class", reply(0x8180, [1, 0], &[&wire("a.example"), &[0, 1, 0, 3]])),
        ("two questions", reply(0x8180, [2, 0], &[&question, &question])),
    ] {
        assert_eq!(query().parse_reply(&message), Err(ReplyError::Stranger), "{case}");
    }
}

#[test]
fn malformed_replies_are_refused() {
    let question = asked("a.example", 1);
    let good = record(POINTER_TO_NAME, 1, 1, &[192, 0, 2, 1]);
    let one = |record: &[u8]| reply(0x8180, [1, 1], &[&question, record]);
    // Where the first record begins.
    let at = u8::try_from(12 + question.len()).unwrap();
    let long: Vec<u8> = [&[63], &[b'a'; 63][..]].concat().repeat(4);
    // Each pointer leads to the one before it.
    let ladder: Vec<u8> =
        (0..40).flat_map(|step: u8| [0xc0, if step == 0 { 12 } else { at + 11 + (step - 1) * 2 }]).collect();
    let climbed = [record(&[0], 16, 1, &ladder)[..11].to_vec(), ladder.clone()].concat();
    assert_eq!(climbed.len(), 11 + ladder.len());
    for (case, message) in [
        ("success without the question", reply(0x8180, [0, 0], &[])),
        ("no question after all", reply(0x8180, [1, 0], &[])),
        ("no record after all", reply(0x8180, [1, 1], &[&question])),
        ("a name that points to itself", one(&record(&[0xc0, at], 1, 1, &[192, 0, 2, 1]))),
        ("a name that points forward", one(&record(&[0xc0, at + 2], 1, 1, &[192, 0, 2, 1]))),
        ("a name that points out of the message", one(&record(&[0xff, 0xff], 1, 1, &[192, 0, 2, 1]))),
        ("reserved bits", one(&record(&[0x80, 12], 1, 1, &[192, 0, 2, 1]))),
        ("a name that is too long", one(&record(&[&long[..], &[0]].concat(), 1, 1, &[192, 0, 2, 1]))),
        ("an address of three bytes", one(&record(POINTER_TO_NAME, 1, 1, &[192, 0, 2]))),
        ("an address of five bytes", one(&record(POINTER_TO_NAME, 1, 1, &[192, 0, 2, 1, 1]))),
        ("data that is cut off", one(&good[..good.len() - 1])),
        ("an alias that ends before its data", one(&record(POINTER_TO_NAME, 5, 1, b"\x01b\0\0"))),
        ("an alias that goes beyond its data", one(&[record(POINTER_TO_NAME, 5, 1, b"\x03ab"), vec![0, 0]].concat())),
        ("more records than are read", reply(0x8180, [1, 257], &[&question, &good.repeat(257)])),
        (
            "a ladder of pointers",
            reply(0x8180, [1, 2], &[&question, &climbed, &record(&[0xc0, at + 11 + 78], 1, 1, &[192, 0, 2, 1])]),
        ),
    ] {
        assert_eq!(query().parse_reply(&message), Err(ReplyError::Malformed), "{case}");
    }
    assert!(query().parse_reply(&reply(0x8180, [1, 256], &[&question, &good.repeat(256)])).is_ok());
}
