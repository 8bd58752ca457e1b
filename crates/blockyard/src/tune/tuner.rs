//! The settings of a volume, measured on this machine.
//!
//! A volume is opened once for each candidate of a comparison and stays open to its end, so that no
//! measurement begins with an untouched mapping. All share the same bytes: for reads they lock the
//! volume as readers, for writes like several paths to one disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockyard_engine::elevator::{ELEVATORS, ElevatorSpec};
use blockyard_engine::time::Nanos;
use blockyard_host::file::{Access, BackingKind, DeviceFile};

use super::goal::{Goal, Run};
use super::search::Space;
use super::workload::Workload;
use super::{Measurement, TuneError};
use crate::{Error, Options, PipelineChoice, Scheduling, Volume, VolumeKey};

/// The rest of the time is for the last comparison, which decides.
const AXES_PERCENT: u32 = 70;
/// A longer search is one without an end.
const TIME_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// A slice of nothing would never become longer.
const SLICE_MIN: Duration = Duration::from_millis(1);
const QUEUE_DEPTHS: [u32; 6] = [8, 16, 32, 64, 128, 256];
const MAX_SECTORS: [u32; 7] = [64, 128, 256, 512, 1024, 2560, 8192];

/// The tuned settings of a volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Bypass the page cache.
    pub direct: bool,
    /// Placement of ciphers, and submitter of encrypted writes.
    pub pipeline: PipelineChoice,
    /// Cipher workers. `None`: chosen by the cipher's speed.
    pub threads: Option<u16>,
    /// The elevator. `None`: the device's default.
    pub elevator: Option<ElevatorSpec>,
    /// Requests in flight. `None`: the device's default.
    pub queue_depth: Option<u32>,
    /// Sectors of the longest request. `None`: the default.
    pub max_sectors: Option<u32>,
}

/// An axis of [`Settings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// [`Settings::direct`].
    PageCache,
    /// [`Settings::pipeline`].
    Pipeline,
    /// [`Settings::threads`].
    Threads,
    /// [`Settings::elevator`].
    Elevator,
    /// [`Settings::queue_depth`].
    QueueDepth,
    /// [`Settings::max_sectors`].
    LongestRequest,
    /// The tunables of [`Settings::elevator`].
    Tunables,
}

impl Axis {
    /// All axes, the most important first.
    pub const ALL: [Self; 7] = [
        Self::PageCache,
        Self::Pipeline,
        Self::Threads,
        Self::Elevator,
        Self::QueueDepth,
        Self::LongestRequest,
        Self::Tunables,
    ];

    /// Its name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PageCache => "page cache",
            Self::Pipeline => "pipeline",
            Self::Threads => "threads",
            Self::Elevator => "elevator",
            Self::QueueDepth => "queue depth",
            Self::LongestRequest => "longest request",
            Self::Tunables => "tunables",
        }
    }
}

impl Settings {
    /// These settings with each pipeline: the rivals that people take without measuring.
    #[must_use]
    pub fn rivals(&self) -> Vec<Self> {
        pipelines().into_iter().map(|pipeline| Self { pipeline, ..self.clone() }).collect()
    }

    /// `base` has the settings that are not searched, such as the program's own targets.
    fn options_of_volume(&self, base: &crate::Settings, read_only: bool) -> crate::Settings {
        let default = Scheduling::default();
        crate::Settings {
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
            ..base.clone()
        }
    }
}

/// All distinct pipelines.
fn pipelines() -> Vec<PipelineChoice> {
    let mut pipelines = Vec::new();
    for (.., choice) in PipelineChoice::named() {
        if !pipelines.contains(&choice) {
            pipelines.push(choice);
        }
    }
    pipelines
}

/// A volume that is opened again and again, and unlocked once.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    options: Options,
    key: VolumeKey,
    may_destroy: bool,
}

