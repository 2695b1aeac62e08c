//! Sandboxes that are held: `saggar __supervise`, driven over its control socket against the real kernel.

mod harness;

use harness::Place;
use harness::held::held;
use saggar_domain::{EndReason, ExecStatus};

#[test]
fn an_exec_is_started_followed_and_ended() {
    let place = Place::new();
    let supervisor = held(&place);
    assert_eq!(supervisor.ready.sandbox_id, supervisor.sandbox);
    let seen = supervisor.sh("echo out; echo err >&2; exit 3");
    assert_eq!((seen.stdout, seen.stderr), (b"out\n".to_vec(), b"err\n".to_vec()));
    let end = seen.end.unwrap();
    assert_eq!((end.status, end.exit_code, end.leaves_processes), (Some(ExecStatus::Exited), Some(3), false));
    let last_word = supervisor.kill();
    assert_eq!(last_word.reason, EndReason::Killed);
    assert_eq!(place.records(), Vec::<String>::new());
}
