//! Sandboxes that a server doesn't know of: those that got ready when whoever asked for them was dead and its successor had looked around.

mod harness;
mod http;

use harness::PATIENCE;
use harness::held::{FOR_EVER, Supervisor, start_in};
use http::Server;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Whether its supervisor ends by itself in time.
fn ends(stranger: &Supervisor) -> bool {
    let pidfd = pidfd_open(Pid::from_child(&stranger.child), PidfdFlags::empty()).expect("our own child");
    let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)).expect("a pidfd can be polled") > 0
}

#[test]
fn what_gets_ready_when_nobody_waits_for_it_is_found_and_ended() {
    let server = Server::start_with(&["--pool-max", "0"]);
    let ours = server.sandbox();
    let start = |is_pooled| start_in(&server.data(), serde_json::json!({}), FOR_EVER, is_pooled).expect("it starts");
    let strangers = [true, false].map(start);
    for stranger in &strangers {
        assert!(ends(stranger), "{stranger:?} is leaked");
    }
    let left: Vec<_> = std::fs::read_dir(server.data().join("ended")).expect("ours").collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(server.get(&ours).expect(200)["state"], "running");
}
