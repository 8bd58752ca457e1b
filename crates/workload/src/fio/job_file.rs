//! Job files: sections of options in fio's format (its documentation, "Job file format").
//!
//! ```text
//! [global]          defaults of all later sections; may occur several times
//! bs=4k
//! [reader]          a job: its name, and one option per line
//! rw=randread       ; or # begins a comment
//! stonewall         a switch without a value is on
//! ```
//! The jobs run on one volume, which has no page cache and a fixed length. `size` and `offset` may
//! be percentages of it, and a job without `size` uses the whole volume. An `ioengine` decides only
//! whether a thread has many requests in flight; without one it has one, as in fio. Options without
//! a meaning on a volume are listed as ignored; unknown ones are errors ([`super::known`]).

use std::fmt;

use super::job::{IODEPTH_MAX, Job};
use super::known::{self, Engine, IGNORED};
use super::options;
use super::surroundings::Surroundings;
use super::value::flag;

/// Greatest length of a job file. Our choice.
const TEXT_MAX_BYTES: usize = 1 << 20;
/// Greatest number of jobs. Our choice.
const JOBS_MAX: usize = 1024;

/// A parsed job file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFile {
    /// The jobs, in their order.
    pub jobs: Vec<Job>,
    /// Options that change nothing here.
    pub ignored: Vec<Ignored>,
    /// `direct` or `buffered`, if given: whether the volume is opened with direct I/O.
    pub direct: Option<bool>,
}

/// An option that changes nothing here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    /// Name of the option.
    pub key: String,
    /// The reason.
    pub why: &'static str,
}

/// An error in a job file, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFileError {
    /// Line number, counted from 1; `None` if the error concerns the whole file or an option given
    /// beside it.
    pub line: Option<usize>,
    /// The problem.
    pub problem: String,
}

impl fmt::Display for JobFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.problem)
    }
}

impl std::error::Error for JobFileError {}

/// A section during parsing.
#[derive(Clone, Debug)]
struct Section {
    job: Job,
    engine: Engine,
    has_size: bool,
    /// `direct`, if given. It decides how the volume is opened, not how the job waits.
    direct: Option<bool>,
    line: Option<usize>,
}

impl Section {
    fn new() -> Self {
        let job = Job::new("global").with(|job| {
            job.submission.direct = true;
            job.region.filename = Some("volume".into());
        });
        Self { job, engine: Engine::Waiting, has_size: false, direct: None, line: None }
    }

    fn named(&self, name: &str, line: Option<usize>) -> Self {
        let job = self.job.clone().with(|job| job.name = name.into());
        Self { job, line, ..self.clone() }
    }
}

/// Parser state of a file.
struct Reader<'a> {
    options: Options<'a>,
    global: Section,
    sections: Vec<Section>,
    /// Whether options go to the last section instead of the global one.
    in_job: bool,
}

/// State for the options of all sections: the facts about the volume, and the ignored options.
struct Options<'a> {
    surroundings: &'a Surroundings<'a>,
    ignored: Vec<Ignored>,
}

impl JobFile {
    /// Parses a job file for a volume of this length. `more` are options that apply to every job;
    /// without a text they are the job.
    ///
    /// # Errors
    /// The wrong line.
    pub fn parse(
        text: Option<&str>,
        more: &[(&str, &str)],
        surroundings: &Surroundings<'_>,
    ) -> Result<Self, JobFileError> {
        let whole = |problem: String| JobFileError { line: None, problem };
        let global = Section::new();
        let sections = Vec::new();
        let options = Options { surroundings, ignored: Vec::new() };
        let mut reader = Reader { options, global, sections, in_job: false };
        match text {
            Some(text) if text.len() > TEXT_MAX_BYTES => {
                let limit = TEXT_MAX_BYTES >> 10;
                return Err(whole(format!("it is longer than {limit} KiB")));
            }
            Some(text) => reader.read(text)?,
            None => reader.sections.push(reader.global.named("bench", None)),
        }
        if reader.sections.is_empty() {
            return Err(whole("it has no job: a section such as [reader] begins one".into()));
        }
        for (key, value) in more {
            for section in &mut reader.sections {
                reader.options.set(section, key, value).map_err(whole)?;
            }
        }
        reader.finish()
    }
}

