//! TLS of `serve`: its options, and the rule for addresses without it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use blockyard::Server;
use blockyard::tls::{Allowed, Credentials, ServerPolicy, Tls};
use clap::{Args, ValueEnum, ValueHint};
use serde::Deserialize;

use crate::failure::Failure;
use crate::nbd::{self, Uri, UriTls};
use crate::output::say;

/// Use of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TlsMode {
    /// No TLS
    Off,
    /// TLS for clients that ask for it
    On,
    /// Only clients with TLS
    Require,
}

/// Options of TLS, also in the configuration.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TlsArgs {
    /// Use of TLS on NBD sockets [default: require with --tls-certificates, else off]
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) tls: Option<TlsMode>,

    /// Directory of ca-cert.pem, server-cert.pem and server-key.pem [default: ~/.pki/blockyard,
    /// ~/.config/pki/blockyard, or for root /etc/pki/blockyard]; see `blockyard tls init`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) tls_certificates: Option<PathBuf>,

    /// Require a certificate of the CA from clients
    #[arg(long)]
    pub(crate) tls_verify_peer: bool,

    /// Allow only these clients: a name, or a file (with a `/` in its path) with a name or SHA-256
    /// fingerprint of a certificate on each line
    #[arg(long, value_name = "NAME|FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_authz: Option<String>,

    /// Listen without required TLS on addresses that other machines reach
    #[arg(long)]
    pub(crate) insecure: bool,
}

impl TlsArgs {
    /// The URI of an export for clients on this machine.
    pub(super) fn uri(&self, server: &nbd::Server, export: &str) -> Uri {
        let tls = (self.mode() == TlsMode::Require).then(UriTls::default);
        Uri { server: server.clone(), export: export.into(), tls }
    }

    /// The URI of an export for a command of this user, which may read the same certificates.
    pub(super) fn uri_with_certificates(&self, server: &nbd::Server, export: &str) -> Uri {
        let mut uri = self.uri(server, export);
        if let Some(tls) = &mut uri.tls {
            tls.certificates.clone_from(&self.tls_certificates);
        }
        uri
    }

    /// These options, or those of the configuration.
    pub(crate) fn or(&self, config: Self) -> Self {
        let own = self.clone();
        Self {
            tls: own.tls.or(config.tls),
            tls_certificates: own.tls_certificates.or(config.tls_certificates),
            tls_verify_peer: own.tls_verify_peer || config.tls_verify_peer,
            tls_authz: own.tls_authz.or(config.tls_authz),
            insecure: own.insecure || config.insecure,
        }
    }

    /// Its files and folders.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        let list = self.tls_authz.as_ref().filter(|authz| authz.contains('/')).map(PathBuf::from);
        let default = || match self.mode() {
            TlsMode::Off => None,
            _ => Credentials::of_default_dir().ok().map(|of| of.dir().to_owned()),
        };
        self.tls_certificates.clone().or_else(default).into_iter().chain(list)
    }

    pub(crate) fn mode(&self) -> TlsMode {
        let default = if self.tls_certificates.is_some() { TlsMode::Require } else { TlsMode::Off };
        self.tls.unwrap_or(default)
    }

    fn checks_clients(&self) -> bool {
        self.tls_verify_peer || self.tls_authz.is_some()
    }

    /// Reads the list of clients, and adds TLS to the server.
    pub(super) fn apply(&self, server: Server) -> Result<Server, Failure> {
        let mode = match self.mode() {
            TlsMode::Off if self.checks_clients() => {
                return Err(Failure::failed(
                    "--tls-verify-peer and --tls-authz need TLS: name the server's certificates \
                     with --tls-certificates DIR; `blockyard tls init` makes them",
                ));
            }
            TlsMode::Off => return Ok(server),
            TlsMode::On => Tls::On,
            TlsMode::Require => Tls::Require,
        };
        let credentials = match &self.tls_certificates {
            Some(dir) => Credentials::of(dir),
            None => {
                Credentials::of_default_dir().map_err(|error| Failure::from(error).at("--tls"))?
            }
        };
        let allowed = self.tls_authz.as_deref().map(allowed).transpose()?;
        let policy = ServerPolicy { verify_peer: self.tls_verify_peer, allowed };
        Ok(server.tls(mode, &credentials, policy)?)
    }

    /// Refuses an address that other machines reach, unless TLS is required.
    pub(super) fn check_address(&self, address: &SocketAddr) -> Result<(), Failure> {
        if address.ip().is_loopback() || self.mode() == TlsMode::Require || self.insecure {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "--listen {address}: every client that reaches this address could read and write the \
             plaintext, and everyone on the way could see it; require TLS (--tls-certificates DIR; \
             `blockyard tls init` makes one), listen on 127.0.0.1, or say --insecure"
        )))
    }

    /// Warns of an address that other machines reach.
    pub(super) fn warn_if_exposed(&self, address: &SocketAddr) {
        if address.ip().is_loopback() {
            return;
        }
        if self.mode() != TlsMode::Require {
            say(&format!(
                "warning: NBD over TCP without TLS is neither encrypted nor authenticated: every \
                 client that reaches {address} reads and writes the plaintext"
            ));
        } else if !self.checks_clients() {
            say(&format!(
                "warning: clients need no certificate: every client that reaches {address} reads \
                 and writes the plaintext; --tls-verify-peer asks for certificates"
            ));
        }
    }
}

fn allowed(authz: &str) -> Result<Allowed, Failure> {
    let is_file = authz.contains('/');
    let allowed = if is_file { Allowed::read(Path::new(authz)) } else { Allowed::parse(authz) };
    allowed.map_err(|problem| Failure::failed(format!("--tls-authz {authz}: {problem}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_other_machines_need_required_tls_or_a_word() {
        let reachable: SocketAddr = "192.0.2.1:1".parse().unwrap();
        let plain = TlsArgs::default();
        let failure = plain.check_address(&reachable).unwrap_err();
        assert!(failure.message.contains("--insecure"), "{failure}");
        plain.check_address(&"127.0.0.1:1".parse().unwrap()).unwrap();
        TlsArgs { insecure: true, ..plain.clone() }.check_address(&reachable).unwrap();
        let with = TlsArgs { tls_certificates: Some("pki".into()), ..plain };
        with.check_address(&reachable).unwrap();
        let optional = TlsArgs { tls: Some(TlsMode::On), ..with };
        optional.check_address(&reachable).unwrap_err();
    }
}
