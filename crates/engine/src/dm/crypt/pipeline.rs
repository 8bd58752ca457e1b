//! Where the cipher runs, who submits what is encrypted, in which order, in whose name: as data.
//!
//! ```text
//!   write ─ encrypt: Inline | SameCpu | Unbound ─┬─ WhereEncrypted ────────────────────┐
//!                                                └─ Thread ─ batch: Fifo | Sorted ─────┴─> device
//!   read ── device ── decrypt: Inline | SameCpu | Unbound ──> end
//! ```
//!
//! The fields are what the patches of 2013 (Mikulas Patocka, dm-devel) changed one by one, and what
//! the options of a table line change today. Presets are values that somebody measured.

use crate::bio::IoContext;
use crate::sq::{Direction, Place};

/// In which order a thread submits the writes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As their encryption ended.
    Fifo,
    /// By sector, equal ones as their encryption ended.
    Sorted,
}

/// Who submits encrypted writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submit {
    /// Who encrypted them, each at once (`submit_from_crypt_cpus`).
    WhereEncrypted,
    /// One thread, all that have come together since it last ran (`dmcrypt_write`).
    Thread(Order),
}

/// In whose io-context encrypted writes are submitted. Priority and sync are the original's always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// That of the task which submits them: a worker, or the thread.
    Task,
    /// That of who submitted the original bio.
    Submitter,
}

impl Context {
    /// The io-context of a write that `submitter` made.
    #[must_use]
    pub fn of(self, submitter: IoContext) -> IoContext {
        match self {
            Self::Task => IoContext::OF_TASK,
            Self::Submitter => submitter,
        }
    }
}

/// How the parts of a crypt target go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline {
    /// Where reads are decrypted.
    pub read: Place,
    /// Where writes are encrypted.
    pub write: Place,
    /// Who submits encrypted writes.
    pub submit: Submit,
    /// In whose name.
    pub context: Context,
    /// Longest part of a read or a write, in bytes; none is as long as the device below takes.
    pub split_bytes: Option<u32>,
}

/// A pipeline with a name.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// As users name it.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// Its value.
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
    split_bytes: None,
};
const UNBOUND: Pipeline = Pipeline { read: Place::Unbound, write: Place::Unbound, ..BOUND };
const OFFLOADED: Pipeline = Pipeline { submit: Submit::Thread(Order::Fifo), ..UNBOUND };
const SORTED: Pipeline = Pipeline { submit: Submit::Thread(Order::Sorted), ..UNBOUND };
/// Requests are cut since 6.11, so that several CPUs have a part of a large one.
const TODAY: Pipeline = Pipeline { split_bytes: Some(128 << 10), ..SORTED };
const INLINE: Pipeline = Pipeline { read: Place::Inline, write: Place::Inline, ..BOUND };

/// The pipelines that somebody measured.
pub static PRESETS: &[Preset] = &[
    preset("A", "2015, upstream then: each CPU encrypts and submits what it queued", BOUND),
    preset("D", "2015: A with three clean-ups, of which none changes the pipeline", BOUND),
    preset("E", "2015: any CPU encrypts, and submits what it encrypted", UNBOUND),
    preset("F", "2015: E, and one thread submits", OFFLOADED),
    preset("G", "2015: F, and it sorts", SORTED),
    preset("2013-1", "2013: state for each request; each CPU for itself still", BOUND),
    preset("2013-2", "2013: any CPU encrypts and submits", UNBOUND),
    preset("2013-3", "2013: one thread submits", OFFLOADED),
    preset("2013-4", "2013: one thread submits, sorted", SORTED),
    preset(
        "2013-reply",
        "2013-2 in the submitter's name, as the answer to the mail asks",
        Pipeline { context: Context::Submitter, ..UNBOUND },
    ),
    preset("linux-today", "any CPU, one thread, sorted, parts of 128 KiB", TODAY),
    preset("inline", "no worker, no thread: no_read_workqueue and no_write_workqueue", INLINE),
];

/// The preset with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

impl Pipeline {
    /// What the kernel of today makes of a table line's options.
    #[must_use]
    pub fn from_options(flags: &blockyard_crypt::params::CryptFlags) -> Self {
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

/// What our own default knows of a volume: measured once, when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adaptive {
    /// So many bytes at once pay for a hand-over and back; `None` without workers.
    pub fan_out_min_bytes: Option<u32>,
    /// Requests reach a device with a head that moves as they are submitted.
    pub seeks: bool,
    /// It takes requests and answers them later; what does not takes writes by a copy, here and
    /// now.
    pub queues: bool,
}

/// What else goes on, as far as the world knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// CPUs on which no submitter runs.
    pub idle_cpus: u16,
    /// Bytes with workers, of all shards, that have not come back.
    pub fanned_out_bytes: u64,
    /// Bytes that go to the cipher together: those of a bio, or of all reads whose data has come.
    pub at_once_bytes: u64,
    /// These are all that there are, and who submitted them has nothing to do but to wait for them.
    pub is_awaited: bool,
}

