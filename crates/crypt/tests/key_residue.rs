//! Round keys exist only in the memory of their cipher: not on the stack of a thread that used it,
//! not on the heap. After the cipher is dropped they exist nowhere.
//!
//! Every cipher, mode and IV of the kernel's vectors is used on a separate thread, on every tier
//! that it has. The protector of `secret` records the cipher's memory. Its content is searched in
//! all writable memory of this process. The search keeps its needles inverted and scrambled, so
//! that it does not find itself.
//!
//! The stack is painted before the cipher is used: the deepest place that lost its paint must hold
//! zeros, or a call went deeper than it wipes. It is painted before the cipher is made, too: no
//! paint may be copied from the stack to the cipher's memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, JoinHandle};

use blockyard_crypt::cipher::{CipherSpec, Hints, SectorCipher, Tier};
use blockyard_crypt::secret::{SecretBytes, set_protector};

/// The lines name every cipher, mode and IV, with a length of its key and a sector size.
const VECTORS: &str = include_str!("../../../testdata/vectors/dm-crypt/linux-6.1.txt");

/// Protected memory: address and length in bytes.
static PROTECTED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Stack of a thread that uses a cipher.
const STACK_BYTES: usize = 256 * 1024;

/// Length of the painted part: twice the need of any call.
const PAINTED_BYTES: usize = 128 * 1024;

const PAINT: u8 = 0xa5;

/// Bytes searched at once.
const STEP_BYTES: usize = 1 << 20;

/// Bytes of a needle: half a round key of AES, so that a split key is found.
const NEEDLE_BYTES: usize = 8;

fn record(memory: &[u8]) {
    PROTECTED.lock().unwrap().push((memory.as_ptr() as usize, memory.len()));
}

/// A cipher that a thread makes, uses and drops, step by step.
struct Subject {
    name: String,
    /// Memory of the cipher: addresses and lengths in bytes.
    memory: Vec<(usize, usize)>,
    /// Whether the cipher's calls wipe the stack.
    wipes: bool,
    /// Lowest address of the painted stack.
    painted: Arc<AtomicUsize>,
    step: Arc<Barrier>,
    thread: JoinHandle<()>,
}

impl Subject {
    /// Returns when the cipher is made.
    fn start(spec: &str, key_len_bytes: usize, sector_bytes: u32, tier: Tier) -> Subject {
        let name = format!("{spec}, {key_len_bytes} bytes of key, {}", tier.name());
        let before = PROTECTED.lock().unwrap().len();
        let step = Arc::new(Barrier::new(2));
        let painted = Arc::new(AtomicUsize::new(0));
        let spec = CipherSpec::parse(spec).unwrap();
        let theirs = Arc::clone(&step);
        let lowest = Arc::clone(&painted);
        let work = move || {
            let key = noise(key_len_bytes);
            black_box(paint());
            let cipher =
                SectorCipher::with_tier(&spec, key.as_slice(), sector_bytes, false, tier).unwrap();
            // Made and learnt. The key is dropped only now: otherwise other data could reuse its
            // memory.
            theirs.wait();
            theirs.wait();
            drop(key);
            let mut memory = Memory::new(sector_bytes as usize);
            for call in 0..CALLS {
                lowest.store(paint(), Ordering::Relaxed);
                memory.call(&cipher, call);
                theirs.wait();
                theirs.wait();
            }
            drop(cipher);
            theirs.wait();
            theirs.wait();
        };
        let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(work).unwrap();
        step.wait();
        // The first region is the key itself, which is dropped.
        let memory = PROTECTED.lock().unwrap()[before + 1..].to_vec();
        Subject { name, memory, wipes: tier == Tier::Portable, painted, step, thread }
    }

    /// Lets the thread do the next step, and returns when it has.
    fn go_on(&self) {
        self.step.wait();
        self.step.wait();
    }

    fn end(self) {
        self.step.wait();
        self.thread.join().unwrap();
    }
}

/// A separate key for each call, without other copies.
fn noise(len_bytes: usize) -> SecretBytes {
    static SEED: Mutex<u64> = Mutex::new(0x9e37_79b9_7f4a_7c15);
    let mut seed = SEED.lock().unwrap();
    let mut key = SecretBytes::zeroed(len_bytes);
    for byte in key.as_mut_slice() {
        *seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        *byte = (*seed >> 56) as u8;
    }
    key
}

/// Paints the stack below its caller; returns the lowest address of the paint.
#[inline(never)]
fn paint() -> usize {
    let region = [PAINT; PAINTED_BYTES];
    black_box(&region).as_ptr() as usize
}

/// Numbers of sectors per call: the batch of the widest kernels, more, and less.
const SECTORS: [usize; 4] = [37, 8, 3, 1];

/// Calls of each length: both directions, from source to destination with normal and non-temporal
/// stores, in place, and over zeros, whose ciphertext would reveal an added round key.
const WAYS: usize = 8;

const CALLS: usize = SECTORS.len() * WAYS;

/// Source and destination.
struct Memory {
    bytes: Vec<u8>,
    /// Without page alignment no store is non-temporal.
    start: usize,
    sector_bytes: usize,
}

