//! The measured volume: one fully written image on a disk, served as a file and through a loop
//! device.

use crate::backing::LoopDevice;
use crate::lab::{Lab, Server};
use crate::tools::{self, tool};
use crate::volume::sparse;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Size of a LUKS2 header.
const HEADER_MIB: u32 = 16;

/// Storage below the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A file.
    File,
    /// A loop device over the same file.
    Loop,
}

/// The image and its loop device.
pub(crate) struct Disk {
    folder: TempDir,
    image: PathBuf,
    /// The loop device, if one is available and its scheduler can be chosen.
    device: Option<LoopDevice>,
    /// The reason why there is none.
    pub(crate) no_device: Option<String>,
}

impl Disk {
    /// Makes the volume and writes all of it, so that no run measures allocation.
    pub(crate) fn make(lab: &Lab, folder: &Path, size_mib: u32) -> Result<Disk> {
        let kind = tools::read(tool("stat").args(["-f", "-c", "%T"]).arg(folder))?;
        ensure!(
            !["tmpfs", "ramfs"].contains(&kind.trim()),
            "{} lies in memory; name a folder on a disk with --dir",
            folder.display()
        );
        let folder = tempfile::Builder::new().prefix("blockyard-bench-").tempdir_in(folder)?;
        tools::run(tool("chmod").arg("755").arg(folder.path()))?;
        lab.give(folder.path())?;
        let image = folder.path().join("disk.img");
        sparse(&image, u64::from(size_mib + HEADER_MIB) << 20)?;
        lab.give(&image)?;
        let mut format = lab.blockyard(&["format", "-q", "--pbkdf", "pbkdf2"]);
        format.args(["--pbkdf-force-iterations", "1000", "--sector-size", "4096", "--key-file"]);
        tools::run(format.arg(lab.pass()).arg(&image))?;
        let mut disk = Disk { folder, image, device: None, no_device: None };
        disk.fill(lab, size_mib).context("writing the volume")?;
        match disk.attach(lab) {
            Ok(device) => disk.device = Some(device),
            Err(error) => disk.no_device = Some(format!("{error:#}")),
        }
        Ok(disk)
    }

    fn fill(&self, lab: &Lab, size_mib: u32) -> Result<()> {
        let server = self.serve(lab, Place::File, &["--direct"])?;
        let mut fio = tool("fio");
        fio.args(["--name=fill", "--ioengine=nbd", "--rw=write", "--bs=1m", "--iodepth=4"]);
        fio.arg("--end_fsync=1").arg(format!("--uri={}", server.uri()));
        tools::run(fio.arg(format!("--size={size_mib}m")))?;
        server.stop()
    }

    fn attach(&self, lab: &Lab) -> Result<LoopDevice> {
        ensure!(LoopDevice::available(), "a loop device needs root");
        // A separate page cache above the file's would absorb the writes.
        let device = LoopDevice::attach(&self.image, &["--direct-io=on"])?;
        lab.give(&device.path)?;
        let scheduler = scheduler_of(&device.path);
        let text = fs::read_to_string(&scheduler).context(scheduler.display().to_string())?;
        fs::write(&scheduler, active(&text)).context("the scheduler cannot be chosen")?;
        Ok(device)
    }

    pub(crate) fn has_device(&self) -> bool {
        self.device.is_some()
    }

    /// The wanted schedulers that the kernel has for the loop device.
    pub(crate) fn kernel_schedulers(&self, wanted: &[&'static str]) -> Result<Vec<&'static str>> {
        let Some(device) = &self.device else { return Ok(Vec::new()) };
        let mut there = Vec::new();
        for name in wanted {
            // Selecting a scheduler loads its module.
            if fs::write(scheduler_of(&device.path), name).is_ok() {
                there.push(*name);
            }
        }
        self.set_kernel_scheduler("none")?;
        Ok(there)
    }

    pub(crate) fn set_kernel_scheduler(&self, name: &str) -> Result<()> {
        let Some(device) = &self.device else { return Ok(()) };
        let scheduler = scheduler_of(&device.path);
        fs::write(&scheduler, name).with_context(|| format!("{}: {name}", scheduler.display()))
    }

    /// Serves the volume with further arguments.
    pub(crate) fn serve(&self, lab: &Lab, place: Place, more: &[&str]) -> Result<Server> {
        let path = match (place, &self.device) {
            (Place::Loop, Some(device)) => &device.path,
            _ => &self.image,
        };
        let mut words = vec![path.as_os_str(), "--key-file".as_ref()];
        let pass = lab.pass();
        words.push(pass.as_os_str());
        words.extend(more.iter().map(AsRef::<std::ffi::OsStr>::as_ref));
        lab.serve("elevators", &words)
    }

    /// Description of the disk below the file, from the kernel.
    pub(crate) fn below(&self) -> Value {
        let mut findmnt = tool("findmnt");
        findmnt.args(["-n", "-o", "SOURCE,FSTYPE", "-T"]).arg(self.folder.path());
        let mount = tools::read(&mut findmnt).unwrap_or_default();
        let mut words = mount.split_whitespace().map(str::to_owned);
        let source = words.next();
        let filesystem = words.next();
        let source = source.unwrap_or_else(|| "?".into());
        let queue = queue_of(Path::new(&source));
        let line = |name: &str| fs::read_to_string(queue.join(name)).unwrap_or_default();
        json!({
            "filesystem": filesystem,
            "device": source,
            "virtual": source.starts_with("/dev/vd") || source.starts_with("/dev/xvd"),
            "rotational": line("rotational").trim(),
            "scheduler": active(&line("scheduler")),
            "write_cache": line("write_cache").trim(),
        })
    }
}

/// Queue of a device, or of the disk of a partition.
fn queue_of(device: &Path) -> PathBuf {
    let name = device.file_name().unwrap_or_default();
    let entry = Path::new("/sys/class/block").join(name);
    let entry = entry.canonicalize().unwrap_or(entry);
    match entry.parent() {
        Some(disk) if entry.join("partition").exists() => disk.join("queue"),
        _ => entry.join("queue"),
    }
}

fn scheduler_of(device: &Path) -> PathBuf {
    queue_of(device).join("scheduler")
}

/// The entry in brackets of `none [mq-deadline] bfq`.
fn active(text: &str) -> &str {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or("none", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheduler_in_use_stands_in_brackets() {
        assert_eq!(active("none [mq-deadline] kyber bfq\n"), "mq-deadline");
        assert_eq!(active("[none]\n"), "none");
        assert_eq!(active(""), "none");
    }
}
