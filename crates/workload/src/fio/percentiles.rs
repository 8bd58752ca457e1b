//! Listed percentiles of the latencies: `percentile_list` and its switches.
//!
//! The format is fio 3.33's: ascending, with the greatest number of decimals that any entry was
//! given with, and as many entries per line as fit into 80 columns.

/// All samples: shares are in millionths of a percent.
pub(super) const WHOLE: u64 = 100_000_000;
/// Decimals of a share in percent.
const DECIMALS: usize = 6;
/// Greatest number of entries, as in fio.
const LIST_MAX: usize = 20;
/// Default list, in hundredths of a percent.
const USUAL: [u64; 17] = [
    100, 500, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 9500, 9900, 9950, 9990, 9995,
    9999,
];

/// Listed percentiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Percentiles {
    /// Shares in millionths of a percent, ascending.
    shares: Vec<u64>,
    /// Decimals of each share in text.
    decimals: usize,
    /// `slat_percentiles`.
    pub slat: bool,
    /// `clat_percentiles`.
    pub clat: bool,
    /// `lat_percentiles`.
    pub lat: bool,
}

impl Default for Percentiles {
    fn default() -> Self {
        let shares = USUAL.map(|hundredths| hundredths * (WHOLE / 10_000)).to_vec();
        Self { shares, decimals: 2, slat: false, clat: true, lat: false }
    }
}

impl Percentiles {
    /// Parses a list, such as `50:99.9`.
    pub(super) fn set_list(&mut self, text: &str) -> Result<(), String> {
        let wanted = || format!("it must be up to {LIST_MAX} percentages, as in 50:99.9:99.99");
        let parts: Vec<&str> = text.split(':').collect();
        let shares: Option<Vec<u64>> = parts.iter().map(|part| share(part)).collect();
        let mut shares = shares.filter(|all| all.len() <= LIST_MAX).ok_or_else(wanted)?;
        shares.sort_unstable();
        let decimals = |part: &&str| part.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        self.decimals = parts.iter().map(decimals).max().unwrap_or(0);
        self.shares = shares;
        Ok(())
    }

    /// Each percentile's name in fio's JSON, and its latency.
    pub fn of<'a>(
        &'a self,
        latencies: &'a super::Histogram,
    ) -> impl Iterator<Item = (String, u64)> + 'a {
        self.shares.iter().map(move |share| {
            let name = self.name(*share, DECIMALS);
            (name, latencies.share(*share, WHOLE).0)
        })
    }

    fn name(&self, share: u64, decimals: usize) -> String {
        let whole = WHOLE / 100;
        let rest = format!("{:06}", share % whole);
        match decimals {
            0 => (share / whole).to_string(),
            _ => format!("{}.{}", share / whole, &rest[..decimals]),
        }
    }

    /// The percentiles of a latency as lines of fio's format.
    pub(super) fn lines(
        &self,
        latencies: &super::Histogram,
        unit: impl Fn(u64, u64) -> (&'static str, f64),
    ) -> (&'static str, String) {
        let shown: Vec<(u64, u64)> =
            self.shares.iter().map(|share| (*share, latencies.share(*share, WHOLE).0)).collect();
        let edge = |at: Option<&(u64, u64)>| at.map_or(0, |(_, ns)| *ns);
        let (unit, unit_ns) = unit(edge(shown.first()), edge(shown.last()));
        let point = usize::from(self.decimals > 0);
        let width = 2 + point + self.decimals;
        let value = |(share, ns): &(u64, u64)| {
            let name = self.name(*share, self.decimals);
            format!("{name:>width$}th=[{:>5}]", ns.div_ceil(unit_ns as u64))
        };
        let values: Vec<String> = shown.iter().map(value).collect();
        let per_line = 73 / (self.decimals + 14);
        let lines: Vec<String> = values.chunks(per_line).map(|line| line.join(", ")).collect();
        (unit, lines.join(",\n     | "))
    }
}

/// Parses a share: above 0 and at most 100 %.
pub(super) fn share(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 3 || part.len() > DECIMALS || !digits(whole) {
        return None;
    }
    if !digits(part) {
        return None;
    }
    let share: u64 = format!("{whole}{part:0<DECIMALS$}").parse().ok()?;
    (share > 0 && share <= WHOLE).then_some(share)
}

#[cfg(test)]
mod tests {
    use blockyard_engine::time::Nanos;

    use super::*;

    /// Lists as fio 3.33 prints them.
    #[test]
    fn names_have_the_decimals_of_the_list_and_lines_have_room() {
        let mut latencies = super::super::Histogram::default();
        (1..=100).for_each(|ns| latencies.record(Nanos(ns)));
        let lines = |list: &str| {
            let mut percentiles = Percentiles::default();
            percentiles.set_list(list).unwrap();
            percentiles.lines(&latencies, |_, _| ("nsec", 1.0)).1
        };
        assert_eq!(lines("50"), "50th=[   50]");
        assert_eq!(lines("99.9:1"), " 1.0th=[    1], 99.9th=[  100]");
        let long = lines("50:99.9:99.99999:1.5");
        assert!(long.starts_with(" 1.50000th=[    2], 50.00000th=["), "{long}");
        assert!(long.ends_with(",\n     | 99.99999th=[  100]"), "{long}");
        let names: Vec<String> = Percentiles::default().of(&latencies).map(|all| all.0).collect();
        let ends = (names.len(), names[0].as_str(), names[16].as_str());
        assert_eq!(ends, (17, "1.000000", "99.990000"));
    }

    #[test]
    fn wrong_lists_are_refused() {
        for wrong in ["", "0", "100.1", "50:", "x", "-1", "1e2", "50:99.9999999", "99..9"] {
            assert!(Percentiles::default().set_list(wrong).is_err(), "{wrong}");
        }
        let many = vec!["50"; 21].join(":");
        assert!(Percentiles::default().set_list(&many).is_err());
    }
}
