//! Waiting for what announces itself to nobody: looked at again and again, with a bound.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(2);

/// Looks until it is so, or fails when that takes longer than `bound`.
pub fn wait_until(what: &str, bound: Duration, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + bound;
    while !is_so()? {
        if Instant::now() >= deadline {
            bail!("waited {} s in vain: {what}", bound.as_secs());
        }
        pause(PAUSE);
    }
    Ok(())
}

/// Does nothing for a while, where time itself is what is waited for.
#[expect(clippy::disallowed_methods, reason = "the one place: what is waited for here has no event")]
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
        assert_eq!(error, "waited 0 s in vain: nothing");
    }
}