impl Memory {
    fn new(sector_bytes: usize) -> Memory {
        let bytes = vec![0x5a; 2 * SECTORS[0] * sector_bytes + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Memory { bytes, start, sector_bytes }
    }

    fn call(&mut self, cipher: &SectorCipher, call: usize) {
        let half = SECTORS[0] * self.sector_bytes;
        let (one, other) = self.bytes[self.start..][..2 * half].split_at_mut(half);
        let len_bytes = SECTORS[call / WAYS] * self.sector_bytes;
        let one = &mut one[..len_bytes];
        let other = &mut other[..len_bytes];
        let around = Hints { prefetch_source: true, stream_dest: true };
        match call % WAYS {
            0 => cipher.encrypt(one, other, 8, Hints::default()),
            1 => cipher.decrypt(other, one, 8, Hints::default()),
            2 => cipher.encrypt(one, other, 8, around),
            3 => cipher.decrypt(other, one, 8, around),
            4 => cipher.encrypt_in_place(one, 8),
            5 => cipher.decrypt_in_place(one, 8),
            6 => {
                other.fill(0);
                cipher.encrypt(other, one, 8, Hints::default());
            }
            _ => {
                other.fill(0);
                cipher.decrypt(other, one, 8, Hints::default());
            }
        }
    }
}

/// The needles, and the searched memory.
struct Search {
    memory: File,
    /// Left out of the search: it holds the last read.
    buffer: Vec<u8>,
    /// Inverted, scrambled needles, with the number of their cipher.
    needles: HashMap<u64, usize>,
    /// A bit for the first three bytes of each inverted needle.
    first_bytes: Vec<u64>,
}

/// A found needle.
struct Hit {
    cipher: usize,
    address: usize,
}

impl Search {
    fn new() -> Search {
        Search {
            memory: File::open("/proc/self/mem").unwrap(),
            buffer: vec![0; STEP_BYTES + NEEDLE_BYTES],
            needles: HashMap::new(),
            first_bytes: vec![0; (1 << 24) / 64],
        }
    }

    /// Fills the buffer with the inverted bytes of memory; `false` if unreadable.
    fn read(&mut self, address: usize, len_bytes: usize) -> bool {
        let part = &mut self.buffer[..len_bytes];
        let is_read = self.memory.read_exact_at(part, address as u64).is_ok();
        part.iter_mut().for_each(|byte| *byte = !*byte);
        is_read
    }

    /// Adds the content of a cipher's memory as needles.
    fn learn(&mut self, cipher: usize, (address, len_bytes): (usize, usize)) {
        assert!(self.read(address, len_bytes), "own memory can be read");
        // Other data in key memory would be taken for keys, and found wherever it came from.
        let is_paint = |bytes: &[u8]| bytes.iter().all(|byte| *byte == !PAINT);
        let has_paint = self.buffer[..len_bytes].chunks_exact(NEEDLE_BYTES).any(is_paint);
        assert!(!has_paint, "the key memory of cipher {cipher} has data of earlier calls");
        for at in (0..len_bytes.saturating_sub(NEEDLE_BYTES - 1)).step_by(NEEDLE_BYTES) {
            let word = |at: usize| u32::from_le_bytes(self.buffer[at..at + 4].try_into().unwrap());
            let low = word(at);
            let high = word(at + 4);
            let needle = u64::from(low) | u64::from(high) << 32;
            // Skips padding, small numbers and addresses.
            if distinct(&needle.to_le_bytes()) < 5 || (1 << 46..1 << 48).contains(&!needle) {
                continue;
            }
            self.add(cipher, needle);
            // Wide kernels have one word of a key in every lane of a register.
            for word in [low, high] {
                if distinct(&word.to_le_bytes()) == 4 {
                    self.add(cipher, u64::from(word) | u64::from(word) << 32);
                }
            }
        }
    }

    fn add(&mut self, cipher: usize, needle: u64) {
        self.needles.insert(scramble(needle), cipher);
        let first = (needle & 0xff_ffff) as usize;
        self.first_bytes[first / 64] |= 1 << (first % 64);
    }

    /// Finds all needles in the writable memory of this process.
    fn run(&mut self) -> Vec<Hit> {
        let own = self.buffer.as_ptr() as usize;
        let own = own..own + self.buffer.len();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let mut hits = Vec::new();
        for line in maps.lines().filter(|line| line.contains(" rw")) {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let parse = |text| usize::from_str_radix(text, 16).unwrap();
            let mut at = parse(start);
            let end = parse(end);
            while at < end {
                let len_bytes = (end - at).min(STEP_BYTES + NEEDLE_BYTES - 1);
                if self.read(at, len_bytes) {
                    hits.extend(self.hits(at, len_bytes));
                }
                at += STEP_BYTES;
            }
        }
        hits.retain(|hit| !own.contains(&hit.address));
        hits
    }

    /// The error in a thread's stack after a call, if any.
    fn fault(&mut self, subject: &Subject) -> Option<&'static str> {
        let address = subject.painted.load(Ordering::Relaxed);
        assert!(self.read(address, PAINTED_BYTES));
        if !self.hits(address, PAINTED_BYTES).is_empty() {
            return Some("round keys on the stack");
        }
        (subject.wipes && !self.is_wiped()).then_some("it uses more stack than it wipes")
    }

