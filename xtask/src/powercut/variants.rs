//! Variants of the path from a client to the disk whose power is cut.

use super::fuse::PowerDisk;
use super::{Broken, load};
use crate::backing::LoopDevice;
use crate::lab::{Door, Lab, Server};
use crate::{nbd, tools};
use anyhow::Result;
use std::fs;
use std::path::PathBuf;

/// Size for clients: enough for one large request beside many small ones.
pub(super) const VOLUME_BYTES: u64 = 1 << 20;
/// Size of header copies and one keyslot.
const HEADER_BYTES: u64 = 1 << 20;
/// Names of the files on the disk.
const FIRST: &str = "first.img";
const SECOND: &str = "second.img";

/// Name of the dirty bitmap.
const BITMAP: &str = "daily";

/// Layers between the server and the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// A LUKS2 volume in a file.
    Volume,
    /// A LUKS2 volume in a file, with a dirty bitmap in another one.
    Tracked,
    /// A LUKS2 volume on a loop device over the file.
    Loop,
    /// Half of the volume in each of two files, not encrypted.
    Halves,
    /// The volume in chunks of 4 KiB over two files, encrypted.
    Stripes,
    /// A LUKS2 volume on an export of another server of ours, which has the file.
    Remote,
}

/// A variant.
pub(super) struct Variant {
    pub(super) name: &'static str,
    pub(super) layout: Layout,
    pub(super) sector_bytes: usize,
    pub(super) connections: u64,
    /// Arguments of `serve`.
    pub(super) serve: &'static [&'static str],
}

const fn variant(
    name: &'static str,
    layout: Layout,
    sector_bytes: usize,
    connections: u64,
    serve: &'static [&'static str],
) -> Variant {
    Variant { name, layout, sector_bytes, connections, serve }
}

/// All paths of a write and a flush.
pub(super) const VARIANTS: &[Variant] = &[
    variant("cached", Layout::Volume, 4096, 1, &[]),
    variant("cached-clients", Layout::Volume, 512, 3, &[]),
    variant("direct", Layout::Volume, 4096, 1, &["--direct"]),
    variant("direct-clients", Layout::Volume, 4096, 3, &["--direct"]),
    variant(
        "deadline",
        Layout::Volume,
        4096,
        3,
        &["--direct", "--elevator", "mq-deadline", "--queue-depth", "4"],
    ),
    variant("cfq", Layout::Volume, 4096, 2, &["--direct", "--elevator", "cfq"]),
    variant("workers", Layout::Volume, 4096, 2, &["--direct", "--threads", "2"]),
    variant("halves", Layout::Halves, 512, 3, &[]),
    variant("stripes", Layout::Stripes, 512, 3, &[]),
    variant("loop", Layout::Loop, 512, 2, &[]),
    variant("bitmap", Layout::Tracked, 512, 2, &["--dirty-granularity", "4K"]),
    variant("remote", Layout::Remote, 512, 2, &[]),
    variant("remote-direct", Layout::Remote, 4096, 3, &["--direct"]),
];

/// A variant on a disk.
pub(super) struct Setup<'a> {
    pub(super) variant: &'a Variant,
    lab: &'a Lab,
    power: &'a PowerDisk,
}

/// Running processes while the power is on. Dropped in this order: the server before its devices.
pub(super) struct Running {
    /// Servers; clients connect to the first.
    servers: Vec<Server>,
    device: Option<LoopDevice>,
}

impl Running {
    pub(super) fn server(&self) -> &Server {
        &self.servers[0]
    }

    /// Sends SIGTERM to each, front first; all must drain, flush and exit with 0.
    pub(super) fn stop(self) -> Result<()> {
        self.servers.into_iter().try_for_each(Server::stop)?;
        drop(self.device);
        Ok(())
    }

    pub(super) fn kill(self) -> Result<()> {
        self.servers.into_iter().try_for_each(Server::kill)?;
        drop(self.device);
        Ok(())
    }
}

impl<'a> Setup<'a> {
    /// Puts the variant's files on the disk.
    pub(super) fn new(variant: &'a Variant, lab: &'a Lab, power: &'a PowerDisk) -> Result<Self> {
        match variant.layout {
            Layout::Halves | Layout::Stripes => {
                for name in [FIRST, SECOND] {
                    power.with(|disk| disk.put(name, vec![0; VOLUME_BYTES as usize / 2]));
                }
            }
            Layout::Volume | Layout::Tracked | Layout::Loop | Layout::Remote => {
                let image = format(lab, variant.sector_bytes)?;
                power.with(|disk| disk.put(FIRST, image));
            }
        }
        Ok(Self { variant, lab, power })
    }

