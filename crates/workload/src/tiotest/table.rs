//! tiotest's two tables, character by character.
//!
//! The CPU columns are printed as unknown. The original adds the times of the whole process once
//! for each thread, which gives hundreds of percent and negative numbers.

use std::fmt::Write as _;

use super::PhaseResult;
use crate::latency::Latency;

const MIB: f64 = 1_048_576.0;

/// Time and rate of each phase.
#[must_use]
pub fn results_table(threads: u32, results: &[PhaseResult]) -> String {
    let mut out = format!(
        "Tiotest results for {threads} concurrent io threads:\n\
         ,----------------------------------------------------------------------.\n\
         | Item                  | Time     | Rate         | Usr CPU  | Sys CPU |\n\
         +-----------------------+----------+--------------+----------+---------+\n"
    );
    for PhaseResult { kind, bytes, time, .. } in results {
        let mib = *bytes as f64 / MIB;
        let seconds = time.0 as f64 / 1e9;
        let rate = if seconds > 0.0 { mib / seconds } else { 0.0 };
        let _ = writeln!(
            out,
            "| {:<12} {:>4} MBs | {seconds:>6.1} s | {rate:>7.3} MB/s | {:>5} %  | {:>5} % |",
            kind.name(),
            mib as u64,
            "-",
            "-",
        );
    }
    out + "`----------------------------------------------------------------------'\n"
}

/// Latencies of each phase and of all phases.
#[must_use]
pub fn latency_table(results: &[PhaseResult]) -> String {
    let mut out = String::from(
        "Tiotest latency results:\n\
         ,-------------------------------------------------------------------------.\n\
         | Item         | Average latency | Maximum latency | % >2 sec | % >10 sec |\n\
         +--------------+-----------------+-----------------+----------+-----------+\n",
    );
    let mut total = Latency::default();
    for result in results {
        row(&mut out, result.kind.name(), &result.latency);
        total.add(&result.latency);
    }
    out += "|--------------+-----------------+-----------------+----------+-----------|\n";
    row(&mut out, "Total", &total);
    out + "`--------------+-----------------+-----------------+----------+-----------'\n"
}

fn row(out: &mut String, name: &str, latency: &Latency) {
    let _ = writeln!(
        out,
        "| {name:<12} | {:>12.3} ms | {:>12.3} ms | {:>8.5} | {:>9.5} |",
        latency.average_ms(),
        latency.max.0 as f64 / 1e6,
        latency.percent(latency.over_2_s),
        latency.percent(latency.over_10_s),
    );
}

/// Compares the latency table of the mail with ours.
#[cfg(test)]
mod tests {
    use blockyard_engine::time::Nanos;

    use super::super::PhaseKind;
    use super::*;

    /// The `deadline-original` rows of the 2009 mail: average and maximum in microseconds, and the
    /// numbers of calls above 2 s and 10 s that follow from its percentages.
    const PUBLISHED: [(PhaseKind, u64, u64, u64, u64, u64); 4] = [
        (PhaseKind::Write, 655_360, 4_122, 17_922_920, 523, 4),
        (PhaseKind::RandomWrite, 32_000, 599, 1_245_200, 0, 0),
        (PhaseKind::Read, 655_360, 8_032, 1_125_759, 0, 0),
        (PhaseKind::RandomRead, 32_000, 181_968, 972_657, 0, 0),
    ];

    fn published() -> Vec<PhaseResult> {
        let times_ms = [103_000, 98_800, 166_200, 193_300];
        let rows = PUBLISHED.iter().zip(times_ms);
        rows.map(|((kind, count, average_us, max_us, over_2_s, over_10_s), time_ms)| PhaseResult {
            kind: *kind,
            bytes: count * 4096,
            time: Nanos::from_ms(time_ms),
            latency: Latency {
                count: *count,
                sum: Nanos(count * average_us * 1_000),
                max: Nanos(max_us * 1_000),
                over_2_s: *over_2_s,
                over_10_s: *over_10_s,
            },
        })
        .collect()
    }

    /// The mail's total row follows from its phase rows: 10.044 ms, 0.03804 %, 0.00029 %.
    #[test]
    fn latency_table_of_the_mail_is_reproduced_with_its_total() {
        let expected = "\
Tiotest latency results:
,-------------------------------------------------------------------------.
| Item         | Average latency | Maximum latency | % >2 sec | % >10 sec |
+--------------+-----------------+-----------------+----------+-----------+
| Write        |        4.122 ms |    17922.920 ms |  0.07980 |   0.00061 |
| Random Write |        0.599 ms |     1245.200 ms |  0.00000 |   0.00000 |
| Read         |        8.032 ms |     1125.759 ms |  0.00000 |   0.00000 |
| Random Read  |      181.968 ms |      972.657 ms |  0.00000 |   0.00000 |
|--------------+-----------------+-----------------+----------+-----------|
| Total        |       10.044 ms |    17922.920 ms |  0.03804 |   0.00029 |
`--------------+-----------------+-----------------+----------+-----------'
";
        assert_eq!(latency_table(&published()), expected);
    }

    #[test]
    fn results_table_has_the_mails_sizes_and_rates() {
        let table = results_table(32, &published());
        let rows: Vec<&str> = table.lines().skip(4).take(4).collect();
        assert!(rows[0].starts_with("| Write        2560 MBs |  103.0 s |  24.854 MB/s |"));
        assert!(rows[1].starts_with("| Random Write  125 MBs |   98.8 s |   1.265 MB/s |"));
        assert!(rows[3].starts_with("| Random Read   125 MBs |  193.3 s |   0.647 MB/s |"));
        let widths: Vec<usize> = table.lines().skip(1).map(str::len).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{table}");
    }
}
