//! Headers that requests to a host get on their way out, as E2B's clients ask for them: each is a secret of the project with a name of
//! its own making.
//!
//! The name is derived from the host, the header and the value with the server's key. So the same header of many sandboxes is one
//! secret, a request that is repeated stores nothing twice, and the name tells nothing. Nobody else can store a secret of such a name,
//! and one that no live sandbox uses is removed after a while.

use std::time::Duration;

use saggar_domain::net::Rule;
use saggar_domain::secret::{Binding, SecretName, SecretUse, SecretValue, Slot, USES_MAX};
use saggar_domain::{Code, Problem, ProjectId, Timestamp};
use saggar_store::{Removed, WhileUsed};

use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::sandboxes::Sandboxes;

/// The purpose string from which names are derived.
const PURPOSE: &str = "header/v1";
/// What such a name begins with; 32 hexadecimal digits follow.
const PREFIX: &str = "e2b-header-";
const DIGITS: usize = 32;
/// How long an unused one is kept: longer than it takes to create a sandbox.
const UNUSED_MAX: Duration = Duration::from_secs(3600);

/// A header for requests to a host.
#[derive(Clone)]
pub struct HeaderRule {
    pub host: Rule,
    pub header: String,
    pub value: SecretValue,
}

impl Sandboxes {
    /// Stores the values, and returns what a sandbox has to use to get the headers. The caller may create or change sandboxes.
    pub async fn store_headers(&self, permit: &Permit, rules: &[HeaderRule]) -> Result<Vec<SecretUse>, Fault> {
        permit.check(|action| matches!(action, Action::CreateSandbox | Action::ChangeSandbox(_)))?;
        // Before anything is stored: no sandbox could use more, and each stays for a while.
        if rules.len() > USES_MAX {
            let message = format!("{} header rules are more than {USES_MAX}", rules.len());
            return Err(Fault::Refused(Problem::new(Code::InvalidValue, message, "use fewer in one sandbox")));
        }
        let project = permit.project();
        let mut uses = Vec::with_capacity(rules.len());
        for HeaderRule { host, header, value } in rules {
            let slot = Slot::Header { name: header.clone(), prefix: String::new() };
            let binding = Binding::new(vec![host.clone()], slot, None).map_err(Fault::Refused)?;
            let name = self.header_name(project, &host.to_string(), header, value)?;
            self.vault().write(project, &name, Some(&binding), Some(value)).await?;
            let used = SecretUse { name, env: None };
            if !uses.contains(&used) {
                uses.push(used);
            }
        }
        Ok(uses)
    }

    /// Removes those that no live sandbox uses any more.
    pub(crate) async fn sweep_headers(&self, now: Timestamp) -> Result<(), Fault> {
        let cutoff = now.before(UNUSED_MAX);
        let mut kept = 0;
        loop {
            // Those that stay must not hide the rest.
            let found = self.store().secrets_named(PREFIX, cutoff, kept).await?;
            if found.is_empty() {
                return Ok(());
            }
            for (project, name) in found {
                if !is_reserved(&name) {
                    kept += 1;
                    continue;
                }
                match self.store().remove_secret(project, name, WhileUsed::Refuse).await? {
                    Removed::Done(_) | Removed::Absent => {}
                    Removed::InUse(_) => kept += 1,
                }
            }
        }
    }

    fn header_name(
        &self,
        project: &ProjectId,
        host: &str,
        header: &str,
        value: &SecretValue,
    ) -> Result<SecretName, Fault> {
        let header = header.to_ascii_lowercase();
        let bytes = self.signing().derive(&[PURPOSE, project.as_str(), host, &header, value.expose()]);
        let (random, _) = bytes.split_first_chunk().expect("32 bytes are more than 16");
        let name = format!("{PREFIX}{:032x}", u128::from_be_bytes(*random));
        SecretName::parse(&name).ok_or_else(|| Fault::internal("naming a header", std::io::Error::other("its name")))
    }
}

/// Whether a name is of this kind.
fn is_reserved(name: &SecretName) -> bool {
    let digits = name.as_str().strip_prefix(PREFIX);
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The secrets of a sandbox with other headers. Those that aren't headers stay.
pub(crate) fn with_headers(uses: &[SecretUse], headers: Vec<SecretUse>) -> Vec<SecretUse> {
    uses.iter().filter(|used| !is_reserved(&used.name)).cloned().chain(headers).collect()
}

/// Refuses a name that others may not store: what is stored under it would be removed.
pub(super) fn check_unreserved(name: &SecretName) -> Result<(), Fault> {
    match is_reserved(name) {
        true => Err(Fault::Refused(Problem::new(
            Code::InvalidValue,
            format!("the secret name {name} is reserved: header rules of E2B's clients have such names"),
            "choose another name",
        ))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_kind_are_reserved() {
        let digits = "0123456789abcdef0123456789abcdef";
        for (name, expected) in [
            (format!("{PREFIX}{digits}"), true),
            (format!("{PREFIX}{}", &digits[1..]), false),
            (format!("{PREFIX}{}z", &digits[1..]), false),
            (format!("{PREFIX}openai"), false),
            ("openai".to_owned(), false),
        ] {
            let name = SecretName::parse(&name).unwrap();
            assert_eq!((is_reserved(&name), check_unreserved(&name).is_err()), (expected, expected), "{name}");
        }
    }

    #[test]
    fn other_headers_leave_the_other_secrets_as_they_are() {
        let header = |digit: &str| -> SecretUse { format!("{PREFIX}{}", digit.repeat(DIGITS)).parse().unwrap() };
        let own: Vec<SecretUse> = ["KEY=openai", "e2b-header-mine"].map(|text| text.parse().unwrap()).into();
        let before = [own.clone(), vec![header("1"), header("2")]].concat();
        assert_eq!(with_headers(&before, vec![header("3")]), [own.clone(), vec![header("3")]].concat());
        assert_eq!(with_headers(&before, Vec::new()), own);
    }
}
