//! The ranges of a volume's writes in flight, shared by threads ([`blockyard_engine::ranges`]).
//!
//! ```text
//! bio ─> gate ─> range free? ──yes──> shard ─> done ─> release
//!                     └─no─> parked ── granted ──> shard
//!                            └─ taken back by a suspend ──> gate
//! ```
//! A bio passes the gate before it claims its range, so a bio that waits for a resume has no range
//! that one behind the gate may need. An aligned write without read-modify-writes nearby takes no
//! lock.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockyard_engine::bio::{Bio, Op};
use blockyard_engine::ranges::{Announcer, Blocks, EntryId, Ranges, Share, Slot};
use blockyard_engine::slab::Slab;
use rustix::event::{EventfdFlags, eventfd};

use crate::user_data::{Hold, UserData};

/// The ranges of a volume.
pub(crate) struct VolumeRanges {
    state: Mutex<State>,
    /// Reads need ranges too: they must not see a partly written sector.
    with_reads: bool,
}

#[derive(Default)]
struct State {
    ranges: Ranges,
    mailboxes: BTreeMap<u32, Mailbox>,
}

/// Grants for a shard.
struct Mailbox {
    /// Claimants whose entries were granted.
    granted: Vec<Claimant>,
    bell: Arc<Bell>,
}

/// Wakes the thread of a shard.
struct Bell {
    is_rung: AtomicBool,
    fd: OwnedFd,
}

/// Owner of an entry.
#[derive(Clone, Copy, Debug)]
enum Claimant {
    /// The parked bio with this index.
    Bio(u32),
    /// The read-modify-write with this number.
    Patch(u32),
}

impl Claimant {
    const BIO: u64 = 1 << 32;

    /// The claimant as user data of an entry.
    fn word(self) -> u64 {
        match self {
            Self::Bio(place) => Self::BIO | u64::from(place),
            Self::Patch(number) => u64::from(number),
        }
    }

    fn of(word: u64) -> Self {
        let number = word as u32;
        if word & Self::BIO == 0 { Self::Patch(number) } else { Self::Bio(number) }
    }
}

impl VolumeRanges {
    pub(crate) fn new(with_reads: bool) -> Self {
        Self { state: Mutex::default(), with_reads }
    }

    /// Calls a function with the bytes of each write in flight ([`Ranges::in_flight`]).
    pub(crate) fn each_in_flight(&self, call: impl FnMut(Range<u64>)) {
        self.state().ranges.in_flight().for_each(call);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Sends all shards their grants.
    fn tell(&mut self) {
        for grant in self.ranges.take_granted() {
            let mailbox = self.mailboxes.get_mut(&grant.shard).expect("it has not left");
            mailbox.granted.push(Claimant::of(grant.user));
            if !mailbox.bell.is_rung.swap(true, Ordering::SeqCst) {
                let _ = rustix::io::write(&mailbox.bell.fd, &1u64.to_ne_bytes());
            }
        }
    }
}

/// A bio with its own entry, until it has ended.
struct Parked {
    bio: Bio,
    /// `None` until it is entered.
    entry: Option<EntryId>,
}

/// Notes the kind of hold in the bio's user data.
#[inline]
fn holding(bio: Bio, hold: Hold) -> Bio {
    Bio { user: UserData(bio.user).holding(hold).0, ..bio }
}

/// A bio or read-modify-write that waits no longer: its range was granted, or its claim taken back.
pub(crate) enum Waited {
    /// A parked bio.
    Bio(Bio),
    /// The read-modify-write with this number.
    Patch(u32),
}

/// A shard's claims to ranges of the volume.
pub(crate) struct Claims {
    volume: Arc<VolumeRanges>,
    announcer: Announcer,
    bell: Arc<Bell>,
    parked: Slab<Parked>,
    /// Number of waiting entries.
    waiting: usize,
    /// Number of waiting bios.
    waiting_bios: usize,
    /// Copy of the volume's flag, on this thread's own cache line: each read checks it.
    with_reads: bool,
    /// Emptied after each use; kept for its memory.
    granted: Vec<Claimant>,
}

impl Claims {
    /// Adds a shard.
    pub(crate) fn new(volume: &Arc<VolumeRanges>) -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let bell = Arc::new(Bell { is_rung: AtomicBool::new(false), fd });
        let mut state = volume.state();
        let announcer = state.ranges.join();
        let mailbox = Mailbox { granted: Vec::new(), bell: Arc::clone(&bell) };
        state.mailboxes.insert(announcer.shard(), mailbox);
        drop(state);
        Ok(Self {
            volume: Arc::clone(volume),
            announcer,
            bell,
            parked: Slab::default(),
            waiting: 0,
            waiting_bios: 0,
            with_reads: volume.with_reads,
            granted: Vec::new(),
        })
    }

