//! The interface of the kernel's ublk driver (`linux/ublk_cmd.h`, Linux 6.4): a block device
//! `/dev/ublkbN` whose requests a program serves through `/dev/ublkcN`. Numbers have the byte order
//! of the machine. A sector has always 512 bytes here.

use super::virtio_blk::{Command, Range};

/// Number of a device that the kernel chooses.
pub const ANY_DEVICE: u32 = u32::MAX;
/// Length of a control command.
pub const CONTROL_BYTES: usize = 32;
/// Length of [`Info`].
pub const INFO_BYTES: usize = 64;
/// Length of [`Disk::parameters`]: the basic ones, and those of discards.
pub const PARAMETERS_BYTES: usize = 60;
/// Length of the description of a request.
pub const DESCRIPTION_BYTES: usize = 24;
/// Length of a command for a request.
pub const IO_BYTES: usize = 16;
/// Limit of requests in a queue.
pub const DEPTH_MAX: u16 = 4096;
/// Longest block: the kernel's page.
pub const BLOCK_MAX_BYTES: u32 = 4096;

const SECTOR_BYTES: u64 = 512;
/// Longest discard: 2 GiB.
const DISCARD_MAX_SECTORS: u32 = 1 << 22;
/// Longest range of zeroes: 128 MiB. They are encrypted and written, which takes time.
const ZEROES_MAX_SECTORS: u32 = 1 << 18;
/// Physical blocks of the page cache, and of most disks.
const PHYSICAL_BLOCK_BYTES: u32 = 4096;

/// `UBLK_F_*`: properties of a device.
pub mod flag {
    /// The device outlives its server, and waits for the next one.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// The next server gets the requests in flight again.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// The device belongs to the user of its server. The kernel takes it back from a privileged
    /// one.
    pub const UNPRIVILEGED: u64 = 1 << 5;
    /// Commands are numbers of ioctl(2) (Linux 6.4).
    pub const IOCTL_NUMBERS: u64 = 1 << 6;
}

/// A number of ioctl(2): direction, length of the argument, the letter `u`, and a number.
const fn ioctl(is_written: bool, len_bytes: usize, number: u32) -> u32 {
    let direction = if is_written { 3 } else { 2 };
    direction << 30 | (len_bytes as u32) << 16 | (b'u' as u32) << 8 | number
}

/// A command to `/dev/ublk-control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Makes a device, by its [`Info`], which the kernel completes.
    Add,
    /// Removes a device, and waits until its last user has closed it.
    Delete,
    /// Removes a device, without waiting (Linux 6.9).
    DeleteOpen,
    /// Shows the disk. The argument is the server's process.
    Start,
    /// Ends the disk, when its requests have ended.
    Stop,
    /// Sets the [parameters](Disk::parameters).
    SetParameters,
    /// Reads the [parameters](Disk::parameters).
    GetParameters,
    /// Prepares a device for another server.
    StartRecovery,
    /// The argument is the new server's process.
    EndRecovery,
    /// Reads the [`Info`].
    GetInfo,
}

impl Control {
    /// Number of the command.
    #[must_use]
    pub fn number(self) -> u32 {
        let (is_written, number) = match self {
            Self::Add => (true, 0x04),
            Self::Delete => (true, 0x05),
            Self::Start => (true, 0x06),
            Self::Stop => (true, 0x07),
            Self::SetParameters => (true, 0x08),
            Self::GetParameters => (false, 0x09),
            Self::StartRecovery => (true, 0x10),
            Self::EndRecovery => (true, 0x11),
            Self::GetInfo => (false, 0x12),
            Self::DeleteOpen => (false, 0x14),
        };
        ioctl(is_written, CONTROL_BYTES, number)
    }
}

/// Puts fields one after another.
struct Fields<const N: usize>([u8; N], usize);

impl<const N: usize> Fields<N> {
    fn new() -> Self {
        Self([0; N], 0)
    }

