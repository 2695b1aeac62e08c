//! The scrubber against a model that sees the whole stream at once.

use std::sync::Arc;

use hyper::body::Bytes;
use proptest::prelude::*;
use saggar_egress::secret::{Frames, Patterns, Scrubber};

/// Every byte that belongs to an occurrence is an asterisk.
fn model(forms: &[Vec<u8>], text: &[u8]) -> Vec<u8> {
    let mut result = text.to_vec();
    for form in forms {
        for (start, window) in text.windows(form.len()).enumerate() {
            if window == form {
                result[start..start + form.len()].fill(b'*');
            }
        }
    }
    result
}

fn patterns(forms: &[Vec<u8>]) -> Arc<Patterns> {
    Arc::new(Patterns::new(forms.iter().map(Vec::as_slice)))
}

fn scrubbed(forms: &[Vec<u8>], chunks: &[&[u8]]) -> Vec<u8> {
    let mut scrubber = Scrubber::new(patterns(forms));
    let mut result = Vec::new();
    for chunk in chunks {
        result.extend_from_slice(&scrubber.push(Bytes::copy_from_slice(chunk)));
    }
    result.extend_from_slice(&scrubber.finish());
    result
}

/// Few letters, so that forms overlap, contain each other and begin alike.
fn forms() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(b'a'..=b'c', 1..8), 1..5)
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(b'a'..=b'd', 0..80)
}

fn cut(text: &[u8], cuts: Vec<prop::sample::Index>) -> Vec<Vec<u8>> {
    let mut places: Vec<usize> = cuts.into_iter().map(|cut| cut.index(text.len() + 1)).collect();
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| text[pair[0]..pair[1]].to_vec()).collect()
}

proptest! {
    #[test]
    fn every_way_to_cut_a_stream_gives_what_the_whole_gives(
        forms in forms(),
        text in text(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let chunks = cut(&text, cuts);
        let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
        prop_assert_eq!(scrubbed(&forms, &chunks), model(&forms, &text));
    }

    #[test]
    fn a_complete_text_is_scrubbed_as_a_stream_is(forms in forms(), text in text()) {
        let expected = model(&forms, &text);
        let found = patterns(&forms).scrubbed(&text);
        prop_assert_eq!(found.clone().unwrap_or_else(|| text.clone()), expected.clone());
        prop_assert_eq!(found.is_some(), expected != text);
        prop_assert_eq!(patterns(&forms).is_in(&text), expected != text);
    }

    /// How much passes, and when, says nothing about the bytes: not even how much of a value they begin like.
    #[test]
    fn what_is_held_back_does_not_depend_on_what_it_is(
        forms in forms(),
        text in text(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        pauses in prop::collection::vec(any::<bool>(), 14),
    ) {
        let lengths = |text: &[u8], cuts: &[prop::sample::Index]| -> Vec<usize> {
            let mut scrubber = Scrubber::new(patterns(&forms));
            let mut lengths = Vec::new();
            for (chunk, has_pause) in cut(text, cuts.to_vec()).into_iter().zip(&pauses) {
                lengths.push(scrubber.push(chunk.into()).len());
                if *has_pause {
                    lengths.push(scrubber.release().len());
                }
            }
            lengths
        };
        // A letter that no form has.
        prop_assert_eq!(lengths(&text, &cuts), lengths(&vec![b'z'; text.len()], &cuts));
    }
}

#[test]
fn as_much_is_held_back_as_a_value_could_begin_in() {
    let mut scrubber = Scrubber::new(patterns(&[b"sk-canary".to_vec()]));
    assert_eq!(scrubber.push(Bytes::from_static(b"nothing to find")), "nothing");
    assert_eq!(scrubber.push(Bytes::from_static(b" sk-can")), " to fin");
    assert_eq!(scrubber.push(Bytes::from_static(b"ary!")), "d **");
    assert_eq!(scrubber.finish(), "*******!");
}

#[test]
fn the_rest_of_a_value_is_replaced_after_a_pause() {
    let mut scrubber = Scrubber::new(patterns(&[b"sk-canary".to_vec()]));
    assert_eq!(scrubber.push(Bytes::from_static(b"sk-")), "");
    assert_eq!(scrubber.release(), "sk-");
    assert_eq!(scrubber.push(Bytes::from_static(b"canary")), "");
    assert_eq!(scrubber.finish(), "******");
}

/// A frame of a server, with the shortest header.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..126 => frame.push(length as u8),
        length => {
            frame.push(126);
            frame.extend_from_slice(&(length as u16).to_be_bytes());
        }
    }
    frame.extend_from_slice(payload);
    frame
}

fn framed(forms: &[Vec<u8>], chunks: &[Vec<u8>]) -> Vec<u8> {
    let mut frames = Frames::new(patterns(forms));
    let mut result = Vec::new();
    for chunk in chunks {
        result.extend_from_slice(&frames.push(chunk.clone().into()).unwrap());
    }
    result.extend_from_slice(&frames.finish());
    result
}

proptest! {
    /// Payloads of messages are one stream, those of control frames stand for themselves, and headers stay.
    #[test]
    fn a_value_is_found_however_a_message_is_split_into_frames(
        forms in forms(),
        text in text(),
        splits in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        pings in prop::collection::vec(prop::option::of(prop::collection::vec(b'a'..=b'd', 0..9)), 8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let (mut sent, mut expected) = (Vec::new(), Vec::new());
        let scrubbed = model(&forms, &text);
        let mut at = 0;
        for (piece, ping) in cut(&text, splits).into_iter().zip(&pings) {
            if let Some(ping) = ping {
                sent.extend(frame(0x89, ping));
                expected.extend(frame(0x89, &model(&forms, ping)));
            }
            sent.extend(frame(0x01, &piece));
            expected.extend(frame(0x01, &scrubbed[at..at + piece.len()]));
            at += piece.len();
        }
        prop_assert_eq!(framed(&forms, &cut(&sent, cuts)), expected);
    }
}

#[test]
fn long_frames_keep_their_headers() {
    let forms = [b"sk-canary".to_vec()];
    let mut payload = vec![b'x'; 70_000];
    payload[65_530..65_539].copy_from_slice(b"sk-canary");
    let mut sent = vec![0x82, 127];
    sent.extend_from_slice(&70_000u64.to_be_bytes());
    sent.extend_from_slice(&payload);
    let mut expected = sent.clone();
    expected[10 + 65_530..10 + 65_539].fill(b'*');
    let chunks: Vec<Vec<u8>> = sent.chunks(4096).map(<[u8]>::to_vec).collect();
    assert!(framed(&forms, &chunks) == expected);
}

#[test]
fn a_message_is_not_delayed_for_ever_by_pings() {
    let mut frames = Frames::new(patterns(&[b"sk-canary".to_vec()]));
    assert_eq!(frames.push(frame(0x81, b"hello").into()).unwrap(), [0x81, 5].as_slice());
    let mut passed = Vec::new();
    for _ in 0..100 {
        passed.extend_from_slice(&frames.push(frame(0x89, b"").into()).unwrap());
    }
    assert!(passed.starts_with(b"hello"), "{passed:?}");
}

#[test]
fn frames_in_which_nothing_can_be_found_end_the_stream() {
    // Masked, compressed, and a ping that is too long.
    for sent in [vec![0x81, 0x85, 1, 2, 3, 4], vec![0xc1, 5], vec![0x89, 126, 0, 126]] {
        assert!(Frames::new(patterns(&[b"sk-canary".to_vec()])).push(sent.into()).is_err());
    }
}
