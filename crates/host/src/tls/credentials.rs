//! Certificates and keys of a directory, with the file names of QEMU and nbdkit.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WantsClientCert, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig};
use zeroize::Zeroizing;

use super::allowed::{AnyServer, OnlyAllowed};
use super::{Allowed, provider};
use crate::Error;
use crate::log::{Event, Kind};

/// Names of the files.
pub mod names {
    /// Certificates of the CA, and of CAs between it and the servers.
    pub const CA_CERT: &str = "ca-cert.pem";
    /// Revoked certificates; may be absent.
    pub const CA_CRL: &str = "ca-crl.pem";
    /// Key of the CA, with which further certificates are made. Servers do not need it.
    pub const CA_KEY: &str = "ca-key.pem";
    /// Certificate of the server.
    pub const SERVER_CERT: &str = "server-cert.pem";
    /// Key of the server.
    pub const SERVER_KEY: &str = "server-key.pem";
    /// Certificate of the client; may be absent.
    pub const CLIENT_CERT: &str = "client-cert.pem";
    /// Key of the client; may be absent.
    pub const CLIENT_KEY: &str = "client-key.pem";
}

/// Greatest length of a file: some hundred certificates.
const FILE_MAX_BYTES: u64 = 1 << 20;
/// The directory of root, as that of nbdkit and libnbd.
const OF_SYSTEM: &str = "/etc/pki/blockyard";

/// A server's demands on its clients.
#[derive(Clone, Debug, Default)]
pub struct ServerPolicy {
    /// A client needs a certificate of the CA.
    pub verify_peer: bool,
    /// Only these clients may connect; they need a certificate of the CA.
    pub allowed: Option<Allowed>,
}

/// A client's demands on a server.
#[derive(Clone, Copy, Debug)]
pub struct ClientPolicy {
    /// The server needs a certificate of the CA for its host name.
    pub verify_peer: bool,
}

/// Reads a regular file of at most 1 MiB. A FIFO would block the server's start.
pub(super) fn read(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > FILE_MAX_BYTES {
        let error = "this is no regular file of at most 1 MiB";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
    }
    std::fs::read(path).map(Zeroizing::new)
}

fn client_builder(
    verifier: Arc<dyn ServerCertVerifier>,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions()?;
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier))
}

/// A directory of certificates and keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    dir: PathBuf,
}

