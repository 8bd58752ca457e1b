//! A disk that records the writes and syncs of an operation, and the disks that a power cut may
//! leave at each point of them.

#![allow(dead_code, reason = "each test uses a part")]

use std::cell::RefCell;
use std::collections::VecDeque;

use blockyard_crypt::format::{self, FormatOptions, Pbkdf};
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::kdf::Kdf;
use blockyard_crypt::keys::{self, NewKeyslot, Usage};
use blockyard_crypt::luks::{Header, HeaderInfo, UnlockOptions};
use blockyard_crypt::luks1;
use blockyard_crypt::secret::SecretBytes;
use blockyard_crypt::source::{HeaderSink, HeaderSource, SourceError};

pub(crate) const KDF: Kdf = Kdf::Pbkdf2 { hash: HashAlgorithm::Sha256, iterations: 1000 };
pub(crate) const OLD: &[u8] = b"the old passphrase";
pub(crate) const NEW: &[u8] = b"the new one";
/// First byte of the first keyslot area of the volumes here.
pub(crate) const LUKS1_AREA_BYTES: usize = 4096;
pub(crate) const LUKS2_AREA_BYTES: usize = 32 << 10;
/// Length of a keyslot's material: 4000 stripes of 32 bytes.
pub(crate) const MATERIAL_LEN_BYTES: usize = 128_000;
/// Writes of a step of which every set is tried: each may have arrived or not.
const WRITES_IN_ANY_ORDER_MAX: usize = 8;

pub(crate) fn secret(bytes: &[u8]) -> SecretBytes {
    SecretBytes::copy_of(bytes)
}

/// One write: its first byte, and its bytes.
pub(crate) type Written = (usize, Vec<u8>);

/// A disk that records.
pub(crate) struct Recorder {
    pub(crate) disk: Vec<u8>,
    /// The writes between two syncs.
    pub(crate) steps: Vec<Vec<Written>>,
    /// Writes after the last sync.
    unsynced: Vec<Written>,
}

impl Recorder {
    pub(crate) fn of(disk: &[u8]) -> Self {
        Self { disk: disk.to_vec(), steps: Vec::new(), unsynced: Vec::new() }
    }

    /// The steps of an operation that has ended.
    pub(crate) fn into_steps(self) -> Vec<Vec<Written>> {
        assert!(self.unsynced.is_empty(), "an operation ends with a sync");
        self.steps
    }
}

impl HeaderSource for Recorder {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.disk.read_at(offset_bytes, buf)
    }

    fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }
}

impl HeaderSink for Recorder {
    fn write_at(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<(), SourceError> {
        self.disk.write_at(offset_bytes, bytes)?;
        self.unsynced.push((usize::try_from(offset_bytes).unwrap(), bytes.to_vec()));
        Ok(())
    }

    fn sync(&mut self) -> Result<(), SourceError> {
        self.steps.push(std::mem::take(&mut self.unsynced));
        Ok(())
    }
}

/// Lengths at which a write of `len` bytes is torn, at most about `tears_max` of them.
fn tears(len: usize, tears_max: usize) -> Vec<usize> {
    let borders = len.div_ceil(512).saturating_sub(1);
    if borders == 0 || tears_max == 0 {
        return Vec::new();
    }
    let step = borders.div_ceil(tears_max).max(1);
    (1..=borders).filter(|n| n % step == 0 || *n == 1 || *n == borders).map(|n| n * 512).collect()
}

fn put(disk: &mut [u8], (at, bytes): &Written) {
    disk[*at..*at + bytes.len()].copy_from_slice(bytes);
}

/// The disks that a power cut may leave: at each step any of its writes have arrived, or all
/// before one that is torn. `check` gets each with its number; returns how many there are, or the
/// first error.
pub(crate) fn try_each_point(
    before: &[u8],
    steps: &[Vec<Written>],
    tears_max: usize,
    mut check: impl FnMut(&[u8], usize) -> Result<(), String>,
) -> Result<usize, String> {
    let mut points = 0;
    let mut point = |disk: &[u8]| {
        points += 1;
        check(disk, points)
    };
    let mut durable = before.to_vec();
    point(before)?;
    for step in steps {
        let mut cached = durable.clone();
        for write in step {
            let (at, bytes) = write;
            for torn in tears(bytes.len(), tears_max) {
                for disk in [&durable, &cached] {
                    let mut disk = disk.clone();
                    disk[*at..at + torn].copy_from_slice(&bytes[..torn]);
                    point(&disk)?;
                    // The other part arrived, and this one did not.
                    disk[*at..at + torn].copy_from_slice(&durable[*at..at + torn]);
                    disk[at + torn..at + bytes.len()].copy_from_slice(&bytes[torn..]);
                    point(&disk)?;
                }
            }
            put(&mut cached, write);
            point(&cached)?;
        }
        for arrived in sets(step) {
            let mut disk = durable.clone();
            arrived.iter().for_each(|write| put(&mut disk, write));
            point(&disk)?;
        }
        durable = cached;
        point(&durable)?;
    }
    Ok(points)
}

/// Every set of writes, or of many writes only one, and all but one.
fn sets(step: &[Written]) -> Vec<Vec<&Written>> {
    let set = |is_in: &dyn Fn(usize) -> bool| -> Vec<&Written> {
        step.iter().enumerate().filter(|(index, _)| is_in(*index)).map(|(_, write)| write).collect()
    };
    if step.len() <= WRITES_IN_ANY_ORDER_MAX {
        return (0..1_usize << step.len())
            .map(|mask| set(&|index| mask >> index & 1 == 1))
            .collect();
    }
    let one = (0..step.len()).map(|only| set(&|index| index == only));
    let others = (0..step.len()).map(|lost| set(&|index| index != lost));
    one.chain(others).collect()
}

/// A disk that remembers what is read of it.
struct Watched<'a> {
    disk: &'a [u8],
    reads: RefCell<Vec<(usize, Vec<u8>)>>,
}