impl Reader<'_> {
    fn read(&mut self, text: &str) -> Result<(), JobFileError> {
        for (index, line) in text.lines().enumerate() {
            let number = Some(index + 1);
            let at = |problem: String| JobFileError { line: number, problem };
            let line = without_comment(line).trim();
            if line.is_empty() {
                continue;
            }
            if let Some(name) = line.strip_prefix('[') {
                let name = name.strip_suffix(']').filter(|name| !name.is_empty());
                let name = name.ok_or_else(|| {
                    at(format!("{line:?} is no section; a section looks like [reader]"))
                })?;
                self.begin(name, number).map_err(at)?;
                continue;
            }
            let (key, value) = line.split_once('=').unwrap_or((line, ""));
            let key = key.trim();
            let value = value.trim();
            // In place: a copy for each line of a long file would be long.
            let section = self.sections.last_mut().filter(|_| self.in_job);
            self.options.set(section.unwrap_or(&mut self.global), key, value).map_err(at)?;
        }
        Ok(())
    }

    fn begin(&mut self, name: &str, line: Option<usize>) -> Result<(), String> {
        self.in_job = name != "global";
        if self.in_job {
            if self.sections.len() == JOBS_MAX {
                return Err(format!("it has more than {JOBS_MAX} jobs"));
            }
            self.sections.push(self.global.named(name, line));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<JobFile, JobFileError> {
        let mut jobs = Vec::new();
        let direct = self.sections.first().and_then(|section| section.direct);
        for section in std::mem::take(&mut self.sections) {
            let line = section.line;
            if section.direct != direct {
                let problem = "all jobs share one volume, which is opened once: set direct once, \
                               in [global]";
                return Err(JobFileError { line, problem: problem.into() });
            }
            jobs.push(self.job(section).map_err(|problem| JobFileError { line, problem })?);
        }
        Ok(JobFile { jobs, ignored: self.options.ignored, direct })
    }

    /// Builds the job of a section.
    fn job(&mut self, section: Section) -> Result<Job, String> {
        let Section { mut job, engine, has_size, .. } = section;
        let device_bytes = self.options.surroundings.device_bytes;
        if engine == Engine::Waiting && job.submission.iodepth > 1 {
            self.options.ignore("iodepth", "psync has one request in flight; take ioengine=libaio");
            job.submission.iodepth = 1;
        }
        assert!(job.submission.iodepth <= IODEPTH_MAX, "setting an option checks it");
        let apart =
            if job.region.divide { 0 } else { u64::from(job.clones.count()).saturating_sub(1) };
        let last = job
            .region
            .offset_increment_bytes
            .saturating_mul(apart)
            .saturating_add(job.region.offset_bytes);
        if !has_size {
            let left = device_bytes.saturating_sub(last);
            let min_bytes = job.shape.min_bytes().max(1);
            job.region.size_bytes = left / min_bytes * min_bytes;
            if job.region.size_bytes == 0 && job.shape.min_bytes() > 0 {
                return Err(format!(
                    "job {}: a block of {min_bytes} bytes at offset {last} ends past the \
                     volume's end, {device_bytes}; make bs or offset smaller",
                    job.name
                ));
            }
        }
        job.check().map_err(|error| error.to_string())?;
        if last.saturating_add(job.region.size_bytes) > device_bytes {
            return Err(format!(
                "job {}: size and offset end at {} bytes, and the volume has {}; reduce \
                 them, or omit size",
                job.name,
                last.saturating_add(job.region.size_bytes),
                device_bytes
            ));
        }
        Ok(job)
    }
}

impl Options<'_> {
    fn set(&mut self, section: &mut Section, key: &str, value: &str) -> Result<(), String> {
        let value = &self.surroundings.expand(value)?;
        if let Some((key, why)) = known::ignored(key) {
            self.ignore(key, why);
            return Ok(());
        }
        let key = if key.starts_with("include ") { "include" } else { key };
        if let Some(why) = known::refusal(key) {
            return Err(format!("{key} {why}"));
        }
        match key {
            "name" => {
                section.job.name = value.into();
                Ok(())
            }
            "direct" | "buffered" => {
                let said = flag(value).map_err(|problem| format!("{key}={value}: {problem}"))?;
                section.direct = Some(said == (key == "direct"));
                Ok(())
            }
            "ioengine" => {
                section.engine = known::engine(value)?;
                section.job.submission.interface = section.engine.interface();
                Ok(())
            }
            "size" | "offset" | "offset_increment" | "io_size" | "io_limit" => {
                let bytes = self.bytes(section, value);
                section.has_size |= key == "size";
                let value = bytes.map_or(value.clone(), |bytes| bytes.to_string());
                section.job.set(key, &value).map_err(|error| problem(&error))
            }
            _ => section.job.set(key, value).map_err(|error| problem(&error)),
        }
    }

    /// A percentage of the volume, in whole blocks.
    fn bytes(&self, section: &Section, value: &str) -> Option<u64> {
        let percent: u64 =
            value.strip_suffix('%')?.parse().ok().filter(|percent| *percent <= 100)?;
        let bytes = u128::from(self.surroundings.device_bytes) * u128::from(percent) / 100;
        let block_bytes = section.job.shape.min_bytes().max(512);
        Some(bytes as u64 / block_bytes * block_bytes)
    }

    fn ignore(&mut self, key: &str, why: &'static str) {
        if self.ignored.iter().all(|ignored| ignored.key != key) {
            self.ignored.push(Ignored { key: key.into(), why });
        }
    }
}

