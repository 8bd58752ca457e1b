//! Text from a server, for people: bounded, and unable to steer a terminal.
//!
//! Errors come with a message of up to 4096 bytes. Its beginning is kept and the rest thrown away
//! as it comes, so nobody has to hold it in one piece.

use alloc::string::String;
use alloc::vec::Vec;

/// How much is kept: the specification asks servers not to send longer strings. Ours to choose.
const KEPT_BYTES: usize = 256;

/// One message that is being received, or the last one that was.
#[derive(Debug, Default)]
pub(super) struct Message {
    kept: Vec<u8>,
    /// More was sent than is kept.
    cut: bool,
    left_bytes: usize,
}

impl Message {
    /// The next `len_bytes` bytes of the stream are a message.
    pub(super) fn begin(&mut self, len_bytes: usize) {
        self.kept.clear();
        self.cut = len_bytes > KEPT_BYTES;
        self.left_bytes = len_bytes;
    }

    /// Takes what is there of it and tells how much that was.
    pub(super) fn on_bytes(&mut self, bytes: &[u8]) -> usize {
        let taken = self.left_bytes.min(bytes.len());
        let kept = taken.min(KEPT_BYTES - self.kept.len());
        self.kept.extend_from_slice(&bytes[..kept]);
        self.left_bytes -= taken;
        taken
    }

    pub(super) fn is_complete(&self) -> bool {
        self.left_bytes == 0
    }

    /// The message as it can be shown; of one that was long, the beginning.
    pub(super) fn printable(&self) -> String {
        let mut shown = String::new();
        for c in String::from_utf8_lossy(&self.kept).chars() {
            if c.is_control() || is_directional(c) {
                shown.extend(c.escape_default());
            } else {
                shown.push(c);
            }
        }
        if self.cut {
            shown.push_str("...");
        }
        shown
    }
}

/// The marks that reorder the text around them, with which a message could show as another one.
fn is_directional(c: char) -> bool {
    let (overrides, isolates) = ('\u{202a}'..='\u{202e}', '\u{2066}'..='\u{2069}');
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}')
        || overrides.contains(&c)
        || isolates.contains(&c)
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    fn shown(bytes: &[u8]) -> String {
        let mut message = Message::default();
        message.begin(bytes.len());
        for byte in bytes {
            assert_eq!(message.on_bytes(&[*byte]), 1);
        }
        assert!(message.is_complete());
        assert_eq!(message.on_bytes(b"the next reply"), 0);
        message.printable()
    }

    #[test]
    fn message_shows_control_characters_and_does_not_obey_them() {
        assert_eq!(shown("Gr\u{f6}\u{df}e 4 \u{20ac}".as_bytes()), "Gr\u{f6}\u{df}e 4 \u{20ac}");
        assert_eq!(shown(b"a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\n");
        for mark in ["61c", "200e", "200f", "202a", "202e", "2066", "2069"] {
            let code = u32::from_str_radix(mark, 16).unwrap();
            let text = String::from_iter(['a', char::from_u32(code).unwrap(), 'b']);
            assert_eq!(shown(text.as_bytes()), format!("a\\u{{{mark}}}b"));
        }
        assert_eq!(shown(b"a\xffb"), "a\u{fffd}b");
    }

    #[test]
    fn message_of_any_length_is_shown_up_to_its_bound() {
        assert_eq!(shown(&[b'x'; KEPT_BYTES]).len(), KEPT_BYTES);
        assert_eq!(shown(&[b'x'; 4096]), "x".repeat(KEPT_BYTES) + "...");
        assert_eq!(shown(b""), "");
    }

    #[test]
    fn message_forgets_the_one_before() {
        let mut message = Message::default();
        message.begin(300);
        assert_eq!(message.on_bytes(&[b'x'; 300]), 300);
        message.begin(2);
        assert_eq!(message.on_bytes(b"ok"), 2);
        assert_eq!(message.printable(), "ok");
    }
}
