//! Takes the authority of a managed network out of a bundle of certificates.
//!
//! Both texts come from a sandbox, where a program may have written anything into them. So an authority counts only if it is one
//! certificate of a bounded size, and the bundle is read once from its beginning to its end: the time depends on its length alone.

use saggar_domain::Problem;

use super::content::GoOn;

/// Maximum size of a file with the authority.
pub(super) const AUTHORITY_MAX: u64 = 16 << 10;
/// Maximum size of a bundle that is examined.
pub(super) const BUNDLE_MAX: u64 = 8 << 20;
const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
const END: &[u8] = b"-----END CERTIFICATE-----";

/// The certificate in a file, if there is exactly one and nothing else.
pub(super) fn certificate(file: &[u8]) -> Option<&[u8]> {
    let text = file.trim_ascii();
    let inside = text.strip_prefix(BEGIN)?.strip_suffix(END)?;
    let is_one = !inside.split(|byte| *byte == b'\n').any(|line| line.starts_with(b"-----"));
    (is_one && inside.starts_with(b"\n") && inside.ends_with(b"\n")).then_some(text)
}

/// The bundle without these certificates, wherever they are in it, and without the empty lines after them.
pub(super) fn without(bundle: &[u8], authorities: &[Vec<u8>], go_on: GoOn<'_>) -> Result<Vec<u8>, Problem> {
    let mut left = Vec::with_capacity(bundle.len());
    // Where the certificate begins that is being read, in what is left.
    let mut begin = None;
    let mut is_after_removed = false;
    for line in bundle.split_inclusive(|byte| *byte == b'\n') {
        if is_after_removed && line == b"\n" {
            continue;
        }
        is_after_removed = false;
        match line.trim_ascii_end() {
            BEGIN => {
                go_on()?;
                begin = Some(left.len());
                left.extend_from_slice(line);
            }
            END => {
                left.extend_from_slice(line);
                let Some(begin) = begin.take() else { continue };
                if authorities.iter().any(|authority| left[begin..].trim_ascii_end() == authority) {
                    left.truncate(begin);
                    is_after_removed = true;
                }
            }
            _ => left.extend_from_slice(line),
        }
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(name: &str) -> String {
        format!("-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n")
    }

    #[test]
    fn a_certificate_is_taken_out_wherever_it_is() {
        let (own, other) = (block("b"), block("a"));
        let authorities = [certificate(own.as_bytes()).unwrap().to_vec()];
        for (bundle, left) in [
            (format!("{other}{own}"), other.clone()),
            (format!("{own}{other}{own}"), other.clone()),
            (format!("{own}\n\n{other}"), other.clone()),
            (other.clone(), other.clone()),
            (own.clone(), String::new()),
            (own.trim_end().to_owned(), String::new()),
            // One that has no end, and an end without a beginning.
            (format!("-----BEGIN CERTIFICATE-----\n{own}"), "-----BEGIN CERTIFICATE-----\n".to_owned()),
            (format!("-----END CERTIFICATE-----\n{own}"), "-----END CERTIFICATE-----\n".to_owned()),
            (String::new(), String::new()),
        ] {
            let found = without(bundle.as_bytes(), &authorities, &|| Ok(())).unwrap();
            assert_eq!(String::from_utf8(found).unwrap(), left, "{bundle:?}");
        }
        assert_eq!(without(other.as_bytes(), &[], &|| Ok(())).unwrap(), other.as_bytes());
    }

    #[test]
    fn an_authority_is_one_certificate() {
        let own = block("b");
        assert_eq!(certificate(own.as_bytes()), Some(own.trim_end().as_bytes()));
        for wrong in ["", "a", "\n", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----x"] {
            assert_eq!(certificate(wrong.as_bytes()), None, "{wrong:?}");
        }
        assert_eq!(certificate(format!("{own}{own}").as_bytes()), None);
        assert_eq!(certificate(format!("a\n{own}").as_bytes()), None);
    }

    #[test]
    fn whoever_cancels_is_asked_at_each_certificate() {
        let cancelled = || Problem::new(saggar_domain::Code::BuildFailed, "cancelled", "build again");
        let bundle = block("a");
        assert_eq!(without(bundle.as_bytes(), &[], &|| Err(cancelled())).unwrap_err().message, "cancelled");
    }
}
