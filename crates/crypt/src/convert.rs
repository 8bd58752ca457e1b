//! Conversion between LUKS1 and LUKS2. The data and the volume key stay as they are.
//!
//! A power cut leaves one of the two headers, with all its keyslots. The first sector of the disk
//! decides about the version, and it is written alone:
//!
//! ```text
//!   to LUKS2: keyslot 0 moved away -> secondary -> JSON of the primary -> sector 0 -> sectors 1..7
//!   to LUKS1: sectors 1..7 (the primary is broken, the secondary in use) -> sector 0 -> rest wiped
//! ```
//!
//! Keyslots stay in their places, and so cryptsetup's layout differs after its own conversion,
//! which moves all of them.

use std::ops::Range;

use crate::error::Error;
use crate::header_write::{Step, Write, write_steps};
use crate::luks::Header;
use crate::source::{HeaderDevice, HeaderSource};
use crate::{luks1, luks2};

/// First byte after both copies of the smallest LUKS2 header, which a conversion makes.
const COPIES_END_BYTES: u64 = 0x8000;
const COPY_LEN_BYTES: usize = 0x4000;
/// Start of a luksmeta block (`luksmeta.c`).
const LUKSMETA_MAGIC: [u8; 8] = *b"LUKSMETA";

/// Makes a LUKS2 volume of a LUKS1 volume.
///
/// # Errors
/// The volume is LUKS2, its keyslots leave no room, or writing fails.
pub fn to_luks2(device: &mut dyn HeaderDevice) -> Result<(), Error> {
    let (header, _) = Header::read(&&*device)?;
    header.check_len()?;
    let Header::Luks1(header) = header else {
        return Err(Error::unsupported("header", "this is a LUKS2 volume already"));
    };
    let steps = steps_to_luks2(&&*device, &header)?;
    write_steps(device, &steps)
}

fn steps_to_luks2(source: &dyn HeaderSource, header: &luks1::Header) -> Result<Vec<Step>, Error> {
    check_luksmeta(source, header)?;
    // The data of a detached header starts at 0, or behind the end of the header's file.
    let areas_end = match header.data_offset_bytes() {
        0 => source.len_bytes(),
        offset_bytes => offset_bytes.min(source.len_bytes()),
    };
    let (header, mut steps) = clear_of_copies(source, header)?;
    let document = header.luks2_document(areas_end)?;
    let [primary, secondary] = luks2::new_copies(&document, header.uuid())?;
    steps.extend(luks2::sealed_last("secondary", COPY_LEN_BYTES as u64, &secondary));
    let write = |range: Range<usize>| {
        let bytes = Write::Bytes(range.start as u64, primary[range].to_vec());
        Step::new("the primary LUKS2 header", vec![bytes])
    };
    steps.extend([write(4096..COPY_LEN_BYTES), write(0..512), write(512..4096)]);
    // Only what belonged to LUKS1: other programs may have stored something behind its keyslots.
    let free = header.free_areas().into_iter();
    let wiped = free
        .map(|area| area.start.max(COPIES_END_BYTES)..area.end)
        .filter(|area| !area.is_empty())
        .map(Write::Random)
        .collect();
    steps.push(Step::new("the free keyslots", wiped));
    Ok(steps)
}

/// Refuses a header with a block of luksmeta after the keyslots, in which clevis keeps its data.
/// LUKS2 uses that space for keyslots. cryptsetup refuses it too.
fn check_luksmeta(source: &dyn HeaderSource, header: &luks1::Header) -> Result<(), Error> {
    let mut magic = [0; LUKSMETA_MAGIC.len()];
    let offset_bytes = header.keyslots_end_bytes().next_multiple_of(4096);
    // The header may end with the file.
    if source.read_at(offset_bytes, &mut magic).is_ok() && magic == LUKSMETA_MAGIC {
        let problem = "luksmeta keeps data of clevis after the keyslots, where LUKS2 would \
                       overwrite it; remove it first, with luksmeta nuke";
        return Err(Error::unsupported(format!("LUKS1 header, byte {offset_bytes}"), problem));
    }
    Ok(())
}

/// The header with no keyslot in use where the copies of LUKS2 will lie, and the steps to it.
fn clear_of_copies(
    source: &dyn HeaderSource,
    header: &luks1::Header,
) -> Result<(luks1::Header, Vec<Step>), Error> {
    let mut header = header.clone();
    let mut steps = Vec::new();
    let in_the_way = |(_, area): &(u32, Range<u64>)| area.start < COPIES_END_BYTES;
    for (number, area) in header.areas().into_iter().filter(in_the_way) {
        let mut material = vec![0; usize::try_from(area.end - area.start).expect("in memory")];
        source.read_at(area.start, &mut material).map_err(|error| Error::Read {
            what: format!("the key material of keyslot {number}"),
            error,
        })?;
        let place = header.swap_with_free(number, COPIES_END_BYTES)?;
        steps.push(Step::new("a moved keyslot", vec![Write::Bytes(place, material)]));
        steps.extend(header.steps());
    }
    Ok((header, steps))
}

/// Makes a LUKS1 volume of a LUKS2 volume.
///
/// # Errors
/// The volume is LUKS1, uses something that LUKS1 has not, or writing fails.
pub fn to_luks1(device: &mut dyn HeaderDevice) -> Result<(), Error> {
    let (header, notices) = Header::read(&&*device)?;
    let Header::Luks2(header) = header else {
        return Err(Error::unsupported("header", "this is a LUKS1 volume already"));
    };
    if !notices.is_empty() {
        let problem = "one copy is damaged or outdated; repair the volume first";
        return Err(Error::header("LUKS2 header", problem));
    }
    let copies_end = 2 * header.copy_len_bytes();
    let new = header.to_luks1()?;
    let end_bytes = new.keyslots_end_bytes();
    let len_bytes = device.len_bytes();
    if end_bytes > len_bytes {
        let problem = format!(
            "its 8 keyslots would end at byte {end_bytes}, but the device or file has {len_bytes}; \
             make it larger"
        );
        return Err(Error::unsupported("LUKS1", problem));
    }
    let new = new.to_bytes();
    let mut rest = new[512..].to_vec();
    rest.resize(4096 - 512, 0);
    let write = |offset, bytes| Step::new("the LUKS1 header", vec![Write::Bytes(offset, bytes)]);
    let steps = [
        write(512, rest),
        write(0, new[..512].to_vec()),
        Step::new("the old header", vec![Write::Zeros(4096..copies_end)]),
    ];
    write_steps(device, &steps)
}
