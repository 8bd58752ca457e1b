//! Measurements from the JSON of fio or of `blockyard bench`.

use blockyard_workload::fio::Job;
use serde_json::{Map, Value};

use super::{Facts, Measurement, NAME, SIZE};
use crate::Error;

/// Limit of the jobs of one file; each is simulated at each point of a fit.
const JOBS_MAX: usize = 64;
/// Limit of the requests in flight of a job, of all its clones. A simulated clone has memory for
/// each.
const DEPTH_MAX: u32 = 65_536;
/// Requests of a direction without which its slowest hundredth is a matter of chance.
const IOS_MIN: u64 = 200;
/// Options that the simulated job takes over.
const TAKEN: [&str; 20] = [
    "rw",
    "readwrite",
    "rwmixread",
    "rwmixwrite",
    "bs",
    "blocksize",
    "bsrange",
    "bssplit",
    "blockalign",
    "iodepth",
    "iodepth_batch",
    "iodepth_batch_submit",
    "iodepth_batch_complete",
    "iodepth_batch_complete_min",
    "iodepth_batch_complete_max",
    "iodepth_low",
    "numjobs",
    "size",
    "random_distribution",
    "percentage_random",
];
/// Options that change the load in a way that a fit does not follow.
const REFUSED: [&str; 12] = [
    "rate",
    "rate_iops",
    "rate_min",
    "thinktime",
    "fsync",
    "fdatasync",
    "sync",
    "verify",
    "latency_target",
    "zonemode",
    "flow",
    "startdelay",
];

/// The measurements of a file, one for each job.
pub(super) fn read(file: &str, text: &str, requests: u32) -> Result<Vec<Measurement>, Error> {
    // fio may print notes in front.
    let start = text.find('{').unwrap_or(0);
    let report: Value = serde_json::from_str(&text[start..]).map_err(|error| {
        let kinds = "is neither a trace nor JSON of fio or `blockyard bench --json`";
        Error::new(format!("{file}: {kinds}: {error}"))
    })?;
    let jobs = report["jobs"].as_array().filter(|jobs| !jobs.is_empty()).ok_or_else(|| {
        Error::new(format!(
            "{file}: has no \"jobs\": write it with `fio --output-format=json` or `blockyard bench \
             --json`"
        ))
    })?;
    if jobs.len() > JOBS_MAX {
        let count = jobs.len();
        return Err(Error::new(format!(
            "{file}: has {count} jobs, and a fit takes {JOBS_MAX}: leave some out"
        )));
    }
    let global = report["global options"].as_object();
    // `bench` opens its volume once, past the page cache or not.
    let is_direct =
        report["conditions"]["direct"].as_str().is_some_and(|how| how.starts_with("yes"));
    let mut measurements = Vec::new();
    for (number, job) in jobs.iter().enumerate() {
        let fallback = number.to_string();
        let name = job["jobname"].as_str().unwrap_or(&fallback);
        let place = format!("{file}, job {name}");
        let entry = Entry { job, global, is_direct, requests, place };
        let beside = jobs
            .iter()
            .enumerate()
            .find(|(other, another)| *other != number && another["groupid"] == job["groupid"]);
        if let Some((_, other)) = beside {
            let other = other["jobname"].as_str().unwrap_or("another");
            return Err(entry.wrong(&format!(
                "ran beside job {other} (both have \"groupid\" {}): run each alone, with \
                 stonewall, and the clones of a job with group_reporting",
                job["groupid"]
            )));
        }
        measurements.push(entry.read(&format!("{file}: {name}"))?);
    }
    Ok(measurements)
}

/// A job of the file.
struct Entry<'a> {
    job: &'a Value,
    global: Option<&'a Map<String, Value>>,
    is_direct: bool,
    /// Requests to simulate.
    requests: u32,
    /// File and job, for errors.
    place: String,
}

