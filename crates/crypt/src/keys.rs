//! Keyslots of LUKS volumes: new ones, changed ones, removed ones; and the fields of a header that
//! need no key.
//!
//! Each operation has two parts. [`prepare`] derives a key for seconds and only reads. The others
//! read the header again and write at once, so that the lock of the header is held briefly:
//!
//! ```text
//!   read header -> unlock -> prepare(header, key, passphrase) -> lock -> add(device, prepared)
//! ```
//!
//! A header that another program has changed between the two parts is [`Error::Changed`], unless
//! the change does not concern the operation. The order of all writes is in `header_write.rs`.

use uuid::Uuid;

use crate::error::{Error, KeyslotProblem};
use crate::format::{Pbkdf, previous, random_secret};
use crate::hash::HashAlgorithm;
use crate::header_write::{Step, write_steps};
use crate::luks::Header;
use crate::luks2::{AreaCipher, Priority};
use crate::secret::SecretBytes;
use crate::source::{HeaderDevice, HeaderSource};
use crate::{luks1, luks2};

/// The persistent flags of LUKS2, in the form in which cryptsetup writes them.
pub const FLAGS: [&str; 6] = [
    "allow-discards",
    "same-cpu-crypt",
    "submit-from-crypt-cpus",
    "high_priority",
    "no-read-workqueue",
    "no-write-workqueue",
];

/// Options of a new keyslot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKeyslot {
    /// Cost of one try of the passphrase.
    pub pbkdf: Pbkdf,
    /// Hash of the anti-forensic split, and of the digest of an unbound keyslot. LUKS1 has one hash
    /// for all.
    pub hash: HashAlgorithm,
    /// Cipher of the area; `None`: that of the data if it is suitable. LUKS2 only.
    pub area: Option<AreaCipher>,
    /// Priority; `None`: normal, or that of the changed keyslot. LUKS2 only.
    pub priority: Option<Priority>,
    /// The use of its key.
    pub usage: Usage,
}

/// The use of a keyslot's key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Usage {
    /// The key of the data.
    #[default]
    Data,
    /// Another key, which opens nothing of this volume. LUKS2 only.
    Unbound,
}

/// The writes of an operation, and the keyslot that it concerns.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) keyslot: u32,
    pub(crate) steps: Vec<Step>,
}

/// A new keyslot without a number and a place. Its key is encrypted: it holds no secret.
#[derive(Clone, Debug)]
pub struct Prepared(Version);

#[derive(Clone, Debug)]
enum Version {
    Luks1(luks1::Prepared),
    Luks2(luks2::Prepared),
}

/// An area that is overwritten although a power cut would then lose its keyslot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InPlace {
    /// The operation fails if there is no free space.
    #[default]
    Refuse,
    /// The area is overwritten if there is no free space.
    Allow,
}

/// The removal of the last keyslot that opens the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Last {
    /// The operation fails.
    #[default]
    Keep,
    /// It is removed, and with it the data is lost.
    Remove,
}

/// A change of keyslots, with the number that a person named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planned {
    /// A new keyslot; `None`: under the first free number.
    Add(Option<u32>),
    /// The change of a keyslot; `None`: of the one that the passphrase opens.
    Change(Option<u32>),
    /// The removal of a keyslot.
    Remove(u32, Last),
}

/// Refuses a change that the header excludes, before a passphrase is asked for or a key is derived.
///
/// # Errors
/// The number of a new keyslot is in use or out of range, the others are not in use, or the last
/// keyslot would be removed.
pub fn check(header: &Header, planned: Planned) -> Result<(), Error> {
    match planned {
        Planned::Add(number) => match header {
            Header::Luks1(header) => header.free_number(number).map(drop),
            Header::Luks2(header) => header.free_number(number).map(drop),
        },
        Planned::Change(None) => Ok(()),
        Planned::Change(Some(number)) => check_in_use(header, number),
        Planned::Remove(number, last) => {
            check_in_use(header, number)?;
            if last == Last::Keep && is_last(header, number) {
                return Err(Error::LastKeyslot(number));
            }
            Ok(())
        }
    }
}

