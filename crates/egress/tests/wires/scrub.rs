//! The scrubber against a model that sees the whole stream at once.

use std::sync::Arc;

use hyper::body::Bytes;
use proptest::prelude::*;
use saggar_egress::secret::{Patterns, Scrubber};

/// How much of an occurrence may be released early.
const RELEASED_MAX: usize = 4;

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

    /// A server that pauses after each chunk gets no more than the beginning of an occurrence through.
    #[test]
    fn pauses_reveal_no_more_than_a_few_bytes(
        forms in forms(),
        text in text(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut scrubber = Scrubber::new(patterns(&forms));
        let mut result = Vec::new();
        for chunk in cut(&text, cuts) {
            result.extend_from_slice(&scrubber.push(chunk.into()));
            if scrubber.may_release() {
                result.extend_from_slice(&scrubber.release());
            }
        }
        result.extend_from_slice(&scrubber.finish());
        prop_assert_eq!(result.len(), text.len());
        for form in &forms {
            for (start, window) in text.windows(form.len()).enumerate() {
                if window == form && form.len() > RELEASED_MAX {
                    prop_assert!(
                        result[start + RELEASED_MAX..start + form.len()].iter().all(|byte| *byte == b'*'),
                        "{:?} shows {:?}", String::from_utf8_lossy(&result), String::from_utf8_lossy(form)
                    );
                }
            }
        }
    }
}

#[test]
fn a_chunk_without_a_beginning_of_a_value_passes_as_it_is() {
    let mut scrubber = Scrubber::new(patterns(&[b"sk-canary".to_vec()]));
    let chunk = Bytes::from_static(b"data: nothing to find here\n\n");
    let passed = scrubber.push(chunk.clone());
    assert_eq!((passed.as_ptr(), passed.len(), scrubber.held()), (chunk.as_ptr(), chunk.len(), 0));
}

#[test]
fn only_the_beginning_of_a_value_is_held_back() {
    let mut scrubber = Scrubber::new(patterns(&[b"sk-canary".to_vec()]));
    assert_eq!(scrubber.push(Bytes::from_static(b"values")), "value");
    assert!(scrubber.may_release());
    assert_eq!(scrubber.push(Bytes::from_static(b"k-can")), "");
    assert!(!scrubber.may_release(), "too much of the value");
    assert_eq!(scrubber.push(Bytes::from_static(b"ary!")), "*********!");
    assert_eq!(scrubber.push(Bytes::from_static(b"sk")), "");
    assert_eq!(scrubber.finish(), "sk");
}
