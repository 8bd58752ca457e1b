//! Pipelines as data: where the cipher runs, which thread submits, in which order, with which
//! io-context.
//!
//! ```text
//!   write ─ encrypt: Inline | SameCpu | Unbound ─┬─ WhereEncrypted ────────────────────┐
//!                                                └─ Thread ─ batch: Fifo | Sorted ─────┴─> device
//!   read ── device ── decrypt: Inline | SameCpu | Unbound ──> end
//! ```
//!
//! As text a pipeline is the name of a preset, or its fields (flags.rs). The fields are those that
//! the patches of 2013 (Mikulas Patocka, dm-devel) changed one by one, and that the options of a
//! table line change today. Presets are measured variants.

use crate::bio::{IoContext, Op};
use crate::sq::{Direction, Place};

/// Order in which a thread submits the writes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The order in which their encryption ended.
    Fifo,
    /// By sector, equal sectors in the order in which their encryption ended.
    Sorted,
}

/// Submitter of encrypted writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submit {
    /// The encrypting CPU, each write at once (`submit_from_crypt_cpus`).
    WhereEncrypted,
    /// One thread, with all writes since its last run (`dmcrypt_write`).
    Thread(Order),
}

/// Io-context of encrypted writes. Priority and sync are always the original bio's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// The submitting task: a worker, or the writing thread.
    Task,
    /// The submitter of the original bio.
    Submitter,
}

impl Context {
    /// The io-context of a write by `submitter`.
    #[must_use]
    pub fn of(self, submitter: IoContext) -> IoContext {
        match self {
            Self::Task => IoContext::OF_TASK,
            Self::Submitter => submitter,
        }
    }
}

/// Path of the parts of a crypt target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// Place of decryption.
    pub read: Place,
    /// Place of encryption.
    pub write: Place,
    /// Submitter of encrypted writes.
    pub submit: Submit,
    /// Io-context of encrypted writes.
    pub context: Context,
    /// Longest part of a read in bytes (`max_read_size`); `None`: limited by the device only.
    pub max_read_bytes: Option<u32>,
    /// Longest part of a write in bytes (`max_write_size`); `None`: limited by the device only.
    pub max_write_bytes: Option<u32>,
}

/// A named pipeline.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Name for users.
    pub name: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// The pipeline.
    pub pipeline: Pipeline,
}

const fn preset(name: &'static str, about: &'static str, pipeline: Pipeline) -> Preset {
    Preset { name, about, pipeline }
}

const BOUND: Pipeline = Pipeline {
    read: Place::SameCpu,
    write: Place::SameCpu,
    submit: Submit::WhereEncrypted,
    context: Context::Task,
    max_read_bytes: None,
    max_write_bytes: None,
};
const UNBOUND: Pipeline = Pipeline { read: Place::Unbound, write: Place::Unbound, ..BOUND };
const OFFLOADED: Pipeline = Pipeline { submit: Submit::Thread(Order::Fifo), ..UNBOUND };
const SORTED: Pipeline = Pipeline { submit: Submit::Thread(Order::Sorted), ..UNBOUND };
/// The kernel splits requests since 6.11, so that several CPUs share a large one.
const TODAY: Pipeline =
    Pipeline { max_read_bytes: Some(128 << 10), max_write_bytes: Some(128 << 10), ..SORTED };
const INLINE: Pipeline = Pipeline { read: Place::Inline, write: Place::Inline, ..BOUND };

