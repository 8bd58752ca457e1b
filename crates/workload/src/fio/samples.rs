//! Rates of a clone in spans of half a second: the `bw` and `iops` lines.
//!
//! fio looks at the clock when a block is there, and closes the span that has become long enough
//! (`bwavgtime`, 500 ms). The first span starts with the clone, so what it needed until its first
//! block was there is in it; what comes behind the last span is in none.

use blockyard_engine::time::Nanos;

/// `bwavgtime`.
const SPAN: Nanos = Nanos::from_ms(500);

/// Rates of all spans, and the one that is open.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// Bytes a second, and blocks a second.
    rates: Vec<(f64, f64)>,
    since: Nanos,
    bytes: u64,
    ios: u64,
}

/// What a line of samples says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation, with n - 1.
    pub stdev: f64,
    /// How many.
    pub count: usize,
}

impl Samples {
    /// The first span starts.
    pub(crate) fn start(&mut self, now: Nanos) {
        self.since = now;
    }

    /// A block is there.
    pub(crate) fn block(&mut self, now: Nanos, bytes: u64) {
        (self.bytes, self.ios) = (self.bytes + bytes, self.ios + 1);
        let span = now.since(self.since);
        if span >= SPAN {
            let per_second = |amount: u64| amount as f64 * 1e9 / span.0 as f64;
            self.rates.push((per_second(self.bytes), per_second(self.ios)));
            (self.since, self.bytes, self.ios) = (now, 0, 0);
        }
    }

    /// Those of another clone as well.
    pub(crate) fn add(&mut self, other: &Self) {
        self.rates.extend(&other.rates);
    }

    /// Bytes a second.
    #[must_use]
    pub fn bandwidth(&self) -> Option<Spread> {
        spread(self.rates.iter().map(|(bytes, _)| *bytes))
    }

    /// Blocks a second.
    #[must_use]
    pub fn iops(&self) -> Option<Spread> {
        spread(self.rates.iter().map(|(_, ios)| *ios))
    }
}

fn spread(values: impl Iterator<Item = f64> + Clone) -> Option<Spread> {
    let count = values.clone().count();
    let (min, max) = (values.clone().reduce(f64::min)?, values.clone().reduce(f64::max)?);
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
        // 100 to 700 ms has two blocks, 700 to 1250 three; the last is in no span.
        let rates = samples.iops().unwrap();
        assert_eq!(rates.count, 2);
        assert!((rates.min - 2.0 / 0.6).abs() < 1e-9 && (rates.max - 3.0 / 0.55).abs() < 1e-9);
        assert!((rates.stdev - (rates.max - rates.min) / 2f64.sqrt()).abs() < 1e-9);
        let bytes = samples.bandwidth().unwrap();
        assert!((bytes.mean / rates.mean - 1_048_576.0).abs() < 1e-3);
        assert_eq!(Samples::default().iops(), None);
    }
}
