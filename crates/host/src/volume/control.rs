//! The control side of a volume: `dmsetup`'s suspend, resume, message and status.
//!
//! ```text
//!             suspend               key wipe
//!   active ───────────> suspended ───────────> suspended, without a key
//!          <───────────           <───────────
//!             resume                key set          resume: EAGAIN
//! ```
//! Messages of dm-crypt go to the crypt line at a sector, and only while the volume is suspended;
//! messages of dm-mpath only while it is active. Errors have the kernel's names (`crypt_message`,
//! `crypt_preresume`, `multipath_message`).

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::bio::{Op, Sector};
use blockyard_engine::dm::bounce::Bounce;
use blockyard_engine::dm::control::MessageError;
use blockyard_engine::dm::crypt::CryptSpec;
use blockyard_engine::dm::crypt::pipeline::{Choice, PRESETS};
use blockyard_engine::dm::multipath::status::failed_paths;
use blockyard_engine::dm::table::{Table, TableExtent, TargetFacts};
use blockyard_engine::shard::Shard;
use blockyard_engine::sq::CipherId;
use blockyard_engine::time::Nanos;

use super::Volume;
use crate::backend::Device;
use crate::device_thread::{Asked, DeviceThread};
use crate::dirty_bitmap::{BackupId, BackupStep};
use crate::durability::Loss;
pub use crate::gate::{Counts, Errors};
use crate::gate::{Gate, Order};
use crate::protect::{ProtectSpec, RefusedWrite};

/// Time limit for bios in flight. Only an unresponsive device exceeds it, because no action of a
/// client keeps a bio in flight.
const SUSPEND_LIMIT: Duration = Duration::from_secs(30);

/// A refusal, with the kernel's error name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {problem}")]
pub struct ControlError {
    /// Name from errno(3).
    pub name: &'static str,
    /// Description.
    pub problem: String,
}

fn invalid(problem: impl Into<String>) -> ControlError {
    ControlError { name: "EINVAL", problem: problem.into() }
}

fn no_such_message(sector: u64, facts: &TargetFacts) -> ControlError {
    let takes = match facts {
        TargetFacts { cipher: Some(_), .. } => "is of crypt, which takes `key set` and `key wipe`",
        TargetFacts { has_control: true, .. } => "has no key",
        _ => "takes no messages",
    };
    invalid(format!("the line at sector {sector} {takes}"))
}

/// A message for a line.
#[derive(Debug)]
pub enum Message {
    /// A message for a target with a control path, in its syntax.
    Target(String),
    /// `key set`: the new key, as long as the previous one.
    KeySet(SecretBytes),
    /// `key wipe`: I/O fails until a key is set.
    KeyWipe,
}

/// Parameters of a crypt line with the adaptive pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveStatus {
    /// Measured time of the cipher for [`AdaptiveStatus::part_bytes`].
    pub cipher_ns: u64,
    /// Length of the measured part.
    pub part_bytes: u64,
    /// Assumed cost of a hand-over to a worker and back.
    pub hand_over_ns: u64,
    /// Minimum length that goes to workers if CPUs are idle; `None` without workers.
    pub fan_out_min_bytes: Option<u32>,
    /// Requests reach a rotational device, so writes are sorted.
    pub seeks: bool,
}

/// State of a volume.
// 13 fields: one for each fact that `status` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Bios wait.
    pub is_suspended: bool,
    /// Every crypt line has its key.
    pub has_keys: bool,
    /// Table lines, like `dmsetup table`, with keys hidden.
    pub table: String,
    /// Status lines, like `dmsetup status`.
    pub targets: String,
    /// Distinct pipelines of its crypt lines.
    pub pipelines: Vec<String>,
    /// Crypt lines with the adaptive pipeline.
    pub adaptive: Vec<AdaptiveStatus>,
    /// The failure after which flushes and writes fail.
    pub loss: Option<Loss>,
    /// The write to protected sectors after which writes fail.
    pub refused_write: Option<RefusedWrite>,
    /// Counts of all connections since the volume was opened.
    pub counts: Counts,
    /// Paths of multipath lines.
    pub paths: Paths,
    /// Servers without a connection.
    pub lost_servers: Vec<LostServer>,
    /// Failed bios of all connections since the volume was opened.
    pub errors: Errors,
    /// Current number of connections.
    pub connections: usize,
}

