//! Quantities in human notation: `512M`, `1.5` CPUs, `30s`. Parsed once at the edge; inside, the type is the proof.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Bytes; `K`, `M`, `G`, `T` are powers of 1024, with or without `iB` or `B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(u64);

impl ByteSize {
    pub const fn mebibytes(count: u64) -> Self {
        Self(count << 20)
    }

    pub const fn from_bytes(count: u64) -> Self {
        Self(count)
    }

    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Parses `4096`, `64K`, `512MiB`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(split);
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(format!("{text:?} is not a size: write a whole number with K, M, G or T, such as 512M")),
        };
        let count: u64 = digits
            .parse()
            .map_err(|_| format!("{text:?} is not a size: write a whole number with K, M, G or T, such as 512M"))?;
        count
            .checked_mul(1 << shift)
            .filter(|bytes| *bytes <= i64::MAX as u64)
            .map(Self)
            .ok_or_else(|| format!("{text:?} is too large"))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// CPUs in thousandths, so that equality and hashing are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpus(u32);

impl Cpus {
    pub const fn millis(count: u32) -> Self {
        Self(count)
    }

    pub const fn as_millis(self) -> u32 {
        self.0
    }

    /// Parses `2`, `0.5`, `1.25`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let complaint =
            || format!("{text:?} is not a number of CPUs: write for example 2 or 0.5 (three decimals at most)");
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        if whole.is_empty()
            || fraction.is_empty()
            || fraction.len() > 3
            || !fraction.bytes().all(|b| b.is_ascii_digit())
        {
            return Err(complaint());
        }
        let whole: u32 = whole.parse().map_err(|_| complaint())?;
        let fraction: u32 = format!("{fraction:0<3}").parse().map_err(|_| complaint())?;
        whole.checked_mul(1000).and_then(|millis| millis.checked_add(fraction)).map(Self).ok_or_else(complaint)
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.0 / 1000, self.0 % 1000);
        if fraction == 0 {
            write!(f, "{whole}")
        } else {
            write!(f, "{}", format!("{whole}.{fraction:03}").trim_end_matches('0'))
        }
    }
}

/// Maximum wall-clock time of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timeout(u64);

impl Timeout {
    pub const fn millis(count: u64) -> Self {
        Self(count)
    }

    pub const fn as_millis(self) -> u64 {
        self.0
    }

    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// Parses `500ms`, `30s`, `5m`, `2h`, `1d`; a bare number is seconds.
    pub fn parse(text: &str) -> Result<Self, String> {
        let complaint = || format!("{text:?} is not a time: write a whole number with ms, s, m, h or d, such as 30s");
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(split);
        let scale = match unit {
            "ms" => 1,
            "" | "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(complaint()),
        };
        let count: u64 = digits.parse().map_err(|_| complaint())?;
        count.checked_mul(scale).map(Self).ok_or_else(complaint)
    }
}

/// In whole milliseconds.
impl From<Duration> for Timeout {
    fn from(span: Duration) -> Self {
        Self(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (scale, unit) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")] {
            if self.0 != 0 && self.0.is_multiple_of(scale) {
                return write!(f, "{}{unit}", self.0 / scale);
            }
        }
        write!(f, "{}ms", self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(u64);

impl Count {
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| format!("{text:?} is not a whole number"))
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// In files, a quantity is text as on the command line, or a bare number in its base unit. It is always written as
/// text.
macro_rules! as_text {
    ($($name:ident),+) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Text).and_then(|text| Self::parse(&text).map_err(de::Error::custom))
            }
        }
    )+};
}

as_text!(ByteSize, Cpus, Timeout, Count);

struct Text;

impl de::Visitor<'_> for Text {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text such as \"512M\" or a number")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<String, E> {
        Ok(number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_and_print() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("64K", 65536), ("512m", 512 << 20), ("2GiB", 2 << 30), ("1tb", 1 << 40)]
        {
            assert_eq!(ByteSize::parse(text).map(ByteSize::bytes), Ok(bytes), "{text}");
        }
        for wrong in ["", "M", "-1", "1.5G", "1 G", "12zb", "99999999999999999999", "9000000T", "0x10", "+5"] {
            assert!(ByteSize::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(ByteSize::mebibytes(1536).to_string(), "1536M");
    }

    #[test]
    fn cpus_read_and_print_exactly() {
        for (text, millis) in [("1", 1000), ("0.5", 500), ("1.25", 1250), ("0.001", 1)] {
            assert_eq!(Cpus::parse(text).map(Cpus::as_millis), Ok(millis), "{text}");
            assert_eq!(Cpus::millis(millis).to_string(), text);
        }
        for wrong in ["", ".5", "1.", "1.2345", "-1", "1e3", "5000000", "inf"] {
            assert!(Cpus::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_read_and_print() {
        for (text, millis) in [("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("1d", 86_400_000)]
        {
            assert_eq!(Timeout::parse(text).map(Timeout::as_millis), Ok(millis), "{text}");
            assert_eq!(Timeout::millis(millis).to_string(), text);
        }
        assert_eq!(Timeout::parse("7").map(Timeout::as_millis), Ok(7000));
        for wrong in ["", "s", "1.5s", "-3s", "3 s", "1w", "99999999999999999999d"] {
            assert!(Timeout::parse(wrong).is_err(), "{wrong}");
        }
    }
}