impl Credentials {
    /// The files of a directory.
    pub fn of(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The files of the first default directory that exists.
    ///
    /// # Errors
    /// None exists.
    pub fn of_default_dir() -> Result<Self, Error> {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let mut dirs: Vec<PathBuf> = [".pki/blockyard", ".config/pki/blockyard"]
            .into_iter()
            .filter_map(|dir| Some(home.as_ref()?.join(dir)))
            .collect();
        if rustix::process::geteuid().is_root() {
            dirs.push(OF_SYSTEM.into());
        }
        if let Some(dir) = dirs.iter().find(|dir| dir.is_dir()) {
            return Ok(Self::of(dir));
        }
        let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        Err(Error::Parameter {
            of: "tls-certificates".into(),
            problem: format!(
                "none of the default directories exists ({}); name one. `blockyard tls init` makes \
                 that of a server, and `blockyard tls add-client` there that of a client",
                dirs.join(", ")
            ),
        })
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The configuration of a server.
    ///
    /// # Errors
    /// A file is missing or damaged, or the key does not belong to the certificate.
    pub fn server(&self, policy: ServerPolicy) -> Result<Arc<ServerConfig>, Error> {
        let provider = provider();
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| self.problem(names::SERVER_CERT, error))?;
        let builder = if policy.verify_peer || policy.allowed.is_some() {
            let verifier = WebPkiClientVerifier::builder_with_provider(self.roots()?, provider)
                .with_crls(self.revoked()?)
                .only_check_end_entity_revocation();
            let of_ca = verifier.build().map_err(|error| self.problem(names::CA_CERT, error))?;
            builder.with_client_cert_verifier(match policy.allowed {
                Some(allowed) => Arc::new(OnlyAllowed { of_ca, allowed }),
                None => of_ca,
            })
        } else {
            builder.with_no_client_auth()
        };
        let chain = self.certificates(names::SERVER_CERT)?;
        let key = self.key(names::SERVER_KEY)?;
        let config = builder.with_single_cert(chain, key);
        let mut config = config.map_err(|error| self.unfit(names::SERVER_CERT, &error))?;
        config.ignore_client_order = true;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// The configuration of a client. Without a client's files it has no certificate.
    ///
    /// # Errors
    /// A file is missing or damaged, or the key does not belong to the certificate.
    pub fn client(&self, policy: ClientPolicy) -> Result<Arc<ClientConfig>, Error> {
        let verifier: Arc<dyn ServerCertVerifier> = if policy.verify_peer {
            let verifier = WebPkiServerVerifier::builder_with_provider(self.roots()?, provider())
                .with_crls(self.revoked()?)
                .only_check_end_entity_revocation();
            verifier.build().map_err(|error| self.problem(names::CA_CERT, error))?
        } else {
            AnyServer::verifier()
        };
        let builder = client_builder(verifier);
        let builder = builder.map_err(|error| self.problem(names::CLIENT_CERT, error))?;
        let has_own = self.dir.join(names::CLIENT_CERT).exists();
        let mut config = if has_own {
            let chain = self.certificates(names::CLIENT_CERT)?;
            let key = self.key(names::CLIENT_KEY)?;
            let config = builder.with_client_auth_cert(chain, key);
            config.map_err(|error| self.unfit(names::CLIENT_CERT, &error))?
        } else {
            builder.with_no_client_auth()
        };
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// The configuration of a client that accepts any server and has no certificate.
    ///
    /// # Errors
    /// `rustls` has no common protocol version.
    pub fn unverified_client() -> Result<Arc<ClientConfig>, Error> {
        let builder = client_builder(AnyServer::verifier())
            .map_err(|error| Error::Parameter { of: "TLS".into(), problem: error.to_string() })?;
        let mut config = builder.with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    fn roots(&self) -> Result<Arc<RootCertStore>, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates(names::CA_CERT)? {
            roots.add(certificate).map_err(|error| self.problem(names::CA_CERT, error))?;
        }
        Ok(Arc::new(roots))
    }

    fn revoked(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, Error> {
        if !self.dir.join(names::CA_CRL).exists() {
            return Ok(Vec::new());
        }
        let text = self.read(names::CA_CRL)?;
        CertificateRevocationListDer::pem_slice_iter(&text)
            .collect::<Result<_, _>>()
            .map_err(|error| self.problem(names::CA_CRL, error))
    }

    /// The certificates of a file, at least one.
    ///
    /// # Errors
    /// The file cannot be read, or has no certificate in PEM.
    pub fn certificates(&self, name: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
        let text = self.read(name)?;
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        let certificates = certificates.map_err(|error| self.problem(name, error))?;
        if certificates.is_empty() {
            return Err(self.problem(name, "the file has no certificate in PEM"));
        }
        Ok(certificates)
    }

    /// Whether a key belongs to the first certificate of a file.
    ///
    /// # Errors
    /// A file cannot be read, or its content has another form.
    pub fn fits(&self, certificate: &str, key: &str) -> Result<bool, Error> {
        let chain = self.certificates(certificate)?;
        let key = CertifiedKey::from_der(chain, self.key(key)?, &provider());
        match key {
            Ok(_) => Ok(true),
            Err(rustls::Error::InconsistentKeys(_)) => Ok(false),
            Err(error) => Err(self.problem(certificate, error)),
        }
    }

    fn key(&self, name: &str) -> Result<PrivateKeyDer<'static>, Error> {
        let text = self.read(name)?;
        let path = self.dir.join(name);
        let mode = std::fs::metadata(&path).map_or(0, |metadata| metadata.permissions().mode());
        if mode & 0o077 != 0 {
            Event::new(Kind::Warning).say(format_args!(
                "warning: {}: other users may read this key; run `chmod 600` on it",
                path.display()
            ));
        }
        PrivateKeyDer::from_pem_slice(&text).map_err(|error| self.problem(name, error))
    }

    /// Reads a file. The text may hold a key.
    fn read(&self, name: &str) -> Result<Zeroizing<Vec<u8>>, Error> {
        let path = self.dir.join(name);
        read(&path).map_err(|error| Error::io(&path, "read", error))
    }

    fn unfit(&self, certificate: &str, error: &rustls::Error) -> Error {
        let problem = match error {
            rustls::Error::InconsistentKeys(_) => {
                "the key beside it belongs to another certificate".to_owned()
            }
            other => other.to_string(),
        };
        self.problem(certificate, problem)
    }

    fn problem(&self, name: &str, problem: impl std::fmt::Display) -> Error {
        Error::Parameter {
            of: self.dir.join(name).display().to_string(),
            problem: format!("{problem}; `blockyard doctor --tls` checks the files"),
        }
    }
}