impl Source {
    /// A volume whose key is known: the key is that of [`Locked::unlock`](crate::Locked::unlock).
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, options: Options, key: VolumeKey) -> Self {
        Self { path: path.into(), options, key, may_destroy: false }
    }

    /// Permits a [`Tuner`] to overwrite the volume's data; the default is false.
    #[must_use]
    pub fn may_destroy(mut self, may_destroy: bool) -> Self {
        self.may_destroy = may_destroy;
        self
    }

    /// Unlocks a volume, with [`Options::key`]. Its other options are those of every measurement,
    /// except the [`Settings`], which are searched.
    ///
    /// # Errors
    /// As [`Options::open`].
    pub fn unlock(path: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        let path = path.as_ref();
        let settings = crate::Settings { read_only: true, ..options.engine().clone() };
        let mut options = options.settings(settings);
        let (_, key) = options.unlock(path)?;
        Ok(Self::new(path, options, key))
    }

    /// Opens the volume with these settings.
    ///
    /// # Errors
    /// As [`Options::open`].
    pub fn open(&self, settings: &Settings, read_only: bool) -> Result<Volume, Error> {
        let engine = settings.options_of_volume(self.options.engine(), read_only);
        let options = self.options.clone().settings(engine);
        options.read(&self.path)?.start(self.key.clone())
    }

    /// The kind of the file below; `None` for a table, which may have several.
    fn kind(&self) -> Option<BackingKind> {
        if self.options.is_table() {
            return None;
        }
        DeviceFile::open(&self.path, Access::ReadOnly, false).ok().map(|file| file.kind())
    }
}

/// How long a search takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Length of a measurement at first, 1 ms or more. It becomes longer if few requests end in it.
    pub slice: Duration,
    /// Comparisons do not start after so long; a year at most.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { slice: Duration::from_millis(125), time: Duration::from_secs(120) }
    }
}

/// The space of a volume's [`Settings`], measured with a workload.
#[derive(Debug)]
pub struct Tuner {
    source: Source,
    kind: Option<BackingKind>,
    workload: Workload,
    goal: Goal,
    slice: Nanos,
    read_only: bool,
    axes_until: Instant,
    until: Instant,
    /// End of the comparison that runs.
    comparison_until: Instant,
    /// Volumes of the comparison that runs.
    open: Vec<(Settings, Arc<Volume>)>,
}

impl Tuner {
    /// A search of a volume's settings. Its time begins now.
    ///
    /// # Errors
    /// [`Error::WouldOverwrite`] if the workload writes, unless [`Source::may_destroy`] permits it.
    pub fn new(
        source: Source,
        workload: Workload,
        goal: Goal,
        limits: Limits,
    ) -> Result<Self, Error> {
        let read_only = !workload.writes();
        if !read_only && !source.may_destroy {
            return Err(Error::WouldOverwrite { path: source.path });
        }
        let kind = source.kind();
        let now = Instant::now();
        let time = limits.time.min(TIME_MAX);
        let axes_until = now + time * AXES_PERCENT / 100;
        let until = now + time;
        let slice = limits.slice.max(SLICE_MIN);
        Ok(Self {
            source,
            kind,
            workload,
            goal,
            slice: Nanos(u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX)),
            read_only,
            axes_until,
            until,
            comparison_until: until,
            open: Vec::new(),
        })
    }

    /// Makes measurements long enough for the workload.
    ///
    /// # Errors
    /// When the volume cannot be opened or a request fails.
    pub fn fit_slice(&mut self, settings: &Settings) -> Result<(), Error> {
        loop {
            let run = self.run(settings, 0)?;
            if !self.workload.lengthen(&mut self.slice, &run, self.goal) {
                return Ok(());
            }
        }
    }

    /// The extent of a measurement.
    #[must_use]
    pub fn measurement(&self) -> Measurement {
        self.workload.measurement(self.slice)
    }

    fn volume(&mut self, settings: &Settings) -> Result<Arc<Volume>, Error> {
        if let Some((_, volume)) = self.open.iter().find(|(open, _)| open == settings) {
            return Ok(Arc::clone(volume));
        }
        let volume = Arc::new(self.source.open(settings, self.read_only)?);
        self.open.push((settings.clone(), Arc::clone(&volume)));
        Ok(volume)
    }

    /// Runs one round.
    fn run(&mut self, settings: &Settings, round: usize) -> Result<Run, Error> {
        let volume = self.volume(settings)?;
        self.workload.run(&volume, self.slice, round)
    }

    /// True if requests pass a queue; files in memory and the page cache have none.
    fn is_queued(&self, base: &Settings) -> bool {
        base.direct
            || base.elevator.is_some()
            || matches!(self.kind, None | Some(BackingKind::Direct))
    }

    fn has_cipher(&self) -> bool {
        self.source.options.has_cipher()
    }
}

impl Space for Tuner {
    type Settings = Settings;
    type Axis = Axis;
    type Error = Error;

    fn axes(&self) -> Vec<Axis> {
        Axis::ALL.into()
    }

