use blockyard_engine::dm::crypt::pipeline::{Choice, Pipeline, find};
use blockyard_engine::sq::Place;

use super::*;
use crate::builtin::{BUILTIN, TEMPLATE, load};

const SMALL: &str = include_str!("testdata/small.toml");

fn small() -> Experiment {
    Experiment::parse("small.toml", SMALL, None).unwrap()
}

/// The error about the small experiment after a replacement in its text.
fn refusal(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    let text = SMALL.replacen(from, to, 1);
    Experiment::parse("small.toml", &text, None).expect_err(to).to_string()
}

fn line_of(text: &str) -> String {
    let line = SMALL.lines().position(|line| line.contains(text)).unwrap() + 1;
    format!("small.toml, line {line}:")
}

#[test]
fn variants_are_overrides_over_settings_points_and_what_the_user_sets() {
    let experiment = small();
    let old = experiment.variant("old").unwrap();
    let new = experiment.variant("new").unwrap();
    let elevator = |variant, set: &[Override], control: &[Override]| {
        let setup = experiment.setup(variant, None, set, control).unwrap();
        setup.config.elevator.to_string()
    };
    assert_eq!(elevator(old, &[], &[]), "deadline");
    assert_eq!(elevator(new, &[], &[]), "deadline-prio");
    let set = [Override::parse("queue.elevator=noop").unwrap()];
    assert_eq!(elevator(new, &set, &[]), "noop", "the user's value overrides the variant's");
    let control = [Override::parse("queue.elevator=none").unwrap()];
    assert_eq!(elevator(new, &set, &control), "none", "a control overrides both");

    let point = Point { values: [9_500, 200].map(Value::Number).to_vec() };
    let setup = experiment.setup(old, Some(&point), &[], &[]).unwrap();
    let JobSpec::Fsync(options) = &setup.jobs[0].1 else { panic!("{setup:?}") };
    assert_eq!(options.background_bytes, Some(200 << 20));
}

#[test]
fn without_accepted_points_the_middle_of_the_box_is_run() {
    let experiment = small();
    let old = experiment.variant("old").unwrap();
    assert_eq!(
        experiment.points(old),
        [Some(Point { values: [9_000, 181].map(Value::Number).to_vec() })]
    );
    let points = "[disk]\ndrawn = 3\npoints = [\n\
                  { \"device.seek_average_us\" = 8001, \"jobs.fsync.background_mib\" = 130 },\n]\n";
    let fitted = Experiment::parse("small.toml", SMALL, Some(points)).unwrap();
    let old = fitted.variant("old").unwrap();
    assert_eq!(
        fitted.points(old),
        [Some(Point { values: [8_001, 130].map(Value::Number).to_vec() })]
    );
    assert!(fitted.fits[0].print(3).contains("\"device.seek_average_us\" = 8001"));
    let printed = fitted.fits[0].print(3);
    let again = Experiment::parse("small.toml", SMALL, Some(&printed)).unwrap();
    assert_eq!(again.fits[0].points, fitted.fits[0].points);
    for bad in ["8001", "9999999", "-1"] {
        let lacking = format!("[disk]\npoints = [{{ \"device.seek_average_us\" = {bad} }}]\n");
        let said =
            Experiment::parse("a/small.toml", SMALL, Some(&lacking)).unwrap_err().to_string();
        assert!(said.starts_with("a/small.fits.toml, line 2"), "{said}");
    }
    let other = "[disk]\npoints = [{ \"device.rpm\" = 7200 }]\n";
    let said = Experiment::parse("small.toml", SMALL, Some(other)).unwrap_err().to_string();
    assert!(said.contains("jobs.fsync.background_mib"), "names the sides: {said}");
}

#[test]
fn published_fsync_samples_become_the_rows_that_are_measured() {
    let experiment = small();
    let at = |metric| {
        let cell = Cell { variant: "old".into(), row: "fsync".into(), metric };
        experiment.published_at(&cell).map(|row| (row.value, row.role))
    };
    assert_eq!(at("fsync_median"), Some((1.0, Role::Calibrate)));
    assert_eq!(at("fsync_max"), Some((1.5, Role::Calibrate)));
    assert_eq!(at("fsync_over_1s"), Some((0.5, Role::Calibrate)));
    assert_eq!(at("rate"), None);
}