    /// Claims the range of a bio. Returns the bio if it has its range; otherwise parks it here. Its
    /// user data carries the range until [`Claims::release`].
    #[inline]
    pub(crate) fn claim(&mut self, bio: Bio) -> Option<Bio> {
        let needs_range = match bio.op {
            Op::Write | Op::Discard | Op::WriteZeroes => true,
            Op::Read => self.with_reads,
            Op::Flush => false,
        };
        if !needs_range {
            return Some(bio);
        }
        let blocks = Blocks::around(bio.sector.bytes(), bio.len.bytes());
        match self.announcer.announce(blocks) {
            Some((slot, true)) => Some(holding(bio, Hold::Announced(slot))),
            announced => self.claim_slowly(bio, blocks, announced.map(|(slot, _)| slot)),
        }
    }

    /// The slow path: a read-modify-write exists nearby, or no slot for an announcement is free.
    #[cold]
    fn claim_slowly(&mut self, bio: Bio, blocks: Blocks, slot: Option<Slot>) -> Option<Bio> {
        let mut state = self.volume.state();
        let place = self.parked.insert(Parked { bio, entry: None });
        let user = Claimant::Bio(place).word();
        let (entry, may_go) = match slot {
            Some(slot) => match state.ranges.admit(&mut self.announcer, slot, user) {
                Some(entry) => (entry, false),
                None => {
                    self.parked.remove(place);
                    return Some(holding(bio, Hold::Announced(slot)));
                }
            },
            None => state.ranges.enter(&self.announcer, blocks, Share::Writes, user),
        };
        state.tell();
        drop(state);
        let bio = holding(bio, Hold::Parked(place));
        *self.parked.at(place) = Parked { bio, entry: Some(entry) };
        if may_go {
            return Some(bio);
        }
        self.waiting += 1;
        self.waiting_bios += 1;
        None
    }

    /// Releases the range of an ended bio; returns the front end's user data.
    #[inline]
    pub(crate) fn release(&mut self, user: u64) -> u64 {
        let user = UserData(user);
        match user.hold() {
            None => {}
            Some(Hold::Announced(slot)) => {
                if let Some(blocks) = self.announcer.withdraw(slot) {
                    let mut state = self.volume.state();
                    state.ranges.freed(blocks);
                    state.tell();
                }
            }
            Some(Hold::Parked(place)) => {
                let parked = self.parked.remove(place);
                self.release_alone(parked.entry.expect("it was entered before it went on"));
            }
        }
        user.of_front_end()
    }

    /// Claims the range of a read-modify-write with this number. Returns whether it may start now;
    /// otherwise it is granted later.
    pub(crate) fn claim_alone(
        &mut self,
        start_bytes: u64,
        len_bytes: u64,
        number: u32,
    ) -> (EntryId, bool) {
        let blocks = Blocks::around(start_bytes, len_bytes);
        let mut state = self.volume.state();
        let user = Claimant::Patch(number).word();
        let (entry, may_go) = state.ranges.enter(&self.announcer, blocks, Share::Nobody, user);
        self.waiting += usize::from(!may_go);
        (entry, may_go)
    }