impl HeaderSource for Watched<'_> {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.disk.read_at(offset_bytes, buf)?;
        self.reads.borrow_mut().push((usize::try_from(offset_bytes).unwrap(), buf.to_vec()));
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }
}

/// An attempt to open a disk. It ends the same way on each disk with the same bytes at the places
/// that it read.
struct Attempt {
    passphrases: Vec<Vec<u8>>,
    len_bytes: usize,
    reads: Vec<(usize, Vec<u8>)>,
    result: Result<(), String>,
}

impl Attempt {
    fn is_of(&self, disk: &[u8], passphrases: &[&[u8]]) -> bool {
        self.len_bytes == disk.len()
            && self.passphrases == passphrases
            && self.reads.iter().all(|(at, bytes)| disk[*at..].starts_with(bytes))
    }
}

/// Attempts that are kept. The disks of a point and its neighbours differ in one write.
const ATTEMPTS_MAX: usize = 16;

thread_local! {
    static ATTEMPTS: RefCell<VecDeque<Attempt>> = const { RefCell::new(VecDeque::new()) };
}

/// Opens a disk with one of these passphrases. An operation that ends the volume has none.
///
/// Most points of an operation differ where no reader looks, so an equal attempt is not repeated:
/// the derivations of keys were most of the time of these tests.
pub(crate) fn opens(disk: &[u8], passphrases: &[&[u8]]) -> Result<(), String> {
    ATTEMPTS.with_borrow_mut(|attempts| {
        if let Some(known) = attempts.iter().find(|known| known.is_of(disk, passphrases)) {
            return known.result.clone();
        }
        let watched = Watched { disk, reads: RefCell::default() };
        let result = opens_anew(&watched, passphrases);
        attempts.truncate(ATTEMPTS_MAX - 1);
        attempts.push_front(Attempt {
            passphrases: passphrases.iter().map(|passphrase| passphrase.to_vec()).collect(),
            len_bytes: disk.len(),
            reads: watched.reads.into_inner(),
            result: result.clone(),
        });
        result
    })
}

fn opens_anew(disk: &Watched, passphrases: &[&[u8]]) -> Result<(), String> {
    let (header, _) = Header::read(disk).map_err(|error| error.to_string())?;
    let mut last = String::new();
    for passphrase in passphrases {
        match header.unlock(disk, &secret(passphrase), &UnlockOptions::default()) {
            Ok(_) => return Ok(()),
            Err(error) => last = error.to_string(),
        }
    }
    if passphrases.is_empty() { Ok(()) } else { Err(last) }
}

