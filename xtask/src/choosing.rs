//! `cargo x choosing`: the tables of docs/elevators/choosing.md, from the experiment
//! `elevators-2026`. It compares them with the page, or writes them with `--write`.

use crate::lab::Lab;
use crate::markdown::{Section, short, table};
use crate::numbers::Numbers;
use anyhow::Result;

const PAGE: &str = "docs/elevators/choosing.md";
const SECTION: Section = Section { command: "cargo x choosing" };

/// Policies, the simplest first.
const POLICIES: [&str; 7] = ["none", "deadline", "mq-deadline", "kyber", "adios", "cfq", "bfq"];
const DEVICES: [&str; 3] = ["nvme", "ssd", "hdd"];

/// Least share of the best throughput for a choice.
const THROUGHPUT_MIN: f64 = 0.8;
/// Latencies up to this multiple of the least are equal.
const LATENCY_EQUAL: f64 = 1.1;
/// Fairness up to this much below the best is equal.
const FAIRNESS_EQUAL: f64 = 0.1;

/// A mix: a job of the experiment, and the rows behind each number.
struct Mix {
    job: &'static str,
    title: &'static str,
    /// Rows whose rates are added.
    clients: &'static [&'static str],
    /// Rows of the clients that wait; the worst counts.
    waiting: &'static [&'static str],
    /// Rows of the equals.
    equals: &'static [&'static str],
}

const DEPTHS: &[&str] = &["d4 read", "d16 read", "d64 read", "d256 read"];
const STREAMS: &[&str] = &["s32 read", "s64 read", "s128 read", "s256 read"];
const QUERIES: &[&str] = &["q32 read", "q128 read"];

const MIXES: [Mix; 4] = [
    Mix {
        job: "copy",
        title: "A reader beside a copy",
        clients: &["reader read", "writer write"],
        waiting: &["reader read"],
        equals: &[],
    },
    Mix {
        job: "depth",
        title: "Random readers of different depth",
        clients: DEPTHS,
        waiting: DEPTHS,
        equals: DEPTHS,
    },
    Mix {
        job: "streams",
        title: "Sequential readers with requests of different size",
        clients: STREAMS,
        waiting: STREAMS,
        equals: STREAMS,
    },
    Mix {
        job: "log",
        title: "A log that syncs, beside two queries",
        clients: &["log write", "q32 read", "q128 read"],
        waiting: &["log fsync"],
        equals: QUERIES,
    },
];

/// Comparison with the page, or its update.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the tables to the page, instead of comparing them.
    #[arg(long)]
    write: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let text = text(&Numbers::run(&Lab::new()?, "elevators-2026")?)?;
    SECTION.check_or_write(PAGE, &text, args.write)
}

/// The result of a policy.
#[derive(Clone, Copy, Debug)]
struct PolicyResult {
    mib_s: f64,
    p99_ms: f64,
    /// The rate of the slowest of the equals over that of the fastest, if there are equals.
    fairness: Option<f64>,
}

impl PolicyResult {
    fn of(numbers: &Numbers, mix: &Mix, policy: &str, device: &str) -> Result<Self> {
        let variant = format!("{}-{policy}-{device}", mix.job);
        let rates = numbers.all(&variant, mix.clients, "rate")?;
        let waits = numbers.all(&variant, mix.waiting, "latency_p99")?;
        let equals = numbers.all(&variant, mix.equals, "rate")?;
        let largest = |numbers: &[f64]| numbers.iter().copied().fold(0.0, f64::max);
        let smallest = equals.iter().copied().reduce(f64::min);
        Ok(Self {
            mib_s: rates.iter().sum::<f64>() / f64::from(1 << 20),
            p99_ms: largest(&waits) * 1000.0,
            fairness: smallest.map(|smallest| smallest / largest(&equals)),
        })
    }

    fn cells(&self) -> [String; 3] {
        let fairness = self.fairness.map_or_else(String::new, |share| format!("{share:.2}"));
        [short(self.mib_s), short(self.p99_ms), fairness]
    }
}

