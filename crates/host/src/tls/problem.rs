//! Words for a failed TLS handshake: the problem and its remedy.

use rustls::{AlertDescription, CertificateError, Error, OtherError};

/// The problem of this end with the other one, called `peer` ("the server" or "the client").
#[must_use]
pub fn explain(error: &Error, peer: &str) -> String {
    match error {
        Error::InvalidCertificate(problem) => of_certificate(problem, peer),
        Error::NoCertificatesPresented => {
            format!("{peer} has no certificate, but --tls-verify-peer requires one")
        }
        Error::AlertReceived(AlertDescription::AccessDenied) => format!(
            "{peer} does not allow this certificate: its list (--tls-authz) does not name it"
        ),
        Error::AlertReceived(AlertDescription::CertificateRevoked) => {
            format!("{peer} refuses the certificate of this end: it is revoked there (ca-crl.pem)")
        }
        Error::AlertReceived(alert) if is_refusal(*alert) => format!(
            "{peer} refuses the certificate of this end, or requires one: {alert:?}; \
             `blockyard doctor --tls` checks the files"
        ),
        Error::AlertReceived(alert) => format!("{peer} ends the TLS handshake: {alert:?}"),
        Error::PeerIncompatible(problem) => {
            format!("{peer} has no TLS version or algorithm of this end: {problem:?}")
        }
        Error::InvalidMessage(_) => format!("{peer} does not speak TLS"),
        other => format!("TLS with {peer} failed: {other}"),
    }
}

fn is_refusal(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
    )
}

fn of_certificate(problem: &CertificateError, peer: &str) -> String {
    let what = match problem {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "has expired; renew it, or correct the clock of this machine".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet; compare the clocks of the two machines".to_owned()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "was not issued by the CA in ca-cert.pem; both ends need the same ca-cert.pem"
                .to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<_> = presented.iter().map(|name| named(name)).collect();
            let names = if names.is_empty() {
                "it names no host (a common name does not count)".to_owned()
            } else {
                format!("it names {}", names.join(", "))
            };
            format!(
                "is not for {}: {names}; connect by one of its names, or give it with tls-hostname",
                expected.to_str()
            )
        }
        CertificateError::Revoked => "is revoked in ca-crl.pem".to_owned(),
        CertificateError::UnknownRevocationStatus => {
            "is of a CA without a list in ca-crl.pem; add its list, or remove the file".to_owned()
        }
        CertificateError::ApplicationVerificationFailure => {
            "is not in the list of --tls-authz".to_owned()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is not for this use by its extended key usage".to_owned()
        }
        CertificateError::Other(OtherError(other))
            if format!("{other:?}").contains("CaUsedAsEndEntity") =>
        {
            "is a CA; make one that the CA has signed, as `blockyard tls init` does".to_owned()
        }
        other => format!("cannot be used: {other}"),
    };
    format!("the certificate of {peer} {what}")
}

/// A presented name, which rustls prints as `DnsName("host")` or `IpAddress(127.0.0.1)`.
fn named(presented: &str) -> &str {
    let inner = presented.split_once('(').map_or(presented, |(_, inner)| inner);
    inner.trim_end_matches(')').trim_matches('"')
}
