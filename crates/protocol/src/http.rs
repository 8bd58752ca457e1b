//! A minimal HTTP/1.1 (RFC 9112) for a metrics scraper: one GET, one response, then the connection
//! is closed. Sans-IO: the owner of the socket limits length and time.
//!
//! Header fields are ignored, a body is never read, and a connection serves one request only.

use alloc::format;
use alloc::vec::Vec;
use core::fmt::Write as _;

/// Greatest length of a request's head.
pub const HEAD_BYTES_MAX: usize = 8 << 10;

/// End of a request's head, including the empty line.
#[must_use]
pub fn end_of_head(received: &[u8]) -> Option<usize> {
    let bytes = received.iter().enumerate();
    let mut ends = bytes.filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    // A lone LF is a line terminator too (RFC 9112, 2.2).
    ends.find(|&at| {
        let line = &received[..at - 1];
        line.ends_with(b"\n") || line.ends_with(b"\n\r") || line.is_empty() || line == b"\r"
    })
}

/// A parsed request line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked<'a> {
    /// GET of this path, without its query.
    Get(&'a str),
    /// HEAD of this path.
    Head(&'a str),
    /// Another method.
    OtherMethod,
    /// Not HTTP, or an unsupported version.
    Malformed,
}

/// Parses the request line of a head.
#[must_use]
pub fn asked(head: &[u8]) -> Asked<'_> {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let Ok(line) = core::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line)) else {
        return Asked::Malformed;
    };
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Asked::Malformed;
    };
    let is_token = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
    if !is_token(method) || !is_token(target) || !matches!(version, "HTTP/1.1" | "HTTP/1.0") {
        return Asked::Malformed;
    }
    let path = target.split(['?', '#']).next().unwrap_or(target);
    match method {
        "GET" => Asked::Get(path),
        "HEAD" => Asked::Head(path),
        _ => Asked::OtherMethod,
    }
}

/// A response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Status code and reason, such as `200 OK`.
    pub status: &'static str,
    /// Media type of the body.
    pub content_type: &'static str,
    /// Body.
    pub body: &'a str,
}

impl Answer<'_> {
    /// A response with one line of plain text.
    #[must_use]
    pub fn plain<'a>(status: &'static str, body: &'a str) -> Answer<'a> {
        Answer { status, content_type: "text/plain; charset=utf-8", body }
    }

    /// The encoded response; without the body for a HEAD, but with its length.
    #[must_use]
    pub fn bytes(&self, is_head: bool) -> Vec<u8> {
        let Self { status, content_type, body } = self;
        let mut text = format!("HTTP/1.1 {status}\r\n");
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        write!(
            text,
            "{allow}Content-Type: {content_type}\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            body.len()
        )
        .expect("a string never fails");
        if !is_head {
            text.push_str(body);
        }
        text.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::string::String;

    use super::*;

    #[test]
    fn request_line_is_a_path_another_method_or_nothing_that_we_speak() {
        for (head, is) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", Asked::Get("/metrics")),
            ("GET /metrics?x=1 HTTP/1.0\n\n", Asked::Get("/metrics")),
            ("HEAD / HTTP/1.1\r\n\r\n", Asked::Head("/")),
            ("POST /metrics HTTP/1.1\r\n\r\n", Asked::OtherMethod),
            ("PRI * HTTP/2.0\r\n\r\n", Asked::Malformed),
            ("GET /metrics\r\n\r\n", Asked::Malformed),
            ("GET  /metrics HTTP/1.1\r\n\r\n", Asked::Malformed),
            ("GET /a b HTTP/1.1\r\n\r\n", Asked::Malformed),
            ("GET /\u{e9} HTTP/1.1\r\n\r\n", Asked::Malformed),
            ("\r\n", Asked::Malformed),
            ("", Asked::Malformed),
        ] {
            assert_eq!(asked(head.as_bytes()), is, "{head:?}");
        }
        assert_eq!(asked(b"GET /\xff HTTP/1.1\r\n"), Asked::Malformed);
    }

    #[test]
    fn head_ends_at_its_empty_line_and_not_before() {
        for (received, end) in [
            ("GET / HTTP/1.1\r\nA: b\r\n\r\nrest", Some(24)),
            ("GET / HTTP/1.1\n\nrest", Some(16)),
            ("GET / HTTP/1.1\r\nA: b\r\n", None),
            ("GET / HTTP/1.1\r\n\r", None),
            ("\r\nrest", Some(2)),
            ("\n", Some(1)),
            ("", None),
        ] {
            assert_eq!(end_of_head(received.as_bytes()), end, "{received:?}");
        }
    }

    #[test]
    fn answer_says_its_length_and_what_is_allowed() {
        let answer = Answer::plain("405 Method Not Allowed", "no\n");
        let text = String::from_utf8(answer.bytes(false)).unwrap();
        assert!(text.starts_with("HTTP/1.1 405 ") && text.contains("\r\nAllow: GET, HEAD\r\n"));
        assert!(text.contains("\r\nContent-Length: 3\r\n") && text.ends_with("\r\n\r\nno\n"));
        assert!(answer.bytes(true).ends_with(b"\r\n\r\n"));
    }
}
