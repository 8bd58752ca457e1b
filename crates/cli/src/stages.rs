//! Where the time of a volume's requests went, as JSON, as a table, and as what the rule of
//! [`crate::limit`] looks at. What is since the volume was opened; two of them, one later than the
//! other, are what was in between.

use std::fmt::Write;

use blockyard_host::stages::{Kind, Stage, StageTimes, Threads, Times};
use blockyard_host::volume::Volume;
use blockyard_host::volume::control::Counts;
use serde_json::{Map, Value, json};

use crate::limit::{Limit, Seen, limit};
use crate::size::{human_count, human_time};

/// What was asked for, by kind.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    requests: u64,
    bytes: u64,
    errors: u64,
}

/// Of a volume whose requests are counted.
pub(crate) fn counted(volume: &Volume, counts: &Counts) -> Value {
    let errors = counts.errors;
    let asked = |requests, bytes, errors| Asked { requests, bytes, errors };
    let kinds = [
        asked(counts.reads.parts, counts.reads.bytes, errors.reads),
        asked(counts.writes.parts, counts.writes.bytes, errors.writes),
        asked(counts.flushes, 0, errors.flushes),
        asked(counts.others.parts, counts.others.bytes, errors.others),
    ];
    stages(volume, &volume.stage_times(), kinds)
}

/// Of a volume whose requests are not: as many as the samples stand for.
pub(crate) fn estimated(volume: &Volume) -> Value {
    let times = volume.stage_times();
    let asked = times.kinds.each_ref().map(|kind| {
        let requests = kind.total.count() * u64::from(times.every);
        Asked { requests, ..Asked::default() }
    });
    stages(volume, &times, asked)
}

fn stages(volume: &Volume, times: &StageTimes, asked: [Asked; Kind::ALL.len()]) -> Value {
    let mut all = json!({
        "sampled_every": times.every,
        "occupied_ns": times.occupied.0,
        "connected_ns": times.connected.0,
        "device_queue": volume.has_device_queue(),
    });
    for (kind, asked) in Kind::ALL.into_iter().zip(asked) {
        let of_kind = &times.kinds[kind as usize];
        let stage =
            |stage: Stage| (stage.name().to_owned(), json_times(&of_kind.stages[stage as usize]));
        let Asked { requests, bytes, errors } = asked;
        all[kind.name()] = json!({
            "requests": requests,
            "bytes": bytes,
            "errors": errors,
            "total": json_times(&of_kind.total),
            "stages": Stage::ALL.into_iter().map(stage).collect::<Map<_, _>>(),
        });
    }
    all
}

fn json_times(times: &Times) -> Value {
    json!({
        "samples": times.count(),
        "sum_ns": u64::try_from(times.sum_ns()).unwrap_or(u64::MAX),
        "mean_ns": times.mean_ns(),
        "p50_ns": times.permille_within(500).0,
        "p99_ns": times.permille_within(990).0,
        "max_ns": times.max().0,
    })
}

/// What its threads have used.
pub(crate) fn threads(volume: &Volume) -> Value {
    let threads = |Threads { what, threads, usage }: &Threads| {
        json!({
            "threads": what,
            "count": threads,
            "cpu_ns": usage.cpu.0,
            "runnable_ns": usage.runnable.0,
            "voluntary_switches": usage.voluntary,
            "involuntary_switches": usage.involuntary,
        })
    };
    volume.threads().iter().map(threads).collect()
}

/// The volumes of a status with those of one before it, by their names.
pub(crate) fn devices<'a>(
    now: &'a Value,
    before: &'a Value,
) -> impl Iterator<Item = (&'a Value, &'a Value)> {
    let devices = |of: &'a Value| of["devices"].as_array().map_or(&[][..], Vec::as_slice);
    devices(now).iter().map(move |device| {
        let is_it = |other: &&Value| other["exports"] == device["exports"];
        (device, devices(before).iter().find(is_it).unwrap_or(&Value::Null))
    })
}

/// Connections since `before`, and requests in flight of each, in the mean.
pub(crate) fn in_flight(stages: &Value, before: &Value) -> (f64, f64) {
    let figure = |key: &str| since(stages, before, &[key]).max(1.0);
    (figure("connected_ns") / figure("occupied_ns"), seen(stages, before).in_flight)
}

