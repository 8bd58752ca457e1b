//! A trace of bios, as it is and with the checksums that it should have: what is read is written
//! and read again.
#![no_main]

use blockyard_workload::trace::{SECTORS_MAX, Trace, Writer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    let mut mended = bytes.to_vec();
    mend(&mut mended);
    read(&mended);
});

fn read(bytes: &[u8]) {
    let trace = match Trace::read(bytes) {
        Ok(trace) => trace,
        Err(error) => {
            assert!(!error.problem.is_empty());
            assert!(error.offset_bytes <= bytes.len() as u64, "{error}");
            return;
        }
    };
    let mut writer = Writer::begin(Vec::new(), &trace.header).expect("memory takes all");
    for bio in &trace.bios {
        assert!(bio.end_sector() <= SECTORS_MAX);
        writer.push(bio).expect("memory takes all");
    }
    writer.set_lost(trace.end.lost);
    let written = writer.end(trace.end.length).expect("memory takes all");
    let again = Trace::read(&written[..]).expect("it was written just now");
    assert_eq!((again.header, again.bios), (trace.header, trace.bios));
}

/// Puts right checksums where the lengths say that they are: a fuzzer finds none.
fn mend(bytes: &mut [u8]) {
    let mut start = 0;
    let mut len_at = 28;
    let mut fixed_bytes = 40;
    while let Some(len) = bytes.get(start + len_at..start + len_at + 4) {
        let len = u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize;
        let end = start + fixed_bytes + len;
        if end + 4 > bytes.len() {
            break;
        }
        let sum = crc32(&bytes[start..end]);
        bytes[end..end + 4].copy_from_slice(&sum.to_le_bytes());
        (start, len_at, fixed_bytes) = (end + 4, 4, 28);
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    let shift = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1));
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), shift))
}
