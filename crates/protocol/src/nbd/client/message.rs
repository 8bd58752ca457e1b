//! Text messages from a server: bounded, and free of terminal control sequences.
//!
//! Errors have a message of up to 4096 bytes. Only its beginning is kept; the rest is discarded on
//! arrival, so no buffer needs to hold the whole.

use alloc::string::String;
use alloc::vec::Vec;

/// Length that is kept: the specification asks servers not to send longer strings. Our choice.
const KEPT_BYTES: usize = 256;

/// The message being received, or the last one.
#[derive(Debug, Default)]
pub(super) struct Message {
    kept: Vec<u8>,
    /// Whether the message was longer than the kept part.
    cut: bool,
    left_bytes: usize,
}

impl Message {
    /// Starts a message of `len_bytes`.
    pub(super) fn begin(&mut self, len_bytes: usize) {
        self.kept.clear();
        self.cut = len_bytes > KEPT_BYTES;
        self.left_bytes = len_bytes;
    }

    /// Takes the message's bytes from the front and returns their number.
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

    /// The kept part of the message in printable form.
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

/// Characters that reorder the surrounding text and could disguise a message.
fn is_directional(c: char) -> bool {
    let overrides = '\u{202a}'..='\u{202e}';
    let isolates = '\u{2066}'..='\u{2069}';
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
