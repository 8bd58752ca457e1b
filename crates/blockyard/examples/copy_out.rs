//! Copies the plaintext of a LUKS volume into a file:
//! `cargo run --example copy_out -- home.img key.bin plain.img`

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

use blockyard::{Key, SparseFile, Volume};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [image, key_file, to] = &words[..] else { return Err("usage: IMAGE KEY_FILE TO".into()) };
    let volume = Volume::options().key(Key::file(key_file)?).read_only(true).open(image)?;
    // Plaintext is for its owner only.
    let to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    let mut sparse = SparseFile::new(&to);
    volume.copy_out(&mut sparse, &mut |_| ())?;
    sparse.end()?;
    to.sync_all()?;
    Ok(())
}
