//! Makes certificates: a CA, servers and clients.
//!
//! Keys are ECDSA with P-256. QEMU demands `keyEncipherment` of every server and client, although
//! such keys do not encipher. Names are subject alternative names, because a common name counts for
//! no host.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, date_time_ymd,
};
use zeroize::{Zeroize, Zeroizing};

use super::{ServerName, names};
use crate::Error;

const CA_NAME: &str = "Blockyard CA";
/// Certificates are valid a day before they are made: clocks differ.
const BEFORE: Duration = Duration::from_secs(86_400);

/// Settings of new files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Making {
    /// Days until the certificate expires.
    pub days: u16,
    /// Replace existing files.
    pub replace: bool,
}

/// Makes a directory with a CA and a server's certificate for host names and IP addresses. A server
/// does not need `ca-key.pem`. Clients need a copy of `ca-cert.pem`.
///
/// # Errors
/// A name is no host, a file exists, or it cannot be written.
pub fn init(dir: &Path, hosts: &[String], making: Making) -> Result<(), Error> {
    let problem = |error: rcgen::Error| failed(dir, &error);
    let [first, ..] = hosts else {
        return Err(Error::options(dir, "a server needs a host name for its certificate"));
    };
    if let Some(host) = hosts.iter().find(|host| !is_host(host)) {
        let problem = format!("{host:?} is no host name and no IP address, as in example.org");
        return Err(Error::options(dir, problem));
    }
    let ca_key = Key::new().map_err(problem)?;
    let ca = ca_params(making).map_err(problem)?;
    let ca_cert = ca.self_signed(&ca_key.0).map_err(problem)?;
    let server_key = Key::new().map_err(problem)?;
    let params = leaf_params(first, hosts.to_vec(), ExtendedKeyUsagePurpose::ServerAuth, making);
    let issuer = Issuer::from_params(&ca, &ca_key.0);
    let server_cert = params.and_then(|params| params.signed_by(&server_key.0, &issuer));
    let server_cert = server_cert.map_err(problem)?;
    let files = [
        File::key(names::CA_KEY, &ca_key),
        File::certificate(names::CA_CERT, ca_cert.pem()),
        File::key(names::SERVER_KEY, &server_key),
        File::certificate(names::SERVER_CERT, server_cert.pem()),
    ];
    write(dir, &files, making)
}

/// Makes the directory `DIR/NAME` with a client's certificate, its key and `ca-cert.pem`, for the
/// client's machine. Returns its path.
///
/// # Errors
/// The directory has no CA, the name cannot be that of a directory, or a file exists.
pub fn add_client(dir: &Path, name: &str, making: Making) -> Result<PathBuf, Error> {
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0', '\n']) {
        let problem = format!("{name:?} cannot name a directory; a client needs a simple name");
        return Err(Error::options(dir, problem));
    }
    let read = |name: &str| {
        let path = dir.join(name);
        fs::read_to_string(&path).map(Zeroizing::new).map_err(|error| Error::file(&path, error))
    };
    let ca_cert = read(names::CA_CERT)?;
    let ca_key = read(names::CA_KEY)?;
    let problem = |error: rcgen::Error| failed(dir, &error);
    let ca_key = Key(KeyPair::from_pem(&ca_key).map_err(problem)?);
    let issuer = Issuer::from_ca_cert_pem(&ca_cert, &ca_key.0).map_err(problem)?;
    let key = Key::new().map_err(problem)?;
    let params = leaf_params(name, Vec::new(), ExtendedKeyUsagePurpose::ClientAuth, making);
    let cert = params.and_then(|params| params.signed_by(&key.0, &issuer)).map_err(problem)?;
    let files = [
        File::certificate(names::CA_CERT, ca_cert.to_string()),
        File::key(names::CLIENT_KEY, &key),
        File::certificate(names::CLIENT_CERT, cert.pem()),
    ];
    let of_client = dir.join(name);
    if of_client.is_symlink() {
        let problem = "the name is taken by a symbolic link; remove it, or choose another name";
        return Err(Error::options(&of_client, problem));
    }
    write(&of_client, &files, making)?;
    Ok(of_client)
}

/// Whether clients can compare a name with that of a server; the first label may be `*`.
fn is_host(host: &str) -> bool {
    let name = host.strip_prefix("*.").unwrap_or(host);
    ServerName::try_from(name).is_ok()
}

fn failed(dir: &Path, error: &rcgen::Error) -> Error {
    Error::options(dir, format!("cannot make a certificate: {error}"))
}

/// A private key, wiped on drop. The copy inside `ring` is not wiped.
struct Key(KeyPair);

impl Key {
    fn new() -> Result<Self, rcgen::Error> {
        KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map(Self)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

fn ca_params(making: Making) -> Result<CertificateParams, rcgen::Error> {
    let mut params = params(CA_NAME, Vec::new(), making)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn leaf_params(
    name: &str,
    hosts: Vec<String>,
    usage: ExtendedKeyUsagePurpose,
    making: Making,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = params(name, hosts, making)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn params(
    name: &str,
    hosts: Vec<String>,
    making: Making,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = date_time_ymd(1970, 1, 1) + Duration::from_secs(since_1970.as_secs());
    params.not_before = now - BEFORE;
    params.not_after = now + Duration::from_secs(u64::from(making.days) * 86_400);
    Ok(params)
}

/// A file to write.
struct File {
    name: &'static str,
    text: Zeroizing<String>,
    mode: u32,
}

impl File {
    fn key(name: &'static str, key: &Key) -> Self {
        Self { name, text: Zeroizing::new(key.0.serialize_pem()), mode: 0o600 }
    }

    fn certificate(name: &'static str, text: String) -> Self {
        Self { name, text: Zeroizing::new(text), mode: 0o644 }
    }
}

/// Writes all files, or none of them if one exists.
fn write(dir: &Path, files: &[File], making: Making) -> Result<(), Error> {
    if let Some(taken) = files.iter().map(|file| dir.join(file.name)).find(|path| path.exists())
        && !making.replace
    {
        let problem = "the file exists; `--force` replaces it, and all that was made with it stops \
                       working";
        return Err(Error::options(&taken, problem));
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    let metadata =
        made.and_then(|()| fs::metadata(dir)).map_err(|error| Error::file(dir, error))?;
    if metadata.permissions().mode() & 0o022 != 0 {
        let problem = "other users may write to this directory, and so replace the CA; run `chmod \
                       go-w` on it";
        return Err(Error::options(dir, problem));
    }
    for file in files {
        let path = dir.join(file.name);
        write_one(dir, &path, file).map_err(|error| Error::file(&path, error))?;
    }
    Ok(())
}

/// Writes a file that is private from the first moment and appears whole.
fn write_one(dir: &Path, path: &Path, file: &File) -> std::io::Result<()> {
    let mut temporary = tempfile::NamedTempFile::new_in(dir)?;
    temporary.write_all(file.text.as_bytes())?;
    temporary.as_file().set_permissions(Permissions::from_mode(file.mode))?;
    temporary.as_file().sync_all()?;
    temporary.persist(path).map_err(|error| error.error)?;
    Ok(())
}