impl Default for Load {
    /// Nobody has said: every worker has a CPU to itself and nothing to do.
    fn default() -> Self {
        Self { idle_cpus: u16::MAX, fanned_out_bytes: 0, at_once_bytes: 0, is_awaited: false }
    }
}

/// What decides about a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its length.
    pub len_bytes: u32,
    /// When it goes to the cipher.
    pub load: Load,
}

impl Facts {
    /// Whether a worker gets the part, if so many bytes pay for the way to one that sleeps, and
    /// back.
    fn fans_out(&self, least_bytes: u32) -> bool {
        let Load { idle_cpus, fanned_out_bytes, is_awaited, .. } = self.load;
        let (least_bytes, len_bytes) = (u64::from(least_bytes), u64::from(self.len_bytes));
        let (cpus, at_once_bytes) = (u64::from(idle_cpus), self.at_once_bytes());
        // What a worker has keeps it awake for more.
        let pays = at_once_bytes >= least_bytes.min(AWAKE_MIN_BYTES)
            && at_once_bytes + fanned_out_bytes >= least_bytes;
        let room_bytes = if is_awaited {
            // Who waits begins at once, and all are to end together; not for less than a way.
            let share_bytes = at_once_bytes.saturating_sub(least_bytes) * cpus / (cpus + 1);
            if share_bytes >= least_bytes { share_bytes } else { 0 }
        } else {
            2 * cpus * at_once_bytes.max(least_bytes)
        };
        pays && fanned_out_bytes + len_bytes <= room_bytes
    }

    fn at_once_bytes(&self) -> u64 {
        self.load.at_once_bytes.max(u64::from(self.len_bytes))
    }

    /// The part is not all that comes at once.
    fn is_cut(&self) -> bool {
        self.at_once_bytes() > u64::from(self.len_bytes)
    }
}

/// What pays for the way to a worker that is awake, on any machine.
const AWAKE_MIN_BYTES: u64 = 16 << 10;

/// Longest part, in the shortest that pay, where parts can be fanned out. Ours: the way to a worker
/// and back is a fifth of what such a part takes, and who works on a long request ends soon after
/// the others.
const FANNED_OUT_MAX: u32 = 4;

impl Adaptive {
    /// What is shorter and comes alone stays inline whatever goes on.
    #[must_use]
    pub fn asks_load_from_bytes(&self) -> Option<u64> {
        self.fan_out_min_bytes.map(|least_bytes| u64::from(least_bytes).min(AWAKE_MIN_BYTES))
    }
}

/// A fixed pipeline, or the one that decides for each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The same for all parts.
    Fixed(Pipeline),
    /// Decided for each part.
    Adaptive(Adaptive),
}

impl Choice {
    /// The decision.
    ///
    /// *Where*: inline, unless what comes at once is long enough to pay for the way to a worker and
    /// back, and a CPU is idle. Each idle CPU gets as much as comes at once and as much to go on
    /// with; what comes then is done inline, and when that has ended there is room again. So a deep
    /// queue of long requests keeps all CPUs busy, however short the parts are that they are cut
    /// into, and submitters who keep them busy themselves hand nothing over. Who waits for the one
    /// request that there is does a share of it, and hands over the others if that saves as much
    /// time as it costs.
    ///
    /// *Who submits*: who encrypts, at once; or, where a head moves, all that came together, by
    /// sector. What comes back from workers is submitted together by the submitter, and if a write
    /// is a copy, so is what he has encrypted himself of a request that was cut: copies into one
    /// file wait for each other. His name stays on it: schedulers below need it.
    #[must_use]
    pub fn decide(&self, facts: &Facts) -> Pipeline {
        let Adaptive { fan_out_min_bytes, seeks, queues } = match *self {
            Self::Fixed(pipeline) => return pipeline,
            Self::Adaptive(adaptive) => adaptive,
        };
        let fans_out = fan_out_min_bytes.is_some_and(|least_bytes| facts.fans_out(least_bytes));
        let place = if fans_out { Place::Unbound } else { Place::Inline };
        let submit = match (seeks, place) {
            (true, _) => Submit::Thread(Order::Sorted),
            (false, Place::Inline) if queues || !facts.is_cut() => Submit::WhereEncrypted,
            (false, _) => Submit::Thread(Order::Fifo),
        };
        let (context, split_bytes) = (Context::Submitter, self.split_bytes());
        Pipeline { read: place, write: place, submit, context, split_bytes }
    }