    fn put(mut self, bytes: &[u8]) -> Self {
        self.0[self.1..self.1 + bytes.len()].copy_from_slice(bytes);
        self.1 += bytes.len();
        self
    }

    fn skip(mut self, count: usize) -> Self {
        self.1 += count;
        self
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// The bytes of a control command (`struct ublksrv_ctrl_cmd`): its device, its buffer with the
/// length of the path in front, and its argument.
#[must_use]
pub fn control(
    device: u32,
    buffer_addr: u64,
    buffer_bytes: u16,
    path_bytes: u16,
    argument: u64,
) -> [u8; CONTROL_BYTES] {
    let no_queue = u16::MAX;
    let fields = Fields::new().put(&device.to_ne_bytes()).put(&no_queue.to_ne_bytes());
    let fields = fields.put(&buffer_bytes.to_ne_bytes()).put(&buffer_addr.to_ne_bytes());
    fields.put(&argument.to_ne_bytes()).put(&path_bytes.to_ne_bytes()).0
}

/// State of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// It has no disk.
    Dead,
    /// A server serves its disk.
    Live,
    /// Its server has ended, and its disk waits for another one.
    Quiesced,
    /// Another one, of a later kernel.
    Other(u16),
}

/// A device (`struct ublksrv_ctrl_dev_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Number of queues.
    pub queues: u16,
    /// Number of requests in a queue.
    pub depth: u16,
    /// State.
    pub state: DeviceState,
    /// Length of a request's buffer.
    pub buffer_bytes: u32,
    /// Number of the device.
    pub device: u32,
    /// Process of its server; -1 without one.
    pub server: i32,
    /// See [`flag`].
    pub flags: u64,
    /// A word that the kernel keeps for servers.
    pub server_word: u64,
}

impl Info {
    /// Whether it belongs to a user without privileges.
    #[must_use]
    pub fn is_unprivileged(&self) -> bool {
        self.flags & flag::UNPRIVILEGED != 0
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; INFO_BYTES] {
        let state = match self.state {
            DeviceState::Dead => 0,
            DeviceState::Live => 1,
            DeviceState::Quiesced => 2,
            DeviceState::Other(number) => number,
        };
        let fields = Fields::new().put(&self.queues.to_ne_bytes()).put(&self.depth.to_ne_bytes());
        let fields = fields.put(&u16::to_ne_bytes(state)).skip(2);
        let fields = fields.put(&self.buffer_bytes.to_ne_bytes()).put(&self.device.to_ne_bytes());
        let fields = fields.put(&self.server.to_ne_bytes()).skip(4);
        fields.put(&self.flags.to_ne_bytes()).put(&self.server_word.to_ne_bytes()).0
    }

    /// Decodes the bytes.
    #[must_use]
    pub fn of(bytes: &[u8; INFO_BYTES]) -> Self {
        let state = match u16_at(bytes, 4) {
            0 => DeviceState::Dead,
            1 => DeviceState::Live,
            2 => DeviceState::Quiesced,
            number => DeviceState::Other(number),
        };
        Self {
            queues: u16_at(bytes, 0),
            depth: u16_at(bytes, 2),
            state,
            buffer_bytes: u32_at(bytes, 8),
            device: u32_at(bytes, 12),
            server: u32_at(bytes, 16).cast_signed(),
            flags: u64_at(bytes, 24),
            server_word: u64_at(bytes, 32),
        }
    }
}

/// A disk of ublk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Length, a multiple of `block_bytes`.
    pub size_bytes: u64,
    /// Unit of requests: a power of two from 512 to [`BLOCK_MAX_BYTES`].
    pub block_bytes: u32,
    /// Length of a request's buffer, a power of two.
    pub buffer_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Discards are passed down.
    pub can_discard: bool,
    /// Long ranges of zeroes are one request.
    pub can_zero: bool,
}

