//! Small test volumes, made by other programs or by ours, all with a fast key derivation.

use crate::lab::{Door, Lab, Server};
use crate::tools;
use anyhow::{Context, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An image, and the arguments that open it on both sides.
pub(crate) struct Volume {
    pub(crate) name: &'static str,
    pub(crate) image: PathBuf,
    /// Arguments of `blockyard serve IMAGE`.
    pub(crate) ours: Vec<String>,
    /// Arguments of `cryptsetup open` in the guest, before the device.
    pub(crate) theirs: Vec<String>,
    /// Standard input for both sides: a passphrase that plain mode hashes.
    pub(crate) stdin: Option<PathBuf>,
}

/// Program that writes the header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    Blockyard,
    Cryptsetup,
    /// Plain mode, without a header.
    None,
}

/// Recipe of a test volume.
pub(crate) struct Recipe {
    pub(crate) name: &'static str,
    pub(crate) maker: Maker,
    /// Options of `format` or `luksFormat`, or for plain mode of `open` on both sides.
    pub(crate) options: &'static str,
}

/// A very cheap key derivation, which is not the subject of these tests.
const FAST: &str = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000";

/// Every format that both sides know, each once.
pub(crate) const RECIPES: &[Recipe] = &[
    Recipe { name: "ours-luks2-4096", maker: Maker::Blockyard, options: "" },
    Recipe { name: "ours-luks2-512", maker: Maker::Blockyard, options: "--sector-size 512" },
    Recipe {
        name: "luks2-4096",
        maker: Maker::Cryptsetup,
        options: "--type luks2 --sector-size 4096",
    },
    Recipe {
        name: "luks2-cbc-essiv",
        maker: Maker::Cryptsetup,
        options: "--type luks2 -c aes-cbc-essiv:sha256 -s 256 --sector-size 512",
    },
    Recipe { name: "luks1", maker: Maker::Cryptsetup, options: "--type luks1" },
    Recipe {
        name: "luks1-cbc-plain64",
        maker: Maker::Cryptsetup,
        options: "--type luks1 -c aes-cbc-plain64 -s 256",
    },
    Recipe {
        name: "plain-xts",
        maker: Maker::None,
        options: "--cipher aes-xts-plain64 --key-size 512 --hash sha512",
    },
    Recipe {
        name: "plain-cbc-essiv-offset",
        maker: Maker::None,
        options: "--cipher aes-cbc-essiv:sha256 --key-size 256 --offset 2048 --skip 77",
    },
    Recipe {
        name: "plain-xts-4096-large-iv",
        maker: Maker::None,
        options: "--cipher aes-xts-plain64 --key-size 256 --sector-size 4096 --iv-large-sectors",
    },
    Recipe {
        name: "ours-luks2-serpent",
        maker: Maker::Blockyard,
        options: "--cipher serpent-xts-plain64 --sector-size 4096",
    },
    Recipe {
        name: "plain-twofish-cbc-essiv",
        maker: Maker::None,
        options: "--cipher twofish-cbc-essiv:sha256 --key-size 256",
    },
    Recipe {
        name: "plain-adiantum",
        maker: Maker::None,
        options: "--cipher xchacha12,aes-adiantum-plain64 --key-size 256 --sector-size 4096",
    },
    Recipe {
        name: "plain-elephant",
        maker: Maker::None,
        options: "--cipher aes-cbc-elephant --key-size 512",
    },
];

/// Image size: at most 16 MiB of header, and enough data after it.
pub(crate) const IMAGE_BYTES: u64 = 48 << 20;

impl Recipe {
    /// Makes the image of this recipe in the lab.
    pub(crate) fn make(&self, lab: &Lab) -> Result<Volume> {
        let image = lab.path(&format!("{}.img", self.name));
        sparse(&image, IMAGE_BYTES)?;
        lab.give(&image)?;
        let words = || self.options.split_whitespace().map(str::to_owned);
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        match self.maker {
            Maker::Blockyard => {
                let mut format = lab.blockyard(&["format"]);
                format.arg(&image).arg("--key-file").arg(lab.pass());
                format.args(FAST.split(' ')).args(words());
                tools::run(&mut format).with_context(|| format!("making {}", self.name))?;
            }
            Maker::Cryptsetup => luks_format(&image, &lab.pass(), self.options)?,
            Maker::None => {
                ours.extend(["--type".into(), "plain".into()]);
                ours.extend(words());
                theirs = ours.clone();
            }
        }
        // cryptsetup hashes a passphrase from standard input, and never the contents of a key file.
        let hashed = self.maker == Maker::None && self.options.contains("--hash");
        if !hashed {
            let key = if self.maker == Maker::None {
                lab.write("plain.key", noise(7, 64))?
            } else {
                lab.pass()
            };
            let key = key.display().to_string();
            ours.extend(["--key-file".into(), key.clone()]);
            theirs.extend(["--key-file".into(), key]);
        }
        let stdin = hashed.then(|| lab.pass());
        Ok(Volume { name: self.name, image, ours, theirs, stdin })
    }
}

impl Volume {
    /// `blockyard VERB IMAGE` with its key options.
    pub(crate) fn command(&self, lab: &Lab, verb: &str) -> Result<Command> {
        let mut command = lab.blockyard(&[verb]);
        command.arg(&self.image).args(&self.ours);
        if let Some(stdin) = &self.stdin {
            command.stdin(File::open(stdin)?);
        }
        Ok(command)
    }

    /// Serves the volume, with further arguments.
    pub(crate) fn serve(&self, lab: &Lab, more: &[&str]) -> Result<Server> {
        let socket = lab.path(&format!("{}.sock", self.name));
        let mut command = self.command(lab, "serve")?;
        command.args(more).arg("--socket").arg(&socket);
        lab.start(self.name, command, Door::Unix(socket))
    }
}

/// Runs `cryptsetup luksFormat`, which needs no privilege and no device mapper on a file.
pub(crate) fn luks_format(image: &Path, key_file: &Path, options: &str) -> Result<()> {
    let mut format = tools::tool("cryptsetup");
    format.args(["luksFormat", "-q"]).args(options.split_whitespace());
    if options.contains("luks1") {
        format.args(["--pbkdf-force-iterations", "1000"]);
    } else if !options.contains("--pbkdf ") {
        format.args(FAST.split(' '));
    }
    tools::run(format.arg("--key-file").arg(key_file).arg(image))?;
    Ok(())
}

pub(crate) fn sparse(path: &Path, len_bytes: u64) -> Result<()> {
    let file = File::create(path).with_context(|| path.display().to_string())?;
    file.set_len(len_bytes)?;
    Ok(())
}

/// Noise from a splitmix64 stream, which never repeats within a file and differs by seed.
pub(crate) fn noise(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut out = Vec::with_capacity(len_bytes + 8);
    while out.len() < len_bytes {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        out.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    out.truncate(len_bytes);
    out
}
