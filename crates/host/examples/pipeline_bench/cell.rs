//! Measurements of one pipeline, one job and one placement, in each round.

use super::round::Sample;

/// Results of all rounds.
pub(crate) struct Cell {
    pub(crate) placement: &'static str,
    pub(crate) job: &'static str,
    pub(crate) name: String,
    samples: Vec<Sample>,
    /// Results of the bare cipher in the same rounds.
    bare: Vec<Sample>,
}

impl Cell {
    pub(crate) fn new(placement: &'static str, job: &'static str, name: &str) -> Self {
        Self { placement, job, name: name.into(), samples: Vec::new(), bare: Vec::new() }
    }

    pub(crate) fn add(&mut self, sample: Sample, bare: Sample) {
        self.samples.push(sample);
        self.bare.push(bare);
    }

    pub(crate) fn mib_s(&self) -> f64 {
        self.median(|sample, _| sample.bytes / f64::from(1 << 20) / (sample.wall_ns / 1e9))
    }

    /// Wall-clock rate relative to the bare cipher.
    pub(crate) fn of_bare(&self) -> f64 {
        self.median(|sample, bare| bare.wall_ns / bare.bytes * sample.bytes / sample.wall_ns)
    }

    /// Rate per CPU time relative to the bare cipher.
    pub(crate) fn of_bare_by_cpu(&self) -> f64 {
        self.median(|sample, bare| bare.cpu_ns / bare.bytes * sample.bytes / sample.cpu_ns)
    }

    pub(crate) fn cpu_us(&self) -> f64 {
        self.median(|sample, _| sample.cpu_ns / sample.requests / 1e3)
    }

    pub(crate) fn voluntary(&self) -> f64 {
        self.median(|sample, _| sample.voluntary / sample.requests)
    }

    pub(crate) fn involuntary(&self) -> f64 {
        self.median(|sample, _| sample.involuntary / sample.requests)
    }

    fn median(&self, figure: impl Fn(&Sample, &Sample) -> f64) -> f64 {
        let rounds = self.samples.iter().zip(&self.bare);
        let mut figures: Vec<f64> = rounds.map(|(sample, bare)| figure(sample, bare)).collect();
        figures.sort_by(f64::total_cmp);
        let low = figures[(figures.len() - 1) / 2];
        let high = figures[figures.len() / 2];
        f64::midpoint(low, high)
    }
}