    /// Longest part, if it is limited.
    #[must_use]
    pub fn split_bytes(&self) -> Option<u32> {
        match self {
            Self::Fixed(pipeline) => pipeline.split_bytes,
            Self::Adaptive(Adaptive { fan_out_min_bytes, .. }) => {
                fan_out_min_bytes.map(|least| FANNED_OUT_MAX * least)
            }
        }
    }
}

/// So many parts, of so many bytes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Parts.
    pub parts: u64,
    /// Bytes of all of them.
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

/// What was decided, counted since the table was loaded. A part is in one of the first two, and in
/// `sorted` besides if it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// The cipher ran where the data was.
    pub inline: Tally,
    /// It ran on a worker.
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
            Place::SameCpu | Place::Unbound => self.fanned_out.count(len_bytes),
        }
        if submit == Submit::Thread(Order::Sorted) {
            self.sorted.count(len_bytes);
        }
    }

    /// Both together.
    pub fn add(&mut self, other: Self) {
        self.inline.add(other.inline);
        self.fanned_out.add(other.fanned_out);
        self.sorted.add(other.sorted);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use blockyard_crypt::params::CryptFlags;

    use super::*;

    /// The series of 2013 changes one thing at a time.
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
        let of = |change: fn(&mut CryptFlags)| {
            let mut flags = CryptFlags::default();
            change(&mut flags);
            Pipeline::from_options(&flags)
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

    /// Of a device with a queue.
    fn adaptive(fan_out_min_bytes: Option<u32>, seeks: bool) -> Choice {
        Choice::Adaptive(Adaptive { fan_out_min_bytes, seeks, queues: true })
    }

    #[test]
    fn adaptive_hands_over_only_what_pays_for_it() {
        let place = |least, len_bytes| {
            let facts = Facts { len_bytes, load: Load::default() };
            adaptive(least, false).decide(&facts).write
        };
        assert_eq!(place(Some(65_536), 65_535), Place::Inline);
        assert_eq!(place(Some(65_536), 65_536), Place::Unbound);
        assert_eq!(place(None, 1 << 20), Place::Inline, "there is no worker");
    }

    const LEAST: u32 = 65_536;

    /// Where a part goes, with the bytes of workers as they are behind it.
    fn place(load: &mut Load, len_bytes: u32) -> Place {
        let facts = Facts { len_bytes, load: *load };
        let place = adaptive(Some(LEAST), false).decide(&facts).read;
        load.fanned_out_bytes += if place == Place::Inline { 0 } else { u64::from(len_bytes) };
        place
    }

    /// How many of the parts of a request go to workers, the first ones.
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
        let (inline, unbound) = (Place::Inline, Place::Unbound);
        let mut load = Load { idle_cpus: 1, ..Load::default() };
        let places = [0; 4].map(|_| place(&mut load, 1 << 20));
        assert_eq!(places, [unbound, unbound, inline, inline]);
        load.fanned_out_bytes = 1 << 20;
        assert_eq!(place(&mut load, 1 << 20), unbound, "one has come back");
        assert_eq!(place(&mut Load { idle_cpus: 0, ..Load::default() }, 1 << 20), inline);
    }

    #[test]
    fn adaptive_decides_by_what_comes_at_once_however_it_is_cut() {
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

    /// The way to a worker takes as long as the cipher for four of these parts.
    #[test]
    fn who_waits_for_a_request_hands_over_what_ends_with_his_own_share() {
        let load = Load { idle_cpus: 1, is_awaited: true, ..Load::default() };
        let shares = [1, 4, 11, 12, 16, 64].map(|parts| fanned_out(load, parts, LEAST / 4));
        assert_eq!(shares, [0, 0, 0, 4, 6, 30]);
        assert_eq!(fanned_out(load, 1, 1 << 20), 0, "there is but one part");
        let load = Load { idle_cpus: 3, ..load };
        assert_eq!(fanned_out(load, 64, LEAST / 4), 45);
    }

    #[test]
    fn adaptive_sorts_where_a_head_moves_wherever_the_cipher_runs() {
        let submit = |seeks, len_bytes| {
            let facts = Facts { len_bytes, load: Load::default() };
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
            Choice::Adaptive(adaptive).decide(&Facts { len_bytes: 65_536, load }).submit
        };
        assert_eq!(submit(false, 1 << 20), Submit::Thread(Order::Fifo));
        assert_eq!(submit(false, 65_536), Submit::WhereEncrypted);
        assert_eq!(submit(true, 1 << 20), Submit::WhereEncrypted, "its queue merges them");
        let adaptive = Adaptive { fan_out_min_bytes: Some(LEAST), seeks: false, queues: false };
        let facts = Facts { len_bytes: LEAST, load: Load::default() };
        let pipeline = Choice::Adaptive(adaptive).decide(&facts);
        let thread = Submit::Thread(Order::Fifo);
        assert_eq!((pipeline.write, pipeline.submit), (Place::Unbound, thread));
    }
}
