//! The scrubber against a model that sees the whole stream at once.

use std::sync::Arc;

use hyper::body::Bytes;
use proptest::prelude::*;
use saggar_egress::secret::{Patterns, Scrubber};

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