    fn others(&self, axis: Axis, base: &Settings) -> Vec<Settings> {
        let all = match axis {
            Axis::PageCache if self.kind == Some(BackingKind::Cached) => {
                vec![Settings { direct: !base.direct, ..base.clone() }]
            }
            Axis::Pipeline if self.has_cipher() => pipelines()
                .into_iter()
                .map(|pipeline| Settings { pipeline, ..base.clone() })
                .collect(),
            Axis::Threads if self.has_cipher() => threads()
                .map(|threads| Settings { threads: Some(threads), ..base.clone() })
                .collect(),
            // A disk that seeks has a default elevator even without an explicit one.
            Axis::Elevator if self.is_queued(base) => ELEVATORS
                .iter()
                .map(|elevator| Some(ElevatorSpec::of(elevator)))
                .map(|elevator| Settings { elevator, ..base.clone() })
                .collect(),
            Axis::QueueDepth if self.is_queued(base) => QUEUE_DEPTHS
                .map(|depth| Settings { queue_depth: Some(depth), ..base.clone() })
                .into(),
            Axis::LongestRequest if self.is_queued(base) => MAX_SECTORS
                .map(|sectors| Settings { max_sectors: Some(sectors), ..base.clone() })
                .into(),
            Axis::Tunables => base.elevator.iter().flat_map(|spec| tunables(spec, base)).collect(),
            _ => Vec::new(),
        };
        all.into_iter().filter(|other| other != base).collect()
    }

    fn check(&mut self, settings: &Settings) -> Result<(), String> {
        let volume = self.volume(settings).map_err(|error| error.to_string())?;
        self.workload.check(&volume)
    }

    fn measure(&mut self, settings: &Settings, round: usize) -> Result<f64, Error> {
        loop {
            let run = self.run(settings, round)?;
            if let Some(score) = self.goal.score(&run) {
                return Ok(score);
            }
            // A slow setting, or a slow moment of the machine.
            if !self.workload.lengthen(&mut self.slice, &run, self.goal) {
                let slice = Duration::from_nanos(self.slice.0);
                let settings = settings.clone();
                return Err(TuneError::NoRequest { slice, settings: Box::new(settings) }.into());
            }
        }
    }

    /// A comparison on an axis may use half of the remaining time: the first axes matter most.
    fn begins(&mut self, is_last: bool) -> bool {
        self.open.clear();
        let now = Instant::now();
        let left = self.axes_until.saturating_duration_since(now);
        self.comparison_until = if is_last { self.until } else { now + left / 2 };
        is_last || !left.is_zero()
    }

