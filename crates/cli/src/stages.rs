//! Times of a volume's requests by stage, as a table, and the bottleneck, in two lines.

use std::fmt::Write;

use blockyard::limit::Limit;
use blockyard::status::{Activity, Requests, Times};
use blockyard::{RequestKind, Stage};

use crate::size::{human_count, human_time};

/// A table, with a block for each sampled kind.
pub(crate) fn table(requests: &Requests) -> String {
    let mut text = format!(
        "stages of 1 request in {:<13}{:>10}{:>10}{:>10}{:>10}{:>8}\n",
        requests.sampled_every, "mean", "p50", "p99", "max", "share"
    );
    let mut row = |name: &str, times: &Times, total_ns: f64| {
        let share = times.sum_ns as f64 / total_ns * 100.0;
        let ns = |ns: u64| human_time(ns as f64);
        let mean = human_time(times.mean_ns);
        let p50 = ns(times.p50_ns);
        let p99 = ns(times.p99_ns);
        let max = ns(times.max_ns);
        writeln!(text, "  {name:<34}{mean:>10}{p50:>10}{p99:>10}{max:>10}{share:>6.1} %")
            .expect("writing to a string succeeds");
    };
    for kind in RequestKind::ALL {
        let of_kind = requests.of(kind);
        let total_ns = of_kind.total.sum_ns as f64;
        if total_ns > 0.0 {
            let samples = human_count(of_kind.total.samples, "sample");
            row(&format!("{}, {samples}", kind.name()), &of_kind.total, total_ns);
            for stage in Stage::ALL {
                let times = of_kind.stages.of(stage);
                if times.sum_ns > 0 {
                    row(&format!("  {}", stage.name()), times, total_ns);
                }
            }
        }
    }
    text
}

/// The last lines: the bottleneck, and a remedy.
pub(crate) fn verdict(limit: Option<&Limit>) -> String {
    match limit {
        None => "limit: no requests\n".into(),
        Some(Limit { party, saw, change }) => {
            format!("limit: {}: {saw}\n  {change}\n", party.name())
        }
    }
}

/// Table and bottleneck at the end of a measurement.
pub(crate) fn report(activity: &Activity) -> String {
    format!("\n{}{}", table(&activity.requests), verdict(activity.limit.as_ref()))
}

#[cfg(test)]
mod tests {
    use blockyard::bench::{self, Tally};
    use blockyard::status::{KindRequests, StageTimes};
    use blockyard::{Settings, Volume};
    use blockyard_crypt::secret::SecretBytes;
    use blockyard_workload::fio::{Fio, JobFile, Surroundings};

    use super::*;

    /// The bottleneck of these jobs.
    fn party(volume: &Volume, options: &str) -> String {
        let words = options.split(' ').map(|word| word.split_once('=').unwrap_or((word, "")));
        let words: Vec<_> = words.collect();
        let here = Surroundings::of_device(volume.len());
        let jobs = JobFile::parse(None, &words, &here).unwrap().jobs;
        bench::run(volume, &mut Fio::new(jobs).unwrap(), &Tally::default()).unwrap();
        let text = report(&volume.activity());
        let limit = text.lines().find(|line| line.starts_with("limit: ")).unwrap();
        limit.split(": ").nth(1).unwrap().to_owned()
    }

    #[test]
    fn slow_device_and_slow_client_are_named() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(16 << 20).unwrap();
        let delay = format!("0 32768 delay {} 0 4", file.path().display());
        let volume = |line: &str| {
            let settings = Settings { sample_every: Some(1), ..Settings::default() };
            let text = SecretBytes::copy_of(line.as_bytes());
            Volume::options().settings(settings).table_text(text).open("a table").unwrap()
        };
        let load = "ioengine=libaio rw=randread bs=4k iodepth=4 size=400k direct=1";
        assert_eq!(party(&volume(&delay), load), "the device");
        let slow = format!("{load} thinktime=2000 iodepth=1");
        assert_eq!(party(&volume("0 32768 zero"), &slow), "the client");
    }

    #[test]
    fn one_sample_is_named_in_the_singular() {
        for (samples, text) in [(1, "\n  read, 1 sample "), (2, "\n  read, 2 samples ")] {
            let times = Times { samples, sum_ns: 1_000, ..Times::default() };
            let stages = StageTimes { device: times.clone(), ..StageTimes::default() };
            let read = KindRequests { total: times, stages, ..KindRequests::default() };
            let table = table(&Requests { read, ..Requests::default() });
            assert!(table.contains(text), "{table}");
        }
    }
}
