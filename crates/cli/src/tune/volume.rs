//! The settings of `serve`, on a volume of this machine.
//!
//! A volume is opened once for each of the settings of a race and stays open until its end, so that
//! no measurement begins with a mapping that nobody has touched. All see the same bytes: those who
//! read lock the volume as readers; those who write, as paths to one disk do.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockyard::{Options, Volume, VolumeKey};
use blockyard_engine::elevator::{ELEVATORS, ElevatorSpec};
use blockyard_engine::time::Nanos;
use blockyard_host::file::{Access, DeviceFile, Kind};
use blockyard_host::volume::{PipelineChoice, Scheduling, VolumeOptions};

use super::goal::{Goal, Run};
use super::search::{Space, Step, Told};
use super::workload::Workload;
use crate::failure::Failure;
use crate::volume::{self, Unlocked, VolumeSpec};

/// The rest of the time is for the last race, on which the result hangs.
const AXES_PERCENT: u32 = 70;
const QUEUE_DEPTHS: [u32; 6] = [8, 16, 32, 64, 128, 256];
const MAX_SECTORS: [u32; 7] = [64, 128, 256, 512, 1024, 2560, 8192];

/// What `serve` can be told of a volume, as far as it is tuned.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    /// Past the page cache.
    pub(crate) direct: bool,
    pub(crate) pipeline: PipelineChoice,
    pub(crate) threads: Option<u16>,
    pub(crate) elevator: Option<ElevatorSpec>,
    pub(crate) queue_depth: Option<u32>,
    pub(crate) max_sectors: Option<u32>,
}

impl Settings {
    /// As options of `serve`; empty for the default.
    pub(crate) fn options(&self) -> Vec<(&'static str, String)> {
        let mut options = Vec::new();
        if self.direct {
            options.push(("--direct", String::new()));
        }
        if self.pipeline != PipelineChoice::default() {
            options.push(("--pipeline", pipeline_name(self.pipeline).into()));
        }
        let number = |value: u32| value.to_string();
        let all = [
            ("--threads", self.threads.map(|threads| number(threads.into()))),
            ("--elevator", self.elevator.as_ref().map(ToString::to_string)),
            ("--queue-depth", self.queue_depth.map(number)),
            ("--max-sectors", self.max_sectors.map(number)),
        ];
        options.extend(all.into_iter().filter_map(|(name, value)| Some((name, value?))));
        options
    }

    /// The same in one line.
    pub(crate) fn text(&self) -> String {
        let words: Vec<String> = self
            .options()
            .into_iter()
            .map(|(name, value)| format!("{name} {value}").trim_end().to_owned())
            .collect();
        if words.is_empty() { "the default".into() } else { words.join(" ") }
    }

    /// What it has on an axis.
    pub(crate) fn on_axis(&self, axis: &str) -> String {
        let or_default = |value: Option<String>| value.unwrap_or_else(|| "default".into());
        match axis {
            "page cache" => if self.direct { "past it" } else { "through it" }.into(),
            "pipeline" => pipeline_name(self.pipeline).into(),
            "threads" => or_default(self.threads.map(|threads| threads.to_string())),
            "elevator" | "tunables" => or_default(self.elevator.as_ref().map(ToString::to_string)),
            "queue depth" => or_default(self.queue_depth.map(|depth| depth.to_string())),
            "longest request" => {
                or_default(self.max_sectors.map(|sectors| format!("{} KiB", sectors / 2)))
            }
            _ => self.text(),
        }
    }

    fn options_of_volume(&self, read_only: bool) -> VolumeOptions {
        let default = Scheduling::default();
        VolumeOptions {
            read_only,
            shared: !read_only,
            direct: self.direct,
            worker_threads: self.threads.map(usize::from),
            pipeline: self.pipeline,
            scheduling: Scheduling {
                elevator: self.elevator.clone(),
                queue_depth: self.queue_depth,
                max_sectors: self.max_sectors.unwrap_or(default.max_sectors),
            },
            ..VolumeOptions::default()
        }
    }
}

/// The first name of a pipeline: some are the same.
fn pipeline_name(pipeline: PipelineChoice) -> &'static str {
    let found = PipelineChoice::named().find(|(.., choice)| *choice == pipeline);
    found.map_or("adaptive", |(name, ..)| name)
}

