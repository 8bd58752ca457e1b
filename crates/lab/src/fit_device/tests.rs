use blockyard_engine::bio::{BlkStatus, Op};
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;
use blockyard_workload::trace::{Completion, TracedBio};

use super::*;

const DISK: &str = include_str!("../../../../testdata/fit-device/disk.json");
const DISK_WRITES: &str = include_str!("../../../../testdata/fit-device/disk-writes.json");
const LOOP_ON_DISK: &str = include_str!("../../../../testdata/fit-device/loop-on-disk.json");
const LOOP_ON_TMPFS: &str = include_str!("../../../../testdata/fit-device/loop-on-tmpfs.json");

fn json(text: &str) -> Vec<Input> {
    vec![Input { name: "disk.json".into(), content: Content::FioJson(text.into()) }]
}

fn quick(draws: u32) -> FitRequest {
    FitRequest { model: Some(Model::Ssd), draws, requests: 300, ..FitRequest::default() }
}

fn fitted(text: &str, request: &FitRequest) -> FittedDevice {
    fit_device(json(text), request, |_, _| ()).unwrap()
}

fn refusal(text: &str) -> String {
    fit_device(json(text), &quick(16), |_, _| ()).expect_err(text).to_string()
}

/// The factor of the middle held-out row.
fn middle(fitted: &FittedDevice, metric: &str) -> f64 {
    let factors = fitted.held_out(metric);
    factors[factors.len() / 2]
}

/// The bounds are what the fit reached, in the order of the fixtures' README. Its section in
/// docs/lab.md says why they are no better.
#[test]
fn device_fitted_to_one_half_predicts_the_other_half() {
    for (text, bounds) in [
        (DISK, [("read clat_p50", 1.21), ("read clat_p99", 1.16)]),
        (LOOP_ON_DISK, [("p50", 1.73), ("p99", 1.79)]),
        (LOOP_ON_TMPFS, [("p50", 1.24), ("p99", 1.37)]),
    ] {
        let fitted = fitted(text, &quick(128));
        let measurements = fitted.rows.iter().filter(|row| row.what.ends_with("p50")).count();
        assert_eq!(measurements, 18, "16 jobs, two of them mixed");
        for (metric, bound) in bounds {
            let middle = middle(&fitted, metric);
            assert!(middle <= bound, "{metric} {middle}\n{}", fitted.table().join("\n"));
        }
    }
}

/// Enough measurements of writes fit their times on the bus too: large writes are not as slow as
/// their bytes at the rate of small ones. The bound is what the fit reached.
#[test]
fn held_out_writes_of_all_sizes_are_predicted_from_many_measured_ones() {
    let fitted = fitted(DISK_WRITES, &quick(256));
    let factors = fitted.held_out("write clat_p50");
    assert_eq!(factors.len(), 7, "five of writes, two of mixes");
    let worst = factors.last().copied().unwrap_or(f64::INFINITY);
    assert!(worst <= 1.74, "{factors:?}\n{}", fitted.table().join("\n"));
}

#[test]
fn fitted_device_is_the_device_of_an_experiment_and_equal_in_each_run() {
    let fitted = [(); 2].map(|()| fitted(DISK, &quick(16)));
    assert_eq!(fitted[0].device, fitted[1].device);
    assert_eq!(fitted[0].rows, fitted[1].rows);
    let experiment = "name = \"mine\"\ntitle = \"Mine\"\n[variants.all]\n[jobs.reads]\n\
                      program = \"fio\"\nsections.reads = { rw = \"randread\", size = \"1m\" }\n";
    let text = format!("{experiment}{}", fitted[0].device);
    let experiment = Experiment::parse("mine.toml", &text, None).unwrap();
    let setup = experiment.setup(&experiment.variants[0], None, &[], &[]).unwrap();
    assert!(matches!(setup.config.device, blockyard_sim::world::DeviceConfig::Flash(_)));
}

