//! Options that name the simulated world of an experiment.

use blockyard_lab::Override;
use clap::{Args, ValueHint};

/// Options for a simulated machine instead of a volume. A command adds conflicts with its own
/// options.
#[derive(Args, Debug)]
pub(crate) struct WorldArgs {
    /// Run on the simulated machine of this experiment (see `lab list`)
    #[arg(long, value_name = "NAME|FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["volume", "table", "raw"])]
    pub(crate) lab: Option<String>,

    // clap ignores `requires` of an option that conflicts with a given one, so these repeat the
    // conflicts of --lab.
    /// Variant of the experiment; the default is the first
    #[arg(long, value_name = "NAME", requires = "lab",
          conflicts_with_all = ["volume", "table", "raw"])]
    pub(crate) variant: Option<String>,

    /// Change a setting of the machine, as in `lab run`
    #[arg(long, value_name = "PATH=VALUE", value_parser = Override::parse, requires = "lab",
          conflicts_with_all = ["volume", "table", "raw"])]
    pub(crate) set: Vec<Override>,
}