    /// Releases the range of a read-modify-write.
    pub(crate) fn release_alone(&mut self, entry: EntryId) {
        let mut state = self.volume.state();
        state.ranges.end(entry);
        state.tell();
    }

    /// Whether there may be grants.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.waiting > 0 && self.bell.is_rung.load(Ordering::Relaxed)
    }

    /// Moves grants to the end of `out`.
    pub(crate) fn take_granted(&mut self, out: &mut VecDeque<Waited>) {
        if !self.has_mail() {
            return;
        }
        let mut state = self.volume.state();
        // Under the lock: a later ring means a grant that is not taken here.
        if self.bell.is_rung.swap(false, Ordering::SeqCst) {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&self.bell.fd, &mut count);
        }
        let mailbox = state.mailboxes.get_mut(&self.announcer.shard()).expect("it has not left");
        self.granted.append(&mut mailbox.granted);
        drop(state);
        self.waiting -= self.granted.len();
        for claimant in self.granted.drain(..) {
            match claimant {
                Claimant::Patch(number) => out.push_back(Waited::Patch(number)),
                Claimant::Bio(place) => {
                    self.waiting_bios -= 1;
                    out.push_back(Waited::Bio(self.parked.at(place).bio));
                }
            }
        }
    }

    /// Takes back the claims that wait, in the order of arrival. Those that were granted stay.
    pub(crate) fn take_back(&mut self) -> Vec<Waited> {
        let mut state = self.volume.state();
        let taken = state.ranges.take_back(&self.announcer);
        state.tell();
        drop(state);
        self.waiting -= taken.len();
        let back = |word| match Claimant::of(word) {
            Claimant::Patch(number) => Waited::Patch(number),
            Claimant::Bio(place) => {
                self.waiting_bios -= 1;
                let Parked { bio, .. } = self.parked.remove(place);
                Waited::Bio(Bio { user: UserData(bio.user).of_front_end(), ..bio })
            }
        };
        taken.into_iter().map(back).collect()
    }

    /// Whether an entry waits for its range.
    pub(crate) fn waits(&self) -> bool {
        self.waiting > 0
    }

    /// Whether bios wait, whose data may be in the front end's buffer.
    pub(crate) fn parks_bios(&self) -> bool {
        self.waiting_bios > 0
    }

    /// Descriptor that becomes readable when there are grants.
    pub(crate) fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.waits().then(|| self.bell.fd.as_fd())
    }
}

