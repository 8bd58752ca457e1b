//! `cmdprio_percentage`, `cmdprio_bssplit` and their like: priorities of single requests.
//!
//! As in fio 3.33, a random share of the reads and of the writes gets another priority, or a share
//! of the requests of a length, with a class and a level for each share. Trims and all other
//! requests have the job's priority.

use blockyard_engine::histogram::Histogram;
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;

use super::job::Job;
use super::lens::Direction;
use super::options::{PARTS_MAX, Set, set};
use super::value::{KbBase, number, of_directions, size};
use crate::random::Random;

/// Stream of random numbers besides that of the offsets. Our choice.
const STREAM: u64 = 0x7072_696f;

/// Options of this module.
pub(super) const OPTIONS: &[(&str, Set)] = &[
    ("cmdprio_percentage", |job, text| {
        let percents = of_directions(text, |text| number(text, 0, 100));
        set(
            &mut job.submission.command.percents,
            percents.map(|all| all.map(|part| part.unwrap_or(0))),
        )
    }),
    ("cmdprio_class", |job, text| {
        let classes = of_directions(text, |text| number(text, 1, 3));
        set(
            &mut job.submission.command.classes,
            classes.map(|all| all.map(|part| part.unwrap_or(1))),
        )
    }),
    ("cmdprio", |job, text| {
        let levels = of_directions(text, |text| number(text, 0, Priority::LEVEL_MAX.into()));
        set(&mut job.submission.command.levels, levels.map(|all| all.map(|part| part.unwrap_or(0))))
    }),
    ("cmdprio_bssplit", |job, text| {
        let base = job.kb_base;
        let splits = of_directions(text, |text| split(text, base));
        set(
            &mut job.submission.command.splits,
            splits.map(|all| all.map(Option::unwrap_or_default)),
        )
    }),
];

/// A share of the requests of a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Length of the requests.
    pub len_bytes: u64,
    /// Share in percent.
    pub percent: u8,
    /// Priority; `None`: that of `cmdprio_class` and `cmdprio`.
    pub priority: Option<Priority>,
}

/// Request priorities of a job, by direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandPriority {
    /// `cmdprio_percentage`.
    pub percents: [u8; 3],
    /// `cmdprio_class`: 1 is real time, 2 best effort, 3 idle.
    pub classes: [u8; 3],
    /// `cmdprio`: the level.
    pub levels: [u8; 3],
    /// `cmdprio_bssplit`.
    pub splits: [Vec<Share>; 3],
}

impl Default for CommandPriority {
    fn default() -> Self {
        Self { percents: [0; 3], classes: [1; 3], levels: [0; 3], splits: Default::default() }
    }
}

impl CommandPriority {
    /// The first invalid option, and its problem.
    pub(super) fn problem(&self) -> Option<(&'static str, String)> {
        let has_splits = self.splits.iter().any(|split| !split.is_empty());
        let is_both = has_splits && self.percents != [0; 3];
        is_both.then(|| {
            let text = "and cmdprio_bssplit exclude each other";
            ("cmdprio_percentage", text.into())
        })
    }

    fn priority(&self, direction: Direction) -> Priority {
        let at = direction.index();
        priority(self.classes[at], self.levels[at])
    }
}

fn priority(class: u8, level: u8) -> Priority {
    match class {
        1 => Priority::real_time(level),
        2 => Priority::best_effort(level),
        _ => Priority::IDLE,
    }
}