/// All pipelines that differ.
pub(crate) fn pipelines() -> Vec<PipelineChoice> {
    let mut pipelines = Vec::new();
    for (.., choice) in PipelineChoice::named() {
        if !pipelines.contains(&choice) {
            pipelines.push(choice);
        }
    }
    pipelines
}

/// A volume that is opened again and again, without being unlocked again.
pub(crate) struct Source {
    path: PathBuf,
    options: Options,
    key: VolumeKey,
    /// Several files may lie below a table.
    is_table: bool,
    has_cipher: bool,
}

impl Source {
    /// A file or device as it is.
    pub(crate) fn raw(path: &Path) -> Self {
        let options = Options::default().raw();
        let key = VolumeKey::default();
        Self { path: path.to_owned(), options, key, is_table: false, has_cipher: false }
    }

    /// A volume that is unlocked.
    pub(crate) fn new(spec: &VolumeSpec, unlocked: Unlocked) -> Self {
        let Unlocked { options, key, .. } = unlocked;
        let is_table = matches!(spec.kind, volume::Kind::Table);
        Self { path: spec.path.clone(), options, key, is_table, has_cipher: true }
    }

    /// Opens it.
    pub(crate) fn open(
        &self,
        settings: &Settings,
        read_only: bool,
    ) -> Result<Arc<Volume>, Failure> {
        let settings = settings.options_of_volume(read_only);
        let options = self.options.clone().settings(settings);
        let volume = options.read(&self.path)?.start(self.key.clone())?;
        Ok(Arc::new(volume))
    }

    /// What lies below; none of a table, which may have several.
    fn kind(&self) -> Option<Kind> {
        if self.is_table {
            return None;
        }
        DeviceFile::open(&self.path, Access::ReadOnly, false).ok().map(|file| file.kind())
    }
}

/// Settings of a volume.
pub(crate) struct Tuned {
    source: Source,
    kind: Option<Kind>,
    workload: Workload,
    goal: Goal,
    slice: Nanos,
    read_only: bool,
    axes_until: Instant,
    until: Instant,
    /// Of the race that runs.
    race_until: Instant,
    /// Of the race that runs.
    open: Vec<(Settings, Arc<Volume>)>,
    /// Done for each step.
    told: Told<'static, Settings>,
}

impl Tuned {
    pub(crate) fn new(
        source: Source,
        workload: Workload,
        goal: Goal,
        (slice, time): (Nanos, Duration),
        told: Told<'static, Settings>,
    ) -> Self {
        let (kind, read_only) = (source.kind(), !workload.writes());
        let now = Instant::now();
        let (axes_until, until) = (now + time * AXES_PERCENT / 100, now + time);
        Self {
            source,
            kind,
            workload,
            goal,
            slice,
            read_only,
            axes_until,
            until,
            race_until: until,
            open: Vec::new(),
            told,
        }
    }

    /// Makes slices long enough, and says what each measurement is.
    pub(crate) fn fit_slice(&mut self, settings: &Settings) -> Result<String, Failure> {
        loop {
            let run = self.run(settings, 0)?;
            if !self.workload.lengthen(&mut self.slice, &run, self.goal) {
                return Ok(self.measurement());
            }
        }
    }

    /// What each measurement is.
    pub(crate) fn measurement(&self) -> String {
        self.workload.measurement(self.slice)
    }

    fn volume(&mut self, settings: &Settings) -> Result<Arc<Volume>, Failure> {
        if let Some((_, volume)) = self.open.iter().find(|(open, _)| open == settings) {
            return Ok(Arc::clone(volume));
        }
        let volume = self.source.open(settings, self.read_only)?;
        self.open.push((settings.clone(), Arc::clone(&volume)));
        Ok(volume)
    }

    /// A round.
    fn run(&mut self, settings: &Settings, round: usize) -> Result<Run, Failure> {
        let volume = self.volume(settings)?;
        self.workload.run(&volume, self.slice, round)
    }

    /// Requests go one by one through a queue: that of a file in memory does not, nor that of the
    /// page cache.
    fn is_queued(&self, base: &Settings) -> bool {
        base.direct || base.elevator.is_some() || matches!(self.kind, None | Some(Kind::Direct))
    }

