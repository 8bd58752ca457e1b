//! Published vectors on every tier, and wiping of dropped keys.
//!
//! Vectors have tweaks of 16 arbitrary bytes and lengths of a few blocks. They run through the
//! kernels directly: a job takes the whole tweak, and a short message is the start of a sector,
//! whose later blocks cannot change it in XTS or CBC.

use super::*;

const SECTOR_BYTES: usize = 512;

struct Vector {
    key: Vec<u8>,
    iv: [u8; 16],
    plain: Vec<u8>,
    encrypted: Vec<u8>,
}

fn hex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "odd number of digits: {text}");
    let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn vectors(text: &str) -> Vec<Vector> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let parse = |line: &str| {
        let mut fields = line.split(' ').map(hex);
        let mut field = || fields.next().unwrap();
        let key = field();
        let iv = field();
        let plain = field();
        let encrypted = field();
        assert_eq!(plain.len(), encrypted.len());
        Vector { key, iv: iv.try_into().unwrap(), plain, encrypted }
    };
    lines.map(parse).collect()
}

/// One message at the start of the second of three sectors.
fn run(cipher: &SectorCipher, encrypt: bool, iv: [u8; 16], message: &[u8]) -> Vec<u8> {
    let iv = u128::from_le_bytes(iv);
    let counter = IvCounter {
        first: (iv as u64).wrapping_sub(1),
        step: 1,
        shift: 0,
        mask: u64::MAX,
        high: (iv >> 64) as u64,
    };
    let mut data = vec![0x77; 3 * SECTOR_BYTES];
    data[SECTOR_BYTES..][..message.len()].copy_from_slice(message);
    let bytes = data.as_mut_ptr();
    let job = Job {
        src: bytes,
        dst: bytes,
        sector_bytes: SECTOR_BYTES,
        sectors: 3,
        iv: counter,
        hints: Hints::default(),
    };
    let Path::Tiered { schedule, kernels } = &cipher.path else { panic!("it has no kernels") };
    let kernel = if encrypt { kernels.encrypt } else { kernels.decrypt };
    // SAFETY: source and destination are one buffer of three sectors, and the schedule and the
    // kernel belong to the same cipher.
    unsafe { kernel(&raw const **schedule, &job) };
    data[SECTOR_BYTES..][..message.len()].to_vec()
}

fn check(spec: &str, text: &str, count: usize) {
    let spec = CipherSpec::parse(spec).unwrap();
    let vectors = vectors(text);
    assert_eq!(vectors.len(), count);
    for tier in Tier::available() {
        for (index, vector) in vectors.iter().enumerate() {
            let cipher = SectorCipher::with_tier(&spec, &vector.key, 512, false, tier).unwrap();
            let encrypted = run(&cipher, true, vector.iv, &vector.plain);
            assert_eq!(encrypted, vector.encrypted, "{tier:?} encrypts vector {index}");
            let plain = run(&cipher, false, vector.iv, &vector.encrypted);
            assert_eq!(plain, vector.plain, "{tier:?} decrypts vector {index}");
        }
    }
}

#[test]
fn xts_ieee_1619_vectors() {
    let text = include_str!("../../../../testdata/vectors/aes/xts-ieee1619.txt");
    check("aes-xts-plain64", text, 14);
}

#[test]
fn xts_nist_vectors() {
    let text = include_str!("../../../../testdata/vectors/aes/xts-nist.txt");
    check("aes-xts-plain64", text, 1600);
}

#[test]
fn xts_wycheproof_vectors() {
    let text = include_str!("../../../../testdata/vectors/aes/xts-wycheproof.txt");
    check("aes-xts-plain64", text, 63);
}

#[test]
fn cbc_sp_800_38a_vectors() {
    let text = include_str!("../../../../testdata/vectors/aes/cbc-sp800-38a.txt");
    check("aes-cbc-plain64", text, 3);
}

#[test]
fn schedule_is_wiped_when_dropped() {
    let key: Vec<u8> = (100..164).collect();
    let holds_key =
        |memory: &[u8]| key.chunks(16).any(|part| memory.windows(16).any(|w| w == part));
    for tier in Tier::available() {
        let schedule = Box::into_raw(Schedule::new(Tiered::Xts, &key, tier));
        let bytes = |schedule: *mut Schedule| {
            // SAFETY: the allocation was made of zeros, all of it, and is freed below.
            let memory =
                unsafe { std::slice::from_raw_parts(schedule.cast::<u8>(), size_of::<Schedule>()) };
            memory.to_vec()
        };
        let before = bytes(schedule);
        // SAFETY: the value is dropped once, and its memory is not read as a value after that.
        unsafe { std::ptr::drop_in_place(schedule) };
        let after = bytes(schedule);
        // SAFETY: allocated by a box of this layout, and its value is dropped.
        unsafe { std::alloc::dealloc(schedule.cast(), std::alloc::Layout::new::<Schedule>()) };
        // The portable tier may store its keys in another order.
        assert!(tier == Tier::Portable || holds_key(&before), "{tier:?}: nothing to wipe");
        assert!(!holds_key(&after), "{tier:?}: the key is still there");
    }
}