/// First byte of the first keyslot area.
pub(crate) fn first_area(disk: &[u8]) -> usize {
    if matches!(Header::read(&disk), Ok((Header::Luks1(_), _))) {
        LUKS1_AREA_BYTES
    } else {
        LUKS2_AREA_BYTES
    }
}

/// Whether the header names the first keyslot area.
fn names_first_area(header: &Header) -> bool {
    let places: Vec<u64> = match header.info() {
        HeaderInfo::Luks1(info) => {
            info.keyslots.values().map(|keyslot| keyslot.area.offset_bytes).collect()
        }
        HeaderInfo::Luks2(info) => {
            info.keyslots.values().map(|keyslot| keyslot.area.offset_bytes).collect()
        }
    };
    [LUKS1_AREA_BYTES, LUKS2_AREA_BYTES].iter().any(|first| places.contains(&(*first as u64)))
}

/// There is a header, and it does not call the first area free while that has the key of `before`.
pub(crate) fn check_free_area(disk: &[u8], before: &[u8]) -> Result<(), String> {
    let (header, _) = Header::read(&disk).map_err(|error| error.to_string())?;
    if names_first_area(&header) || is_overwritten(disk, before) {
        return Ok(());
    }
    Err("a free area has a key".to_owned())
}

/// Whether no sector of the first keyslot area has its bytes of `before` any more.
pub(crate) fn is_overwritten(disk: &[u8], before: &[u8]) -> bool {
    let start = first_area(before);
    let area = start..start + MATERIAL_LEN_BYTES;
    let mut sectors = disk[area.clone()].chunks(512).zip(before[area].chunks(512));
    sectors.all(|(now, then)| now != then)
}

/// Cheap options of a small LUKS2 volume.
pub(crate) fn luks2_options() -> FormatOptions {
    FormatOptions {
        key_size_bits: 256,
        digest_iterations: Some(1000),
        keyslots_len_bytes: Some(768 << 10),
        data_offset_bytes: Some(1 << 20),
        ..FormatOptions::new(Pbkdf::Fixed(KDF))
    }
}

/// A LUKS2 volume that [`OLD`] opens.
pub(crate) fn luks2() -> Vec<u8> {
    let mut disk = vec![0; (1 << 20) + 4096];
    format::format(&mut disk, &secret(OLD), &luks2_options()).unwrap();
    disk
}

/// A LUKS1 volume that [`OLD`] opens.
pub(crate) fn luks1() -> Vec<u8> {
    let options = luks1::FormatOptions {
        key_size_bits: 256,
        iterations: Some(1000),
        digest_iterations: Some(1000),
        ..luks1::FormatOptions::default()
    };
    let mut disk = vec![0; (2 << 20) + 4096];
    luks1::format(&mut disk, &secret(OLD), &options).unwrap();
    disk
}

pub(crate) fn new_keyslot() -> NewKeyslot {
    NewKeyslot {
        pbkdf: Pbkdf::Fixed(KDF),
        hash: HashAlgorithm::Sha256,
        area: None,
        priority: None,
        usage: Usage::Data,
    }
}

/// A new keyslot for [`NEW`] of the volume that [`OLD`] opens.
pub(crate) fn prepared(disk: &[u8]) -> (Header, keys::Prepared) {
    let (header, _) = Header::read(&disk).unwrap();
    let unlocked = header.unlock(&disk, &secret(OLD), &UnlockOptions::default()).unwrap();
    let new = keys::prepare(&header, &unlocked.volume_key, &secret(NEW), &new_keyslot()).unwrap();
    (header, new)
}

/// The disk with one of its copies damaged, or as it was on `older`.
pub(crate) fn with_a_bad_copy(disk: &[u8], older: &[u8]) -> Vec<(String, Vec<u8>)> {
    const COPY_LEN_BYTES: usize = 16 << 10;
    let mut disks = Vec::new();
    for (name, start) in [("primary", 0), ("secondary", COPY_LEN_BYTES)] {
        let mut damaged = disk.to_vec();
        damaged[start + 5000] ^= 1;
        disks.push((format!("damaged {name} copy"), damaged));
        let mut outdated = disk.to_vec();
        let copy = start..start + COPY_LEN_BYTES;
        outdated[copy.clone()].copy_from_slice(&older[copy]);
        disks.push((format!("outdated {name} copy"), outdated));
    }
    disks
}
