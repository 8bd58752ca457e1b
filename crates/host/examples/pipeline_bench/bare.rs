//! The cipher alone, with the buffers and memory of a volume.

use blockyard_crypt::cipher::{CipherSpec, Hints, SectorCipher};
use blockyard_engine::bio::Op;
use blockyard_host::memory::Region;

use super::round::{Places, Sample, timed};
use super::{CIPHER, Error, Job, SIZE_BYTES, key};

/// A submitter's buffers.
struct Side {
    buffers: Region,
    /// Address of the device's memory.
    device: usize,
}

/// The cipher, its memory and its threads.
pub(crate) struct Bare {
    cipher: SectorCipher,
    sides: Vec<Side>,
    _device: Region,
}

impl Bare {
    pub(crate) fn new(submitters: usize) -> Result<Self, Error> {
        let spec = CipherSpec::parse(CIPHER)?;
        let cipher = SectorCipher::new(&spec, key().as_slice(), 512, false)?;
        let mut memory = Region::new(SIZE_BYTES as usize)?;
        memory.bytes().fill(1);
        let device = memory.base() as usize;
        let side = |_| {
            let mut buffers = Region::new(8 << 20)?;
            buffers.bytes().fill(1);
            Ok::<_, Error>(Side { buffers, device })
        };
        let sides = (0..submitters).map(side).collect::<Result<_, _>>()?;
        Ok(Self { cipher, sides, _device: memory })
    }

    /// Runs a round: with `cold` between buffers and the device's memory, else in place in one
    /// buffer.
    pub(crate) fn measure(&mut self, job: &Job, cold: bool) -> Sample {
        let cipher = &self.cipher;
        timed(&mut self.sides, job, |side, seed| {
            let mut places = Places::new(job, seed);
            for request in 0..job.requests {
                let place = places.next() as usize;
                let len = job.len_bytes as usize;
                let buffer = side.buffers.at(request % job.depth * len, len);
                if cold {
                    // SAFETY: a place is inside of the device's memory, which is as long as all
                    // places together, and only raw pointers go there.
                    unsafe { run(cipher, job, buffer, (side.device as *mut u8).add(place)) };
                } else {
                    let bytes = &mut side.buffers.bytes()[..len.min(64 << 10)];
                    for _ in 0..len / bytes.len() {
                        match job.op {
                            Op::Write => cipher.encrypt_in_place(bytes, place as u64 >> 9),
                            _ => cipher.decrypt_in_place(bytes, place as u64 >> 9),
                        }
                    }
                }
            }
        })
    }
}

/// Runs the cipher with the executor's prefetch hints.
///
/// # Safety
/// `buffer` and `device` are valid for the job's length and disjoint.
unsafe fn run(cipher: &SectorCipher, job: &Job, buffer: *mut u8, device: *mut u8) {
    let len = job.len_bytes as usize;
    let iv_sector = device as u64 >> 9;
    let large = len > 4096;
    // SAFETY: guaranteed by the caller.
    unsafe {
        match job.op {
            Op::Write => {
                let hints = Hints { prefetch_source: false, stream_dest: large };
                cipher.encrypt_raw(buffer, device, len, iv_sector, hints);
            }
            _ => {
                let hints = Hints { prefetch_source: large, stream_dest: false };
                cipher.decrypt_raw(device, buffer, len, iv_sector, hints);
            }
        }
    }
}
