//! The options of a disk for a virtual machine.

use std::path::PathBuf;

use blockyard::{DeviceOptions, Polling};
use blockyard_host::server::{QUEUES_MAX, QUEUES_USUAL, RING_LEN_MAX};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};

use crate::disk_spec::{DiskSpec, checked_queue_size};

/// Options of a disk for a virtual machine.
#[derive(Args, Debug)]
pub(crate) struct VhostUserArgs {
    /// Offer the volume as a disk to a virtual machine, by vhost-user-blk on a Unix socket that
    /// only its owner may use (mode 0600): see docs/vhost-user.md
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    vhost_user: Option<PathBuf>,

    /// Number of queues of the vhost-user disk; a virtual machine must not ask for more
    #[arg(long, value_name = "N", requires = "vhost_user", default_value_t = QUEUES_USUAL,
          value_parser = clap::value_parser!(u16).range(1..=i64::from(QUEUES_MAX)))]
    num_queues: u16,

    /// Limit of requests in one queue of the vhost-user disk, a power of two
    #[arg(long, value_name = "N", requires = "vhost_user", default_value_t = RING_LEN_MAX,
          value_parser = parse_queue_size)]
    queue_size: u16,

    /// When queues of that disk poll for requests: for a short time while the virtual machine is
    /// busy, never, or always, which uses a CPU for each queue
    #[arg(long, value_name = "WHEN", requires = "vhost_user", default_value = "auto",
          value_parser = PossibleValuesParser::new(["auto", "off", "always"])
              .try_map(|text| text.parse::<Polling>()))]
    poll: Polling,
}

impl VhostUserArgs {
    /// The disk of the volume, with this name in the virtual machine.
    pub(super) fn disk(&self, name: String) -> Option<DiskSpec> {
        let path = self.vhost_user.clone()?;
        let options = DeviceOptions {
            name,
            queues: self.num_queues,
            ring_len_max: self.queue_size,
            polling: self.poll,
        };
        Some(DiskSpec { path, options })
    }
}

fn parse_queue_size(text: &str) -> Result<u16, String> {
    checked_queue_size(text.parse().unwrap_or(0))
}
