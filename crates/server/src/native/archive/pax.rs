//! What POSIX says about an entry in an extra one: `LENGTH KEYWORD=VALUE`, line by line.

use super::ArchiveError;

/// What is heeded of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extended {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
}

/// Reads them. Times, owners and the like are passed over: they are the sandbox's own.
pub(super) fn read(mut text: &[u8]) -> Result<Extended, ArchiveError> {
    const DAMAGED: ArchiveError = ArchiveError::Damaged("an extended header can't be read");
    let mut extended = Extended::default();
    while !text.is_empty() && text[0] != 0 {
        let space = text.iter().position(|byte| *byte == b' ').ok_or(DAMAGED)?;
        let length: usize =
            std::str::from_utf8(&text[..space]).ok().and_then(|digits| digits.parse().ok()).ok_or(DAMAGED)?;
        if length <= space + 1 || length > text.len() || text[length - 1] != b'\n' {
            return Err(DAMAGED);
        }
        let record = &text[space + 1..length - 1];
        let equals = record.iter().position(|byte| *byte == b'=').ok_or(DAMAGED)?;
        let (keyword, value) = (&record[..equals], &record[equals + 1..]);
        match keyword {
            b"path" => extended.path = Some(value.to_vec()),
            b"linkpath" => extended.link = Some(value.to_vec()),
            b"size" => {
                let size = std::str::from_utf8(value).ok().filter(|size| !size.starts_with('+'));
                extended.size = Some(size.and_then(|size| size.parse().ok()).ok_or(DAMAGED)?);
            }
            keyword if keyword.starts_with(b"GNU.sparse") => {
                return Err(ArchiveError::Damaged("a sparse file: make the archive without --sparse"));
            }
            _ => {}
        }
        text = &text[length..];
    }
    Ok(extended)
}

pub(super) fn write(out: &mut Vec<u8>, keyword: &str, value: &[u8]) {
    // The length counts its own digits.
    let rest = keyword.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    out.extend_from_slice(format!("{length} {keyword}=").as_bytes());
    out.extend_from_slice(value);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_whatever_their_length() {
        for length in [0, 1, 3, 85, 86, 87, 88, 89, 90, 91, 92, 980, 990, 5000] {
            let value = vec![b'x'; length];
            let mut text = Vec::new();
            write(&mut text, "path", &value);
            write(&mut text, "size", b"12");
            let extended = read(&text).unwrap();
            assert_eq!((extended.path, extended.size), (Some(value), Some(12)));
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        for wrong in
            ["5", "x path=a\n", "99 path=a\n", "3 a\n", "0 =\n", "9 path=ab", "12 size=-12\n", "11 size=+1\n\n"]
        {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }
}