    fn has_cipher(&self) -> bool {
        self.source.has_cipher
    }
}

impl Space for Tuned {
    type Settings = Settings;
    type Error = Failure;

    fn axes(&self) -> Vec<&'static str> {
        vec![
            "page cache",
            "pipeline",
            "threads",
            "elevator",
            "queue depth",
            "longest request",
            "tunables",
        ]
    }

    fn others(&self, axis: &str, base: &Settings) -> Vec<Settings> {
        let all = match axis {
            "page cache" if self.kind == Some(Kind::Cached) => {
                vec![Settings { direct: !base.direct, ..base.clone() }]
            }
            "pipeline" if self.has_cipher() => pipelines()
                .into_iter()
                .map(|pipeline| Settings { pipeline, ..base.clone() })
                .collect(),
            "threads" if self.has_cipher() => threads()
                .map(|threads| Settings { threads: Some(threads), ..base.clone() })
                .collect(),
            // Without one for a disk that seeks, the system's default is one too.
            "elevator" if self.is_queued(base) => ELEVATORS
                .iter()
                .map(|elevator| Some(ElevatorSpec::of(elevator)))
                .map(|elevator| Settings { elevator, ..base.clone() })
                .collect(),
            "queue depth" if self.is_queued(base) => QUEUE_DEPTHS
                .map(|depth| Settings { queue_depth: Some(depth), ..base.clone() })
                .into(),
            "longest request" if self.is_queued(base) => MAX_SECTORS
                .map(|sectors| Settings { max_sectors: Some(sectors), ..base.clone() })
                .into(),
            "tunables" => base.elevator.iter().flat_map(|spec| tunables(spec, base)).collect(),
            _ => Vec::new(),
        };
        all.into_iter().filter(|other| other != base).collect()
    }

    fn check(&mut self, settings: &Settings) -> Result<(), String> {
        let volume = self.volume(settings).map_err(|failure| failure.message)?;
        self.workload.check(&volume)
    }

    fn measure(&mut self, settings: &Settings, round: usize) -> Result<f64, Failure> {
        loop {
            let run = self.run(settings, round)?;
            if let Some(score) = self.goal.score(&run) {
                return Ok(score);
            }
            // One that is slow, or a moment in which the machine was.
            if !self.workload.lengthen(&mut self.slice, &run, self.goal) {
                return Err(Failure::failed(format!(
                    "no request ended within {} ms, with {}; give each measurement more time with \
                     --slice",
                    self.slice.0 / 1_000_000,
                    settings.text()
                )));
            }
        }
    }

    /// A race on an axis may take half of what is left for all of them: the first ones are those
    /// that matter.
    fn begins(&mut self, is_last: bool) -> bool {
        self.open.clear();
        let now = Instant::now();
        let left = self.axes_until.saturating_duration_since(now);
        self.race_until = if is_last { self.until } else { now + left / 2 };
        is_last || !left.is_zero()
    }

    fn goes_on(&self) -> bool {
        Instant::now() < self.race_until
    }

    fn tell(&self, step: &Step<Settings>) {
        (self.told)(step);
    }
}

/// None, one, half the CPUs, all but one, all.
fn threads() -> impl Iterator<Item = u16> {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(1024) as u16);
    let mut all = vec![0, 1, cpus / 2, cpus - 1, cpus];
    all.sort_unstable();
    all.dedup();
    all.into_iter()
}

