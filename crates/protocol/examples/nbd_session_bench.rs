//! Cost of a request in the session: parsing its header and encoding its reply.
//!
//! `cargo run --release -p blockyard-protocol --example nbd_session_bench`
//!
//! Prints the best of several rounds in nanoseconds per request, for each form of reply. The
//! headers come from a buffer of 64, as from a client that keeps a queue full.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use blockyard_protocol::nbd::{Event, Export, READ_HEADER_MAX, ReadChunk, Session};

const ROUNDS: usize = 25;
const BATCHES_PER_ROUND: usize = 2_000;
const BATCH: usize = 64;

fn option(number: u32) -> Vec<u8> {
    let data: &[u8] = if number == 7 { &[0; 6] } else { &[] };
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// A session in transmission; the option `negotiate` selects the form of replies.
fn open(negotiate: Option<u32>) -> Session {
    let mut session = Session::new(Arc::new([Export::new("disk", 1 << 40)]), Some(0));
    let mut bytes = vec![0, 0, 0, 3];
    bytes.extend(negotiate.map(option).unwrap_or_default());
    bytes.extend(option(7));
    let mut at = 0;
    let mut out = Vec::new();
    while !session.is_transmission() {
        at += session.on_bytes(&bytes[at..], &mut out).consumed;
    }
    session
}

fn headers(extended: bool, command: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    for cookie in 0..BATCH as u64 {
        let magic: u32 = if extended { 0x21e4_1c71 } else { 0x2560_9513 };
        bytes.extend_from_slice(&magic.to_be_bytes());
        bytes.extend_from_slice(&0_u16.to_be_bytes());
        bytes.extend_from_slice(&command.to_be_bytes());
        bytes.extend_from_slice(&cookie.to_be_bytes());
        bytes.extend_from_slice(&(cookie * 4096).to_be_bytes());
        if extended {
            bytes.extend_from_slice(&4096_u64.to_be_bytes());
        } else {
            bytes.extend_from_slice(&4096_u32.to_be_bytes());
        }
    }
    bytes
}

/// Parses every header and encodes every reply; returns the number of reply bytes, which must be
/// used.
fn batch(session: &mut Session, bytes: &[u8], read: bool, out: &mut Vec<u8>) -> usize {
    let mut at = 0;
    let mut sent = 0;
    out.clear();
    let mut header = [0; READ_HEADER_MAX];
    loop {
        let step = session.on_bytes(&bytes[at..], out);
        at += step.consumed;
        let Event::Request(request) = step.event else { break };
        if read {
            let offset_bytes = request.offset_bytes;
            let len_bytes = request.len_bytes;
            let chunk = ReadChunk { request, offset_bytes, len_bytes, first: true, last: true };
            sent += session.read_header(&chunk, &mut header);
            black_box(&header);
        } else {
            session.reply(&request, None, out);
        }
    }
    assert_eq!(at, bytes.len(), "every header was a request");
    sent + out.len()
}

fn main() {
    println!("{:<12} {:>16} {:>22}", "ns/request", "read + header", "write zeroes + reply");
    for (name, negotiate) in [("simple", None), ("structured", Some(8)), ("extended", Some(11))] {
        let mut best = [f64::MAX; 2];
        for (column, command) in [0, 6].into_iter().enumerate() {
            let mut session = open(negotiate);
            let bytes = headers(negotiate == Some(11), command);
            let mut out = Vec::with_capacity(BATCH * 64);
            for _ in 0..ROUNDS {
                let start = Instant::now();
                for _ in 0..BATCHES_PER_ROUND {
                    let read = command == 0;
                    black_box(batch(&mut session, black_box(&bytes), read, &mut out));
                }
                let per_batch = start.elapsed().as_nanos() as f64 / BATCHES_PER_ROUND as f64;
                best[column] = best[column].min(per_batch / BATCH as f64);
            }
        }
        println!("{name:<12} {:>16.1} {:>22.1}", best[0], best[1]);
    }
}
