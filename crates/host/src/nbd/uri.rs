//! NBD URIs (`doc/uri.md` of the NBD project): `nbd://HOST:PORT/EXPORT` and
//! `nbd+unix:///EXPORT?socket=PATH`, with our own parameters for the connection.
//!
//! | parameter | meaning |
//! |---|---|
//! | `timeout=SECONDS` | time limit of a server's reply |
//! | `reconnect-delay=SECONDS` | time for which requests wait for a lost server before they fail |
//! | `connections=N` | number of connections, if the server allows several |
//! | `unflushed=fail`, `=trust` | whether a lost server may have lost unflushed writes |
//!
//! `nbds://` and `nbds+unix://` are the same with TLS. Their parameters are those of the project:
//! `tls-certificates=DIR`, `tls-hostname=NAME`, `tls-verify-peer=true` or `false`.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::tls::{ClientConnection, ClientPolicy, Credentials, ServerName};

/// The port that IANA gave to NBD.
pub const DEFAULT_PORT: u16 = 10809;

/// An export on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// Address of the server.
    pub server: Server,
    /// Name of the export; empty means the server's default.
    pub export: String,
    /// TLS, if the scheme asks for it.
    pub tls: Option<UriTls>,
}

/// TLS of a connection, as the URI describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UriTls {
    /// Directory of certificates and keys; without one, the first default directory that exists.
    pub certificates: Option<PathBuf>,
    /// The name that the server's certificate must have; without one, the host of the URI, or
    /// `localhost` for a Unix socket.
    pub hostname: Option<String>,
    /// Whether the server's certificate is checked.
    pub verify_peer: bool,
}

impl Default for UriTls {
    fn default() -> Self {
        Self { certificates: None, hostname: None, verify_peer: true }
    }
}

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// A host, without IPv6 brackets, and a port.
    Tcp(String, u16),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Uri {
    /// Whether this looks like a URI rather than a file's name.
    #[must_use]
    pub fn is_uri(text: &str) -> bool {
        ["nbd:", "nbd+unix:", "nbds:", "nbds+unix:"].iter().any(|scheme| text.starts_with(scheme))
    }

    /// Parses a URI without settings; see [`Uri::with_settings`].
    ///
    /// # Errors
    /// The URI is invalid; the text has the problem and the right form.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::with_settings(text).map(|(uri, _)| uri)
    }

    /// Parses a URI and the settings of its connection.
    ///
    /// # Errors
    /// See [`Uri::parse`].
    pub fn with_settings(text: &str) -> Result<(Self, Settings), String> {
        Self::parse_parts(text).map_err(|problem| {
            format!(
                "{text}: {problem}; an NBD URI is nbd://HOST:PORT/EXPORT or \
                 nbd+unix:///EXPORT?socket=PATH, with TLS nbds:// or nbds+unix://"
            )
        })
    }

    fn parse_parts(text: &str) -> Result<(Self, Settings), String> {
        let (scheme, rest) = text.split_once("://").ok_or("the URI has no ://")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decode(path)?;
        let Parameters { socket, tls, settings } = parameters(query)?;
        let server = match (scheme, socket) {
            ("nbd" | "nbds", None) => tcp_server(authority)?,
            ("nbd" | "nbds", Some(_)) => {
                return Err(format!("a socket needs the scheme {scheme}+unix"));
            }
            ("nbd+unix" | "nbds+unix", Some(socket)) if authority.is_empty() => {
                Server::Unix(socket)
            }
            ("nbd+unix" | "nbds+unix", Some(_)) => return Err("a socket has no host".into()),
            ("nbd+unix" | "nbds+unix", None) => return Err("the URI has no socket".into()),
            _ => return Err(format!("unknown scheme {scheme:?}")),
        };
        let tls = match scheme {
            "nbds" | "nbds+unix" => Some(tls.unwrap_or_default()),
            // Silence would leave a user in the clear who asked for encryption.
            _ if tls.is_some() => {
                return Err("tls parameters need the scheme nbds or nbds+unix".into());
            }
            _ => None,
        };
        Ok((Self { server, export, tls }, settings))
    }

    /// A TLS connection to the server, before its first byte. The files are read each time, so that
    /// renewed certificates count for the next connection.
    ///
    /// # Errors
    /// A description of the failure: a file is missing or damaged, or the name is no host.
    ///
    /// # Panics
    /// The URI asks for no TLS.
    pub fn tls_connection(&self) -> Result<ClientConnection, String> {
        let tls = self.tls.as_ref().expect("the URI asks for TLS");
        let credentials = match &tls.certificates {
            Some(dir) => Ok(Credentials::of(dir)),
            None => Credentials::of_default_dir(),
        };
        let policy = ClientPolicy { verify_peer: tls.verify_peer };
        let config = match credentials {
            Ok(credentials) => credentials.client(policy),
            Err(_) if !tls.verify_peer => Credentials::unverified_client(),
            Err(missing) => Err(missing),
        };
        let config = config.map_err(|error| error.to_string())?;
        let host = match (&tls.hostname, &self.server) {
            (Some(name), _) | (None, Server::Tcp(name, _)) => name.as_str(),
            (None, Server::Unix(_)) => "localhost",
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            format!("{host:?} is no host name of a certificate; give one with tls-hostname")
        })?;
        ClientConnection::new(config, name).map_err(|error| error.to_string())
    }
}

