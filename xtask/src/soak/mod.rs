//! `cargo x soak`: campaigns with new seeds for a number of hours.
//!
//! Two lanes run side by side, as in `cargo x ci`. A lane has all the hours. It always starts the
//! campaign that has had the least time for its weight, for a slice of at most half an hour of the
//! lane. So an interrupted run has results of all. Each slice is a command of `cargo x`, which
//! repeats it, and a line of the journal.

mod journal;
mod page;

use crate::bench::machine;
use crate::fuzz;
use crate::tools;
use crate::totals::Totals;
use anyhow::{Context, Result, bail, ensure};
use journal::{Entry, Slice};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Hours of a run without a number: a night.
const NIGHT_HOURS: f64 = 8.0;
/// A lane comes to all of its campaigns in this time.
const TURN: Duration = Duration::from_secs(1800);
/// Shortest slice: below it, starts of programs take most of the time.
const SLICE_MIN: Duration = Duration::from_secs(10);

/// Length and selection.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Hours, then the names of campaigns; without a number 8 hours, without a name all campaigns.
    #[arg(value_name = "HOURS|PART")]
    words: Vec<String>,
    /// Append the results to this file.
    #[arg(long, value_name = "FILE", default_value = "target/soak/journal.jsonl")]
    journal: PathBuf,
    /// Write docs/soak.md from testdata/soak.jsonl, and run nothing.
    #[arg(long, conflicts_with = "words")]
    page: bool,
}

/// Campaigns that run one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// They compute.
    Crates,
    /// They run the release binary, and often wait.
    Binary,
}

/// A campaign.
#[derive(Debug)]
struct Campaign {
    name: &'static str,
    lane: Lane,
    /// Share of the lane's time.
    weight: u32,
    /// Words of `cargo x`. `SECONDS` is the length of the slice, `EACH` that of one fuzz target,
    /// `SEED` a new seed. A command without a length is a piece of work; a piece is begun while
    /// time is left, and ends by itself.
    words: &'static str,
    /// Counts of a piece that does not count itself.
    counts: &'static [(&'static str, u64)],
}

const fn campaign(name: &'static str, lane: Lane, weight: u32, words: &'static str) -> Campaign {
    Campaign { name, lane, weight, words, counts: &[] }
}

/// All campaigns; pieces stand behind those that have a length.
const CAMPAIGNS: &[Campaign] = &[
    campaign("fuzz", Lane::Crates, 8, "fuzz --seconds EACH"),
    campaign("sim", Lane::Crates, 4, "sim --seeds 1000000000 --seconds SECONDS --first SEED"),
    campaign(
        "multipath",
        Lane::Crates,
        2,
        "sim --multipath --seeds 1000000000 --seconds SECONDS --first SEED",
    ),
    campaign(
        "devices",
        Lane::Crates,
        2,
        "sim --devices --seeds 1000000000 --seconds SECONDS --first SEED",
    ),
    campaign(
        "long",
        Lane::Crates,
        1,
        "sim --long --seeds 1000000000 --seconds SECONDS --first SEED",
    ),
    campaign(
        "ranges",
        Lane::Crates,
        2,
        "sim --ranges --seeds 1000000000 --seconds SECONDS --first SEED",
    ),
    campaign("races", Lane::Crates, 2, "races --if-possible --seconds SECONDS --seed SEED"),
    // The counts are those of `BLOCKYARD_SOAK` in the tests: four ways of access.
    Campaign {
        counts: &[("kills", 2000), ("descriptor_tables", 1_000_000)],
        ..campaign("vhost-user", Lane::Crates, 1, "test --vhost-user")
    },
    campaign("fuse", Lane::Crates, 1, "test --fuse"),
    campaign("powercut", Lane::Binary, 8, "powercut --seconds SECONDS --seed SEED"),
    campaign("syscalls", Lane::Binary, 3, "syscalls --seconds SECONDS --seed SEED"),
    campaign("disconnects", Lane::Binary, 1, "disconnects --seconds SECONDS --seed SEED"),
    campaign("clocks", Lane::Binary, 1, "clocks --seconds SECONDS --seed SEED"),
    campaign("growth", Lane::Binary, 2, "growth --seconds SECONDS --seed SEED"),
    campaign("verdicts", Lane::Binary, 2, "verdicts --seconds SECONDS --seed SEED"),
    campaign("kills", Lane::Binary, 2, "interop --rounds 40 load,"),
    campaign("key-races", Lane::Binary, 1, "interop --key-rounds 30 luksAddKey"),
    campaign("keys", Lane::Binary, 1, "keys"),
    campaign("interop", Lane::Binary, 2, "interop --seconds 60 --rounds 50 --key-rounds 200"),
];

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.page {
        return page::write();
    }
    let (hours, campaigns) = wanted(&args.words)?;
    // The first slice begins a moment after the start.
    let length = Duration::from_secs_f64(hours * 3600.0) + Duration::from_secs(1);
    ensure!(length > SLICE_MIN, "a slice takes at least {SLICE_MIN:?}");
    let targets = fuzz::targets()?.len();
    let soak = Soak {
        journal: tools::root().join(&args.journal),
        stamp: Stamp::now()?,
        targets: u32::try_from(targets)?,
        printer: Mutex::new(()),
    };
    println!(
        "{hours} hours for each of two lanes; the results are added to {}",
        args.journal.display()
    );
    let failed = thread::scope(|scope| {
        let lanes = [Lane::Crates, Lane::Binary].map(|lane| {
            let campaigns: Vec<_> = campaigns.iter().filter(|c| c.lane == lane).copied().collect();
            let soak = &soak;
            scope.spawn(move || soak.lane(&campaigns, length))
        });
        lanes
            .into_iter()
            .map(|lane| lane.join().expect("a lane does not panic"))
            .sum::<Result<u32>>()
    })?;
    println!("{failed} slices with findings; the page is made by: cargo x soak --page");
    ensure!(failed == 0, "findings: see {}", args.journal.display());
    Ok(())
}

