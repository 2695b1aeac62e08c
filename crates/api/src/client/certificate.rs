//! Why a server's certificate is refused, in words for the operator who made it.

use rustls::CertificateError;

/// Why a server's certificate is refused. The text continues a sentence that begins with the certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFault {
    /// No trusted certificate has signed it. That includes a trusted one of the same name with another key, such as the
    /// server's previous certificate.
    #[error("is not signed by anyone that this host trusts")]
    UnknownIssuer,
    /// It may sign other certificates, so it can't be a server's own.
    #[error("is marked as an authority (CA:TRUE)")]
    Authority,
    /// The names of the server have to be there; the subject's common name is ignored.
    #[error("has no subjectAltName")]
    NoNames,
    /// It belongs to a server of another name.
    #[error("is not valid for {expected}, only for {}", .presented.join(", "))]
    OtherName {
        /// The host of the URL.
        expected: String,
        /// The names in the certificate.
        presented: Vec<String>,
    },
    /// Its time is over.
    #[error("has expired")]
    Expired,
    /// Its time has not begun.
    #[error("is not valid yet")]
    NotYetValid,
    /// Anything else.
    #[error("can't be verified: {0}")]
    Other(String),
}

impl CertificateFault {
    /// What to do about it.
    pub fn help(&self) -> &'static str {
        match self {
            Self::UnknownIssuer => "name the server's certificate, or its issuer, with --ca or SAGGAR_CA",
            Self::Authority => "make the server's certificate with basicConstraints=CA:FALSE",
            Self::NoNames => "make it with subjectAltName=DNS:localhost,IP:127.0.0.1, or the names that clients use",
            Self::OtherName { .. } => {
                "use one of its names in --url or SAGGAR_URL, or add this one to its subjectAltName"
            }
            Self::Expired => {
                "renew the server's certificate, and restart the server; or correct the clock of this host"
            }
            Self::NotYetValid => "correct the clock of this host or of the host that made the certificate",
            Self::Other(_) => "make a new certificate for the server",
        }
    }
}

impl From<&CertificateError> for CertificateFault {
    fn from(error: &CertificateError) -> Self {
        match error {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownIssuer,
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYetValid,
            CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => Self::NoNames,
            CertificateError::NotValidForNameContext { expected, presented } => Self::OtherName {
                expected: expected.to_str().into_owned(),
                presented: presented.iter().map(|name| plain(name)).collect(),
            },
            // The verifier's own type is not part of rustls' interface.
            CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => Self::Authority,
            other => Self::Other(other.to_string()),
        }
    }
}

/// `localhost` from `DnsName("localhost")`.
fn plain(name: &str) -> String {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inner.trim_matches('"').to_owned()
}