/// Who limited it since `before`, or since it was opened. Both have `requests` and `threads`.
pub(crate) fn limit_of(now: &Value, before: &Value) -> Option<Limit> {
    let of = |name: &str| {
        let (now, before) =
            (threads_named(name, &now["threads"]), threads_named(name, &before["threads"]));
        let running_ns = since(now, before, &["cpu_ns"]) + since(now, before, &["runnable_ns"]);
        (now["count"].as_u64().unwrap_or(0) as usize, running_ns)
    };
    let elapsed_ns = |key: &str| since(&now["requests"], &before["requests"], &[key]).max(1.0);
    let ((_, connections_ns), (workers, workers_ns)) = (of("connections"), of("workers"));
    let workers_elapsed_ns = elapsed_ns("occupied_ns") * workers.max(1) as f64;
    limit(&Seen {
        connections_run: (connections_ns / elapsed_ns("connected_ns")).min(1.0),
        workers,
        workers_run: (workers_ns / workers_elapsed_ns).min(1.0),
        ..seen(&now["requests"], &before["requests"])
    })
}

/// What is known of threads of one kind.
fn threads_named<'a>(name: &str, threads: &'a Value) -> &'a Value {
    let mut all = threads.as_array().map_or(&[][..], Vec::as_slice).iter();
    all.find(|of| of["threads"] == name).unwrap_or(&Value::Null)
}

