//! The secrets of a spec: which ones a sandbox uses, and in which variables programs find their placeholders.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};

use crate::environment::EnvDraft;
use crate::mode::NetworkMode;
use crate::problem::{Code, Problem};
use crate::secret::name::{SecretName, VariableName};
use crate::table::only_from_a_table;

/// Maximum number of secrets of one sandbox.
pub const USES_MAX: usize = 64;

/// On the command line `NAME` or `VARIABLE=NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct SecretUse {
    pub name: SecretName,
    /// The variable that holds the placeholder. Without one, requests get the value all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<VariableName>,
}

only_from_a_table!(SecretUse);

impl FromStr for SecretUse {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((variable, name)) => Ok(Self { name: name.parse()?, env: Some(variable.parse()?) }),
            None => Ok(Self { name: text.parse()?, env: None }),
        }
    }
}

impl fmt::Display for SecretUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.env {
            Some(variable) => write!(f, "{variable}={}", self.name),
            None => self.name.fmt(f),
        }
    }
}

/// Variables that change how programs are found, started or reached. What begins with `LD_` is one, too.
const RESERVED: &[&str] = &[
    "BASH_ENV",
    "ENV",
    "GCONV_PATH",
    "HOME",
    "IFS",
    "JAVA_TOOL_OPTIONS",
    "NODE_EXTRA_CA_CERTS",
    "NODE_OPTIONS",
    "PATH",
    "PERL5LIB",
    "PERL5OPT",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "REQUESTS_CA_BUNDLE",
    "RUBYLIB",
    "RUBYOPT",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "ALL_PROXY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
];

fn is_reserved(variable: &str) -> bool {
    variable.starts_with("LD_") || RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(variable))
}

/// For new sandboxes only: earlier versions created sandboxes with such variables, and these can still be shown.
pub(crate) fn check_variables(uses: &[SecretUse]) -> Result<(), Problem> {
    match uses.iter().filter_map(|used| used.env.as_ref()).find(|variable| is_reserved(variable.as_str())) {
        Some(variable) => Err(Problem::new(
            Code::InvalidValue,
            format!("the variable {variable} can't hold the placeholder of a secret: it changes how programs run"),
            "use the variable in which the program looks for its key, such as OPENAI_API_KEY",
        )),
        None => Ok(()),
    }
}

/// A secret has a use only where requests are inspected, and a variable has one value.
pub(crate) fn check_uses(uses: &[SecretUse], network: Option<NetworkMode>, env: &EnvDraft) -> Result<(), Problem> {
    let Some(first) = uses.first() else { return Ok(()) };
    match network {
        Some(NetworkMode::Proxied) => {}
        None | Some(NetworkMode::None | NetworkMode::Host) => {
            let mode = network.unwrap_or(NetworkMode::None);
            return Err(Problem::new(
                Code::Contradiction,
                format!("the sandbox uses the secret {}, and its network mode is {mode}", first.name),
                "secrets need the mode `proxied`: add `--net proxied` (`network = \"proxied\"` in a spec)",
            ));
        }
    }
    if uses.len() > USES_MAX {
        let message = format!("{} secrets are more than {USES_MAX}", uses.len());
        return Err(Problem::new(Code::InvalidValue, message, "use fewer in one sandbox"));
    }
    for (at, used) in uses.iter().enumerate() {
        let Some(variable) = &used.env else { continue };
        let is_taken = uses[..at].iter().any(|other| other.env.as_ref() == Some(variable) && other.name != used.name);
        if is_taken || env.contains(variable.as_str()) {
            return Err(Problem::new(
                Code::Contradiction,
                format!(
                    "the variable {variable} is to hold the placeholder of the secret {}, and something else",
                    used.name
                ),
                "use another variable for one of them",
            ));
        }
    }
    Ok(())
}

/// As the policy hash covers them: names and variables, sorted, because order has no meaning.
pub(crate) fn as_policy<S: Serializer>(uses: &[SecretUse], serializer: S) -> Result<S::Ok, S::Error> {
    let mut texts: Vec<String> = uses.iter().map(SecretUse::to_string).collect();
    texts.sort_unstable();
    texts.dedup();
    texts.serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_is_a_name_or_a_variable_and_a_name() {
        for text in ["openai", "OPENAI_API_KEY=openai"] {
            assert_eq!(text.parse::<SecretUse>().unwrap().to_string(), text);
        }
        for wrong in ["", "=openai", "A=", "A=B=c", "A B=c", "OpenAI", "A=sk-Canary", "sk-Canary=a"] {
            let complaint = wrong.parse::<SecretUse>().unwrap_err();
            // It may be a value in the wrong place.
            assert!(!complaint.contains("Canary") && complaint.contains("the name of a"), "{complaint}");
        }
    }

    #[test]
    fn variables_that_change_how_programs_run_hold_no_placeholder() {
        let check = |variable: &str| check_variables(&[format!("{variable}=openai").parse().unwrap()]);
        for reserved in ["LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "PATH", "BASH_ENV", "NODE_OPTIONS", "https_proxy"]
        {
            let problem = check(reserved).unwrap_err();
            assert!(problem.message.contains(reserved), "{problem:?}");
        }
        for fine in ["OPENAI_API_KEY", "LDAP_PASSWORD", "GITHUB_TOKEN", "XPATH"] {
            check(fine).unwrap();
        }
    }
}
