//! Settings of a volume as options of `serve`, and measurements in words.

use blockyard::PipelineChoice;
use blockyard::tune::{Axis, Goal, Measurement, Settings};
use clap::ValueEnum;

/// The values of `--goal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GoalArg {
    /// Bytes per second
    Throughput,
    /// Requests per second
    Iops,
    /// Mean latency
    Latency,
    /// 99th percentile of the latencies
    P99,
    /// CPU time of this process per byte
    Cpu,
}

impl From<GoalArg> for Goal {
    fn from(goal: GoalArg) -> Self {
        match goal {
            GoalArg::Throughput => Self::Throughput,
            GoalArg::Iops => Self::Iops,
            GoalArg::Latency => Self::Latency,
            GoalArg::P99 => Self::P99,
            GoalArg::Cpu => Self::Cpu,
        }
    }
}

/// As options of `serve`; empty for the default.
pub(crate) fn options(settings: &Settings) -> Vec<(&'static str, String)> {
    let mut options = Vec::new();
    if settings.direct {
        options.push(("--direct", String::new()));
    }
    if settings.pipeline != PipelineChoice::default() {
        options.push(("--pipeline", settings.pipeline.to_string()));
    }
    let number = |value: u32| value.to_string();
    let all = [
        ("--threads", settings.threads.map(|threads| number(threads.into()))),
        ("--elevator", settings.elevator.as_ref().map(ToString::to_string)),
        ("--queue-depth", settings.queue_depth.map(number)),
        ("--max-sectors", settings.max_sectors.map(number)),
    ];
    options.extend(all.into_iter().filter_map(|(name, value)| Some((name, value?))));
    options
}

/// The options in one line.
pub(crate) fn text(settings: &Settings) -> String {
    let words: Vec<String> = options(settings)
        .into_iter()
        .map(|(name, value)| format!("{name} {value}").trim_end().to_owned())
        .collect();
    if words.is_empty() { "the default".into() } else { words.join(" ") }
}

/// The value on an axis; without one, the options in one line.
pub(crate) fn on_axis(settings: &Settings, axis: Option<Axis>) -> String {
    let or_default = |value: Option<String>| value.unwrap_or_else(|| "default".into());
    let Some(axis) = axis else { return text(settings) };
    match axis {
        Axis::PageCache => if settings.direct { "past it" } else { "through it" }.into(),
        Axis::Pipeline => settings.pipeline.to_string(),
        Axis::Threads => or_default(settings.threads.map(|threads| threads.to_string())),
        Axis::Elevator | Axis::Tunables => {
            or_default(settings.elevator.as_ref().map(ToString::to_string))
        }
        Axis::QueueDepth => or_default(settings.queue_depth.map(|depth| depth.to_string())),
        Axis::LongestRequest => {
            or_default(settings.max_sectors.map(|sectors| format!("{} KiB", sectors / 2)))
        }
    }
}

/// The extent of a measurement.
pub(crate) fn measurement(measurement: Measurement) -> String {
    match measurement {
        Measurement::Time { slice } => format!("{} ms", slice.as_millis()),
        Measurement::Window { slice, windows } => {
            format!("{} ms of the trace, of {windows} such windows", slice.as_millis())
        }
        Measurement::Bios { bios, all } => {
            let again = if bios > all { ", repeated" } else { "" };
            format!("{bios} bios of the trace's {all}{again}, as fast as possible")
        }
    }
}

#[cfg(test)]
mod tests {
    use blockyard_engine::elevator::ElevatorSpec;

    use super::*;

    #[test]
    fn settings_are_options_of_serve() {
        assert_eq!(text(&Settings::default()), "the default");
        let settings = Settings {
            direct: true,
            pipeline: PipelineChoice::parse("inline").unwrap(),
            threads: Some(3),
            elevator: Some(ElevatorSpec::parse("deadline,fifo_batch=4").unwrap()),
            queue_depth: Some(8),
            max_sectors: Some(256),
        };
        let wanted = "--direct --pipeline inline --threads 3 --elevator deadline,fifo_batch=4 \
                      --queue-depth 8 --max-sectors 256";
        assert_eq!(text(&settings), wanted);
        assert_eq!(on_axis(&settings, Some(Axis::LongestRequest)), "128 KiB");
    }

    #[test]
    fn pipelines_that_are_the_same_have_the_first_name() {
        let rivals = Settings::default().rivals();
        let names: Vec<String> = rivals.iter().map(|one| one.pipeline.to_string()).collect();
        let has = |name: &str| names.iter().any(|known| known == name);
        assert!(has("A") && !has("D"), "{names:?}");
    }
}