/// Kinds of parameters: the basic ones, and those of discards.
const BASIC: u32 = 1 << 0;
const DISCARD: u32 = 1 << 1;

/// Attributes of the basic parameters.
mod attribute {
    pub(super) const READ_ONLY: u32 = 1 << 0;
    pub(super) const VOLATILE_CACHE: u32 = 1 << 2;
    pub(super) const FUA: u32 = 1 << 3;
}

impl Disk {
    /// Decodes the parameters of the kernel; `None` if they are not ones that it accepts.
    #[must_use]
    pub fn of(parameters: &[u8; PARAMETERS_BYTES], buffer_bytes: u32) -> Option<Self> {
        let block_bytes = 1u32.checked_shl(parameters[12].into())?;
        let size_bytes = u64_at(parameters, 24).checked_mul(SECTOR_BYTES)?;
        let has_discards = u32_at(parameters, 4) & DISCARD != 0;
        Some(Self {
            size_bytes,
            block_bytes,
            buffer_bytes,
            read_only: u32_at(parameters, 8) & attribute::READ_ONLY != 0,
            can_discard: has_discards && u32_at(parameters, 48) != 0,
            can_zero: has_discards && u32_at(parameters, 52) != 0,
        })
    }

    /// Whether a server of this disk can serve a disk that another one has left: the same kind of
    /// disk, and not longer.
    #[must_use]
    pub fn can_serve(&self, left: &Self) -> bool {
        left.size_bytes <= self.size_bytes
            && left.block_bytes == self.block_bytes
            && left.read_only == self.read_only
            && left.can_discard == self.discards()
    }

    fn discards(&self) -> bool {
        self.can_discard && !self.read_only
    }

    /// Its parameters for the kernel (the head of `struct ublk_params`).
    #[must_use]
    pub fn parameters(&self) -> [u8; PARAMETERS_BYTES] {
        let exponent = |bytes: u32| bytes.ilog2() as u8;
        let physical = PHYSICAL_BLOCK_BYTES.max(self.block_bytes);
        let read_only = if self.read_only { attribute::READ_ONLY } else { 0 };
        let attributes = attribute::VOLATILE_CACHE | attribute::FUA | read_only;
        let exponents = [self.block_bytes, physical, self.buffer_bytes, physical].map(exponent);
        let max_sectors = self.buffer_bytes / SECTOR_BYTES as u32;
        let discard_sectors = if self.discards() { DISCARD_MAX_SECTORS } else { 0 };
        let zeroes = self.can_zero && !self.read_only;
        let zeroes_sectors = if zeroes { ZEROES_MAX_SECTORS } else { 0 };
        let fields = Fields::new().put(&(PARAMETERS_BYTES as u32).to_ne_bytes());
        let fields = fields.put(&(BASIC | DISCARD).to_ne_bytes());
        let fields = fields.put(&attributes.to_ne_bytes()).put(&exponents);
        let fields = fields.put(&max_sectors.to_ne_bytes()).skip(4);
        let fields = fields.put(&(self.size_bytes / SECTOR_BYTES).to_ne_bytes()).skip(8);
        let fields = fields.skip(4).put(&self.block_bytes.to_ne_bytes());
        let fields = fields.put(&discard_sectors.to_ne_bytes());
        fields.put(&zeroes_sectors.to_ne_bytes()).put(&1u16.to_ne_bytes()).0
    }

    /// The request that the kernel describes (`struct ublksrv_io_desc`), and whether its change is
    /// stable before it ends (FUA). `None` for one that this disk does not offer.
    #[must_use]
    pub fn command(&self, description: &[u8; DESCRIPTION_BYTES]) -> Option<(Command, bool)> {
        const FUA: u32 = 1 << 13;
        let word = u32_at(description, 0);
        let range = self.range(u64_at(description, 8), u32_at(description, 4));
        let data = range.filter(|range| range.len_bytes <= self.buffer_bytes.into());
        let command = match word & 0xff {
            0 => Command::Read(data?),
            2 => Command::Flush,
            1 if !self.read_only => Command::Write(data?),
            3 if self.discards() => Command::Discard(range?),
            5 if self.can_zero && !self.read_only => Command::WriteZeroes(range?),
            _ => return None,
        };
        Some((command, word & FUA != 0))
    }

