//! Formatting for people: ages, sizes with units, and untrusted text made harmless.

use std::time::SystemTime;

use saggar_api::{Labels, Timestamp};

use crate::outcome::visible;

pub(crate) fn now() -> Timestamp {
    Timestamp::from(SystemTime::now())
}

/// The time between two moments, in its largest unit.
pub(crate) fn span(from: Timestamp, to: Timestamp) -> String {
    let seconds = to.as_millis().saturating_sub(from.as_millis()) / 1000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A number of bytes, in its largest unit.
pub(crate) fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "K", "M", "G", "T"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes}B") } else { format!("{value:.1}{unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1}P")
}

/// Labels on one line.
pub(crate) fn labels(labels: &Labels) -> String {
    line(&labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(","))
}

/// Untrusted text on one line: control characters, including newlines, are escaped.
pub(crate) fn line(text: &str) -> String {
    visible(text).replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_in_their_largest_unit() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (60, "1m"), (7199, "1h"), (86_400 * 3, "3d")] {
            assert_eq!(span(Timestamp::from_millis(0), Timestamp::from_millis(seconds * 1000)), text);
        }
        for (bytes, text) in [(0, "0B"), (1023, "1023B"), (1536, "1.5K"), (5 << 30, "5.0G"), (u64::MAX, "16384.0P")] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn text_from_elsewhere_stays_on_its_line() {
        assert_eq!(line("a\x1b[2J\nb\u{202e}c"), "a\\u{1b}[2J\\nb\\u{202e}c");
    }
}