fn check_in_use(header: &Header, number: u32) -> Result<(), Error> {
    match header {
        Header::Luks1(header) => header.check_in_use(number),
        Header::Luks2(header) => header.keyslot(number).map(drop),
    }
}

pub(crate) fn not_in_use(keyslot: u32) -> Error {
    refused(keyslot, "it is not in use")
}

/// A number that a new keyslot cannot have.
pub(crate) fn refused(keyslot: u32, problem: &str) -> Error {
    let problem = problem.to_owned();
    Error::Keyslot(KeyslotProblem { keyslot, problem, out_of_memory: false })
}

/// Derives a key from `passphrase` and encrypts `key` with it. Takes as long as a few tries of the
/// passphrase.
///
/// # Errors
/// `key` is not the key of the volume, an option does not fit the version of the header, or memory
/// is short.
pub fn prepare(
    header: &Header,
    key: &SecretBytes,
    passphrase: &SecretBytes,
    new: &NewKeyslot,
) -> Result<Prepared, Error> {
    let version = match header {
        Header::Luks1(header) => Version::Luks1(luks1::prepare(header, key, passphrase, new)?),
        Header::Luks2(header) => Version::Luks2(luks2::prepare(header, key, passphrase, new)?),
    };
    Ok(Prepared(version))
}

/// Reads the header that the lock now protects.
fn read(device: &dyn HeaderDevice) -> Result<Header, Error> {
    Ok(Header::read(&device)?.0)
}

fn write(device: &mut dyn HeaderDevice, plan: &Plan) -> Result<u32, Error> {
    write_steps(device, &plan.steps)?;
    Ok(plan.keyslot)
}

/// Stores a new keyslot under `number`, or under the first free one, and returns the number.
///
/// # Errors
/// The number is in use, there is no room, the volume has another key now, or writing fails.
pub fn add(
    device: &mut dyn HeaderDevice,
    new: &Prepared,
    number: Option<u32>,
) -> Result<u32, Error> {
    let plan = match (read(device)?, &new.0) {
        (Header::Luks1(header), Version::Luks1(new)) => header.plan_add(new, number)?,
        (Header::Luks2(header), Version::Luks2(new)) => header.plan_add(new, number)?,
        _ => return Err(Error::Changed("its version".to_owned())),
    };
    write(device, &plan)
}

/// Replaces the keyslot `number`, which had its fields of `before` when it was opened. Returns its
/// number: LUKS2 keeps it; LUKS1 moves the key to the first free keyslot.
///
/// # Errors
/// The keyslot was changed meanwhile, there is no room and `in_place` refuses, or writing fails.
pub fn change(
    device: &mut dyn HeaderDevice,
    before: &Header,
    number: u32,
    new: &Prepared,
    in_place: InPlace,
) -> Result<u32, Error> {
    let in_place = in_place == InPlace::Allow;
    let header = read(device)?;
    check_same(&header, before, number)?;
    let plan = match (header, &new.0) {
        (Header::Luks1(header), Version::Luks1(new)) => header.plan_change(number, new, in_place),
        (Header::Luks2(header), Version::Luks2(new)) => header.plan_change(number, new, in_place),
        _ => return Err(Error::Changed("its version".to_owned())),
    };
    let plan = plan.map_err(|error| match error {
        Error::Full(problem) if !in_place => Error::Full(format!(
            "{problem}, or let `force` overwrite the old one in place, which a power cut would lose"
        )),
        other => other,
    })?;
    write(device, &plan)
}

/// Removes a keyslot: its area is overwritten with random bytes, which must be stable before the
/// header says that it is free. `before`: the header in which the keyslot was opened, if it was.
///
/// # Errors
/// The keyslot is not in use, was changed meanwhile, or is the last one; or writing fails.
pub fn remove(
    device: &mut dyn HeaderDevice,
    before: Option<&Header>,
    number: u32,
    last: Last,
) -> Result<(), Error> {
    let header = read(device)?;
    if let Some(before) = before {
        check_same(&header, before, number)?;
    }
    check(&header, Planned::Remove(number, last))?;
    let plan = match header {
        Header::Luks1(header) => header.plan_remove(number)?,
        Header::Luks2(header) => header.plan_remove(number)?,
    };
    write(device, &plan).map(drop)
}

