//! One HTTP POST, as tang needs it: bounded in time and length, without TLS.
//!
//! The request is HTTP/1.0 (RFC 1945), so the answer ends at its length or with the connection, and
//! never has chunks. Tang's answers need no TLS: they are useless without the client's own random
//! number, and a wrong one decrypts nothing.
//!
//! A name is resolved on a thread, because the resolver of the system has no limit of time. The
//! thread is left behind if the time is over; it ends when the resolver gives up.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use blockyard_host::process::leave_signals_to_others;

/// Time for the whole exchange.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Longest answer. A key of P-521 has 300 bytes.
const ANSWER_LEN_MAX_BYTES: usize = 64 << 10;

/// Gets the addresses of a host.
type Resolve = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// Sends a JWK, and returns the body of the answer.
pub(super) fn post(
    url: &str,
    path: &str,
    body: &str,
    deadline: Instant,
) -> Result<Vec<u8>, String> {
    let resolve = |host: &str, port| Ok((host, port).to_socket_addrs()?.collect());
    exchange(url, path, body, super::left(deadline, TIME_LIMIT)?, resolve)
}

fn exchange(
    url: &str,
    path: &str,
    body: &str,
    limit: Duration,
    resolve: Resolve,
) -> Result<Vec<u8>, String> {
    let server = Server::parse(url)?;
    let deadline = Instant::now() + limit;
    let request = format!(
        "POST {}{path} HTTP/1.0\r\nHost: {}\r\nContent-Type: application/jwk+json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        server.folder,
        server.authority,
        body.len()
    );
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("no answer within {} seconds", limit.as_secs_f32())
        }
        _ => error.to_string(),
    };
    let mut stream = connect(&server, deadline, resolve).map_err(failed)?;
    stream.set_write_timeout(Some(left(deadline).map_err(failed)?)).map_err(failed)?;
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        if let Some(body) = body_of(&answer)? {
            return Ok(body);
        }
        stream.set_read_timeout(Some(left(deadline).map_err(failed)?)).map_err(failed)?;
        match stream.read(&mut chunk) {
            Ok(0) => return body_at_end(&answer),
            Ok(count) => answer.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
        if answer.len() > ANSWER_LEN_MAX_BYTES {
            return Err("the answer is longer than 64 KiB".to_owned());
        }
    }
}

/// Time until the deadline, which has not passed.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn connect(server: &Server<'_>, deadline: Instant, resolve: Resolve) -> io::Result<TcpStream> {
    let mut failure = io::Error::other("its name has no address");
    for address in addresses(server, deadline, resolve)? {
        match TcpStream::connect_timeout(&address, left(deadline)?) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn addresses(
    server: &Server<'_>,
    deadline: Instant,
    resolve: Resolve,
) -> io::Result<Vec<SocketAddr>> {
    let port = server.port;
    if let Ok(address) = server.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let host = server.host.to_owned();
    let (sender, resolved) = mpsc::channel();
    thread::Builder::new().name("resolver".to_owned()).spawn(move || {
        leave_signals_to_others();
        // After the deadline the receiver is gone, and the addresses are dropped.
        let _ = sender.send(resolve(&host, port));
    })?;
    match resolved.recv_timeout(left(deadline)?) {
        Ok(addresses) => addresses,
        Err(mpsc::RecvTimeoutError::Timeout) => Err(io::ErrorKind::TimedOut.into()),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(io::Error::other("its name has no address"))
        }
    }
}

/// The parts of a URL.
#[derive(Debug, PartialEq, Eq)]
struct Server<'a> {
    authority: &'a str,
    host: &'a str,
    port: u16,
    /// The path without a slash at its end.
    folder: &'a str,
}

impl<'a> Server<'a> {
    fn parse(url: &'a str) -> Result<Self, String> {
        if url.starts_with("https://") {
            return Err("https is not supported; tang needs no TLS".to_owned());
        }
        // As clevis, which passes the URL to curl.
        let rest = url.strip_prefix("http://").unwrap_or(url);
        let is_bad = |byte: u8| byte <= b' ' || byte >= 0x7f || b"@?#\\\"<>".contains(&byte);
        if rest.contains("://") || rest.bytes().any(is_bad) {
            return Err("this is no URL of the form http://HOST:PORT".to_owned());
        }
        let at = rest.find('/').unwrap_or(rest.len());
        let (authority, folder) = rest.split_at(at);
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let port = port.parse().map_err(|_| format!("the port {port:?} is no number"))?;
                (host, port)
            }
            _ => (authority, 80),
        };
        let host = host.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err("the URL has no host".to_owned());
        }
        Ok(Self { authority, host, port, folder: folder.trim_end_matches('/') })
    }
}

/// The head of an answer, and where its body begins.
struct Head {
    body_at: usize,
    body_len: Option<usize>,
}

impl Head {
    /// `None`: the head has not ended yet.
    fn of(answer: &[u8]) -> Result<Option<Self>, String> {
        let Some(len) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
            return Ok(None);
        };
        let head = String::from_utf8_lossy(&answer[..len]);
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap_or_default();
        let code = status.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
        if code != Some("200") {
            let shown: String = status.chars().take(64).collect();
            return Err(format!("it answers {shown:?}"));
        }
        let mut body_len = None;
        for line in lines {
            let Some((name, value)) = line.split_once(':') else { continue };
            if name.eq_ignore_ascii_case("content-length") {
                let len = value.trim().parse().map_err(|_| "its Content-Length is no number")?;
                body_len = Some(len);
            }
        }
        Ok(Some(Self { body_at: len + 4, body_len }))
    }
}

