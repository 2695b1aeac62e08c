//! Polling for conditions that send no event, with a time limit.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Time between two checks.
const PAUSE: Duration = Duration::from_millis(2);

/// Polls until the condition holds, or fails after `bound`.
pub fn wait_until(what: &str, bound: Duration, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + bound;
    while !is_so()? {
        if Instant::now() >= deadline {
            bail!("timed out after {} s: {what}", bound.as_secs());
        }
        pause(PAUSE);
    }
    Ok(())
}

/// Sleeps, for cases in which time itself has to pass.
#[expect(clippy::disallowed_methods, reason = "the only place that sleeps: the conditions have no event")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_until_it_is_so_and_not_for_ever() {
        let mut looks = 0;
        let third = || {
            looks += 1;
            Ok(looks == 3)
        };
        wait_until("a third look", Duration::from_secs(10), third).unwrap();
        let error = wait_until("nothing", Duration::ZERO, || Ok(false)).unwrap_err().to_string();
        assert_eq!(error, "timed out after 0 s: nothing");
    }
}