/// The problem without the job's name, which is clear from the section.
fn problem(error: &super::JobError) -> String {
    let mut text = format!("{} {}", error.key, error.problem);
    let known = options::names().chain(IGNORED.iter().map(|(name, _)| *name));
    if !options::names().any(|name| name == error.key)
        && let Some(nearest) = nearest(&error.key, known)
    {
        text = format!("{} is not a known option; did you mean {nearest}?", error.key);
    }
    text
}

/// The most similar name, if it differs in few letters.
fn nearest<'a>(key: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Two names differ at least in their lengths, and most names are left out so.
    let len = key.chars().count();
    let is_as_long = |name: &&str| len.abs_diff(name.len()) * 3 <= name.len();
    let distances = names.filter(is_as_long).map(|name| (distance(key, name), name));
    distances.min().filter(|(distance, name)| *distance * 3 <= name.len()).map(|(_, name)| name)
}

/// Edit distance of two names (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.chars().take(64).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, other) in other.iter().enumerate() {
            let change = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = change.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

/// Removes a comment, which begins at the start of the line or after a space.
fn without_comment(line: &str) -> &str {
    let is_comment = |at: usize| line[..at].chars().next_back().is_none_or(char::is_whitespace);
    let start = line.match_indices([';', '#']).map(|(at, _)| at).find(|at| is_comment(*at));
    start.map_or(line, |at| &line[..at])
}

#[cfg(test)]
mod tests {
    use super::super::Rw;
    use super::*;

    const DEVICE_BYTES: u64 = 64 << 20;