/// Settings of a connection. The defaults are ours unless noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time limit of a reply; the connection is then given up.
    pub timeout: Duration,
    /// Time for which requests wait without a connection. Later requests fail, until there is one
    /// (QEMU's `reconnect-delay`). `None` means the default for the device's use.
    pub reconnect_delay: Option<Duration>,
    /// Number of connections, if the server allows several.
    pub connections: u8,
    /// A lost server keeps acknowledged, unflushed writes: only its process ends.
    pub trusts_unflushed: bool,
}

impl Default for Settings {
    /// Linux gives a request of a block device 30 s.
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            reconnect_delay: None,
            connections: 1,
            trusts_unflushed: false,
        }
    }
}

/// A day.
const SECONDS_MAX: u64 = 86_400;
/// More connections do not make a server faster.
const CONNECTIONS_MAX: u64 = 16;

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = encode(self.export.as_bytes());
        let nbd = if self.tls.is_some() { "nbds" } else { "nbd" };
        let mut query = Vec::new();
        match &self.server {
            Server::Tcp(host, port) if host.contains(':') => {
                write!(f, "{nbd}://[{host}]:{port}/{export}")?;
            }
            Server::Tcp(host, port) => write!(f, "{nbd}://{host}:{port}/{export}")?,
            Server::Unix(socket) => {
                write!(f, "{nbd}+unix:///{export}")?;
                query.push(format!("socket={}", encode(path_bytes(socket))));
            }
        }
        if let Some(UriTls { certificates, hostname, verify_peer }) = &self.tls {
            let certificates = certificates.as_ref().map(|dir| encode(path_bytes(dir)));
            query.extend(certificates.map(|dir| format!("tls-certificates={dir}")));
            let hostname = hostname.as_ref().map(|name| encode(name.as_bytes()));
            query.extend(hostname.map(|name| format!("tls-hostname={name}")));
            query.extend((!verify_peer).then(|| "tls-verify-peer=false".to_owned()));
        }
        if query.is_empty() { Ok(()) } else { write!(f, "?{}", query.join("&")) }
    }
}

fn path_bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_encoded_bytes()
}

/// The parameters of a URI.
#[derive(Default)]
struct Parameters {
    socket: Option<PathBuf>,
    /// Some if there is a parameter of TLS.
    tls: Option<UriTls>,
    settings: Settings,
}