/// Each tunable at a quarter of its value and at four times it, as far as it may.
fn tunables(spec: &ElevatorSpec, base: &Settings) -> Vec<Settings> {
    let mut all = Vec::new();
    for tunable in spec.elevator.tunables {
        let default = tunable.default;
        for value in [default / 4, default.saturating_mul(4)] {
            let value = value.clamp(tunable.min, tunable.max);
            let text = format!("{},{}={value}", spec.elevator.name, tunable.name);
            if let Ok(elevator) = ElevatorSpec::parse(&text) {
                all.push(Settings { elevator: Some(elevator), ..base.clone() });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::workload::{Load, jobs_of_words};
    use super::*;

    fn tuned(goal: Goal) -> (Tuned, tempfile::NamedTempFile) {
        tuned_for("", Nanos::from_ms(100), goal)
    }

    /// For reads of 4 KiB with more options, on a file of 1 MiB.
    fn tuned_for(words: &str, slice: Nanos, goal: Goal) -> (Tuned, tempfile::NamedTempFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let jobs = jobs_of_words(&format!("rw=randread bs=4k {words}"), 1 << 20).unwrap();
        let workload = Workload { load: Load::Jobs(jobs), about: String::new() };
        let limits = (slice, Duration::from_secs(60));
        let source = Source::raw(file.path());
        (Tuned::new(source, workload, goal, limits, Box::new(|_| ())), file)
    }

    #[test]
    fn settings_are_options_of_serve() {
        assert_eq!(Settings::default().text(), "the default");
        let settings = Settings {
            direct: true,
            pipeline: PipelineChoice::parse("inline").unwrap(),
            threads: Some(3),
            elevator: Some(ElevatorSpec::parse("deadline,fifo_batch=4").unwrap()),
            queue_depth: Some(8),
            max_sectors: Some(256),
        };
        let text = "--direct --pipeline inline --threads 3 --elevator deadline,fifo_batch=4 \
                    --queue-depth 8 --max-sectors 256";
        assert_eq!(settings.text(), text);
    }

    #[test]
    fn pipelines_that_are_the_same_run_once() {
        let pipelines = pipelines();
        let names: Vec<&str> = pipelines.iter().map(|one| pipeline_name(*one)).collect();
        assert!(names.contains(&"A") && !names.contains(&"D"), "{names:?}");
    }

    #[test]
    fn every_goal_makes_a_number_of_a_run() {
        for goal in [Goal::Throughput, Goal::Iops, Goal::Latency, Goal::P99, Goal::Cpu] {
            let (mut tuned, _file) = tuned(goal);
            let score = tuned.measure(&Settings::default(), 0).unwrap();
            assert!(goal.shown(score).is_finite() && goal.shown(score) > 0.0, "{goal:?}");
        }
    }

    /// The first read is in the part of a slice that does not count, the second comes 0.4 s later.
    #[test]
    fn slice_becomes_longer_until_a_request_ends_in_it() {
        let (mut tuned, _file) = tuned_for("thinktime=400ms", Nanos::from_ms(60), Goal::Iops);
        assert!(tuned.measure(&Settings::default(), 0).unwrap() > 0.0);
        assert_eq!(tuned.measurement(), "480 ms");
    }

    #[test]
    fn slice_without_a_request_that_may_be_no_longer_is_an_error_that_names_the_option() {
        let slice = Nanos::from_ms(2000);
        let (mut tuned, _file) = tuned_for("thinktime=1h", slice, Goal::Iops);
        let failure = tuned.measure(&Settings::default(), 0).unwrap_err();
        let said = "no request ended within 2000 ms, with the default; give each measurement more \
                    time with --slice";
        assert_eq!(failure.message, said);
    }

    /// A race on an axis gets half of what is left, so that those behind it have some.
    #[test]
    fn first_axes_leave_time_for_others_and_the_last_race_has_all_of_it() {
        let (mut tuned, _file) = tuned(Goal::Iops);
        assert!(tuned.begins(false));
        let first = tuned.race_until.duration_since(Instant::now());
        assert!(first < Duration::from_secs(30) && first > Duration::from_secs(10), "{first:?}");
        tuned.axes_until = Instant::now();
        assert!(!tuned.begins(false), "no more axes");
        assert!(tuned.begins(true) && tuned.race_until == tuned.until && tuned.goes_on());
    }

    #[test]
    fn tunables_of_the_elevator_that_was_found_are_tried_within_their_ranges() {
        let spec = ElevatorSpec::parse("deadline").unwrap();
        let base = Settings { elevator: Some(spec), ..Settings::default() };
        let (tuned, _file) = tuned(Goal::Iops);
        let others = tuned.others("tunables", &base);
        let texts: Vec<String> = others.iter().map(Settings::text).collect();
        assert!(texts.contains(&"--elevator deadline,fifo_batch=64".into()), "{texts:?}");
        assert!(tuned.others("tunables", &Settings::default()).is_empty());
    }
}