/// Paths of all multipath lines of the table that clients see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// Number.
    pub total: usize,
    /// Number of failed ones, as the connection sees it that has lost most.
    pub failed: usize,
}

/// A remote server without a connection. Requests wait for it, or fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostServer {
    /// Name of the device.
    pub device: PathBuf,
    /// It is one of several paths to a disk.
    pub is_path: bool,
    /// Start of the outage.
    pub since: SystemTime,
}

/// Description of a volume when it was opened.
#[derive(Default)]
pub(super) struct Described {
    pub(super) table: String,
    pub(super) targets: String,
    pub(super) adaptive: Vec<AdaptiveStatus>,
    /// Of the table with its keys; see `identity`.
    pub(super) digest: [u8; 32],
}

/// Serialises state changes, and tracks valid keys.
pub(super) struct Keys {
    /// Held during a state change, for as long as bios take to end.
    turn: Mutex<()>,
    /// By number of the cipher. Locked only briefly, so that `status` never waits.
    valid: Mutex<Vec<bool>>,
}

impl Keys {
    pub(super) fn all_valid(count: usize) -> Self {
        Self { turn: Mutex::default(), valid: Mutex::new(vec![true; count]) }
    }
}

impl Volume {
    fn gate(&self) -> Result<&Gate, ControlError> {
        let gate = self.parts.gate.as_deref().filter(|gate| gate.is_controlled());
        gate.ok_or_else(|| invalid("the volume was opened without control"))
    }

    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        self.keys.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn valid_keys(&self) -> MutexGuard<'_, Vec<bool>> {
        self.keys.valid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a close ends no state that somebody waits for: it is not suspended, no backup runs,
    /// and no acknowledged write may be lost.
    pub(crate) fn may_be_closed(&self) -> bool {
        let is_suspended = self.parts.gate.as_ref().is_some_and(|gate| gate.is_closed());
        let has_backup = self.parts.dirty.as_ref().is_some_and(|dirty| dirty.is_frozen());
        !is_suspended && !has_backup && self.parts.durability.loss().is_none()
    }

    /// Begins the close of a volume that [may be closed](Self::may_be_closed): from now on a
    /// suspend is refused. Returns false if a suspend was first.
    pub(crate) fn begin_close(&self) -> bool {
        self.parts.gate.as_ref().is_none_or(|gate| gate.stay_open())
    }

    /// Takes [`Volume::begin_close`] back.
    pub(crate) fn cancel_close(&self) {
        self.parts.gate.iter().for_each(|gate| gate.may_close());
    }

    /// Makes new bios wait, and returns when those in flight have ended.
    ///
    /// # Errors
    /// The bios do not end within the limit, or a user of the volume does not wait; the state is
    /// then unchanged.
    pub fn suspend(&self) -> Result<(), ControlError> {
        let _turn = self.turn();
        if let Some(&problem) = self.suspend_refusal.get() {
            return Err(invalid(problem));
        }
        let gate = self.gate()?;
        if gate.close(SUSPEND_LIMIT) {
            return Ok(());
        }
        if gate.has_ended() {
            let problem = "the volume is being closed".into();
            return Err(ControlError { name: "EBUSY", problem });
        }
        Err(ControlError {
            name: "EBUSY",
            problem: format!(
                "bios are in flight still after {} s, perhaps because a device does not answer; \
                 the volume goes on",
                SUSPEND_LIMIT.as_secs()
            ),
        })
    }

    /// Refuses [`Volume::suspend`] from now on, for this reason.
    pub(crate) fn refuse_suspend(&self, problem: &'static str) {
        // The first reason is enough.
        let _ = self.suspend_refusal.set(problem);
    }

    /// Wakes the connections: the limits of their rate have changed.
    pub fn limits_changed(&self) {
        self.parts.gate.iter().for_each(|gate| gate.wake_all());
    }

    /// Continues waiting bios. With `accept_loss`, flushes and writes work again after a failure;
    /// otherwise they continue to fail, and the failure is returned.
    ///
    /// # Errors
    /// A crypt line has no valid key, or `accept_loss` is set on an active volume.
    pub fn resume(&self, accept_loss: bool) -> Result<Option<Loss>, ControlError> {
        let _turn = self.turn();
        if self.valid_keys().contains(&false) {
            let problem = "a crypt line has no valid key; send the message `key set` first";
            return Err(ControlError { name: "EAGAIN", problem: problem.into() });
        }
        let gate = self.gate()?;
        if accept_loss && self.parts.durability.loss().is_some() {
            if !gate.is_closed() {
                let problem = "a loss is accepted while nothing is in flight; suspend the volume \
                               first";
                return Err(invalid(problem));
            }
            self.parts.backend.devices.iter().for_each(|device| device.file.forget_errors());
            self.parts.durability.accept();
            // Blocks may have lost what the last backup has.
            self.parts.dirty.iter().for_each(|dirty| dirty.mark_all());
        }
        gate.open();
        Ok(self.parts.durability.loss())
    }