/// Parses `64k/40:4k/20/2/7`: length, share, and optionally class and level.
fn split(text: &str, base: KbBase) -> Result<Vec<Share>, String> {
    let wanted = "it must be lengths with shares in percent, as in 4k/10:64k/90/2/7";
    let mut shares: Vec<Share> = Vec::new();
    for part in text.split(':') {
        let words: Vec<&str> = part.split('/').collect();
        let (len, percent, own) = match words[..] {
            [len, percent] => (len, percent, None),
            [len, percent, class, level] => {
                let level = number(level, 0, Priority::LEVEL_MAX.into())?;
                (len, percent, Some(priority(number(class, 1, 3)?, level)))
            }
            _ => return Err(wanted.into()),
        };
        if shares.len() == PARTS_MAX {
            return Err(format!("it has more than {PARTS_MAX} parts"));
        }
        let percent = number(percent, 0, 100)?;
        shares.push(Share { len_bytes: size(len, base)?, percent, priority: own });
    }
    let of_len = |one: &Share| -> u32 {
        let same = shares.iter().filter(|share| share.len_bytes == one.len_bytes);
        same.map(|share| u32::from(share.percent)).sum()
    };
    match shares.iter().map(of_len).max() {
        Some(0..=100) => Ok(shares),
        _ => Err(format!("{wanted}; the shares of a length exceed 100")),
    }
}

/// Priorities of a clone's requests.
#[derive(Clone, Debug)]
pub(super) struct Lots {
    command: CommandPriority,
    /// Priority of the other requests; `None`: the default.
    usual: Option<Priority>,
    random: Random,
}

impl Lots {
    /// `None` for a job whose requests all have its priority.
    pub(super) fn of(job: &Job, clone: u64) -> Option<Box<Self>> {
        let command = job.submission.command.clone();
        let is_used =
            command.percents != [0; 3] || command.splits.iter().any(|split| !split.is_empty());
        let random = Random::new(job.shape.seed ^ STREAM, clone);
        is_used.then(|| Box::new(Self { command, usual: job.submission.priority, random }))
    }

    /// Draws the priority of the next request.
    pub(super) fn draw(&mut self, direction: Direction, len_bytes: u64) -> Option<Priority> {
        if direction == Direction::Trim {
            return self.usual;
        }
        let lot = self.random.below(100);
        let usual = self.command.priority(direction);
        if lot < u64::from(self.command.percents[direction.index()]) {
            return Some(usual);
        }
        let shares = &self.command.splits[direction.index()];
        let mut end = 0;
        for share in shares.iter().filter(|share| share.len_bytes == len_bytes) {
            end += u64::from(share.percent);
            if lot < end {
                return share.priority.or(Some(usual));
            }
        }
        self.usual
    }
}

/// Latencies by priority, of a job with several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ByPriority(Vec<(Option<Priority>, Histogram)>);

impl ByPriority {
    pub(super) fn record(&mut self, priority: Option<Priority>, latency: Nanos) {
        self.of(priority).record(latency);
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (priority, latencies) in &other.0 {
            self.of(*priority).add(latencies);
        }
    }

