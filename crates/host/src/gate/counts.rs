//! Counts of bios: of one shard, or of all shards of a volume together.

use blockyard_engine::bio::{Bio, Failures, Op};
use blockyard_engine::dm::crypt::pipeline::{Decisions, Tally};

/// Counts of one shard or of all shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bios that read.
    pub reads: Tally,
    /// Bios that write.
    pub writes: Tally,
    /// Flushes.
    pub flushes: u64,
    /// Discards and zeroes.
    pub others: Tally,
    /// Bios in flight, without held ones.
    pub in_flight: u64,
    /// Placement of ciphers.
    pub decisions: Decisions,
    /// Bios held at the gate.
    pub held: u64,
    /// Parts waiting in their targets.
    pub parked: u64,
}

/// Bios of one shard or of all shards that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Bios that were executed.
    pub executed: Failures,
    /// Bios that were never executed: a loss is not accepted, or the server ended while it held
    /// them.
    pub refused: Failures,
}

impl Errors {
    pub(super) fn add(&mut self, other: &Self) {
        self.executed.add(&other.executed);
        self.refused.add(&other.refused);
    }

    /// Number of all failed bios.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.executed.total() + self.refused.total()
    }
}

impl Counts {
    pub(super) fn add(&mut self, other: Self) {
        for (tally, more) in [
            (&mut self.reads, other.reads),
            (&mut self.writes, other.writes),
            (&mut self.others, other.others),
        ] {
            tally.parts += more.parts;
            // A refused bio may be longer than any volume.
            tally.bytes = tally.bytes.saturating_add(more.bytes);
        }
        self.flushes += other.flushes;
        self.in_flight += other.in_flight;
        self.decisions.add(other.decisions);
        self.held += other.held;
        self.parked += other.parked;
    }

    pub(super) fn count(&mut self, bio: &Bio) {
        let tally = match bio.op {
            Op::Read => &mut self.reads,
            Op::Write => &mut self.writes,
            Op::Discard | Op::WriteZeroes => &mut self.others,
            Op::Flush => {
                self.flushes += 1;
                return;
            }
        };
        tally.parts += 1;
        tally.bytes = tally.bytes.saturating_add(bio.len.bytes());
    }

    pub(super) const WORDS: usize = 16;

    pub(super) fn words(&self) -> [u64; Self::WORDS] {
        let Decisions { inline, fanned_out, sorted } = self.decisions;
        let tallies = [self.reads, self.writes, self.others, inline, fanned_out, sorted];
        let Self { held, parked, in_flight, .. } = *self;
        let rest = [self.flushes, held, parked, in_flight];
        let mut words = tallies.into_iter().flat_map(|t| [t.parts, t.bytes]).chain(rest);
        std::array::from_fn(|_| words.next().expect("there are as many"))
    }

    pub(super) fn of_words(words: [u64; Self::WORDS]) -> Self {
        let tally = |at: usize| Tally { parts: words[at], bytes: words[at + 1] };
        Self {
            reads: tally(0),
            writes: tally(2),
            others: tally(4),
            decisions: Decisions { inline: tally(6), fanned_out: tally(8), sorted: tally(10) },
            flushes: words[12],
            held: words[13],
            parked: words[14],
            in_flight: words[15],
        }
    }
}