/// Hours and campaigns of these words.
fn wanted(words: &[String]) -> Result<(f64, Vec<&'static Campaign>)> {
    let hours = words.first().and_then(|word| word.parse::<f64>().ok());
    let names = &words[usize::from(hours.is_some())..];
    let hours = hours.unwrap_or(NIGHT_HOURS);
    ensure!(hours > 0.0 && hours < 10_000.0, "{hours} hours: no such length");
    for name in names {
        if !CAMPAIGNS.iter().any(|campaign| campaign.name == name) {
            let known: Vec<_> = CAMPAIGNS.iter().map(|campaign| campaign.name).collect();
            bail!("{name}: no such part; the parts are {}", known.join(", "));
        }
    }
    let is_wanted =
        |campaign: &&Campaign| names.is_empty() || names.iter().any(|name| name == campaign.name);
    Ok((hours, CAMPAIGNS.iter().filter(is_wanted).collect()))
}

/// Origin of the results.
struct Stamp {
    commit: String,
    machine: String,
}

impl Stamp {
    fn now() -> Result<Self> {
        let machine = machine::describe();
        let text = |name: &str| machine[name].as_str().unwrap_or("?").to_owned();
        let line = format!("{}, {} CPUs, Linux {}", text("cpu"), machine["cpus"], text("kernel"));
        let mut commit = text("blockyard");
        if let Some(program) = std::env::var_os("BLOCKYARD_BINARY") {
            let version = tools::read(Command::new(program).arg("--version"))?;
            let name = version.lines().next().unwrap_or("?");
            commit = format!("{commit} with the program {name}");
        }
        Ok(Self { commit, machine: line })
    }
}

/// What all lanes share.
struct Soak {
    journal: PathBuf,
    stamp: Stamp,
    /// Number of fuzz targets.
    targets: u32,
    printer: Mutex<()>,
}

impl Soak {
    /// Runs campaigns in turns until the time is over. Returns the number of slices with findings.
    fn lane(&self, campaigns: &[&Campaign], length: Duration) -> Result<u32> {
        let start = Instant::now();
        let weights: Vec<u32> = campaigns.iter().map(|campaign| campaign.weight).collect();
        let mut spent = vec![Duration::ZERO; campaigns.len()];
        let mut failed = 0;
        while let Some(next) = least(&spent, &weights) {
            let left = length.saturating_sub(start.elapsed());
            if left < SLICE_MIN {
                break;
            }
            let slice = slice_of(length, weights[next], weights.iter().sum());
            let began = Instant::now();
            failed += u32::from(self.slice(campaigns[next], slice.min(left))?);
            spent[next] += began.elapsed();
        }
        Ok(failed)
    }

    /// Runs a campaign for a slice, prints its output when it has ended, and adds a line to the
    /// journal. Returns whether it has findings.
    fn slice(&self, campaign: &Campaign, length: Duration) -> Result<bool> {
        let command = self.command(campaign, length)?;
        let counts = tempfile::NamedTempFile::new()?;
        let began = utc()?;
        let start = Instant::now();
        let (is_success, said) = output_of(&command, counts.path())?;
        let seconds = start.elapsed().as_secs_f64();
        let text = fs::read_to_string(counts.path())?;
        let mut totals: Totals = serde_json::from_str(&text).unwrap_or_default();
        if is_success {
            campaign.counts.iter().for_each(|(name, count)| totals.add(name, *count));
        }
        let findings = if is_success { Vec::new() } else { journal::findings(&said, &command) };
        let _printing = self.printer.lock();
        println!("\n== {} at {began}: cargo x {command}\n{}", campaign.name, said.trim_end());
        let words: Vec<_> = totals.iter().map(|(name, count)| format!("{name} {count}")).collect();
        println!("== {} took {seconds:.0} s: {}", campaign.name, words.join(", "));
        let slice = Slice {
            campaign: campaign.name.to_owned(),
            command,
            began,
            seconds: (seconds * 10.0).round() / 10.0,
            commit: self.stamp.commit.clone(),
            machine: self.stamp.machine.clone(),
            totals,
            findings,
        };
        journal::append(&self.journal, &Entry::Slice(slice))?;
        Ok(!is_success)
    }

