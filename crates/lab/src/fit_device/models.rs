//! The models that can be fitted: the table `[device]` of each, and the box of its constants.

use std::fmt;

/// A model of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Each request takes the same time, however many there are.
    Null,
    /// A disk that spins.
    Disk,
    /// An SSD: channels, a write buffer, garbage collection.
    Ssd,
}

/// Share of the commands of an SSD that take longer: somewhat more than the hundredth that the
/// fitted p99 is about.
const SLOW_PER_MILLE: u32 = 15;

/// Fitted measurements with writes from which on the times of a command and of written data on the
/// bus are fitted too: one for each side that only writes decide. With fewer, the two sides are
/// fitted to noise: the measurements of 16 jobs in testdata were predicted no better.
const BUS_MEASUREMENTS_MIN: usize = 6;

/// All models, the simplest first.
pub(super) const ALL: [Model; 3] = [Model::Null, Model::Disk, Model::Ssd];

impl Model {
    /// The model of this name.
    ///
    /// # Errors
    /// There is no such model; the message names all.
    pub fn parse(name: &str) -> Result<Self, String> {
        let known = |model: &Self| model.to_string() == name;
        ALL.into_iter()
            .find(known)
            .ok_or_else(|| format!("{name:?} is no model: models are null, disk and ssd"))
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Null => "null",
            Self::Disk => "disk",
            Self::Ssd => "ssd",
        })
    }
}

/// Facts of the measurements that bound the constants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) size_mib: u64,
    pub(super) depth: u32,
    /// The smallest and the largest median of reads, in microseconds.
    pub(super) read_us: (f64, f64),
    /// Of writes.
    pub(super) write_us: (f64, f64),
    /// Number of fitted measurements with writes.
    pub(super) write_measurements: usize,
}

impl Bounds {
    fn writes(&self) -> bool {
        self.write_us.0.is_finite()
    }

    fn reads(&self) -> bool {
        self.read_us.0.is_finite()
    }

    /// Whether there are enough measurements to tell the times on the bus from those of channels.
    fn decide_bus(&self) -> bool {
        self.write_measurements >= BUS_MEASUREMENTS_MIN
    }

    /// The smallest and the largest median of all.
    fn any_us(&self) -> (f64, f64) {
        (self.read_us.0.min(self.write_us.0), self.read_us.1.max(self.write_us.1))
    }
}

/// The table `[device]` without the fitted constants, which follow.
pub(super) fn table(model: Model, bounds: &Bounds) -> String {
    let Bounds { size_mib, depth, .. } = bounds;
    let mut keys = vec![("size_mib", size_mib.to_string())];
    let kind = match model {
        Model::Null => {
            keys.push(("irqmode", "\"timer\"".into()));
            keys.push(("hw_queue_depth", (*depth).max(64).to_string()));
            "null"
        }
        Model::Disk => {
            keys.push(("inner_track_sectors", "630".into()));
            "disk"
        }
        Model::Ssd => {
            keys.push(("queue_depth", (*depth).max(64).to_string()));
            keys.push(("slow_per_mille", SLOW_PER_MILLE.to_string()));
            "flash"
        }
    };
    let keys = keys.into_iter().map(|(key, value)| format!("{key} = {value}\n"));
    format!("[device]\nkind = \"{kind}\"\n{}", keys.collect::<String>())
}

/// A side of whole numbers, drawn by the logarithm.
fn log(key: &str, low: f64, high: f64) -> String {
    let low = low.max(1.0) as u64;
    let high = (high.min(1e9) as u64).max(low + 1);
    format!("{{ path = \"device.{key}\", low = {low}, high = {high}, log = true }}")
}

fn even(key: &str, low: u64, high: u64) -> String {
    format!("{{ path = \"device.{key}\", low = {low}, high = {high} }}")
}

fn one_of(key: &str, values: &str) -> String {
    format!("{{ path = \"device.{key}\", one_of = [{values}] }}")
}

/// The sides of a model's box, without those that only writes decide.
pub(super) fn sides(model: Model, bounds: &Bounds) -> Vec<String> {
    let (least, most) = bounds.any_us();
    match model {
        Model::Null => vec![log("completion_nsec", least * 50.0, most * 2e3)],
        Model::Disk => vec![
            one_of("rpm", "5400, 7200, 10000, 15000"),
            even("seek_track_us", 200, 2_000),
            even("seek_average_us", 2_000, 15_000),
            even("seek_full_us", 15_000, 30_000),
            log("outer_track_sectors", 630.0, 8_000.0),
            log("overhead_us", 10.0, 1_000.0),
            one_of("queue_depth", "1, 32"),
        ],
        Model::Ssd => {
            let mut sides = vec![
                log("channels", 1.0, 128.0),
                one_of("page_kib", "4, 16, 64"),
                log("overhead_us", 1.0, least),
                log("bus_sector_ns", 10.0, least * 1e3 / 8.0),
                log("slow_us", least.max(10.0), least.max(10.0) * 1e3),
            ];
            if bounds.decide_bus() {
                sides.push(log("bus_command_ns", 1.0, least * 1e3));
            }
            if bounds.reads() {
                sides.push(log("read_page_us", 1.0, bounds.read_us.1));
            }
            sides
        }
    }
}

/// The sides that only writes decide.
pub(super) fn write_sides(model: Model, bounds: &Bounds) -> Vec<String> {
    match model {
        _ if !bounds.writes() => Vec::new(),
        Model::Null => Vec::new(),
        Model::Disk => vec![one_of("write_cache_kib", "0, 8192, 65536")],
        Model::Ssd => {
            let mut sides = vec![
                log("program_page_us", 1.0, bounds.write_us.1.max(2_000.0)),
                one_of("write_buffer_kib", "0, 64, 512, 4096"),
                one_of("erase_block_kib", "1024"),
                one_of("spare_percent", "7, 28, 100"),
                // An old drive collects from the first write on, a fresh one behind its free space.
                one_of("free_mib", &format!("0, {}", bounds.size_mib)),
            ];
            if bounds.decide_bus() {
                sides.push(log("bus_write_sector_ns", 1.0, bounds.write_us.0 * 1e3 / 8.0));
            }
            sides
        }
    }
}