#[test]
fn errors_name_the_line_the_key_and_the_allowed_values() {
    for (from, to, line, words) in [
        ("kind = \"disk\"", "kind = \"dsik\"", "kind =", &["device.kind", "\"flash\""][..]),
        ("size_mib = 16384", "size_mb = 16384", "size_mib", &["device.size_mb", "size_mib"]),
        ("size_mib = 16384", "size_mib = 0", "size_mib", &["device.size_mib", "from 1 to"]),
        ("memory_mib = 64", "memory_mib = 1e9", "memory_mib", &["whole number"]),
        ("\"deadline\"", "\"dealdine\"", "\"deadline\"", &["queue.elevator", "mq-deadline"]),
        ("samples = 4", "samples = -4", "samples", &["jobs.fsync.samples", "from 1"]),
        ("program = \"fsync-tester\"", "program = \"dd\"", "program", &["\"tiotest\""]),
        ("settings = [\"prio\"]", "settings = [\"pro\"]", "settings = [", &["prio"]),
        ("role = \"calibrate\"", "role = \"fit\"", "role =", &["\"predict\""]),
        ("fsync_median = 0.1", "fsync_mean = 0.1", "fsync_median = 0.1", &["fsync_max"]),
        ("rows.fsync = {", "rows.fsnyc = {", "rows.fsync", &["\"fsnyc\"", "only fsync"]),
        ("max = 0.3", "maximum = 0.3", "max = 0.3", &["maximum", "published"]),
        ("seeds = [1, 2]", "seeds = []", "seeds", &["1 to 64"]),
        ("seeds = [1, 2]", "seeds = [1, 1]", "seeds", &["each once"]),
        ("settings = [\"prio\"]", "jobs = [\"x\"]", "settings = [", &["\"x\"", "fsync"]),
        (
            "variants = [\"old\", \"new\"]",
            "variants = [\"odl\"]",
            "variants =",
            &["\"odl\"", "new, old"],
        ),
        ("[published.new]", "[published.nwe]", "[published.new]", &["nwe", "new, old"]),
        ("value = \"new/", "value = \"nwe/", "value = ", &["nwe", "new, old"]),
        ("value = \"new/fsync/", "value = \"new/fsnyc/", "value = ", &["\"fsnyc\"", "only fsync"]),
        ("new/fsync/fsync_max", "new/fsync/rate", "value = ", &["rate", "fsync_over_1s"]),
        ("row = \"old/", "row = \"new/", "accept =", &["\"calibrate\""]),
        ("row = \"old/fsync/", "row = \"old/x/", "accept =", &["\"x\"", "only fsync"]),
        (
            "row = \"old/fsync/fsync_median\"",
            "row = \"old/fsync\"",
            "accept =",
            &["variant/row/metric"],
        ),
        (
            "device.seek_average_us",
            "device.seek_avrage_us",
            "{ path = \"device",
            &["seek_average_us"],
        ),
        (
            "jobs.fsync.background",
            "jobs.fsnyc.background",
            "{ path = \"jobs",
            &["unknown job; jobs are fsync"],
        ),
        ("size_mib = 16384", "size_mib = 1", "[jobs.fsync]", &["job fsync", "larger device"]),
    ] {
        let said = refusal(from, to);
        assert!(said.starts_with(&line_of(line)), "{to}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{to}: {said}");
    }
}

#[test]
fn jobs_of_a_variant_with_equal_rows_are_refused_and_those_of_two_variants_are_not() {
    let of = |section: &str, variants: &str| {
        let job = "program = \"fio\"\nsections.x = { rw = \"read\", size = \"64k\" }";
        let other = job.replace("sections.x", &format!("sections.{section}"));
        let head = "name = \"a\"\ntitle = \"a\"\n[device]\nkind = \"flash\"\nsize_mib = 1024";
        let text = format!("{head}\n[jobs.one]\n{job}\n[jobs.two]\n{other}\n{variants}");
        Experiment::parse("a.toml", &text, None).err().map(|error| error.to_string())
    };
    let said = of("x", "[variants.v]").unwrap();
    assert!(
        said.contains("jobs one and two of variant v both measure the row \"x read\""),
        "{said}"
    );
    assert_eq!(of("y", "[variants.v]"), None);
    assert_eq!(of("x", "[variants.v]\njobs = [\"one\"]\n[variants.w]\njobs = [\"two\"]"), None);
}

