//! `blockyard lab fit-device`.

use std::path::{Path, PathBuf};

use blockyard::ElevatorSpec;
use blockyard_lab::fit_device::{FitRequest, Input, Model, fit_device};
use clap::{Args, ValueHint};

use crate::args::{ForceArgs, ShortHelpArgs};
use crate::failure::Failure;
use crate::output::{InUse, Output, print, say, warn};
use crate::progress::Progress;

/// Fit a simulated device to measurements of a real one
///
/// Measurements are jobs of fio or `blockyard bench` with direct=1, each alone and of another block
/// size, depth or mix of reads and writes; or a trace with completions. Every other measurement is
/// fitted. The rest is predicted, and compared with what was measured.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(super) struct FitDeviceArgs {
    /// JSON of fio or of `blockyard bench --json`, or a trace; may be repeated
    #[arg(long, value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    from: Vec<PathBuf>,

    /// Fit only this model: null, disk or ssd [default: the nearest of all]
    #[arg(long, value_name = "MODEL", value_parser = Model::parse)]
    model: Option<Model>,

    /// Size of the device in MiB [default: the largest `size` of the jobs, or 65536]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 26))]
    size_mib: Option<u64>,

    /// Points that are run for each model
    #[arg(long, value_name = "N", default_value = "600",
          value_parser = clap::value_parser!(u32).range(16..=100_000))]
    draws: u32,

    /// Elevator above the device while it was measured (the word in brackets of
    /// /sys/block/*/queue/scheduler)
    #[arg(long, value_name = "NAME", default_value = "none", value_parser = ElevatorSpec::parse)]
    elevator: ElevatorSpec,

    /// Write the table `[device]` to this file
    #[arg(short, long, value_name = "FILE.toml", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,

    #[command(flatten)]
    force: ForceArgs,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Fits, and prints or writes the device.
pub(super) fn run(args: &FitDeviceArgs) -> Result<(), Failure> {
    let in_use = InUse::of_paths(args.from.iter().map(PathBuf::as_path));
    let output = args.output.as_deref().map(|path| Output::new(path, args.force.force));
    if let Some(output) = &output {
        output.check(&in_use)?;
    }
    let inputs = args.from.iter().map(|path| read(path)).collect::<Result<_, _>>()?;
    let FitDeviceArgs { model, size_mib, draws, .. } = *args;
    let request = FitRequest {
        model,
        size_mib,
        draws,
        elevator: args.elevator.clone(),
        ..FitRequest::default()
    };
    let bar = Progress::steps(0);
    let fitted = fit_device(inputs, &request, |done, all| {
        bar.len(u64::from(all));
        bar.at(u64::from(done));
    })?;
    drop(bar);
    let found: Vec<String> = fitted.table().into_iter().chain(fitted.summary()).collect();
    let comments: String = found.iter().map(|line| format!("# {line}\n")).collect();
    let device = format!("{comments}\n{}", fitted.device);
    let Some(output) = output else { return print(&device) };
    output.write(&in_use, &device)?;
    print(&(found.join("\n") + "\n"))?;
    say(&format!("wrote {}", output.path().display()));
    Ok(())
}

fn read(path: &Path) -> Result<Input, Failure> {
    let (input, warnings) = Input::read(path)?;
    warn(&warnings);
    Ok(input)
}
