//! Storage below a volume: a file in memory, a file on a disk, the same with direct I/O, a block
//! device. The server has a different I/O path for each.

use crate::lab::{Lab, Server};
use crate::tools::{self, tool};
use crate::volume::{Recipe, Volume};
use anyhow::{Context, Result};
use nix::unistd::Uid;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Storage below a volume.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backing {
    /// tmpfs.
    Memory,
    /// A regular file through the page cache.
    Disk,
    /// A regular file with O_DIRECT.
    Direct,
    /// A loop device owned by the server's user.
    Loop,
}

impl Backing {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Backing::Memory => "in memory",
            Backing::Disk => "in a file on a disk",
            Backing::Direct => "in a file with O_DIRECT",
            Backing::Loop => "on a block device",
        }
    }

    /// Makes a volume there; `None` if the machine lacks this kind of storage.
    pub(crate) fn make(self, lab: &Lab, recipe: &Recipe) -> Result<Option<Backed>> {
        let mut volume = recipe.make(lab)?;
        let mut device = None;
        if self != Backing::Memory {
            let image = lab.disk().join(format!("{}.img", recipe.name));
            fs::copy(&volume.image, &image)?;
            lab.give(&image)?;
            fs::remove_file(&volume.image)?;
            volume.image = image;
        }
        if self == Backing::Loop {
            if !LoopDevice::available() {
                return Ok(None);
            }
            let attached = LoopDevice::attach(&volume.image, &[])?;
            lab.give(&attached.path)?;
            volume.image.clone_from(&attached.path);
            device = Some(attached);
        }
        Ok(Some(Backed { volume, backing: self, _device: device }))
    }
}

/// A volume on its backing.
pub(crate) struct Backed {
    volume: Volume,
    backing: Backing,
    /// Kept as long as the volume.
    _device: Option<LoopDevice>,
}

impl Backed {
    /// `blockyard VERB` on the volume, with its key options.
    pub(crate) fn command(&self, lab: &Lab, verb: &str) -> Result<Command> {
        self.volume.command(lab, verb)
    }

    pub(crate) fn serve(&self, lab: &Lab) -> Result<Server> {
        self.serve_with(lab, &[])
    }

    /// Serves the volume with further arguments.
    pub(crate) fn serve_with(&self, lab: &Lab, more: &[&str]) -> Result<Server> {
        let direct: &[&str] = if self.backing == Backing::Direct { &["--direct"] } else { &[] };
        self.volume.serve(lab, &[direct, more].concat())
    }
}

/// A loop device, returned with its original owner.
pub(crate) struct LoopDevice {
    pub(crate) path: PathBuf,
    owner: (u32, u32),
}

impl LoopDevice {
    /// Whether this user can attach one on this machine.
    pub(crate) fn available() -> bool {
        Uid::effective().is_root() && Path::new("/dev/loop-control").exists()
    }

    /// Attaches a device to the file, with further options of losetup.
    pub(crate) fn attach(image: &Path, options: &[&str]) -> Result<LoopDevice> {
        let mut losetup = tool("losetup");
        let said = tools::read(losetup.args(["--find", "--show"]).args(options).arg(image))?;
        let path = PathBuf::from(said.trim());
        let node = fs::metadata(&path).with_context(|| path.display().to_string())?;
        Ok(LoopDevice { path, owner: (node.uid(), node.gid()) })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = tools::run(tool("losetup").arg("-d").arg(&self.path));
        let _ = chown(&self.path, Some(self.owner.0), Some(self.owner.1));
    }
}