/// A trace of reads that each take 80 us, one every 200 us.
fn even_trace() -> Trace {
    let bio = |number: u64| TracedBio {
        start: Nanos(number * 200_000),
        op: Op::Read,
        fua: false,
        preflush: false,
        sync: true,
        sector: number * 7_919 * 8 % (1 << 20),
        sectors: 8,
        submitter: 0,
        priority: Priority::default(),
        completion: Some(Completion { latency: Nanos(80_000), status: BlkStatus::Ok }),
    };
    Trace { bios: (0..2_000).map(bio).collect(), ..Trace::default() }
}

#[test]
fn trace_of_an_even_device_is_fitted_by_the_null_model_and_predicted() {
    let input = Input { name: "even.trace".into(), content: Content::Trace(even_trace()) };
    let request = FitRequest { draws: 48, ..FitRequest::default() };
    let fitted = fit_device(vec![input], &request, |_, _| ()).unwrap();
    assert_eq!(fitted.rows.len(), 16, "8 parts");
    for metric in ["p50", "p99"] {
        let factors = fitted.held_out(metric);
        assert_eq!(factors.len(), 4);
        assert!(factors[3] < 1.05, "{factors:?}\n{}", fitted.device);
    }
}

#[test]
fn trace_without_completions_is_refused_with_the_remedy() {
    let mut trace = even_trace();
    trace.bios.iter_mut().for_each(|bio| bio.completion = None);
    let input = Input { name: "log".into(), content: Content::Trace(trace) };
    let said = fit_device(vec![input], &quick(16), |_, _| ()).unwrap_err().to_string();
    assert!(said.starts_with("log: ") && said.contains("blktrace"), "{said}");
}

#[test]
fn wrong_measurements_are_refused_by_file_job_field_and_remedy() {
    for (from, to, words) in [
        ("\"direct\": \"1\"", "\"direct\": \"0\"", &["job r4k-d1", "\"direct\"", "direct=1"][..]),
        ("\"99.000000\"", "\"98.000000\"", &["read.clat_ns.percentile", "percentile_list=50:99"]),
        ("\"job options\"", "\"options\"", &["job r4k-d1", "\"job options\"", "fio 3"]),
        ("\"groupid\": 1,", "\"groupid\": 0,", &["beside job r4k-d2", "stonewall"]),
        ("\"total_ios\": ", "\"total_ios\": 1, \"x\": ", &["read.total_ios\" is 1", "longer"]),
        ("\"bs\": \"4k\"", "\"bs\": \"4kk\"", &["job r4k-d1", "option \"bs\""]),
        (
            "\"iodepth\": \"1\"",
            "\"numjobs\": \"4096\", \"iodepth\": \"65536\"",
            &["job r4k-d1", "\"numjobs\" is 268435456", "65536"],
        ),
        ("\"rw\":", "\"rate_iops\": \"9\", \"rw\":", &["\"rate_iops\"", "without it"]),
        ("\"error\": 0", "\"error\": 5", &["\"error\"", "again"]),
        ("\"jobs\"", "\"runs\"", &["\"jobs\"", "--output-format=json"]),
        ("{", "[", &["is neither a trace nor JSON"]),
    ] {
        let said = refusal(&DISK.replacen(from, to, 1));
        assert!(said.starts_with("disk.json"), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{from}: {said}");
    }
}

#[test]
fn clones_of_a_measured_job_share_the_device() {
    let clones = DISK.replace("\"iodepth\": \"1\"", "\"numjobs\": \"2\", \"iodepth\": \"1\"");
    let rows = fitted(&clones, &quick(16)).rows;
    assert_eq!(rows.iter().filter(|row| row.what.ends_with("p50")).count(), 18);
}

#[test]
fn measured_batches_are_simulated() {
    let batches = DISK.replace("\"bs\": \"4k\"", "\"bs\": \"4k\", \"iodepth_batch\": \"8\"");
    let read = fio_json::read("disk.json", &batches, 300).unwrap();
    assert!(read[0].job.contains("iodepth_batch = \"8\""), "{}", read[0].job);
}

#[test]
fn three_measurements_are_too_few() {
    let mut report: serde_json::Value = serde_json::from_str(DISK).unwrap();
    report["jobs"].as_array_mut().unwrap().truncate(3);
    let said = refusal(&report.to_string());
    assert!(said.contains("3 measurements") && said.contains("measure more"), "{said}");
}
