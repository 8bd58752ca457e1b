//! The result lines of the 2015 measurements of dm-crypt (Ondrej Kozina, dm-devel, 20 February
//! 2015): one for all repetitions of a test.
//!
//! ```text
//! D iodepth=256, 32k, mode: write: 698461.10 14795.64 2.12 %
//! │           │    │          │         │        │      └ the deviation over the sum
//! module   depth  block     mode   sum of all  average deviation, KiB/s
//!                                   fio's, KiB/s
//! ```
//! The mail calls the last column a standard deviation. Its own example has the average deviation
//! in percent of the sum, and this module follows the example.

use std::fmt;
use std::str::FromStr;

/// A result line.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultLine {
    /// Letter of the dm-crypt variant.
    pub module: String,
    /// `iodepth`.
    pub iodepth: u32,
    /// `bs`.
    pub block_bytes: u64,
    /// `rw`.
    pub mode: String,
    /// Throughput of all processes in KiB/s, mean of all repetitions.
    pub sum_kib_s: f64,
    /// Average deviation of the repetitions from that mean in KiB/s.
    pub deviation_kib_s: f64,
}

impl ResultLine {
    /// Builds the line from the throughput of each repetition in bytes/s; `None` without
    /// repetitions.
    #[must_use]
    pub fn of(
        module: &str,
        (iodepth, block_bytes): (u32, u64),
        mode: &str,
        sums: &[f64],
    ) -> Option<Self> {
        let count = sums.len() as f64;
        let mean = sums.iter().sum::<f64>() / count;
        let deviation = sums.iter().map(|sum| (sum - mean).abs()).sum::<f64>() / count;
        (!sums.is_empty()).then(|| Self {
            module: module.into(),
            iodepth,
            block_bytes,
            mode: mode.into(),
            sum_kib_s: mean / 1024.0,
            deviation_kib_s: deviation / 1024.0,
        })
    }

    /// The deviation in percent of the sum.
    #[must_use]
    pub fn percent(&self) -> f64 {
        if self.sum_kib_s == 0.0 { 0.0 } else { self.deviation_kib_s * 100.0 / self.sum_kib_s }
    }
}

impl fmt::Display for ResultLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { module, iodepth, block_bytes, mode, sum_kib_s, deviation_kib_s } = self;
        let block = match block_bytes {
            bytes if bytes % (1 << 20) == 0 => format!("{}m", bytes >> 20),
            bytes if bytes % 1024 == 0 => format!("{}k", bytes >> 10),
            bytes => bytes.to_string(),
        };
        write!(
            f,
            "{module} iodepth={iodepth}, {block}, mode: {mode}: {sum_kib_s:.2} \
             {deviation_kib_s:.2} {:.2} %",
            self.percent()
        )
    }
}

/// A text that is not a result line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoResultLine(String);

impl fmt::Display for NoResultLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = &self.0;
        write!(
            f,
            "{line:?} is no result line such as \"D iodepth=256, 32k, mode: write: 1.0 0.1 10 %\""
        )
    }
}

impl std::error::Error for NoResultLine {}

impl FromStr for ResultLine {
    type Err = NoResultLine;

    /// Parses a line. Its last column must follow from the two columns before it, within its
    /// digits.
    fn from_str(text: &str) -> Result<Self, NoResultLine> {
        let read = || {
            let (module, rest) = text.split_once(" iodepth=")?;
            let mut parts = rest.split(", ");
            let iodepth = parts.next()?.parse().ok()?;
            let block = parts.next()?;
            let rest = parts.next()?.strip_prefix("mode: ")?;
            let (mode, numbers) = rest.split_once(": ")?;
            let mut numbers = numbers.strip_suffix(" %")?.split(' ');
            let mut number = || numbers.next()?.parse::<f64>().ok().filter(|it| it.is_finite());
            let sum_kib_s = number()?;
            let deviation_kib_s = number()?;
            let percent = number()?;
            let is_whole = parts.next().is_none() && numbers.next().is_none();
            let (block, unit) = match block.strip_suffix(['k', 'm']) {
                Some(number) if block.ends_with('k') => (number, 1 << 10),
                Some(number) => (number, 1 << 20),
                None => (block, 1),
            };
            let block_bytes = block.parse::<u64>().ok()?.checked_mul(unit)?;
            let module = module.into();
            let mode = mode.into();
            let line = Self { module, iodepth, block_bytes, mode, sum_kib_s, deviation_kib_s };
            (is_whole && (line.percent() - percent).abs() < 0.0051).then_some(line)
        };
        read().ok_or_else(|| NoResultLine(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Line 99 of the mail, without a tab of its legend.
    const MAIL: &str = "D iodepth=256, 32k, mode: write: 698461.10 14795.64 2.12 %";

    #[test]
    fn line_of_the_mail_is_read_and_printed_as_it_was() {
        let line: ResultLine = MAIL.parse().unwrap();
        assert_eq!((line.module.as_str(), line.iodepth, line.block_bytes), ("D", 256, 32_768));
        assert!((line.percent() - 2.118).abs() < 0.001);
        assert_eq!(line.to_string(), MAIL);
    }

    #[test]
    fn deviation_is_the_mean_distance_from_the_mean() {
        let line = ResultLine::of("G", (8, 1 << 20), "write", &[1024e3, 3072e3]).unwrap();
        assert_eq!(line.to_string(), "G iodepth=8, 1m, mode: write: 2000.00 1000.00 50.00 %");
        assert_eq!(line.to_string().parse::<ResultLine>().unwrap(), line);
        assert_eq!(ResultLine::of("G", (8, 512), "write", &[]), None);
        let still = ResultLine::of("_", (1, 512), "write", &[0.0]).unwrap();
        assert_eq!(still.to_string(), "_ iodepth=1, 512, mode: write: 0.00 0.00 0.00 %");
    }

    #[test]
    fn other_text_is_refused_and_so_is_a_column_that_does_not_follow() {
        for bad in [
            "",
            "D iodepth=256, 32k, mode: write: 698461.10 14795.64 2.13 %",
            "D iodepth=256, 32k, mode: write: 698461.10 14795.64 2.12",
            "D iodepth=256, 32k, mode: write: 698461.10 14795.64 2.12 3 %",
            "D iodepth=x, 32k, mode: write: 1 1 100 %",
            "D iodepth=1, 32x, mode: write: 1 1 100 %",
            "D iodepth=1, 32k, write: 1 1 100 %",
        ] {
            let error = bad.parse::<ResultLine>().unwrap_err().to_string();
            assert!(error.contains("is no result line"), "{bad}: {error}");
        }
    }
}
