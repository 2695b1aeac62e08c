//! Amounts of dollars in the catalogue, exactly: as text or as a number, with at most six decimals.

use saggar_domain::model::{Micros, Price};
use serde::{Deserialize, Deserializer, de};

const DECIMALS: usize = 6;

/// Millionths of a dollar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dollars(u64);

impl Dollars {
    pub(super) fn micros(self) -> Micros {
        Micros(self.0)
    }

    /// Per million tokens.
    pub(super) fn price(self) -> Price {
        Price(self.0)
    }

    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('$').unwrap_or(text);
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(fraction) || fraction.len() > DECIMALS {
            return None;
        }
        let fraction: u64 = format!("{fraction:0<DECIMALS$}").parse().ok()?;
        whole.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(fraction).map(Self)
    }
}

impl<'de> Deserialize<'de> for Dollars {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Amount;
        impl de::Visitor<'_> for Amount {
            type Value = Dollars;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an amount of dollars with at most six decimals, such as \"1.25\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Dollars, E> {
                Dollars::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Dollars, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Dollars, E> {
                self.visit_str(&number.to_string())
            }

            // The shortest text of a number is the one that was written.
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Dollars, E> {
                self.visit_str(&number.to_string())
            }
        }
        deserializer.deserialize_any(Amount)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact() {
        for (text, micros) in [("1.25", 1_250_000), ("$0.000001", 1), ("3", 3_000_000), ("0.075", 75_000)] {
            assert_eq!(Dollars::parse(text), Some(Dollars(micros)), "{text}");
        }
        for wrong in ["", "-1", "1.", ".5", "1e3", "0.0000001", "1,5", "99999999999999", "NaN"] {
            assert_eq!(Dollars::parse(wrong), None, "{wrong}");
        }
    }
}