    fn range(&self, sector: u64, sectors: u32) -> Option<Range> {
        let offset_bytes = sector.checked_mul(SECTOR_BYTES)?;
        let len_bytes = u64::from(sectors) * SECTOR_BYTES;
        let end = offset_bytes.checked_add(len_bytes)?;
        let is_whole = (offset_bytes | len_bytes).is_multiple_of(self.block_bytes.into());
        let is_in = len_bytes > 0 && is_whole && end <= self.size_bytes;
        is_in.then_some(Range { offset_bytes, len_bytes })
    }
}

/// A command for a request, to `/dev/ublkcN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// Waits for the first request with this tag.
    Fetch,
    /// Ends a request and waits for the next one.
    CommitAndFetch,
}

impl Io {
    /// Number of the command.
    #[must_use]
    pub fn number(self) -> u32 {
        let number = match self {
            Self::Fetch => 0x20,
            Self::CommitAndFetch => 0x21,
        };
        ioctl(true, IO_BYTES, number)
    }
}

/// The bytes of a command for a request (`struct ublksrv_io_cmd`): its queue and tag, its result,
/// and the address of its buffer.
#[must_use]
pub fn io(queue: u16, tag: u16, result: i32, buffer_addr: u64) -> [u8; IO_BYTES] {
    let fields = Fields::new().put(&queue.to_ne_bytes()).put(&tag.to_ne_bytes());
    fields.put(&result.to_ne_bytes()).put(&buffer_addr.to_ne_bytes()).0
}