#[test]
fn side_or_a_variant_of_a_fit_that_is_there_twice_is_refused() {
    let sides = "{ path = \"device.rpm\", one_of = [5400] }";
    for (variants, sides, words) in [
        ("\"new\", \"new\"", sides.to_owned(), "fits.again.variants has \"new\" twice"),
        ("\"new\"", format!("{sides}, {sides}"), "has the path \"device.rpm\" twice"),
    ] {
        let fit = format!(
            "[fits.again]\nvariants = [{variants}]\nbox = [{sides}]\n\
             accept = [{{ row = \"old/fsync/fsync_max\", error_max = 1 }}]\n\n[[claims]]"
        );
        let text = SMALL.replacen("[[claims]]", &fit, 1);
        let said = Experiment::parse("small.toml", &text, None).unwrap_err().to_string();
        assert!(said.contains(words), "{said}");
    }
}

/// A slice of nothing, and work that fills its whole interval, leave no time to the threads.
#[test]
fn machine_without_time_for_its_threads_is_refused() {
    let refused = |machine: &str, costs: &str| {
        let text = format!("{SMALL}\n[machine]\n{machine}\n[machine.costs]\n{costs}\n");
        let parsed = Experiment::parse("small.toml", &text, None);
        parsed.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let slice = refused("scheduler = \"eevdf\"", "granularity_ns = 0");
    assert!(slice.contains("machine needs a costs.granularity_ns above 0"), "{slice}");
    for (machine, costs) in [
        ("housekeeping_us = 1\nhousekeeping_takes_ns = 0", ""),
        ("housekeeping_us = 2\nhousekeeping_takes_ns = 2000", ""),
        ("housekeeping_us = 100", "switch_ns = 1000000"),
    ] {
        let said = refused(machine, costs);
        assert!(said.contains("machine needs a housekeeping_takes_ns above 0"), "{said}");
    }
    assert_eq!(refused("housekeeping_us = 10000", "granularity_ns = 0"), "");
}

#[test]
fn mistake_in_an_override_names_the_override() {
    let experiment = small();
    let old = experiment.variant("old").unwrap();
    for (set, words) in [
        ("queue.nr_requests=0", &["--set queue.nr_requests=0", "from 1 to"][..]),
        ("queue.nr_request=8", &["--set queue.nr_request=8", "nr_requests"]),
        ("claims.x=8", &["--set claims.x=8", "queue, limit, raid, device"]),
        ("jobs.fsnyc.samples=8", &["--set jobs.fsnyc.samples=8", "jobs are fsync"]),
        ("device.kind=tape", &["--set device.kind=tape", "\"disk\""]),
        ("jobs.fsync.ioprio=rt:9", &["--set jobs.fsync.ioprio=rt:9", "be:7"]),
    ] {
        let set = [Override::parse(set).unwrap()];
        let said = experiment.setup(old, None, &set, &[]).unwrap_err().to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{set:?}: {said}");
    }
    let said = refusal("\"queue.elevator\" = \"deadline-prio\"", "\"queue.elevator\" = \"x\"");
    assert!(said.starts_with(&line_of("deadline-prio")), "{said}");
}

#[test]
fn values_that_exclude_each_other_are_refused() {
    for (from, to, words) in [
        ("id = \"2\"", "id = \"1\"", &["small.toml, line", "duplicate claim \"1\""][..]),
        ("unjudged = \"one sample\"", "check = \"004-1\"", &["\"unjudged\""][..]),
        ("sync_flags\" = false", "sync_flag\" = false", &["control of claim 1", "sync_flags"]),
        ("kind = \"disk\"", "kind = \"disk\"\nseek_track_us = 20000", &["seek_track_us <="]),
        ("[queue]", "[machine]\ncpus_per_l3 = 3\n[queue]", &["machine.cpus_per_l3", "divide"]),
        (
            "[queue]",
            "[machine.bandwidth]\nlink_mib_per_s = 9\n[queue]",
            &["machine.bandwidth.link_mib_per_s", "without memory_mib_per_s"],
        ),
        (
            "[queue]",
            "[machine.bandwidth]\ndevice_socket = 1\n[queue]",
            &["machine.bandwidth.device_socket", "machine.sockets"],
        ),
        ("[queue]", "[queue]\nlock = \"queue\"", &["queue.lock", "without queue.costs.step_ns"]),
        (
            "[queue]",
            "[queue.costs]\nstep_ns = 9\n[queue]\nlock = \"deferred\"",
            &["queue.lock", "only a null device"],
        ),
        (
            "[jobs.fsync]\nprogram = \"fsync-tester\"\nsamples = 4\nbackground_mib = 256",
            "",
            &["jobs"],
        ),
    ] {
        let said = refusal(from, to);
        assert!(words.iter().all(|word| said.contains(word)), "{to}: {said}");
    }
}

#[test]
fn null_device_has_no_timeout_and_under_a_stacked_queue_no_deferred_lock() {
    let dm_mq = &BUILTIN.iter().find(|one| one.name == "dm-mq-2016").unwrap().text;
    let said = |from: &str, more: &str| {
        let text = dm_mq.replacen(from, &format!("{from}{more}\n"), 1);
        Experiment::parse("x.toml", &text, None).unwrap_err().to_string()
    };
    let timeout = said("[queue]\n", "timeout_ms = 5");
    assert!(timeout.contains("timeout_ms") && timeout.contains("null device"), "{timeout}");
    let deferred = "\"queue.lock\" = \"deferred\"\n\"queue.costs.step_ns\" = 9";
    let lock = said("[settings.before.set]\n", deferred);
    assert!(lock.contains("deferred lock"), "{lock}");
}

#[test]
fn error_of_a_single_variant_names_it() {
    let from = "size_mib = 16384";
    let to = "size_mib = 16384\nrpm = 7200";
    let text = SMALL.replacen(from, to, 1);
    let text =
        text.replacen("\"queue.elevator\" = \"deadline-prio\"", "\"device.kind\" = \"memory\"", 1);
    let said = Experiment::parse("small.toml", &text, None).unwrap_err().to_string();
    assert!(said.starts_with("small.toml, line") && said.ends_with("(in variant new)"), "{said}");
}

#[test]
fn variant_has_one_fit() {
    let text = SMALL.replacen(
        "[[claims]]",
        "[fits.again]\nvariants = [\"old\"]\nbox = [{ path = \"device.rpm\", one_of = [5400] }]\n\
        accept = [{ row = \"old/fsync/fsync_max\", error_max = 1 }]\n\n[[claims]]",
        1,
    );
    let said = Experiment::parse("small.toml", &text, None).unwrap_err().to_string();
    assert!(said.contains("fits.again") && said.contains("fits.disk"), "{said}");
}

#[test]
fn every_experiment_of_ours_and_the_template_can_be_read() {
    for builtin in BUILTIN {
        assert_eq!(load(builtin.name).unwrap().name, builtin.name);
    }
    let template = Experiment::parse("template.toml", TEMPLATE, None).unwrap();
    assert!(!template.variants.is_empty());
    let uncommented = |line: &str| match line.strip_prefix("# ") {
        Some(rest) if rest.starts_with('[') || rest.contains(" = ") => rest.to_owned() + "\n",
        _ => line.to_owned() + "\n",
    };
    let all: String = TEMPLATE.lines().map(uncommented).collect();
    let all = Experiment::parse("template.toml", &all, None).unwrap();
    assert_eq!((all.fits.len(), all.published.len()), (1, 1), "the commented lines are valid too");
}

#[test]
fn deadline_2009_has_all_claims_and_fits_only_on_allowed_rows() {
    let experiment = load("deadline-2009").unwrap();
    let ids: Vec<String> = experiment.claims.iter().map(|claim| claim.id.clone()).collect();
    assert_eq!(ids, (1..=29).map(|n| format!("004-{n}")).collect::<Vec<_>>());
    assert_eq!(experiment.published.len(), 5 * (36 + 4) + 4 * 4);
    let fitted = |row: &&Published| row.role == Role::Calibrate;
    let fitted = experiment.published.iter().filter(fitted).map(|row| row.cell.variant.as_str());
    let fitted: BTreeSet<&str> = fitted.collect();
    assert_eq!(fitted, BTreeSet::from(["hdd-deadline-original", "sd-cfq"]));
}

/// The rates of a benchmark, which docs/cores.md shows.
#[test]
fn many_cpus_2026_has_the_measured_rates_and_fits_on_one_and_two_cpus() {
    let experiment = load("many-cpus-2026").unwrap();
    let lines = include_str!("../../../../testdata/cores-16.jsonl").lines().skip(1);
    let cells: Vec<serde_json::Value> =
        lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(experiment.published.len(), 6 * 5 * 6);
    for row in &experiment.published {
        let (pipeline, cpus) = row.cell.variant["cpus-".len()..].rsplit_once('-').unwrap();
        let (job, direction) = row.cell.row.split_once(' ').unwrap();
        let (shape, block) = job.split_once('-').unwrap();
        let shape = if shape == "one" { "one submitter" } else { "a submitter for each CPU" };
        let block = if block == "4k" { "4 KiB" } else { "1 MiB" };
        let subject = if pipeline == "inline" { "adaptive" } else { pipeline };
        let is_its = |cell: &&serde_json::Value| {
            cell["shape"] == shape
                && cell["subject"] == subject
                && cell["cpus"].as_u64() == cpus.parse().ok()
                && cell["job"].as_str().unwrap().starts_with(&format!("{block} {direction} "))
        };
        let mib_s = cells.iter().find(is_its).unwrap()["mib_s"].as_f64().unwrap();
        let rate = mib_s * f64::from(1 << 20);
        assert!((row.value - rate).abs() < 1.0, "{row:?}: {rate}");
        assert_eq!(row.role == Role::Calibrate, ["1", "2"].contains(&cpus), "{row:?}");
    }
}

#[test]
fn worlds_of_an_ensemble_are_points_of_its_variants() {
    let plain = SMALL.replace("variants = [\"old\", \"new\"]", "variants = [\"old\"]");
    let with = |worlds: &str| {
        let ensemble = format!("[ensembles.drives]\nvariants = [\"new\"]\nworlds = [{worlds}]\n");
        Experiment::parse("x.toml", &format!("{plain}\n{ensemble}"), None)
    };
    let two = "{ \"device.rpm\" = 5400, \"device.queue_depth\" = 1 }, \
               { \"device.queue_depth\" = 31, \"device.rpm\" = 7200 }";
    let experiment = with(two).unwrap();
    let points = experiment.points(experiment.variant("new").unwrap());
    assert_eq!(points.len(), 2);
    let depth = |at: usize| {
        let set = experiment.ensembles[0].overrides(points[at].as_ref().unwrap());
        set.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(depth(0), "device.queue_depth = 1, device.rpm = 5400");
    assert_eq!(depth(1), "device.queue_depth = 31, device.rpm = 7200");
    for (worlds, said) in [
        ("{ \"device.rpm\" = 5400 }, { \"device.queue_depth\" = 1 }", "paths of the first world"),
        ("", "needs \"worlds\""),
    ] {
        let error = with(worlds).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let shared = format!(
        "{SMALL}\n[ensembles.d]\nvariants = [\"new\"]\nworlds = [{{ \"device.rpm\" = 5400 }}]"
    );
    let error = Experiment::parse("x.toml", &shared, None).unwrap_err().to_string();
    assert!(error.contains("has points already"), "{error}");
}

#[test]
fn ratio_that_is_accepted_needs_two_rows_that_may_be_fitted() {
    let accept = |text: &str| {
        let own = "{ row = \"old/fsync/fsync_median\", error_max = 0.5 }";
        Experiment::parse("x.toml", &SMALL.replace(own, text), None)
    };
    let cells = "\"old/fsync/fsync_max\", \"old/fsync/fsync_min\"";
    let fit = &accept(&format!("{{ ratio = [{cells}], error_max = 0.1 }}")).unwrap().fits[0];
    assert_eq!(fit.accept[0].to_string(), "old/fsync/fsync_max / old/fsync/fsync_min");
    for (text, said) in [
        ("{ ratio = [\"old/fsync/fsync_max\"], error_max = 0.1 }", "takes two"),
        (
            "{ ratio = [\"old/fsync/fsync_max\", \"new/fsync/fsync_median\"], error_max = 1 }",
            "calibrate",
        ),
        ("{ error_max = 0.1 }", "\"ratio\" with two"),
    ] {
        let error = accept(text).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

const GUIDE: &str = include_str!("../../../../docs/lab.md");

const CELL: &str = "\"a/fsync/fsync_max\"";

const HEAD: &str = "name = \"a\"\ntitle = \"a\"\n";

const JOB: &str = "[jobs.f]\nprogram = \"fsync-tester\"\n";

const CLAIM: &str = "[[claims]]\nid = \"1\"\ntext = \"a\"\n";

/// The keys of every table, from the error about an unknown key.
fn every_key() -> BTreeSet<String> {
    let rest = "[variants.a]\n[published.a]\nrole = \"calibrate\"\nfsync_samples = [1]\n";
    let measure = format!("measure = [{{ value = {CELL}, max = 1");
    let mut keys = BTreeSet::new();
    let machine = ["", ".costs", ".governor", ".bandwidth", ".idle"];
    let machine = machine.map(|part| format!("[machine{part}]\nx = 1\n"));
    for (world, judged) in machine.iter().map(|world| (world.as_str(), "")).chain([
        ("x = 1\n", ""),
        ("[page_cache]\nx = 1\n", ""),
        ("[write_back]\nx = 1\n", ""),
        ("[file_system]\nx = 1\n", ""),
        ("[file_system]\nkind = \"log\"\nx = 1\n", ""),
        ("[queue]\nx = 1\n", ""),
        ("[queue.costs]\nx = 1\n", ""),
        ("[limit]\nx = 1\n", ""),
        ("[raid]\nx = 1\n", ""),
        ("[device]\nx = 1\n", ""),
        ("[device]\nkind = \"flash\"\nx = 1\n", ""),
        ("[device]\nkind = \"cluster\"\nx = 1\n", ""),
        ("[device]\nkind = \"memory\"\nx = 1\n", ""),
        ("[device]\nkind = \"null\"\nx = 1\n", ""),
        ("[device]\nkind = \"null\"\n[stack]\nx = 1\n", ""),
        ("[device]\nkind = \"null\"\n[stack.costs]\nx = 1\n", ""),
        ("[crypt]\npipeline = \"E\"\nx = 1\n", ""),
        ("[crypt]\npipeline = \"E\"\n[crypt.costs]\nx = 1\n", ""),
        ("[crypt]\npipeline = \"E\"\n[crypt.workqueue]\nx = 1\n", ""),
        ("[crypt]\npipeline = \"E\"\n[memory]\nx = 1\n", ""),
        ("[settings.x]\nx = 1\n", ""),
        ("[settings.y]\n[grids.x]\naxes = [[\"y\"]]\nx = 1\n", ""),
        ("[jobs.x]\nprogram = \"tiotest\"\nx = 1\n", ""),
        ("[jobs.x]\nprogram = \"fsync-tester\"\nx = 1\n", ""),
        ("[jobs.x]\nprogram = \"fs_mark\"\nx = 1\n", ""),
        ("[jobs.x]\nprogram = \"fio\"\nx = 1\nsections.y = { size = \"4k\" }\n", ""),
        ("[jobs.x]\nprogram = \"fio\"\nsections.y = { size = \"4k\", x = 1 }\n", ""),
        ("[jobs.x]\nprogram = \"trace\"\nfile = \"y\"\nx = 1\n", ""),
        ("[variants.b]\nx = 1\n", ""),
        ("[quick]\nx = 1\n", ""),
        ("", "[ensembles.e]\nvariants = [\"a\"]\nworlds = [{ \"device.rpm\" = 7200 }]\nx = 1\n"),
        ("[published.b]\nx = 1\n[variants.b]\n", ""),
        ("", &format!("[[claims]]\nid = \"1\"\ntext = \"a\"\nx = 1\n{measure} }}]\n")),
        ("", &format!("{CLAIM}{measure}, x = 1 }}]\n")),
        ("", &format!("{CLAIM}{measure}, where = {{ value = {CELL}, max = 1, x = 1 }} }}]\n")),
        ("", &format!("{CLAIM}{measure}, cell = {{ max = 1, x = 1 }} }}]\n")),
        ("", &format!("{CLAIM}measure = [{{ value = {{ largest = {CELL}, x = 1 }} }}]\n")),
        ("", &format!("{CLAIM}{measure} }}]\ncontrol = {{ set = {{ a = 1 }}, x = 1 }}\n")),
        ("", "[fits.f]\nvariants = [\"a\"]\nbox = [{ x = 1, path = \"a\", low = 1, high = 2 }]\n"),
        (
            "",
            &format!(
                "[fits.f]\nvariants = [\"a\"]\n\
                 accept = [{{ x = 1, row = {CELL}, error_max = 1 }}]\n"
            ),
        ),
        (
            "",
            &format!(
                "[fits.f]\nvariants = [\"a\"]\nx = 1\n\
                 box = [{{ path = \"device.rpm\", low = 7000, high = 7200 }}]\n\
                 accept = [{{ row = {CELL}, error_max = 1 }}]\n"
            ),
        ),
    ]) {
        let text = format!("{HEAD}{world}{JOB}{rest}{judged}");
        let said = Experiment::parse("x.toml", &text, None).expect_err(&text).to_string();
        let (_, listed) = said.split_once("there are ").unwrap_or_else(|| panic!("{text}{said}"));
        let listed = listed.split(" (in variant").next().unwrap_or_default();
        keys.extend(listed.split(", ").map(str::to_owned));
    }
    keys
}

#[test]
fn guide_names_every_key_and_metric_and_no_other() {
    let keys = every_key();
    assert!(keys.len() > 120, "{keys:?}");
    let metrics = metric::METRICS.iter().map(|metric| metric.name);
    for key in keys.iter().map(String::as_str).chain(metrics) {
        let forms = [format!("`{key}`"), format!("`{key}."), format!("[{key}")];
        let is_there = forms.iter().any(|form| GUIDE.contains(form));
        assert!(is_there, "{key} is not in docs/lab.md");
    }
    let (_, reference) = GUIDE.split_once("| key | default |").unwrap();
    let (reference, _) = reference.split_once("\n\n").unwrap();
    for line in reference.lines().skip(2) {
        let first = line.split('|').nth(1).unwrap();
        let named = first.split('`').skip(1).step_by(2).filter(|name| !name.starts_with('['));
        for name in named {
            let name = name.split('.').next().unwrap();
            assert!(keys.contains(name), "docs/lab.md has the unknown key {name:?}: {line}");
        }
    }
}

/// The small experiment with a grid of two axes, and a claim about it.
fn with_grid(more: &str) -> Result<Experiment, Error> {
    let grid = "
[settings.fast.set]
\"device.rpm\" = 15000
[settings.slow.set]
\"device.rpm\" = 5400
[settings.short.set]
\"queue.nr_requests\" = 4
[settings.long.set]
\"queue.nr_requests\" = 256
[grids.all]
title = \"each with each\"
settings = [\"prio\"]
axes = [[\"fast\", \"slow\"], [\"short\", \"long\"]]
";
    Experiment::parse("small.toml", &format!("{SMALL}{grid}{more}"), None)
}

#[test]
fn grid_has_a_variant_for_each_combination_of_settings() {
    let experiment = with_grid("").unwrap();
    let names: Vec<&str> = experiment.variants.iter().map(|one| one.name.as_str()).collect();
    let of_grid = ["all-fast-short", "all-fast-long", "all-slow-short", "all-slow-long"];
    assert_eq!(names, [&["old", "new"][..], &of_grid].concat());
    let variant = experiment.variant("all-slow-long").unwrap();
    let setup = experiment.setup(variant, None, &[], &[]).unwrap();
    assert_eq!(setup.config.queue.nr_requests, 256);
    assert_eq!(setup.config.elevator.to_string(), "deadline-prio", "of the grid's own settings");
    assert_eq!(variant.grid.as_ref().unwrap().1, ["slow", "long"]);
    for (more, words) in [
        ("[grids.x]\naxes = [[\"fats\"]]\n", &["\"fats\"", "fast"][..]),
        ("[grids.x]\naxes = [[]]\n", &["lists of names"]),
        ("[grids.x]\ntitle = \"x\"\n", &["axes"]),
        ("[variants.all-fast-short]\n", &["\"all-fast-short\" twice"]),
    ] {
        let said = with_grid(more).unwrap_err().to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{more}: {said}");
    }
}

#[test]
fn claim_about_many_cells_needs_a_reduction_to_one_number() {
    let claim = |measure: &str| {
        let text = format!("[[claims]]\nid = \"9\"\ntext = \"t\"\n[[claims.measure]]\n{measure}\n");
        with_grid(&text)
    };
    let cells = "all-{fast,slow}-{short,long}/fsync/fsync_max";
    let one = "old/fsync/fsync_max";
    let read = claim(&format!("ratio = [\"{cells}\", \"{one}\"]\nover = \"median\"\nmax = 1"));
    let measures = read.unwrap().claims.pop().unwrap().judge.measures().to_vec();
    assert_eq!(variants_of(&measures).len(), 5);
    for (measure, words) in [
        (format!("value = \"{cells}\"\nmax = 1"), &["over", "\"median\""][..]),
        (format!("value = \"{one}\"\nover = \"rank\"\nmax = 1"), &["\"rank correlation\""]),
        (format!("value = \"{cells}\"\nover = \"place of largest\"\nmax = 1"), &["one pair"]),
        (format!("value = \"{cells}\"\nover = \"share\"\nmax = 1"), &["\"cell\""]),
        (format!("value = \"{cells}\"\nover = \"rank correlation\"\nalong = 3"), &["1 to 2"]),
        ("value = \"all-{fast,slow/fsync/fsync_max\"\nmax = 1".into(), &["{a,b}"]),
        ("value = \"all-{fast,x}-short/fsync/fsync_max\"\nmax = 1".into(), &["all-x-short"]),
        (format!("ratio = [\"{one}\"]\nmax = 1"), &["takes two"]),
        (format!("recovered = [\"{one}\"]\nmax = 1"), &["takes three"]),
        (
            format!(
                "ratio = [\"{cells}\", \"all-{{fast,slow}}-short/fsync/fsync_max\"]\n\
                 over = \"median\"\nmax = 1"
            ),
            &["other braces"],
        ),
        (
            format!(
                "value = \"{cells}\"\nover = \"median\"\nmax = 1\n\
                 where = {{ value = \"{one}\", min = 1 }}"
            ),
            &["the same braces"],
        ),
    ] {
        let said = claim(&measure).unwrap_err().to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{measure}: {said}");
    }
}

#[test]
fn options_of_a_crypt_line_change_the_kernels_pipeline_and_no_other() {
    let of = |crypt: &str| {
        let text = format!("{SMALL}\n[crypt]\n{crypt}\n");
        Experiment::parse("small.toml", &text, None).and_then(|experiment| {
            let setup = experiment.setup(&experiment.variants[0], None, &[], &[])?;
            Ok(setup.config.mapped.expect("the variant has a crypt target"))
        })
    };
    let pipeline = |crypt: &str| match of(crypt).unwrap().pipeline {
        Choice::Fixed(pipeline) => pipeline,
        Choice::Adaptive(_) => panic!("{crypt}: adaptive"),
    };
    let linux = pipeline("pipeline = \"linux\"");
    assert_eq!(linux, find("linux-today").unwrap().pipeline);
    let reads = "pipeline = \"linux\"\noptions = [\"no_read_workqueue\", \"high_priority\"]";
    assert_eq!(pipeline(reads), Pipeline { read: Place::Inline, ..linux });
    assert!(of(reads).unwrap().high_priority && !of("pipeline = \"linux\"").unwrap().high_priority);
    let sizes = "pipeline = \"linux\"\nmax_read_kib = 0\nmax_write_kib = 64";
    let max_read_bytes = None;
    let max_write_bytes = Some(64 << 10);
    assert_eq!(pipeline(sizes), Pipeline { max_read_bytes, max_write_bytes, ..linux });
    let by_fields = pipeline("pipeline = \"place=any,submit=thread,sort=on\"");
    assert_eq!(by_fields, find("G").unwrap().pipeline);
    let refused = |crypt: &str| of(crypt).unwrap_err().to_string();
    let fields = refused("pipeline = \"place=here\"");
    assert!(fields.contains("inline, same, any"), "{fields}");
    let other = refused("pipeline = \"G\"\noptions = [\"high_priority\"]");
    assert!(other.contains("crypt.options needs pipeline = \"linux\""), "{other}");
    let unknown = refused("pipeline = \"linux\"\noptions = [\"fast\"]");
    assert!(unknown.contains("\"fast\", but takes same_cpu_crypt"), "{unknown}");
}

#[test]
fn adaptive_needs_more_for_a_hand_over_where_that_takes_longer_and_no_worker_on_one_cpu() {
    let of = |cpus: u16, crypt: &str| {
        let machine = format!("[machine]\nsockets = 1\ncpus_per_socket = {cpus}");
        let text = format!("{SMALL}\n{machine}\n[crypt]\n{crypt}\n");
        Experiment::parse("small.toml", &text, None).and_then(|experiment| {
            let setup = experiment.setup(&experiment.variants[0], None, &[], &[])?;
            Ok(setup.config.mapped.expect("the variant has a crypt target"))
        })
    };
    let least = |cpus: u16, hand_over_ns: u32| {
        let crypt = format!("pipeline = \"adaptive\"\nhand_over_ns = {hand_over_ns}");
        match of(cpus, &crypt).unwrap().pipeline {
            Choice::Adaptive(adaptive) => adaptive.fan_out_min_bytes,
            Choice::Fixed(pipeline) => panic!("{pipeline:?}"),
        }
    };
    // The cipher takes a microsecond for a KiB.
    assert_eq!(least(2, 16_000), Some(16 << 10));
    assert_eq!(least(2, 32_000), Some(32 << 10));
    assert_eq!((least(1, 16_000), least(2, 1_000_000)), (None, Some(1_000 << 10)));
    let refused = |crypt: &str| of(2, crypt).unwrap_err().to_string();
    let fixed = refused("pipeline = \"E\"\nhand_over_ns = 16000");
    assert!(fixed.contains("crypt.hand_over_ns is for adaptive"), "{fixed}");
    let cut = refused("pipeline = \"adaptive\"\nmax_read_kib = 128");
    assert!(cut.contains("crypt.max_read_kib is for the other pipelines"), "{cut}");
}
