//! NBD URIs (`doc/uri.md` of the NBD project): `nbd://HOST:PORT/EXPORT` and
//! `nbd+unix:///EXPORT?socket=PATH`.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The port that IANA gave to NBD.
pub(crate) const DEFAULT_PORT: u16 = 10809;

/// An export on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Uri {
    /// Where the server listens.
    pub(crate) server: Server,
    /// The export's name; empty is the server's default.
    pub(crate) export: String,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// A host, without the brackets of IPv6, and a port.
    Tcp(String, u16),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Uri {
    /// Whether this looks like a URI rather than a file's name.
    pub(crate) fn is_uri(text: &str) -> bool {
        ["nbd:", "nbd+unix:", "nbds:", "nbds+unix:"].iter().any(|scheme| text.starts_with(scheme))
    }

    /// Reads a URI.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        Self::parse_parts(text).map_err(|problem| {
            Failure::failed(format!(
                "{text}: {problem}; an NBD URI is nbd://HOST:PORT/EXPORT or \
                 nbd+unix:///EXPORT?socket=PATH"
            ))
        })
    }

    fn parse_parts(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or("there is no ://")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decode(path)?;
        let socket = socket_of(query)?;
        let server = match (scheme, socket) {
            ("nbd", None) => tcp_server(authority)?,
            ("nbd", Some(_)) => return Err("a socket needs the scheme nbd+unix".into()),
            ("nbd+unix", Some(socket)) if authority.is_empty() => Server::Unix(socket),
            ("nbd+unix", Some(_)) => return Err("a socket has no host".into()),
            ("nbd+unix", None) => return Err("it names no socket".into()),
            ("nbds" | "nbds+unix", _) => return Err("TLS is not supported".into()),
            _ => return Err(format!("unknown scheme {scheme:?}")),
        };
        Ok(Self { server, export })
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = encode(self.export.as_bytes());
        match &self.server {
            Server::Tcp(host, port) if host.contains(':') => {
                write!(f, "nbd://[{host}]:{port}/{export}")
            }
            Server::Tcp(host, port) => write!(f, "nbd://{host}:{port}/{export}"),
            Server::Unix(socket) => {
                write!(f, "nbd+unix:///{export}?socket={}", encode(path_bytes(socket)))
            }
        }
    }
}

fn path_bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_encoded_bytes()
}

fn socket_of(query: &str) -> Result<Option<PathBuf>, String> {
    let mut socket = None;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            Some(("socket", path)) if !path.is_empty() => socket = Some(decode(path)?.into()),
            _ => return Err(format!("unknown parameter {parameter:?}")),
        }
    }
    Ok(socket)
}

/// `HOST`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`.
fn tcp_server(authority: &str) -> Result<Server, String> {
    let (host, port) = split_host_port(authority).ok_or("the host or port makes no sense")?;
    if host.is_empty() {
        return Err("it names no host".into());
    }
    Ok(Server::Tcp(host, port))
}

/// Host and port of an address as people write it; without a port, NBD's.
pub(crate) fn split_host_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = if let Some(bracketed) = text.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']')?;
        (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
    } else {
        match text.split_once(':') {
            // More than one colon without brackets is an IPv6 address alone.
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

/// Percent-encodes what has a meaning in a URI; the slashes of a path stay.
fn encode(bytes: &[u8]) -> String {
    let mut encoded = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

fn decode(text: &str) -> Result<String, String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(bytes.next()), digit(bytes.next())) else {
            return Err("a % is followed by two hexadecimal digits".into());
        };
        let value = high * 16 + low;
        decoded.push(u8::try_from(value).expect("two hexadecimal digits are a byte"));
    }
    String::from_utf8(decoded).map_err(|_| "it is not UTF-8".to_string())
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
        };
        assert_eq!(parsed("nbd://localhost"), tcp("localhost", 10809, ""));
        assert_eq!(parsed("nbd://localhost/"), tcp("localhost", 10809, ""));
        assert_eq!(parsed("nbd://10.0.0.1:99/my%20disk"), tcp("10.0.0.1", 99, "my disk"));
        assert_eq!(parsed("nbd://[::1]:99/a/b"), tcp("::1", 99, "a/b"));
        assert_eq!(parsed("nbd://[::1]"), tcp("::1", 10809, ""));
        assert_eq!(
            parsed("nbd+unix:///home?socket=/run/a%26b.sock"),
            Uri { server: Server::Unix("/run/a&b.sock".into()), export: "home".into() }
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
            "nbd://host/%4",
            "nbd://host/%ff",
            "nbds://host/",
        ] {
            let message = Uri::parse(text).unwrap_err().message;
            assert!(message.starts_with(text) && message.contains("nbd://HOST"), "{message}");
        }
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
