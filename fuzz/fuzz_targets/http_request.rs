//! A request to the port of the metrics.
#![no_main]

use blockyard_protocol::http::{Asked, asked, end_of_head};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|received: &[u8]| {
    let Some(end) = end_of_head(received) else {
        assert!(!received.windows(4).any(|bytes| bytes == b"\r\n\r\n"));
        return;
    };
    let head = &received[..end];
    assert!(head.ends_with(b"\n") && end_of_head(&received[..end - 1]).is_none());
    if let Asked::Get(path) | Asked::Head(path) = asked(head) {
        assert!(path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'?'));
    }
});