    fn volume() -> Surroundings<'static> {
        Surroundings::of_device(DEVICE_BYTES)
    }

    fn parse(text: &str) -> Result<JobFile, String> {
        JobFile::parse(Some(text), &[], &volume()).map_err(|error| error.to_string())
    }

    #[test]
    fn sections_start_with_what_global_says_before_them() {
        let file = parse(
            "; a comment\n[global]\nioengine=libaio # and another\nbs=8k\niodepth=16\n\n\
             [one]\nrw=randread\n[global]\nbs = 64k\n[two]\nrw=write\niodepth=4\nstonewall\n",
        );
        let jobs = file.unwrap().jobs;
        let seen: Vec<_> = jobs
            .iter()
            .map(|job| {
                (
                    job.name.as_str(),
                    job.shape.rw,
                    job.shape.block_bytes >> 10,
                    job.submission.iodepth,
                )
            })
            .collect();
        assert_eq!(seen, [("one", Rw::RandRead, 8, 16), ("two", Rw::Write, 64, 4)]);
        assert_eq!([jobs[0].grouping.stonewall, jobs[1].grouping.stonewall], [false, true]);
        assert!(
            jobs.iter().all(|job| job.region.size_bytes == DEVICE_BYTES && job.submission.direct)
        );
    }

    #[test]
    fn size_is_percent_of_the_volume_or_all_that_is_behind_the_offset() {
        let file = parse(
            "[a]\nsize=50%\noffset=25%\n[b]\noffset=1m\n[c]\noffset_increment=16m\nnumjobs=4\n",
        );
        let places: Vec<_> = file
            .unwrap()
            .jobs
            .iter()
            .map(|job| (job.region.offset_bytes >> 20, job.region.size_bytes >> 20))
            .collect();
        assert_eq!(places, [(16, 32), (1, 63), (0, 16)]);
    }

    /// As in fio: only asynchronous engines have a depth.
    #[test]
    fn engine_says_whether_there_is_a_depth() {
        let depth = |text: &str| {
            let file = parse(&format!("[a]\n{text}")).unwrap();
            (
                file.jobs[0].submission.iodepth,
                file.ignored.iter().any(|ignored| ignored.key == "iodepth"),
            )
        };
        assert_eq!(depth("ioengine=io_uring\niodepth=32"), (32, false));
        assert_eq!(depth("ioengine=psync\niodepth=32"), (1, true));
        assert_eq!(depth("iodepth=32"), (1, true));
    }

    #[test]
    fn options_beside_the_file_come_last_and_are_a_job_without_one() {
        let more = [("bs", "16k"), ("ioengine", "libaio")];
        let file = JobFile::parse(Some("[a]\nbs=4k\n[b]\n"), &more, &volume()).unwrap();
        assert!(file.jobs.iter().all(|job| job.shape.block_bytes == 16 << 10));
        let file = JobFile::parse(None, &more, &volume()).unwrap();
        assert_eq!((file.jobs.len(), file.jobs[0].name.as_str()), (1, "bench"));
    }

    #[test]
    fn ignored_options_are_listed_once_with_the_reason() {
        let file = parse("[global]\ndirect=1\nthread\n[a]\nfilename=/dev/sda\ndirect=1\n").unwrap();
        let keys: Vec<&str> = file.ignored.iter().map(|ignored| ignored.key.as_str()).collect();
        assert_eq!(keys, ["thread", "filename"]);
        assert_eq!(file.jobs[0].region.filename.as_deref(), Some("volume"));
    }

    #[test]
    fn direct_is_for_the_volume_and_for_all_jobs_alike() {
        let direct = |text: &str| parse(text).map(|file| file.direct);
        assert_eq!(direct("[a]\nbs=4k\n"), Ok(None));
        assert_eq!(direct("[global]\ndirect=1\n[a]\n[b]\n"), Ok(Some(true)));
        assert_eq!(direct("[a]\nbuffered=1\n"), Ok(Some(false)));
        let differ = direct("[a]\ndirect=1\n[b]\n").unwrap_err();
        assert!(differ.contains("[global]") && differ.contains("line 3"), "{differ}");
        assert!(direct("[a]\ndirect=yes\n").is_err());
    }

    #[test]
    fn errors_have_their_line_and_a_remedy() {
        for (text, wanted) in [
            ("[a]\niodeph=4\n", "line 2: iodeph is not a known option; did you mean iodepth?"),
            ("[a]\n\nbs=4x\n", "line 3: bs is \"4x\": it must be a number with k"),
            ("[a]\nqqqqqqqq=1\n", "line 2: qqqqqqqq is not a known option; there are rw"),
            ("[a\n", "line 1: \"[a\" is no section"),
            ("[]\n", "line 1: \"[]\" is no section"),
            ("bs=4k\n", "it has no job"),
            ("", "it has no job"),
            ("[a]\nioengine=rado\n", "line 2: ioengine is \"rado\"; the engines are libaio"),
            ("[a]\nioengine=rados\n", "line 2: ioengine=rados is not supported: it uses an object"),
            ("[a]\nzonemode=x\n", "line 2: zonemode is \"x\": it must be none, strided or zbd"),
            ("[a]\nsize=${SIZ\n", "line 2: \"${SIZ\" has no }"),
            ("[a]\nsize=${NONE}\n", "line 2: size is \"\""),
            ("[a]\ninclude x\n", "line 2: include is not supported"),
            ("[a]\ninclude=x\n", "line 2: include is not supported"),
            ("[a]\nsize=65m\n", "line 1: job a: size and offset end at 68157440 bytes"),
            ("\n[a]\noffset=64m\n", "line 2: job a: a block of 4096 bytes at offset 67108864 ends"),
            ("[a]\nsize=101%\n", "line 2: size is \"101%\""),
            ("[a]\ntime_based\n", "line 1: job a: time_based needs a runtime"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(wanted), "{text:?}: {error}");
        }
    }
}
