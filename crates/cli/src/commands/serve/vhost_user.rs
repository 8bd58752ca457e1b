//! The options of a disk for a virtual machine.

use std::path::PathBuf;

use blockyard::DeviceOptions;
use blockyard_host::server::{QUEUES_MAX, QUEUES_USUAL, RING_LEN_MAX};
use clap::{Args, ValueHint};

use crate::config::ExportSpec;

/// Options of a disk for a virtual machine.
#[derive(Args, Debug)]
pub(crate) struct VhostUserArgs {
    /// Offer the volume as a disk to a virtual machine, by vhost-user-blk on a Unix socket that
    /// only its owner may use (mode 0600): see docs/vhost-user.md
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(super) vhost_user: Option<PathBuf>,

    /// Number of queues of that disk; a virtual machine must not ask for more
    #[arg(long, value_name = "N", requires = "vhost_user", default_value_t = QUEUES_USUAL,
          value_parser = clap::value_parser!(u16).range(1..=i64::from(QUEUES_MAX)))]
    num_queues: u16,

    /// Limit of requests in one queue of that disk, a power of two
    #[arg(long, value_name = "N", requires = "vhost_user", default_value_t = RING_LEN_MAX,
          value_parser = parse_queue_size)]
    queue_size: u16,
}

impl VhostUserArgs {
    /// The disk is named by its export, or else by its file.
    pub(super) fn options(&self, export: &ExportSpec) -> DeviceOptions {
        let file = export.volume.path.file_name().unwrap_or_default().to_string_lossy();
        let name = if export.name.is_empty() { file.into_owned() } else { export.name.clone() };
        DeviceOptions { name, queues: self.num_queues, ring_len_max: self.queue_size }
    }
}

fn parse_queue_size(text: &str) -> Result<u16, String> {
    let size = text.parse().ok().filter(|size: &u16| size.is_power_of_two());
    size.filter(|size| *size <= RING_LEN_MAX)
        .ok_or_else(|| format!("a queue has a power of two of entries, at most {RING_LEN_MAX}"))
}