/// The place of the policy that one would choose.
fn choice(outcomes: &[PolicyResult]) -> usize {
    let largest = |number: fn(&PolicyResult) -> f64, among: &[usize]| {
        among.iter().map(|place| number(&outcomes[*place])).fold(f64::MIN, f64::max)
    };
    let mut left: Vec<usize> = (0..outcomes.len()).collect();
    let most = largest(|outcome| outcome.mib_s, &left);
    left.retain(|place| outcomes[*place].mib_s >= THROUGHPUT_MIN * most);
    let least = -largest(|outcome| -outcome.p99_ms, &left);
    left.retain(|place| outcomes[*place].p99_ms <= LATENCY_EQUAL * least);
    let fairness = |outcome: &PolicyResult| outcome.fairness.unwrap_or(1.0);
    let fairest = largest(fairness, &left);
    left.retain(|place| fairness(&outcomes[*place]) >= fairest - FAIRNESS_EQUAL);
    left[0]
}

/// The section of the page.
fn text(numbers: &Numbers) -> Result<String> {
    let mut choices = vec![heading(&DEVICES)];
    let mut tables = String::new();
    for mix in &MIXES {
        let mut lines = vec![heading(&[
            "nvme MiB/s",
            "p99 ms",
            "fair",
            "ssd MiB/s",
            "p99 ms",
            "fair",
            "hdd MiB/s",
            "p99 ms",
            "fair",
        ])];
        lines.extend(POLICIES.map(|policy| vec![policy.to_owned()]));
        let mut chosen = vec![mix.title.to_owned()];
        for device in DEVICES {
            let outcome = |policy: &&str| PolicyResult::of(numbers, mix, policy, device);
            let outcomes = POLICIES.iter().map(outcome).collect::<Result<Vec<_>>>()?;
            chosen.push(POLICIES[choice(&outcomes)].to_owned());
            for (line, outcome) in lines[1..].iter_mut().zip(&outcomes) {
                line.extend(outcome.cells());
            }
        }
        choices.push(chosen);
        tables += &format!("\n### {}\n\n{}", mix.title, table(&lines));
    }
    let rule = format!(
        "Of the policies with at least {:.0} % of the best throughput, the one with the least p99; \
         up to {:.0} %\nmore is equal. Of equal ones the fairest; {FAIRNESS_EQUAL} less is equal. \
         Of these the simplest, in the order\nof the tables below.",
        THROUGHPUT_MIN * 100.0,
        (LATENCY_EQUAL - 1.0) * 100.0,
    );
    Ok(format!("{rule}\n\n{}{tables}", table(&choices)))
}

/// A heading over the names of rows.
fn heading(words: &[&str]) -> Vec<String> {
    [""].iter().chain(words).map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(mib_s: f64, p99_ms: f64, fairness: f64) -> PolicyResult {
        PolicyResult { mib_s, p99_ms, fairness: Some(fairness) }
    }

    #[test]
    fn choice_is_by_throughput_then_latency_then_fairness_then_simplicity() {
        let best = outcome(100.0, 10.0, 0.5);
        assert_eq!(choice(&[best, outcome(79.0, 1.0, 1.0)]), 0, "it costs too much throughput");
        assert_eq!(choice(&[best, outcome(81.0, 9.0, 0.1)]), 1, "its latency is lower");
        assert_eq!(choice(&[best, outcome(81.0, 9.5, 0.1)]), 0, "that is nearly equal");
        assert_eq!(choice(&[best, outcome(100.0, 10.5, 0.7)]), 1, "it is fairer");
        assert_eq!(choice(&[best, outcome(100.0, 10.0, 0.55)]), 0, "the simpler one");
    }

    #[test]
    fn number_that_the_experiment_lacks_is_named() {
        let numbers = Numbers::default();
        let error = text(&numbers).unwrap_err().to_string();
        assert_eq!(error, "no number of copy-none-nvme/reader read/rate");
    }
}
