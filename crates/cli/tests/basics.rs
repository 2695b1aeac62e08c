//! What a user meets first: a program runs, its streams and exit status are its own, and nothing stays.

mod harness;

use harness::Place;

#[test]
fn the_programs_exit_status_is_ours() {
    let place = Place::new();
    for code in [0, 1, 2, 77, 255] {
        assert_eq!(place.sh(&[], &format!("exit {code}")).code, code);
    }
}

#[test]
fn streams_are_kept_apart() {
    let done = Place::new().sh(&[], "echo out; echo err >&2");
    assert_eq!((done.stdout.as_str(), done.stderr.as_str(), done.code), ("out\n", "err\n", 0));
}