/// Place and length of the descriptions of a queue's requests in `/dev/ublkcN`.
#[must_use]
pub fn descriptions(queue: u16, depth: u16, page_bytes: usize) -> (u64, usize) {
    let area = |depth: u16| (usize::from(depth) * DESCRIPTION_BYTES).next_multiple_of(page_bytes);
    (u64::from(queue) * area(DEPTH_MAX) as u64, area(depth))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Disk = Disk {
        size_bytes: 1 << 20,
        block_bytes: 4096,
        buffer_bytes: 64 << 10,
        read_only: false,
        can_discard: true,
        can_zero: true,
    };

    fn description(word: u32, sectors: u32, sector: u64) -> [u8; DESCRIPTION_BYTES] {
        let fields = Fields::new().put(&word.to_ne_bytes()).put(&sectors.to_ne_bytes());
        fields.put(&sector.to_ne_bytes()).0
    }

    #[test]
    fn numbers_of_commands_are_those_of_the_header() {
        assert_eq!(Control::Add.number(), 0xc020_7504);
        assert_eq!(Control::GetInfo.number(), 0x8020_7512);
        assert_eq!(Control::DeleteOpen.number(), 0x8020_7514);
        assert_eq!(Io::Fetch.number(), 0xc010_7520);
        assert_eq!(Io::CommitAndFetch.number(), 0xc010_7521);
    }

    #[test]
    fn device_reads_as_it_was_written() {
        let info = Info {
            queues: 2,
            depth: 64,
            state: DeviceState::Quiesced,
            buffer_bytes: 1 << 18,
            device: 7,
            server: -1,
            flags: flag::USER_RECOVERY | flag::IOCTL_NUMBERS,
            server_word: 0x0123_4567_89ab_cdef,
        };
        let bytes = info.bytes();
        assert_eq!(Info::of(&bytes), info);
        assert_eq!((bytes[0], bytes[2], bytes[4], bytes[12], bytes[24]), (2, 64, 2, 7, 0x48));
    }

    #[test]
    fn parameters_have_their_places_in_the_kernels_struct() {
        let bytes = DISK.parameters();
        assert_eq!((u32_at(&bytes, 0), u32_at(&bytes, 4)), (60, 3));
        assert_eq!((u32_at(&bytes, 8), &bytes[12..16]), (0b1100, &[12, 12, 16, 12][..]));
        assert_eq!((u32_at(&bytes, 16), u64_at(&bytes, 24)), (128, 2048));
        let discard = [40, 44, 48, 52].map(|at| u32_at(&bytes, at));
        assert_eq!((discard, u16_at(&bytes, 56)), ([0, 4096, 1 << 22, 1 << 18], 1));
        let read_only = Disk { read_only: true, ..DISK }.parameters();
        assert_eq!(u32_at(&read_only, 8) & 1, 1);
        assert_eq!([48, 52].map(|at| u32_at(&read_only, at)), [0, 0]);
        let without = Disk { can_zero: false, ..DISK }.parameters();
        assert_eq!([48, 52].map(|at| u32_at(&without, at)), [1 << 22, 0]);
    }

    #[test]
    fn disk_that_was_left_is_served_with_its_own_size_and_only_as_the_same_kind() {
        let read = |disk: Disk| Disk::of(&disk.parameters(), disk.buffer_bytes).unwrap();
        let plain = Disk { can_discard: false, can_zero: false, ..DISK };
        assert_eq!([read(DISK), read(plain)], [DISK, plain]);
        let longer = Disk { size_bytes: 2 << 20, ..DISK };
        assert!(longer.can_serve(&read(DISK)) && !DISK.can_serve(&read(longer)));
        for other in [
            Disk { read_only: true, ..DISK },
            Disk { can_discard: false, ..DISK },
            Disk { block_bytes: 512, ..DISK },
        ] {
            assert!(!DISK.can_serve(&read(other)) && !other.can_serve(&read(DISK)), "{other:?}");
            assert!(other.can_serve(&read(other)), "{other:?}");
        }
        let mut wrong = DISK.parameters();
        wrong[12] = 40;
        assert_eq!(Disk::of(&wrong, 512), None);
    }

    #[test]
    fn requests_inside_of_the_disk_are_commands_and_others_are_none() {
        let range = Range { offset_bytes: 8192, len_bytes: 4096 };
        let command = |word| DISK.command(&description(word, 8, 16));
        assert_eq!(command(0), Some((Command::Read(range), false)));
        assert_eq!(command(1 | 1 << 13), Some((Command::Write(range), true)));
        assert_eq!(command(2), Some((Command::Flush, false)));
        assert_eq!(command(3), Some((Command::Discard(range), false)));
        // Without the release of blocks, which zeroes never do.
        assert_eq!(command(5 | 1 << 15), Some((Command::WriteZeroes(range), false)));
        assert_eq!(command(4), None);
        for (sectors, sector) in [(0, 0), (7, 0), (8, 1), (8, 2048), (8, u64::MAX / 512), (136, 0)]
        {
            assert_eq!(DISK.command(&description(1, sectors, sector)), None, "{sectors} {sector}");
        }
        assert!(DISK.command(&description(3, 136, 0)).is_some(), "longer than a buffer");
        let read_only = Disk { read_only: true, ..DISK };
        for word in [1, 3, 5] {
            assert_eq!(read_only.command(&description(word, 8, 16)), None);
        }
        let without = Disk { can_discard: false, ..DISK };
        assert_eq!(without.command(&description(3, 8, 16)), None);
        let without = Disk { can_zero: false, ..DISK };
        assert_eq!(without.command(&description(5, 8, 16)), None);
    }

    #[test]
    fn descriptions_of_a_queue_begin_behind_those_of_the_longest_one() {
        assert_eq!(descriptions(0, 64, 4096), (0, 4096));
        assert_eq!(descriptions(2, 256, 4096), (2 * 98304, 8192));
    }
}
