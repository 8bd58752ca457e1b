//! The table and its targets.

use super::cell::Cell;
use super::{JOBS, Placement};

/// The cipher in place, in one buffer of at most 64 KiB.
pub(crate) const HOT: &str = "cipher, in the cache";
/// The cipher from and to memory: the divisor of all other rates.
pub(crate) const BARE: &str = "cipher";

pub(crate) fn print(cells: &[Cell]) {
    println!("x: rate relative to the bare cipher, by the clock and by CPU time");
    println!("ctx: context switches per request, voluntary and involuntary");
    for placement in Placement::ALL {
        for job in JOBS {
            let rows = cells
                .iter()
                .filter(|cell| cell.placement == placement.name() && cell.job == job.name);
            let rows: Vec<&Cell> = rows.collect();
            if rows.is_empty() {
                continue;
            }
            println!("\n{}, {}", job.name, placement.name());
            println!(
                "  {:<24}{:>8}{:>8}{:>8}{:>10}{:>10}{:>8}{:>9}",
                "", "MiB/s", "x clock", "x CPU", "CPU us", "ctx slept", "had to", "x 1 core"
            );
            for row in rows {
                print_row(row, cells);
            }
        }
    }
}

fn print_row(row: &Cell, cells: &[Cell]) {
    let alone = |cell: &&Cell| {
        cell.placement == Placement::One.name() && cell.job == row.job && cell.name == row.name
    };
    let one_core = cells.iter().find(alone).map_or(f64::NAN, Cell::mib_s);
    println!(
        "  {:<24}{:>8.0}{:>8.3}{:>8.3}{:>10.2}{:>10.4}{:>8.4}{:>9.2}",
        row.name,
        row.mib_s(),
        row.of_bare(),
        row.of_bare_by_cpu(),
        row.cpu_us(),
        row.voluntary(),
        row.involuntary(),
        row.mib_s() / one_core,
    );
}

pub(crate) fn print_json(cell: &Cell) {
    println!(
        "{{\"bench\": \"pipeline\", \"placement\": \"{}\", \"job\": \"{}\", \"pipeline\": \"{}\", \
         \"mib_s\": {:.1}, \"of_bare\": {:.4}, \"of_bare_by_cpu\": {:.4}, \"cpu_us\": {:.3}, \
         \"voluntary\": {:.4}, \"involuntary\": {:.4}}}",
        cell.placement,
        cell.job,
        cell.name,
        cell.mib_s(),
        cell.of_bare(),
        cell.of_bare_by_cpu(),
        cell.cpu_us(),
        cell.voluntary(),
        cell.involuntary(),
    );
}
