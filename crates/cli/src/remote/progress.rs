//! A progress line: on a terminal only, on stderr, removed when the work is done.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::termios::tcgetwinsize;

use super::shown::{line, size};

/// Minimum time between two redraws.
const INTERVAL: Duration = Duration::from_millis(100);
/// Shorter work shows no line.
const QUIET: Duration = Duration::from_millis(300);

#[derive(Clone, Debug)]
pub(crate) struct Progress {
    shared: Option<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    total: Option<u64>,
    begun: Instant,
    done: AtomicU64,
    drawn: Mutex<Option<Instant>>,
}

impl Progress {
    /// `total` is in bytes, if known.
    pub(crate) fn new(name: &str, total: Option<u64>) -> Self {
        let shared = std::io::stderr().is_terminal().then(|| {
            Arc::new(Shared {
                name: line(name),
                total,
                begun: Instant::now(),
                done: AtomicU64::new(0),
                drawn: Mutex::new(None),
            })
        });
        Self { shared }
    }

    /// Adds completed bytes.
    pub(crate) fn add(&self, bytes: u64) {
        let Some(shared) = &self.shared else { return };
        let done = shared.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let elapsed = shared.begun.elapsed();
        let Ok(mut drawn) = shared.drawn.lock() else { return };
        if elapsed < QUIET || drawn.is_some_and(|drawn| drawn.elapsed() < INTERVAL) {
            return;
        }
        *drawn = Some(Instant::now());
        let width = tcgetwinsize(std::io::stderr()).map_or(80, |size| usize::from(size.ws_col));
        let text = text(&shared.name, done, shared.total, elapsed, width);
        // The progress line is cosmetic, so a failure is ignored.
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
    }

    /// Removes the line.
    pub(crate) fn finish(&self) {
        let Some(shared) = &self.shared else { return };
        if shared.drawn.lock().is_ok_and(|mut drawn| drawn.take().is_some()) {
            // The progress line is cosmetic, so a failure is ignored.
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn text(name: &str, done: u64, total: Option<u64>, elapsed: Duration, width: usize) -> String {
    let rate = size((done as f64 / elapsed.as_secs_f64().max(0.001)) as u64);
    let numbers = match total {
        Some(total) => {
            let share = if total == 0 { 1.0 } else { (done as f64 / total as f64).min(1.0) };
            const CELLS: usize = 20;
            let filled = (share * CELLS as f64) as usize;
            let bar: String =
                std::iter::repeat_n('=', filled).chain(std::iter::repeat_n(' ', CELLS - filled)).collect();
            format!("[{bar}] {:>3}% {}/{} {rate}/s", (share * 100.0) as u32, size(done), size(total))
        }
        None => format!("{} {rate}/s", size(done)),
    };
    let space = width.saturating_sub(numbers.chars().count() + 2);
    let shown: String = if name.chars().count() > space {
        std::iter::once('…')
            .chain(name.chars().skip(name.chars().count().saturating_sub(space.saturating_sub(1))))
            .collect()
    } else {
        name.to_owned()
    };
    format!("{shown} {numbers}").chars().take(width.saturating_sub(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_fits_and_tells_how_far() {
        let half = text("a.bin", 512 << 10, Some(1 << 20), Duration::from_secs(1), 80);
        assert_eq!(half, "a.bin [==========          ]  50% 512.0K/1.0M 512.0K/s");
        assert_eq!(text("x", 10, None, Duration::from_secs(2), 80), "x 10B 5B/s");
        for width in [0, 1, 10, 40, 200] {
            let line = text(&"n".repeat(300), 1, Some(2), Duration::from_secs(1), width);
            assert!(line.chars().count() <= width, "{width}");
        }
        assert!(text("empty", 0, Some(0), Duration::ZERO, 80).contains("100%"));
    }
}
