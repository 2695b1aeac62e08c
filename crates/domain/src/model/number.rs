//! Settings with a fraction, exactly: in millionths, so that equality and hashes mean what they say.

use serde::{Deserialize, Serialize};

/// A number between about −2,147 and 2,147. Stored as the whole number of millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millionths(pub i32);

impl Millionths {
    /// The nearest; `None` if it is not a number or out of range.
    pub fn from_f64(number: f64) -> Option<Self> {
        let scaled = (number * 1e6).round();
        (scaled.is_finite() && scaled.abs() <= f64::from(i32::MAX)).then_some(Self(scaled as i32))
    }

    pub fn to_f64(self) -> f64 {
        f64::from(self.0) / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_comes_back_as_it_was() {
        for text in ["0", "0.7", "1", "0.95", "-2", "0.123456", "2"] {
            let number: f64 = text.parse().unwrap();
            assert_eq!(Millionths::from_f64(number).unwrap().to_f64(), number, "{text}");
        }
        for wrong in [f64::NAN, f64::INFINITY, 1e10] {
            assert_eq!(Millionths::from_f64(wrong), None);
        }
    }
}
