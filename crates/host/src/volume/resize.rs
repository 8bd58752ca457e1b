//! The growth of a volume while it is served.
//!
//! ```text
//! file is extended ─> resize ─> longer table for new connections ─> their clients see the new size
//!                                open connections keep their table ─> nothing of theirs changes
//!                                virtual machines are told, and their queues start again
//! ```
//! Growth concerns no I/O in flight: the longer table has the same targets on the same devices, and
//! each connection has a table of its own. The kernel has one table for all users of a device, and
//! suspends it to replace the table (`dm_swap_table`).
//!
//! NBD has no message that tells a client of another size, so its clients reconnect. A front end
//! whose protocol has one watches the table: the queues of a vhost-user disk start again with the
//! new one, and the virtual machine is told (`VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`).
//!
//! A volume does not shrink while it is served: a client may use the sectors that would be lost.

use std::io;
use std::path::Path;

use blockyard_engine::bio::{SECTOR_SHIFT, Sector};
use blockyard_engine::dm::DeviceArea;
use blockyard_engine::dm::table::{Table, TableExtent};

use super::Volume;
use crate::Error;
use crate::file::DeviceFile;

/// The sizes of a volume before and after it has grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resized {
    /// Size until now, which open connections keep.
    pub from_bytes: u64,
    /// Size for new connections.
    pub to_bytes: u64,
}

impl Volume {
    /// Extends the volume's only line to `len_bytes`, a multiple of the sector size, for
    /// connections that are opened from now on. `end_bytes`: the present end, on the disk, of the
    /// part that the volume may use.
    ///
    /// # Errors
    /// The volume has several lines or is on an NBD server, would shrink, or its file or part is
    /// too short.
    pub fn grow(&self, len_bytes: u64, end_bytes: u64) -> Result<Resized, Error> {
        let _turn = self.turn();
        let table = self.parts.table.get();
        let (file, start, line) = self.growable(&table)?;
        let refused = |problem: String| Error::volume(file.path(), problem);
        let from_bytes = table.len().bytes();
        if len_bytes < from_bytes {
            return Err(refused(format!(
                "the volume has {from_bytes} bytes, and would have {len_bytes}; it does not \
                 shrink while it is served, because clients may use the last bytes; stop the \
                 server first"
            )));
        }
        if !len_bytes.is_multiple_of(u64::from(self.sector_size_bytes)) {
            let sector = self.sector_size_bytes;
            return Err(refused(format!(
                "{len_bytes} bytes are no multiple of the sector size, {sector}"
            )));
        }
        let present = file
            .present_len_bytes()
            .map_err(|error| Error::io(file.path(), "find its length", error))?
            .min(end_bytes);
        if start.bytes().checked_add(len_bytes).is_none_or(|end| end > present) {
            return Err(refused(format!(
                "{len_bytes} bytes from sector {} on are wanted, but the file, or the volume's \
                 part of it, ends at byte {present}",
                start.0
            )));
        }
        let mut longer = line.clone();
        longer.len = Sector(len_bytes >> SECTOR_SHIFT);
        self.parts.table.replace(Table::new(vec![longer]));
        Ok(Resized { from_bytes, to_bytes: len_bytes })
    }