/// The measured pipelines.
pub static PRESETS: &[Preset] = &[
    preset("A", "2015, upstream then: each CPU encrypts and submits its own writes", BOUND),
    preset("D", "2015: A with three clean-ups that leave the pipeline unchanged", BOUND),
    preset("E", "2015: any CPU encrypts and submits", UNBOUND),
    preset("F", "2015: E, and one thread submits", OFFLOADED),
    preset("G", "2015: F, and it sorts", SORTED),
    preset("2013-1", "2013: per-request state; each CPU keeps its own writes", BOUND),
    preset("2013-2", "2013: any CPU encrypts and submits", UNBOUND),
    preset("2013-3", "2013: one thread submits", OFFLOADED),
    preset("2013-4", "2013: one thread submits, sorted", SORTED),
    preset(
        "2013-reply",
        "2013-2 with the submitter's io-context, as the reply to the mail asks",
        Pipeline { context: Context::Submitter, ..UNBOUND },
    ),
    preset("linux-today", "any CPU, one thread, sorted, parts of 128 KiB", TODAY),
    preset("inline", "no worker, no thread: no_read_workqueue and no_write_workqueue", INLINE),
];

/// The options of a crypt line that select the kernel's pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "they are words of the line")]
pub struct PipelineFlags {
    /// `same_cpu_crypt`: encrypt on the submitting CPU.
    pub same_cpu_crypt: bool,
    /// `submit_from_crypt_cpus`: no writer thread.
    pub submit_from_crypt_cpus: bool,
    /// `no_read_workqueue`.
    pub no_read_workqueue: bool,
    /// `no_write_workqueue`.
    pub no_write_workqueue: bool,
}

/// The preset with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

impl Pipeline {
    /// The pipeline of today's kernel for the options of a table line.
    #[must_use]
    pub fn from_options(flags: PipelineFlags) -> Self {
        let mut pipeline = TODAY;
        if flags.same_cpu_crypt {
            (pipeline.read, pipeline.write) = (Place::SameCpu, Place::SameCpu);
        }
        if flags.submit_from_crypt_cpus {
            pipeline.submit = Submit::WhereEncrypted;
        }
        if flags.no_read_workqueue {
            pipeline.read = Place::Inline;
        }
        if flags.no_write_workqueue {
            (pipeline.write, pipeline.submit) = (Place::Inline, Submit::WhereEncrypted);
        }
        pipeline
    }
}

/// Parameters of the adaptive pipeline for a volume, measured when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adaptive {
    /// Least bytes at once that pay for a hand-over to a worker and back; `None` without workers.
    pub fan_out_min_bytes: Option<u32>,
    /// Whether the device has a moving head and gets requests in the order of submission.
    pub seeks: bool,
    /// Whether the device queues requests and completes them later. Otherwise it executes a write
    /// as an immediate copy.
    pub queues: bool,
}

/// Current load, as far as the world knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Number of CPUs without a submitter.
    pub idle_cpus: u16,
    /// Bytes at workers, of all shards.
    pub fanned_out_bytes: u64,
    /// Bytes that go to the cipher together: those of a bio, or of all reads with arrived data.
    pub at_once_bytes: u64,
    /// Bytes of the short requests that their submitter has in flight together, if it has been busy
    /// with such requests for longer than a hand-over takes; otherwise 0.
    pub together_bytes: u64,
    /// Whether these are the only requests, and their submitter does nothing but wait for them.
    pub is_awaited: bool,
    /// Time of a hand-over to a sleeping worker and back, as percentage of the one for which
    /// [`Adaptive`] has been made; at least 100.
    pub hand_over_percent: u16,
}

impl Default for Load {
    /// The default without information: every worker has an idle CPU.
    fn default() -> Self {
        Self {
            idle_cpus: u16::MAX,
            fanned_out_bytes: 0,
            at_once_bytes: 0,
            together_bytes: 0,
            is_awaited: false,
            hand_over_percent: 100,
        }
    }
}

/// Facts that decide about a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts<'a> {
    /// Length of the part.
    pub len_bytes: u32,
    /// Load at the time when the part goes to the cipher.
    pub load: &'a Load,
}

