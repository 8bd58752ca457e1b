//! The installed cryptsetup, and that of another Debian.

use crate::lab::Lab;
use crate::tools::{self, tool};
use anyhow::{Context, Result, ensure};
use std::fmt;
use std::path::PathBuf;
use std::process::Command;

/// Names a folder with another Debian, as `debootstrap` makes it.
const ROOT_VARIABLE: &str = "BLOCKYARD_DEBIAN_ROOT";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Words of cryptsetup without a keyslot's cipher.
const LACKS_CIPHER: [&str; 2] = ["device-mapper", "cipher for keyslot encryption"];
/// Lines of `luksDump` that differ by their nature.
const DIFFERS: [&str; 5] =
    ["LUKS header information", "Salt:", "MK salt:", "MK digest:", "Digest:"];

/// A cryptsetup.
pub(super) struct Cryptsetup {
    name: String,
    /// Folder of the Debian that it belongs to; `None`: this machine's.
    root: Option<PathBuf>,
}

impl Cryptsetup {
    /// The installed one, and that of the other Debian if there is one.
    pub(super) fn all() -> Result<Vec<Self>> {
        let other = std::env::var_os(ROOT_VARIABLE).map(PathBuf::from);
        let roots = std::iter::once(None).chain(other.map(Some));
        roots.map(Self::of).collect()
    }

    fn of(root: Option<PathBuf>) -> Result<Self> {
        let mut cryptsetup = Self { name: String::new(), root };
        let said = tools::read(cryptsetup.command().arg("--version")).with_context(|| {
            format!("{ROOT_VARIABLE} must name a folder with cryptsetup of Debian for x86-64")
        })?;
        cryptsetup.name = said.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        Ok(cryptsetup)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The program of another Debian runs with its own libraries, and without `chroot` or root.
    fn command(&self) -> Command {
        let Some(root) = &self.root else { return tool("cryptsetup") };
        let libraries = root.join(LIBRARIES);
        let loader = root.join("lib64/ld-linux-x86-64.so.2");
        let mut command = tool(&loader.display().to_string());
        command.env("OPENSSL_MODULES", libraries.join("ossl-modules"));
        command.arg("--library-path").arg(&libraries).arg(root.join("usr/sbin/cryptsetup"));
        command
    }

    fn in_lab(&self, lab: &Lab, words: &str) -> Command {
        let mut command = self.command();
        command.arg("-q").args(words.split_whitespace()).current_dir(lab.dir());
        command
    }

    pub(super) fn run(&self, lab: &Lab, words: &str) -> Result<()> {
        tools::run(&mut self.in_lab(lab, words)).map(drop)
    }

    pub(super) fn opens(&self, lab: &Lab, key_file: &str, volume: &str) -> Result<bool> {
        let words = format!("open --test-passphrase -d {key_file} {volume}");
        Ok(tools::output(&mut self.in_lab(lab, &words))?.status.success())
    }

    /// Whether it can open this volume here. It has few ciphers without the device mapper.
    pub(super) fn can_open(&self, lab: &Lab, key_file: &str, volume: &str) -> Result<bool> {
        let words = format!("open --test-passphrase -d {key_file} {volume}");
        let ended = tools::output(&mut self.in_lab(lab, &words))?;
        let said = tools::text(&ended.stderr);
        let is_able = ended.status.success();
        let lacks = LACKS_CIPHER.iter().any(|words| said.contains(words));
        ensure!(is_able || lacks, "{self} does not open it: {said}");
        Ok(is_able)
    }

    /// The text of `luksDump` without salts, digests and these lines.
    pub(super) fn dump(&self, lab: &Lab, volume: &str, differs: &[&str]) -> Result<String> {
        let text = tools::read(&mut self.in_lab(lab, &format!("luksDump {volume}")))?;
        let is_hex = |line: &str| {
            let mut words = line.split_whitespace();
            words.clone().count() > 1
                && words.all(|word| word.len() == 2 && u8::from_str_radix(word, 16).is_ok())
        };
        let starts = |line: &str| {
            DIFFERS.iter().chain(differs).any(|name| line.trim_start().starts_with(name))
        };
        let kept = text.lines().filter(|line| !is_hex(line) && !starts(line));
        Ok(kept.collect::<Vec<_>>().join("\n"))
    }
}

impl fmt::Display for Cryptsetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