    fn goes_on(&self) -> bool {
        Instant::now() < self.comparison_until
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

/// Each tunable at a quarter and at four times its value, within its range.
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
    use blockyard_engine::dm::registry::TargetType;
    use blockyard_engine::dm::zero::ZeroSpec;

    use super::super::jobs;
    use super::*;

    fn tuned(goal: Goal) -> (Tuner, tempfile::NamedTempFile) {
        tuned_for("", Nanos::from_ms(100), goal)
    }

    /// Reads of 4 KiB with more options, on a file of 1 MiB.
    fn tuned_for(words: &str, slice: Nanos, goal: Goal) -> (Tuner, tempfile::NamedTempFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let jobs = jobs(&format!("rw=randread bs=4k {words}"), 1 << 20).unwrap();
        let slice = Duration::from_nanos(slice.0);
        let limits = Limits { slice, time: Duration::from_secs(60) };
        let source = Source::unlock(file.path(), Options::default().raw()).unwrap();
        (Tuner::new(source, Workload::Jobs(jobs), goal, limits).unwrap(), file)
    }

    #[test]
    fn pipelines_that_are_the_same_run_once() {
        let rivals = Settings::default().rivals();
        assert!(rivals.len() > 2 && rivals.len() < PipelineChoice::named().count());
        for (number, rival) in rivals.iter().enumerate() {
            assert!(!rivals[..number].contains(rival), "{rival:?}");
        }
    }

    #[test]
    fn every_goal_makes_a_number_of_a_run() {
        for goal in [Goal::Throughput, Goal::Iops, Goal::Latency, Goal::P99, Goal::Cpu] {
            let (mut tuned, _file) = tuned(goal);
            let score = tuned.measure(&Settings::default(), 0).unwrap();
            assert!(goal.value(score).is_finite() && goal.value(score) > 0.0, "{goal:?}");
        }
    }

    #[test]
    fn limits_without_sense_neither_panic_nor_hang() {
        let (tuned, file) = tuned(Goal::Iops);
        let source = Source::unlock(file.path(), Options::default().raw()).unwrap();
        let limits = Limits { slice: Duration::ZERO, time: Duration::MAX };
        let tuned = Tuner::new(source, tuned.workload, Goal::Iops, limits).unwrap();
        assert_eq!(tuned.measurement(), Measurement::Time { slice: SLICE_MIN });
        assert!(tuned.goes_on());
    }

    #[test]
    fn writing_workload_needs_permission_to_destroy() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; 1 << 20]).unwrap();
        let source = Source::unlock(file.path(), Options::default().raw()).unwrap();
        let writes = || Workload::Jobs(jobs("rw=randwrite bs=4k", 1 << 20).unwrap());
        let limits = Limits { slice: Duration::from_millis(50), ..Limits::default() };
        let refused = Tuner::new(source, writes(), Goal::Iops, limits).unwrap_err();
        assert!(matches!(refused, Error::WouldOverwrite { .. }) && refused.is_busy());
        assert!(refused.to_string().contains("`may_destroy`"), "{refused}");
        assert_eq!(std::fs::read(file.path()).unwrap(), vec![7; 1 << 20]);
        let source = Source::unlock(file.path(), Options::default().raw()).unwrap();
        let source = source.may_destroy(true);
        let mut tuner = Tuner::new(source, writes(), Goal::Iops, limits).unwrap();
        assert!(tuner.measure(&Settings::default(), 0).unwrap() > 0.0);
    }

    #[test]
    fn measured_volume_has_the_options_that_are_not_searched() {
        static OWN: TargetType =
            TargetType { name: "own", arguments: "", parse: |_, _| Ok(Arc::new(ZeroSpec)) };
        let text = crate::SecretBytes::copy_of(b"0 2048 own");
        let options = Options::default().target(&OWN).table_text(text).minimum_block(2048);
        let source = Source::unlock("own", options).unwrap();
        let volume = source.open(&Settings::default(), true).unwrap();
        assert_eq!((volume.len(), volume.minimum_block()), (1 << 20, 2048));
    }

    /// The first read is in the uncounted part of a slice, the second comes 0.4 s later.
    #[test]
    fn slice_becomes_longer_until_a_request_ends_in_it() {
        let (mut tuned, _file) = tuned_for("thinktime=400ms", Nanos::from_ms(60), Goal::Iops);
        assert!(tuned.measure(&Settings::default(), 0).unwrap() > 0.0);
        let slice = Duration::from_millis(480);
        assert_eq!(tuned.measurement(), Measurement::Time { slice });
    }

    #[test]
    fn slice_without_a_request_that_may_be_no_longer_is_an_error_that_names_the_field() {
        let slice = Nanos::from_ms(2000);
        let (mut tuned, _file) = tuned_for("thinktime=1h", slice, Goal::Iops);
        let error = tuned.measure(&Settings::default(), 0).unwrap_err().to_string();
        assert_eq!(
            error,
            "no request ended within 2000 ms; give each measurement a longer `slice`"
        );
    }

    /// A comparison on an axis gets half of the remaining time, and leaves the rest to later ones.
    #[test]
    fn first_axes_leave_time_for_others_and_the_last_comparison_has_all_of_it() {
        let (mut tuned, _file) = tuned(Goal::Iops);
        assert!(tuned.begins(false));
        let first = tuned.comparison_until.duration_since(Instant::now());
        assert!(first < Duration::from_secs(30) && first > Duration::from_secs(10), "{first:?}");
        tuned.axes_until = Instant::now();
        assert!(!tuned.begins(false), "no more axes");
        assert!(tuned.begins(true) && tuned.comparison_until == tuned.until && tuned.goes_on());
    }

    #[test]
    fn tunables_of_the_elevator_that_was_found_are_tried_within_their_ranges() {
        let spec = ElevatorSpec::parse("deadline").unwrap();
        let base = Settings { elevator: Some(spec), ..Settings::default() };
        let (tuned, _file) = tuned(Goal::Iops);
        let others = tuned.others(Axis::Tunables, &base);
        let elevators = others.iter().filter_map(|one| Some(one.elevator.as_ref()?.to_string()));
        let elevators: Vec<String> = elevators.collect();
        assert!(elevators.contains(&"deadline,fifo_batch=64".into()), "{elevators:?}");
        assert!(tuned.others(Axis::Tunables, &Settings::default()).is_empty());
    }
}