impl Facts<'_> {
    /// Whether a worker gets the part, if `least_bytes` pay for a hand-over to a sleeping worker
    /// and back.
    fn fans_out(&self, least_bytes: u32) -> bool {
        let Load { idle_cpus, fanned_out_bytes, is_awaited, hand_over_percent, .. } = *self.load;
        let reserve_bytes = u64::from(least_bytes);
        let least_bytes = reserve_bytes * u64::from(hand_over_percent) / 100;
        let len_bytes = u64::from(self.len_bytes);
        let cpus = u64::from(idle_cpus);
        let at_once_bytes = self.at_once_bytes();
        // A worker with queued bytes stays awake for more.
        let pays = at_once_bytes >= least_bytes.min(AWAKE_MIN_BYTES)
            && at_once_bytes + fanned_out_bytes >= least_bytes;
        let room_bytes = if is_awaited {
            // A waiting submitter starts at once, and all are to end together; the share must pay
            // for a hand-over.
            let share_bytes = at_once_bytes.saturating_sub(least_bytes) * cpus / (cpus + 1);
            if share_bytes >= least_bytes { share_bytes } else { 0 }
        } else {
            2 * cpus * at_once_bytes.max(reserve_bytes)
        };
        pays && fanned_out_bytes + len_bytes <= room_bytes
    }

    /// Whether the short part goes to a worker together with others.
    fn is_batched(&self, least_bytes: u32) -> bool {
        let Load { idle_cpus, together_bytes, .. } = *self.load;
        let is_short = u64::from(self.len_bytes) < u64::from(least_bytes).min(AWAKE_MIN_BYTES);
        is_short && idle_cpus > 0 && together_bytes >= TOGETHER_MIN_BYTES
    }

    fn at_once_bytes(&self) -> u64 {
        self.load.at_once_bytes.max(u64::from(self.len_bytes))
    }

    /// Whether the part is only a piece of the bytes at once.
    fn is_cut(&self) -> bool {
        self.at_once_bytes() > u64::from(self.len_bytes)
    }
}

/// Bytes that pay for a hand-over to an awake worker, on any machine.
const AWAKE_MIN_BYTES: u64 = 16 << 10;

/// Bytes in flight together from which short parts go to workers: two batches, one for a worker and
/// one for the submitter.
pub const TOGETHER_MIN_BYTES: u64 = 64 << 10;

/// Longest part that can be fanned out, in multiples of the least one that pays. Ours, measured
/// with a lone request of 1 MiB on 4 and 16 CPUs (docs/cores.md): shorter parts take more CPU time,
/// and of longer ones a request has too few.
const FANNED_OUT_MAX: u32 = 2;

impl Adaptive {
    /// Length from which the decision depends on the load. A shorter lone part always stays inline.
    #[must_use]
    pub fn asks_load_from_bytes(&self) -> Option<u64> {
        self.fan_out_min_bytes.map(|least_bytes| u64::from(least_bytes).min(AWAKE_MIN_BYTES))
    }
}

/// A fixed pipeline, or a decision for each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// One pipeline for all parts.
    Fixed(Pipeline),
    /// A decision for each part.
    Adaptive(Adaptive),
}

impl Choice {
    /// Decides about a part.
    ///
    /// *Where*: inline, unless the bytes at once are enough to pay for a hand-over to a worker and
    /// back, and a CPU is idle. Each idle CPU gets twice the bytes at once; later parts are done
    /// inline until there is room again. So a deep queue of long requests keeps all CPUs busy,
    /// however short its parts are, and submitters that keep all CPUs busy themselves hand nothing
    /// over. A submitter that waits for its only request encrypts a share itself, and hands over
    /// the others if that saves as much time as it costs.
    ///
    /// *Who submits*: the encrypting CPU, at once. With a moving head, the writing thread instead,
    /// the whole batch by sector. The submitter's own thread submits the results of workers
    /// together. If a write is a copy, the same holds for the inline parts of a split request,
    /// because copies into one file wait for each other. The io-context stays the submitter's,
    /// because schedulers below need it.
    #[must_use]
    #[inline]
    pub fn decide(&self, facts: &Facts<'_>) -> Pipeline {
        let Adaptive { fan_out_min_bytes, seeks, queues } = match *self {
            Self::Fixed(pipeline) => return pipeline,
            Self::Adaptive(adaptive) => adaptive,
        };
        let place = match fan_out_min_bytes {
            Some(least_bytes) if facts.is_batched(least_bytes) => Place::UnboundBatch,
            Some(least_bytes) if facts.fans_out(least_bytes) => Place::Unbound,
            _ => Place::Inline,
        };
        let submit = match (seeks, place) {
            (true, _) => Submit::Thread(Order::Sorted),
            (false, Place::Inline) if queues || !facts.is_cut() => Submit::WhereEncrypted,
            (false, _) => Submit::Thread(Order::Fifo),
        };
        Pipeline {
            read: place,
            write: place,
            submit,
            context: Context::Submitter,
            max_read_bytes: self.max_bytes(Op::Read),
            max_write_bytes: self.max_bytes(Op::Write),
        }
    }

