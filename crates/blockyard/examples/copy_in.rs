//! Fills a LUKS volume from a file: `cargo run --example copy_in -- home.img key.bin plain.img`

use std::fs::File;

use blockyard::{Key, Volume};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [image, key_file, from] = &words[..] else {
        return Err("usage: IMAGE KEY_FILE FROM".into());
    };
    let mut from = File::open(from)?;
    let volume = Volume::options().key(Key::file(key_file)?).open(image)?;
    if from.metadata()?.len() > volume.len() {
        return Err(format!("the volume has only {} bytes", volume.len()).into());
    }
    // The call ends with a flush: a power cut loses nothing of it then.
    volume.copy_in(&mut from, &mut |_| ())?;
    Ok(())
}