    fn command(&self, campaign: &Campaign, length: Duration) -> Result<String> {
        let seconds = length.as_secs().max(1);
        let each = (seconds / u64::from(self.targets.max(1))).max(1);
        let word = |word: &str| -> Result<String> {
            Ok(match word {
                "SECONDS" => seconds.to_string(),
                "EACH" => each.to_string(),
                "SEED" => seed()?.to_string(),
                word => word.to_owned(),
            })
        };
        let words: Vec<String> = campaign.words.split(' ').map(word).collect::<Result<_>>()?;
        Ok(words.join(" "))
    }
}

/// A seed that no earlier slice had: a slice takes less than a million seeds a second.
fn seed() -> Result<u64> {
    let now = SystemTime::UNIX_EPOCH.elapsed().context("the clock")?;
    Ok(now.as_secs() * 1_000_000)
}

fn utc() -> Result<String> {
    let date = tools::read(tools::tool("date").args(["-u", "+%F %H:%M:%S UTC"]))?;
    Ok(date.trim().to_owned())
}

/// The campaign that has had the least time for its weight; the first of several.
fn least(spent: &[Duration], weights: &[u32]) -> Option<usize> {
    (0..spent.len()).min_by_key(|index| spent[*index] / weights[*index])
}

/// Length of a slice: the campaign's share of one turn. A run has whole turns.
fn slice_of(length: Duration, weight: u32, weights: u32) -> Duration {
    let turns = length.as_secs().div_ceil(TURN.as_secs()).max(1);
    let turn = length.div_f64(turns as f64);
    (turn * weight / weights).max(SLICE_MIN)
}

/// Runs `cargo x` with these words. Returns whether it succeeded, and its output.
fn output_of(words: &str, counts: &Path) -> Result<(bool, String)> {
    let mut command = Command::new("/proc/self/exe");
    command.args(words.split(' ')).arg("--totals").arg(counts);
    let output = command.output().context("cargo x does not start")?;
    let said = [&output.stdout[..], &output.stderr].concat();
    Ok((output.status.success(), tools::text(&said)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn named(words: &[&str]) -> Result<(f64, usize)> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        wanted(&words).map(|(hours, campaigns)| (hours, campaigns.len()))
    }

    #[test]
    fn hours_stand_before_names_and_both_may_be_left_out() {
        assert_eq!(named(&[]).unwrap(), (8.0, CAMPAIGNS.len()));
        assert_eq!(named(&["0.5"]).unwrap(), (0.5, CAMPAIGNS.len()));
        assert_eq!(named(&["2", "sim", "fuzz"]).unwrap(), (2.0, 2));
        assert_eq!(named(&["fuzz"]).unwrap(), (8.0, 1));
        let error = named(&["1", "three"]).unwrap_err().to_string();
        assert!(error.starts_with("three: no such part; the parts are fuzz, sim"), "{error}");
        assert!(named(&["-1"]).is_err());
    }

    #[test]
    fn every_campaign_is_a_command() {
        let soak = Soak {
            journal: PathBuf::new(),
            stamp: Stamp { commit: String::new(), machine: String::new() },
            targets: 20,
            printer: Mutex::new(()),
        };
        for campaign in CAMPAIGNS {
            let command = soak.command(campaign, Duration::from_secs(60)).unwrap();
            let words = ["x"].into_iter().chain(command.split(' '));
            if let Err(error) = crate::Cli::try_parse_from(words) {
                panic!("{}: {error}", campaign.name);
            }
        }
    }

    /// A campaign that overruns its slice waits until the others have had their share.
    #[test]
    fn campaigns_get_time_by_their_weights() {
        let weights = [4, 1, 1];
        let mut spent = [Duration::ZERO; 3];
        for _ in 0..600 {
            let next = least(&spent, &weights).unwrap();
            // The last one always takes four times its slice.
            spent[next] += Duration::from_secs([20, 5, 20][next]);
        }
        let parts = spent.map(|spent| spent.as_secs() / 100);
        assert!(
            parts[0].abs_diff(4 * parts[1]) <= 1 && parts[1].abs_diff(parts[2]) <= 1,
            "{parts:?}"
        );
    }

    #[test]
    fn long_runs_have_several_turns() {
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        assert_eq!(slice_of(hours(1), 1, 3), Duration::from_secs(600));
        assert_eq!(slice_of(hours(8), 1, 3), Duration::from_secs(600));
        assert_eq!(slice_of(Duration::from_secs(600), 1, 3), Duration::from_secs(200));
    }
}