    /// Longest part of a bio, if limited.
    #[must_use]
    #[inline]
    pub fn max_bytes(&self, op: Op) -> Option<u32> {
        match self {
            Self::Fixed(pipeline) if op == Op::Read => pipeline.max_read_bytes,
            Self::Fixed(pipeline) => pipeline.max_write_bytes,
            Self::Adaptive(Adaptive { fan_out_min_bytes, .. }) => {
                fan_out_min_bytes.map(|least| FANNED_OUT_MAX * least)
            }
        }
    }
}

/// Numbers of parts and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of parts.
    pub parts: u64,
    /// Bytes of these parts.
    pub bytes: u64,
}

impl Tally {
    fn count(&mut self, len_bytes: u32) {
        self.parts += 1;
        self.bytes += u64::from(len_bytes);
    }

    fn add(&mut self, other: Self) {
        self.parts += other.parts;
        self.bytes += other.bytes;
    }
}

/// Numbers of decisions since the table was loaded. A part counts in one of the first two fields,
/// and also in `sorted` if it was sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// Parts whose cipher ran inline.
    pub inline: Tally,
    /// Parts whose cipher ran on a worker.
    pub fanned_out: Tally,
    /// Encrypted writes that a thread submitted by sector.
    pub sorted: Tally,
}