    /// Starts the processes of the variant.
    pub(super) fn start(&self) -> Result<Running> {
        let first = self.power.path(FIRST);
        let second = self.power.path(SECOND);
        let first = first.display();
        let second = second.display();
        let half = VOLUME_BYTES / 2 / 512;
        let mut running = Running { servers: Vec::new(), device: None };
        match self.variant.layout {
            Layout::Volume => running.servers.push(self.serve_luks(first.to_string())?),
            Layout::Tracked => {
                let bitmap = format!("{BITMAP}={}", self.power.path("bitmap").display());
                let control = self.lab.path("control").display().to_string();
                let tracked = ["--dirty-bitmap", &bitmap, "--control", &control];
                let options = [&tracked[..], self.variant.serve].concat();
                running.servers.push(self.serve_volume(first.to_string(), &options)?);
            }
            Layout::Loop => {
                let device = LoopDevice::attach(&self.power.path(FIRST), &[])?;
                self.lab.give(&device.path)?;
                let path = device.path.display().to_string();
                running.device = Some(device);
                running.servers.push(self.serve_luks(path)?);
            }
            Layout::Halves => {
                let table = format!("0 {half} linear {first} 0\n{half} {half} linear {second} 0\n");
                running.servers.push(self.serve_table("front", &table, self.variant.serve)?);
            }
            Layout::Stripes => {
                let whole = 2 * half;
                let key = "5a".repeat(32) + &"c3".repeat(32);
                let table = format!(
                    "stripes: 0 {whole} striped 2 8 {first} 0 {second} 0\n\
                     secret: 0 {whole} crypt aes-xts-plain64 {key} 0 /dev/mapper/stripes 0\n"
                );
                running.servers.push(self.serve_table("front", &table, self.variant.serve)?);
            }
            Layout::Remote => {
                let whole = (HEADER_BYTES + VOLUME_BYTES) / 512;
                let table = format!("0 {whole} linear {first} 0\n");
                let back = self.serve_table("back", &table, self.variant.serve)?;
                let uri = back.uri();
                running.servers.push(back);
                running.servers.insert(0, self.serve_remote(uri)?);
            }
        }
        Ok(running)
    }

    /// Makes a backup of the whole volume, and starts the server again: the bitmap on the disk is
    /// without a dirty block. Returns the backup; `None` without a bitmap.
    pub(super) fn back_up(&self, running: Running) -> Result<(Running, Option<Vec<u8>>)> {
        if self.variant.layout != Layout::Tracked {
            return Ok((running, None));
        }
        let control = self.lab.path("control");
        let step = |words: &[&str]| {
            let mut backup = self.lab.blockyard(&["backup"]);
            tools::read(backup.arg(&control).args(words))
        };
        let id = step(&["freeze"])?;
        let image = load::read(running.server().socket(), VOLUME_BYTES)?;
        step(&["done", id.trim_end()])?;
        running.stop()?;
        Ok((self.start()?, Some(image)))
    }

    /// Compares the volume with the last backup: each block that differs has to be dirty.
    pub(super) fn check_bitmap(
        &self,
        running: &Running,
        backup: &[u8],
        image: &[u8],
    ) -> Result<()> {
        let mut differs = backup.to_vec();
        for (start, len) in nbd::dirty_ranges(&running.server().uri(), BITMAP)? {
            let range = usize::try_from(start)?..usize::try_from(start + len)?;
            differs[range.clone()].copy_from_slice(&image[range]);
        }
        let lost = differs.iter().zip(image).position(|(backup, now)| backup != now);
        match lost {
            None => Ok(()),
            Some(at) => {
                Err(Broken(format!("byte {at} differs from the backup, and is clean")).into())
            }
        }
    }

    fn serve_luks(&self, image: String) -> Result<Server> {
        self.serve_volume(image, self.variant.serve)
    }

    /// The back-end server has the disk, and so the options.
    fn serve_remote(&self, uri: String) -> Result<Server> {
        self.serve_volume(uri, &[])
    }

    fn serve_volume(&self, volume: String, options: &[&str]) -> Result<Server> {
        let mut words = vec![volume, "--key-file".into(), self.lab.pass().display().to_string()];
        words.extend(options.iter().map(|word| (*word).to_owned()));
        self.lab.serve("front", &words)
    }

    fn serve_table(&self, name: &str, table: &str, options: &[&str]) -> Result<Server> {
        let file = self.lab.write(&format!("{name}.table"), table)?;
        let socket: PathBuf = self.lab.path(&format!("{name}.sock"));
        let _ = fs::remove_file(&socket);
        let mut serve = self.lab.blockyard(&["serve", "--table"]);
        serve.arg(file).args(options).arg("--socket").arg(&socket);
        self.lab.start(name, serve, Door::Unix(socket))
    }
}

/// The image of a new LUKS2 volume with sectors of this size.
fn format(lab: &Lab, sector_bytes: usize) -> Result<Vec<u8>> {
    let image = lab.path(&format!("new-{sector_bytes}.img"));
    if !image.exists() {
        let mut format = lab.blockyard(&["format", "-q", "--pbkdf", "pbkdf2"]);
        format.args(["--pbkdf-force-iterations", "1000", "--luks2-keyslots-size", "256K"]);
        format.args(["--offset", &(HEADER_BYTES / 512).to_string(), "--key-file"]).arg(lab.pass());
        format.args(["--sector-size", &sector_bytes.to_string()]);
        format.args(["--size", &(HEADER_BYTES + VOLUME_BYTES).to_string()]).arg(&image);
        tools::run(&mut format)?;
    }
    Ok(fs::read(&image)?)
}