fn parameters(query: &str) -> Result<Parameters, String> {
    let mut found = Parameters::default();
    let Parameters { socket, tls, settings } = &mut found;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let seconds = |text, least| number(parameter, text, least, SECONDS_MAX);
        match parameter.split_once('=') {
            Some(("socket", path)) if !path.is_empty() => *socket = Some(decode(path)?.into()),
            Some(("timeout", text)) => settings.timeout = Duration::from_secs(seconds(text, 1)?),
            Some(("reconnect-delay", text)) => {
                settings.reconnect_delay = Some(Duration::from_secs(seconds(text, 0)?));
            }
            Some(("connections", text)) => {
                let connections = number(parameter, text, 1, CONNECTIONS_MAX)?;
                settings.connections = u8::try_from(connections).expect("at most 16");
            }
            Some(("unflushed", "fail")) => settings.trusts_unflushed = false,
            Some(("unflushed", "trust")) => settings.trusts_unflushed = true,
            Some(("unflushed", _)) => {
                return Err(format!("{parameter:?} is not unflushed=fail or unflushed=trust"));
            }
            Some(("tls-certificates", dir)) if !dir.is_empty() => {
                tls.get_or_insert_default().certificates = Some(decode(dir)?.into());
            }
            Some(("tls-hostname", name)) if !name.is_empty() => {
                tls.get_or_insert_default().hostname = Some(decode(name)?);
            }
            Some(("tls-verify-peer", choice @ ("true" | "false"))) => {
                tls.get_or_insert_default().verify_peer = choice == "true";
            }
            Some(("tls-verify-peer", _)) => {
                return Err(format!(
                    "{parameter:?} is not tls-verify-peer=true or tls-verify-peer=false"
                ));
            }
            Some(("tls-type", "x509")) => drop(tls.get_or_insert_default()),
            Some(("tls-type" | "tls-psk-file" | "tls-username", _)) => {
                return Err(format!(
                    "{parameter:?}: there is only TLS with certificates (x509), not with \
                     pre-shared keys or without authentication; `blockyard tls init` makes \
                     certificates"
                ));
            }
            _ => {
                let known = "there are socket, timeout, reconnect-delay, connections, unflushed, \
                             tls-certificates, tls-hostname and tls-verify-peer";
                return Err(format!("unknown parameter {parameter:?}; {known}"));
            }
        }
    }
    Ok(found)
}

fn number(parameter: &str, text: &str, least: u64, most: u64) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("{parameter:?} is not one of {least} to {most}"))
}

/// Parses `HOST`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`.
fn tcp_server(authority: &str) -> Result<Server, String> {
    let (host, port) = split_host_port(authority).ok_or("the host or port is invalid")?;
    if host.is_empty() {
        return Err("the URI has no host".into());
    }
    Ok(Server::Tcp(host, port))
}