impl Decisions {
    pub(super) fn count(&mut self, pipeline: &Pipeline, direction: Direction, len_bytes: u32) {
        let (place, submit) = match direction {
            Direction::Decrypt => (pipeline.read, Submit::WhereEncrypted),
            Direction::Encrypt => (pipeline.write, pipeline.submit),
        };
        match place {
            Place::Inline => self.inline.count(len_bytes),
            Place::SameCpu | Place::Unbound | Place::UnboundBatch => {
                self.fanned_out.count(len_bytes);
            }
        }
        if submit == Submit::Thread(Order::Sorted) {
            self.sorted.count(len_bytes);
        }
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: Self) {
        self.inline.add(other.inline);
        self.fanned_out.add(other.fanned_out);
        self.sorted.add(other.sorted);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// Each patch of the 2013 series changes one field.
    #[test]
    fn each_patch_of_2013_changes_one_field() {
        let [one, two, three, four, reply] = ["2013-1", "2013-2", "2013-3", "2013-4", "2013-reply"]
            .map(|name| find(name).unwrap().pipeline);
        let unbound = Place::Unbound;
        assert_eq!(two, Pipeline { read: unbound, write: unbound, ..one });
        assert_eq!(three, Pipeline { submit: Submit::Thread(Order::Fifo), ..two });
        assert_eq!(four, Pipeline { submit: Submit::Thread(Order::Sorted), ..three });
        assert_eq!(reply, Pipeline { context: Context::Submitter, ..two });
    }

    #[test]
    fn options_of_a_table_change_the_kernels_pipeline() {
        let of = |change: fn(&mut PipelineFlags)| {
            let mut flags = PipelineFlags::default();
            change(&mut flags);
            Pipeline::from_options(flags)
        };
        let today = find("linux-today").unwrap().pipeline;
        assert_eq!(of(|_| ()), today);
        let bound = Place::SameCpu;
        assert_eq!(
            of(|flags| flags.same_cpu_crypt = true),
            Pipeline { read: bound, write: bound, ..today }
        );
        let at_once = Submit::WhereEncrypted;
        assert_eq!(
            of(|flags| flags.submit_from_crypt_cpus = true),
            Pipeline { submit: at_once, ..today }
        );
        assert_eq!(of(|flags| flags.no_read_workqueue = true).read, Place::Inline);
        let inline = of(|flags| flags.no_write_workqueue = true);
        assert_eq!(
            (inline.write, inline.submit, inline.read),
            (Place::Inline, at_once, Place::Unbound)
        );
    }

    /// Adaptive parameters of a device with a queue.
    fn adaptive(fan_out_min_bytes: Option<u32>, seeks: bool) -> Choice {
        Choice::Adaptive(Adaptive { fan_out_min_bytes, seeks, queues: true })
    }

    #[test]
    fn adaptive_hands_over_only_parts_that_gain_time() {
        let place = |least, len_bytes| {
            let facts = Facts { len_bytes, load: &Load::default() };
            adaptive(least, false).decide(&facts).write
        };
        assert_eq!(place(Some(65_536), 65_535), Place::Inline);
        assert_eq!(place(Some(65_536), 65_536), Place::Unbound);
        assert_eq!(place(None, 1 << 20), Place::Inline, "there is no worker");
    }

    const LEAST: u32 = 65_536;

    /// Place of a part; adds its bytes to those at workers.
    fn place(load: &mut Load, len_bytes: u32) -> Place {
        let facts = Facts { len_bytes, load };
        let place = adaptive(Some(LEAST), false).decide(&facts).read;
        load.fanned_out_bytes += if place == Place::Inline { 0 } else { u64::from(len_bytes) };
        place
    }

    /// Number of a request's parts that go to workers, counted from the first.
    fn fanned_out(mut load: Load, parts: u32, len_bytes: u32) -> usize {
        load.at_once_bytes = u64::from(parts * len_bytes);
        let places: Vec<Place> = (0..parts).map(|_| place(&mut load, len_bytes)).collect();
        let count = places.iter().take_while(|place| **place == Place::Unbound).count();
        assert!(places[count..].iter().all(|place| *place == Place::Inline));
        count
    }

    /// Two CPUs: one is the submitter's.
    #[test]
    fn adaptive_gives_an_idle_cpu_two_requests_and_a_busy_one_none() {
        let inline = Place::Inline;
        let unbound = Place::Unbound;
        let mut load = Load { idle_cpus: 1, ..Load::default() };
        let places = [0; 4].map(|_| place(&mut load, 1 << 20));
        assert_eq!(places, [unbound, unbound, inline, inline]);
        load.fanned_out_bytes = 1 << 20;
        assert_eq!(place(&mut load, 1 << 20), unbound, "one has come back");
        assert_eq!(place(&mut Load { idle_cpus: 0, ..Load::default() }, 1 << 20), inline);
    }

    #[test]
    fn adaptive_decides_by_the_length_in_flight_and_not_by_its_pieces() {
        let load = Load { idle_cpus: 1, ..Load::default() };
        assert_eq!([3, 4, 16].map(|parts| fanned_out(load, parts, LEAST / 4)), [0, 4, 16]);
        let load = Load { fanned_out_bytes: u64::from(LEAST) / 4, ..load };
        assert_eq!(fanned_out(load, 3, LEAST / 4), 3, "a worker is awake");
        let load = Load { fanned_out_bytes: 2 * u64::from(LEAST), ..load };
        assert_eq!(fanned_out(load, 3, LEAST / 4), 0, "it has enough");
    }

    #[test]
    fn short_request_stays_inline_though_a_worker_is_awake() {
        let mut load = Load { fanned_out_bytes: u64::from(LEAST), ..Load::default() };
        assert_eq!(place(&mut load, 4096), Place::Inline);
        assert_eq!(place(&mut load, 16_384), Place::Unbound);
    }

    #[test]
    fn short_requests_of_a_steady_load_go_to_workers_while_a_cpu_is_idle() {
        let load = Load { idle_cpus: 1, together_bytes: TOGETHER_MIN_BYTES, ..Load::default() };
        let of = |load: Load, len_bytes| place(&mut { load }, len_bytes);
        assert_eq!(of(load, 4096), Place::UnboundBatch);
        assert_eq!(of(load, 16_384), Place::Inline, "it is not short");
        assert_eq!(of(Load { idle_cpus: 0, ..load }, 4096), Place::Inline);
        let few = Load { together_bytes: TOGETHER_MIN_BYTES - 1, ..load };
        assert_eq!(of(few, 4096), Place::Inline);
        let facts = Facts { len_bytes: 4096, load: &load };
        assert_eq!(adaptive(None, false).decide(&facts).read, Place::Inline, "no worker");
    }

    /// A hand-over takes as long as the cipher for four of these parts.
    #[test]
    fn waiting_submitter_hands_over_parts_that_end_with_its_own_share() {
        let load = Load { idle_cpus: 1, is_awaited: true, ..Load::default() };
        let shares = [1, 4, 11, 12, 16, 64].map(|parts| fanned_out(load, parts, LEAST / 4));
        assert_eq!(shares, [0, 0, 0, 4, 6, 30]);
        assert_eq!(fanned_out(load, 1, 1 << 20), 0, "there is but one part");
        let load = Load { idle_cpus: 3, ..load };
        assert_eq!(fanned_out(load, 64, LEAST / 4), 45);
    }

    #[test]
    fn slow_hand_over_pays_for_more_bytes_only() {
        let load = Load { idle_cpus: 1, hand_over_percent: 200, ..Load::default() };
        assert_eq!([4, 7, 8].map(|parts| fanned_out(load, parts, LEAST / 4)), [0, 0, 8]);
        let load = Load { is_awaited: true, ..load };
        assert_eq!([16, 23, 24].map(|parts| fanned_out(load, parts, LEAST / 4)), [0, 0, 8]);
        let fanned_out_bytes = 10 * u64::from(LEAST);
        for hand_over_percent in [100, 1000, u16::MAX] {
            let load =
                Load { fanned_out_bytes, hand_over_percent, idle_cpus: 1, ..Load::default() };
            assert_eq!(place(&mut { load }, LEAST), Place::Inline, "{hand_over_percent}");
        }
    }

    #[test]
    fn adaptive_sorts_where_a_head_moves_wherever_the_cipher_runs() {
        let submit = |seeks, len_bytes| {
            let facts = Facts { len_bytes, load: &Load::default() };
            adaptive(Some(65_536), seeks).decide(&facts).submit
        };
        let sorted = Submit::Thread(Order::Sorted);
        assert_eq!([submit(true, 4096), submit(true, 1 << 20)], [sorted, sorted]);
        assert_eq!(submit(false, 4096), Submit::WhereEncrypted);
        assert_eq!(submit(false, 1 << 20), Submit::Thread(Order::Fifo));
    }

    #[test]
    fn adaptive_copies_a_request_that_is_cut_in_one_go() {
        let submit = |queues, at_once_bytes| {
            let load = Load { at_once_bytes, ..Load::default() };
            let adaptive = Adaptive { fan_out_min_bytes: None, seeks: false, queues };
            Choice::Adaptive(adaptive).decide(&Facts { len_bytes: 65_536, load: &load }).submit
        };
        assert_eq!(submit(false, 1 << 20), Submit::Thread(Order::Fifo));
        assert_eq!(submit(false, 65_536), Submit::WhereEncrypted);
        assert_eq!(submit(true, 1 << 20), Submit::WhereEncrypted, "its queue merges them");
        let adaptive = Adaptive { fan_out_min_bytes: Some(LEAST), seeks: false, queues: false };
        let facts = Facts { len_bytes: LEAST, load: &Load::default() };
        let pipeline = Choice::Adaptive(adaptive).decide(&facts);
        let thread = Submit::Thread(Order::Fifo);
        assert_eq!((pipeline.write, pipeline.submit), (Place::Unbound, thread));
    }
}