    fn of(&mut self, priority: Option<Priority>) -> &mut Histogram {
        let at = self.0.iter().position(|(known, _)| *known == priority).unwrap_or_else(|| {
            self.0.push((priority, Histogram::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    /// fio's numbers of class and level (0 and 0: none given), and the latencies; empty if all
    /// requests have one priority.
    pub fn listed(&self) -> impl Iterator<Item = (u8, u8, &Histogram)> {
        let several = if self.0.len() > 1 { &self.0[..] } else { &[] };
        several.iter().map(|(priority, latencies)| {
            // Linux numbers: real time 1, best effort 2, and idle 3, which has no levels.
            let (class, level) = match priority {
                None => (0, 0),
                Some(Priority::IDLE) => (3, 0),
                Some(Priority { class, level }) => (*class as u8 + 1, *level),
            };
            (class, level, latencies)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::tests::{World, run};
    use crate::program::Call;

    fn job(options: &[(&str, &str)]) -> Job {
        let mut job = Job::new("a").with(|job| job.region.size_bytes = 1 << 20);
        options.iter().for_each(|(key, value)| job.set(key, value).unwrap());
        job
    }

    fn drawn(options: &[(&str, &str)], direction: Direction, len_bytes: u64) -> Vec<usize> {
        let mut lots = Lots::of(&job(options), 0).unwrap();
        let drawn: Vec<Option<Priority>> =
            (0..10_000).map(|_| lots.draw(direction, len_bytes)).collect();
        let wanted = [Priority::real_time(0), Priority::best_effort(7), Priority::IDLE];
        let all = wanted.into_iter().map(Some).chain([None]);
        all.map(|wanted| drawn.iter().filter(|one| **one == wanted).count() / 100).collect()
    }

    #[test]
    fn so_many_of_a_direction_have_the_other_priority() {
        let options = [("cmdprio_percentage", "30,60"), ("cmdprio_class", "1,3")];
        let [read, write, trim] = Direction::ALL.map(|one| drawn(&options, one, 4096));
        assert!((28..=32).contains(&read[0]) && read[0] + read[3] >= 99, "{read:?}");
        assert!((58..=62).contains(&write[2]) && write[2] + write[3] >= 99, "{write:?}");
        assert_eq!(trim[3], 100);
    }

    #[test]
    fn so_many_of_a_length_have_priorities_of_their_own() {
        let options = [("cmdprio_bssplit", "4k/20:4k/50/2/7:64k/100,64k/100")];
        let short = drawn(&options, Direction::Read, 4096);
        assert!((18..=22).contains(&short[0]) && (48..=52).contains(&short[1]), "{short:?}");
        assert_eq!(drawn(&options, Direction::Read, 65_536)[0], 100);
        assert_eq!(drawn(&options, Direction::Read, 8192)[3], 100);
        assert_eq!(drawn(&options, Direction::Write, 4096)[3], 100);
    }

    /// A task sets its priority only before a request with another priority.
    #[test]
    fn requests_are_submitted_with_the_priority_that_they_are_counted_with() {
        let mut mixed = job(&[("cmdprio_percentage", "40"), ("direct", "1"), ("iodepth", "4")]);
        mixed.set("lat_percentiles", "1").unwrap();
        let mut world = World::new(10, 1000);
        let result = run(&mut world, mixed);
        let mut now = Priority::default();
        let mut counts = [0, 0];
        for call in &world.calls {
            match call {
                Call::Priority(next) => {
                    assert_ne!(std::mem::replace(&mut now, *next), *next);
                }
                Call::Submit { .. } => counts[usize::from(now == Priority::real_time(0))] += 1,
                _ => {}
            }
        }
        let mut listed: Vec<_> = result.read.by_priority.listed().collect();
        listed.sort_by_key(|(class, ..)| *class);
        assert_eq!(listed.iter().map(|one| one.2.count()).collect::<Vec<_>>(), counts);
        assert!(listed.iter().all(|one| one.2.min() == Nanos(1_000_000)), "both latencies");
    }

    #[test]
    fn priorities_are_listed_if_there_are_several() {
        let mut one = ByPriority::default();
        one.record(None, Nanos(1));
        assert_eq!(one.listed().count(), 0);
        let mut other = ByPriority::default();
        other.record(Some(Priority::real_time(0)), Nanos(5));
        other.record(Some(Priority::default()), Nanos(6));
        other.record(Some(Priority::IDLE), Nanos(7));
        one.add(&other);
        let listed: Vec<_> =
            one.listed().map(|(class, level, of)| (class, level, of.max())).collect();
        let wanted = [(0, 0, 1), (1, 0, 5), (2, 4, 6), (3, 0, 7)];
        assert_eq!(listed, wanted.map(|(class, level, ns)| (class, level, Nanos(ns))));
    }

    #[test]
    fn wrong_shares_are_refused() {
        for wrong in ["4k", "4k/60:4k/50", "4k/101", "4k/10/4/0", "4k/10/1", "4k/10/1/8"] {
            assert!(Job::new("a").set("cmdprio_bssplit", wrong).is_err(), "{wrong}");
        }
        let both = job(&[("cmdprio_percentage", "1"), ("cmdprio_bssplit", "4k/1")]);
        assert!(both.check().unwrap_err().to_string().contains("exclude each other"));
        assert!(Lots::of(&job(&[("cmdprio_class", "1")]), 0).is_none());
    }
}
