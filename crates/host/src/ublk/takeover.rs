//! A disk whose server was killed: looked at, checked and given to this server.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use blockyard_protocol::ublk::{
    Control, DeviceState, Disk as Geometry, INFO_BYTES, Info, PARAMETERS_BYTES,
};

use super::control::{Controller, Target, path_of};
use crate::Error;

/// Time for udev to give the character device to its user.
const NODE_PATIENCE: Duration = Duration::from_secs(5);
/// Age from which a device without a server is removed. A server that has made it and cannot open
/// it gives up before.
const UNOPENED_MAX: Duration = Duration::from_secs(6);
/// Time for the end of a server that was killed, or for the last steps of one that removes its
/// disk.
const LEAVING_PATIENCE: Duration = Duration::from_secs(3);
/// Time between looks at either.
const PAUSE: Duration = Duration::from_millis(10);

/// The device of this number, if a server has left a disk for the same volume, and the geometry of
/// the disk. A device without a disk and without a server is removed.
pub(super) fn left_by_another(
    controller: &mut Controller,
    number: u32,
    wanted: &Info,
    geometry: &Geometry,
) -> Result<Option<(Info, Geometry)>, Error> {
    let path = path_of(number);
    let disk = format!("/dev/ublkb{number}");
    let refused = |problem: String| Err(Error::parameter(&disk, problem));
    let failed = |action| move |error| Error::io(Path::new(&path_of(number)), action, error);
    let with_path = Target { device: number, path: Some(&path) };
    let Some(info) = settled(controller, with_path).map_err(failed("look at it"))? else {
        return Ok(None);
    };
    let target = Target { path: with_path.path.filter(|_| info.is_unprivileged()), ..with_path };
    match info.state {
        DeviceState::Dead if !is_open(&path) => {
            controller.run(Control::Delete, target, &mut [], 0).map_err(failed("remove"))?;
            return Ok(None);
        }
        DeviceState::Quiesced => {}
        DeviceState::Dead | DeviceState::Live | DeviceState::Other(_) => {
            let server = match info.server {
                1.. => format!("another server (process {}) has this disk", info.server),
                _ => "another server is making or removing this disk".into(),
            };
            return refused(format!("{server}; choose another number, or none for any"));
        }
    }
    if info.server_word != wanted.server_word {
        return refused(
            "the server of this disk has ended, and served another volume, or this one with \
             another key, cipher, offset, file or table; serve that one again, or choose another \
             number"
                .into(),
        );
    }
    let mut bytes = [0; PARAMETERS_BYTES];
    let ask = PARAMETERS_BYTES as u32;
    bytes[..4].copy_from_slice(&ask.to_ne_bytes());
    controller.run(Control::GetParameters, target, &mut bytes, 0).map_err(failed("look at it"))?;
    let left = Geometry::of(&bytes, info.buffer_bytes);
    let Some(left) = left.filter(|left| geometry.can_serve(left)) else {
        return refused(format!(
            "the disk had another block size, --read-only or --allow-discards with its last \
             server, or more than {} bytes; serve the volume as before, or choose another number",
            geometry.size_bytes
        ));
    };
    Ok(Some((info, left)))
}

/// Prepares a disk for this server. From here on a failure may leave a disk that no server can take
/// over, so the caller has done before all that may fail.
pub(super) fn begin(controller: &mut Controller, info: &Info) -> Result<(), Error> {
    let path = path_of(info.device);
    let path = info.is_unprivileged().then_some(path.as_str());
    let target = Target { device: info.device, path };
    controller.run(Control::StartRecovery, target, &mut [], 0).map_err(|error| {
        let disk = format!("/dev/ublkb{}", info.device);
        match error.raw_os_error() {
            Some(libc::EINVAL) => Error::parameter(
                &disk,
                "an earlier takeover of this disk has failed halfway, and the kernel permits no \
                 other: remove the disk with `ublk del` of ublksrv, which ends its requests",
            ),
            Some(libc::EBUSY) => Error::parameter(&disk, "another server is taking over this disk"),
            _ => Error::io(Path::new(&path_of(info.device)), "take over", error),
        }
    })
}

/// The state of a device, after a server that was killed has left, or one that ends has removed it;
/// `None` if there is no device.
fn settled(controller: &mut Controller, target: Target<'_>) -> io::Result<Option<Info>> {
    let mut since = Instant::now();
    let mut last = None;
    loop {
        let info = look(controller, target);
        let limit = match &info {
            Ok(None) => return Ok(None),
            // The kernel looks for the node of a device that is being removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => LEAVING_PATIENCE,
            Err(_) => return info,
            Ok(Some(info)) => {
                let is_open = target.path.is_some_and(is_open);
                match info.state {
                    DeviceState::Live => LEAVING_PATIENCE,
                    DeviceState::Quiesced | DeviceState::Dead if is_open => LEAVING_PATIENCE,
                    DeviceState::Dead if !target.path.is_some_and(is_old) => UNOPENED_MAX,
                    _ => Duration::ZERO,
                }
            }
        };
        // A server that has waited for udev removes its device only then.
        if last.replace(limit) != Some(limit) {
            since = Instant::now();
        }
        if since.elapsed() >= limit {
            return info;
        }
        std::thread::sleep(PAUSE);
    }
}

fn look(controller: &mut Controller, target: Target<'_>) -> io::Result<Option<Info>> {
    let mut bytes = [0; INFO_BYTES];
    match controller.run(Control::GetInfo, target, &mut bytes, 0) {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        result => result.map(|()| Some(Info::of(&bytes))),
    }
}

/// Whether a server has opened this character device.
fn is_open(path: &str) -> bool {
    let opened = File::options().read(true).write(true).open(path);
    opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}

/// Whether the node of a device is older than a server waits for it. The kernel has made it with
/// the device, and udev changes neither its content nor this time.
fn is_old(path: &str) -> bool {
    let made = fs::metadata(path).and_then(|node| node.modified());
    made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > UNOPENED_MAX))
}

/// Opens a character device, which udev may have yet to give to this user.
pub(super) fn open_node(path: &str) -> Result<File, Error> {
    let start = Instant::now();
    loop {
        match File::options().read(true).write(true).open(path) {
            Ok(file) => return Ok(file),
            Err(error) if start.elapsed() > NODE_PATIENCE => {
                return Err(match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Error::parameter(
                        path,
                        format!(
                            "{error}; udev has not given the device to this user within {} s: \
                             docs/ublk.md has the rules",
                            NODE_PATIENCE.as_secs()
                        ),
                    ),
                    _ => Error::io(Path::new(path), "open", error),
                });
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}
