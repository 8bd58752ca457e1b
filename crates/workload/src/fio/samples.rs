//! Rates of a clone in spans of half a second: the `bw` and `iops` lines.
//!
//! fio looks at the clock at the end of a block, and closes the current span if it is long enough
//! (`bwavgtime`, 500 ms). The first span starts with the clone, so it includes the time to the
//! first block. Blocks after the last closed span are in none.

use blockyard_engine::time::Nanos;

/// `bwavgtime`.
const SPAN: Nanos = Nanos::from_ms(500);

/// Rates of all closed spans, and the open span.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// Bytes and blocks per second of each span.
    rates: Vec<(f64, f64)>,
    since: Nanos,
    bytes: u64,
    ios: u64,
}

/// Statistics of the spans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Least rate.
    pub min: f64,
    /// Greatest rate.
    pub max: f64,
    /// Mean rate.
    pub mean: f64,
    /// Standard deviation, with n - 1.
    pub stdev: f64,
    /// Number of spans.
    pub count: usize,
}

impl Samples {
    /// Starts the first span.
    pub(crate) fn start(&mut self, now: Nanos) {
        self.since = now;
    }

    /// Counts an ended block.
    pub(crate) fn block(&mut self, now: Nanos, bytes: u64) {
        (self.bytes, self.ios) = (self.bytes + bytes, self.ios + 1);
        let span = now.since(self.since);
        if span >= SPAN {
            let per_second = |amount: u64| amount as f64 * 1e9 / span.0 as f64;
            self.rates.push((per_second(self.bytes), per_second(self.ios)));
            (self.since, self.bytes, self.ios) = (now, 0, 0);
        }
    }

    /// Adds the spans of another clone.
    pub(crate) fn add(&mut self, other: &Self) {
        self.rates.extend(&other.rates);
    }

    /// Statistics in bytes per second.
    #[must_use]
    pub fn bandwidth(&self) -> Option<Spread> {
        spread(self.rates.iter().map(|(bytes, _)| *bytes))
    }

    /// Statistics in blocks per second.
    #[must_use]
    pub fn iops(&self) -> Option<Spread> {
        spread(self.rates.iter().map(|(_, ios)| *ios))
    }
}

fn spread(values: impl Iterator<Item = f64> + Clone) -> Option<Spread> {
    let count = values.clone().count();
    let min = values.clone().reduce(f64::min)?;
    let max = values.clone().reduce(f64::max)?;
    let mean = values.clone().sum::<f64>() / count as f64;
    let squares: f64 = values.map(|value| (value - mean).powi(2)).sum();
    let stdev = if count < 2 { 0.0 } else { (squares / (count - 1) as f64).sqrt() };
    Some(Spread { min, max, mean, stdev, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_close_when_a_block_finds_them_long_enough_and_the_rest_is_in_none() {
        let mut samples = Samples::default();
        samples.start(Nanos::from_ms(100));
        for ms in [300, 700, 900, 1100, 1250, 1500] {
            samples.block(Nanos::from_ms(ms), 1 << 20);
        }
        // 100 to 700 ms has two blocks, 700 to 1250 three; the last block is in no span.
        let rates = samples.iops().unwrap();
        assert_eq!(rates.count, 2);
        assert!((rates.min - 2.0 / 0.6).abs() < 1e-9 && (rates.max - 3.0 / 0.55).abs() < 1e-9);
        assert!((rates.stdev - (rates.max - rates.min) / 2f64.sqrt()).abs() < 1e-9);
        let bytes = samples.bandwidth().unwrap();
        assert!((bytes.mean / rates.mean - 1_048_576.0).abs() < 1e-3);
        assert_eq!(Samples::default().iops(), None);
    }
}
