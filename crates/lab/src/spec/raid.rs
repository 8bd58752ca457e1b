//! The table `[raid]`: several of the devices as one.

use blockyard_sim::world::{DeviceConfig, RaidConfig};

use super::section::Section;
use crate::Error;

/// Reads the members of a RAID; nothing for a single device.
pub(super) fn read(
    root: &mut Section<'_>,
    device: &DeviceConfig,
) -> Result<Option<RaidConfig>, Error> {
    let mut section = root.part("raid")?;
    let read = RaidConfig {
        members: section.number("members", 1..=64, 1)?,
        copies: section.number("copies", 1..=64, 1)?,
        chunk_sectors: section.number("chunk_kib", 4..=65_536, 512u32)? * 2,
    };
    if read.copies > read.members {
        return Err(
            section.wrong_key("copies", "exceeds members: each copy has a member of its own")
        );
    }
    if read.members > 1 && matches!(device, DeviceConfig::Null(_) | DeviceConfig::Cluster(_)) {
        return Err(section.wrong_key("members", "are disks, flash or memory: set device.kind"));
    }
    if u64::from(read.chunk_sectors) > device.sectors() {
        return Err(section.wrong_key("chunk_kib", "is larger than a member, device.size_mib"));
    }
    section.finish()?;
    Ok((read.members > 1).then_some(read))
}
