//! Rules that claims name: those of the simulator, and those of the workloads.

use blockyard_engine::time::Nanos;
use blockyard_sim::checks::{self, Check, Verdict};
use blockyard_workload::fio::{Fio, Job, Rw};
use blockyard_workload::program::{Call, FileId, Program, Returned, Task};
use blockyard_workload::result_line::ResultLine;

/// Rules of workloads.
static OWN: [Check; 2] = [
    Check {
        id: "001-20",
        about: "three sockets with three processes each, over a device of 1000 blocks",
        run: regions,
    },
    Check {
        id: "001-21",
        about: "the mail's example is parsed and printed unchanged; its last column follows",
        run: result_line,
    },
];

/// All rules.
pub(crate) fn all() -> impl Iterator<Item = &'static Check> {
    checks::all().iter().chain(&OWN)
}

/// The rule of a claim.
pub(crate) fn find(id: &str) -> Option<&'static Check> {
    all().find(|check| check.id == id)
}

fn regions(_: u64) -> Verdict {
    let (ours, holds) = layout(true);
    let (control, control_holds) = layout(false);
    let control = Some(format!("not divided: {control}"));
    Verdict { ours, holds, control, control_holds: Some(!control_holds) }
}

/// The regions of all processes, and whether they match the mail's drawing.
fn layout(divide: bool) -> (String, bool) {
    let job = Job::new("heavy").with(|job| {
        job.shape.rw = Rw::Write;
        job.region.filename = Some("disk".into());
        job.region.size_bytes = 1000 * 4096;
        job.clones.numjobs = 3;
        job.clones.nodes = vec![0, 1, 2];
        job.region.divide = divide;
    });
    let mut fio = Fio::new(vec![job]).expect("the job can be run");
    let set_up = fio.next_phase();
    let tasks = fio.next_phase().map_or_else(Vec::new, |phase| phase.tasks);
    let sockets: Vec<_> = tasks.iter().map(Task::socket).collect();
    let regions: Vec<(u64, u64)> = tasks.into_iter().map(region).collect();
    let bound = sockets == [0, 0, 0, 1, 1, 1, 2, 2, 2].map(Some);
    let len = regions.first().map_or(0, |(start, end)| end - start);
    let equal = regions.iter().all(|(start, end)| end - start == len);
    let disjoint = regions.windows(2).all(|pair| pair[0].1 <= pair[1].0);
    let count = regions.len();
    let yes = |is: bool| if is { "" } else { "not " };
    let ours = format!(
        "{count} regions, {}equal ({} KiB), {}disjoint, {}bound",
        yes(equal),
        len / 1024,
        yes(disjoint),
        yes(bound)
    );
    (ours, set_up.is_some() && count == 9 && bound && equal && disjoint)
}

/// Start and end of the bytes that a task writes.
fn region(mut task: impl Task) -> (u64, u64) {
    let mut start = u64::MAX;
    let mut end = 0;
    loop {
        match task.next(Nanos(0), &Returned::OK) {
            Call::Write { file: FileId(0), offset_bytes, len_bytes } => {
                start = start.min(offset_bytes);
                end = end.max(offset_bytes + len_bytes);
            }
            Call::Exit => return (start.min(end), end),
            _ => {}
        }
    }
}

fn result_line(_: u64) -> Verdict {
    const MAIL: &str = "D iodepth=256, 32k, mode: write: 698461.10 14795.64 2.12 %";
    // A last column that does not follow from the others.
    const OTHER: &str = "D iodepth=256, 32k, mode: write: 698461.10 14795.64 3.12 %";
    let read = MAIL.parse::<ResultLine>();
    let ours = read.as_ref().map_or_else(ToString::to_string, ToString::to_string);
    let other = OTHER.parse::<ResultLine>();
    Verdict {
        holds: ours == MAIL,
        ours,
        control: Some(format!("with 3.12 %: {}", if other.is_ok() { "read" } else { "refused" })),
        control_holds: Some(other.is_err()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_workloads_hold_and_their_controls_do_not() {
        for check in &OWN {
            let verdict = (check.run)(1);
            assert!(verdict.holds && verdict.control_holds == Some(true), "{verdict:?}");
            assert!(find(check.id).is_some());
        }
        assert!(find("004-1").is_some() && find("004-99").is_none());
    }
}
