//! Writes that stay in flight, with their bytes in the inbox.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

use super::blocked::connected_to;
use super::*;
use crate::file::{Access, DeviceFile};
use crate::volume::VolumeOptions;

const LEN_BYTES: usize = 64 << 10;
/// More bytes than one part of the inbox has.
const WRITES: usize = 20;
const REPLY_BYTES: usize = 16;

fn byte_of(number: usize) -> u8 {
    100 + number as u8
}

/// A WRITE that changes its own range.
fn write(number: usize) -> Vec<u8> {
    let mut write = 0x2560_9513_u32.to_be_bytes().to_vec();
    write.extend([0, 0, 0, 1]);
    write.extend((number as u64).to_be_bytes());
    write.extend(((number * LEN_BYTES) as u64).to_be_bytes());
    write.extend((LEN_BYTES as u32).to_be_bytes());
    write.resize(write.len() + LEN_BYTES, byte_of(number));
    write
}

/// The volume is suspended, so no write ends, as with a server that takes its time.
#[test]
fn many_writes_of_a_client_are_in_flight_and_keep_their_bytes() {
    let image = tempfile::NamedTempFile::new_in(std::env::current_exe().unwrap().parent().unwrap());
    let image = image.unwrap();
    let size_bytes = (2 * WRITES * LEN_BYTES) as u64;
    image.as_file().set_len(size_bytes).unwrap();
    let file = DeviceFile::open(image.path(), Access::ReadWrite, false).unwrap();
    let options = VolumeOptions { controlled: true, ..VolumeOptions::default() };
    let volume = Arc::new(Volume::from_file(file, &options).unwrap());
    let (mut transmission, mut client) = connected_to(&volume, size_bytes);
    volume.suspend().unwrap();
    let mut writer = client.try_clone().unwrap();
    let sends = std::thread::spawn(move || {
        (0..WRITES).for_each(|number| writer.write_all(&write(number)).unwrap());
    });
    let step = |transmission: &mut Transmission| {
        let begun = transmission.parse().and_then(|()| transmission.collect());
        begun.expect("the client is there");
        transmission.driver.unplug();
        transmission.send().expect("the client reads");
    };
    step(&mut transmission);
    while transmission.open_requests() < WRITES || transmission.writing.is_some() {
        let are_read = transmission.driver.reads_client_buffer();
        let count = transmission.open_requests();
        assert!(transmission.inbox.has_room(are_read), "{count} writes fill the inbox");
        transmission.wait().expect("the client is there");
        step(&mut transmission);
    }
    sends.join().unwrap();
    volume.resume(false).unwrap();
    while transmission.open_requests() > 0 {
        transmission.wait().expect("the client is there");
        step(&mut transmission);
    }
    client.read_exact(&mut [0; WRITES * REPLY_BYTES]).unwrap();
    let mut written = vec![0; WRITES * LEN_BYTES];
    File::open(image.path()).unwrap().read_exact_at(&mut written, 0).unwrap();
    for (number, range) in written.chunks(LEN_BYTES).enumerate() {
        assert!(range.iter().all(|byte| *byte == byte_of(number)), "write {number}");
    }
}
