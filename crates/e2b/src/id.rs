//! Ids of sandboxes as E2B's clients may have them: lower-case letters and digits, nothing else.

use saggar_domain::SandboxId;

/// What our ids begin with, and theirs don't.
const PREFIX: &str = "sbx_";

/// The id that is told to a client.
pub(super) fn short(id: &SandboxId) -> &str {
    id.as_str().strip_prefix(PREFIX).unwrap_or(id.as_str())
}

/// The id that a client means; `None` when it can't be one.
pub(super) fn long(text: &str) -> Option<SandboxId> {
    SandboxId::parse(&format!("{PREFIX}{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_goes_out_short_and_comes_back_whole() {
        let id = SandboxId::from_random([7; 16]);
        assert_eq!(long(short(&id)), Some(id.clone()));
        assert!(short(&id).bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()));
        for wrong in ["", "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa", "../../etc", "iw0wn3dkz7qj4mmnqyvs4"] {
            assert_eq!(long(wrong), None, "{wrong}");
        }
    }
}
