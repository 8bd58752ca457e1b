//! Options that name the simulated world of an experiment.

use blockyard_lab::Override;
use clap::{Args, ValueHint};

/// The world of an experiment in place of a volume. A command adds conflicts with its own options.
#[derive(Args, Debug)]
pub(crate) struct WorldArgs {
    /// The world of this experiment (see `lab list`)
    #[arg(long, value_name = "NAME|FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["volume", "table", "raw"])]
    pub(crate) lab: Option<String>,

    // `requires` of an option that conflicts with what is there asks for nothing: so these have the
    // conflicts of --lab too.
    /// The world of this variant; without one, of the first
    #[arg(long, value_name = "NAME", requires = "lab",
          conflicts_with_all = ["volume", "table", "raw"])]
    pub(crate) variant: Option<String>,

    /// Change a value of the world, as in `lab run`
    #[arg(long, value_name = "PATH=VALUE", value_parser = Override::parse, requires = "lab",
          conflicts_with_all = ["volume", "table", "raw"])]
    pub(crate) set: Vec<Override>,
}