    /// Takes a step of a backup; returns its number.
    ///
    /// # Errors
    /// The volume has no dirty bitmap, a backup runs already, or another one than that to end.
    pub fn backup(&self, step: BackupStep) -> Result<BackupId, ControlError> {
        let dirty = self.parts.dirty.as_ref().ok_or_else(|| {
            invalid("the volume has no dirty bitmap; start the server with --dirty-bitmap")
        })?;
        dirty.step(step).map_err(invalid)
    }

    /// Sends a message to the line at `sector`.
    ///
    /// # Errors
    /// The line does not accept it. Crypt: the volume is active, or the key does not fit.
    /// Multipath: the volume is suspended, or the message is invalid.
    pub fn message(&self, sector: u64, message: &Message) -> Result<(), ControlError> {
        let _turn = self.turn();
        if let Message::Target(text) = message {
            return self.target_message(sector, text);
        }
        if !self.gate()?.is_closed() {
            return Err(invalid(
                "the volume is not suspended; a key changes only during a suspend",
            ));
        }
        let number = usize::from(self.cipher_at(sector)?.0);
        let cipher = &self.parts.backend.ciphers[number];
        let len_bytes = cipher.key_len_bytes();
        let (key, is_valid) = match message {
            Message::Target(_) => unreachable!("sent above"),
            Message::KeyWipe => (random_key(len_bytes)?, false),
            Message::KeySet(key) if key.len() != len_bytes => {
                return Err(invalid(format!(
                    "the key has {} bytes, but that of this line has {len_bytes}; the size of a \
                     key never changes",
                    key.len()
                )));
            }
            Message::KeySet(key) => (key.clone(), true),
        };
        let made = cipher.with_key(&key).map_err(|error| invalid(error.to_string()))?;
        // SAFETY: the gate is closed and no shard is busy, until this releases the turn.
        unsafe { cipher.replace(made) };
        // Every block has other plaintext now.
        self.parts.dirty.iter().for_each(|dirty| dirty.mark_all());
        self.valid_keys()[number] = is_valid;
        Ok(())
    }

    fn target_message(&self, sector: u64, text: &str) -> Result<(), ControlError> {
        let gate = self.gate()?;
        let table = self.parts.table.get();
        let (number, extent) = line_of(&table, sector)?;
        if !extent.facts().has_control {
            return Err(no_such_message(sector, extent.facts()));
        }
        let suspended =
            || ControlError { name: "EBUSY", problem: MessageError::Suspended.to_string() };
        if gate.is_closed() {
            return Err(suspended());
        }
        // The line alone decides whether the message is valid.
        fresh(extent).message(Nanos(0), 0, text).map_err(|error| match error {
            MessageError::Suspended => suspended(),
            MessageError::Invalid(problem) => invalid(problem),
        })?;
        gate.tell(&Order::Message(number, text.to_owned()));
        Ok(())
    }

    /// The cipher of the crypt line at a sector, or of a crypt line below whose range contains the
    /// whole line.
    fn cipher_at(&self, sector: u64) -> Result<CipherId, ControlError> {
        let top = self.parts.table.get();
        let layers: Vec<&Table> = top.layers().collect();
        let mut table = &*top;
        let mut at = sector;
        loop {
            let (_, extent) = line_of(table, at)?;
            let window = extent.facts().plain_window();
            let below = window.and_then(|area| Some((area.dev.below()?, area.start)));
            match (extent.facts().cipher, below) {
                (Some(cipher), _) => return Ok(cipher),
                (_, Some((number, start))) => {
                    at = at - extent.start.0 + start.0;
                    table = layers[number];
                }
                (None, None) => return Err(no_such_message(sector, extent.facts())),
            }
        }
    }

