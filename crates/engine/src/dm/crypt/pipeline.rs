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
    /// A part of at least so many bytes pays for a hand-over and back; `None` without workers.
    pub fan_out_min_bytes: Option<u32>,
    /// The device below has a head that moves.
    pub seeks: bool,
}

/// What else goes on, as far as the world knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// CPUs on which no submitter runs.
    pub idle_cpus: u16,
    /// Parts with workers, of all shards, that have not come back.
    pub fanned_out: u16,
    /// Length of the bio that goes to the cipher, if its submitter has nothing to do but to wait
    /// for it.
    pub awaited_bytes: Option<u32>,
}

impl Default for Load {
    /// Nobody has said: every worker has a CPU to itself and nothing to do.
    fn default() -> Self {
        Self { idle_cpus: u16::MAX, fanned_out: 0, awaited_bytes: None }
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

/// Longest part, in the shortest that pay, where parts can be fanned out. Ours: the way to a worker
/// and back is a fifth of what such a part takes, and who works on a long request ends soon after
/// the others.
const FANNED_OUT_MAX: u32 = 4;

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
    /// *Where*: inline, unless the part is long enough to pay for the way to a worker and back, and
    /// a CPU is idle. Each idle CPU gets one part and one to go on with; the next is done inline,
    /// and when that has ended there is room again. So a deep queue of long parts keeps all CPUs
    /// busy, and submitters who keep them busy themselves hand nothing over; nor do those who would
    /// only wait for the one part that there is.
    ///
    /// *Who submits*: who encrypts, at once; or, where a head moves, all that came together, by
    /// sector. What comes back from workers is submitted together in any case. The submitter's name
    /// stays on it: schedulers below need it.
    #[must_use]
    pub fn decide(&self, facts: &Facts) -> Pipeline {
        let Adaptive { fan_out_min_bytes, seeks } = match *self {
            Self::Fixed(pipeline) => return pipeline,
            Self::Adaptive(adaptive) => adaptive,
        };
        let Facts { len_bytes, load: Load { idle_cpus, fanned_out, awaited_bytes } } = *facts;
        let pays = fan_out_min_bytes.is_some_and(|least| len_bytes >= least);
        let has_room = u32::from(fanned_out) < 2 * u32::from(idle_cpus);
        let is_all = awaited_bytes == Some(len_bytes);
        let place = if pays && has_room && !is_all { Place::Unbound } else { Place::Inline };
        let submit = match (seeks, place) {
            (true, _) => Submit::Thread(Order::Sorted),
            (false, Place::Inline) => Submit::WhereEncrypted,
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

    fn adaptive(fan_out_min_bytes: Option<u32>, seeks: bool) -> Choice {
        Choice::Adaptive(Adaptive { fan_out_min_bytes, seeks })
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

    /// Two CPUs: one is the submitter's.
    #[test]
    fn adaptive_gives_an_idle_cpu_two_parts_and_a_busy_one_none() {
        let place = |idle_cpus, fanned_out| {
            let load = Load { idle_cpus, fanned_out, awaited_bytes: None };
            let facts = Facts { len_bytes: 1 << 20, load };
            adaptive(Some(65_536), false).decide(&facts).read
        };
        let (inline, unbound) = (Place::Inline, Place::Unbound);
        assert_eq!([0, 1, 2, 3].map(|out| place(1, out)), [unbound, unbound, inline, inline]);
        assert_eq!(place(0, 0), inline, "another submitter has the other CPU");
    }

    #[test]
    fn adaptive_hands_over_what_is_awaited_only_in_parts() {
        let place = |awaited_bytes| {
            let facts =
                Facts { len_bytes: 65_536, load: Load { awaited_bytes, ..Load::default() } };
            adaptive(Some(65_536), false).decide(&facts).read
        };
        assert_eq!(place(None), Place::Unbound);
        assert_eq!(place(Some(1 << 20)), Place::Unbound, "there are other parts");
        assert_eq!(place(Some(65_536)), Place::Inline);
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
}
