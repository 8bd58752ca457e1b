//! Describes the certificates of a directory, and their flaws.

use std::path::{Path, PathBuf};

use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;

use super::{Credentials, names};
use crate::Error;

/// Shortest RSA key that TLS libraries accept, in bits.
const RSA_BITS_MIN: usize = 2048;

/// The remedy for a certificate that must be made again.
const RENEW: &str = "make it again: blockyard tls init, or tls add-client for a client";

/// A certificate of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Its file.
    pub path: PathBuf,
    /// The subject.
    pub subject: String,
    /// The names that count for clients and servers.
    pub names: Vec<String>,
    /// The day of its end.
    pub expires: String,
    /// SHA-256 in hexadecimal, as a list of allowed clients has it.
    pub fingerprint: String,
    /// Reasons why a TLS library refuses it.
    pub flaws: Vec<Flaw>,
}

/// A reason to refuse a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The field of the certificate, and the problem.
    pub problem: String,
    /// The remedy.
    pub remedy: String,
}

impl Flaw {
    fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { problem: problem.into(), remedy: remedy.into() }
    }
}

/// The certificates of a directory: the CA, the server and the client, as far as they exist.
///
/// # Errors
/// The directory has no certificate, or a file is damaged.
pub fn show(dir: &Path) -> Result<Vec<Certificate>, Error> {
    let files = [
        (names::CA_CERT, None),
        (names::SERVER_CERT, Some((names::SERVER_KEY, Use::Server))),
        (names::CLIENT_CERT, Some((names::CLIENT_KEY, Use::Client))),
    ];
    let present: Vec<_> = files.iter().filter(|(name, _)| dir.join(name).exists()).collect();
    if present.is_empty() {
        let problem = "there is no ca-cert.pem, server-cert.pem or client-cert.pem; `blockyard tls \
                       init` makes them";
        return Err(Error::options(dir, problem));
    }
    present.into_iter().map(|(name, role)| describe(dir, name, *role)).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Server,
    Client,
}

fn describe(dir: &Path, name: &str, role: Option<(&str, Use)>) -> Result<Certificate, Error> {
    let credentials = Credentials::of(dir);
    let path = dir.join(name);
    let damaged = || Error::options(&path, "the certificate is damaged; make it again");
    let chain = credentials.certificates(name)?;
    let identity = blockyard_host::tls::identity(&chain[0]).ok_or_else(damaged)?;
    let (_, certificate) = X509Certificate::from_der(&chain[0]).map_err(|_| damaged())?;
    let mut flaws = general(&certificate);
    match role {
        None if !certificate.is_ca() => {
            flaws.push(Flaw::new(
                "basicConstraints: this is no CA, so it can sign nothing",
                "put the certificate of the CA here",
            ));
        }
        None => {}
        Some((key, role)) => {
            flaws.extend(of_leaf(&certificate, role));
            let other = format!("{key} belongs to another certificate");
            let unusable = format!("{key} is missing, or is no key that TLS accepts");
            let problem = match credentials.fits(name, key) {
                Ok(true) => None,
                Ok(false) => Some(other),
                Err(_) => Some(unusable),
            };
            flaws.extend(
                problem.map(|problem| Flaw::new(problem, "put the key of this certificate there")),
            );
            let authorities = credentials.certificates(names::CA_CERT)?;
            let issuers = chain[1..].iter().chain(&authorities);
            if !issuers.into_iter().any(|issuer| is_issued_by(&certificate, issuer)) {
                flaws.push(Flaw::new(
                    format!("issuer: no certificate in {} has signed it", names::CA_CERT),
                    "copy the certificate of its CA there",
                ));
            }
        }
    }
    let end = certificate.validity().not_after;
    Ok(Certificate {
        path: path.clone(),
        subject: certificate.subject().to_string(),
        names: identity.names,
        expires: day(end),
        fingerprint: identity.fingerprint.iter().map(|byte| format!("{byte:02x}")).collect(),
        flaws,
    })
}

fn day(time: ASN1Time) -> String {
    time.to_datetime().date().to_string()
}

fn is_issued_by(certificate: &X509Certificate<'_>, issuer: &[u8]) -> bool {
    X509Certificate::from_der(issuer).is_ok_and(|(_, issuer)| {
        certificate.issuer() == issuer.subject()
            && certificate.verify_signature(Some(issuer.public_key())).is_ok()
    })
}

/// Flaws of any certificate.
fn general(certificate: &X509Certificate<'_>) -> Vec<Flaw> {
    let mut flaws = Vec::new();
    let validity = certificate.validity();
    let now = ASN1Time::now();
    if now > validity.not_after {
        let end = day(validity.not_after);
        flaws.push(Flaw::new(format!("notAfter: it expired on {end}"), RENEW));
    }
    if now < validity.not_before {
        let from = day(validity.not_before);
        let problem = format!("notBefore: it is not valid before {from}");
        flaws.push(Flaw::new(problem, "compare the clocks of the machines"));
    }
    if certificate.version().0 < 2 {
        let version = certificate.version().0 + 1;
        flaws.push(Flaw::new(format!("version: it is X.509 version {version}, not 3"), RENEW));
    }
    if let Ok(PublicKey::RSA(key)) = certificate.public_key().parsed()
        && key.key_size() < RSA_BITS_MIN
    {
        let bits = key.key_size();
        flaws.push(Flaw::new(
            format!("subjectPublicKeyInfo: RSA with {bits} bits, less than {RSA_BITS_MIN}"),
            RENEW,
        ));
    }
    flaws
}

/// Flaws of a server's or a client's certificate.
fn of_leaf(certificate: &X509Certificate<'_>, role: Use) -> Vec<Flaw> {
    let mut flaws = Vec::new();
    if certificate.is_ca() {
        flaws.push(Flaw::new(
            "basicConstraints: it is a CA, which cannot be a server's or client's own certificate",
            RENEW,
        ));
    }
    let has_names = matches!(certificate.subject_alternative_name(), Ok(Some(_)));
    if role == Use::Server && !has_names {
        flaws.push(Flaw::new(
            "subjectAltName: it has no host name, and a common name does not count",
            RENEW,
        ));
    }
    if let Ok(Some(usage)) = certificate.extended_key_usage() {
        let usage = usage.value;
        let (may, name) = match role {
            Use::Server => (usage.server_auth, "serverAuth"),
            Use::Client => (usage.client_auth, "clientAuth"),
        };
        if !may && !usage.any {
            flaws.push(Flaw::new(format!("extendedKeyUsage: it has no {name}"), RENEW));
        }
    }
    if let Ok(Some(usage)) = certificate.key_usage() {
        if !usage.value.digital_signature() {
            flaws.push(Flaw::new("keyUsage: it has no digitalSignature", RENEW));
        }
        if !usage.value.key_encipherment() {
            flaws.push(Flaw::new("keyUsage: it has no keyEncipherment, which QEMU demands", RENEW));
        }
    }
    flaws
}