    /// Calls a function when the image below the volume has grown, on a thread of its own, until
    /// the volume is closed. Other disks do not tell.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn on_growth(&self, call: impl Fn() + Send + 'static) -> io::Result<()> {
        let devices = self.parts.backend.devices.iter();
        let mut images = devices.filter_map(|device| device.file.remote()?.image());
        images.next().map_or(Ok(()), |image| image.on_growth(call))
    }

    /// The file below the only line, the start of the volume on it, and the line.
    fn growable<'a>(
        &'a self,
        table: &'a Table,
    ) -> Result<(&'a DeviceFile, Sector, &'a TableExtent), Error> {
        let refused = |problem: &str| Error::volume(Path::new("volume"), problem);
        let ([line], 1) = (table.extents(), table.layers().count()) else {
            return Err(refused("has several lines, and each of them has a fixed length"));
        };
        let area = line.facts().window.filter(|area| area.dev.below().is_none());
        let Some(DeviceArea { dev, start }) = area else {
            return Err(refused("has no file or device that could grow"));
        };
        let file = &self.parts.backend.devices[usize::from(dev.0)].file;
        let present = file.present_len_bytes();
        if present.is_err_and(|error| error.kind() == io::ErrorKind::Unsupported) {
            return Err(Error::volume(
                file.path(),
                "an NBD export has the size that its server told when it was opened; start this \
                 server again",
            ));
        }
        Ok((file, start, line))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use blockyard_crypt::params::{CryptFlags, CryptParams};
    use blockyard_crypt::secret::SecretBytes;
    use blockyard_engine::bio::{BlkStatus, Done, Op};
    use blockyard_engine::priority::Priority;

    use super::*;
    use crate::file::Access;
    use crate::local::{Bytes, Client, Request};
    use crate::volume::VolumeOptions;

    const MIB: u64 = 1 << 20;

    fn params() -> CryptParams {
        CryptParams {
            cipher: "aes-xts-plain64".into(),
            key: SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>()),
            iv_offset_sectors: 0,
            data_offset_sectors: 8,
            len_sectors: Some(2 * MIB / 512),
            sector_size_bytes: 4096,
            iv_large_sectors: false,
            flags: CryptFlags::default(),
        }
    }

    /// Writes bytes that tell the request, and collects what it reads.
    #[derive(Default)]
    struct Told(Vec<u8>);

    impl Bytes for Told {
        fn fill(&mut self, user: u64, bytes: &mut [u8]) {
            bytes.fill(user as u8);
        }

        fn check(&mut self, _: u64, bytes: &[u8]) {
            self.0 = bytes.to_vec();
        }
    }

    fn run(client: &mut Client, op: Op, user: u64, range: (u64, u64)) -> (BlkStatus, Vec<u8>) {
        let mut told = Told::default();
        let request = Request { user, op, offset_bytes: range.0, len_bytes: range.1, sync: false };
        client.submit_bytes(request, &mut told);
        let mut done: Vec<Done> = Vec::new();
        client.wait_bytes(1, &mut done, &mut told);
        (done[0].status, told.0)
    }

    #[test]
    fn grown_volume_is_the_one_that_is_opened_later_whatever_its_file_is() {
        for (folder, direct) in [("/dev/shm", false), (".", false), (".", true)] {
            let file = tempfile::NamedTempFile::new_in(folder).unwrap();
            file.as_file().set_len(4096 + 2 * MIB).unwrap();
            let open = || DeviceFile::open(file.path(), Access::ReadWrite, direct).unwrap();
            let volume = Volume::from_crypt(open(), &params(), &VolumeOptions::default()).unwrap();
            let volume = Arc::new(volume);
            let client = || Client::new(&volume, Priority::default()).unwrap();
            let mut early = client();
            assert_eq!(run(&mut early, Op::Write, 1, (0, 2 * MIB)).0, BlkStatus::Ok);
            file.as_file().set_len(4096 + 5 * MIB).unwrap();
            let resized = volume.grow(5 * MIB, u64::MAX).unwrap();
            assert_eq!((resized.from_bytes, resized.to_bytes), (2 * MIB, 5 * MIB));
            let mut late = client();
            assert_eq!((early.size_bytes(), late.size_bytes()), (2 * MIB, 5 * MIB));
            // Over the end of the mapping that the volume was opened with, and behind it.
            for (user, range) in [(2, (2 * MIB - 8192, 65_536)), (3, (4 * MIB, 4096))] {
                assert_eq!(run(&mut late, Op::Write, user, range).0, BlkStatus::Ok);
                assert_eq!(
                    run(&mut late, Op::Read, 9, range).1,
                    vec![user as u8; range.1 as usize]
                );
            }
            assert_ne!(run(&mut early, Op::Read, 9, (2 * MIB, 4096)).0, BlkStatus::Ok);
            let read = run(&mut early, Op::Read, 9, (2 * MIB - 8192, 8192));
            assert_eq!(read, (BlkStatus::Ok, vec![2; 8192]));
            let whole = (2 * MIB - 16_384, 3 * MIB + 16_384);
            let seen = run(&mut late, Op::Read, 9, whole).1;
            drop((early, late, volume));
            let params = CryptParams { len_sectors: Some(5 * MIB / 512), ..params() };
            let later = Volume::from_crypt(open(), &params, &VolumeOptions::default()).unwrap();
            let mut client = Client::new(&Arc::new(later), Priority::default()).unwrap();
            assert!(run(&mut client, Op::Read, 9, whole).1 == seen, "{folder} {direct}");
        }
    }

    fn refused(volume: &Volume, len_bytes: u64) -> String {
        volume.grow(len_bytes, u64::MAX).unwrap_err().to_string()
    }

    #[test]
    fn size_that_a_volume_cannot_have_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096 + 3 * MIB).unwrap();
        let open = || DeviceFile::open(file.path(), Access::ReadWrite, false).unwrap();
        let volume = Volume::from_crypt(open(), &params(), &VolumeOptions::default()).unwrap();
        for (len_bytes, why) in [
            (MIB, "does not shrink"),
            (3 * MIB - 512, "sector size"),
            (3 * MIB + 4096, "ends at byte 3149824"),
            (u64::MAX - 4095, "ends at byte 3149824"),
        ] {
            let said = refused(&volume, len_bytes);
            assert!(said.contains(why), "{said}");
        }
        let said = volume.grow(3 * MIB, 4096 + 3 * MIB - 512).unwrap_err().to_string();
        assert!(said.contains("ends at byte 3149312"), "the part is shorter than its disk: {said}");
        assert_eq!(volume.size_bytes(), 2 * MIB);
        drop(volume);
        let text = format!("0 8 linear {0} 0\n8 8 linear {0} 8\n", file.path().display());
        for (text, why) in [(&text[..], "several lines"), ("0 8 zero", "no file or device")] {
            let text = SecretBytes::copy_of(text.as_bytes());
            let volume = Volume::from_table(&text, &VolumeOptions::default()).unwrap();
            assert!(refused(&volume, MIB).contains(why), "{}", refused(&volume, MIB));
        }
    }
}
