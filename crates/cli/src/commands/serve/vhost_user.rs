//! The options of a disk for a virtual machine, with the names that QEMU's conventions for such
//! programs give them (docs/interop/vhost-user.rst).

use std::borrow::Cow;
use std::path::PathBuf;

use blockyard::{DeviceOptions, Polling};
use blockyard_host::server::{QUEUES_MAX, QUEUES_USUAL, RING_LEN_MAX};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use serde::Serialize;

use crate::args::VolumeArgs;
use crate::disk_spec::{DiskSocket, DiskSpec, checked_queue_size};
use crate::failure::Failure;
use crate::json;
use crate::output::print;

/// Options of a disk for a virtual machine.
#[derive(Args, Debug)]
pub(crate) struct VhostUserArgs {
    /// Be the disk of a virtual machine, on a Unix socket
    ///
    /// The machine needs vhost-user-blk: see docs/vhost-user.md. Only its owner may use the socket
    /// (mode 0600).
    #[arg(long, visible_alias = "socket-path", group = "disk_socket", value_name = "PATH",
          value_hint = ValueHint::FilePath)]
    vhost_user: Option<PathBuf>,

    /// Offer the disk on a listening Unix socket that was passed as this descriptor
    #[arg(long, group = "disk_socket", value_name = "N",
          value_parser = clap::value_parser!(i32).range(0..))]
    fd: Option<i32>,

    /// Number of queues of the vhost-user disk; a virtual machine must not ask for more
    #[arg(long, value_name = "N", requires = "disk_socket", default_value_t = QUEUES_USUAL,
          value_parser = clap::value_parser!(u16).range(1..=i64::from(QUEUES_MAX)))]
    num_queues: u16,

    /// Limit of requests in one queue of the vhost-user disk, a power of two
    #[arg(long, value_name = "N", requires = "disk_socket", default_value_t = RING_LEN_MAX,
          value_parser = parse_queue_size)]
    queue_size: u16,

    /// When queues of that disk poll for requests: for a short time while the virtual machine is
    /// busy, never, or always, which uses a CPU for each queue
    #[arg(long, value_name = "WHEN", requires = "disk_socket", default_value = "auto",
          value_parser = PossibleValuesParser::new(["auto", "off", "always"])
              .try_map(|text| text.parse::<Polling>()))]
    poll: Polling,

    /// Another way to name VOLUME
    #[arg(long, value_name = "PATH", conflicts_with_all = ["volume", "table"],
          value_hint = ValueHint::FilePath)]
    blk_file: Option<PathBuf>,

    /// Print as JSON what this program can do as a back end of virtual machines, and exit
    #[arg(long)]
    print_capabilities: bool,
}

impl VhostUserArgs {
    pub(super) fn prints_capabilities(&self) -> bool {
        self.print_capabilities
    }

    /// The options of the volume, with the name that was given here.
    pub(super) fn named_volume<'a>(&self, volume: &'a VolumeArgs) -> Cow<'a, VolumeArgs> {
        match &self.blk_file {
            None => Cow::Borrowed(volume),
            Some(path) => Cow::Owned(VolumeArgs { volume: Some(path.clone()), ..volume.clone() }),
        }
    }

    /// The disk of the volume, with this name in the virtual machine.
    pub(super) fn disk(&self, name: String) -> Result<Option<DiskSpec>, Failure> {
        let socket = match (&self.vhost_user, self.fd) {
            (Some(path), _) => DiskSocket::Path(path.clone()),
            (None, Some(number)) => DiskSocket::inherited(number)?,
            (None, None) => return Ok(None),
        };
        let options = DeviceOptions {
            name,
            queues: self.num_queues,
            ring_len_max: self.queue_size,
            polling: self.poll,
        };
        Ok(Some(DiskSpec { socket, options }))
    }
}

/// `VHostUserBackendCapabilities` of QEMU's vhost-user.json.
#[derive(Serialize)]
struct Capabilities {
    #[serde(rename = "type")]
    kind: &'static str,
    /// Options of the conventions that are optional.
    features: [&'static str; 2],
}

pub(super) fn print_capabilities() -> Result<(), Failure> {
    let capabilities = Capabilities { kind: "block", features: ["read-only", "blk-file"] };
    print(&json::pretty(&capabilities))
}

fn parse_queue_size(text: &str) -> Result<u16, String> {
    checked_queue_size(text.parse().unwrap_or(0))
}
