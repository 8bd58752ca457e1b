use super::*;
use crate::random::Random;

/// Bios of every kind, in an order in which no bio is sequential to the one before.
fn bios(seed: u64, count: usize) -> Vec<TracedBio> {
    let mut random = Random::new(seed, 0);
    let bios = (0..count).map(|_| {
        let op = writer::OPS[random.below(5) as usize];
        let is_flush = op == Op::Flush;
        let failed = random.below(9) == 0;
        let status =
            if failed { writer::STATUSES[random.below(7) as usize] } else { BlkStatus::Ok };
        let bits = random.below(40);
        let latency = Nanos(random.below(1 << bits));
        TracedBio {
            start: Nanos(random.below(1 << 40)),
            op,
            fua: random.below(2) == 0,
            preflush: random.below(2) == 0,
            sync: random.below(2) == 0,
            sector: if is_flush { 0 } else { random.below(SECTORS_MAX - (1 << 20)) },
            sectors: if is_flush { 0 } else { random.below(1 << 20) as u32 },
            submitter: random.below(3) as u32 * 0x7fff_ffff,
            priority: match random.below(3) {
                0 => Priority::real_time(random.below(8) as u8),
                1 => Priority::best_effort(random.below(8) as u8),
                _ => Priority::IDLE,
            },
            completion: (random.below(3) > 0).then_some(Completion { latency, status }),
        }
    });
    bios.collect()
}

fn header() -> Header {
    let export = "my disk".into();
    Header { volume_bytes: 1 << 40, sector_bytes: 4096, export, began_unix_ns: 77 }
}

fn written(bios: &[TracedBio]) -> Vec<u8> {
    let mut writer = Writer::begin(Vec::new(), &header()).unwrap();
    bios.iter().for_each(|bio| writer.push(bio).unwrap());
    writer.set_lost(3);
    writer.end(Nanos(1 << 50)).unwrap()
}

fn read(bytes: &[u8]) -> Result<(Vec<TracedBio>, End), TraceError> {
    let mut reader = Reader::new(bytes)?;
    assert_eq!(reader.header(), &header());
    let mut bios = Vec::new();
    while let Some(bio) = reader.next_bio()? {
        bios.push(bio);
    }
    assert_eq!(reader.next_bio()?, None, "the end stays the end");
    Ok((bios, reader.end()))
}

#[test]
fn written_trace_is_read_unchanged() {
    for count in [0, 1, 2, 20_000] {
        let bios = bios(count as u64, count);
        let bytes = written(&bios);
        let (again, end) = read(&bytes).unwrap();
        assert!(again == bios, "{count} bios");
        assert_eq!(end, End { length: Nanos(1 << 50), lost: 3, cut_off_at_bytes: None });
    }
}

#[test]
fn whole_trace_is_in_the_order_in_which_bios_came() {
    let trace = Trace::read(&written(&bios(1, 5000))[..]).unwrap();
    assert_eq!(trace.bios.len(), 5000);
    assert!(trace.bios.is_sorted_by_key(|bio| bio.start));
    assert_eq!(trace.header, header());
}

#[test]
fn file_that_is_cut_off_is_read_up_to_its_last_whole_block() {
    let bios = bios(2, 20_000);
    let bytes = written(&bios);
    let mut most = 0;
    let mut cuts = 0;
    for len in (60..bytes.len()).step_by(9973) {
        let (again, end) = read(&bytes[..len]).unwrap();
        assert!(again == bios[..again.len()], "cut off at {len}");
        let at = end.cut_off_at_bytes.expect("it has no end") as usize;
        // The remaining tail is shorter than the longest block, so the reader looked for it.
        assert!(at <= len && len - at < 70 << 10, "cut off at {len}, said {at}");
        assert!(again.len() >= most);
        (most, cuts) = (again.len(), cuts + 1);
    }
    assert!(cuts > 10 && most > 10_000, "{cuts} cuts, at most {most} bios");
}