/// Removes all keyslots. The header stays, without a way to its data.
///
/// # Errors
/// There is no header, or writing fails.
pub fn erase(device: &mut dyn HeaderDevice) -> Result<(), Error> {
    let plan = match read(device)? {
        Header::Luks1(header) => header.plan_erase(),
        Header::Luks2(header) => header.plan_erase()?,
    };
    write(device, &plan).map(drop)
}

/// The part of a volume that [`wipe`] destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiped {
    /// The header with all keyslots.
    HeaderAndKeyslots,
    /// The header without its keyslots: the start of the data could not be read, because the header
    /// is damaged or needs a feature that this program does not support.
    HeaderOnly,
}

/// Destroys every header on the device that a program would find, and the keyslots in front of the
/// data. Nothing is written where data may be.
///
/// # Errors
/// There is none, the device has another use now, or writing fails.
pub fn wipe(device: &mut dyn HeaderDevice) -> Result<Wiped, Error> {
    let source: &dyn HeaderSource = &&*device;
    let (wiped, keyslots_end_bytes) = match read(device) {
        Ok(header) => (Wiped::HeaderAndKeyslots, header.end_bytes()),
        // A damaged header has to go too, but not what replaced it.
        Err(error @ (Error::Reused(_) | Error::OtherFormat(_))) => return Err(error),
        Err(_) => match luks1::Header::data_start_of_damaged(source) {
            Some(start_bytes) => (Wiped::HeaderAndKeyslots, start_bytes),
            None => (Wiped::HeaderOnly, luks2::damaged_copies_end(source)),
        },
    };
    let steps = previous::wiped_before(source, device.len_bytes(), keyslots_end_bytes);
    if steps[0].writes.is_empty() {
        return Err(Error::NotLuks);
    }
    write_steps(device, &steps).map(|()| wiped)
}

/// The keyslots with the key of the data, also those that this program does not support.
#[must_use]
pub fn of_data(header: &Header) -> Vec<u32> {
    match header {
        Header::Luks1(header) => header.data_keyslots(),
        Header::Luks2(header) => header.data_keyslots(),
    }
}

fn is_last(header: &Header, number: u32) -> bool {
    match header {
        Header::Luks1(header) => header.is_last(number),
        Header::Luks2(header) => header.is_last(number),
    }
}

/// A new random key.
///
/// # Errors
/// The system has no random numbers.
pub fn random_key(key_size_bits: u32) -> Result<SecretBytes, Error> {
    random_secret(key_size_bits as usize / 8)
}

/// Whether `key` is the key of the volume's data, by its digest and its length.
///
/// # Errors
/// The digest cannot be checked.
pub fn confirms(header: &Header, key: &SecretBytes) -> Result<bool, Error> {
    match header {
        Header::Luks1(header) => header.confirms(key),
        Header::Luks2(header) => header.confirms(key),
    }
}

/// The hash that all keyslots of a LUKS1 volume have.
#[must_use]
pub fn only_hash(header: &Header) -> Option<HashAlgorithm> {
    match header {
        Header::Luks1(header) => Some(header.hash()),
        Header::Luks2(_) => None,
    }
}

fn check_same(now: &Header, before: &Header, number: u32) -> Result<(), Error> {
    let is_same = match (now, before) {
        (Header::Luks1(now), Header::Luks1(before)) => now.has_same_keyslot(before, number),
        (Header::Luks2(now), Header::Luks2(before)) => now.has_same_keyslot(before, number),
        _ => false,
    };
    if is_same { Ok(()) } else { Err(Error::Changed(format!("keyslot {number}"))) }
}

