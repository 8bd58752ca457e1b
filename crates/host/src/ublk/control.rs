//! Control commands for ublk devices.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use blockyard_protocol::ublk::{self, CONTROL_BYTES, Control};
use io_uring::register::Restriction;
use io_uring::squeue::{Entry128, EntryMarker};
use io_uring::{IoUring, cqueue, opcode, types};

use crate::Error;

/// The control device.
pub(super) const CONTROL: &str = "/dev/ublk-control";
/// Path of a character device.
pub(super) fn path_of(device: u32) -> String {
    format!("/dev/ublkc{device}")
}

/// `IOSQE_FIXED_FILE`.
const FIXED_FILE: u8 = 1;

/// Opens the control device.
///
/// # Errors
/// This kernel has no ublk, or this user may not use it.
fn open() -> Result<File, Error> {
    File::options().read(true).write(true).open(CONTROL).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::parameter(
            CONTROL,
            format!(
                "this kernel ({}) has no ublk: load its module with `modprobe ublk_drv` (Linux \
                 6.4, CONFIG_BLK_DEV_UBLK), or serve the volume by NBD or --vhost-user",
                fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim()
            ),
        ),
        io::ErrorKind::PermissionDenied => Error::parameter(
            CONTROL,
            "this user may not use it: docs/ublk.md has rules of udev that permit it",
        ),
        _ => Error::io(Path::new(CONTROL), "open", error),
    })
}

/// Checks that disks can be made.
///
/// # Errors
/// This kernel has no ublk, or this user may not use it.
pub fn check() -> Result<(), Error> {
    ring_of(&open()?).map(drop)
}

/// A ring that accepts nothing until [`enable`].
pub(super) fn disabled<S: EntryMarker>(entries: u32) -> io::Result<IoUring<S, cqueue::Entry>> {
    IoUring::<S, cqueue::Entry>::builder().setup_r_disabled().build(entries)
}

/// Lets a ring accept commands to this file, and nothing else.
pub(super) fn enable<S: EntryMarker>(
    ring: &IoUring<S, cqueue::Entry>,
    file: &File,
) -> io::Result<()> {
    ring.submitter().register_files(&[file.as_raw_fd()])?;
    let mut restrictions = [
        Restriction::sqe_op(opcode::UringCmd16::CODE),
        Restriction::sqe_flags_required(FIXED_FILE),
    ];
    ring.submitter().register_restrictions(&mut restrictions)?;
    ring.submitter().register_enable_rings()
}

fn ring_of(control: &File) -> Result<IoUring<Entry128, cqueue::Entry>, Error> {
    let ring = disabled(1).and_then(|ring| enable(&ring, control).map(|()| ring));
    ring.map_err(|error| {
        let problem = match error.raw_os_error() {
            Some(libc::ENOSYS | libc::EPERM) => {
                "ublk needs io_uring, which this system does not \
                                                 permit (sysctl kernel.io_uring_disabled, or the \
                                                 limits of a container)"
            }
            Some(libc::EINVAL) => {
                "ublk needs commands of io_uring, which this kernel does not \
                                   have; they come with Linux 6.4"
            }
            _ => return Error::io(Path::new(CONTROL), "make a ring for it", error),
        };
        Error::parameter(CONTROL, problem)
    })
}

/// The ring of control commands.
pub(super) struct Controller(IoUring<Entry128, cqueue::Entry>);

/// A device, for control commands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    pub(super) device: u32,
    /// The path of its character device, by which the kernel checks the permission of a user
    /// without privileges.
    pub(super) path: Option<&'a str>,
}

impl Controller {
    pub(super) fn new() -> Result<Self, Error> {
        ring_of(&open()?).map(Self)
    }

    /// Runs a command, which may change the buffer.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn run(
        &mut self,
        command: Control,
        target: Target<'_>,
        buffer: &mut [u8],
        argument: u64,
    ) -> io::Result<()> {
        let Target { device, path } = target;
        let mut memory = path.map(|path| [path.as_bytes(), &[0]].concat()).unwrap_or_default();
        let path_bytes = memory.len();
        memory.extend_from_slice(buffer);
        let addr = if memory.is_empty() { 0 } else { memory.as_mut_ptr().expose_provenance() };
        let bytes =
            ublk::control(device, addr as u64, memory.len() as u16, path_bytes as u16, argument);
        let mut command_bytes = [0; 80];
        command_bytes[..CONTROL_BYTES].copy_from_slice(&bytes);
        let entry = opcode::UringCmd80::new(types::Fixed(0), command.number());
        let entry = entry.cmd(command_bytes).build();
        // SAFETY: `memory` outlives the command, whose end `finished` awaits.
        unsafe { self.0.submission().push(&entry) }.expect("the ring is empty");
        let result = self.finished();
        buffer.copy_from_slice(&memory[path_bytes..]);
        match result {
            0.. => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }

    /// Waits for the end of the command in flight, whose memory the kernel uses until then.
    fn finished(&mut self) -> i32 {
        loop {
            if let Some(end) = self.0.completion().next() {
                return end.result();
            }
            // Signals interrupt it.
            let _ = self.0.submit_and_wait(1);
        }
    }
}