/// Splits an address into host and port; the default port is NBD's.
#[must_use]
pub fn split_host_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = if let Some(bracketed) = text.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']')?;
        (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
    } else {
        match text.split_once(':') {
            // Several colons without brackets are an IPv6 address without a port.
            Some((_, port)) if port.contains(':') => (text, None),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    let port = match port {
        Some(port) => port.parse().ok()?,
        None => DEFAULT_PORT,
    };
    Some((host.to_string(), port))
}

/// Percent-encodes reserved characters; the slashes of a path stay.
fn encode(bytes: &[u8]) -> String {
    let mut encoded = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Decodes percent-encoded bytes.
pub(crate) fn decode(text: &str) -> Result<String, String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(bytes.next()), digit(bytes.next())) else {
            return Err("a % needs two hexadecimal digits after it".into());
        };
        let value = high * 16 + low;
        decoded.push(u8::try_from(value).expect("two hexadecimal digits are a byte"));
    }
    String::from_utf8(decoded).map_err(|_| "the URI is not UTF-8".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Uri {
        Uri::parse(text).unwrap()
    }

    #[test]
    fn uri_of_either_kind_is_read() {
        let tcp = |host: &str, port, export: &str| Uri {
            server: Server::Tcp(host.into(), port),
            export: export.into(),
            tls: None,
        };
        assert_eq!(parsed("nbd://localhost"), tcp("localhost", 10809, ""));
        assert_eq!(parsed("nbd://localhost/"), tcp("localhost", 10809, ""));
        assert_eq!(parsed("nbd://10.0.0.1:99/my%20disk"), tcp("10.0.0.1", 99, "my disk"));
        assert_eq!(parsed("nbd://[::1]:99/a/b"), tcp("::1", 99, "a/b"));
        assert_eq!(parsed("nbd://[::1]"), tcp("::1", 10809, ""));
        assert_eq!(
            parsed("nbd+unix:///home?socket=/run/a%26b.sock"),
            Uri { server: Server::Unix("/run/a&b.sock".into()), export: "home".into(), tls: None }
        );
        assert_eq!(parsed("nbd+unix://?socket=rel.sock").server, Server::Unix("rel.sock".into()));
    }

    #[test]
    fn uri_printed_is_the_uri_read() {
        for text in [
            "nbd://localhost:10809/",
            "nbd://[::1]:99/a/b",
            "nbd+unix:///my%20disk%3F?socket=/tmp/a%23b",
            "nbd+unix:///?socket=/run/x.sock",
            "nbds://localhost:10809/",
            "nbds+unix:///x?socket=/s&tls-certificates=/a%26b&tls-hostname=h&tls-verify-peer=false",
        ] {
            assert_eq!(parsed(text).to_string(), text);
        }
    }

    #[test]
    fn uri_that_makes_no_sense_is_refused_with_the_right_form() {
        for text in [
            "nbd:localhost:10809",
            "nbd://",
            "nbd://host:port/",
            "nbd://[::1",
            "nbd://host/?socket=/x",
            "nbd+unix:///x",
            "nbd+unix://host/?socket=/x",
            "nbd+unix:///?socket=",
            "nbd+unix:///?socket=/x&other=1",
            "nbd://host/?timeout=0",
            "nbd://host/?timeout=x",
            "nbd://host/?reconnect-delay=86401",
            "nbd://host/?connections=17",
            "nbd://host/?unflushed=maybe",
            "nbd://host/%4",
            "nbd://host/%ff",
            "nbd://host/?tls-hostname=x",
            "nbds://host/?socket=/x",
            "nbds+unix:///x",
            "nbds://host/?tls-verify-peer=maybe",
            "nbds://host/?tls-psk-file=/x",
            "nbds://host/?tls-type=anon",
        ] {
            let message = Uri::parse(text).unwrap_err();
            assert!(message.starts_with(text) && message.contains("nbd://HOST"), "{message}");
        }
    }

    #[test]
    fn uri_says_how_to_connect() {
        let settings = |text| Uri::with_settings(text).unwrap().1;
        assert_eq!(settings("nbd://h/x"), Settings::default());
        let said = settings(
            "nbd+unix:///?timeout=5&socket=/s&reconnect-delay=0&connections=4&unflushed=trust",
        );
        let expected = Settings {
            timeout: Duration::from_secs(5),
            reconnect_delay: Some(Duration::ZERO),
            connections: 4,
            trusts_unflushed: true,
        };
        assert_eq!(said, expected);
    }

    #[test]
    fn addresses_to_listen_on_may_leave_out_the_port() {
        assert_eq!(split_host_port("::1"), Some(("::1".into(), 10809)));
        assert_eq!(split_host_port("[::1]:7"), Some(("::1".into(), 7)));
        assert_eq!(split_host_port("localhost:7"), Some(("localhost".into(), 7)));
        assert_eq!(split_host_port("localhost"), Some(("localhost".into(), 10809)));
        assert_eq!(split_host_port("localhost:"), None);
        assert_eq!(split_host_port("localhost:70000"), None);
    }
}
