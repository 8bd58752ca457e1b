//! `format` and `repair` on a disk whose power is cut: a volume with a valid header must open.

use super::fuse::PowerDisk;
use super::{Broken, Tally};
use crate::lab::Lab;
use crate::random::Random;
use crate::tools;
use crate::volume::noise;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;

const IMAGE: &str = "volume.img";
const HEADER: &str = "header.img";
/// Length of the image: header area and a little data.
const IMAGE_BYTES: u64 = 2 << 20;
/// Longest header copy here; the second copy follows the first.
const OLD_COPY_BYTES: usize = 64 << 10;

/// The command that writes the header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    /// `format` of a new file.
    New,
    /// `format` with a new data file and a new header file.
    Detached,
    /// `format` over a volume with another passphrase and larger header copies.
    Over,
    /// `repair` of a volume whose second copy is damaged.
    Repair,
}

/// All jobs by name.
pub(super) const JOBS: &[(&str, Job)] = &[
    ("format-new", Job::New),
    ("format-detached", Job::Detached),
    ("format-over", Job::Over),
    ("repair", Job::Repair),
];

/// Content of a disk after a cut.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// No file, or no second file of a detached header.
    Absent,
    /// All files, and no valid header.
    Partial,
    /// A volume that opens with the old passphrase, or with the new one.
    Old,
    New,
    /// A valid header that no passphrase opens.
    Lost,
}

/// A job with its files.
pub(super) struct Headers<'a> {
    job: Job,
    lab: &'a Lab,
    power: &'a PowerDisk,
    /// The volume before the job.
    old: Vec<u8>,
    /// Number of operations of the job on the disk.
    operations: u64,
}

impl<'a> Headers<'a> {
    pub(super) fn new(job: Job, lab: &'a Lab, power: &'a PowerDisk) -> Result<Self> {
        lab.write("new-pass", "another passphrase")?;
        let image = lab.path("old.img");
        let mut format = lab.blockyard(&["format", "-q", "--luks2-metadata-size"]);
        format.arg(OLD_COPY_BYTES.to_string()).args(["--luks2-keyslots-size", "512K"]);
        format.args(["--size", &IMAGE_BYTES.to_string()]);
        tools::run(cheap(&mut format).arg("--key-file").arg(lab.pass()).arg(&image))?;
        let mut old = fs::read(&image)?;
        fs::remove_file(&image)?;
        if job == Job::Repair {
            old[OLD_COPY_BYTES + 600..][..512].copy_from_slice(&noise(1, 512));
        }
        let mut headers = Self { job, lab, power, old, operations: 0 };
        headers.prepare();
        power.arm(0, None);
        tools::run(&mut headers.command())?;
        headers.operations = power.counts().0;
        Ok(headers)
    }

    /// Leaves on the disk only the files from before the job.
    fn prepare(&self) {
        self.power.with(|disk| {
            disk.unlink(IMAGE);
            disk.unlink(HEADER);
            disk.sync_directory();
            if matches!(self.job, Job::Over | Job::Repair) {
                disk.put(IMAGE, self.old.clone());
            }
        });
    }

    /// Number of operations until the cut.
    fn cut_after(&self, random: &mut Random) -> u64 {
        if random.below(3) == 0 {
            // The end of the job, where the files get their names and the last syncs are.
            return self.operations.saturating_sub(8).max(1) + random.below(10);
        }
        // A cut after the end must keep the whole volume.
        1 + random.below(self.operations + self.operations / 4)
    }

    /// Does one cut.
    ///
    /// # Errors
    /// When the volume is in a forbidden state afterwards.
    pub(super) fn cut(&self, seed: u64, tally: &mut Tally) -> Result<()> {
        let mut random = Random::new(seed);
        let cut_after = self.cut_after(&mut random);
        self.prepare();
        self.power.arm(random.next(), Some(cut_after));
        let ended = tools::output(&mut self.command())?;
        let is_done = ended.status.success();
        ensure!(
            is_done || self.power.is_off(),
            "the command failed while the power was on: {}",
            tools::text(&ended.stderr).trim()
        );
        self.power.cut();
        tally.syncs += self.power.counts().1;
        let dropped = self.power.restore()?;
        let found = self.find()?;
        let may_be: &[Found] = match (self.job, is_done) {
            (Job::New | Job::Detached | Job::Over, true) => &[Found::New],
            // A new file has its name only as a complete volume.
            (Job::New | Job::Detached, false) => &[Found::Absent, Found::New],
            (Job::Over, false) => &[Found::Old, Found::Partial, Found::New],
            (Job::Repair, _) => &[Found::Old],
        };
        let state = if is_done { "had ended with success" } else { "was interrupted" };
        if !may_be.contains(&found) {
            let why = format!("the command {state}: {found:?} is on the disk, not {may_be:?}");
            return Err(Broken(why).into());
        }
        if is_done && self.job == Job::Repair {
            let said = tools::text(&tools::run(&mut self.command())?.stderr);
            if !said.contains("nothing to repair") {
                return Err(Broken(format!("the repair was lost: {}", said.trim())).into());
            }
        }
        tally.cuts += 1;
        tally.promises += u64::from(is_done);
        tally.lost_sectors += dropped.lost_sectors;
        Ok(())
    }

    fn command(&self) -> Command {
        let image = self.power.path(IMAGE);
        if self.job == Job::Repair {
            let mut repair = self.lab.blockyard(&["repair", "-q"]);
            repair.arg(image);
            return repair;
        }
        let mut format = self.lab.blockyard(&["format", "-q"]);
        cheap(&mut format).args(["--luks2-keyslots-size", "256K"]);
        match self.job {
            Job::Detached => {
                format.arg("--header").arg(self.power.path(HEADER));
                format.args(["--size", "64K"]);
            }
            _ => {
                format.args(["--offset", "2048", "--size", &IMAGE_BYTES.to_string()]);
            }
        }
        format.arg("--key-file").arg(self.lab.path("new-pass")).arg(image);
        format
    }

    fn find(&self) -> Result<Found> {
        let image = self.power.path(IMAGE);
        let header = match self.job {
            Job::Detached => self.power.path(HEADER),
            _ => image.clone(),
        };
        if !image.exists() || !header.exists() {
            return Ok(Found::Absent);
        }
        let is_valid = tools::output(self.lab.blockyard(&["info"]).arg(&header))?.status.success();
        if !is_valid {
            return Ok(Found::Partial);
        }
        for (key, found) in [("new-pass", Found::New), ("pass", Found::Old)] {
            if self.opens(&image, &header, &self.lab.path(key))? {
                return Ok(found);
            }
        }
        Ok(Found::Lost)
    }

    fn opens(&self, image: &Path, header: &Path, key: &Path) -> Result<bool> {
        let mut table = self.lab.blockyard(&["table"]);
        table.arg(image).arg("--key-file").arg(key);
        if self.job == Job::Detached {
            table.arg("--header").arg(header);
        }
        let opened = tools::output(&mut table).context("blockyard table")?;
        Ok(opened.status.success())
    }
}

/// Sets a very cheap key derivation.
fn cheap(format: &mut Command) -> &mut Command {
    format.args(["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"])
}
