//! Extended headers: records `LENGTH KEY=VALUE\n`, of which only the known keys are used.

/// Maximum number of extended attributes of one entry.
pub(crate) const ATTRIBUTES_MAX: usize = 256;
/// Our own key: permissions with set-id bits, which the header lacks.
pub(super) const MODE: &[u8] = b"SAGGAR.mode";

/// What extended headers say about the next entry.
#[derive(Debug, Default)]
pub(super) struct Extended {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) long_name: Option<Vec<u8>>,
    pub(super) long_link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) modified: Option<(i64, u32)>,
    pub(super) mode: Option<u64>,
    pub(super) attributes: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) attributes_unread: u64,
    pub(super) sparse: Option<Described>,
}

/// A sparse file of GNU tar in pax format.
#[derive(Debug, Default)]
pub(super) struct Described {
    pub(super) size: Option<u64>,
    pub(super) major: Option<u64>,
    /// In the header itself: version 0.1.
    pub(super) map: Option<Vec<u8>>,
}

impl Extended {
    pub(super) fn read(&mut self, mut records: &[u8]) -> Result<(), &'static str> {
        const WRONG: &str = "an extended header that is no list of records";
        while !records.is_empty() {
            let space = records.iter().take(20).position(|byte| *byte == b' ').ok_or(WRONG)?;
            let length = decimal(&records[..space]).and_then(|length| usize::try_from(length).ok()).ok_or(WRONG)?;
            let record = records.get(space + 1..length).ok_or(WRONG)?.strip_suffix(b"\n").ok_or(WRONG)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or(WRONG)?;
            self.set(&record[..equals], &record[equals + 1..])?;
            records = &records[length..];
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        let number = || decimal(value).ok_or("an extended header with a value that is no number");
        match key {
            b"path" => self.path = some_text(value)?,
            b"linkpath" => self.link = some_text(value)?,
            b"size" => self.size = Some(number()?),
            b"uid" => self.uid = Some(number()?),
            b"gid" => self.gid = Some(number()?),
            b"mtime" => self.modified = Some(time(value).ok_or("an extended header with a time that is no number")?),
            MODE => self.mode = Some(number()?),
            b"GNU.sparse.major" => self.sparse().major = Some(number()?),
            b"GNU.sparse.realsize" | b"GNU.sparse.size" => self.sparse().size = Some(number()?),
            b"GNU.sparse.map" => self.sparse().map = Some(value.to_vec()),
            b"GNU.sparse.name" => self.path = some_text(value)?,
            // Version 0.0 repeats these keys. No current program writes it.
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => return Err("a sparse file in a form that isn't known"),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    if self.attributes.len() >= ATTRIBUTES_MAX {
                        return Err("an entry with more than 256 extended attributes");
                    }
                    self.attributes.push((name.to_vec(), value.to_vec()));
                } else if key.starts_with(b"LIBARCHIVE.xattr.") || key.starts_with(b"SCHILY.acl.") {
                    self.attributes_unread += 1;
                }
            }
        }
        Ok(())
    }

    fn sparse(&mut self) -> &mut Described {
        self.sparse.get_or_insert_default()
    }
}

/// An empty value takes back one of an earlier header.
fn some_text(value: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    if value.contains(&0) {
        return Err("a name with a NUL byte");
    }
    Ok((!value.is_empty()).then(|| value.to_vec()))
}

pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, digit| match digit {
        b'0'..=b'9' => sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// Seconds with a fraction, which may be negative.
fn time(text: &[u8]) -> Option<(i64, u32)> {
    let (is_negative, text) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
    let dot = text.iter().position(|byte| *byte == b'.');
    let (whole, fraction) = dot.map_or((text, &b""[..]), |dot| (&text[..dot], &text[dot + 1..]));
    let seconds = i64::try_from(decimal(whole)?).ok()?;
    let mut nanos = 0;
    if !fraction.is_empty() {
        decimal(&fraction[..fraction.len().min(18)])?;
        for at in 0..9 {
            nanos = nanos * 10 + fraction.get(at).map_or(0, |digit| u32::from(digit - b'0'));
        }
    }
    match (is_negative, nanos) {
        (false, nanos) => Some((seconds, nanos)),
        (true, 0) => Some((-seconds, 0)),
        (true, nanos) => Some((-seconds - 1, 1_000_000_000 - nanos)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_fraction_and_a_sign() {
        let check = |text: &str, expected: Option<(i64, u32)>| assert_eq!(time(text.as_bytes()), expected, "{text}");
        check("0", Some((0, 0)));
        check("1700000000.5", Some((1_700_000_000, 500_000_000)));
        check("1.0000000019", Some((1, 1)));
        check("-1", Some((-1, 0)));
        check("-1.25", Some((-2, 750_000_000)));
        check("", None);
        check("1.x", None);
        check("1e9", None);
        check("99999999999999999999", None);
    }

    #[test]
    fn records_that_lie_about_their_length_are_refused() {
        let read = |text: &[u8]| {
            let mut extended = Extended::default();
            extended.read(text).map(|()| extended)
        };
        assert_eq!(read(b"10 path=a\n").unwrap().path, Some(b"a".to_vec()));
        assert_eq!(read(b"10 path=a\n8 path=\n").unwrap().path, None);
        for wrong in [
            &b"10 path=a"[..],
            b"11 path=a\n",
            b"8 path=a\n",
            b"0 path=a\n",
            b"3 path=a\n",
            b"99999999999999999999 path=a\n",
            b" path=a\n",
            b"8 patha\n",
            b"12 path=a\0b\n",
            b"11 size=-1\n",
        ] {
            assert!(read(wrong).is_err(), "{:?}", String::from_utf8_lossy(wrong));
        }
    }
}