#[test]
fn every_damaged_byte_is_seen() {
    let bytes = written(&bios(3, 40));
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 0x10;
        let seen = Trace::read(&bad[..]);
        let said = match seen {
            // An increased length leads past the end of the file.
            Ok(trace) => trace.end.cut_off_at_bytes.map(|_| "cut off".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        let said = said.unwrap_or_else(|| panic!("byte {at} may be anything"));
        assert!(!said.is_empty());
    }
}

#[test]
fn invalid_trace_error_has_its_offset_and_a_remedy() {
    let bytes = written(&bios(4, 3));
    let problem = |bytes: &[u8]| Trace::read(bytes).unwrap_err().to_string();
    assert_eq!(problem(b""), "at byte 0: the file is no trace: it does not begin with \"BYTRACE\"");
    assert!(problem(b"BYTRACE\0rest").contains("cut off within its header"));
    let mut version = bytes.clone();
    version[8] = 2;
    assert!(problem(&version).starts_with("at byte 8: the trace has version 2"));
    let mut block = bytes.clone();
    block[80] ^= 1;
    let said = problem(&block);
    let first_block = 40 + "my disk".len() + 4;
    assert!(said.starts_with(&format!("at byte {first_block}: ")), "{said}");
    assert!(said.contains(&format!("truncate -s {first_block}")), "{said}");
    // The kept part is a valid trace.
    assert_eq!(Trace::read(&block[..first_block]).unwrap().bios, []);
}

/// A block with this content and a correct checksum.
fn forged(content: &[u8], records: u32) -> Vec<u8> {
    let mut bytes = Writer::begin(Vec::new(), &header()).unwrap().end(Nanos(0)).unwrap();
    bytes.truncate(bytes.len() - 32);
    let mut block = b"BIOS".to_vec();
    block.extend((content.len() as u32).to_le_bytes());
    block.extend(records.to_le_bytes());
    block.extend([0; 16]);
    block.extend(content);
    block.extend(bytes::crc32(&[&block]).to_le_bytes());
    bytes.extend(block);
    bytes
}

#[test]
fn record_that_no_bio_can_be_is_named() {
    let be4 = 2 << 3 | 4;
    for (record, word) in [
        (&[0x87, 0, be4, 0, 0, 0][..], "the operation is invalid"),
        (&[0x00, 0, 0, 0][..], "no submitter"),
        (&[0x80, 0, 0, 0, 0, 0][..], "the priority is invalid"),
        (&[0x80, 0, 3 << 3, 0, 0, 0][..], "the priority is invalid"),
        (&[0x80, 0, be4, 1, 0, 0][..], "before the start"),
        (&[0x80, 0, be4, 0, 1, 8][..], "beyond any disk"),
        (&[0x80, 0, be4, 0, 0][..], "too short"),
        (&[0xc0, 0, be4, 0, 0, 8, 1, 0][..], "status is success"),
        (&[0xc0, 0, be4, 0, 0, 8, 1, 7][..], "the status is invalid"),
        (&[0x80, 0xff, 0xff, 0xff, 0xff, 0x7f, be4, 0, 0, 0][..], "above 2^32"),
        (&[0x80, 0, be4, 0, 0, 8, 9][..], "longer than its records"),
    ] {
        let error = Trace::read(&forged(record, 1)[..]).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(error.bio, Some(1));
        assert_eq!(error.offset_bytes, 40 + 7 + 4 + 28, "{error}");
    }
    let good = [0x80, 0, be4, 0, 0, 8];
    assert_eq!(Trace::read(&forged(&good, 1)[..]).unwrap().bios[0].sectors, 8);
    assert!(Trace::read(&forged(&good, u32::MAX)[..]).is_err(), "more records than bytes");
}

/// The figures of `docs/trace.md`.
#[test]
fn records_are_as_short_as_is_said() {
    let mut random = Random::new(5, 0);
    let mut bytes_of = |is_random: bool| {
        let count = 10_000;
        let mut writer = Writer::begin(Vec::new(), &Header::default()).unwrap();
        for number in 0..count {
            let priority = Priority::default();
            let latency = Nanos(100_000 + random.below(100_000));
            let sector = if is_random { random.below(1 << 31) & !7 } else { number * 8 };
            let bio = TracedBio {
                start: Nanos(number * 25_000 + random.below(10_000)),
                op: Op::Read,
                fua: false,
                preflush: false,
                sync: true,
                sector,
                sectors: 8,
                submitter: 0,
                priority,
                completion: Some(Completion { latency, status: BlkStatus::Ok }),
            };
            writer.push(&bio).unwrap();
        }
        writer.end(Nanos(0)).unwrap().len() as f64 / count as f64
    };
    let sequential = bytes_of(false);
    let random = bytes_of(true);
    assert!((8.8..9.3).contains(&sequential), "{sequential} bytes for a bio");
    assert!((12.5..13.5).contains(&random), "{random} bytes for a bio");
}