    /// Status lines. Each connection has its own path states, so a multipath line appears once for
    /// each distinct state.
    fn targets(&self) -> String {
        let table = self.parts.table.get();
        let described = with_length(&self.described.targets, &table);
        let lines: Vec<&str> = described.lines().collect();
        let (below, top) = lines.split_at(lines.len() - table.extents().len());
        let mut text: String = below.iter().map(|line| format!("{line}\n")).collect();
        for (line, number) in top.iter().zip(0..) {
            let mut infos = self.info(&table, number);
            infos.sort();
            infos.dedup();
            for info in &infos {
                text.push_str(&format!("{line} {}\n", info.trim_end()));
            }
            if infos.is_empty() {
                text.push_str(&format!("{line}\n"));
            }
        }
        text
    }

    /// The distinct states of a line with a control path over all connections; without connections,
    /// its initial state.
    fn info(&self, table: &Table, number: u16) -> Vec<String> {
        let extent = &table.extents()[usize::from(number)];
        let gate = self.parts.gate.as_ref().filter(|_| extent.facts().has_control);
        let Some(gate) = gate else { return Vec::new() };
        let mut infos = gate.info(number);
        if infos.is_empty() {
            let mut shard = fresh(extent);
            for order in gate.messages() {
                if let Order::Message(to, text) = order
                    && to == number
                {
                    // Each was valid alone. One that is not after the others has no effect, as on
                    // the shards.
                    let _ = shard.message(Nanos(0), 0, &text);
                }
            }
            infos.extend(shard.status(0).map(|status| status.info));
        }
        infos
    }

    fn paths(&self, table: &Table) -> Paths {
        let mut paths = Paths::default();
        for (line, number) in table.extents().iter().zip(0..) {
            let total = line.facts().paths.len();
            if total > 0 {
                let infos = self.info(table, number);
                paths.total += total;
                paths.failed += infos.iter().map(|info| failed_paths(info)).max().unwrap_or(0);
            }
        }
        paths
    }

    fn lost_servers(&self) -> Vec<LostServer> {
        let lost = |device: &Device| {
            let since = device.file.remote()?.lost_since()?;
            let is_path = device.is_path;
            Some(LostServer { device: device.file.path().to_owned(), is_path, since })
        };
        self.parts.backend.devices.iter().filter_map(lost).collect()
    }

    /// The current state.
    #[must_use]
    pub fn status(&self) -> Status {
        let (counts, connections) = match &self.parts.gate {
            Some(gate) => gate.counts(),
            None => (Counts::default(), 0),
        };
        let mut pipelines: Vec<String> = Vec::new();
        let loaded = self.parts.table.get();
        for extent in loaded.layers().flat_map(|layer| layer.extents()) {
            if let Some(spec) = extent.target().downcast::<CryptSpec>() {
                let text = pipeline_text(&spec.pipeline);
                if !pipelines.contains(&text) {
                    pipelines.push(text);
                }
            }
        }
        Status {
            is_suspended: self.parts.gate.as_ref().is_some_and(|gate| gate.is_closed()),
            has_keys: !self.valid_keys().contains(&false),
            table: with_length(&self.described.table, &loaded),
            targets: self.targets(),
            pipelines,
            adaptive: self.described.adaptive.clone(),
            loss: self.parts.durability.loss(),
            refused_write: refused_write(&loaded),
            paths: self.paths(&loaded),
            lost_servers: self.lost_servers(),
            counts,
            errors: self.parts.gate.as_ref().map(|gate| gate.errors()).unwrap_or_default(),
            connections,
        }
    }

    /// At the end of the server, waiting bios fail instead of waiting for a resume or a remote
    /// server. Asks all remote servers for a sign of life at once: a server without one within its
    /// time limit counts as away afterwards.
    pub(crate) fn stop(&self) -> Vec<Asked<'_>> {
        if let Some(gate) = &self.parts.gate {
            gate.stop();
        }
        self.parts.backend.device_threads().for_each(DeviceThread::end_waiting);
        let asked =
            self.parts.backend.devices.iter().filter_map(|device| device.ask(Op::Read)?.ok());
        asked.collect()
    }
}

/// The write that a `protect` line has refused.
fn refused_write(table: &Table) -> Option<RefusedWrite> {
    let mut lines = table.layers().flat_map(Table::extents);
    lines.find_map(|line| line.target().downcast::<ProtectSpec>()?.refused())
}

