//! The ciphers of a volume and their placement: on the submitting thread, or on workers.

use std::sync::Arc;
use std::time::Instant;

use blockyard_crypt::cipher::SectorCipher;
use blockyard_crypt::params::CryptParams;
use blockyard_engine::bio::Sector;
use blockyard_engine::dm::crypt::pipeline::{Adaptive, Choice, Pipeline, PipelineFlags, Submit};
use blockyard_engine::dm::registry::OpenedCipher;
use blockyard_engine::sq::{CipherId, DevId, Place};

use super::PipelineChoice;
use super::builder::{Builder, dev_id};
use super::control::AdaptiveStatus;
use crate::Error;
use crate::backend::{Device, KeyedCipher};
use crate::file::BackingKind;
use crate::pages::BounceChoice;
use crate::workers::{Unbound, WorkerConfig, Workers, round_trip_ns};

/// A cipher that is faster than a hand-over even for this length needs no worker.
const FAN_OUT_MAX_BYTES: u64 = 2 << 20;
/// Minimum length of parts in the relevant cases: a piece of I/O.
const PART_BYTES: u64 = 64 << 10;

/// Placement of the ciphers of all lines.
#[derive(Default)]
pub(super) struct Placement {
    workers: WorkerConfig,
    /// A job of a worker may write to a file or disk, and wait for it.
    waits_for_disks: bool,
    /// Workers also get the pieces of a connection, not only longer bios.
    pub(super) fans_out_pieces: bool,
    /// Minimum length of bios whose cipher placement depends on the load; `None` without such bios.
    pub(super) asks_load_from: Option<Sector>,
    /// Bytes of short requests together that pay for a hand-over.
    pub(super) batches_from_bytes: Option<u64>,
}

impl Placement {
    pub(super) fn workers(&self) -> Option<Arc<Workers>> {
        let of = if self.waits_for_disks { Workers::start } else { Workers::shared };
        (self.workers != WorkerConfig::default()).then(|| of(self.workers))
    }
}

impl Builder<'_> {
    /// The cipher of a line on this device.
    pub(super) fn cipher(
        &mut self,
        dev: DevId,
        params: &CryptParams,
    ) -> Result<OpenedCipher, Error> {
        let cipher = KeyedCipher::new(params)?;
        let name = format!(
            "{}{}, {}-bit key, {}-byte sectors",
            params.cipher,
            if cipher.is_table_based() { " (table-based)" } else { "" },
            params.key.len() * 8,
            params.sector_size_bytes
        );
        if !self.names.contains(&name) {
            self.names.push(name);
        }
        let allow_discards = params.flags.allow_discards || self.options.allow_discards;
        self.tears_sectors |= !is_local(&params.cipher);
        let flags = PipelineFlags {
            same_cpu_crypt: params.flags.same_cpu_crypt,
            submit_from_crypt_cpus: params.flags.submit_from_crypt_cpus,
            no_read_workqueue: params.flags.no_read_workqueue,
            no_write_workqueue: params.flags.no_write_workqueue,
        };
        let pipeline = self.pipeline(dev, &cipher, flags)?;
        let id = CipherId(dev_id(self.backend.ciphers.len()).0);
        self.backend.ciphers.push(cipher);
        let fuses = matches!(self.options.bounce, BounceChoice::Fastest)
            && dev.below().is_none()
            && fuses(&self.backend.devices[usize::from(dev.0)]);
        Ok(OpenedCipher { id, allow_discards, fuses, pipeline })
    }

    /// Chooses the pipeline of a line, and provides the workers that it needs.
    fn pipeline(
        &mut self,
        dev: DevId,
        cipher: &SectorCipher,
        flags: PipelineFlags,
    ) -> Result<Choice, Error> {
        let threads = self.options.worker_threads;
        let fixed = match self.options.pipeline {
            PipelineChoice::Adaptive => None,
            PipelineChoice::Linux => Some(Pipeline::from_options(flags)),
            PipelineChoice::Fixed(pipeline) => Some(pipeline),
        };
        if let Some(pipeline) = fixed {
            let runs = |place| pipeline.read == place || pipeline.write == place;
            if runs(Place::Unbound) {
                if threads == Some(0) {
                    let problem = "this pipeline hands ciphers to them, and there are to be none; \
                                   allow one (`worker_threads` 1), or take the `pipeline` inline";
                    return Err(Error::parameter("cipher workers", problem));
                }
                let unbound = threads.map_or(Unbound::EachCpu, Unbound::Number);
                self.placement.workers.unbound = self.placement.workers.unbound.max(unbound);
            }
            self.placement.workers.bound |= runs(Place::SameCpu);
            self.placement.waits_for_disks |=
                pipeline.write != Place::Inline && pipeline.submit == Submit::WhereEncrypted;
            self.placement.fans_out_pieces |= runs(Place::Unbound) || runs(Place::SameCpu);
            return Ok(Choice::Fixed(pipeline));
        }
        let cipher_ns = measured_ns(cipher);
        // A lone bio whose cipher takes less than a hand-over stays on its thread.
        let hand_over_ns = round_trip_ns();
        let pays_from_bytes = (hand_over_ns * PART_BYTES / cipher_ns).next_multiple_of(4096);
        let pays = pays_from_bytes <= FAN_OUT_MAX_BYTES;
        let workers = match threads {
            Some(number) => Unbound::Number(number),
            // With one CPU there is none yet: the CPUs of a container may grow.
            None if pays => Unbound::EachCpuButOne,
            None => Unbound::Number(0),
        };
        let has_workers = workers != Unbound::Number(0);
        self.placement.workers.unbound = self.placement.workers.unbound.max(workers);
        // An explicit number of workers enables them.
        let least =
            if threads.is_some() { pays_from_bytes.min(PART_BYTES) } else { pays_from_bytes };
        self.placement.fans_out_pieces |= has_workers && least <= PART_BYTES;
        let fan_out_min_bytes = has_workers.then_some(least as u32);
        let device = dev.below().is_none().then(|| &self.backend.devices[usize::from(dev.0)]);
        let queues = device.is_none_or(Device::has_queue);
        // Writes through the page cache are sorted by the kernel.
        let seeks = device.is_some_and(|device| queues && device.file.facts().rotational);
        let part_bytes = PART_BYTES;
        self.described.adaptive.push(AdaptiveStatus {
            cipher_ns,
            part_bytes,
            hand_over_ns,
            fan_out_min_bytes,
            seeks,
        });
        let adaptive = Adaptive { fan_out_min_bytes, seeks, queues };
        let asks_from = adaptive.asks_load_from_bytes().map(Sector::holding);
        self.placement.asks_load_from =
            self.placement.asks_load_from.into_iter().chain(asks_from).min();
        let batches_from = fan_out_min_bytes.map(u64::from);
        self.placement.batches_from_bytes =
            self.placement.batches_from_bytes.into_iter().chain(batches_from).min();
        Ok(Choice::Adaptive(adaptive))
    }
}

