//! `cargo x interop`: the binary against other programs and against attackers.
//!
//! Every check is a named case. The server runs as an ordinary user without capabilities. If a
//! foreign program is not installed, its case fails with the package's name; it is never skipped.

pub(crate) mod broken;
mod clients;
pub(crate) mod content;
mod crash;
mod failing;
mod gluster;
pub(crate) mod headers;
mod hostile;
mod jobs;
mod kernel;
mod keys;
mod load;
mod logged;
mod machines;
mod options;
mod paths;
mod peers;
mod qemu;
mod rbd;
mod scraped;
mod service;
mod stores;
mod tls;
mod tokens;
mod traces;

use crate::cases::Cases;
use crate::lab::Lab;
use crate::totals::Totals;
use anyhow::Result;

/// Lengths and selection.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds of verified load over four connections.
    #[arg(long, default_value_t = 60)]
    pub(crate) seconds: u32,
    /// Rounds of kill -9 under write load.
    #[arg(long, default_value_t = 50)]
    pub(crate) rounds: u32,
    /// Clients that vanish with reads in flight.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) disconnects: u32,
    /// Rounds of two programs that add keyslots at once.
    #[arg(long, default_value_t = 20)]
    pub(crate) key_rounds: u32,
    /// Only cases whose name contains this.
    pub(crate) only: Option<String>,
}

pub(crate) fn run(args: &Args, totals: &mut Totals) -> Result<()> {
    let lab = Lab::new()?;
    let mut cases = Cases::new(args.only.as_deref());
    peers::run(&mut cases, &lab);
    clients::run(&mut cases, &lab);
    tls::run(&mut cases, &lab);
    rbd::run(&mut cases, &lab);
    stores::run(&mut cases, &lab);
    gluster::run(&mut cases, &lab);
    kernel::run(&mut cases, &lab);
    machines::run(&mut cases, &lab);
    qemu::run(&mut cases, &lab, args.rounds);
    logged::run(&mut cases, &lab);
    service::run(&mut cases, &lab);
    scraped::run(&mut cases, &lab);
    headers::run(&mut cases, &lab);
    keys::run(&mut cases, &lab, args.key_rounds, totals);
    tokens::run(&mut cases, &lab);
    hostile::run(&mut cases, &lab);
    broken::run(&mut cases, &lab, args.disconnects);
    load::run(&mut cases, &lab, args.seconds);
    traces::run(&mut cases, &lab);
    jobs::run(&mut cases, &lab);
    options::run(&mut cases, &lab);
    paths::run(&mut cases, &lab, args.seconds);
    failing::run(&mut cases, &lab);
    crash::run(&mut cases, &lab, args.rounds, totals);
    cases.finish("interop")
}
