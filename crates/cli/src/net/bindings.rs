//! The secrets of a file, as far as explanations need them: names and bindings.

use std::path::Path;

use saggar_domain::net::{Destination, Passage, Rules};
use saggar_domain::secret::{Binding, SecretName};
use saggar_domain::{Code, Problem};
use saggar_egress::secret::file::{FILE_LEN_MAX, parse};
use saggar_given::{GivenFileError, read_given_text};
use zeroize::Zeroizing;

#[derive(Debug, Default)]
pub(crate) struct Bindings(Vec<(SecretName, Binding)>);

impl Bindings {
    pub(super) fn read(path: Option<&Path>) -> Result<Self, Problem> {
        let Some(path) = path else { return Ok(Self::default()) };
        let fail = |error: GivenFileError| {
            let message = format!("the secrets file {:?} {error}", path.display().to_string());
            Problem::new(Code::InvalidValue, message, error.help())
        };
        let text = Zeroizing::new(read_given_text(path, FILE_LEN_MAX as u64).map_err(fail)?);
        Ok(Self(parse(&text)?.into_iter().map(|(name, entry)| (name, entry.binding)).collect()))
    }

    /// The rules, with the hosts that secrets are bound to.
    pub(super) fn bind(&self, rules: Rules) -> Rules {
        rules.with_bound(self.0.iter().flat_map(|(_, binding)| binding.rules()))
    }

    /// The secrets that a connection or a request is for. Over plain http it is for none.
    pub(super) fn used(&self, to: &Destination, request: Option<(&str, &str)>) -> Vec<SecretName> {
        let is_for = |binding: &Binding| match request {
            _ if to.port == 80 => false,
            None => !matches!(binding.matching().connection(to), Passage::Denied(_)),
            Some((method, path)) => binding.matching().request(to, method, path).is_ok(),
        };
        self.0.iter().filter(|(_, binding)| is_for(binding)).map(|(name, _)| name.clone()).collect()
    }

    /// The secrets that no request can get, because no rule allows a host of theirs.
    pub(super) fn unused(&self, rules: &Rules) -> Vec<SecretName> {
        let has_use = |binding: &Binding| binding.rules().iter().any(|rule| rules.could_allow(rule));
        self.0.iter().filter(|(_, binding)| !has_use(binding)).map(|(name, _)| name.clone()).collect()
    }
}
