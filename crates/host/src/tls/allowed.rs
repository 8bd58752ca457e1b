//! The clients that may connect, by name or by the fingerprint of their certificate.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error as TlsError, SignatureScheme,
};
use sha2::{Digest, Sha256};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::credentials::read;
use super::provider;

/// Names and fingerprints of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    names: Vec<String>,
    fingerprints: Vec<[u8; 32]>,
}

impl Allowed {
    /// Parses a list with one entry on each line: the SHA-256 fingerprint of a certificate in
    /// hexadecimal, with or without colons, or a name. Empty lines and lines with `#` at the start
    /// do not count.
    ///
    /// # Errors
    /// The list has no entry.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut allowed = Self::default();
        let lines = text.lines().map(str::trim);
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match fingerprint_of(line) {
                Some(fingerprint) => allowed.fingerprints.push(fingerprint),
                None => allowed.names.push(line.to_owned()),
            }
        }
        if allowed == Self::default() {
            return Err(
                "the list of allowed clients is empty, so no client could connect; write a \
                        name or a SHA-256 fingerprint on each line"
                    .into(),
            );
        }
        Ok(allowed)
    }

    /// Parses the list in a file.
    ///
    /// # Errors
    /// The file is no regular file of at most 1 MiB, has no entry, or is no UTF-8.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = read(path).map_err(|error| format!("cannot read the list: {error}"))?;
        let text = std::str::from_utf8(&text).map_err(|error| format!("the list: {error}"))?;
        Self::parse(text)
    }

    /// Whether a client with this certificate may connect.
    fn has(&self, certificate: &[u8]) -> bool {
        let Some(identity) = identity(certificate) else { return false };
        self.fingerprints.contains(&identity.fingerprint)
            || identity.names.iter().any(|name| self.names.contains(name))
    }
}

fn fingerprint_of(line: &str) -> Option<[u8; 32]> {
    let digits: Vec<u32> =
        line.chars().filter(|c| *c != ':').map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    let bytes: Vec<u8> =
        digits.chunks_exact(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect();
    if digits.len() == 64 { bytes.try_into().ok() } else { None }
}

/// The identity of a certificate's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The common names of the subject, and the DNS names of its subject alternative names.
    pub names: Vec<String>,
    /// SHA-256 of the certificate.
    pub fingerprint: [u8; 32],
}

/// The identity of a certificate in DER; `None` if it is damaged.
#[must_use]
pub fn identity(certificate: &[u8]) -> Option<Identity> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let common = parsed.subject().iter_common_name();
    let mut names: Vec<String> =
        common.filter_map(|name| name.as_str().ok().map(str::to_owned)).collect();
    if let Ok(Some(alternatives)) = parsed.subject_alternative_name() {
        names.extend(alternatives.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        }));
    }
    Some(Identity { names, fingerprint: Sha256::digest(certificate).into() })
}

/// Accepts certificates of the CA whose owner is in a list.
#[derive(Debug)]
pub(super) struct OnlyAllowed {
    pub(super) of_ca: Arc<dyn ClientCertVerifier>,
    pub(super) allowed: Allowed,
}

impl ClientCertVerifier for OnlyAllowed {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.of_ca.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        let verified = self.of_ca.verify_client_cert(end_entity, intermediates, now)?;
        if !self.allowed.has(end_entity) {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.of_ca.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.of_ca.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.of_ca.supported_verify_schemes()
    }
}

/// Accepts any server: encryption without authentication, by the user's choice.
#[derive(Debug)]
pub(super) struct AnyServer(WebPkiSupportedAlgorithms);

impl AnyServer {
    pub(super) fn verifier() -> Arc<Self> {
        Arc::new(Self(provider().signature_verification_algorithms))
    }
}

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_names_and_fingerprints_is_read_and_an_empty_one_refused() {
        let digits = "0a".repeat(32);
        let with_colons = vec!["0A"; 32].join(":");
        let list = format!("# hosts\n\n  client  \n{digits}\n{with_colons}\n{}\n", "0a".repeat(31));
        let allowed = Allowed::parse(&list).unwrap();
        assert_eq!(allowed.fingerprints, [[10; 32], [10; 32]]);
        assert_eq!(allowed.names, ["client".to_owned(), "0a".repeat(31)]);
        assert!(Allowed::parse("# nothing\n").unwrap_err().contains("empty"));
    }
}