/// Measured time of the cipher for [`PART_BYTES`]: the minimum of a few runs, because others were
/// interrupted.
fn measured_ns(cipher: &SectorCipher) -> u64 {
    let mut part = vec![0; PART_BYTES as usize];
    let mut measure = || {
        let start = Instant::now();
        cipher.encrypt_in_place(&mut part, 0);
        start.elapsed().as_nanos().max(1) as u64
    };
    (0..5).map(|_| measure()).min().unwrap_or(1)
}

/// Whether a cipher can run directly on its pages.
fn fuses(device: &Device) -> bool {
    device.file.kind() == BackingKind::Tmpfs
}

/// Whether a change in a sector changes only the cipher blocks (at most 16 bytes) with the changed
/// bytes. True for modes without chaining.
fn is_local(cipher: &str) -> bool {
    let words = cipher.split(|c: char| !c.is_ascii_alphanumeric());
    let mut modes = words.filter(|word| ["xts", "ctr", "ecb", "lrw"].contains(word));
    // The elephant diffuser spreads over the whole sector.
    modes.next().is_some() && !cipher.contains("elephant")
}

#[cfg(test)]
mod tests {
    use blockyard_crypt::secret::SecretBytes;

    use super::*;
    use crate::cpus;
    use crate::file::{Access, DeviceFile};
    use crate::stages::{self, Work};
    use crate::volume::{Volume, VolumeOptions};

    /// Number of the pool of a new volume with this pipeline and two workers.
    fn volume(pipeline: &str) -> (Volume, Option<u64>) {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        let pipeline = PipelineChoice::parse(pipeline).unwrap();
        let options = VolumeOptions { pipeline, worker_threads: Some(2), ..Default::default() };
        let file = DeviceFile::open(image.path(), Access::ReadWrite, false).unwrap();
        let params = CryptParams::new("aes-xts-plain64", SecretBytes::copy_of(&[7; 32]));
        let volume = Volume::from_crypt(file, &params, &options).unwrap();
        let workers = volume.threads().into_iter().find(|all| all.work == Work::Workers);
        (volume, workers.and_then(|workers| workers.pool))
    }

    #[test]
    fn volumes_share_workers_unless_the_workers_write_and_could_wait_for_a_disk() {
        for (shares, pipeline) in
            [(true, "G"), (true, "linux"), (false, "E"), (false, "write=same,submit=encrypting")]
        {
            let (_one, first) = volume(pipeline);
            let (_other, second) = volume(pipeline);
            assert!(first.is_some(), "{pipeline}");
            assert_eq!(first == second, shares, "{pipeline}");
        }
    }

    #[test]
    fn volume_that_is_opened_on_one_cpu_gets_workers_when_others_come() {
        let all = cpus::allowed();
        let opens = move || {
            cpus::run_on(&all[..1]).unwrap();
            let image = tempfile::NamedTempFile::new().unwrap();
            image.as_file().set_len(1 << 20).unwrap();
            let file = DeviceFile::open(image.path(), Access::ReadWrite, false).unwrap();
            let params = CryptParams::new("aes-xts-plain64", SecretBytes::copy_of(&[7; 32]));
            let volume = Volume::from_crypt(file, &params, &VolumeOptions::default()).unwrap();
            let workers = volume.parts.workers.as_ref().expect("they may come");
            assert_eq!(workers.usage().1, 0);
            cpus::run_on(&all).unwrap();
            workers.miscount_cpus();
            workers.count_cpus(stages::now());
            assert_eq!(workers.usage().1, all.len() - 1);
        };
        std::thread::spawn(opens).join().unwrap();
    }

    #[test]
    fn modes_that_chain_or_diffuse_are_not_local() {
        for local in
            ["aes-xts-plain64", "capi:xts(aes)-plain64", "serpent-ctr-plain", "aes-lrw-benbi"]
        {
            assert!(is_local(local), "{local}");
        }
        for torn in [
            "aes-cbc-essiv:sha256",
            "xchacha12,aes-adiantum-plain64",
            "aes-plain",
            "aes-cbc-elephant",
        ] {
            assert!(!is_local(torn), "{torn}");
        }
    }
}