impl Entry<'_> {
    fn wrong(&self, what: &str) -> Error {
        Error::new(format!("{}: {what}", self.place))
    }

    /// An option of the job, or else of all jobs.
    fn option(&self, key: &str) -> Option<&str> {
        let own = self.job["job options"].get(key);
        own.or_else(|| self.global?.get(key))?.as_str()
    }

    fn read(&self, label: &str) -> Result<Measurement, Error> {
        if self.job["error"].as_i64().unwrap_or(0) != 0 {
            return Err(self.wrong("\"error\" is not 0: the job failed; measure it again"));
        }
        self.check_options()?;
        let options = self.taken();
        let job = self.parsed(&options)?;
        let mut rows = Vec::new();
        for direction in ["read", "write"] {
            if self.job[direction]["total_ios"].as_u64().unwrap_or(0) > 0 {
                rows.push((format!("{NAME} {direction}"), self.metrics(direction)?));
            }
        }
        if rows.is_empty() {
            return Err(self.wrong("\"total_ios\" is 0: the job moved nothing"));
        }
        let median = |direction: &str| {
            let (_, metrics) = rows.iter().find(|(row, _)| row.ends_with(direction))?;
            metrics.iter().find(|(metric, _)| *metric == "clat_p50").map(|(_, value)| *value)
        };
        let depth = job.submission.iodepth.saturating_mul(job.clones.numjobs);
        if depth > DEPTH_MAX {
            return Err(self.wrong(&format!(
                "option \"iodepth\" times \"numjobs\" is {depth}, and a fit follows {DEPTH_MAX}: \
                 measure with fewer"
            )));
        }
        let facts = Facts {
            depth,
            read_s: median("read"),
            write_s: median("write"),
            end_bytes: job.region.size_bytes,
        };
        Ok(Measurement {
            label: self.label(label, &job, depth),
            job: section(&options, &job, self.requests),
            rows,
            facts,
        })
    }

    fn label(&self, label: &str, job: &Job, depth: u32) -> String {
        let bs = self.option("bs").or_else(|| self.option("blocksize")).unwrap_or("4k");
        format!("{label} ({} {bs}, depth {depth})", job.shape.rw.name())
    }

    fn check_options(&self) -> Result<(), Error> {
        if self.job["job options"].as_object().is_none() {
            return Err(self.wrong(
                "has no \"job options\", which say what was measured: measure with fio 3 or this \
                 version of `blockyard bench`",
            ));
        }
        if self.option("direct") != Some("1") && !self.is_direct {
            return Err(self.wrong(
                "\"direct\" is not 1: the page cache was measured, and not the device; measure \
                 with direct=1",
            ));
        }
        if self.option("bs").or_else(|| self.option("blocksize")).is_none()
            && self.option("bssplit").or_else(|| self.option("bsrange")).is_none()
        {
            return Err(self.wrong("\"job options\" has no \"bs\": give the job one block size"));
        }
        if let Some(key) = REFUSED.into_iter().find(|key| self.option(key).is_some()) {
            return Err(self.wrong(&format!(
                "has the option {key:?}, which a fit does not follow; measure without it"
            )));
        }
        Ok(())
    }

    /// The options that decide about the load, in the order of [`TAKEN`].
    fn taken(&self) -> Vec<(&'static str, String)> {
        let taken = TAKEN.into_iter().filter_map(|key| Some((key, self.option(key)?.to_owned())));
        // A part of a device whose size is unknown is taken as the whole.
        taken.filter(|(key, value)| *key != "size" || !value.contains('%')).collect()
    }

    fn parsed(&self, options: &[(&'static str, String)]) -> Result<Job, Error> {
        let mut job = Job::new("job");
        for (key, value) in options {
            job.set(key, value)
                .map_err(|error| self.wrong(&format!("option {key:?}: {}", error.problem)))?;
        }
        if job.shape.rw.trims() {
            return Err(self.wrong("option \"rw\" trims, and a fit takes reads and writes"));
        }
        Ok(job)
    }

    /// The numbers of a direction that are compared.
    fn metrics(&self, direction: &str) -> Result<Vec<(&'static str, f64)>, Error> {
        let side = &self.job[direction];
        let ios = side["total_ios"].as_u64().unwrap_or(0);
        if ios < IOS_MIN {
            return Err(self.wrong(&format!(
                "\"{direction}.total_ios\" is {ios}; the slowest hundredth needs {IOS_MIN} \
                 requests: measure longer"
            )));
        }
        let percentile = |key: &str| {
            let ns = side["clat_ns"]["percentile"][key].as_f64().filter(|ns| *ns > 0.0);
            ns.map(|ns| ns / 1e9).ok_or_else(|| {
                self.wrong(&format!(
                    "\"{direction}.clat_ns.percentile\" has no {key:?}: measure with \
                     percentile_list=50:99, and without gtod_reduce and disable_clat"
                ))
            })
        };
        let p50 = percentile("50.000000")?;
        let p99 = percentile("99.000000")?;
        Ok(vec![("clat_p50", p50), ("clat_p99", p99)])
    }
}

/// The job in the language of experiments.
fn section(options: &[(&'static str, String)], job: &Job, requests: u32) -> String {
    let options = options.iter().map(|(key, value)| format!("{key} = {value:?}, "));
    let ios = requests.div_ceil(job.clones.numjobs.max(1));
    let has_size = options.clone().any(|option| option.starts_with("size = "));
    let size = if has_size { String::new() } else { format!("size = \"{SIZE}\", ") };
    format!(
        "program = \"fio\"\nrows = \"report\"\nsections.\"{NAME}\" = {{ {}{size}\
         filename = \"disk\", \
         direct = 1, norandommap = 1, number_ios = {ios} }}",
        options.collect::<String>()
    )
}
