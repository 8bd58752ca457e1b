//! The terminal of `top`: the alternate screen, keys without Enter, the size.
//!
//! Escape sequences are xterm's, which all terminals of today know: alternate screen (1049), cursor
//! (25), automatic wrap (7).

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use rustix::termios::{self, LocalModes, OptionalActions, SpecialCodeIndex, Termios};

use crate::output::print;

const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// Moves to the first line; each line and the screen after the last are then cleared.
const HOME: &str = "\x1b[H";
const WIPE_LINE: &str = "\x1b[K";
const WIPE_BELOW: &str = "\x1b[J";
/// Size where the terminal does not tell its own.
const USUAL_SIZE: Size = Size { columns: 80, rows: 24 };

/// Size of the terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// A key of `top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Char(char),
}

/// The alternate screen, until it is dropped. A panic leaves it first, so that its message stays.
pub(super) struct Screen {
    /// Where keys come from, if a terminal is there.
    input: Option<OwnedFd>,
}

/// The modes of the terminal before, while the screen is there.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

impl Screen {
    pub(super) fn enter() -> Self {
        let input = input();
        if let Some(before) = input.as_ref().and_then(|input| termios::tcgetattr(input).ok()) {
            let mut modes = before.clone();
            modes.local_modes -= LocalModes::ECHO | LocalModes::ICANON;
            modes.special_codes[SpecialCodeIndex::VMIN] = 1;
            modes.special_codes[SpecialCodeIndex::VTIME] = 0;
            let _ = input.as_ref().map(|fd| termios::tcsetattr(fd, OptionalActions::Now, &modes));
            *BEFORE.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(before);
        }
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            leave();
            usual(panic);
        }));
        let _ = print(ENTER);
        Self { input }
    }

    /// Readable after a key.
    pub(super) fn input(&self) -> Option<BorrowedFd<'_>> {
        self.input.as_ref().map(AsFd::as_fd)
    }

    /// The keys that were typed; `None` after the end of the terminal.
    pub(super) fn keys(&self) -> Option<Vec<Key>> {
        let mut bytes = [0; 64];
        let input = self.input.as_ref()?;
        match rustix::io::read(input, &mut bytes) {
            Ok(0) => None,
            Ok(len) => Some(keys(&bytes[..len])),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Some(Vec::new()),
            Err(_) => None,
        }
    }

    /// The size now.
    pub(super) fn size(&self) -> Size {
        let size = termios::tcgetwinsize(rustix::stdio::stdout()).ok();
        let size = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        size.map_or(USUAL_SIZE, |size| Size {
            columns: size.ws_col.into(),
            rows: size.ws_row.into(),
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

/// Leaves the screen, once.
fn leave() {
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(LEAVE.as_bytes()).and_then(|()| stdout.flush());
    let before = BEFORE.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    if let (Some(before), Some(input)) = (before, input()) {
        let _ = termios::tcsetattr(input, OptionalActions::Now, &before);
    }
}

/// Standard input, or else the terminal of this process.
fn input() -> Option<OwnedFd> {
    let stdin = rustix::stdio::stdin();
    if termios::isatty(stdin) {
        return stdin.try_clone_to_owned().ok();
    }
    let tty = std::fs::File::options().read(true).write(true).open("/dev/tty").ok()?;
    Some(tty.into())
}

/// The lines of a frame drawn over the last one. Longer lines and frames are cut.
pub(super) fn drawn(lines: &[String], size: Size) -> String {
    let mut text = HOME.to_owned();
    for (place, line) in lines.iter().take(size.rows).enumerate() {
        if place > 0 {
            text.push_str("\r\n");
        }
        text.extend(line.chars().take(size.columns));
        text.push_str(WIPE_LINE);
    }
    text + WIPE_BELOW
}

/// The keys in bytes of a terminal. Other sequences mean nothing.
fn keys(bytes: &[u8]) -> Vec<Key> {
    const NAMED: [(&[u8], Key); 14] = [
        (b"\x1b[A", Key::Up),
        (b"\x1bOA", Key::Up),
        (b"\x1b[B", Key::Down),
        (b"\x1bOB", Key::Down),
        (b"\x1b[5~", Key::PageUp),
        (b"\x1b[6~", Key::PageDown),
        (b"\x1b[H", Key::Home),
        (b"\x1bOH", Key::Home),
        (b"\x1b[1~", Key::Home),
        (b"\x1b[F", Key::End),
        (b"\x1bOF", Key::End),
        (b"\x1b[4~", Key::End),
        (b"\r", Key::Enter),
        (b"\n", Key::Enter),
    ];
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let [first, after @ ..] = rest {
        if let Some((name, key)) = NAMED.iter().find(|(name, _)| rest.starts_with(name)) {
            keys.push(*key);
            rest = &rest[name.len()..];
        } else if let (0x1b, [b'[' | b'O', sequence @ ..]) = (first, after) {
            let end = sequence.iter().position(|byte| (0x40..=0x7e).contains(byte));
            rest = end.map_or(&[][..], |end| &sequence[end + 1..]);
        } else {
            keys.push(if *first == 0x1b { Key::Escape } else { Key::Char(char::from(*first)) });
            rest = after;
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_known_by_their_sequences_and_others_mean_nothing() {
        let typed = keys(b"j\x1b[A\x1b[6~\x1b[1;5C\x1bOFq\x1b");
        let wanted =
            [Key::Char('j'), Key::Up, Key::PageDown, Key::End, Key::Char('q'), Key::Escape];
        assert_eq!(typed, wanted);
        assert_eq!(keys(b"\x1b[99"), []);
    }

    #[test]
    fn drawn_frame_wipes_what_was_longer_and_fits() {
        let lines = ["abcde".to_owned(), "b".to_owned(), "c".to_owned()];
        let drawn = drawn(&lines, Size { columns: 3, rows: 2 });
        assert_eq!(drawn, "\u{1b}[Habc\u{1b}[K\r\nb\u{1b}[K\u{1b}[J");
    }
}