/// The body, if the answer has all of it.
fn body_of(answer: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let Some(head) = Head::of(answer)? else { return Ok(None) };
    let body = &answer[head.body_at..];
    Ok(head.body_len.and_then(|len| body.get(..len)).map(<[u8]>::to_vec))
}

/// The body of an answer that has ended with its connection.
fn body_at_end(answer: &[u8]) -> Result<Vec<u8>, String> {
    match Head::of(answer)? {
        Some(Head { body_at, body_len: None }) => Ok(answer[body_at..].to_vec()),
        _ => Err("its answer ends early".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Sends one request to a server that answers with `answer`, and returns it with the result.
    fn asked(
        answer: impl FnOnce(TcpStream) + Send + 'static,
        limit: Duration,
    ) -> (String, Result<Vec<u8>, String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://127.0.0.1:{}/tang/", listener.local_addr().unwrap().port());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 4096];
            let mut len = 0;
            while !request[..len].ends_with(b"{}") {
                len += stream.read(&mut request[len..]).unwrap();
            }
            answer(stream);
            String::from_utf8(request[..len].to_vec()).unwrap()
        });
        let result = exchange(&url, "/rec/k", "{}", limit, |_, _| panic!("it is an address"));
        (server.join().unwrap(), result)
    }

    fn answered(text: &'static str) -> Result<Vec<u8>, String> {
        let write = |mut stream: TcpStream| {
            // The client may have hung up.
            let _ = stream.write_all(text.as_bytes());
        };
        asked(write, TIME_LIMIT).1
    }

    #[test]
    fn request_is_a_post_below_the_folder_of_the_server() {
        let answer = "HTTP/1.1 200 OK\r\ncontent-LENGTH: 3\r\n\r\nabc and more";
        let write = |mut stream: TcpStream| stream.write_all(answer.as_bytes()).unwrap();
        let (request, body) = asked(write, TIME_LIMIT);
        assert!(request.starts_with("POST /tang/rec/k HTTP/1.0\r\nHost: 127.0.0.1:"), "{request}");
        assert!(request.ends_with("Content-Length: 2\r\n\r\n{}"), "{request}");
        assert_eq!(body.unwrap(), b"abc");
        assert_eq!(answered("HTTP/1.0 200 OK\r\n\r\nto the end").unwrap(), b"to the end");
    }

    #[test]
    fn answers_that_are_wrong_are_named() {
        for (answer, named) in [
            ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404 Not Found"),
            ("SSH-2.0-OpenSSH\r\n\r\n", "SSH-2.0"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "ends early"),
            ("HTTP/1.1 200 OK\r\n", "ends early"),
            ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "no number"),
            ("", "ends early"),
        ] {
            let problem = answered(answer).unwrap_err();
            assert!(problem.contains(named), "{answer:?}: {problem}");
        }
    }

    #[test]
    fn answer_without_an_end_is_given_up() {
        let flood = |mut stream: TcpStream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            while stream.write_all(&[b'x'; 4096]).is_ok() {}
        };
        assert!(asked(flood, TIME_LIMIT).1.unwrap_err().contains("64 KiB"));
        let silent = |mut stream: TcpStream| {
            // Until the client has closed the connection.
            let _ = stream.read(&mut [0]);
        };
        let problem = asked(silent, Duration::from_millis(50)).1.unwrap_err();
        assert_eq!(problem, "no answer within 0.05 seconds");
        // One byte after the other moves no deadline.
        let slow = |mut stream: TcpStream| {
            while stream.write_all(b"H").is_ok() {
                thread::yield_now();
            }
        };
        assert!(asked(slow, Duration::from_millis(50)).1.is_err());
    }

    #[test]
    fn host_is_resolved_within_the_time_of_the_exchange() {
        let short = Duration::from_millis(50);
        let hangs = |_: &str, _| {
            loop {
                thread::park();
            }
        };
        let problem = exchange("http://tang.example", "/rec/k", "{}", short, hangs).unwrap_err();
        assert_eq!(problem, "no answer within 0.05 seconds");
        let unknown = |host: &str, port| Err(io::Error::other(format!("{host} {port} unknown")));
        let problem = exchange("http://tang.example", "/rec/k", "{}", TIME_LIMIT, unknown);
        assert_eq!(problem.unwrap_err(), "tang.example 80 unknown");
    }

    #[test]
    fn url_has_a_host_and_perhaps_a_port_and_a_folder() {
        let parts = |url| Server::parse(url).map(|it| (it.host, it.port, it.folder));
        assert_eq!(parts("http://tang.example"), Ok(("tang.example", 80, "")));
        assert_eq!(parts("http://tang:7500/a/b/"), Ok(("tang", 7500, "/a/b")));
        assert_eq!(parts("http://[::1]:7500"), Ok(("::1", 7500, "")));
        assert_eq!(parts("http://[::1]"), Ok(("::1", 80, "")));
        assert_eq!(parts("tang"), Ok(("tang", 80, "")));
        for url in [
            "https://tang",
            "ftp://tang",
            "http://",
            "http://:80",
            "http://tang:x",
            "http://tang:70000",
            "http://user@tang",
            "http://tang/a b",
            "http://tang/a?b",
            "http://tang\r\nX: y",
        ] {
            assert!(parts(url).is_err(), "{url}");
        }
    }
}