/// A shard of one line with a control path, without I/O: it has the state of a new connection.
fn fresh(extent: &TableExtent) -> Shard {
    let mut extent = extent.clone();
    extent.start = Sector(0);
    let least = Bounce::Slots { slots: 1, slot_bytes: 4096 };
    Shard::new(&Table::new(vec![extent]), least).expect("there are no pages to run out of")
}

/// The text of a table with its present length: the only line of a volume may have grown.
fn with_length(text: &str, table: &Table) -> String {
    let mut words = text.splitn(3, ' ');
    match (words.next(), words.next(), words.next(), table.extents()) {
        (Some("0"), Some(_), Some(rest), [line]) => format!("0 {} {rest}", line.len.0),
        _ => text.to_owned(),
    }
}

/// The line of a table at a sector, and its number.
fn line_of(table: &Table, sector: u64) -> Result<(u16, &TableExtent), ControlError> {
    let is_it =
        |extent: &TableExtent| extent.start.0 <= sector && sector < (extent.start + extent.len).0;
    let found = (0..).zip(table.extents()).find(|(_, extent)| is_it(extent));
    found.ok_or_else(|| invalid(format!("sector {sector} is outside of the volume")))
}

/// All names of a pipeline, and its fields; some presets are equal.
fn pipeline_text(choice: &Choice) -> String {
    let Choice::Fixed(pipeline) = choice else { return "adaptive".into() };
    let same = PRESETS.iter().filter(|preset| preset.pipeline == *pipeline);
    let names: Vec<&str> = same.map(|preset| preset.name).collect();
    if names.is_empty() {
        pipeline.to_string()
    } else {
        format!("{}: {pipeline}", names.join(" = "))
    }
}

fn random_key(len_bytes: usize) -> Result<SecretBytes, ControlError> {
    let mut key = SecretBytes::zeroed(len_bytes);
    let mut filled = 0;
    while filled < len_bytes {
        let rest = &mut key.as_mut_slice()[filled..];
        match rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty()) {
            Ok(len) => filled += len,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                let problem = format!("the system gives no random bytes: {error}");
                return Err(ControlError { name: "EIO", problem });
            }
        }
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use blockyard_engine::bio::{Bio, Sector};
    use blockyard_engine::buf::BufRef;

    use super::super::VolumeOptions;
    use super::*;
    use crate::file::DeviceFile;
    use crate::gate::ShardGate;

    #[test]
    fn status_answers_while_a_suspend_waits_for_a_bio() {
        let options = VolumeOptions { controlled: true, ..VolumeOptions::default() };
        let file = DeviceFile::in_memory(1 << 20).unwrap();
        let volume = Volume::from_file(file, &options).unwrap();
        let mut shard = ShardGate::new(volume.parts.gate.as_ref().unwrap()).unwrap();
        assert!(shard.admit(&Bio::new(Op::Write, Sector(0), Sector(8), BufRef::NONE, 1)));
        std::thread::scope(|scope| {
            let suspending = scope.spawn(|| volume.suspend());
            while !volume.status().is_suspended {
                assert!(!suspending.is_finished(), "the status came when the suspend had ended");
            }
            assert!(!suspending.is_finished());
            shard.left();
            suspending.join().unwrap().unwrap();
        });
    }
    #[test]
    fn key_of_a_crypt_line_below_another_device_is_wiped_and_set() {
        let key = "0123456789abcdef0123456789abcdeffedcba9876543210fedcba9876543210";
        let table = format!(
            "memory: 0 64 ram\n\
             secret: 0 64 crypt aes-xts-plain64 {key} 0 /dev/mapper/memory 0\n\
             part: 0 32 linear /dev/mapper/secret 32\n\
             top: 0 8 zero\ntop: 8 32 linear /dev/mapper/part 0\n"
        );
        let options = VolumeOptions { controlled: true, ..VolumeOptions::default() };
        let volume = Volume::from_table(&SecretBytes::copy_of(table.as_bytes()), &options).unwrap();
        volume.suspend().unwrap();
        let refused = volume.message(0, &Message::KeyWipe).unwrap_err().to_string();
        assert!(refused.contains("sector 0 takes no messages"), "{refused}");
        assert!(volume.status().has_keys);
        volume.message(8, &Message::KeyWipe).unwrap();
        assert!(!volume.status().has_keys);
        assert_eq!(volume.resume(false).unwrap_err().name, "EAGAIN");
        volume.message(39, &Message::KeySet(SecretBytes::copy_of(&[7; 32]))).unwrap();
        assert_eq!(volume.resume(false), Ok(None));
    }
}