/// The same as JSON; null if nothing was asked for.
pub(crate) fn limit_json(limit: Option<Limit>) -> Value {
    limit.map_or(
        Value::Null,
        |Limit { party, saw, change }| json!({ "party": party, "saw": saw, "change": change }),
    )
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// What has come to a figure since then; a missing one is zero.
fn since(now: &Value, before: &Value, path: &[&str]) -> f64 {
    let at = |value| number(path.iter().fold(value, |value: &Value, key| &value[*key]));
    (at(now) - at(before)).max(0.0)
}

fn seen(stages: &Value, before: &Value) -> Seen {
    let figure = |path: &[&str]| since(stages, before, path);
    let (mut requests, mut stages_ns) = (0.0, [0.0; Stage::ALL.len()]);
    for kind in Kind::ALL.map(Kind::name) {
        let of_kind = figure(&[kind, "requests"]);
        // Of a few requests none may have been sampled: then as all before them.
        let is_sampled = figure(&[kind, "total", "samples"]) > 0.0;
        let before = if is_sampled { before } else { &Value::Null };
        let samples = since(stages, before, &[kind, "total", "samples"]);
        if samples > 0.0 {
            requests += of_kind;
            for (all_ns, stage) in stages_ns.iter_mut().zip(Stage::ALL) {
                let sum_ns = since(stages, before, &[kind, "stages", stage.name(), "sum_ns"]);
                *all_ns += sum_ns / samples * of_kind;
            }
        }
    }
    let in_flight = stages_ns.iter().sum::<f64>() / figure(&["connected_ns"]).max(1.0);
    let stages_ns = stages_ns.map(|all_ns| if requests > 0.0 { all_ns / requests } else { 0.0 });
    let has_device_queue = stages["device_queue"] == true;
    Seen { stages_ns, in_flight, has_device_queue, ..Seen::default() }
}

/// Shares of the stages since `before`, in the order of [`Stage::ALL`], and the mean time.
pub(crate) fn shares(stages: &Value, before: &Value) -> ([f64; Stage::ALL.len()], f64) {
    let Seen { stages_ns, .. } = seen(stages, before);
    let total_ns: f64 = stages_ns.iter().sum();
    let share = |ns: f64| if total_ns > 0.0 { ns / total_ns } else { 0.0 };
    (stages_ns.map(share), total_ns)
}

/// A table for people: a block for each kind that was sampled.
pub(crate) fn table(stages: &Value) -> String {
    let every = &stages["sampled_every"];
    let mut text = format!(
        "stages of 1 request in {every:<13}{:>10}{:>10}{:>10}{:>10}{:>8}\n",
        "mean", "p50", "p99", "max", "share"
    );
    let mut row = |name: &str, times: &Value, total_ns: f64| {
        let us = |key: &str| human_time(number(&times[key]));
        let share = number(&times["sum_ns"]) / total_ns * 100.0;
        let [mean, p50, p99, max] = ["mean_ns", "p50_ns", "p99_ns", "max_ns"].map(us);
        writeln!(text, "  {name:<34}{mean:>10}{p50:>10}{p99:>10}{max:>10}{share:>6.1} %")
            .expect("a string takes everything");
    };
    for kind in Kind::ALL.map(Kind::name) {
        let of_kind = &stages[kind];
        let total_ns = number(&of_kind["total"]["sum_ns"]);
        if total_ns > 0.0 {
            let samples = human_count(&of_kind["total"]["samples"], "sample");
            row(&format!("{kind}, {samples}"), &of_kind["total"], total_ns);
            for stage in Stage::ALL.map(Stage::name) {
                let times = &of_kind["stages"][stage];
                if number(&times["sum_ns"]) > 0.0 {
                    row(&format!("  {stage}"), times, total_ns);
                }
            }
        }
    }
    text
}

/// The last lines: who limits, and what would change it.
pub(crate) fn verdict(limit: &Value) -> String {
    let word = |key: &str| limit[key].as_str().unwrap_or("?");
    match limit {
        Value::Null => "limit: nothing was asked for\n".into(),
        _ => format!("limit: {}: {}\n  {}\n", word("party"), word("saw"), word("change")),
    }
}

/// All of it at the end of a measurement.
pub(crate) fn report(volume: &Volume) -> String {
    let report = report_json(volume);
    format!("\n{}{}", table(&report["requests"]), verdict(&report["limit"]))
}

/// The same as JSON.
pub(crate) fn report_json(volume: &Volume) -> Value {
    let mut report = json!({ "requests": estimated(volume), "threads": threads(volume) });
    report["limit"] = limit_json(limit_of(&report, &Value::Null));
    report
}

#[cfg(test)]
mod tests {
    use blockyard::SecretBytes;
    use blockyard::bench::{self, Tally};
    use blockyard_engine::time::Nanos;
    use blockyard_host::volume::VolumeOptions;
    use blockyard_workload::fio::{Fio, JobFile, Surroundings};

    use super::*;

    /// Who limits these jobs.
    fn party(table: &str, load: &str) -> String {
        let text = SecretBytes::copy_of(table.as_bytes());
        let settings = VolumeOptions { sample_every: Some(1), ..VolumeOptions::default() };
        let options = blockyard::Volume::options().table_text(text).settings(settings);
        let volume = options.open("table").unwrap();
        let words = load.split(' ').map(|word| word.split_once('=').unwrap_or((word, "")));
        let words: Vec<_> = words.collect();
        let here = Surroundings::of_device(volume.len());
        let jobs = JobFile::parse(None, &words, &here).unwrap().jobs;
        bench::run(&volume, &mut Fio::new(jobs).unwrap(), &Tally::default()).unwrap();
        let text = report(volume.host());
        let limit = text.lines().find(|line| line.starts_with("limit: ")).unwrap();
        limit.split(": ").nth(1).unwrap().to_owned()
    }

    fn image() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(16 << 20).unwrap();
        file
    }

    #[test]
    fn slow_device_and_slow_client_are_named() {
        let file = image();
        let delay = format!("0 32768 delay {} 0 4", file.path().display());
        let load = "ioengine=libaio rw=randread bs=4k iodepth=4 size=400k direct=1";
        assert_eq!(party(&delay, load), "the device");
        let slow = format!("{load} thinktime=2000 iodepth=1");
        assert_eq!(party("0 32768 zero", &slow), "the client");
    }

    fn device(requests: u64, device_ns: u64, connected_ns: u64) -> Value {
        let times = |sum_ns: u64| json!({ "samples": requests, "sum_ns": sum_ns });
        json!({ "requests": {
            "sampled_every": 1,
            "occupied_ns": connected_ns,
            "connected_ns": connected_ns,
            "read": {
                "requests": requests,
                "total": times(device_ns),
                "stages": { "device": times(device_ns) },
            },
        } })
    }

    #[test]
    fn what_lies_between_two_statuses_decides() {
        let idle = device(10, 1_000, 1_000_000);
        assert_eq!(limit_of(&idle, &Value::Null).unwrap().party, "the client");
        let busy = device(20, 2_000_000, 2_000_000);
        let limit = limit_of(&busy, &idle).unwrap();
        assert_eq!(limit.party, "the device");
        assert!(limit.saw.contains("100 % of a request's 200 us"), "{limit:?}");
        assert_eq!(limit_of(&busy, &busy), None);
        let mut more = busy.clone();
        more["requests"]["read"]["requests"] = json!(21);
        more["requests"]["connected_ns"] = json!(3_000_000);
        assert_eq!(limit_of(&more, &busy).unwrap().party, "the client", "as those before");
        let (shares, mean_ns) = shares(&busy["requests"], &idle["requests"]);
        assert_eq!((shares[Stage::Device as usize], mean_ns), (1.0, 199_900.0));
    }

    #[test]
    fn one_sample_is_named_in_the_singular() {
        for (count, samples) in [(1, "\n  read, 1 sample "), (2, "\n  read, 2 samples ")] {
            let table = table(&device(count, 1_000, 1_000)["requests"]);
            assert!(table.contains(samples), "{table}");
        }
    }

    #[test]
    fn no_percentile_is_behind_the_longest() {
        let mut times = Times::default();
        times.record(Nanos(1025));
        assert!(times.permille(990) > times.max(), "the bucket's middle would be shown");
        let json = json_times(&times);
        assert_eq!((&json["p99_ns"], &json["p50_ns"]), (&json["max_ns"], &json["max_ns"]));
    }
}
