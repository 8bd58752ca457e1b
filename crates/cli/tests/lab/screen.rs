//! A pseudo-terminal whose other end is the test.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::Lab;

/// A command whose standard input and standard error are a terminal.
pub(crate) struct Session {
    pub(crate) child: Child,
    person: File,
    terminal: File,
    /// All that was on the screen.
    pub(crate) screen: String,
}

impl Session {
    pub(crate) fn start(lab: &Lab, words: &[&str]) -> Self {
        Self::of(lab.blockyard(words), false)
    }

    /// With standard output at the terminal too, which has 24 lines of 80 characters.
    pub(crate) fn full(lab: &Lab, words: &[&str]) -> Self {
        Self::of(lab.blockyard(words), true)
    }

    /// Any command.
    pub(crate) fn of(mut command: Command, has_stdout: bool) -> Self {
        let controller = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        rustix::pty::grantpt(&controller).unwrap();
        rustix::pty::unlockpt(&controller).unwrap();
        let name = rustix::pty::ptsname(&controller, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = File::from(rustix::fs::open(name, flags, Mode::empty()).unwrap());
        command.stdin(terminal.try_clone().unwrap()).stderr(terminal.try_clone().unwrap());
        command.stdout(Stdio::null());
        if has_stdout {
            command.stdout(terminal.try_clone().unwrap());
        }
        Self::resized(&terminal, 80, 24).unwrap();
        let child = command.spawn().unwrap();
        Self { child, person: controller.into(), terminal, screen: String::new() }
    }

    fn resized(terminal: &File, columns: u16, rows: u16) -> rustix::io::Result<()> {
        tcsetwinsize(
            terminal,
            Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 },
        )
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        Self::resized(&self.terminal, columns, rows).unwrap();
        // The terminal is not the controlling one of the command, which the kernel would tell.
        kill_process(Pid::from_child(&self.child), Signal::WINCH).unwrap();
    }

    /// Reads the screen until a text appears on it.
    pub(crate) fn expect(&mut self, wanted: &str) {
        let seen = self.screen.len();
        let mut bytes = [0; 256];
        while !self.screen[seen..].contains(wanted) {
            let count = self.person.read(&mut bytes).unwrap();
            self.screen.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    }

    pub(crate) fn type_in(&mut self, keys: &str) {
        self.person.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        let normal = LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        assert!(modes.contains(normal), "the terminal is left as {modes:?}");
        // A mark: all output of the command precedes it.
        self.terminal.write_all(b"-- end --").unwrap();
        self.expect("-- end --");
        (status, self.screen)
    }
}
