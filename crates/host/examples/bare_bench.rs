//! The cipher between the pages of a file in memory and buffers: a server's work without a server.
//!
//! `cargo x bench vhost` runs it: `bare_bench PATH` and the words of a job.

#[path = "../vhost_client/src/load.rs"]
mod load;

use std::fs::File;
use std::ptr::null_mut;

use blockyard_crypt::cipher::{CipherSpec, Hints, SectorCipher};
use blockyard_host::memory::Region;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use load::{Door, Job, load};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SECTOR_BYTES: u32 = 512;
const PAGE_BYTES: usize = 4096;

/// The cipher, the file and the buffers of one thread.
struct Bare {
    cipher: SectorCipher,
    device: &'static mut [u8],
    buffers: Region,
    len_bytes: usize,
    is_write: bool,
    ended: Vec<usize>,
}

impl Bare {
    fn new(path: &str, job: &Job) -> Result<Self> {
        let spec = CipherSpec::parse("aes-xts-plain64")?;
        let key: Vec<u8> = (0..64).collect();
        let mut buffers = Region::new(job.depth * job.len_bytes)?;
        buffers.bytes().fill(1);
        Ok(Self {
            cipher: SectorCipher::new(&spec, &key, SECTOR_BYTES, false)?,
            device: map(&File::options().read(true).write(true).open(path)?)?,
            buffers,
            len_bytes: job.len_bytes,
            is_write: job.is_write,
            ended: Vec::new(),
        })
    }
}

/// A mapping of the whole file for as long as the program runs. Each page is touched: a server has
/// long mapped it.
fn map(file: &File) -> Result<&'static mut [u8]> {
    let len = file.metadata()?.len() as usize;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, as long as the file is. Other threads of this program change the same
    // bytes; nobody depends on them.
    let bytes = unsafe {
        let base = mmap(null_mut(), len, access, MapFlags::SHARED, file, 0)?;
        std::slice::from_raw_parts_mut(base.cast::<u8>(), len)
    };
    bytes.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
    Ok(bytes)
}

impl Door for Bare {
    fn submit(&mut self, slot: usize, offset: u64) -> Result<()> {
        let buffer = &mut self.buffers.bytes()[slot * self.len_bytes..][..self.len_bytes];
        let is_large = buffer.len() > PAGE_BYTES;
        let pages = &mut self.device[offset as usize..][..buffer.len()];
        let iv_sector = offset / u64::from(SECTOR_BYTES);
        // The hints of the executor.
        if self.is_write {
            let hints = Hints { prefetch_source: false, stream_dest: is_large };
            self.cipher.encrypt(buffer, pages, iv_sector, hints);
        } else {
            let hints = Hints { prefetch_source: is_large, stream_dest: false };
            self.cipher.decrypt(pages, buffer, iv_sector, hints);
        }
        self.ended.push(slot);
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<usize>) -> Result<()> {
        ended.append(&mut self.ended);
        Ok(())
    }
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (path, words) = words.split_first().ok_or("bare_bench PATH JOB")?;
    let job = Job::parse(words)?;
    load(&job, job.doors(|| Bare::new(path, &job))?)
}