    /// Whether the deepest used part of the stack in the buffer holds zeros.
    fn is_wiped(&self) -> bool {
        /// Frame of the function that writes the zeros.
        const BELOW: usize = 128;
        /// More than the gap between two frames, which is never written.
        const ZEROS: usize = 512;
        let stack = &self.buffer[..PAINTED_BYTES];
        let used = stack.iter().position(|byte| *byte != !PAINT);
        used.is_some_and(|at| at > 0 && stack[at + BELOW..][..ZEROS].iter().all(|byte| *byte == !0))
    }

    fn hits(&self, address: usize, len_bytes: usize) -> Vec<Hit> {
        let mut hits = Vec::new();
        for (at, bytes) in self.buffer[..len_bytes].windows(NEEDLE_BYTES).enumerate() {
            let found = u64::from_le_bytes(bytes.try_into().unwrap());
            let first = (found & 0xff_ffff) as usize;
            if self.first_bytes[first / 64] >> (first % 64) & 1 == 1
                && let Some(&cipher) = self.needles.get(&scramble(found))
            {
                hits.push(Hit { cipher, address: address + at });
            }
        }
        hits
    }
}

/// Scrambles an inverted word: in Camellia with a key of 24 bytes, the inverse of a key word may be
/// another key word.
fn scramble(inverted: u64) -> u64 {
    inverted.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Number of distinct byte values.
fn distinct(bytes: &[u8]) -> usize {
    bytes.iter().enumerate().filter(|(at, byte)| !bytes[..*at].contains(byte)).count()
}

/// Every cipher of the vectors on every tier that it has, each in a thread.
fn subjects(search: &mut Search) -> Vec<Subject> {
    let mut subjects: Vec<Subject> = Vec::new();
    for line in VECTORS.lines().filter(|line| !line.starts_with(['#', '!']) && !line.ends_with('-'))
    {
        let words: Vec<&str> = line.split(' ').collect();
        let key_len_bytes = words[1].parse().unwrap();
        let sector_bytes = words[2].parse().unwrap();
        let spec = CipherSpec::parse(words[0]).unwrap();
        for tier in Tier::available() {
            let key = noise(key_len_bytes);
            let cipher = SectorCipher::with_tier(&spec, key.as_slice(), sector_bytes, false, tier);
            if cipher.unwrap().tier() != tier {
                // The cipher has code of the portable tier only.
                continue;
            }
            let subject = Subject::start(words[0], key_len_bytes, sector_bytes, tier);
            for memory in &subject.memory {
                search.learn(subjects.len(), *memory);
            }
            subjects.push(subject);
        }
    }
    subjects
}

/// The ciphers of the hits, with the numbers of hits.
fn tally(hits: &[Hit], subjects: &[Subject]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for hit in hits {
        *counts.entry(&subjects[hit.cipher].name).or_default() += 1;
    }
    counts.iter().map(|(name, count)| format!("\n  {name}: {count} places")).collect()
}

#[test]
fn round_keys_are_in_the_memory_of_their_cipher_and_nowhere_else() {
    set_protector(record);
    let mut search = Search::new();
    let subjects = subjects(&mut search);
    assert!(subjects.len() > 200, "{} ciphers", subjects.len());

    let mut faults = BTreeSet::new();
    for call in 0..CALLS {
        subjects.iter().for_each(Subject::go_on);
        for subject in &subjects {
            faults.extend(search.fault(subject).map(|fault| (&subject.name, fault, call)));
        }
    }
    assert!(faults.is_empty(), "after a call: {faults:#?}");

    let memory: BTreeMap<usize, usize> =
        subjects.iter().flat_map(|subject| subject.memory.iter().copied()).collect();
    let is_protected = |address: usize| {
        let before = memory.range(..=address).next_back();
        before.is_some_and(|(start, len_bytes)| address < start + len_bytes)
    };
    let (inside, outside): (Vec<Hit>, Vec<Hit>) =
        search.run().into_iter().partition(|hit| is_protected(hit.address));
    assert!(outside.is_empty(), "used, keys left behind:{}", tally(&outside, &subjects));
    // Checks the alarm: the keys of every cipher are found in its memory.
    for (number, subject) in subjects.iter().enumerate() {
        assert!(inside.iter().any(|hit| hit.cipher == number), "{} was not found", subject.name);
    }

    subjects.iter().for_each(Subject::go_on);
    let left = search.run();
    assert!(left.is_empty(), "dropped, keys left behind:{}", tally(&left, &subjects));
    subjects.into_iter().for_each(Subject::end);

    let key = noise(2 * NEEDLE_BYTES);
    search.learn(0, (key.as_slice().as_ptr() as usize, key.len()));
    let copy: [u8; 2 * NEEDLE_BYTES] = key.as_slice().try_into().unwrap();
    black_box(&copy);
    assert_eq!(search.run().len(), 4, "a copy on a stack was not found");
}