/// Sets the priority of a keyslot.
///
/// # Errors
/// The volume is not LUKS2, the keyslot is not in use, or writing fails.
pub fn set_priority(
    device: &mut dyn HeaderDevice,
    number: u32,
    priority: Priority,
) -> Result<(), Error> {
    let plan = luks2_header(device, "priorities")?.plan_priority(number, priority)?;
    write(device, &plan).map(drop)
}

/// Sets label and subsystem; `None` leaves one as it is.
///
/// # Errors
/// The volume is not LUKS2, a text is too long, or writing fails.
pub fn set_labels(
    device: &mut dyn HeaderDevice,
    label: Option<&str>,
    subsystem: Option<&str>,
) -> Result<(), Error> {
    let plan = luks2_header(device, "labels")?.plan_labels(label, subsystem)?;
    write(device, &plan).map(drop)
}

/// Replaces the persistent flags by these, of [`FLAGS`].
///
/// # Errors
/// The volume is not LUKS2, a flag is unknown, or writing fails.
pub fn set_flags(device: &mut dyn HeaderDevice, flags: &[&str]) -> Result<(), Error> {
    if let Some(unknown) = flags.iter().find(|flag| !FLAGS.contains(flag)) {
        let known = FLAGS.join(", ");
        return Err(Error::field("flags", format!("\"{unknown}\" is none of {known}")));
    }
    let plan = luks2_header(device, "persistent flags")?.plan_flags(flags)?;
    write(device, &plan).map(drop)
}

/// Sets the length of a LUKS2 volume's data, in bytes; `None`: the data ends with its device. The
/// data is neither moved nor erased.
///
/// # Errors
/// The volume is not LUKS2 or has an unsupported feature, the length is no multiple of the sector
/// size, or writing fails.
pub fn set_data_len(device: &mut dyn HeaderDevice, len_bytes: Option<u64>) -> Result<(), Error> {
    let plan = luks2_header(device, "size of its own: it ends with its file or device")?
        .plan_data_len(len_bytes)?;
    write(device, &plan).map(drop)
}

/// Sets the UUID.
///
/// # Errors
/// The text is no UUID, or writing fails.
pub fn set_uuid(device: &mut dyn HeaderDevice, uuid: &str) -> Result<(), Error> {
    let uuid = Uuid::parse_str(uuid)
        .map_err(|error| Error::field("uuid", format!("\"{uuid}\": {error}")))?
        .to_string();
    let plan = match read(device)? {
        Header::Luks1(header) => header.plan_uuid(&uuid),
        Header::Luks2(header) => header.plan_uuid(&uuid)?,
    };
    write(device, &plan).map(drop)
}

/// Stores a token, and returns its number. `keyslot` is added to the keyslots that it names.
/// `replace`: a token with this number is replaced.
///
/// # Errors
/// The volume is not LUKS2, the text is no token of its keyslots, the number is in use, or writing
/// fails.
pub fn import_token(
    device: &mut dyn HeaderDevice,
    token: &luks2::Token,
    number: Option<u32>,
    keyslot: Option<u32>,
    replace: bool,
) -> Result<u32, Error> {
    let header = luks2_header(device, "tokens")?;
    let (number, plan) = header.plan_token(token, number, keyslot, replace)?;
    write(device, &plan)?;
    Ok(number)
}

/// Removes a token. Its keyslots stay.
///
/// # Errors
/// The volume is not LUKS2, there is no such token, or writing fails.
pub fn remove_token(device: &mut dyn HeaderDevice, number: u32) -> Result<(), Error> {
    let plan = luks2_header(device, "tokens")?.plan_remove_token(number)?;
    write(device, &plan).map(drop)
}

fn luks2_header(device: &dyn HeaderDevice, what: &str) -> Result<luks2::Header, Error> {
    match read(device)? {
        Header::Luks2(header) => Ok(header),
        Header::Luks1(_) => {
            Err(Error::unsupported("LUKS1 header", format!("it has no {what}; LUKS2 has")))
        }
    }
}