impl Drop for Claims {
    /// Leaves; no bio of the shard is in flight.
    fn drop(&mut self) {
        let mut state = self.volume.state();
        state.mailboxes.remove(&self.announcer.shard());
        state.ranges.leave(&self.announcer);
        state.tell();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicU32;
    use std::thread;
    use std::time::Duration;

    use blockyard_engine::bio::Sector;
    use blockyard_engine::buf::BufRef;
    use blockyard_engine::ranges::ANNOUNCEMENTS_MAX;

    use super::*;
    use crate::poll;

    const THREADS: u32 = 4;
    /// Claims per thread.
    const CLAIMS: u32 = 5000;
    /// Time limit of a wait on a busy machine; longer means a lost wake-up.
    const LOST: Duration = Duration::from_secs(60);

    /// One block. Loads and stores are relaxed: only the ranges order them.
    #[derive(Default)]
    struct Block {
        is_alone: AtomicBool,
        /// Number of read-modify-writes.
        patches: AtomicU32,
    }

    impl Block {
        fn patch(&self) {
            assert!(!self.is_alone.load(Ordering::Relaxed), "two have the block alone");
            self.is_alone.store(true, Ordering::Relaxed);
            let patches = self.patches.load(Ordering::Relaxed);
            thread::yield_now();
            self.patches.store(patches + 1, Ordering::Relaxed);
            self.is_alone.store(false, Ordering::Relaxed);
        }

        fn write(&self) {
            let patches = self.patches.load(Ordering::Relaxed);
            assert!(!self.is_alone.load(Ordering::Relaxed), "beside a read-modify-write");
            thread::yield_now();
            assert!(!self.is_alone.load(Ordering::Relaxed), "beside a read-modify-write");
            assert_eq!(patches, self.patches.load(Ordering::Relaxed));
        }
    }

    fn wait(claims: &mut Claims) -> Waited {
        let mut granted = VecDeque::new();
        while granted.is_empty() {
            let [is_rung] = poll::readable(&[claims.wake()], Some(LOST)).unwrap();
            assert!(is_rung, "a wake-up is lost");
            claims.take_granted(&mut granted);
        }
        granted.pop_front().expect("one waits")
    }

    fn write(claims: &mut Claims, blocks: &[Block; 2], at: usize, count: usize) {
        let bytes = |count: usize| Sector::holding(count as u64 * 4096);
        let bio = Bio::new(Op::Write, bytes(at), bytes(count), BufRef::NONE, 7);
        let bio = match claims.claim(bio) {
            Some(bio) => bio,
            None => match wait(claims) {
                Waited::Bio(bio) => bio,
                Waited::Patch(_) => panic!("a bio waits"),
            },
        };
        blocks[at..at + count].iter().for_each(Block::write);
        assert_eq!(claims.release(bio.user), 7);
    }

    /// A bio of the first block.
    fn first_block(op: Op) -> Bio {
        Bio::new(op, Sector(0), Sector::holding(4096), BufRef::NONE, 7)
    }

    fn is_rung(claims: &Claims) -> bool {
        poll::readable(&[claims.wake()], Some(Duration::ZERO)).unwrap() == [true]
    }

    fn granted(claims: &mut Claims) -> Vec<Waited> {
        let mut granted = VecDeque::new();
        claims.take_granted(&mut granted);
        granted.into()
    }

    #[test]
    fn bio_waits_for_the_end_of_a_read_modify_write_and_is_woken_by_it() {
        let volume = Arc::new(VolumeRanges::new(false));
        let [mut patcher, mut writer] = [(); 2].map(|()| Claims::new(&volume).unwrap());
        for op in [Op::Write, Op::Discard, Op::WriteZeroes] {
            let (entry, may_go) = patcher.claim_alone(5, 100, 3);
            assert!(may_go && !patcher.waits());
            assert!(writer.claim(first_block(op)).is_none(), "{op:?}");
            assert!(writer.waits() && writer.parks_bios());
            assert!(!is_rung(&writer) && granted(&mut writer).is_empty());

            patcher.release_alone(entry);
            assert!(is_rung(&writer));
            let [Waited::Bio(bio)] = granted(&mut writer)[..] else { panic!("it may go on") };
            assert_eq!((bio.op, bio.sector, bio.len.bytes()), (op, Sector(0), 4096));
            assert!(!writer.waits() && !writer.parks_bios() && writer.wake().is_none());
            assert_eq!(writer.release(bio.user), 7);
        }
    }

    #[test]
    fn read_modify_write_waits_for_the_end_of_a_bio_and_is_woken_by_it() {
        let volume = Arc::new(VolumeRanges::new(false));
        let [mut patcher, mut writer] = [(); 2].map(|()| Claims::new(&volume).unwrap());
        for number in [0, 3, u32::MAX] {
            let bio = writer.claim(first_block(Op::Write)).expect("it has the block for itself");
            let (entry, may_go) = patcher.claim_alone(5, 100, number);
            assert!(!may_go && patcher.waits() && !patcher.parks_bios());
            assert!(!is_rung(&patcher) && granted(&mut patcher).is_empty());

            assert_eq!(writer.release(bio.user), 7);
            assert!(is_rung(&patcher));
            let [Waited::Patch(of)] = granted(&mut patcher)[..] else { panic!("it may go on") };
            assert_eq!(of, number);
            assert!(!patcher.waits() && patcher.wake().is_none());
            patcher.release_alone(entry);
        }
    }

    #[test]
    fn reads_wait_where_parts_of_sectors_are_written_and_flushes_never_do() {
        for with_reads in [false, true] {
            let volume = Arc::new(VolumeRanges::new(with_reads));
            let mut claims = Claims::new(&volume).unwrap();
            let (entry, _) = claims.claim_alone(0, 512, 0);
            assert_eq!(claims.claim(first_block(Op::Read)).is_none(), with_reads);
            let flush = Bio::new(Op::Flush, Sector(0), Sector(0), BufRef::NONE, 7);
            assert_eq!(claims.claim(flush).map(|bio| bio.user), Some(7));
            // A write of other blocks goes on too.
            let behind = Bio { sector: Sector::holding(4096), ..first_block(Op::Write) };
            let user = claims.claim(behind).expect("the next block is free").user;
            assert_eq!(claims.release(user), 7);
            claims.release_alone(entry);
        }
    }

    #[test]
    fn shard_that_leaves_stops_nobody() {
        let volume = Arc::new(VolumeRanges::new(false));
        let [mut patcher, mut writer] = [(); 2].map(|()| Claims::new(&volume).unwrap());
        let _ = patcher.claim_alone(0, 512, 0);
        assert!(writer.claim(first_block(Op::Write)).is_none());
        drop(patcher);
        assert!(is_rung(&writer));
        assert!(matches!(granted(&mut writer)[..], [Waited::Bio(_)]));
        assert_eq!(volume.state().mailboxes.len(), 1);
    }

    #[test]
    fn bios_beyond_the_announced_ones_have_entries() {
        let volume = Arc::new(VolumeRanges::new(false));
        let mut claims = Claims::new(&volume).unwrap();
        let claim = |claims: &mut Claims| claims.claim(first_block(Op::Write)).expect("no patch");
        let bios: Vec<Bio> = (0..=ANNOUNCEMENTS_MAX).map(|_| claim(&mut claims)).collect();
        assert!(!claims.waits());
        let (entry, may_go) = claims.claim_alone(0, 512, 0);
        for bio in bios {
            assert!(!may_go && granted(&mut claims).is_empty());
            assert_eq!(claims.release(bio.user), 7);
        }
        assert!(matches!(granted(&mut claims)[..], [Waited::Patch(0)]));
        claims.release_alone(entry);
    }

    #[test]
    fn threads_have_blocks_alone_for_their_read_modify_writes_and_all_go_on() {
        let volume = Arc::new(VolumeRanges::new(false));
        let blocks = <[Block; 2]>::default();
        let start = Barrier::new(THREADS as usize);
        let work = |thread: u32| {
            let mut claims = Claims::new(&volume).unwrap();
            let mut patches = [0; 2];
            let mut state = thread + 1;
            start.wait();
            for round in 0..CLAIMS {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = (state >> 31) as usize;
                match state >> 28 & 7 {
                    0..2 => {
                        let (entry, may_go) = claims.claim_alone(at as u64 * 4096 + 5, 100, round);
                        if !may_go {
                            let granted = wait(&mut claims);
                            assert!(matches!(granted, Waited::Patch(number) if number == round));
                        }
                        blocks[at].patch();
                        patches[at] += 1;
                        claims.release_alone(entry);
                    }
                    2 => write(&mut claims, &blocks, 0, 2),
                    _ => write(&mut claims, &blocks, at, 1),
                }
            }
            patches
        };
        let sums: Vec<[u32; 2]> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let work = &work;
                    scope.spawn(move || work(thread))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (at, block) in blocks.iter().enumerate() {
            let sum: u32 = sums.iter().map(|patches| patches[at]).sum();
            assert_eq!(block.patches.load(Ordering::Relaxed), sum, "none is lost");
        }
    }
}
