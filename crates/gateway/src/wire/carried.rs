//! Verbatim data in wires that have no field for it: it is carried in an id or a signature, which clients return unchanged.
//!
//! `call_1__saggar_<base64>` is the call `call_1` with its data. Data that is too long is left out: some providers then answer a little
//! worse, or refuse the turn.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use saggar_domain::model::Verbatim;

const MARK: &str = "__saggar_";
/// Maximum length of carried data, in bytes.
const CARRIED_MAX: usize = 64 * 1024;

/// An id that carries data.
pub(super) fn with(id: &str, verbatim: Option<&Verbatim>) -> String {
    match verbatim.and_then(|verbatim| serde_json::to_vec(verbatim).ok()) {
        Some(data) if data.len() <= CARRIED_MAX => format!("{id}{MARK}{}", URL_SAFE_NO_PAD.encode(data)),
        Some(_) | None => id.to_owned(),
    }
}

/// The id and what it carries. Damaged data is left out.
pub(super) fn split(text: &str) -> (&str, Option<Verbatim>) {
    let Some((id, data)) = text.rsplit_once(MARK) else { return (text, None) };
    if data.len() > CARRIED_MAX * 2 {
        return (id, None);
    }
    let verbatim = URL_SAFE_NO_PAD.decode(data).ok().and_then(|data| serde_json::from_slice(&data).ok());
    (id, verbatim)
}

#[cfg(test)]
mod tests {
    use saggar_domain::model::{Origin, Wire};

    use super::*;

    #[test]
    fn an_id_carries_data_there_and_back() {
        let origin = Origin { provider: "g".to_owned(), model: "m".to_owned() };
        let verbatim = Verbatim { wire: Wire::Gemini, origin, data: r#"{"thoughtSignature":"é"}"#.to_owned() };
        let id = with("call_1", Some(&verbatim));
        assert_eq!(split(&id), ("call_1", Some(verbatim.clone())));
        assert_eq!(split("call_1"), ("call_1", None));
        assert_eq!(split("call_1__saggar_%%%"), ("call_1", None));
        let long = Verbatim { data: "x".repeat(CARRIED_MAX), ..verbatim };
        assert_eq!(with("call_1", Some(&long)), "call_1");
    }
}
